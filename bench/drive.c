/* See drive.h. */
#include "bench/drive.h"

#include "base/clock.h"
#include "base/status.h"
#include "engine/run/store.h"
#include "engine/program/program_rings.h"
#include "engine/program/activations.h"

#include <stdio.h>
#include <string.h>

static sherd_status number_set(sherd_config *config, const char *key, size_t value)
{
    char json[32];

    (void)snprintf(json, sizeof(json), "%zu", value);
    return value > 0 ? sherd_config_set(config, key, json) : SHERD_OK;
}

sherd_status bench_drive_set(const bench_drive *drive, sherd_config *config)
{
    char engine[32];

    (void)snprintf(engine, sizeof(engine), "\"%s\"", drive->engine);
    SHERDI_TRY(sherd_config_set(config, "!aio.engine", engine));
    SHERDI_TRY(sherd_config_set(config, "!zero_optimization.offload_optimizer.fast_init", "true"));
    SHERDI_TRY(sherd_config_set(config, "!zero_optimization.offload_optimizer.durable",
                                drive->is_durable ? "true" : "false"));
    SHERDI_TRY(number_set(config, "!zero_optimization.offload_optimizer.buffer_size",
                          drive->buffer_elems));
    SHERDI_TRY(number_set(config, "!zero_optimization.offload_optimizer.buffer_count",
                          (size_t)drive->buffers));
    SHERDI_TRY(number_set(config, "!aio.block_size", drive->request_bytes));
    return number_set(config, "!aio.queue_depth", (size_t)drive->depth);
}

sherd_status bench_drive_run(sherd_engine *engine, double *seconds_out)
{
    sherdi_program *program  = &engine->run.program;
    size_t          extents  = engine->plan->rings[SHERDI_RING_STATE].num_extents;
    size_t          slots    = sherdi_ring_slots(engine->plan, SHERDI_RING_STATE);
    int64_t         start_ns = sherdi_now_ns();

    SHERDI_TRY(sherdi_rings_read_ahead(program));
    for (size_t e = 0; e < extents; e++) {
        SHERDI_TRY(sherdi_program_write(program, SHERDI_RING_STATE, e, e, -1));
        if (e + slots < extents) {
            SHERDI_TRY(sherdi_program_read(program, SHERDI_RING_STATE, e + slots, e + slots, -1));
        }
    }
    SHERDI_TRY(sherdi_run_settle(engine, SHERDI_RING_STATE));
    engine->storage.ops->note(engine, engine->counters.step, &engine->scaler, 0);
    SHERDI_TRY(engine->storage.ops->commit(engine, engine->fingerprints.own));
    *seconds_out = (double)(sherdi_now_ns() - start_ns) * 1e-9;
    /* the next step is reported separately */
    memset(engine->storage.store->drive.waits, 0, sizeof(engine->storage.store->drive.waits));
    return SHERD_OK;
}

sherd_status bench_activations_run(sherd_engine *engine, double *seconds_out)
{
    const sherdi_program  *program  = &engine->run.program;
    const sherdi_sequence *train    = &engine->plan->schedule.train;
    int64_t                start_ns = sherdi_now_ns();

    for (size_t p = 0; p < train->num_steps; p++) {
        const sherdi_step_of_pass *step = &train->steps[p];

        if (engine->plan->layout.units[step->unit].activation == SHERDI_NO_ACTIVATION) {
            continue;
        }
        SHERDI_TRY(step->pass == SHERD_FORWARD
                       ? sherdi_program_activation_put(program, step->unit)
                       : sherdi_program_activation_get(program, step->unit));
        SHERDI_TRY(sherdi_program_activation_release(program, step->unit, step->pass));
    }
    SHERDI_TRY(sherdi_run_settle(engine, SHERDI_RING_ACTIVATIONS));
    *seconds_out = (double)(sherdi_now_ns() - start_ns) * 1e-9;
    return SHERD_OK;
}
