/* Tests of weight files without an engine: they are written from arrays and read again by
 * ranges. */
#include "engine/checkpoint/weights.h"
#include "engine/checkpoint/bytes.h"
#include "kernels/formulas.h"
#include "tests/lib/check.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static sherdi_mem account;

/* ---- a model of arrays ---- */

/* Values as they come, and as they go to the file. */
#define PORTIONS_BYTES (2 * SHERDI_WEIGHTS_PORTION_ELEMS * sizeof(float))

#define ROWS 700
/* columns of "w", which takes more than one portion of a read when transposed */
#define COLUMNS 900
#define BIG     ((size_t)3 << 19) /* elements of "big": more than a portion */

static const size_t               W_SHAPE[] = {ROWS, COLUMNS}, BIG_SHAPE[] = {BIG}, V_SHAPE[] = {5};
static const sherdi_weights_param PARAMS[] = {{"w", 2, W_SHAPE, (size_t)ROWS *COLUMNS},
                                              {"v", 1, V_SHAPE, 5},
                                              {"scalar", 0, NULL, 1},
                                              {"big", 1, BIG_SHAPE, BIG}};
#define NUM_PARAMS (sizeof(PARAMS) / sizeof(PARAMS[0]))

static sherdi_weights_param param_get(const void *ctx, size_t param)
{
    (void)ctx;
    return PARAMS[param];
}

static int param_find(const void *ctx, const char *name, size_t *out)
{
    (void)ctx;
    for (*out = 0; *out < NUM_PARAMS; ++*out) {
        if (strcmp(PARAMS[*out].name, name) == 0) {
            return 1;
        }
    }
    return 0;
}

static const sherdi_weights_model MODEL = {
    .num_params = NUM_PARAMS, .get = param_get, .find = param_find};

/* Multiples of 1/8 times a factor that needs all bits of fp32, so that the narrower types round
 * them. */
static float value_of(size_t param, const char *value, size_t i)
{
    float base = (float)((int)(i * 7 % 2001) - 1000) / 8.0f;

    return (value == NULL ? 1.0f : -3.0f) * (base + (float)param) * 1.0009765f;
}

typedef struct array_source {
    size_t reads;
    size_t fail_at; /* number of the read that fails; 0: none */
    float  poison;  /* the value at element 2 of "v", unless it is 0 */
} array_source;

static sherd_status array_read(void *ctx, const char *param, const char *value, size_t first_elem,
                               size_t count_elems, float *out)
{
    array_source *source = ctx;
    size_t        number;

    CHECK(param_find(NULL, param, &number));
    CHECK(first_elem + count_elems <= PARAMS[number].elems);
    CHECK(count_elems <= SHERDI_WEIGHTS_PORTION_ELEMS);
    if (++source->reads == source->fail_at) {
        return SHERD_E_DEVICE;
    }
    for (size_t i = 0; i < count_elems; i++) {
        out[i] = value_of(number, value, first_elem + i);
        if (source->poison != 0 && number == 1 && first_elem + i == 2) {
            out[i] = source->poison;
        }
    }
    return SHERD_OK;
}

typedef struct job {
    const sherd_tensor_map *maps; /* NULL: all parameters */
    size_t                  num_maps;
    sherd_dtype             dtype;
    size_t                  max_file_bytes;
    const void             *raw_header;
    size_t                  raw_header_bytes;
    array_source            source;
    uint64_t                done, total; /* as progress last reported them */
} job;

static void progress_keep(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    job *j = ctx;

    CHECK(done_bytes > j->done || done_bytes == total_bytes);
    j->done  = done_bytes;
    j->total = total_bytes;
}

static sherd_status job_write(job *j, const char *path)
{
    sherdi_weights_source  source  = {.ctx = &j->source, .is_writer = 1, .read = array_read};
    sherdi_weights_writing writing = {.mem              = &account,
                                      .source           = &source,
                                      .dtype            = j->dtype,
                                      .max_file_bytes   = j->max_file_bytes,
                                      .raw_header       = j->raw_header,
                                      .raw_header_bytes = j->raw_header_bytes,
                                      .progress         = progress_keep,
                                      .progress_ctx     = j};
    sherdi_weights_maps    maps;
    sherd_status           status;

    SHERDI_TRY(sherdi_weights_maps_open(&account, &MODEL, j->maps, j->num_maps, &maps));
    writing.tensors     = maps.tensors;
    writing.num_tensors = maps.num_tensors;
    status              = sherdi_weights_write(path, &writing);
    sherdi_weights_maps_close(&maps);
    return status;
}

/* ---- paths ---- */

static const char *path_of(const char *name)
{
    static _Thread_local char paths[4][600];
    static _Thread_local int  next;

    next = (next + 1) % 4;
    (void)snprintf(paths[next], sizeof(paths[next]), "%s/%s", test_scratch(), name);
    return paths[next];
}

static int is_there(const char *name)
{
    return access(path_of(name), F_OK) == 0;
}

/* Makes the empty folder of a case. */
static const char *folder_of(const char *name)
{
    static char path[600];

    (void)snprintf(path, sizeof(path), "%s", path_of(name));
    sherdi_mem_init(&account);
    CHECK(mkdir(path, 0700) == 0);
    return path;
}

static void folder_check(const char *path, int files)
{
    CHECK_INT(files, test_files(path, ""));
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

/* Checks that no entry has a name that begins with a dot; test_files does not count those. */
static void no_partials(const char *path)
{
    char  command[700];
    FILE *list;

    (void)snprintf(command, sizeof(command), "ls -A %s | grep '^\\.' || true", path);
    list = popen(command, "r");
    CHECK(list != NULL && fgetc(list) == EOF);
    CHECK(pclose(list) == 0);
}

static sherdi_weights_file *opened(const char *path)
{
    sherdi_weights_file *file;

    CHECK_OK(sherdi_weights_open(&account, path, NULL, &file));
    return file;
}

static sherdi_weights_tensor found(const sherdi_weights_file *file, const char *name)
{
    sherdi_weights_tensor tensor;

    CHECK(sherdi_weights_find(file, name, &tensor));
    return tensor;
}

/* ---- round trips ---- */

static float rounded(float value, sherd_dtype dtype)
{
    return dtype == SHERD_BF16  ? sherdi_cast_bf16_f32(sherdi_cast_f32_bf16(value))
           : dtype == SHERD_F16 ? sherdi_cast_f16_f32(sherdi_cast_f32_f16(value))
                                : value;
}

static void check_values(const sherdi_weights_file *file, const char *name, size_t param,
                         const char *value, size_t first, size_t count, sherd_dtype dtype)
{
    float *got  = malloc(count * sizeof(*got));
    float *want = malloc(count * sizeof(*want));

    CHECK(got != NULL && want != NULL);
    CHECK_INT(count, found(file, name).about->elems);
    CHECK_OK(sherdi_weights_read(file, found(file, name), 0, count, got));
    for (size_t i = 0; i < count; i++) {
        want[i] = rounded(value_of(param, value, first + i), dtype);
    }
    CHECK_BYTES_EQUAL(want, got, count * sizeof(*want));
    CHECK_OK(sherdi_weights_read(file, found(file, name), count / 3, count / 2, got));
    CHECK_BYTES_EQUAL(want + count / 3, got, count / 2 * sizeof(*want));
    free(got);
    free(want);
}

static void all_is_read_as_it_was_written(void)
{
    static const sherdi_tensor_dtype AS[]   = {[SHERD_F32]  = SHERDI_TENSOR_F32,
                                               [SHERD_BF16] = SHERDI_TENSOR_BF16,
                                               [SHERD_F16]  = SHERDI_TENSOR_F16};
    const char                      *folder = folder_of("all");
    sherdi_weights_file             *file;

    for (int dtype = SHERD_F32; dtype <= SHERD_F16; dtype++) {
        job j = {.dtype = (sherd_dtype)dtype};

        CHECK_OK(job_write(&j, folder));
        CHECK_INT((ROWS * COLUMNS + 5 + 1 + BIG) * sherd_dtype_bytes(j.dtype), j.total);
        CHECK_INT(j.total, j.done);
        folder_check(folder, 1);
        file = opened(folder);
        CHECK(found(file, "w").about->dtype == AS[dtype]);
        CHECK_BYTES_EQUAL(W_SHAPE, found(file, "w").about->shape, sizeof(W_SHAPE));
        CHECK_INT(0, found(file, "scalar").about->ndim);
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            check_values(file, PARAMS[p].name, p, NULL, 0, PARAMS[p].elems, j.dtype);
        }
        sherdi_weights_close(file);
    }
    CHECK_INT(PORTIONS_BYTES, atomic_load(&account.peak_bytes[SHERDI_MEM_STAGING]));
    CHECK(is_there("all/model.safetensors"));
    no_partials(folder);
}

static sherd_tensor_map map_of(const char *name, const char *param, size_t first_elem, size_t rows,
                               size_t columns)
{
    sherd_tensor_map map;

    sherd_tensor_map_init(&map);
    map.name       = name;
    map.param      = param;
    map.first_elem = first_elem;
    map.ndim       = 2;
    map.shape[0]   = rows;
    map.shape[1]   = columns;
    return map;
}

static void maps_rename_cut_and_choose_parts(void)
{
    const char          *folder = folder_of("maps");
    sherd_tensor_map     maps[] = {map_of("first", "w", 0, 200, COLUMNS),
                                   map_of("second", "w", 200 * COLUMNS, ROWS - 200, COLUMNS),
                                   map_of("moment", "v", 1, 2, 2)};
    job                  j      = {.maps = maps, .num_maps = 3};
    sherdi_weights_file *file;

    maps[2].value = "m";
    CHECK_OK(job_write(&j, folder));
    file = opened(folder);
    check_values(file, "first", 0, NULL, 0, 200 * COLUMNS, SHERD_F32);
    check_values(file, "second", 0, NULL, 200 * COLUMNS, (ROWS - 200) * COLUMNS, SHERD_F32);
    check_values(file, "moment", 1, "m", 1, 4, SHERD_F32);
    sherdi_weights_close(file);
    folder_check(folder, 1);
}

static void transposed_matrices_come_back(void)
{
    const char      *folder = folder_of("transposed");
    sherd_tensor_map map    = map_of("w.t", "w", 0, COLUMNS, ROWS);
    const size_t     cuts[] = {0, 1, 17, 900, 901, 4000, 250000, 629999, (size_t)ROWS * COLUMNS};
    sherdi_weights_file *file;
    float               *got = malloc(sizeof(*got) * ROWS * COLUMNS);

    CHECK(got != NULL);
    map.is_transposed = 1;
    for (int dtype = SHERD_F32; dtype <= SHERD_BF16; dtype++) {
        job j = {.maps = &map, .num_maps = 1, .dtype = (sherd_dtype)dtype};

        CHECK_OK(job_write(&j, folder));
        file = opened(folder);
        CHECK_OK(sherdi_weights_read(file, found(file, "w.t"), 0, ROWS * COLUMNS, got));
        for (size_t row = 0; row < ROWS; row++) {
            for (size_t column = 0; column < COLUMNS; column++) {
                CHECK(got[column * ROWS + row] ==
                      rounded(value_of(0, NULL, row * COLUMNS + column), j.dtype));
            }
        }
        for (size_t i = 0; i + 1 < sizeof(cuts) / sizeof(cuts[0]); i++) {
            CHECK_OK(sherdi_weights_read_transposed(file, found(file, "w.t"), cuts[i],
                                                    cuts[i + 1] - cuts[i], got + cuts[i]));
        }
        for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) {
            CHECK(got[i] == rounded(value_of(0, NULL, i), j.dtype));
        }
        sherdi_weights_close(file);
    }
    CHECK_INT(PORTIONS_BYTES + sizeof(float) * ROWS * COLUMNS,
              atomic_load(&account.peak_bytes[SHERDI_MEM_STAGING]));
    free(got);
    folder_check(folder, 1);
}

static void large_models_become_several_files(void)
{
    const char          *folder = folder_of("shards");
    job                  j      = {.max_file_bytes = ROWS * COLUMNS * 4 + 24};
    sherdi_weights_file *file;
    char                *text;
    size_t               len_bytes;

    CHECK_OK(job_write(&j, folder));
    folder_check(folder, 3);
    CHECK(is_there("shards/model-00001-of-00002.safetensors"));
    CHECK(is_there("shards/model-00002-of-00002.safetensors"));
    CHECK_OK(sherdi_bytes_load(&account, path_of("shards/model.safetensors.index.json"), 10000,
                               &text, &len_bytes));
    CHECK(strstr(text, "\"total_size\": 8811480") != NULL);
    CHECK(strstr(text, "\"big\": \"model-00002-of-00002.safetensors\"") != NULL);
    CHECK(strstr(text, "\"v\": \"model-00001-of-00002.safetensors\"") != NULL);
    sherdi_free(text);
    file = opened(folder);
    for (size_t p = 0; p < NUM_PARAMS; p++) {
        check_values(file, PARAMS[p].name, p, NULL, 0, PARAMS[p].elems, SHERD_F32);
    }
    sherdi_weights_close(file);
    file = opened(path_of("shards/model.safetensors.index.json"));
    sherdi_weights_close(file);

    /* a later write replaces the files that are there, whether it makes one file or several */
    j = (job){0};
    CHECK_OK(job_write(&j, folder));
    CHECK(!is_there("shards/model.safetensors.index.json"));
    file = opened(folder);
    sherdi_weights_close(file);
    j = (job){.max_file_bytes = 1, .dtype = SHERD_BF16};
    CHECK_OK(job_write(&j, folder));
    CHECK(!is_there("shards/model.safetensors"));
    CHECK(is_there("shards/model-00004-of-00004.safetensors"));
    file = opened(folder);
    check_values(file, "v", 1, NULL, 0, 5, SHERD_BF16);
    sherdi_weights_close(file);
    no_partials(folder);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

static void a_path_with_the_suffix_is_one_file(void)
{
    const char          *folder = folder_of("single");
    job                  j      = {.max_file_bytes = 1};
    sherdi_weights_file *file;

    CHECK_OK(job_write(&j, path_of("single/x.safetensors")));
    folder_check(folder, 1);
    file = opened(path_of("single/x.safetensors"));
    check_values(file, "v", 1, NULL, 0, 5, SHERD_F32);
    sherdi_weights_close(file);
    file = opened(folder); /* it is the only file there */
    sherdi_weights_close(file);
    j.done = 0;
    CHECK_OK(job_write(&j, path_of("single/y.safetensors")));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_weights_open(&account, folder, NULL, &file));
    CHECK_ERROR_SAYS("2 other files");
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

/* ---- raw files ---- */

static void raw_files_have_their_own_header(void)
{
    const char      *folder = folder_of("raw");
    sherd_tensor_map maps[] = {map_of("w", "w", 0, ROWS, COLUMNS), map_of("zeros", NULL, 0, 3, 1),
                               map_of("v", "v", 0, 5, 1)};
    job              j = {.maps = maps, .num_maps = 3, .raw_header = "abc", .raw_header_bytes = 3};
    sherdi_weights_maps  own;
    sherdi_weights_file *file;
    float                zeros[3];
    struct stat          about;

    CHECK_OK(job_write(&j, path_of("raw/model.bin")));
    folder_check(folder, 1);
    CHECK(stat(path_of("raw/model.bin"), &about) == 0);
    CHECK_INT(3 + 4 * (ROWS * COLUMNS + 8), about.st_size);
    CHECK_OK(sherdi_weights_maps_open(&account, &MODEL, maps, 3, &own));
    CHECK_OK(sherdi_weights_open(&account, path_of("raw/model.bin"),
                                 &(sherdi_weights_raw){3, SHERD_F32, &own}, &file));
    check_values(file, "w", 0, NULL, 0, ROWS * COLUMNS, SHERD_F32);
    check_values(file, "v", 1, NULL, 0, 5, SHERD_F32);
    CHECK_OK(sherdi_weights_read(file, found(file, "zeros"), 0, 3, zeros));
    CHECK(zeros[0] == 0 && zeros[1] == 0 && zeros[2] == 0);
    sherdi_weights_close(file);
    CHECK_STATUS(SHERD_E_INVAL,
                 sherdi_weights_open(&account, path_of("raw/model.bin"),
                                     &(sherdi_weights_raw){7, SHERD_F32, &own}, &file));
    CHECK_ERROR_SAYS("is it whole, and of this model?");
    sherdi_weights_maps_close(&own);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

/* ---- what is refused ---- */

static void check_map_refused(sherd_tensor_map map, const char *sentence)
{
    sherdi_weights_maps maps;

    sherdi_mem_init(&account);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_weights_maps_open(&account, &MODEL, &map, 1, &maps));
    CHECK_ERROR_SAYS(sentence);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

static void maps_have_to_fit_the_model(void)
{
    sherd_tensor_map map = map_of("t", "w", 0, ROWS, COLUMNS);

    map.param = "x";
    check_map_refused(map, "tensor t: the model has no parameter x");
    map = map_of("t", "w", 1, ROWS, COLUMNS);
    check_map_refused(map, "are not in parameter w, which has 630000");
    map = map_of("t", "w", SIZE_MAX, ROWS, COLUMNS);
    check_map_refused(map, "are not in parameter w");
    map = map_of("t", "w", 0, SIZE_MAX, 3);
    check_map_refused(map, "too many elements");
    map = map_of(NULL, "w", 0, 1, 1);
    check_map_refused(map, "has no name");
    map      = map_of("t", "w", 0, 1, 1);
    map.ndim = 9;
    check_map_refused(map, "it has 9 dimensions");
    map.ndim          = 1;
    map.is_transposed = 1;
    check_map_refused(map, "only one with 2 can be transposed");
    map             = map_of("t", "w", 0, 1, 1);
    map.struct_size = 3;
    check_map_refused(map, "sherd_tensor_map.struct_size is 3");
}

static void values_too_large_for_the_type_are_refused(void)
{
    const char *folder = folder_of("large");
    job         j      = {.dtype = SHERD_F16, .source = {.poison = 70000.0f}};

    CHECK_STATUS(SHERD_E_NUMERIC, job_write(&j, folder));
    CHECK_ERROR_SAYS("tensor v has the value 70000");
    folder_check(folder, 0);
    no_partials(folder);
    j = (job){.dtype = SHERD_BF16, .source = {.poison = 3.4e38f}};
    CHECK_STATUS(SHERD_E_NUMERIC, job_write(&j, folder));
    j = (job){.dtype = SHERD_F16, .source = {.poison = INFINITY}};
    CHECK_OK(job_write(&j, folder));
}

static void a_failure_leaves_what_was_there(void)
{
    const char          *folder = folder_of("kept");
    job                  j      = {0};
    sherdi_weights_file *file;

    CHECK_OK(job_write(&j, folder));
    for (size_t n = 1; n <= j.source.reads; n++) {
        job failing = {.dtype = SHERD_BF16, .max_file_bytes = 1, .source = {.fail_at = n}};

        CHECK_STATUS(SHERD_E_DEVICE, job_write(&failing, folder));
        no_partials(folder);
        folder_check(folder, 1);
    }
    file = opened(folder);
    check_values(file, "w", 0, NULL, 0, ROWS * COLUMNS, SHERD_F32);
    sherdi_weights_close(file);
}

static void a_file_that_cannot_grow_is_told_and_removed(void)
{
    const char         *folder = folder_of("limit");
    const struct rlimit small  = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    struct rlimit       before;
    job                 j = {0};
    sherd_status        status;

    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &small) == 0);
    status = job_write(&j, folder);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK_STATUS(SHERD_E_IO, status);
    CHECK_ERROR_SAYS("limit/.model.safetensors.partial cannot be written: File too large");
    folder_check(folder, 0);
    no_partials(folder);
    CHECK_STATUS(SHERD_E_IO, job_write(&j, path_of("limit/no/folder")));
    CHECK_ERROR_SAYS("limit/no/folder cannot be made");
    CHECK_STATUS(SHERD_E_INVAL, job_write(&j, ""));
}

/* `name` is what the export would write or remove. */
static void check_odd_stays(const char *folder, const char *name, const job *as)
{
    char path[700];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (int odd = 0; odd < TEST_ODDS; odd++) {
        job j = *as;

        if (test_odd_make(path, (test_odd)odd)) {
            CHECK_STATUS(SHERD_E_IO, job_write(&j, strncmp(name, "one.", 4) == 0 ? path : folder));
            CHECK_ERROR_SAYS(path);
            CHECK_ERROR_SAYS("only a regular file is replaced");
            CHECK_INT(0, j.source.reads); /* it is refused before anything is written */
            test_odd_remove(path, (test_odd)odd);
        }
    }
    folder_check(folder, 0);
}

static void only_regular_files_are_replaced(void)
{
    const char *folder = folder_of("odd");
    const job   one = {0}, raw = {.raw_header = "h", .raw_header_bytes = 1},
              several = {.max_file_bytes = 1};

    check_odd_stays(folder, "one.safetensors", &one);
    check_odd_stays(folder, "one.bin", &raw);
    check_odd_stays(folder, "model.safetensors", &one);
    check_odd_stays(folder, "model.safetensors.index.json", &one);
    check_odd_stays(folder, "model.safetensors", &several);
    check_odd_stays(folder, "model.safetensors.index.json", &several);
    check_odd_stays(folder, "model-00003-of-00004.safetensors", &several);
}

static void text_write(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "w");

    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void check_index_refused(const char *text, const char *sentence)
{
    sherdi_weights_file *file;

    text_write("index/model.safetensors.index.json", text);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_weights_open(&account, path_of("index"), NULL, &file));
    CHECK_ERROR_SAYS(sentence);
    CHECK_INT(0, sherdi_mem_held_all(&account));
}

static void an_index_stays_in_its_folder_and_fits_its_files(void)
{
    const char          *folder = folder_of("index");
    job                  j      = {.max_file_bytes = 1};
    sherdi_weights_file *file;

    CHECK_STATUS(SHERD_E_INVAL, sherdi_weights_open(&account, folder, NULL, &file));
    CHECK_ERROR_SAYS("and 0 other files");
    CHECK_OK(job_write(&j, folder));
    check_index_refused("{}", "it has no object \"weight_map\"");
    check_index_refused("[]", "it has no object \"weight_map\"");
    check_index_refused("{\"weight_map\":{}}", "it has no object \"weight_map\"");
    check_index_refused("{\"weight_map\":{\"w\":3}}", "the file of tensor w");
    check_index_refused("{\"weight_map\":{\"w\":\"../x.safetensors\"}}", "the file of tensor w");
    check_index_refused("{\"weight_map\":{\"w\":\"/etc/passwd\"}}", "the file of tensor w");
    check_index_refused("{\"weight_map\":{\"w\":\"..\"}}", "the file of tensor w");
    check_index_refused("{\"weight_map\":{\"w\":\"\"}}", "the file of tensor w");
    check_index_refused("{\"weight_map\":{\"w\":\"model-00002-of-00004.safetensors\"}}",
                        "says that tensor w is in model-00002");
    check_index_refused("{\"weight_map\":{\"w\":\"model.safetensors.index.json\"}}",
                        "no safetensors file");
    text_write("index/model.safetensors.index.json",
               "{\"weight_map\":{\"w\":\"model-00001-of-00004.safetensors\"}}");
    file = opened(folder);
    sherdi_weights_close(file);
    j = (job){.max_file_bytes = ROWS * COLUMNS * 4 + 24};
    CHECK_OK(job_write(&j, folder));
    check_index_refused("{\"weight_map\":{\"w\":\"model-00001-of-00002.safetensors\"}}",
                        "names 1 tensors, and the files in its folder hold 3");
}

/* ---- allocations ---- */

static sherd_status write_and_read(const char *path)
{
    job                  j = {.max_file_bytes = ROWS * COLUMNS * 4 + 24};
    sherdi_weights_file *file;

    SHERDI_TRY(job_write(&j, path));
    SHERDI_TRY(sherdi_weights_open(&account, path, NULL, &file));
    sherdi_weights_close(file);
    return SHERD_OK;
}

static void every_allocation_may_fail(void)
{
    const char *folder = folder_of("memory");
    size_t      made;

    (void)sherdi_mem_fail_nth(0);
    CHECK_OK(write_and_read(folder));
    made = sherdi_mem_fail_nth(0);
    for (size_t n = 1; n <= made; n++) {
        (void)sherdi_mem_fail_nth(n);
        CHECK_STATUS(SHERD_E_NOMEM, write_and_read(folder));
        (void)sherdi_mem_fail_nth(0);
        CHECK_INT(0, sherdi_mem_held_all(&account));
        no_partials(folder);
    }
}

static const test_case CASES[] = {
    CASE(all_is_read_as_it_was_written),      CASE(maps_rename_cut_and_choose_parts),
    CASE(transposed_matrices_come_back),      CASE(large_models_become_several_files),
    CASE(a_path_with_the_suffix_is_one_file), CASE(raw_files_have_their_own_header),
    CASE(maps_have_to_fit_the_model),         CASE(values_too_large_for_the_type_are_refused),
    CASE(a_failure_leaves_what_was_there),    CASE(a_file_that_cannot_grow_is_told_and_removed),
    CASE(only_regular_files_are_replaced),    CASE(an_index_stays_in_its_folder_and_fits_its_files),
    CASE(every_allocation_may_fail),
};

RUN_MAIN(CASES)
