/* What an engine has of one world: the world, the plan for it, and everything that is opened for
 * the plan. An engine that moves has two of them for a while, and its functions work on the one
 * that is in its object. */
#ifndef SHERDI_ENGINE_ELASTIC_SEAT_H
#define SHERDI_ENGINE_ELASTIC_SEAT_H

#include "engine/run/engine_impl.h"

/* Members of the engine's object that are of one world. */
#define SHERDI_SEAT_MEMBERS(X)                                                                     \
    X(world)                                                                                       \
    X(shards)                                                                                      \
    X(group)                                                                                       \
    X(backend)                                                                                     \
    X(host)                                                                                        \
    X(lanes)                                                                                       \
    X(rank)                                                                                        \
    X(world_size)                                                                                  \
    X(plan)                                                                                        \
    X(memory)                                                                                      \
    X(reports)                                                                                     \
    X(block_call)                                                                                  \
    X(param_hashes)                                                                                \
    X(fill)                                                                                        \
    X(values_call)                                                                                 \
    X(kernel_data)                                                                                 \
    X(exchange)                                                                                    \
    X(fingerprints)                                                                                \
    X(storage)                                                                                     \
    X(run)                                                                                         \
    X(updater)                                                                                     \
    X(times)                                                                                       \
    X(watch)                                                                                       \
    X(window)                                                                                      \
    X(counters)                                                                                    \
    X(sums)

typedef struct sherdi_seat {
#define X(member) __typeof__(((sherd_engine *)0)->member) member;
    SHERDI_SEAT_MEMBERS(X)
#undef X
    sherdi_batch_settings batch; /* of the engine's settings */
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
