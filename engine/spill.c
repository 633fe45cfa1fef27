/* Gradients of offloaded state: a slice is reduced into the landing on the device and goes down to where
 * its blocks rest; the update brings it back. What stays on the device of a divided slice is copied there. */
#include "engine/engine_impl.h"

/* ---------------------------------------------------- to where it comes to rest -- */

/* Adds to, or begins, an accumulator in memory. `part` is in the communication type. */
static void part_add(sherd_engine *engine, const sherdi_backend *lane, void *sum, const void *part,
                     size_t elems, int is_first)
{
    const sherdi_kernel_ops *kernels = lane->kernels;
    sherd_dtype              comm    = engine->settings.comm_dtype;

    if (is_first) {
        kernels->cast(lane, sum, engine->plan->grad_dtype, part, comm, elems);
    } else {
        kernels->accumulate(lane, sum, engine->plan->grad_dtype, part, comm, elems);
    }
}

/* Without an accumulator nothing but the copy, in its own type, which the host does not wait for. */
static sherd_status part_to_host(sherd_engine *engine, void *sum, const unsigned char *part,
                                 size_t elems, int is_first)
{
    size_t         len    = elems * sherd_dtype_bytes(engine->settings.comm_dtype);
    unsigned char *bridge = engine->buffers[SHERDI_BUFFER_BRIDGE];

    if (!engine->plan->has_accumulator) {
        sherdi_link_down(engine, sum, part, len);
        return SHERD_OK;
    }
    sherdi_link_down(engine, bridge, part, len);
    SHERDI_TRY(sherdi_lane_wait(engine->lanes.down));
    part_add(engine, engine->host, sum, bridge, elems, is_first);
    return SHERD_OK;
}

/* What an earlier micro-batch has spilled, where it can be added to. */
static sherd_status spilled_read(sherd_engine *engine, size_t extent, void *memory)
{
    sherdi_store *store = &engine->store;
    sherdi_io     io    = {0};

    SHERDI_TRY(sherdi_writer_wait_for(&store->grad_writer, extent));
    store->grads->ops->read_start(store->grads, extent, memory, &io);
    return store->grads->ops->wait(store->grads, &io);
}

static sherd_status part_to_nvme(sherd_engine *engine, size_t extent, const unsigned char *part,
                                 size_t elems, int is_first)
{
    sherdi_writer *writer = &engine->store.grad_writer;
    void          *memory;

    SHERDI_TRY(sherdi_writer_begin(writer, &memory));
    if (!is_first) {
        SHERDI_TRY(spilled_read(engine, extent, memory));
    }
    SHERDI_TRY(part_to_host(engine, memory, part, elems, is_first));
    SHERDI_TRY(sherdi_lane_wait(engine->lanes.down));
    sherdi_writer_put(writer, extent);
    return SHERD_OK;
}

static unsigned char *resting_place(const sherd_engine *engine, const sherdi_block *block)
{
    int buffer =
        block->grad_place == SHERDI_PLACE_HOST ? SHERDI_BUFFER_HOST_GRADS : SHERDI_BUFFER_GRADS;

    return engine->buffers[buffer] + block->grad_offset;
}

static sherd_status landing_drain(sherd_engine *engine, sherdi_landing *landing)
{
    const sherdi_segment *segment;
    const unsigned char  *slice;
    size_t                elem = sherd_dtype_bytes(engine->settings.comm_dtype);

    if (landing->segment < 0) {
        return SHERD_OK;
    }
    segment          = &engine->plan->segments[landing->segment];
    landing->segment = -1;
    slice            = engine->buffers[SHERDI_BUFFER_LANDING] +
            (size_t)(landing - engine->store.landings) * engine->plan->landing_bytes;
    SHERDI_TRY(sherdi_world_follow(engine->world, engine->lanes.down, landing->ticket));
    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block  *block = &engine->plan->blocks[segment->first_block + b];
        const unsigned char *part  = slice + block->offset_elems * elem;

        if (block->grad_place == SHERDI_PLACE_STORAGE) {
            SHERDI_TRY(
                part_to_nvme(engine, block->grad_offset, part, block->elems, landing->is_first));
        } else if (block->grad_place == SHERDI_PLACE_HOST) {
            SHERDI_TRY(part_to_host(engine, resting_place(engine, block), part, block->elems,
                                    landing->is_first));
        } else {
            part_add(engine, engine->lanes.down, resting_place(engine, block), part, block->elems,
                     landing->is_first);
        }
    }
    engine->lanes.down->device->event_record(engine->drained[landing - engine->store.landings],
                                             engine->lanes.down);
    return SHERD_OK;
}

/* Whether the way from a landing needs the host: then it waits until the slot is wanted again, so that
 * what the ranks reduce meanwhile is not held up. */
static int drain_needs_host(const sherd_engine *engine)
{
    return !sherdi_has_device(engine) || engine->plan->has_accumulator ||
           engine->plan->num_grad_extents > 0;
}

sherd_status sherdi_landing_leave(sherd_engine *engine, sherdi_landing *landing)
{
    return drain_needs_host(engine) ? SHERD_OK : landing_drain(engine, landing);
}

sherd_status sherdi_landing_open(sherd_engine *engine, const sherdi_segment *segment, int is_first,
                                 unsigned char **memory_out, sherdi_landing **landing_out)
{
    const sherdi_backend *collectives = sherdi_world_backend(engine->world);
    sherdi_store         *store       = &engine->store;
    int                   slot        = store->landing_next;
    sherdi_landing       *landing     = &store->landings[slot];

    SHERDI_TRY(landing_drain(engine, landing));
    store->landing_next = (slot + 1) % engine->plan->num_landings;
    collectives->device->lane_follow_event(collectives,
                                           engine->drained[landing - engine->store.landings]);
    landing->segment  = (int)(segment - engine->plan->segments);
    landing->is_first = is_first;
    landing->ticket   = 0;
    *memory_out =
        engine->buffers[SHERDI_BUFFER_LANDING] + (size_t)slot * engine->plan->landing_bytes;
    *landing_out = landing;
    return SHERD_OK;
}

sherd_status sherdi_landings_drain(sherd_engine *engine)
{
    sherd_status status = SHERD_OK;

    for (int i = 0; i < engine->plan->num_landings; i++) { /* the older one first */
        int          slot = (engine->store.landing_next + i) % engine->plan->num_landings;
        sherd_status own  = landing_drain(engine, &engine->store.landings[slot]);

        status = status == SHERD_OK ? own : status;
    }
    return status;
}

sherd_status sherdi_spill_zero(sherd_engine *engine, const sherdi_segment *segment)
{
    size_t elem = sherdi_plan_grad_bytes(engine->plan);

    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block   *block  = &engine->plan->blocks[segment->first_block + b];
        void                 *memory = NULL;
        const sherdi_backend *lane   = sherdi_place_lane(engine, block->grad_place);

        if (block->grad_place != SHERDI_PLACE_STORAGE) {
            lane->kernels->zero(lane, resting_place(engine, block), block->elems * elem);
            continue;
        }
        SHERDI_TRY(sherdi_writer_begin(&engine->store.grad_writer, &memory));
        engine->host->kernels->zero(engine->host, memory, block->elems * elem);
        sherdi_writer_put(&engine->store.grad_writer, block->grad_offset);
    }
    return SHERD_OK;
}

sherd_status sherdi_spill_settle(sherd_engine *engine)
{
    return engine->store.grads == NULL ? SHERD_OK : sherdi_writer_wait(&engine->store.grad_writer);
}
