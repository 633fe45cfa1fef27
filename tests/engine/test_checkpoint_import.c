/* Imports weights that others have written as a checkpoint, without an engine. Every layout loads
 * the checkpoint. Names, shapes and parts that do not fit are refused with the reason. An import
 * that fails leaves nothing behind. */
#include "engine/checkpoint/folder.h"
#include "sherd_tools.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"
#include "tests/offload/fault_uring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *path_of(const char *name)
{
    static _Thread_local char paths[4][600]; /* one call may need several paths */
    static _Thread_local int  next;
    char                     *path = paths[next++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", test_scratch(), name);
    return path;
}

/* ---- into engines ---- */

typedef struct trip {
    rig_options options;
    int         is_loading; /* it loads the import; otherwise it exports */
    uint64_t    fingerprint;
} trip;

static void trip_rank(sherd_world *world, void *raw)
{
    trip             *t = raw;
    sherd_load_params params;
    rig               r;

    saved_open(&r, world, &t->options);
    if (t->is_loading) {
        sherd_load_params_init(&params);
        CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, path_of("in"), "w", NULL));
        CHECK_ERROR_SAYS("weights_only");
        params.weights_only = 1;
        CHECK_OK(sherd_checkpoint_load(r.engine, path_of("in"), "w", &params));
    } else {
        saved_fill(&r);
        saved_train(&r, 2);
        CHECK_OK(sherd_export_safetensors(r.engine, path_of("out"), NULL));
    }
    if (sherd_world_rank(world) == 0) {
        t->fingerprint = rig_fingerprint(&r);
    } else {
        (void)rig_fingerprint(&r);
    }
    saved_train(&r, 1); /* training goes on */
    rig_close(&r);
}

static uint64_t fingerprint_of(const char *dir, const char *tag)
{
    sherd_checkpoint *c;
    uint64_t          fingerprint;

    CHECK_OK(sherd_checkpoint_open(dir, tag, &c));
    fingerprint = sherd_checkpoint_describe(c)->fingerprint;
    sherd_checkpoint_close(c);
    return fingerprint;
}

static void imported_weights_load_on_any_layout(void)
{
    static const int         STAGES[] = {3, 0, 2, 1}, WORLDS[] = {3, 1, 2, 4};
    static const sherd_dtype TYPES[] = {SHERD_F32, SHERD_BF16, SHERD_F32, SHERD_F16};
    trip                     out     = {.options = {.stage = 3}};

    saved_need_checksums();
    test_world(2, trip_rank, &out);
    CHECK_OK(sherd_checkpoint_import(path_of("out"), path_of("in"), "w", NULL, 0, NULL));
    CHECK_INT(0, saved_verify(path_of("in"), NULL)); /* it is the latest */
    CHECK_INT(out.fingerprint, fingerprint_of(path_of("in"), "w"));
    for (int i = 0; i < 4; i++) {
        trip in = {.is_loading = 1, .options = {.stage = STAGES[i], .dtype = TYPES[i]}};

        test_world(WORLDS[i], trip_rank, &in);
        if (TYPES[i] == SHERD_F32) { /* in other types the frozen values are rounded */
            CHECK_INT(out.fingerprint, in.fingerprint);
        }
    }
}

/* ---- names ---- */

#define A_ELEMS 600
#define B_ELEMS 70000 /* more than an extent */

static float value_of(size_t param, size_t i)
{
    return (float)i * 0.25f - (float)param;
}

/* Lets an engine write a file with "base.a" of [20, 30] and "b", which is [700, 100] in the model
 * and [100, 700] in the file. */
static void file_write(sherd_world *world)
{
    static const rig_options OPTIONS = {.stage = 1};
    sherd_tensor_map         maps[2];
    sherd_export_params      params;
    rig                      r;

    rig_open(&r, world, &OPTIONS);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "a", A_ELEMS);
    (void)rig_param(&r, 0, "b", B_ELEMS);
    rig_seal(&r);
    for (size_t p = 0; p < 2; p++) {
        float *values = calloc(B_ELEMS, sizeof(*values));

        CHECK(values != NULL);
        for (size_t i = 0; i < r.params[p].elems; i++) {
            values[i] = value_of(p, i);
        }
        CHECK_OK(sherd_param_write(r.engine, r.params[p].handle, SHERD_MASTER, 0, r.params[p].elems,
                                   values));
        free(values);
        sherd_tensor_map_init(&maps[p]);
        maps[p].ndim = 2;
    }
    maps[0].name = "base.a", maps[0].param = "a", maps[0].shape[0] = 20, maps[0].shape[1] = 30;
    maps[1].name = "b", maps[1].param = "b", maps[1].shape[0] = 100, maps[1].shape[1] = 700;
    maps[1].is_transposed = 1;
    sherd_export_params_init(&params);
    params.tensors     = maps;
    params.num_tensors = 2;
    CHECK_OK(sherd_export_safetensors(r.engine, path_of("names.safetensors"), &params));
    rig_close(&r);
}

static const char *folder; /* name of the case's folder */

static void names_begin(const char *dir)
{
    sherd_world *world;

    saved_need_checksums();
    folder = dir;
    CHECK_OK(sherd_world_self(&world));
    file_write(world);
    sherd_world_destroy(world);
}

/* The model of file_write and one more parameter, with the names of the file. */
typedef struct names {
    sherd_checkpoint_param model[3];
    sherd_tensor_map       maps[3];
    sherd_import_params    params;
} names;

static void names_make(names *n)
{
    static const char *const PARAMS[] = {"a", "b", "head"}, *const TENSORS[] = {"a", "b", "head"};
    static const size_t SHAPES[3][2] = {{20, 30}, {700, 100}, {5, 5}};

    for (size_t p = 0; p < 3; p++) {
        sherd_checkpoint_param_init(&n->model[p]);
        sherd_tensor_map_init(&n->maps[p]);
        n->model[p].name = n->maps[p].param = PARAMS[p];
        n->maps[p].name                     = TENSORS[p];
        n->model[p].ndim = n->maps[p].ndim = 2;
        for (size_t d = 0; d < 2; d++) {
            n->model[p].shape[d] = SHAPES[p][d];
            n->maps[p].shape[d]  = SHAPES[p][p == 1 ? 1 - d : d];
        }
    }
    n->maps[0].name          = "base.a";
    n->maps[1].is_transposed = 1;
    sherd_import_params_init(&n->params);
    n->params.tensors     = n->maps;
    n->params.num_tensors = 2;
}

static sherd_status names_import(const names *n, size_t num_params, const char *tag)
{
    return sherd_checkpoint_import(path_of("names.safetensors"), path_of(folder), tag, n->model,
                                   num_params, &n->params);
}

static void values_check(const char *tag, const char *const *params, size_t count)
{
    sherd_checkpoint *c;
    float            *got = calloc(B_ELEMS, sizeof(*got));

    CHECK(got != NULL);
    CHECK_OK(sherd_checkpoint_open(path_of(folder), tag, &c));
    CHECK_INT(count, sherd_checkpoint_describe(c)->num_params);
    for (size_t p = 0; p < count; p++) {
        size_t elems = params[p][0] == 'a' ? A_ELEMS : B_ELEMS;

        CHECK_OK(sherd_checkpoint_read(c, params[p], SHERD_MASTER, 0, elems, got));
        for (size_t i = 0; i < elems; i++) {
            CHECK(got[i] == value_of((size_t)(params[p][0] - 'a'), i));
        }
    }
    sherd_checkpoint_close(c);
    CHECK_INT(0, saved_verify(path_of(folder), tag));
    free(got);
}

static void maps_transpose_and_may_miss(void)
{
    static const char *const ORDER[] = {"b", "a"}, *const MISS[] = {"he*"};
    names                  n;
    sherd_checkpoint_param first;

    names_begin("named");
    names_make(&n);
    CHECK_OK(names_import(&n, 2, "both"));
    values_check("both", (const char *const[]){"a", "b"}, 2);
    first      = n.model[0]; /* the order is that of the model, not of the file */
    n.model[0] = n.model[1];
    n.model[1] = first;
    CHECK_OK(names_import(&n, 2, "turned"));
    values_check("turned", ORDER, 2);
    CHECK(fingerprint_of(path_of(folder), "both") != fingerprint_of(path_of(folder), "turned"));
    n.params.num_tensors  = 3;
    n.params.may_miss     = MISS;
    n.params.num_may_miss = 1;
    CHECK_OK(names_import(&n, 3, "headless"));
    values_check("headless", ORDER, 2);
    n.params.optional_prefix = "other."; /* a prefix that the file's names do not have */
    n.maps[1].name           = "other.b";
    CHECK_OK(names_import(&n, 3, "prefixed"));
    values_check("prefixed", ORDER, 2);
}

/* Checks that an import is refused with these words and writes nothing. */
static void refused(const names *n, size_t num_params, const char *tag, const char *words)
{
    sherd_status status = names_import(n, num_params, tag);

    CHECK(status == SHERD_E_INVAL || status == SHERD_E_STATE);
    CHECK_ERROR_SAYS(words);
    CHECK(access(path_of(folder), F_OK) != 0);
}

static void what_does_not_fit_is_told(void)
{
    names n;

    names_begin("refused");
    names_make(&n);
    n.params.num_tensors = 1;
    refused(&n, 2, "w", "the file has tensor b, which this model has not");
    n.params.num_tensors = 3;
    refused(&n, 3, "w", "the file has no tensor head");
    refused(&n, 2, "w", "tensor head: the model has no parameter head");
    n.maps[2]            = n.maps[0];
    n.maps[2].first_elem = 0;
    refused(&n, 2, "w", "give the same elements of parameter a");
    n.params.num_tensors = 2;
    n.maps[0].shape[0]   = 30;
    n.maps[0].shape[1]   = 20;
    refused(&n, 2, "w", "tensor base.a is [20, 30] in the file, and [30, 20] in this model");
    names_make(&n);
    n.maps[0].value = "exp_avg";
    refused(&n, 2, "w", "only weights can be imported");
    names_make(&n);
    n.model[1].is_frozen = 1;
    refused(&n, 2, "w", "parameter b is marked as frozen");
    n.model[1].is_frozen = 0;
    n.model[1].name      = "";
    refused(&n, 2, "w", "parameter 1 has no name");
    n.model[1].name = "a";
    refused(&n, 2, "w", "b");
    names_make(&n);
    n.model[1].shape[0] = SIZE_MAX / 2;
    refused(&n, 2, "w", "too many elements");
    names_make(&n);
    n.model[1].struct_size = 8;
    refused(&n, 2, "w", "has the struct_size 8");
    names_make(&n);
    refused(&n, 2, "a/b", "slash");
    refused(&n, 2, "latest", "latest");
}

static void what_is_there_is_not_replaced(void)
{
    names    n;
    uint64_t before;

    names_begin("taken");
    names_make(&n);
    CHECK_OK(names_import(&n, 2, "w"));
    before = saved_bytes(path_of(folder));
    CHECK_STATUS(SHERD_E_INVAL, names_import(&n, 2, "w"));
    CHECK_ERROR_SAYS("is there already");
    CHECK_STATUS(SHERD_E_IO,
                 sherd_checkpoint_import(path_of("nothing"), path_of(folder), "v", NULL, 0, NULL));
    CHECK_INT(before, saved_bytes(path_of(folder)));
    CHECK_INT(0, saved_left_behind(path_of(folder)));
}

/* ---- what breaks ---- */

/* The requests and allocations that an import makes. */
typedef struct asked {
    int    requests;
    size_t allocations;
} asked;

/* Imports with a fault armed. Returns 1 if the import failed and nothing of it is left. */
static int breaks(const names *n, sherd_status expected, asked *out)
{
    sherd_status status = names_import(n, 2, "w");

    out->requests    = fault_seen();
    out->allocations = sherdi_mem_fail_nth(0);
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 1);
    if (status != SHERD_OK) {
        CHECK_INT(expected, status);
        CHECK(strlen(sherd_last_error()) > 10);
        CHECK(access(path_of("broken/w"), F_OK) != 0);
    } else {
        (void)saved_verify(path_of(folder), "w");
        CHECK_OK(sherd_checkpoint_remove(path_of(folder), "w"));
    }
    CHECK_INT(0, saved_left_behind(path_of(folder)));
    return status != SHERD_OK;
}

static void every_request_and_allocation_fails_once(void)
{
    names n;
    asked all, some;
    int   failed = 0;

    names_begin("broken");
    names_make(&n);
    CHECK_INT(0, mkdir(path_of(folder), 0700));
    (void)sherdi_mem_fail_nth(0);
    fault_arm(FAULT_NONE, FAULT_ANY, 0, 1);
    CHECK_INT(0, breaks(&n, SHERD_OK, &all));
    CHECK(all.requests > 1 && all.allocations > 10);
    for (int nth = 1; nth <= all.requests; nth++) {
        fault_arm(FAULT_EIO, FAULT_ANY, nth, 1);
        failed += breaks(&n, SHERD_E_IO, &some);
    }
    CHECK_INT(fault_can_inject() ? all.requests : 0, failed);
    failed = 0;
    for (size_t nth = 1; nth <= all.allocations; nth++) {
        (void)sherdi_mem_fail_nth(nth);
        failed += breaks(&n, SHERD_E_NOMEM, &some);
    }
    CHECK_INT(all.allocations, failed);
}

static const test_case CASES[] = {
    CASE(imported_weights_load_on_any_layout),
    CASE(maps_transpose_and_may_miss),
    CASE(what_does_not_fit_is_told),
    CASE(what_is_there_is_not_replaced),
    CASE(every_request_and_allocation_fails_once),
};

RUN_MAIN(CASES)
