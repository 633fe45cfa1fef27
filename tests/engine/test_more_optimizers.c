/* An optimizer that the library has not (sgd.c), added by its table and one line of a list: the
 * bits of the same training over whole arrays, wherever its state rests; the bytes that its table
 * says, planned and moved. */
#include "base/checked.h"
#include "engine/optimizers/lamb.h"
#include "engine/optimizers/muon.h"
#include "engine/run/engine_impl.h"
#include "engine/report.h"
#include "sherd_build.h"
#include "tests/engine/elements.h"
#include "tests/engine/plain.h"
#include "tests/engine/rig.h"
#include "tests/engine/sgd.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define STEPS  3
#define PARAMS 3

#define MOST_TABLES 32
#define SIGN_ELEMS  256

static const size_t ELEMS[PARAMS] = {3001, 64, 5000};

typedef struct row {
    const char *keys; /* of zero_optimization; %s is the folder */
    int         least_stage;
    int         is_on_drive;
} row;

static const row ROWS[] = {
    {"", 0, 0},
    {", \"sub_group_size\": 1024, \"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": "
     "\"%s\"}",
     1, 0},
    {", \"sub_group_size\": 1024, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
     "\"%s\", \"durable\": false}",
     1, 1},
};

/* Of the mean gradient of a rank's micro-batch. */
static float gradient(int step, int rank, int param, size_t i)
{
    uint64_t state = (((uint64_t)step * 16 + (uint64_t)rank) * PARAMS + (uint64_t)param) << 32 | i;

    return test_random_float(&state);
}

static void backward(rig *r, int step, int unit)
{
    rig_acquire(r, unit, SHERD_BACKWARD);
    for (int p = 0; p < PARAMS; p++) {
        void *grad =
            r->params[p].unit == unit ? sherd_param_grad(r->engine, r->params[p].handle) : NULL;

        for (size_t i = 0; grad != NULL && i < ELEMS[p]; i++) {
            store(grad, i, r->dtype, gradient(step, sherd_world_rank(r->world), p, i));
        }
    }
    rig_release(r, unit, SHERD_BACKWARD);
}

static void plain_step(plain_param *params, int step, int world_size, sherd_dtype dtype)
{
    const sgd_coeffs coeffs = {.grad_scale = 1, .momentum = 0.9f, .decay = 0.1f, .neg_lr = -0.01f};

    for (int p = 0; p < PARAMS; p++) {
        for (size_t i = 0; i < ELEMS[p]; i++) {
            float g[8];

            for (int r = 0; r < world_size; r++) {
                g[r] = plain_round(gradient(step, r, p, i), dtype);
            }
            sgd_element(&coeffs, plain_mean(g, world_size, dtype), &params[p].master[i],
                        &params[p].m[i]);
        }
    }
}

static uint64_t plain_train(int world_size, sherd_dtype dtype)
{
    plain_param params[PARAMS];
    uint64_t    fingerprint;

    for (int p = 0; p < PARAMS; p++) {
        plain_param_init(&params[p], ELEMS[p]);
        CHECK_OK(rig_fill((void *)(uintptr_t)p, 0, ELEMS[p], params[p].master));
    }
    for (int step = 0; step < STEPS; step++) {
        plain_step(params, step, world_size, dtype);
    }
    fingerprint = plain_fingerprint(params, PARAMS);
    for (int p = 0; p < PARAMS; p++) {
        plain_param_fini(&params[p]);
    }
    return fingerprint;
}

/* The bytes of padding in front of a block's gradient: one norm reads all gradients of this rank
 * that lie together. */
static size_t norm_padding(const sherdi_plan *plan, size_t block, size_t elem)
{
    const sherdi_block *before = &plan->layout.blocks[block - 1];
    const sherdi_block *behind = &plan->layout.blocks[block];
    int is_together = plan->layout.has_slices || !plan->layout.is_sliced || plan->world_size == 1;

    return is_together && behind->grad_space == before->grad_space &&
                   behind->grad_space != SHERDI_SPACE_STORAGE
               ? behind->grad_offset - before->grad_offset - before->elems * elem
               : 0;
}

/* What is planned by the table: two parts, or one where the parameter is the master. */
static void bytes_check(const rig *r, const sherd_step_report *report)
{
    const sherdi_plan *plan   = r->engine->plan;
    size_t             elem   = sherd_dtype_bytes(r->dtype);
    uint64_t           update = 0, state = 0;

    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        const sherdi_block *block       = &plan->layout.blocks[b];
        int                 has_master  = plan->layout.segments[block->segment].has_master;
        int                 is_measured = plan->layout.segments[block->segment].is_staged &&
                          block->grad_space != SHERDI_SPACE_DEVICE;
        size_t stride = has_master ? block->stride_elems : 0;

        state += sherdi_round_up((stride + block->elems) * sizeof(float), SHERD_ALIGN_BYTES);
        /* the norm reads the gradient, unless it was measured where it was made; the sweep reads it
         * and both parts, writes them and the new value */
        update += block->elems *
                  ((is_measured ? 1 : 2) * elem + 4 * sizeof(float) + (has_master ? elem : 0));
        update += b == 0 || is_measured ? 0 : norm_padding(plan, b, elem);
    }
    CHECK_INT(update, sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_DEVICE] +
                          sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_HOST]);
    if (plan->rings[SHERDI_RING_STATE].num_extents > 0) {
        CHECK_INT(state, report->nvme_read_bytes);
        CHECK_INT(state + sherdi_plan_moves_of(plan)->index_bytes, report->nvme_written_bytes);
    } else {
        CHECK_INT(state, plan->packing.buffers[SHERDI_BUFFER_STATE].bytes +
                             plan->packing.buffers[SHERDI_BUFFER_HOST_STATE].bytes);
    }
}

static void rank_train(sherd_world *world, void *ctx)
{
    const rig_options  *options = ctx;
    sherd_memory_report memory;
    sherd_step_report   report;
    rig                 r;

    rig_open(&r, world, options);
    for (int p = 0; p < PARAMS; p++) {
        char name[8];

        (void)snprintf(name, sizeof(name), "p%d", p);
        (void)rig_param(&r, p == 1 ? 0 : rig_unit(&r, name), name, ELEMS[p]);
    }
    rig_seal(&r);
    for (int step = 0; step < STEPS; step++) {
        for (int u = 0; u < r.num_units; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        for (int u = r.num_units - 1; u >= 0; u--) {
            backward(&r, step, u);
        }
        report = rig_step(&r);
    }
    CHECK_INT(plain_train(sherd_world_size(world), options->dtype), rig_fingerprint(&r));
    bytes_check(&r, &report);
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT(memory.total_planned, memory.total_held);
    rig_close(&r);
}

static void added_optimizer_equals_unsharded(void)
{
    char keys[512];

    for (size_t i = 0; i < sizeof(ROWS) / sizeof(ROWS[0]); i++) {
        rig_options options = {.optimizer = "heavyball", .zero = keys};

        (void)snprintf(keys, sizeof(keys), ROWS[i].keys, test_scratch());
#ifndef SHERDI_HAVE_XXHASH
        if (ROWS[i].is_on_drive) {
            continue;
        }
#endif
        for (options.stage = ROWS[i].least_stage; options.stage <= 3; options.stage++) {
            for (int ranks = 1; ranks <= 3; ranks++) {
                options.dtype = (ranks + options.stage) % 2 == 0 ? SHERD_BF16 : SHERD_F32;
                test_world(ranks, rank_train, &options);
            }
        }
    }
}

/* It is in the list with the others, and its line is all that the configuration knows of it. */
static void added_optimizer_is_a_choice(void)
{
    static const char JSON[] = "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"SDG\"}}";
    sherd_config     *config;
    const char       *last = NULL;

    for (size_t i = 0; sherdi_optimizer_at(i) != NULL; i++) {
        last = sherdi_optimizer_name(sherdi_optimizer_at(i));
    }
    CHECK(strcmp(last, "HeavyBall") == 0);
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_config_parse(JSON, sizeof(JSON) - 1, &config));
    CHECK_ERROR_SAYS("known: AdamW|Adam|");
    CHECK_ERROR_SAYS("|none|HeavyBall");
}

/* What the plan and the update rely on without a look. */
static void optimizers_are_whole(void)
{
    for (size_t i = 0; sherdi_optimizer_at(i) != NULL; i++) {
        const sherdi_optimizer *optimizer = sherdi_optimizer_at(i);
        unsigned                all       = (1u << optimizer->num_parts) - 1;
        int                     has_norms = optimizer->grain == SHERDI_GRAIN_TENSOR;
        int                     is_whole  = optimizer->grain == SHERDI_GRAIN_MATRIX;

        CHECK_INT(i, sherdi_optimizer_index(optimizer));
        CHECK(optimizer->coeff_bytes > 0 && optimizer->coeffs != NULL);
        CHECK_INT(1 + has_norms + is_whole, optimizer->num_sweeps);
        CHECK_INT(has_norms, optimizer->num_norms > 0);
        CHECK_INT(has_norms, optimizer->ratios != NULL && optimizer->ratios->has_ratio != NULL &&
                                 optimizer->ratios->make != NULL);
        CHECK_INT(is_whole, optimizer->matrices != NULL && optimizer->matrices->make != NULL &&
                                optimizer->matrices->workspace_bytes != NULL &&
                                optimizer->matrix_flops != NULL);
        CHECK_INT(is_whole, optimizer->sweeps[0].writes_direction);
        CHECK_INT(is_whole, optimizer->sweeps[1].reads_direction);
        for (int s = 0; s < optimizer->num_sweeps; s++) {
            const sherdi_sweep *sweep   = &optimizer->sweeps[s];
            int                 is_last = s == optimizer->num_sweeps - 1;

            CHECK(sweep->run != NULL);
            CHECK_INT(is_last, sweep->writes_param);
            CHECK_INT(is_last, (sweep->writes & 1) != 0);
            CHECK_INT(0, (sweep->reads | sweep->writes) & ~all);
        }
    }
}

/* All tables that may have a state, those without a momentum among them. Returns their number. */
static size_t tables_with_state(const sherdi_optimizer *tables[MOST_TABLES])
{
    size_t count = 0;

    for (size_t i = 0; sherdi_optimizer_at(i) != NULL; i++) {
        const sherdi_optimizer *optimizer = sherdi_optimizer_at(i);
        const sherdi_optimizer *without   = optimizer->without_momentum;

        CHECK(count + 2 <= MOST_TABLES);
        if (!optimizer->is_inference) {
            tables[count++] = optimizer;
        }
        if (without != NULL && without != optimizer) {
            tables[count++] = without;
        }
    }
    return count;
}

/* Adam and AdamW share a tag: each can continue from the other's state. */
static void state_tags_are_not_taken(void)
{
    const sherdi_optimizer *tables[MOST_TABLES];
    size_t                  count = tables_with_state(tables);

    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (tables[k]->state_tag == tables[i]->state_tag && tables[i]->decoupled != tables[k] &&
                tables[k]->decoupled != tables[i]) {
                test_fail(__FILE__, __LINE__, "%s and %s have the same state_tag, %llu",
                          sherdi_optimizer_name(tables[k]), sherdi_optimizer_name(tables[i]),
                          (unsigned long long)tables[i]->state_tag);
            }
        }
    }
}

static void sign_check(const sherdi_optimizer *optimizer, int part, const float *values)
{
    for (size_t i = 0; i < SIGN_ELEMS; i++) {
        if (signbit(values[i])) {
            test_fail(__FILE__, __LINE__, "%s of %s is_never_negative, but becomes %g",
                      optimizer->parts[part].name, sherdi_optimizer_name(optimizer),
                      (double)values[i]);
        }
    }
}

/* An encoding may use the sign of a part that its table calls never negative, so no update may set
 * it. */
static void signs_check(const sherdi_optimizer *optimizer)
{
    static float                 parts[SHERDI_MOST_PARTS][SIGN_ELEMS];
    static float                 grad[SIGN_ELEMS];
    static unsigned char         coeffs[1024] __attribute__((aligned(8)));
    static const sherdi_settings settings;
    const sherdi_backend         lane = {
                .name = "cpu", .kernels = sherdi_kernels_cpu_find("scalar"), .threads = 1};
    const sherdi_span  span        = {.count_elems = SIGN_ELEMS};
    uint64_t           fingerprint = 0, seed = 1;
    sherdi_update_args args = {.spans       = &span,
                               .num_spans   = 1,
                               .coeffs      = coeffs,
                               .grad        = grad,
                               .grad_dtype  = SHERD_F32,
                               .fingerprint = &fingerprint};

    CHECK(optimizer->coeff_bytes <= sizeof(coeffs));
    memset(parts, 0, sizeof(parts));
    for (int part = 0; part < optimizer->num_parts; part++) {
        args.parts[part] = parts[part];
    }
    for (int64_t t = 1; t <= 4; t++) {
        const sherdi_group_step step = {.grad_scale = 1,
                                        .lr         = 0.01,
                                        .beta1      = 0.5,
                                        .beta2      = 0.5,
                                        .eps        = 1e-8,
                                        .decay      = 0.1,
                                        .bias1      = 1,
                                        .bias2      = 1,
                                        .step       = t};

        optimizer->coeffs(&settings, &step, coeffs);
        for (size_t i = 0; i < SIGN_ELEMS; i++) {
            grad[i] = test_random_float(&seed);
        }
        optimizer->sweeps[optimizer->num_sweeps - 1].run(&lane, &args, NULL);
        for (int part = 0; part < optimizer->num_parts; part++) {
            if (optimizer->parts[part].is_never_negative) {
                sign_check(optimizer, part, parts[part]);
            }
        }
    }
}

static void parts_that_are_never_negative_get_no_sign(void)
{
    const sherdi_optimizer *tables[MOST_TABLES];
    size_t                  count = tables_with_state(tables);

    for (size_t i = 0; i < count; i++) {
        if (tables[i]->grain != SHERDI_GRAIN_MATRIX) {
            signs_check(tables[i]);
        }
    }
}

static const test_case CASES[] = {
    CASE(optimizers_are_whole),
    CASE(state_tags_are_not_taken),
    CASE(parts_that_are_never_negative_get_no_sign),
    CASE(added_optimizer_equals_unsharded),
    CASE(added_optimizer_is_a_choice),
};

RUN_MAIN(CASES)
