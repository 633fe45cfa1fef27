/* Updates beside the trainer's calls: the same bits as updates that are waited for, on every tier, with every optimizer and whatever
 * calls come between. */
#include "engine/run/engine_impl.h"
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 4

typedef struct row {
    const char *name;
    const char *zero; /* %s is the folder */
    int         least_stage;
} row;

#define STATE(device, more)                                                                        \
    ", \"offload_optimizer\": {\"device\": \"" device                                              \
    "\", \"nvme_path\": \"%s\", \"durable\": false, \"buffer_size\": 4096" more "}"
#define PARAMS(device)                                                                             \
    ", \"offload_param\": {\"device\": \"" device                                                  \
    "\", \"nvme_path\": \"%s\", \"buffer_size\": 2048, \"max_in_cpu\": 0}"

static const row ROWS[] = {
    {"state cpu", STATE("cpu", ""), 1},
    {"state cpu, half", STATE("cpu", ", \"ratio\": 0.5"), 1},
    {"state and parameters cpu", STATE("cpu", "") PARAMS("cpu"), 3},
#ifdef SHERDI_HAVE_XXHASH
    {"state nvme", STATE("nvme", ""), 1},
    {"state nvme, one buffer", STATE("nvme", ", \"buffer_count\": 1"), 1},
    {"all nvme", STATE("nvme", ", \"gradients\": \"nvme\"") PARAMS("nvme"), 3},
#endif
};

#define NUM_ROWS (sizeof(ROWS) / sizeof(ROWS[0]))

/* How the steps of a run end. */
typedef enum way {
    WAY_WAITED,
    WAY_QUEUED,
    WAY_QUEUED_AND_WAITED,
    WAYS,
} way;

typedef struct run_case {
    rig_options options;
    way         way;
    uint64_t    fingerprint; /* result */
    double      sum;         /* of all parameters, as read in the last forward pass */
    int         was_beside;
} run_case;

static void step_end(rig *r, way way)
{
    if (way == WAY_WAITED) {
        CHECK_OK(sherd_step(r->engine, NULL));
    } else {
        CHECK_OK(sherd_step_queue(r->engine));
    }
    if (way == WAY_QUEUED_AND_WAITED) {
        CHECK_OK(sherd_step_wait(r->engine, NULL));
    }
    r->micro++;
}

static void run_steps(sherd_world *world, void *raw)
{
    run_case *run = raw;
    rig       r;
    uint64_t  fingerprint;
    double    sum = 0;

    rig_open(&r, world, &run->options);
    rig_three(&r, 3000);
    rig_seal(&r);
    for (int step = 0;
         step < STEPS * (run->options.accumulation == 0 ? 1 : run->options.accumulation); step++) {
        rig_micro_batch(&r);
        step_end(&r, run->way);
    }
    for (int u = 0; u < r.num_units; u++) {
        rig_acquire(&r, u, SHERD_EVAL);
        for (int p = 0; p < r.num_params; p++) {
            sum += r.params[p].unit == u ? rig_read(&r, p) : 0;
        }
        rig_release(&r, u, SHERD_EVAL);
    }
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        run->fingerprint = fingerprint;
        run->sum         = sum;
        run->was_beside  = sherdi_updater_is_there(&r.engine->updater);
    }
    rig_close(&r);
}

/* On devices of several ranks, parameters that are whole on every rank are gathered by calls that meet. */
static int is_beside(const rig_options *options, int world_size)
{
    return getenv("SHERD_BACKEND") == NULL || world_size == 1 || options->stage == 3;
}

static void ways_compare(run_case run, int world_size, const char *name)
{
    uint64_t wanted = 0;
    double   sum    = 0;

    for (int way = 0; way < WAYS; way++) {
        run.way = (enum way)way;
        test_world(world_size, run_steps, &run);
        if (way == 0) {
            wanted = run.fingerprint;
            sum    = run.sum;
        }
        CHECK_INT(is_beside(&run.options, world_size), run.was_beside);
        if (run.fingerprint != wanted || run.sum != sum) {
            test_fail(__FILE__, __LINE__,
                      "%s, stage %d, %d ranks, way %d: fingerprint %016llx and not %016llx, sum %g "
                      "and not %g",
                      name, run.options.stage, world_size, way, (unsigned long long)run.fingerprint,
                      (unsigned long long)wanted, run.sum, sum);
        }
    }
}

static void rows_compare(const rig_options *options)
{
    char zero[512];

    for (size_t i = 0; i < NUM_ROWS; i++) {
        run_case run = {.options = *options};

        (void)snprintf(zero, sizeof(zero), ROWS[i].zero, test_scratch(), test_scratch());
        run.options.zero = zero;
        for (int stage = ROWS[i].least_stage; stage <= 3; stage++) {
            for (int ranks = 1; ranks <= 3; ranks++) {
                if (ranks == 1 || toy_takes_ranks(ranks)) {
                    run.options.stage = stage;
                    ways_compare(run, ranks, ROWS[i].name);
                }
            }
        }
    }
}

static void queued_steps_give_the_same_bits(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_BF16, .clip = 1});
}

static void queued_steps_of_several_micro_batches(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_F32, .accumulation = 2});
}

static void norms_of_whole_tensors(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_BF16, .clip = 1, .optimizer = "Lamb"});
}

static void in_one_order_of_sums(void)
{
    rows_compare(
        &(rig_options){.dtype = SHERD_BF16, .accumulation = 2, .top = ", \"deterministic\": true"});
}

static void units_of_any_uses(void)
{
    rows_compare(&(rig_options){.dtype = SHERD_BF16, .backward_uses = SHERD_USES_ANY});
}

static const test_case CASES[] = {
    CASE(queued_steps_give_the_same_bits),
    CASE(queued_steps_of_several_micro_batches),
    CASE(norms_of_whole_tensors),
    CASE(in_one_order_of_sums),
    CASE(units_of_any_uses),
};

RUN_MAIN(CASES)
