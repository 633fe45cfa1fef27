/* Tests of optimizer.type none: an engine that evaluates and updates nothing. It has no gradient,
 * no state and no step, at every stage and place of the parameters. Weights come to it as to any
 * other engine. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMS 700 /* elements of the first parameter of rig_three */

static size_t elems_of(int param)
{
    return ELEMS + 641 * (size_t)param;
}

static sherd_status read_all(rig *r, int param, float *out)
{
    return sherd_param_read(r->engine, r->params[param].handle, SHERD_COMPUTE, 0, elems_of(param),
                            out);
}

/* Reads the values of a training engine of the same type and fill. */
static void values_of_training(sherd_world *world, sherd_dtype dtype, float *values[3],
                               uint64_t *fingerprint)
{
    rig_options options = {.stage = 1, .dtype = dtype};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    for (int p = 0; p < 3; p++) {
        CHECK_OK(read_all(&r, p, values[p]));
    }
    *fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

/* Checks that only parameters are planned and held. */
static void memory_check(const rig *r, int stage, sherd_dtype dtype)
{
    sherd_memory_report memory;
    size_t              all = 0;

    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r->engine, &memory));
    CHECK_INT(0, memory.grads_planned + memory.state_planned + memory.transient_planned);
    CHECK_INT(0, memory.host_grads_planned + memory.host_state_planned);
    CHECK_INT(0, memory.nvme_state_planned + memory.nvme_grads_planned);
    CHECK_INT(memory.total_planned, memory.total_held);
    for (int p = 0; p < 3; p++) {
        all += (elems_of(p) + 63) / 64 * 64 * sherd_dtype_bytes(dtype);
    }
    if (stage < 3) {
        /* whole, with padding for the ranks' slices and for pages */
        CHECK(memory.params_planned >= all && memory.params_planned < all + 3 * 5000);
    }
}

static void refused(rig *r)
{
    float       value = 1;
    sherd_param param = r->params[0].handle;

    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r->engine, r->units[1], SHERD_BACKWARD));
    CHECK_ERROR_SAYS("unit b");
    CHECK_ERROR_SAYS("optimizer.type is none");
    CHECK_STATUS(SHERD_E_STATE, sherd_step(r->engine, NULL));
    CHECK_ERROR_SAYS("optimizer.type is none");
    CHECK_STATUS(SHERD_E_STATE, sherd_step_prepare(r->engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_apply(r->engine, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_step_close_window(r->engine));
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_step_undo(r->engine));
    CHECK_STATUS(SHERD_E_STATE, sherd_param_read(r->engine, param, SHERD_MASTER, 0, 1, &value));
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r->engine, param, "exp_avg", 0, 1, &value));
    CHECK(sherd_param_grad_address(r->engine, param) == NULL);
}

typedef struct infer_job {
    rig_options options;
} infer_job;

static void infer(sherd_world *world, void *raw)
{
    const rig_options *options = raw;
    float             *want[3], *got = malloc(elems_of(2) * sizeof(*got));
    float              value = 0.5f;
    uint64_t           fingerprint;
    rig                r;

    for (int p = 0; p < 3; p++) {
        want[p] = malloc(elems_of(p) * sizeof(*want[p]));
        CHECK(want[p] != NULL && got != NULL);
    }
    values_of_training(world, options->dtype, want, &fingerprint);
    rig_open(&r, world, options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    memory_check(&r, options->stage, options->dtype);
    for (int round = 0; round < 2; round++) {
        for (int p = 0; p < 3; p++) {
            rig_values(&r, p, got);
            CHECK_BYTES_EQUAL(want[p], got, elems_of(p) * sizeof(*got));
            rig_forward(&r, p, SHERD_FORWARD);
            CHECK_OK(read_all(&r, p, got));
            CHECK_BYTES_EQUAL(want[p], got, elems_of(p) * sizeof(*got));
        }
    }
    CHECK_OK(sherd_eval_begin(r.engine, NULL));
    rig_forward(&r, 2, SHERD_EVAL);
    CHECK_OK(sherd_eval_end(r.engine));
    refused(&r);
    if (options->dtype == SHERD_F32) { /* the same values as the masters */
        CHECK_INT(fingerprint, rig_fingerprint(&r));
    }
    CHECK_OK(sherd_param_write(r.engine, r.params[1].handle, SHERD_COMPUTE, 5, 1, &value));
    want[1][5] = value;
    rig_acquire(&r, 1, SHERD_EVAL); /* followed by a discard, as after an exception */
    CHECK_OK(sherd_step_discard(r.engine));
    rig_values(&r, 1, got);
    CHECK_BYTES_EQUAL(want[1], got, elems_of(1) * sizeof(*got));
    rig_close(&r);
    for (int p = 0; p < 3; p++) {
        free(want[p]);
    }
    free(got);
}

static void inference_has_parameters_and_nothing_else(void)
{
    static const sherd_dtype DTYPES[] = {SHERD_F32, SHERD_BF16, SHERD_F16};
    char                     zeros[4][1024];

    (void)snprintf(zeros[0], sizeof(zeros[0]), "%s", "");
    (void)snprintf(zeros[1], sizeof(zeros[1]), ", \"stage3_prefetch_bucket_size\": 0");
    (void)snprintf(zeros[2], sizeof(zeros[2]), ", \"offload_param\": {\"device\": \"cpu\"}");
    (void)snprintf(zeros[3], sizeof(zeros[3]),
                   ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"max_in_cpu\": 0}",
                   test_scratch());
    for (int stage = 0; stage <= 3; stage++) {
        for (int z = 0; z < (stage == 3 ? 4 : 1); z++) {
            for (int d = 0; d < 3; d++) {
                rig_options options = {.stage     = stage,
                                       .zero      = zeros[z],
                                       .dtype     = DTYPES[d],
                                       .optimizer = "none",
                                       .top       = ", \"sherd\": {\"eval_keep_units\": 1}"};

                test_world(1 + (stage + z + d) % 3, infer, &options);
            }
        }
    }
}

/* The trainer binds its own memory for the data, and none for gradients. */
static void infer_bound(sherd_world *world, void *raw)
{
    rig_options options = {.stage = *(int *)raw, .optimizer = "none"};
    float      *memory[3], *got = malloc(elems_of(2) * sizeof(*got));
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    for (int p = 0; p < 3; p++) {
        memory[p] = malloc(elems_of(p) * sizeof(*memory[p]));
        CHECK(memory[p] != NULL && got != NULL);
        CHECK_OK(sherd_param_bind(r.engine, r.params[p].handle, memory[p], NULL));
    }
    rig_seal(&r);
    for (int p = 0; p < 3; p++) {
        rig_values(&r, p, got);
        CHECK_BYTES_EQUAL(memory[p], got, elems_of(p) * sizeof(*got));
    }
    rig_close(&r);
    for (int p = 0; p < 3; p++) {
        free(memory[p]);
    }
    free(got);
}

static void inference_takes_bound_memory(void)
{
    for (int stage = 0; stage <= 2; stage++) {
        test_world(2, infer_bound, &stage);
    }
}

/* ------------------------------------------------------ weights in and out -- */

typedef struct pass_on {
    sherd_dtype dtype;
    int         stage;
    float      *values[3]; /* the values that training passes read */
    uint64_t    fingerprint;
    char        folder[256];
} pass_on;

static void train_and_save(sherd_world *world, void *raw)
{
    pass_on    *job     = raw;
    rig_options options = {.stage = 2, .dtype = job->dtype};
    float      *got     = malloc(elems_of(2) * sizeof(*got));
    rig         r;

    CHECK(got != NULL);
    rig_open(&r, world, &options);
    rig_three(&r, ELEMS);
    rig_seal(&r);
    (void)rig_train(&r, 2);
    for (int p = 0; p < 3; p++) {
        CHECK_OK(read_all(&r, p, sherd_world_rank(world) == 0 ? job->values[p] : got));
    }
    if (sherd_world_rank(world) == 0) {
        job->fingerprint = rig_fingerprint(&r);
    } else {
        (void)rig_fingerprint(&r);
    }
    CHECK_OK(sherd_checkpoint_save(r.engine, job->folder, "trained", NULL));
    rig_close(&r);
    free(got);
}

static void expect_values(rig *r, const pass_on *job)
{
    float *got = malloc(elems_of(2) * sizeof(*got));

    CHECK(got != NULL);
    for (int p = 0; p < 3; p++) {
        rig_values(r, p, got);
        CHECK_BYTES_EQUAL(job->values[p], got, elems_of(p) * sizeof(*got));
    }
    if (job->dtype == SHERD_F32) {
        CHECK_INT(job->fingerprint, rig_fingerprint(r));
    }
    free(got);
}

static void infer_open(rig *r, sherd_world *world, const pass_on *job)
{
    rig_options options = {.stage = job->stage, .dtype = job->dtype, .optimizer = "none"};

    rig_open(r, world, &options);
    rig_three(r, ELEMS);
}

/* Loads weights instead of filling, and again between passes; passes them on by a file and by a
 * checkpoint of its own. */
static void load_and_infer(sherd_world *world, void *raw)
{
    pass_on          *job = raw;
    sherd_load_params weights;
    char              path[512];
    rig               r;

    (void)snprintf(path, sizeof(path), "%s/weights.safetensors", job->folder);
    infer_open(&r, world, job);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(sherd_checkpoint_load(r.engine, job->folder, "trained", NULL));
    expect_values(&r, job);
    CHECK_OK(sherd_checkpoint_load(r.engine, job->folder, "trained", NULL));
    expect_values(&r, job);
    CHECK_OK(sherd_export_safetensors(r.engine, path, NULL));
    CHECK_OK(sherd_checkpoint_save(r.engine, job->folder, "inferred", NULL));
    rig_close(&r);

    infer_open(&r, world, job);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(sherd_import_safetensors(r.engine, path, NULL));
    expect_values(&r, job);
    CHECK_OK(sherd_checkpoint_load(r.engine, job->folder, "inferred", NULL));
    expect_values(&r, job);
    rig_close(&r);

    rig_open(&r, world, &(rig_options){.stage = job->stage, .dtype = job->dtype});
    rig_three(&r, ELEMS);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, job->folder, "inferred", NULL));
    CHECK_ERROR_SAYS("weights_only");
    sherd_load_params_init(&weights);
    weights.weights_only = 1;
    CHECK_OK(sherd_checkpoint_load(r.engine, job->folder, "inferred", &weights));
    expect_values(&r, job);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void weights_of_training_come_and_go(void)
{
#ifndef SHERDI_HAVE_XXHASH
    test_skip("no libxxhash in this build");
#endif
    for (int d = 0; d < 2; d++) {
        pass_on job = {.dtype = d == 0 ? SHERD_F32 : SHERD_BF16};

        for (int p = 0; p < 3; p++) {
            job.values[p] = malloc(elems_of(p) * sizeof(*job.values[p]));
            CHECK(job.values[p] != NULL);
        }
        (void)snprintf(job.folder, sizeof(job.folder), "%s/%d", test_scratch(), d);
        test_world(2, train_and_save, &job);
        for (job.stage = 0; job.stage <= 3; job.stage++) {
            test_world(1 + job.stage % 3, load_and_infer, &job);
        }
        for (int p = 0; p < 3; p++) {
            free(job.values[p]);
        }
    }
}

/* ------------------------------------------------------------------- plans -- */

/* Returns the bytes of one rank's slices of all three units, among 8 ranks. */
static uint64_t gathered_slices(const rig *r)
{
    uint64_t elems = 0;

    for (int p = 0; p < 3; p++) {
        elems += (r->params[p].elems + 8 * 64 - 1) / (8 * 64) * 64;
    }
    return elems * 2;
}

/* Only passes move bytes, and the plans of the ranks fit each other. */
static void plans_know_inference(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        rig_options          options = {.stage        = stage,
                                        .dtype        = SHERD_BF16,
                                        .optimizer    = "none",
                                        .accumulation = 1 + stage % 2};
        sherd_rates          rates;
        sherd_prediction     prediction;
        sherd_traffic_report traffic;
        sherd_world         *world;
        rig                  r;

        CHECK_OK(sherd_world_simulate(1, 8, &world));
        rig_open(&r, world, &options);
        sherd_world_destroy(world);
        rig_three(&r, 70001);
        CHECK_OK(sherd_engine_check_plans(r.engine));
        sherd_traffic_report_init(&traffic);
        CHECK_OK(sherd_engine_traffic(r.engine, &traffic));
        CHECK_INT(0, traffic.wire_step_planned + traffic.update_host_planned);
        CHECK_INT(stage < 3 ? 0 : 7 * gathered_slices(&r), traffic.wire_micro_planned);
        sherd_rates_init(&rates);
        sherd_prediction_init(&prediction);
        rates.wire = 1e6;
        CHECK_OK(sherd_engine_predict(r.engine, &rates, &prediction));
        CHECK_CLOSE((double)traffic.wire_micro_planned / 1e6, prediction.micro_s, 1e-9);
        CHECK_CLOSE(0.0, prediction.boundary_s, 0);
        sherd_engine_destroy(r.engine);
    }
}

static const test_case CASES[] = {
    CASE(inference_has_parameters_and_nothing_else),
    CASE(inference_takes_bound_memory),
    CASE(weights_of_training_come_and_go),
    CASE(plans_know_inference),
};

RUN_MAIN(CASES)
