/* What a caller can get wrong before anything else: every size of every struct, and NULL. The
 * structs lie in memory of just their size, so a sanitizer sees who reads or writes after it.
 * tests/house/symbols.sh asks that every public function is called here. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- sizes -- */

typedef struct known_struct {
    const char *name;
    size_t      bytes;
    const void *model; /* a whole one, as its _init leaves it */
    sherd_status (*call)(rig *r, void *given);
    /* Ends of its fields, 0 after the last; none: every field has the size of a size_t, or two
     * share one. */
    size_t ends[12];
} known_struct;

#define END(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

static sherd_world_params    world_params;
static sherd_simulate_params simulate_params;
static sherd_settings        settings;
static sherd_group_params    group_params;
static sherd_unit_params     unit_params;
static sherd_param_params    param_params;
static sherd_step_params     step_params;
static sherd_step_report     step_report;
static sherd_memory_report   memory_report;
static sherd_traffic_report  traffic_report;
static sherd_rates           rates_given;
static sherd_prediction      prediction;
static sherd_engine_info     engine_info;
static sherd_move_report     move_report;
static sherd_share           share;
static sherd_blob_params     blob_params;
static sherd_eval_params     eval_params;

static sherd_status world_dropped(sherd_status status, sherd_world *const *world)
{
    CHECK((status == SHERD_OK) == (*world != NULL));
    sherd_world_destroy(*world);
    return status;
}

static sherd_status call_world(rig *r, void *given)
{
    sherd_world *world = NULL;

    (void)r;
    return world_dropped(sherd_world_create(0, 1, NULL, given, &world), &world);
}

static sherd_status call_simulate(rig *r, void *given)
{
    sherd_world *world = NULL;

    (void)r;
    return world_dropped(sherd_world_simulate_with(0, 1, given, &world), &world);
}

static sherd_status call_settings(rig *r, void *given)
{
    sherd_config *config = NULL;
    sherd_status  status = sherd_config_from_settings(given, &config);

    (void)r;
    sherd_config_destroy(config);
    return status;
}

static sherd_status call_group(rig *r, void *given)
{
    sherd_group group;

    return sherd_group_add(r->engine, given, &group);
}

static sherd_status call_unit(rig *r, void *given)
{
    sherd_unit unit;

    return sherd_unit_add(r->engine, given, &unit);
}

static sherd_status call_param(rig *r, void *given)
{
    sherd_param param;

    return sherd_param_add(r->engine, r->units[0], given, &param);
}

static sherd_status call_apply(rig *r, void *given)
{
    sherd_status status = sherd_step_apply(r->engine, given);

    if (status == SHERD_OK) { /* the next one needs a step again */
        rig_micro_batch(r);
        CHECK_OK(sherd_step_prepare(r->engine, NULL));
    }
    return status;
}

static sherd_status call_wait(rig *r, void *given)
{
    return sherd_step_wait(r->engine, given);
}

static sherd_status call_memory(rig *r, void *given)
{
    return sherd_engine_memory(r->engine, given);
}

static sherd_status call_traffic(rig *r, void *given)
{
    return sherd_engine_traffic(r->engine, given);
}

static sherd_status call_predict(rig *r, void *given)
{
    sherd_prediction out;

    sherd_prediction_init(&out);
    return sherd_engine_predict(r->engine, given, &out);
}

static sherd_status call_predict_out(rig *r, void *given)
{
    sherd_rates rates;

    sherd_rates_init(&rates);
    return sherd_engine_predict(r->engine, &rates, given);
}

static sherd_status call_blob(rig *r, void *given)
{
    return sherd_blob_set(r->engine, "key", "data", 4, given);
}

/* Not while a step is prepared. */
static sherd_status call_eval(rig *r, void *given)
{
    sherd_status status = sherd_eval_begin(r->engine, given);

    if (status == SHERD_OK) {
        CHECK_OK(sherd_eval_end(r->engine));
    }
    return status;
}

static sherd_status call_query(rig *r, void *given)
{
    return sherd_engine_query(r->engine, given);
}

static sherd_status call_moved(rig *r, void *given)
{
    return sherd_move_query(r->engine, given);
}

static sherd_status call_share(rig *r, void *given)
{
    return sherd_step_share(r->engine, given);
}

static const known_struct BEFORE_SEAL[] = {
    {"sherd_world_params", sizeof(world_params), &world_params, call_world, {0}},
    {"sherd_simulate_params", sizeof(simulate_params), &simulate_params, call_simulate, {0}},
    {"sherd_settings", sizeof(settings), &settings, call_settings, {0}},
    {"sherd_group_params", sizeof(group_params), &group_params, call_group, {0}},
    {"sherd_unit_params", sizeof(unit_params), &unit_params, call_unit, {0}},
    {"sherd_param_params",
     sizeof(param_params),
     &param_params,
     call_param,
     {END(sherd_param_params, struct_size), END(sherd_param_params, name),
      END(sherd_param_params, ndim), END(sherd_param_params, shape), END(sherd_param_params, group),
      END(sherd_param_params, frozen), END(sherd_param_params, atom_elems),
      END(sherd_param_params, dtype)}},
};

static const known_struct AFTER_SEAL[] = {
    {"sherd_step_params", sizeof(step_params), &step_params, call_apply, {0}},
    {"sherd_step_report", sizeof(step_report), &step_report, call_wait, {0}},
    {"sherd_memory_report", sizeof(memory_report), &memory_report, call_memory, {0}},
    {"sherd_traffic_report", sizeof(traffic_report), &traffic_report, call_traffic, {0}},
    {"sherd_engine_info", sizeof(engine_info), &engine_info, call_query, {0}},
    {"sherd_move_report", sizeof(move_report), &move_report, call_moved, {0}},
    {"sherd_share", sizeof(share), &share, call_share, {0}},
    {"sherd_blob_params",
     sizeof(blob_params),
     &blob_params,
     call_blob,
     {END(sherd_blob_params, struct_size), END(sherd_blob_params, rank),
      END(sherd_blob_params, is_large)}},
    {"sherd_rates", sizeof(rates_given), &rates_given, call_predict, {0}},
    {"sherd_prediction", sizeof(prediction), &prediction, call_predict_out, {0}},
};

static const known_struct BETWEEN_STEPS = {
    "sherd_eval_params", sizeof(eval_params), &eval_params, call_eval, {0}};

static void models_init(void)
{
    sherd_world_params_init(&world_params);
    sherd_simulate_params_init(&simulate_params);
    sherd_settings_init(&settings);
    sherd_group_params_init(&group_params);
    sherd_unit_params_init(&unit_params);
    sherd_param_params_init(&param_params);
    sherd_step_params_init(&step_params);
    sherd_step_report_init(&step_report);
    sherd_memory_report_init(&memory_report);
    sherd_traffic_report_init(&traffic_report);
    sherd_engine_info_init(&engine_info);
    sherd_move_report_init(&move_report);
    sherd_share_init(&share);
    sherd_blob_params_init(&blob_params);
    sherd_eval_params_init(&eval_params);
    sherd_rates_init(&rates_given);
    sherd_prediction_init(&prediction);
}

/* A struct of this size has existed: it ended in a field, and sizeof rounds up. */
static int has_existed(const known_struct *known, size_t size)
{
    if (size == 0 || size > known->bytes || size % sizeof(size_t) != 0) {
        return 0;
    }
    if (known->ends[0] == 0) {
        return 1;
    }
    for (size_t i = 0; known->ends[i] != 0; i++) {
        if ((known->ends[i] + sizeof(size_t) - 1) / sizeof(size_t) * sizeof(size_t) == size) {
            return 1;
        }
    }
    return 0;
}

static void every_size_is_tried(rig *r, const known_struct *known)
{
    for (size_t size = 0; size <= known->bytes + 64; size++) {
        unsigned char *given = malloc(size < sizeof(size) ? sizeof(size) : size);
        sherd_status   status;
        size_t         left;

        CHECK(given != NULL);
        memset(given, 0xa5, size);
        memcpy(given, known->model, size < known->bytes ? size : known->bytes);
        memcpy(given, &size, sizeof(size));
        status = known->call(r, given);
        if (has_existed(known, size)) {
            if (strstr(sherd_last_error(), "struct_size") != NULL) {
                CHECK_OK(status); /* an earlier call's sentence */
            }
        } else {
            CHECK_STATUS(SHERD_E_INVAL, status);
            CHECK_ERROR_SAYS("struct_size");
            CHECK_ERROR_SAYS(known->name);
        }
        memcpy(&left, given, sizeof(left));
        CHECK_INT(size, left);
        free(given);
    }
    CHECK_STATUS(known->call == call_world || known->call == call_simulate ||
                         known->call == call_group || known->call == call_apply ||
                         known->call == call_wait || known->call == call_blob ||
                         known->call == call_eval
                     ? SHERD_OK
                     : SHERD_E_INVAL,
                 known->call(r, NULL));
}

static void structs_of_sizes_that_never_existed_are_refused(void)
{
    static const rig_options OPTIONS = {.stage = 2};
    sherd_world             *world;
    rig                      r;

    models_init();
    settings.micro_batch_size = 1;
    unit_params.name          = "unit";
    param_params.name         = "param";
    group_params.name         = "group";
    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &OPTIONS);
    (void)rig_unit(&r, "first");
    for (size_t i = 0; i < sizeof(BEFORE_SEAL) / sizeof(BEFORE_SEAL[0]); i++) {
        every_size_is_tried(&r, &BEFORE_SEAL[i]);
    }
    rig_close(&r);
    rig_open(&r, world, &OPTIONS);
    (void)rig_param(&r, rig_unit(&r, "unit"), "w", 100);
    rig_seal(&r);
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    for (size_t i = 0; i < sizeof(AFTER_SEAL) / sizeof(AFTER_SEAL[0]); i++) {
        every_size_is_tried(&r, &AFTER_SEAL[i]);
    }
    CHECK_OK(sherd_step_discard(r.engine));
    every_size_is_tried(&r, &BETWEEN_STEPS);
    rig_close(&r);
    sherd_world_destroy(world);
}

/* ----------------------------------------------------------------- NULL -- */

static void worlds_without_a_result_are_refused(void)
{
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_self(NULL));
    CHECK_ERROR_SAYS("out is NULL");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_threads(2, NULL));
    CHECK_ERROR_SAYS("sherd_world_threads:");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_threads_with(2, NULL, NULL));
    CHECK_ERROR_SAYS("sherd_world_threads_with:");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_from_env(NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_create(0, 1, NULL, NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_simulate(0, 4, NULL));
    CHECK_ERROR_SAYS("sherd_world_simulate:");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_simulate_with(0, 4, NULL, NULL));
    CHECK_ERROR_SAYS("sherd_world_simulate_with:");
}

static void calls_of_no_world_are_refused(void)
{
    sherd_world *child    = NULL;
    uint64_t     sent     = 1;
    uint64_t     received = 1;
    double       value    = 3;
    char         byte     = 4;

    CHECK_STATUS(SHERD_E_INVAL, sherd_world_sum_f64(NULL, &value, 1));
    CHECK_ERROR_SAYS("sherd_world_sum_f64");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_broadcast(NULL, &byte, 1, 0));
    CHECK_ERROR_SAYS("world is NULL");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_barrier(NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_split(NULL, 0, 0, &child));
    CHECK_ERROR_SAYS("sherd_world_split: the world is NULL");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_shrink(NULL, &child));
    CHECK_ERROR_SAYS("sherd_world_shrink: the world is NULL");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_leave(NULL));
    CHECK_ERROR_SAYS("sherd_world_leave: the world is NULL");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_grow(NULL, 2, "unix:///tmp/nowhere", &child));
    CHECK_ERROR_SAYS("sherd_world_grow: the world is NULL");
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_turn(NULL, &child));
    CHECK_ERROR_SAYS("sherd_world_turn: the world is NULL");
    CHECK_STATUS(SHERD_E_STATE, sherd_world_join(NULL, &child));
    CHECK_ERROR_SAYS("no newcomer of an elastic job");
    CHECK_INT(0, sherd_launched_late());
    CHECK(value == 3 && byte == 4 && child == NULL);
    CHECK_INT(-1, sherd_world_rank(NULL));
    CHECK_INT(0, sherd_world_size(NULL));
    CHECK_INT(-1, sherd_world_local_rank(NULL));
    CHECK(strcmp(sherd_world_transport(NULL), "") == 0);
    sherd_world_abort(NULL, "nobody");
    sherd_world_destroy(NULL);
    sherd_world_traffic(NULL, &sent, &received);
    CHECK(sent == 0 && received == 0);
}

static void traffic_without_a_result_is_not_told(void)
{
    sherd_world *world;
    uint64_t     sent = 1;

    CHECK_OK(sherd_world_self(&world));
    sherd_world_traffic(world, &sent, NULL);
    CHECK(sent == 0);
    sherd_world_traffic(world, NULL, &sent);
    sherd_world_traffic(world, NULL, NULL);
    sherd_world_destroy(world);
}

static void devices_of_no_backend_are_none(void)
{
    CHECK_INT(0, sherd_device_count(NULL));
    CHECK_ERROR_SAYS("backend is NULL");
    CHECK_INT(0, sherd_device_count("abacus"));
}

static sherd_status nobody_writes(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx;
    (void)text;
    (void)len_bytes;
    return SHERD_OK;
}

static sherd_status nobody_takes(void *ctx, const sherd_state_part *part)
{
    (void)ctx;
    (void)part;
    return SHERD_OK;
}

/* Checks that the last error begins with the name of the called function, or with that of the
 * struct that it lacks. */
static void error_names(const char *call)
{
    int         len  = (int)strcspn(call, "(");
    const char *said = sherd_last_error();

    if (strcmp(said + strcspn(said, " "), " is NULL") != 0 &&
        (strncmp(said, call, (size_t)len) != 0 || said[len] != ':')) {
        test_fail(__FILE__, __LINE__, "%.*s is not named in \"%s\"", len, call, said);
    }
}

/* Refused with a sentence of its own. */
#define REFUSED(call)                                                                              \
    do {                                                                                           \
        CHECK_STATUS(SHERD_E_INVAL, sherd_world_self(NULL));                                       \
        CHECK_STATUS(SHERD_E_INVAL, call);                                                         \
        CHECK_ERROR_SAYS("is NULL");                                                               \
        error_names(#call);                                                                        \
    } while (0)

static void configurations_of_null_are_refused(void)
{
    sherd_config *config;

    REFUSED(sherd_config_load(NULL, &config));
    REFUSED(sherd_config_load("/nowhere", NULL));
    REFUSED(sherd_config_parse(NULL, 1, &config));
    REFUSED(sherd_config_parse("{}", 2, NULL));
    REFUSED(sherd_config_dump(NULL, nobody_writes, NULL));
    REFUSED(sherd_config_set(NULL, "optimizer.params.lr", "1"));
    CHECK_OK(sherd_config_parse("{}", 2, &config));
    REFUSED(sherd_config_set(config, NULL, "1"));
    REFUSED(sherd_config_set(config, "optimizer.params.lr", NULL));
    REFUSED(sherd_config_dump(config, NULL, NULL));
    CHECK_INT(0, sherd_config_has(config, NULL));
    sherd_config_destroy(config);
    REFUSED(sherd_config_from_settings(NULL, &config));
    models_init();
    REFUSED(sherd_config_from_settings(&settings, NULL));
    REFUSED(sherd_config_reference(NULL, NULL));
    CHECK_INT(0, sherd_config_has(NULL, NULL));
    CHECK_INT(0, sherd_config_warning_count(NULL));
    CHECK(strcmp(sherd_config_warning(NULL, 0), "") == 0);
    sherd_config_destroy(NULL);
}

static void calls_of_no_engine_are_refused(void)
{
    uint64_t bits = 7;
    float    word = 0;
    size_t   size = 0;

    DLManagedTensorVersioned *tensor;

    models_init();
    REFUSED(sherd_engine_create(NULL, NULL, NULL));
    REFUSED(sherd_group_add(NULL, NULL, NULL));
    REFUSED(sherd_unit_add(NULL, NULL, NULL));
    REFUSED(sherd_param_add(NULL, 0, NULL, NULL));
    REFUSED(sherd_unit_reads(NULL, 0, 0));
    REFUSED(sherd_pass_add(NULL, SHERD_FORWARD, 0));
    REFUSED(sherd_pass_add_held(NULL, SHERD_FORWARD, 0, 1));
    REFUSED(sherd_activation_add(NULL, 0, NULL));
    REFUSED(sherd_activation_put(NULL, 0, NULL));
    REFUSED(sherd_activation_get(NULL, 0, NULL));
    REFUSED(sherd_engine_describe_run(NULL, NULL));
    REFUSED(sherd_param_bind(NULL, 0, NULL, NULL));
    REFUSED(sherd_engine_set_stream(NULL, NULL));
    REFUSED(sherd_engine_seal(NULL));
    REFUSED(sherd_param_fill(NULL, 0, NULL, NULL));
    REFUSED(sherd_param_fill_from(NULL, 0, 0, NULL, NULL));
    REFUSED(sherd_param_read(NULL, 0, SHERD_MASTER, 0, 1, &word));
    REFUSED(sherd_param_read_local(NULL, 0, SHERD_MASTER, 0, 1, &word));
    REFUSED(sherd_param_write(NULL, 0, SHERD_MASTER, 0, 1, &word));
    REFUSED(sherd_param_local(NULL, 0, &size, &size));
    REFUSED(sherd_engine_set_step(NULL, 0, 0));
    REFUSED(sherd_monitor_write(NULL, "tag", 1));
    REFUSED(sherd_blob_set(NULL, "key", &word, sizeof(word), NULL));
    REFUSED(sherd_blob_get(NULL, "key", &word, &size, NULL));
    REFUSED(sherd_unit_acquire(NULL, 0, SHERD_FORWARD));
    REFUSED(sherd_unit_release(NULL, 0, SHERD_FORWARD));
    REFUSED(sherd_step(NULL, NULL));
    REFUSED(sherd_step_queue(NULL));
    REFUSED(sherd_step_prepare(NULL, NULL));
    REFUSED(sherd_step_apply(NULL, NULL));
    REFUSED(sherd_step_discard(NULL));
    REFUSED(sherd_grad_norms(NULL, (double[1]){0}, 1));
    REFUSED(sherd_step_wait(NULL, NULL));
    REFUSED(sherd_step_close_window(NULL));
    REFUSED(sherd_micro_batch_skip(NULL));
    REFUSED(sherd_micro_batch_weight(NULL, 1));
    REFUSED(sherd_step_undo(NULL));
    REFUSED(sherd_eval_begin(NULL, NULL));
    REFUSED(sherd_eval_end(NULL));
    REFUSED(sherd_engine_fingerprint(NULL, &bits));
    REFUSED(sherd_param_fingerprint(NULL, 0, &bits));
    REFUSED(sherd_param_dlpack(NULL, 0, &tensor));
    REFUSED(sherd_param_grad_dlpack(NULL, 0, &tensor));
    REFUSED(sherd_copy(NULL, &word, &word, sizeof(word)));
    REFUSED(sherd_engine_plan(NULL, SHERD_PLAN_TABLE, nobody_writes, NULL));
    REFUSED(sherd_engine_memory(NULL, &memory_report));
    REFUSED(sherd_engine_traffic(NULL, &traffic_report));
    REFUSED(sherd_engine_predict(NULL, &rates_given, &prediction));
    REFUSED(sherd_engine_state_parts(NULL, nobody_takes, NULL));
    REFUSED(sherd_engine_query(NULL, &engine_info));
    REFUSED(sherd_engine_move(NULL, NULL));
    REFUSED(sherd_move_query(NULL, &move_report));
    REFUSED(sherd_step_share(NULL, &share));
    REFUSED(sherd_engine_fits(NULL));
    REFUSED(sherd_engine_check_plans(NULL));
    REFUSED(sherd_engine_keep_state(NULL, 1));
    CHECK(bits == 7);
    CHECK(sherd_engine_stream(NULL) == NULL);
    CHECK(sherd_param_data(NULL, 0) == NULL && sherd_param_grad(NULL, 0) == NULL);
    CHECK(sherd_param_address(NULL, 0) == NULL && sherd_param_grad_address(NULL, 0) == NULL);
    CHECK(sherd_loss_scale(NULL) == 1);
    CHECK(isnan(sherd_group_lr(NULL, 0, 1)));
    sherd_engine_destroy(NULL);
}

static void engines_without_an_argument_refuse(void)
{
    static const rig_options OPTIONS = {.stage = 2};
    sherd_world             *world;
    sherd_world             *other = NULL;
    rig                      r;

    DLManagedTensorVersioned *tensor;

    models_init();
    CHECK_OK(sherd_world_self(&world));
    REFUSED(sherd_engine_create(world, NULL, &r.engine));
    REFUSED(sherd_world_sum_f64(world, NULL, 1));
    REFUSED(sherd_world_broadcast(world, NULL, 1, 0));
    REFUSED(sherd_world_split(world, 0, 0, NULL));
    REFUSED(sherd_world_shrink(world, NULL));
    REFUSED(sherd_world_grow(world, 2, NULL, &other));
    REFUSED(sherd_world_grow(world, 2, "unix:///tmp/nowhere", NULL));
    REFUSED(sherd_world_turn(world, NULL));
    REFUSED(sherd_world_join(NULL, NULL));
    rig_open(&r, world, &OPTIONS);
    REFUSED(sherd_group_add(r.engine, &group_params, NULL));
    REFUSED(sherd_engine_describe_run(r.engine, NULL));
    REFUSED(sherd_engine_plan(r.engine, SHERD_PLAN_TABLE, NULL, NULL));
    REFUSED(sherd_copy(r.engine, NULL, &r, 1));
    REFUSED(sherd_copy(r.engine, &r, NULL, 1));
    REFUSED(sherd_engine_memory(r.engine, NULL));
    REFUSED(sherd_engine_traffic(r.engine, NULL));
    REFUSED(sherd_engine_predict(r.engine, NULL, &prediction));
    REFUSED(sherd_engine_state_parts(r.engine, NULL, NULL));
    REFUSED(sherd_engine_query(r.engine, NULL));
    REFUSED(sherd_move_query(r.engine, NULL));
    REFUSED(sherd_step_share(r.engine, NULL));
    REFUSED(sherd_engine_move(r.engine, NULL));
    (void)rig_param(&r, rig_unit(&r, "unit"), "w", 100);
    rig_seal(&r);
    REFUSED(sherd_engine_fingerprint(r.engine, NULL));
    REFUSED(sherd_param_fingerprint(r.engine, 0, NULL));
    REFUSED(sherd_param_dlpack(r.engine, 0, NULL));
    REFUSED(sherd_param_grad_dlpack(r.engine, 0, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_dlpack(r.engine, 8, &tensor));
    CHECK_ERROR_SAYS("sherd_param_dlpack:");
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_grad_dlpack(r.engine, 8, &tensor));
    CHECK_ERROR_SAYS("sherd_param_grad_dlpack:");
    REFUSED(sherd_export_safetensors(r.engine, NULL, NULL));
    REFUSED(sherd_import_safetensors(r.engine, NULL, NULL));
    REFUSED(sherd_param_read(r.engine, 0, NULL, 0, 1, (float[1]){0}));
    REFUSED(sherd_grad_norms(r.engine, NULL, 1));
    REFUSED(sherd_param_write(r.engine, 0, SHERD_MASTER, 0, 1, NULL));
    REFUSED(sherd_param_read_local(r.engine, 0, SHERD_MASTER, 0, 1, NULL));
    REFUSED(sherd_param_local(r.engine, 0, NULL, (size_t[1]){0}));
    REFUSED(sherd_monitor_write(r.engine, NULL, 1));
    REFUSED(sherd_blob_set(r.engine, NULL, "data", 4, NULL));
    REFUSED(sherd_blob_set(r.engine, "key", NULL, 4, NULL));
    REFUSED(sherd_blob_get(r.engine, NULL, NULL, (size_t[1]){0}, NULL));
    REFUSED(sherd_blob_get(r.engine, "key", NULL, NULL, NULL));
    REFUSED(sherd_param_local(r.engine, 0, (size_t[1]){0}, NULL));
    REFUSED(sherd_checkpoint_save(r.engine, NULL, NULL, NULL));
    REFUSED(sherd_checkpoint_load(r.engine, NULL, NULL, NULL));
    REFUSED(sherd_checkpoint_query(r.engine, NULL));
    rig_close(&r);
    sherd_world_destroy(world);
}

static void checkpoints_take_null(void)
{
    sherd_checkpoint_param  param;
    sherd_checkpoint_report report;
    sherd_load_params       load;
    sherd_save_params       save;
    sherd_verify_params     verify;
    sherd_checkpoint       *checkpoint;
    float                   value;
    uint64_t                fingerprint;
    int                     is_there;

    sherd_save_params_init(&save);
    CHECK_INT(sizeof(save), save.struct_size);
    REFUSED(sherd_checkpoint_save(NULL, "/nowhere", NULL, &save));
    sherd_load_params_init(&load);
    CHECK_INT(sizeof(load), load.struct_size);
    REFUSED(sherd_checkpoint_load(NULL, "/nowhere", NULL, &load));
    sherd_checkpoint_report_init(&report);
    CHECK_INT(sizeof(report), report.struct_size);
    REFUSED(sherd_checkpoint_wait(NULL, &report));
    REFUSED(sherd_checkpoint_query(NULL, &report));
    REFUSED(sherd_checkpoints_find(NULL, NULL, NULL));
    REFUSED(sherd_checkpoints_find("/nowhere", NULL, NULL));
    REFUSED(sherd_checkpoint_remove(NULL, "tag"));
    REFUSED(sherd_checkpoint_remove("/nowhere", NULL));
    REFUSED(sherd_checkpoint_open(NULL, NULL, &checkpoint));
    REFUSED(sherd_checkpoint_open("/nowhere", NULL, NULL));
    sherd_checkpoint_close(NULL);
    CHECK(sherd_checkpoint_describe(NULL) == NULL);
    sherd_checkpoint_param_init(&param);
    CHECK_INT(sizeof(param), param.struct_size);
    REFUSED(sherd_checkpoint_param_at(NULL, 0, &param));
    REFUSED(sherd_checkpoint_read(NULL, "w", "master", 0, 1, &value));
    REFUSED(sherd_checkpoint_fingerprint(NULL, "w", "master", 0, 1, NULL, &fingerprint));
    REFUSED(sherd_checkpoint_blob(NULL, "key", &is_there, nobody_writes, NULL));
    REFUSED(sherd_checkpoint_write(NULL, SHERD_PLAN_TABLE, NULL, NULL));
    sherd_verify_params_init(&verify);
    CHECK_INT(sizeof(verify), verify.struct_size);
    REFUSED(sherd_checkpoint_verify(NULL, &verify));
    REFUSED(sherd_checkpoint_export(NULL, "/nowhere", NULL));
    REFUSED(sherd_checkpoint_import(NULL, "/nowhere", "tag", NULL, 0, NULL));
    REFUSED(sherd_checkpoint_import("/nowhere", NULL, "tag", NULL, 0, NULL));
    REFUSED(sherd_checkpoint_import("/nowhere", "/nowhere", NULL, NULL, 0, NULL));
}

static void others_take_null(void)
{
    sherd_export_params exported;
    sherd_import_params imported;
    sherd_state_file    file;
    sherd_tensor_map    map;
    sherd_world        *world;
    sherd_status        status = sherd_world_from_mpi_handle(NULL, 0, NULL, &world);

    CHECK(status == SHERD_E_INVAL || status == SHERD_E_NOTSUP);
    status = sherd_world_from_nccl_handle(NULL, NULL, &world);
    CHECK(status == SHERD_E_INVAL || status == SHERD_E_NOTSUP);
    REFUSED(sherd_state_files_find(NULL, NULL, NULL));
    REFUSED(sherd_state_files_find("/nowhere", NULL, NULL));
    REFUSED(sherd_state_file_remove(NULL));
    REFUSED(sherd_env_write(SHERD_PLAN_TABLE, NULL, NULL));
    checkpoints_take_null();
    sherd_state_file_init(&file);
    CHECK_INT(sizeof(file), file.struct_size);
    sherd_tensor_map_init(&map);
    CHECK_INT(sizeof(map), map.struct_size);
    sherd_export_params_init(&exported);
    CHECK_INT(sizeof(exported), exported.struct_size);
    sherd_import_params_init(&imported);
    CHECK_INT(sizeof(imported), imported.struct_size);
    REFUSED(sherd_export_safetensors(NULL, "/nowhere", NULL));
    REFUSED(sherd_export_raw(NULL, "/nowhere", "", 0, NULL));
    REFUSED(sherd_import_safetensors(NULL, "/nowhere", NULL));
    REFUSED(sherd_import_raw(NULL, "/nowhere", 0, SHERD_F32, NULL));
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
    CHECK(sherd_version()[0] != '\0');
    (void)sherd_launcher();
    CHECK_INT(0, sherd_dtype_bytes((sherd_dtype)9));
    CHECK(sherd_dtype_name((sherd_dtype)9) != NULL);
    CHECK(sherd_status_name((sherd_status)99) != NULL);
    CHECK(sherd_status_text((sherd_status)99) != NULL);
}

static sherd_status size_note(void *ctx, const char *text, size_t len_bytes)
{
    (void)text;
    *(size_t *)ctx += len_bytes;
    return SHERD_OK;
}

static void formats_that_do_not_exist_are_refused(void)
{
    size_t bytes = 0;
    rig    r     = {0};

    CHECK_STATUS(SHERD_E_INVAL, sherd_env_write((sherd_plan_format)7, size_note, &bytes));
    CHECK_ERROR_SAYS("sherd_env_write: format 7 does not exist");
    CHECK_OK(sherd_world_self(&r.world));
    rig_open(&r, r.world, &(rig_options){.stage = 2});
    (void)rig_param(&r, rig_unit(&r, "unit"), "w", 100);
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_engine_plan(r.engine, (sherd_plan_format)-1, size_note, &bytes));
    CHECK_INT(0, bytes);
    CHECK_OK(sherd_env_write(SHERD_PLAN_JSON, size_note, &bytes));
    CHECK(bytes > 0);
    sherd_engine_destroy(r.engine);
    sherd_world_destroy(r.world);
}

static void worlds_without_an_address_are_refused(void)
{
    sherd_world *world;
    sherd_status status;

    REFUSED(sherd_world_create(0, 2, NULL, NULL, &world));
    status = sherd_world_from_mpi_handle(NULL, 8, NULL, &world);
    CHECK(status == SHERD_E_NOTSUP || strstr(sherd_last_error(), "comm is NULL") != NULL);
}

/* Sets an int of a struct's copy to 5, and checks that the call then refuses it by name. */
#define FLAG_REFUSED(model, field, call)                                                           \
    do {                                                                                           \
        (model).field = 5;                                                                         \
        CHECK_STATUS(SHERD_E_INVAL, call);                                                         \
        CHECK_ERROR_SAYS("." #field " is 5; it can be 0 or 1");                                    \
        (model).field = 0;                                                                         \
    } while (0)

static void flags_that_are_neither_0_nor_1_are_refused(void)
{
    rig               r = {0};
    sherd_save_params save;
    sherd_load_params load;
    sherd_unit_params unit;
    int               number;

    models_init();
    unit      = unit_params;
    unit.name = "another";
    sherd_save_params_init(&save);
    sherd_load_params_init(&load);
    CHECK_OK(sherd_world_self(&r.world));
    rig_open(&r, r.world, &(rig_options){.stage = 2});
    (void)rig_unit(&r, "unit");
    FLAG_REFUSED(group_params, exclude_1d, sherd_group_add(r.engine, &group_params, &number));
    FLAG_REFUSED(unit, retain_grads, sherd_unit_add(r.engine, &unit, &number));
    param_params.name = "w";
    FLAG_REFUSED(param_params, frozen,
                 sherd_param_add(r.engine, r.units[0], &param_params, &number));
    (void)rig_param(&r, 0, "w", 100);
    rig_seal(&r);
    FLAG_REFUSED(blob_params, is_large, sherd_blob_set(r.engine, "k", "v", 1, &blob_params));
    FLAG_REFUSED(blob_params, is_per_rank, sherd_blob_set(r.engine, "k", "v", 1, &blob_params));
    rig_micro_batch(&r);
    CHECK_OK(sherd_step_prepare(r.engine, NULL));
    FLAG_REFUSED(step_params, overflow, sherd_step_apply(r.engine, &step_params));
    CHECK_OK(sherd_step_discard(r.engine));
#ifdef SHERDI_HAVE_XXHASH
    FLAG_REFUSED(save, is_async, sherd_checkpoint_save(r.engine, test_scratch(), "t", &save));
#endif
    FLAG_REFUSED(load, weights_only, sherd_checkpoint_load(r.engine, test_scratch(), "t", &load));
    rig_close(&r);
    sherd_world_destroy(r.world);
}

static void more_threads_than_can_be_are_refused(void)
{
    sherd_world *world;

    models_init();
    world_params.cpu_threads = 4097;
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_threads_with(1, &world_params, &world));
    CHECK_ERROR_SAYS("sherd_world_params.cpu_threads is 4097");
}

static void outputs_without_a_path_are_refused(void)
{
    CHECK_STATUS(SHERD_E_INVAL, sherd_output_check(NULL));
    CHECK_ERROR_SAYS("sherd_output_check");
    CHECK_STATUS(SHERD_E_INVAL, sherd_output_write(NULL, "", 0));
    CHECK_STATUS(SHERD_E_INVAL, sherd_output_write("x", NULL, 1));
    CHECK_ERROR_SAYS("sherd_output_write");
}

static void inits_of_null_do_nothing(void)
{
    sherd_world_params_init(NULL);
    sherd_settings_init(NULL);
    sherd_group_params_init(NULL);
    sherd_unit_params_init(NULL);
    sherd_activation_params_init(NULL);
    sherd_param_params_init(NULL);
    sherd_step_report_init(NULL);
    sherd_step_params_init(NULL);
    sherd_eval_params_init(NULL);
    sherd_blob_params_init(NULL);
    sherd_save_params_init(NULL);
    sherd_checkpoint_report_init(NULL);
    sherd_load_params_init(NULL);
    sherd_tensor_map_init(NULL);
    sherd_export_params_init(NULL);
    sherd_import_params_init(NULL);
    sherd_memory_report_init(NULL);
    sherd_traffic_report_init(NULL);
    sherd_engine_info_init(NULL);
    sherd_move_report_init(NULL);
    sherd_share_init(NULL);
    sherd_simulate_params_init(NULL);
    sherd_rates_init(NULL);
    sherd_prediction_init(NULL);
    sherd_state_file_init(NULL);
    sherd_checkpoint_param_init(NULL);
    sherd_verify_params_init(NULL);
}

static const test_case CASES[] = {
    CASE(structs_of_sizes_that_never_existed_are_refused),
    CASE(worlds_without_a_result_are_refused),
    CASE(calls_of_no_world_are_refused),
    CASE(traffic_without_a_result_is_not_told),
    CASE(devices_of_no_backend_are_none),
    CASE(configurations_of_null_are_refused),
    CASE(calls_of_no_engine_are_refused),
    CASE(engines_without_an_argument_refuse),
    CASE(others_take_null),
    CASE(formats_that_do_not_exist_are_refused),
    CASE(worlds_without_an_address_are_refused),
    CASE(flags_that_are_neither_0_nor_1_are_refused),
    CASE(more_threads_than_can_be_are_refused),
    CASE(outputs_without_a_path_are_refused),
    CASE(inits_of_null_do_nothing),
};

RUN_MAIN(CASES)
