/* Makes the calls of an engine and its world and prints, for each, a line for test_calls.py: its
 * name; "allocates" or "-"; then after which failures it still works: "update" (the engine is
 * poisoned), "world" (a rank has given up), "device" (the device is lost). calls FOLDER. Two ranks,
 * which are threads, at stage 3. */
#include "base/mem.h"
#include "engine/run/failure.h"
#include "sherd_tools.h"
#include "tests/lib/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMS 4096

/* Where in its life an engine is when the call comes. */
typedef enum moment {
    OPEN,
    SEALED,
    BETWEEN, /* two windows */
    EVALUATING,
    FORWARD,  /* the unit is acquired */
    BACKWARD, /* the same */
    PASSED,   /* before the step */
    PREPARED,
} moment;

/* A rank, with room for what calls return. */
typedef struct rank {
    sherd_world  *world, *part;
    sherd_engine *engine;
    char          file[512], saves[512];
    char offload[1024]; /* what the configuration says of it: only an undo needs state in files */
    sherd_unit                unit;
    sherd_param               param;
    sherd_group               group;
    void                     *memory;
    uint64_t                  number;
    size_t                    first, count;
    double                    real;
    float                     values[ELEMS];
    DLManagedTensorVersioned *tensor;
    sherd_step_report         step;
    sherd_checkpoint_report   saved;
    sherd_memory_report       bytes;
    sherd_traffic_report      traffic;
    sherd_engine_info         info;
    sherd_rates               rates;
    sherd_prediction          prediction;
    sherd_group_params        group_params;
} rank;

#define NEEDED(call)                                                                               \
    do {                                                                                           \
        if ((call) != SHERD_OK) {                                                                  \
            fprintf(stderr, "%s: %s\n", #call, sherd_last_error());                                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static sherd_status give(void *ctx, size_t first, size_t count, float *out)
{
    (void)ctx;
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)(first + i);
    }
    return SHERD_OK;
}

static sherd_status take_text(void *ctx, const char *text, size_t len_bytes)
{
    (void)ctx, (void)text, (void)len_bytes;
    return SHERD_OK;
}

static sherd_status take_part(void *ctx, const sherd_state_part *part)
{
    (void)ctx, (void)part;
    return SHERD_OK;
}

static sherd_status status_of(int is_there)
{
    return is_there ? SHERD_OK : SHERD_E_STATE;
}

static sherd_status split(rank *r)
{
    sherd_status status = sherd_world_split(r->world, 0, 0, &r->part);

    sherd_world_destroy(status == SHERD_OK ? r->part : NULL);
    return status;
}

static sherd_status read_local(rank *r)
{
    sherd_status status = sherd_param_local(r->engine, r->param, &r->first, &r->count);

    return status != SHERD_OK ? status
                              : sherd_param_read_local(r->engine, r->param, SHERD_MASTER, r->first,
                                                       r->count, r->values);
}

/* Each call: when it comes, its name, and how it is made. */
#define CALLS(CALL)                                                                                \
    CALL(OPEN, sherd_group_add, sherd_group_add(r->engine, &r->group_params, &r->group))           \
    CALL(OPEN, sherd_unit_reads, sherd_unit_reads(r->engine, r->unit, r->param))                   \
    CALL(OPEN, sherd_pass_add, sherd_pass_add(r->engine, SHERD_EVAL, r->unit))                     \
    CALL(OPEN, sherd_engine_describe_run, sherd_engine_describe_run(r->engine, "a run"))           \
    CALL(OPEN, sherd_engine_fits, sherd_engine_fits(r->engine))                                    \
    CALL(OPEN, sherd_engine_seal, sherd_engine_seal(r->engine))                                    \
    CALL(SEALED, sherd_param_fill, sherd_param_fill(r->engine, r->param, give, NULL))              \
    CALL(SEALED, sherd_param_fill_from, sherd_param_fill_from(r->engine, r->param, 0, give, NULL)) \
    CALL(BETWEEN, sherd_unit_acquire, sherd_unit_acquire(r->engine, r->unit, SHERD_FORWARD))       \
    CALL(FORWARD, sherd_unit_release, sherd_unit_release(r->engine, r->unit, SHERD_FORWARD))       \
    CALL(FORWARD, sherd_param_data, status_of(sherd_param_data(r->engine, r->param) != NULL))      \
    CALL(BACKWARD, sherd_param_grad, status_of(sherd_param_grad(r->engine, r->param) != NULL))     \
    CALL(BETWEEN, sherd_param_address,                                                             \
         status_of(sherd_param_address(r->engine, r->param) != NULL))                              \
    CALL(BETWEEN, sherd_param_grad_address,                                                        \
         status_of(sherd_param_grad_address(r->engine, r->param) != NULL))                         \
    CALL(FORWARD, sherd_activation_put, sherd_activation_put(r->engine, r->unit, &r->memory))      \
    CALL(BACKWARD, sherd_activation_get, sherd_activation_get(r->engine, r->unit, &r->memory))     \
    CALL(BETWEEN, sherd_loss_scale, status_of(sherd_loss_scale(r->engine) > 0))                    \
    CALL(BETWEEN, sherd_group_lr, status_of(sherd_group_lr(r->engine, 0, 1) > 0))                  \
    CALL(BETWEEN, sherd_copy, sherd_copy(r->engine, r->values, &r->real, sizeof(r->real)))         \
    CALL(BETWEEN, sherd_monitor_write, sherd_monitor_write(r->engine, "loss", 1))                  \
    CALL(PASSED, sherd_step, sherd_step(r->engine, NULL))                                          \
    CALL(PASSED, sherd_step_queue, sherd_step_queue(r->engine))                                    \
    CALL(PASSED, sherd_step_prepare, sherd_step_prepare(r->engine, NULL))                          \
    CALL(PREPARED, sherd_step_apply, sherd_step_apply(r->engine, NULL))                            \
    CALL(PREPARED, sherd_grad_norms, sherd_grad_norms(r->engine, &r->real, 1))                     \
    CALL(PASSED, sherd_step_discard, sherd_step_discard(r->engine))                                \
    CALL(BETWEEN, sherd_micro_batch_skip, sherd_micro_batch_skip(r->engine))                       \
    CALL(BETWEEN, sherd_micro_batch_weight, sherd_micro_batch_weight(r->engine, 1))                \
    CALL(PASSED, sherd_step_close_window, sherd_step_close_window(r->engine))                      \
    CALL(BETWEEN, sherd_step_wait, sherd_step_wait(r->engine, &r->step))                           \
    CALL(BETWEEN, sherd_step_undo, sherd_step_undo(r->engine))                                     \
    CALL(BETWEEN, sherd_eval_begin, sherd_eval_begin(r->engine, NULL))                             \
    CALL(EVALUATING, sherd_eval_end, sherd_eval_end(r->engine))                                    \
    CALL(BETWEEN, sherd_engine_fingerprint, sherd_engine_fingerprint(r->engine, &r->number))       \
    CALL(BETWEEN, sherd_param_fingerprint,                                                         \
         sherd_param_fingerprint(r->engine, r->param, &r->number))                                 \
    CALL(BETWEEN, sherd_param_read,                                                                \
         sherd_param_read(r->engine, r->param, SHERD_MASTER, 0, ELEMS, NULL))                      \
    CALL(BETWEEN, sherd_param_write,                                                               \
         sherd_param_write(r->engine, r->param, SHERD_MASTER, 0, ELEMS, r->values))                \
    CALL(BETWEEN, sherd_param_local, sherd_param_local(r->engine, r->param, &r->first, &r->count)) \
    CALL(BETWEEN, sherd_param_read_local, read_local(r))                                           \
    CALL(BETWEEN, sherd_engine_set_step, sherd_engine_set_step(r->engine, 5, 5))                   \
    CALL(BETWEEN, sherd_blob_set, sherd_blob_set(r->engine, "key", "b", 1, NULL))                  \
    CALL(BETWEEN, sherd_blob_get, sherd_blob_get(r->engine, "kept", NULL, &r->count, NULL))        \
    CALL(BETWEEN, sherd_checkpoint_save,                                                           \
         sherd_checkpoint_save(r->engine, r->saves, "saved", NULL))                                \
    CALL(BETWEEN, sherd_checkpoint_wait, sherd_checkpoint_wait(r->engine, &r->saved))              \
    CALL(BETWEEN, sherd_checkpoint_query, sherd_checkpoint_query(r->engine, &r->saved))            \
    CALL(BETWEEN, sherd_checkpoint_load,                                                           \
         sherd_checkpoint_load(r->engine, r->saves, "saved", NULL))                                \
    CALL(BETWEEN, sherd_export_safetensors, sherd_export_safetensors(r->engine, r->file, NULL))    \
    CALL(BETWEEN, sherd_import_safetensors, sherd_import_safetensors(r->engine, r->file, NULL))    \
    CALL(BETWEEN, sherd_engine_plan,                                                               \
         sherd_engine_plan(r->engine, SHERD_PLAN_TABLE, take_text, NULL))                          \
    CALL(BETWEEN, sherd_engine_memory, sherd_engine_memory(r->engine, &r->bytes))                  \
    CALL(BETWEEN, sherd_engine_traffic, sherd_engine_traffic(r->engine, &r->traffic))              \
    CALL(BETWEEN, sherd_engine_query, sherd_engine_query(r->engine, &r->info))                     \
    CALL(BETWEEN, sherd_engine_predict,                                                            \
         sherd_engine_predict(r->engine, &r->rates, &r->prediction))                               \
    CALL(BETWEEN, sherd_engine_state_parts, sherd_engine_state_parts(r->engine, take_part, NULL))  \
    CALL(BETWEEN, sherd_engine_check_plans, sherd_engine_check_plans(r->engine))                   \
    CALL(BETWEEN, sherd_engine_keep_state, sherd_engine_keep_state(r->engine, 0))                  \
    CALL(BETWEEN, sherd_world_sum_f64, sherd_world_sum_f64(r->world, &r->real, 1))                 \
    CALL(BETWEEN, sherd_world_broadcast, sherd_world_broadcast(r->world, &r->number, 8, 0))        \
    CALL(BETWEEN, sherd_world_barrier, sherd_world_barrier(r->world))                              \
    CALL(BETWEEN, sherd_world_split, split(r))

typedef struct call {
    const char *name;
    moment      moment;
    sherd_status (*make)(rank *r);
} call;

#define FUNCTION(moment, name, made)                                                               \
    static sherd_status make_##name(rank *r)                                                       \
    {                                                                                              \
        return made;                                                                               \
    }
CALLS(FUNCTION)
#define ROW(moment, name, made) {#name, moment, make_##name},
static const call ALL[] = {CALLS(ROW)};

static void declare(rank *r)
{
    char                    json[2048];
    sherd_config           *config;
    sherd_unit_params       unit;
    sherd_param_params      param;
    sherd_activation_params activation;

    (void)snprintf(json, sizeof(json),
                   "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\"},"
                   " \"zero_optimization\": {\"stage\": 3%s}, \"sherd\": {\"most_weight\": 7}}",
                   r->offload);
    sherd_unit_params_init(&unit);
    unit.name = "unit";
    sherd_param_params_init(&param);
    param.name     = "param";
    param.ndim     = 1;
    param.shape[0] = ELEMS;
    sherd_activation_params_init(&activation);
    activation.len_bytes = 4096;
    NEEDED(sherd_config_parse(json, strlen(json), &config));
    NEEDED(sherd_engine_create(r->world, config, &r->engine));
    sherd_config_destroy(config);
    NEEDED(sherd_unit_add(r->engine, &unit, &r->unit));
    NEEDED(sherd_param_add(r->engine, r->unit, &param, &r->param));
    NEEDED(sherd_activation_add(r->engine, r->unit, &activation));
}

static void pass_until(rank *r, moment until)
{
    NEEDED(sherd_unit_acquire(r->engine, r->unit, SHERD_FORWARD));
    if (until == FORWARD) {
        return;
    }
    NEEDED(sherd_activation_put(r->engine, r->unit, &r->memory));
    NEEDED(sherd_unit_release(r->engine, r->unit, SHERD_FORWARD));
    NEEDED(sherd_unit_acquire(r->engine, r->unit, SHERD_BACKWARD));
    if (until == BACKWARD) {
        return;
    }
    NEEDED(sherd_unit_release(r->engine, r->unit, SHERD_BACKWARD));
    if (until == PREPARED) {
        NEEDED(sherd_step_prepare(r->engine, NULL));
    }
}

/* Brings a new engine to that moment of its life, after two updates where it is one of the
 * loop. */
static void live_until(rank *r, moment until)
{
    declare(r);
    if (until == OPEN) {
        return;
    }
    NEEDED(sherd_engine_seal(r->engine));
    if (until == SEALED) {
        return;
    }
    NEEDED(sherd_param_fill(r->engine, r->param, give, NULL));
    for (int step = 0; step < 2; step++) {
        pass_until(r, PASSED);
        NEEDED(sherd_step(r->engine, NULL));
    }
    NEEDED(sherd_blob_set(r->engine, "kept", "b", 1, NULL));
    if (until == EVALUATING) {
        NEEDED(sherd_eval_begin(r->engine, NULL));
    } else if (until > EVALUATING) {
        pass_until(r, until);
    }
}

static const char *const FAILURES[] = {"", "update", "world", "device"}; /* the first one: none */

/* One call by two ranks. */
typedef struct round {
    const call       *call;
    int               failure;
    sherd_world      *worlds[2];
    const char       *folder;
    pthread_barrier_t barrier;
} round_of_calls;

static void fail_as(rank *r, int failure)
{
    if (strcmp(FAILURES[failure], "update") == 0) {
        sherdi_engine_poison(r->engine, sherdi_fail(SHERD_E_IO, "as tested"));
    } else if (strcmp(FAILURES[failure], "device") == 0) {
        (void)sherdi_engine_outcome(r->engine, sherdi_fail(SHERD_E_DEVICE, "as tested"));
    } else if (failure > 0 && sherd_world_rank(r->world) == 0) {
        sherd_world_abort(r->world, "as tested");
    }
}

static void rank_init(rank *r, const round_of_calls *round, sherd_world *world)
{
    r->world = world;
    (void)snprintf(r->file, sizeof(r->file), "%s/weights.safetensors", round->folder);
    (void)snprintf(r->saves, sizeof(r->saves), "%s/saves", round->folder);
    if (round->call->make == make_sherd_step_undo) {
        (void)snprintf(r->offload, sizeof(r->offload),
                       ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                       round->folder);
    }
    sherd_step_report_init(&r->step);
    sherd_checkpoint_report_init(&r->saved);
    sherd_memory_report_init(&r->bytes);
    sherd_traffic_report_init(&r->traffic);
    sherd_engine_info_init(&r->info);
    sherd_rates_init(&r->rates);
    sherd_prediction_init(&r->prediction);
    sherd_group_params_init(&r->group_params);
    r->group_params.name = "group";
}

static void rank_play(round_of_calls *round, sherd_world *world)
{
    rank        *r = calloc(1, sizeof(*r));
    sherd_status status;
    size_t       allocations;

    rank_init(r, round, world);
    live_until(r, round->call->moment);
    (void)pthread_barrier_wait(&round->barrier);
    fail_as(r, round->failure);
    (void)pthread_barrier_wait(&round->barrier);
    (void)sherdi_mem_fail_nth(0);
    status      = round->call->make(r);
    allocations = sherdi_mem_fail_nth(0);
    if (sherd_world_rank(world) == 1 && round->failure == 0) {
        NEEDED(status);
        printf("%s %s", round->call->name, allocations > 0 ? "allocates" : "-");
    } else if (sherd_world_rank(world) == 1 && status == SHERD_OK) {
        printf(" %s", FAILURES[round->failure]);
    }
    (void)pthread_barrier_wait(&round->barrier);
    sherd_engine_destroy(r->engine);
    sherd_world_destroy(world);
    free(r);
}

static void play(int number, void *ctx)
{
    round_of_calls *round = ctx;

    rank_play(round, round->worlds[number]);
}

int main(int argc, char **argv)
{
    round_of_calls     round = {.folder = argc == 2 ? argv[1] : "."};
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.cpu_threads = 1;
    for (size_t c = 0; c < sizeof(ALL) / sizeof(ALL[0]); c++) {
        round.call = &ALL[c];
        for (round.failure = 0; round.failure < 4; round.failure++) {
            NEEDED(sherd_world_threads_with(2, &params, round.worlds));
            (void)pthread_barrier_init(&round.barrier, NULL, 2);
            test_threads(2, play, &round);
            (void)pthread_barrier_destroy(&round.barrier);
        }
        printf("\n");
    }
    return 0;
}
