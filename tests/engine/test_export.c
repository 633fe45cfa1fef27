/* Weights of engines in files: what one engine writes another one starts from, whatever its stage
 * and ranks, and takes between steps. The calls alone; test_weights.c has the files. */
#include "tests/engine/value_rig.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *path_of(const char *name)
{
    static _Thread_local char path[600];

    (void)snprintf(path, sizeof(path), "%s/%s", test_scratch(), name);
    return path;
}

/* ---- a trip through a file ---- */

typedef struct trip {
    int         is_reading; /* else it writes */
    rig_options options;
    const char *name;
    uint64_t    fingerprint; /* rank 0's: of what was written or read */
} trip;

static void micro_batches(rig *r, int count)
{
    for (int i = 0; i < count; i++) {
        rig_micro_batch(r);
        (void)rig_step(r);
    }
}

static void trip_rank(sherd_world *world, void *ctx)
{
    trip    *t = ctx;
    uint64_t fingerprint;
    rig      r;

    value_rig_declare(&r, world, &t->options);
    if (t->is_reading) {
        CHECK_OK(sherd_engine_seal(r.engine));
        CHECK_OK(sherd_import_safetensors(r.engine, path_of(t->name), NULL));
    } else {
        rig_seal(&r);
        micro_batches(&r, 2);
        CHECK_OK(sherd_export_safetensors(r.engine, path_of(t->name), NULL));
    }
    CHECK_OK(sherd_engine_fingerprint(r.engine, &fingerprint));
    if (sherd_world_rank(world) == 0) {
        t->fingerprint = fingerprint;
    }
    micro_batches(&r, 1); /* it is of use */
    rig_close(&r);
}

static void what_is_written_is_read_on_any_layout(void)
{
    static const int STAGES[] = {3, 0, 2, 1}, WORLDS[] = {3, 1, 2, 4};
    trip             out = {.options = {.stage = 3}, .name = "layouts"};

    test_world(3, trip_rank, &out);
    CHECK(access(path_of("layouts/model.safetensors"), R_OK) == 0);
    for (int i = 0; i < 4; i++) {
        trip in = {.is_reading = 1, .options = {.stage = STAGES[i]}, .name = "layouts"};

        test_world(WORLDS[i], trip_rank, &in);
        CHECK_INT(out.fingerprint, in.fingerprint);
    }
}

static void tiers_read_and_write_alike(void)
{
    trip out = {.options = {.stage = 3}, .name = "tiers.safetensors"};

    test_world(2, trip_rank, &out);
    for (size_t i = 0; i < value_rig_tiers(); i++) {
        char keys[1024];
        trip t = {.is_reading = 1,
                  .options    = {.stage = 3, .zero = value_rig_keys(&VALUE_RIG_TIERS[i], keys)},
                  .name       = "tiers.safetensors"};

        test_world(2, trip_rank, &t);
        CHECK_INT(out.fingerprint, t.fingerprint);
        t.is_reading = 0;
        t.name       = "tier";
        test_world(2, trip_rank, &t);
        t = (trip){.is_reading = 1, .options = {.stage = 3}, .name = "tier"};
        test_world(2, trip_rank, &t);
        CHECK_INT(out.fingerprint, t.fingerprint);
    }
}

/* ---- what is there and is no file ---- */

static void odd_rank(sherd_world *world, void *ctx)
{
    static const char *const NAMES[] = {"odd.safetensors", "odd.bin", "odd/model.safetensors"};
    rig                      r;
    uint64_t                 fingerprint, after;

    value_rig_declare(&r, world, ctx);
    rig_seal(&r);
    micro_batches(&r, 1);
    CHECK_OK(sherd_engine_fingerprint(r.engine, &fingerprint));
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        for (int odd = 0; odd < TEST_ODDS; odd++) {
            int is_there =
                sherd_world_rank(world) != 0 || test_odd_make(path_of(NAMES[i]), (test_odd)odd);

            CHECK_OK(sherd_world_broadcast(world, &is_there, sizeof(is_there), 0));
            if (!is_there) {
                continue;
            }
            CHECK_STATUS(SHERD_E_IO,
                         i == 1 ? sherd_export_raw(r.engine, path_of(NAMES[i]), "header", 6, NULL)
                                : sherd_export_safetensors(
                                      r.engine, path_of(i == 0 ? NAMES[i] : "odd"), NULL));
            if (sherd_world_rank(world) == 0) {
                CHECK_ERROR_SAYS("only a regular file is replaced");
                test_odd_remove(path_of(NAMES[i]), (test_odd)odd);
            }
        }
    }
    CHECK_OK(sherd_engine_fingerprint(r.engine, &after));
    CHECK_INT(fingerprint, after);
    micro_batches(&r, 1);
    rig_close(&r);
}

static void devices_pipes_and_links_are_not_replaced(void)
{
    CHECK(mkdir(path_of("odd"), 0700) == 0);
    for (int ranks = 1; ranks <= 3; ranks++) {
        test_world(ranks, odd_rank, &(rig_options){.stage = 3});
    }
}

/* ---- between steps ---- */

static void between_rank(sherd_world *world, void *ctx)
{
    const rig_options *options = ctx;
    uint64_t           before, after, moved;
    rig                r;

    value_rig_declare(&r, world, options);
    rig_seal(&r);
    micro_batches(&r, 2);
    CHECK_OK(sherd_engine_fingerprint(r.engine, &before));
    CHECK_OK(sherd_export_safetensors(r.engine, path_of("between.safetensors"), NULL));
    micro_batches(&r, 2);
    CHECK_OK(sherd_engine_fingerprint(r.engine, &moved));
    CHECK(moved != before);
    CHECK_OK(sherd_import_safetensors(r.engine, path_of("between.safetensors"), NULL));
    CHECK_OK(sherd_engine_fingerprint(r.engine, &after));
    CHECK_INT(before, after);
    micro_batches(&r, 1);
    rig_close(&r);
}

static void weights_are_reloaded_between_steps(void)
{
    static const rig_options OPTIONS[] = {{.stage = 3}, {.stage = 1, .dtype = SHERD_BF16}, {0}};

    for (size_t i = 0; i < sizeof(OPTIONS) / sizeof(OPTIONS[0]); i++) {
        rig_options options = OPTIONS[i];

        test_world(2, between_rank, &options);
    }
}

/* ---- maps, by an engine of one rank with parameters a.w, b.w and c.w ---- */

static void open_three(rig *r, sherd_world **world_out)
{
    static const rig_options OPTIONS = {.stage = 3};

    CHECK_OK(sherd_world_self(world_out));
    rig_open(r, *world_out, &OPTIONS);
    rig_three(r, 600);
}

static void close_three(rig *r, sherd_world *world)
{
    rig_close(r);
    sherd_world_destroy(world);
}

static sherd_tensor_map map_of(const char *name, const char *param, size_t first, size_t rows,
                               size_t columns)
{
    sherd_tensor_map map;

    sherd_tensor_map_init(&map);
    map.name       = name;
    map.param      = param;
    map.first_elem = first;
    map.ndim       = 2;
    map.shape[0]   = rows;
    map.shape[1]   = columns;
    return map;
}

static void values_of(rig *r, const char *name, int param, size_t first, size_t count, float *out)
{
    CHECK_OK(sherd_param_read(r->engine, r->params[param].handle, name, first, count, out));
}

static void three_written(const sherd_tensor_map *maps, size_t count, const char *name,
                          float *values)
{
    sherd_export_params params;
    sherd_world        *world;
    rig                 r;

    open_three(&r, &world);
    rig_seal(&r);
    micro_batches(&r, 1);
    sherd_export_params_init(&params);
    params.tensors     = maps;
    params.num_tensors = count;
    CHECK_OK(sherd_export_safetensors(r.engine, path_of(name), &params));
    values_of(&r, SHERD_MASTER, 0, 0, 600, values);
    close_three(&r, world);
}

static sherd_status three_read(rig *r, const sherd_tensor_map *maps, size_t count, const char *name,
                               const char *may_miss, const char *may_be_extra)
{
    sherd_import_params params;

    sherd_import_params_init(&params);
    params.tensors          = maps;
    params.num_tensors      = count;
    params.may_miss         = &may_miss;
    params.num_may_miss     = may_miss != NULL;
    params.may_be_extra     = &may_be_extra;
    params.num_may_be_extra = may_be_extra != NULL;
    params.optional_prefix  = "base.";
    return sherd_import_safetensors(r->engine, path_of(name), &params);
}

/* a.w in two tensors, one of them transposed, and the rest of it in none. */
static void maps_cut_and_transpose(void)
{
    sherd_tensor_map maps[] = {
        map_of("base.front", "a.w", 0, 20, 10), map_of("base.back", "a.w", 200, 15, 20),
        map_of("base.b", "b.w", 0, 1, 1241), map_of("base.c", "c.w", 0, 1, 1882)};
    float        wrote[600], got[600];
    sherd_world *world;
    rig          r;

    maps[1].is_transposed = 1;
    three_written(maps, 4, "cut.safetensors", wrote);
    open_three(&r, &world);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(three_read(&r, maps, 4, "cut.safetensors", NULL, NULL));
    values_of(&r, SHERD_MASTER, 0, 0, 600, got);
    CHECK_BYTES_EQUAL(wrote, got, 500 * sizeof(float));
    for (size_t i = 500; i < 600; i++) {
        CHECK(got[i] == 0);
    }
    close_three(&r, world);
}

static void what_is_missing_extra_or_misshapen_is_told(void)
{
    sherd_tensor_map maps[] = {map_of("base.a", "a.w", 0, 20, 30),
                               map_of("base.b", "b.w", 0, 1, 1241),
                               map_of("base.c", "c.w", 0, 1, 1882)};
    float            values[600];
    sherd_world     *world;
    rig              r;

    for (size_t i = 0; i < 3; i++) {
        maps[i].name += strlen("base."); /* the file lacks the prefix */
    }
    three_written(maps, 3, "names.safetensors", values);
    for (size_t i = 0; i < 3; i++) {
        maps[i].name -= strlen("base.");
    }
    open_three(&r, &world);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_STATUS(SHERD_E_INVAL, three_read(&r, maps, 2, "names.safetensors", NULL, "x*"));
    CHECK_ERROR_SAYS("the file has tensor c, which this model has not");
    maps[2] = map_of("new", "c.w", 0, 1, 1882);
    CHECK_STATUS(SHERD_E_INVAL, three_read(&r, maps, 3, "names.safetensors", NULL, "c"));
    CHECK_ERROR_SAYS("the file has no tensor new");
    maps[0].shape[0] = 30;
    maps[0].shape[1] = 20;
    CHECK_STATUS(SHERD_E_INVAL, three_read(&r, maps, 3, "names.safetensors", "n?w", "c"));
    CHECK_ERROR_SAYS("tensor a is [20, 30] in the file, and [30, 20] in this model");
    maps[0].shape[0] = 20;
    maps[0].shape[1] = 30;
    maps[1]          = maps[0];
    CHECK_STATUS(SHERD_E_INVAL, three_read(&r, maps, 2, "names.safetensors", NULL, "?"));
    CHECK_ERROR_SAYS("give the same elements of parameter a.w");
    maps[1] = map_of("base.b", "b.w", 0, 1, 1241);
    CHECK_OK(three_read(&r, maps, 3, "names.safetensors", "n?w", "c"));
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[2], SHERD_FORWARD));
    CHECK_ERROR_SAYS("c.w was never filled");
    close_three(&r, world);
}

/* ---- tensors that are no parameters ---- */

static sherd_tensor_map map_of_data(const char *name, const char *dtype, void *data, size_t elems)
{
    sherd_tensor_map map = map_of(name, NULL, 0, elems, 0);

    map.ndim       = elems > 0;
    map.data       = data;
    map.data_dtype = dtype;
    return map;
}

/* The tensors of a module other than its parameters: three numbers, a count (a scalar), flags. */
static void data_of_the_caller_pass_through_a_file(void)
{
    float            mean[3] = {1.5F, -2, 3.25F}, mean_got[3] = {0};
    int64_t          count = (int64_t)1 << 40, count_got = 0;
    unsigned char    flags[5] = {1, 0, 1, 1, 0}, flags_got[5] = {0};
    double           wide[3];
    uint16_t         narrow[3];
    float            values[600];
    sherd_tensor_map maps[6] = {
        map_of("base.a", "a.w", 0, 20, 30),     map_of("base.b", "b.w", 0, 1, 1241),
        map_of("base.c", "c.w", 0, 1, 1882),    map_of_data("mean", "F32", mean, 3),
        map_of_data("count", "I64", &count, 0), map_of_data("flags", "BOOL", flags, 5)};
    sherd_world *world;
    rig          r;

    three_written(maps, 6, "data.safetensors", values);
    maps[3].data = mean_got;
    maps[4].data = &count_got;
    maps[5].data = flags_got;
    open_three(&r, &world);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(three_read(&r, maps, 6, "data.safetensors", NULL, NULL));
    CHECK_BYTES_EQUAL(mean, mean_got, sizeof(mean));
    CHECK(count == count_got);
    CHECK_BYTES_EQUAL(flags, flags_got, sizeof(flags));
    maps[3] = map_of_data("mean", "F64", wide, 3);
    CHECK_OK(three_read(&r, maps, 6, "data.safetensors", NULL, NULL));
    CHECK(wide[0] == 1.5 && wide[1] == -2 && wide[2] == 3.25);
    maps[3] = map_of_data("mean", "BF16", narrow, 3);
    CHECK_OK(three_read(&r, maps, 6, "data.safetensors", NULL, NULL));
    CHECK(narrow[0] == 0x3fc0 && narrow[1] == 0xc000 && narrow[2] == 0x4050);
    close_three(&r, world);
}

static void check_data_refused(rig *r, sherd_tensor_map map, const char *sentence)
{
    sherd_tensor_map maps[] = {map_of("base.a", "a.w", 0, 20, 30),
                               map_of("base.b", "b.w", 0, 1, 1241),
                               map_of("base.c", "c.w", 0, 1, 1882), map};

    CHECK_STATUS(SHERD_E_INVAL, three_read(r, maps, 4, "refused.safetensors", NULL, "mean"));
    CHECK_ERROR_SAYS(sentence);
}

static void data_that_do_not_fit_the_file_are_refused(void)
{
    float            mean[3] = {1, 2, 3}, values[600], kept[3] = {7, 7, 7};
    sherd_tensor_map maps[] = {
        map_of("base.a", "a.w", 0, 20, 30), map_of("base.b", "b.w", 0, 1, 1241),
        map_of("base.c", "c.w", 0, 1, 1882), map_of_data("mean", "F32", mean, 3)};
    sherd_tensor_map    both = map_of_data("mean", "F32", kept, 3);
    sherd_export_params raw;
    sherd_world        *world;
    rig                 r;

    three_written(maps, 4, "refused.safetensors", values);
    open_three(&r, &world);
    CHECK_OK(sherd_engine_seal(r.engine));
    check_data_refused(&r, map_of_data("mean", "I32", kept, 3),
                       "tensor mean is of F32 in the file, and of I32");
    check_data_refused(&r, map_of_data("mean", "F32", kept, 2),
                       "tensor mean is [3] in the file, and [2]");
    check_data_refused(&r, map_of_data("deviation", "F32", kept, 3),
                       "the file has no tensor deviation");
    check_data_refused(&r, map_of_data("mean", "float", kept, 3),
                       "data_dtype is float, which is no type");
    both.param = "a.w";
    check_data_refused(&r, both, "data_dtype cannot be used with param");
    CHECK(kept[0] == 7 && kept[1] == 7 && kept[2] == 7);
    sherd_export_params_init(&raw);
    raw.tensors     = maps;
    raw.num_tensors = 4;
    CHECK_STATUS(SHERD_E_INVAL, sherd_export_raw(r.engine, path_of("raw"), "", 0, &raw));
    CHECK_ERROR_SAYS("tensor mean: data_dtype is for files of safetensors");
    close_three(&r, world);
}

static void parts_of_the_state_are_exchanged_between_steps(void)
{
    sherd_tensor_map    map = map_of("moment", "a.w", 0, 20, 30);
    sherd_export_params params;
    float               before[600], moved[600], got[600];
    sherd_world        *world;
    rig                 r;

    map.value = "exp_avg";
    open_three(&r, &world);
    rig_seal(&r);
    micro_batches(&r, 1);
    values_of(&r, "exp_avg", 0, 0, 600, before);
    sherd_export_params_init(&params);
    params.tensors     = &map;
    params.num_tensors = 1;
    CHECK_OK(sherd_export_safetensors(r.engine, path_of("moment.safetensors"), &params));
    micro_batches(&r, 1);
    values_of(&r, "exp_avg", 0, 0, 600, moved);
    CHECK(memcmp(before, moved, sizeof(before)) != 0);
    CHECK_OK(three_read(&r, &map, 1, "moment.safetensors", NULL, NULL));
    values_of(&r, "exp_avg", 0, 0, 600, got);
    CHECK_BYTES_EQUAL(before, got, sizeof(before));
    map.value = "exp_average";
    CHECK_STATUS(SHERD_E_INVAL, three_read(&r, &map, 1, "moment.safetensors", NULL, NULL));
    close_three(&r, world);

    open_three(&r, &world);
    CHECK_OK(sherd_engine_seal(r.engine));
    map.value = "exp_avg";
    CHECK_STATUS(SHERD_E_STATE, three_read(&r, &map, 1, "moment.safetensors", NULL, NULL));
    CHECK_ERROR_SAYS("only weights can be imported");
    close_three(&r, world);
}

static void raw_files_pass_through_an_engine(void)
{
    sherd_tensor_map    maps[] = {map_of("a", "a.w", 0, 20, 30), map_of("pad", NULL, 0, 3, 5),
                                  map_of("b", "b.w", 0, 1, 1241), map_of("c", "c.w", 0, 1, 1882)};
    sherd_export_params out;
    sherd_import_params in;
    uint64_t            before, after;
    sherd_world        *world;
    rig                 r;

    sherd_export_params_init(&out);
    sherd_import_params_init(&in);
    out.tensors = in.tensors = maps;
    out.num_tensors = in.num_tensors = 4;
    open_three(&r, &world);
    rig_seal(&r);
    CHECK_OK(sherd_engine_fingerprint(r.engine, &before));
    CHECK_OK(sherd_export_raw(r.engine, path_of("raw.bin"), "header", 6, &out));
    CHECK_STATUS(SHERD_E_INVAL, sherd_export_safetensors(r.engine, path_of("pad"), &out));
    CHECK_STATUS(SHERD_E_INVAL, sherd_export_raw(r.engine, path_of("bare.bin"), NULL, 6, &out));
    CHECK_OK(sherd_export_raw(r.engine, path_of("bare.bin"), NULL, 0, &out));
    close_three(&r, world);
    open_three(&r, &world);
    CHECK_STATUS(SHERD_E_STATE, sherd_import_raw(r.engine, path_of("raw.bin"), 6, SHERD_F32, &in));
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(sherd_import_raw(r.engine, path_of("raw.bin"), 6, SHERD_F32, &in));
    CHECK_OK(sherd_engine_fingerprint(r.engine, &after));
    CHECK_INT(before, after);
    close_three(&r, world);
}

/* ---- ranks that fail alone ---- */

static void one_rank_has_no_file(sherd_world *world, void *ctx)
{
    static const rig_options OPTIONS = {.stage = 3};
    int                      is_here = sherd_world_rank(world) != 1;
    sherd_status             status;
    rig                      r;

    (void)ctx;
    rig_open(&r, world, &OPTIONS);
    rig_three(&r, 600);
    rig_seal(&r);
    CHECK_OK(sherd_export_safetensors(r.engine, path_of("here.safetensors"), NULL));
    status = sherd_import_safetensors(
        r.engine, path_of(is_here ? "here.safetensors" : "nowhere.safetensors"), NULL);
    CHECK_STATUS(SHERD_E_IO, status);
    CHECK_ERROR_SAYS(is_here ? "rank 1" : "nowhere.safetensors");
    micro_batches(&r, 1);
    status = sherd_export_safetensors(r.engine, "/nowhere/at/all", NULL);
    CHECK_STATUS(SHERD_E_IO, status);
    CHECK_ERROR_SAYS(sherd_world_rank(world) == 0 ? "/nowhere/at/all" : "rank 0");
    micro_batches(&r, 1);
    rig_close(&r);
}

static void a_rank_that_fails_ends_the_call_of_all(void)
{
    test_world(3, one_rank_has_no_file, NULL);
}

static const test_case CASES[] = {
    CASE(what_is_written_is_read_on_any_layout),
    CASE(devices_pipes_and_links_are_not_replaced),
    CASE(tiers_read_and_write_alike),
    CASE(weights_are_reloaded_between_steps),
    CASE(maps_cut_and_transpose),
    CASE(what_is_missing_extra_or_misshapen_is_told),
    CASE(data_of_the_caller_pass_through_a_file),
    CASE(data_that_do_not_fit_the_file_are_refused),
    CASE(parts_of_the_state_are_exchanged_between_steps),
    CASE(raw_files_pass_through_an_engine),
    CASE(a_rank_that_fails_ends_the_call_of_all),
};

RUN_MAIN(CASES)
