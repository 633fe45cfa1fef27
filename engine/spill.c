/* Gradients of offloaded state: a slice is reduced into the landing on the device and goes down to where
 * its blocks rest; the update brings it back. What stays on the device of a divided slice is copied there. */
#include "engine/engine_impl.h"

/* ---------------------------------------------------- to where it comes to rest -- */

/* Adds to, or begins, an accumulator in memory. `part` is in the communication type. */
static void part_add(sherd_engine *engine, void *sum, const void *part, size_t elems, int is_first)
{
    const sherdi_kernel_ops *kernels = engine->backend->kernels;
    sherd_dtype              comm    = engine->settings.comm_dtype;

    if (is_first) {
        kernels->cast(engine->backend, sum, engine->plan->grad_dtype, part, comm, elems);
    } else {
        kernels->accumulate(engine->backend, sum, engine->plan->grad_dtype, part, comm, elems);
    }
}

static void part_to_host(sherd_engine *engine, void *sum, const unsigned char *part, size_t elems,
                         int is_first)
{
    size_t         len    = elems * sherd_dtype_bytes(engine->settings.comm_dtype);
    unsigned char *bridge = engine->buffers[SHERDI_BUFFER_BRIDGE];

    if (!engine->plan->has_accumulator) { /* in its own type: nothing but the copy */
        sherdi_link_down(engine, sum, part, len);
        return;
    }
    sherdi_link_down(engine, bridge, part, len);
    part_add(engine, sum, bridge, elems, is_first);
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
    part_to_host(engine, memory, part, elems, is_first);
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
    SHERDI_TRY(sherdi_world_wait(engine->world, landing->ticket));
    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block  *block = &engine->plan->blocks[segment->first_block + b];
        const unsigned char *part  = slice + block->offset_elems * elem;

        if (block->grad_place == SHERDI_PLACE_NVME) {
            SHERDI_TRY(
                part_to_nvme(engine, block->grad_offset, part, block->elems, landing->is_first));
        } else if (block->grad_place == SHERDI_PLACE_HOST) {
            part_to_host(engine, resting_place(engine, block), part, block->elems,
                         landing->is_first);
        } else {
            part_add(engine, resting_place(engine, block), part, block->elems, landing->is_first);
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_landing_open(sherd_engine *engine, const sherdi_segment *segment, int is_first,
                                 unsigned char **memory_out, sherdi_ticket **ticket_out)
{
    sherdi_store   *store   = &engine->store;
    int             slot    = store->landing_next;
    sherdi_landing *landing = &store->landings[slot];

    SHERDI_TRY(landing_drain(engine, landing));
    store->landing_next = (slot + 1) % engine->plan->num_landings;
    *landing =
        (sherdi_landing){.segment = (int)(segment - engine->plan->segments), .is_first = is_first};
    *memory_out =
        engine->buffers[SHERDI_BUFFER_LANDING] + (size_t)slot * engine->plan->landing_bytes;
    *ticket_out = &landing->ticket;
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
        const sherdi_block *block  = &engine->plan->blocks[segment->first_block + b];
        void               *memory = NULL;

        if (block->grad_place != SHERDI_PLACE_NVME) {
            engine->backend->kernels->zero(engine->backend, resting_place(engine, block),
                                           block->elems * elem);
            continue;
        }
        SHERDI_TRY(sherdi_writer_begin(&engine->store.grad_writer, &memory));
        engine->backend->kernels->zero(engine->backend, memory, block->elems * elem);
        sherdi_writer_put(&engine->store.grad_writer, block->grad_offset);
    }
    return SHERD_OK;
}

/* --------------------------------------------------------- and back again -- */

sherd_status sherdi_spill_start(sherd_engine *engine)
{
    if (engine->store.grads == NULL) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_writer_wait(&engine->store.grad_writer));
    sherdi_pipeline_start(engine->store.grad_pipe, NULL, engine->plan->num_grad_extents);
    return SHERD_OK;
}

sherd_status sherdi_spill_take(sherd_engine *engine, const sherdi_block *block,
                               const void **gradient_out)
{
    size_t extent;
    void  *memory;

    if (block->grad_place != SHERDI_PLACE_NVME) {
        *gradient_out = resting_place(engine, block);
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_pipeline_take(engine->store.grad_pipe, &extent, &memory));
    *gradient_out = memory;
    return SHERD_OK;
}

sherd_status sherdi_spill_give(sherd_engine *engine, const sherdi_block *block)
{
    return block->grad_place == SHERDI_PLACE_NVME ? sherdi_pipeline_give(engine->store.grad_pipe, 0)
                                                  : SHERD_OK;
}

sherd_status sherdi_spill_finish(sherd_engine *engine)
{
    if (engine->store.grad_pipe == NULL || !sherdi_pipeline_is_running(engine->store.grad_pipe)) {
        return SHERD_OK;
    }
    return sherdi_pipeline_finish(engine->store.grad_pipe);
}
