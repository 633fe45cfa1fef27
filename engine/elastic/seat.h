/* What an engine has of one world: the world, the plan for it, and everything that is opened for
 * the plan. An engine that moves has two of them for a while, and its functions work on the one
 * that is in its object. */
#ifndef SHERDI_ENGINE_ELASTIC_SEAT_H
#define SHERDI_ENGINE_ELASTIC_SEAT_H

#include "engine/run/engine_impl.h"

typedef struct sherdi_seat {
    sherd_world          *world, *shards, *group;
    sherdi_backend       *backend;
    const sherdi_backend *host;
    sherdi_lanes          lanes;
    int                   rank, world_size;
    sherdi_batch_settings batch;
    sherdi_plan          *plan;
    sherdi_memory         memory;
    sherdi_reports        reports;
    sherdi_block_call     block_call;
    uint64_t             *param_hashes;
    sherdi_fill           fill;
    sherdi_values_call    values_call;
    sherdi_kernel_data    kernel_data;
    sherdi_exchange       exchange;
    sherdi_fingerprints   fingerprints;
    sherdi_storage        storage;
    sherdi_run            run;
    sherdi_updater        updater;
    sherdi_times          times;
    struct sherdi_watch  *watch;
    sherdi_window         window;
    sherdi_counters       counters;
    sherdi_sums           sums;
} sherdi_seat;

/** Takes the seat out of the engine, which has none then. Nothing of it may be at work. */
void sherdi_seat_take(sherd_engine *engine, sherdi_seat *out);
/** Puts a seat into an engine that has none. */
void sherdi_seat_put(sherd_engine *engine, const sherdi_seat *seat);
/** Gives an engine that has no seat one in a world, with nothing opened in it. A stream that the
 *  trainer gave `before` (may have no lane) is the new seat's too. E_NOTSUP: it is another
 *  device's. */
sherd_status sherdi_seat_open(sherd_engine *engine, sherd_world *world,
                              const sherdi_batch_settings *batch, const sherdi_seat *before);
/** Closes the engine's seat with all that is in it; the engine has none then. */
void sherdi_seat_close(sherd_engine *engine);

#endif
