/* See blocks.h. A part may be encoded, and may lie in a device's memory. */
#include "engine/run/blocks.h"

#include "base/checked.h"
#include "engine/run/encoded.h"
#include "engine/run/failure.h"

#include <string.h>

/* The address of an element of a part of a block; the master may be the parameter itself. */
static unsigned char *block_part(const sherd_engine *engine, const sherdi_op *op, int part,
                                 size_t offset_elems)
{
    int            has_master = engine->plan->layout.segments[op->segment].has_master;
    unsigned char *base       = sherdi_run_address(
              engine, op, part == 0 && !has_master ? SHERDI_USE_PARAM : SHERDI_USE_STATE);

    return base + sherdi_plan_part_offset(engine->plan, op->block, part, offset_elems);
}

/* Returns the fill buffer, which a device's kernels reach, and sets *some to as many elements as
 * fit: whole chunks, where more than a chunk fits. */
static float *values_reached(const sherd_engine *engine, size_t left, size_t *some)
{
    size_t room = engine->plan->packing.fill_elems;

    room  = room < SHERD_CHUNK_ELEMS ? room : room / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;
    *some = sherdi_min_size(left, room);
    return (float *)(void *)engine->memory.buffers[SHERDI_BUFFER_FILL];
}

static int is_apart(const sherd_engine *engine, sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE && engine->backend->device->is_async;
}

static sherd_status encoded_get(sherd_engine *engine, const sherdi_op *op, int part, size_t first,
                                size_t count, float *out)
{
    sherdi_encoded        encoded = sherdi_run_encoded_part(engine, op, part);
    const sherdi_backend *lane    = engine->backend;

    if (!is_apart(engine, op->space)) {
        engine->host->kernels->decode(engine->host, out, &encoded, first, count);
        return SHERD_OK;
    }
    for (size_t done = 0, some; done < count; done += some) {
        float *values = values_reached(engine, count - done, &some);

        lane->kernels->decode(lane, values, &encoded, first + done, some);
        SHERDI_TRY(sherdi_lane_wait(lane));
        memcpy(out + done, values, some * sizeof(*values));
    }
    return SHERD_OK;
}

/* A failure of the device is returned by the next wait. */
static void encoded_put(sherd_engine *engine, const sherdi_op *op, int part, size_t first,
                        size_t count, const float *values)
{
    sherdi_encoded        encoded = sherdi_run_encoded_part(engine, op, part);
    const sherdi_backend *lane    = engine->backend;

    if (!is_apart(engine, op->space)) {
        engine->host->kernels->encode(engine->host, &encoded, first, values, count);
        return;
    }
    for (size_t done = 0, some; done < count; done += some) {
        float *to = values_reached(engine, count - done, &some);

        (void)sherdi_lane_wait(lane); /* the device may still read the buffer */
        memcpy(to, values + done, some * sizeof(*values));
        lane->kernels->encode(lane, &encoded, first + done, to, some);
    }
}

static const sherdi_backend *space_lane(const sherd_engine *engine, sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE ? engine->backend : engine->host;
}

sherd_status sherdi_run_block_get(sherd_engine *engine, const sherdi_op *op, int part,
                                  size_t offset_elems, size_t count, float *out)
{
    const sherdi_backend *lane = space_lane(engine, op->space);

    if (sherdi_segment_part_is_encoded(&engine->plan->layout.segments[op->segment], part)) {
        return encoded_get(engine, op, part, offset_elems, count, out);
    }
    lane->kernels->copy(lane, out, block_part(engine, op, part, offset_elems),
                        count * sizeof(*out));
    return sherdi_lane_wait(lane);
}

void sherdi_run_block_put(sherd_engine *engine, const sherdi_op *op, int part, size_t offset_elems,
                          size_t count, const float *values)
{
    const sherdi_backend *lane = space_lane(engine, op->space);

    if (sherdi_segment_part_is_encoded(&engine->plan->layout.segments[op->segment], part)) {
        encoded_put(engine, op, part, offset_elems, count, values);
        return;
    }
    lane->kernels->copy(lane, block_part(engine, op, part, offset_elems), values,
                        count * sizeof(*values));
}

void sherdi_engine_progress(sherd_engine *engine, const char *call, sherd_progress_fn progress,
                            void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    if (progress != NULL) {
        sherdi_engine_callback_begin(engine, call);
        progress(ctx, done_bytes, all_bytes);
        sherdi_engine_callback_end(engine);
    }
}
