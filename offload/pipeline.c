/* The ring of buffers between a tier and who computes. See pipeline.h.
 *
 * Extents are taken and given back in the order of the pass, so position p always uses buffer
 * p % buffer_count, and three positions say it all: given <= taken <= started <= given + buffer_count.
 * A buffer that was given back written stays busy until its write is over, which is looked at whenever
 * the user comes by; only when the user needs that very buffer it is waited for. An extent that is in
 * the ring already (an order may repeat) is not read again before it has left. */
#include "offload/pipeline.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>

typedef enum buffer_use {
    BUFFER_FREE = 0,
    BUFFER_READING, /* from start of its read until taken */
    BUFFER_TAKEN,
    BUFFER_WRITING,
} buffer_use;

typedef struct ring_buffer {
    sherdi_io  io;
    size_t     extent;
    buffer_use use;
} ring_buffer;

struct sherdi_pipeline {
    sherdi_pipeline_params params;
    ring_buffer           *ring; /* [buffer_count]; NULL on a memory tier */
    sherdi_pipeline_waits  waits;

    /* The pass */
    const uint32_t *order;
    size_t          count;
    size_t          given, taken, started;
    int             is_running;
    sherd_status    failure; /* of a transfer; then nothing is taken any more */
    int             is_told; /* ... and the user knows */
    char            sentence[SHERDI_ERROR_BYTES];
};

/* ---------------------------------------------------------------- failures -- */

/* The first one, and later ones only when the user knows of those before. */
static void failure_keep(sherdi_pipeline *pipe, sherd_status status)
{
    if (status != SHERD_OK && (pipe->failure == SHERD_OK || pipe->is_told)) {
        pipe->failure = status;
        pipe->is_told = 0;
        (void)snprintf(pipe->sentence, sizeof(pipe->sentence), "%s", sherd_last_error());
    }
}

static sherd_status failure_tell(sherdi_pipeline *pipe)
{
    if (pipe->failure == SHERD_OK || pipe->is_told) {
        return SHERD_OK;
    }
    pipe->is_told = 1;
    return sherdi_fail_relay(pipe->failure, pipe->sentence);
}

/* ----------------------------------------------------------------- buffers -- */

static size_t extent_at(const sherdi_pipeline *pipe, size_t position)
{
    return pipe->order != NULL ? pipe->order[position] : position;
}

static ring_buffer *buffer_at(sherdi_pipeline *pipe, size_t position)
{
    return &pipe->ring[position % (size_t)pipe->params.buffer_count];
}

static void *buffer_memory(const sherdi_pipeline *pipe, size_t position)
{
    return (unsigned char *)pipe->params.memory +
           position % (size_t)pipe->params.buffer_count * pipe->params.buffer_bytes;
}

/* The end of a transfer, whatever came of it. */
static void buffer_wait(sherdi_pipeline *pipe, ring_buffer *buffer, int64_t *waited_ns)
{
    sherdi_tier *tier     = pipe->params.tier;
    int64_t      start_ns = sherdi_now_ns();

    failure_keep(pipe, tier->ops->wait(tier, &buffer->io));
    *waited_ns += sherdi_now_ns() - start_ns;
}

/* Buffers whose writes are over become free. */
static void writes_collect(sherdi_pipeline *pipe)
{
    sherdi_tier *tier = pipe->params.tier;

    for (int i = 0; i < pipe->params.buffer_count; i++) {
        ring_buffer *buffer = &pipe->ring[i];

        if (buffer->use == BUFFER_WRITING && tier->ops->is_done(tier, &buffer->io)) {
            failure_keep(pipe, tier->ops->wait(tier, &buffer->io));
            buffer->use = BUFFER_FREE;
        }
    }
}

/* The buffer that holds the extent, in whatever use; NULL: none. */
static ring_buffer *buffer_with(sherdi_pipeline *pipe, size_t extent)
{
    for (int i = 0; i < pipe->params.buffer_count; i++) {
        if (pipe->ring[i].use != BUFFER_FREE && pipe->ring[i].extent == extent) {
            return &pipe->ring[i];
        }
    }
    return NULL;
}

static void read_begin(sherdi_pipeline *pipe)
{
    sherdi_tier *tier   = pipe->params.tier;
    ring_buffer *buffer = buffer_at(pipe, pipe->started);

    buffer->extent = extent_at(pipe, pipe->started);
    buffer->use    = BUFFER_READING;
    tier->ops->read_start(tier, buffer->extent, buffer_memory(pipe, pipe->started), &buffer->io);
    assert(buffer->io.len_bytes <= pipe->params.buffer_bytes);
    pipe->started++;
}

static int can_read_next(sherdi_pipeline *pipe)
{
    return pipe->started < pipe->count && pipe->failure == SHERD_OK &&
           buffer_at(pipe, pipe->started)->use == BUFFER_FREE &&
           buffer_with(pipe, extent_at(pipe, pipe->started)) == NULL;
}

/* As many reads as there is room for. */
static void reads_advance(sherdi_pipeline *pipe)
{
    writes_collect(pipe);
    while (pipe->params.is_read_ahead && can_read_next(pipe)) {
        read_begin(pipe);
    }
}

/* The next extent's read at last, when there was no room for it before. */
static sherd_status read_force(sherdi_pipeline *pipe)
{
    ring_buffer *buffer = buffer_at(pipe, pipe->started);
    ring_buffer *holder;

    if (buffer->use == BUFFER_TAKEN) {
        return sherdi_fail(SHERD_E_STATE, "all %d buffers are taken: give one back first",
                           pipe->params.buffer_count);
    }
    if (buffer->use == BUFFER_WRITING) {
        buffer_wait(pipe, buffer, &pipe->waits.write_ns);
        buffer->use = BUFFER_FREE;
    }
    holder = buffer_with(pipe, extent_at(pipe, pipe->started));
    if (holder != NULL && holder->use == BUFFER_TAKEN) {
        return sherdi_fail(SHERD_E_STATE, "extent %zu is taken already: give it back first",
                           holder->extent);
    }
    if (holder != NULL) {
        buffer_wait(pipe, holder, &pipe->waits.write_ns);
        holder->use = BUFFER_FREE;
    }
    read_begin(pipe);
    return SHERD_OK;
}

/* ------------------------------------------------------------------ public -- */

static sherd_status params_check(const sherdi_pipeline_params *params)
{
    if (params->buffer_count < 1) {
        return sherdi_fail(SHERD_E_INVAL, "a pipeline of %d buffers: at least 1 is needed",
                           params->buffer_count);
    }
    if (params->tier->ops->address == NULL &&
        (params->memory == NULL || params->buffer_bytes % SHERD_ALIGN_BYTES != 0 ||
         (uintptr_t)params->memory % SHERD_ALIGN_BYTES != 0)) {
        return sherdi_fail(SHERD_E_INVAL, "buffers of %zu bytes at %p: multiples of %d are needed",
                           params->buffer_bytes, params->memory, SHERD_ALIGN_BYTES);
    }
    return SHERD_OK;
}

sherd_status sherdi_pipeline_create(const sherdi_pipeline_params *params, sherdi_mem *mem,
                                    sherdi_pipeline **out)
{
    sherdi_pipeline *pipe;

    SHERDI_TRY(params_check(params));
    pipe = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*pipe));
    if (pipe == NULL) {
        return SHERD_E_NOMEM;
    }
    pipe->params = *params;
    if (params->tier->ops->address == NULL) {
        pipe->ring = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, (size_t)params->buffer_count,
                                        sizeof(*pipe->ring));
        if (pipe->ring == NULL) {
            sherdi_free(pipe);
            return SHERD_E_NOMEM;
        }
    }
    *out = pipe;
    return SHERD_OK;
}

void sherdi_pipeline_destroy(sherdi_pipeline *pipe)
{
    if (pipe == NULL) {
        return;
    }
    if (pipe->is_running) {
        (void)sherdi_pipeline_finish(pipe);
    }
    sherdi_free(pipe->ring);
    sherdi_free(pipe);
}

void sherdi_pipeline_start(sherdi_pipeline *pipe, const uint32_t *order, size_t count)
{
    assert(!pipe->is_running);
    pipe->order = order;
    pipe->count = count;
    pipe->given = pipe->taken = pipe->started = 0;
    pipe->is_running                          = 1;
    pipe->failure                             = SHERD_OK;
    pipe->is_told                             = 0;
    if (pipe->ring != NULL) {
        reads_advance(pipe);
    }
}

int sherdi_pipeline_is_running(const sherdi_pipeline *pipe)
{
    return pipe->is_running;
}

size_t sherdi_pipeline_position(const sherdi_pipeline *pipe)
{
    return pipe->taken;
}

/* Waits until the next extent lies in its buffer. */
static sherd_status take_read(sherdi_pipeline *pipe)
{
    reads_advance(pipe);
    if (pipe->started == pipe->taken && pipe->failure == SHERD_OK) {
        SHERDI_TRY(read_force(pipe));
    }
    if (pipe->failure == SHERD_OK) {
        buffer_wait(pipe, buffer_at(pipe, pipe->taken), &pipe->waits.read_ns);
        reads_advance(pipe);
    }
    return failure_tell(pipe);
}

sherd_status sherdi_pipeline_take(sherdi_pipeline *pipe, size_t *extent_out, void **memory_out)
{
    sherdi_tier *tier = pipe->params.tier;

    if (!pipe->is_running || pipe->taken == pipe->count) {
        return sherdi_fail(SHERD_E_STATE, "no extent is left to take");
    }
    if (pipe->failure != SHERD_OK && pipe->is_told) {
        return sherdi_fail_relay(pipe->failure, pipe->sentence);
    }
    if (pipe->ring == NULL) {
        *memory_out = tier->ops->address(tier, extent_at(pipe, pipe->taken));
    } else {
        SHERDI_TRY(take_read(pipe));
        buffer_at(pipe, pipe->taken)->use = BUFFER_TAKEN;
        *memory_out                       = buffer_memory(pipe, pipe->taken);
    }
    *extent_out = extent_at(pipe, pipe->taken);
    pipe->taken++;
    return SHERD_OK;
}

static sherd_status give_buffer(sherdi_pipeline *pipe, int is_written)
{
    sherdi_tier *tier   = pipe->params.tier;
    ring_buffer *buffer = buffer_at(pipe, pipe->given);

    buffer->use = BUFFER_FREE;
    if (is_written) {
        buffer->use = BUFFER_WRITING;
        tier->ops->write_start(tier, buffer->extent, buffer_memory(pipe, pipe->given), &buffer->io);
        if (!pipe->params.is_write_behind) {
            buffer_wait(pipe, buffer, &pipe->waits.write_ns);
            buffer->use = BUFFER_FREE;
        }
    }
    pipe->given++;
    reads_advance(pipe);
    return failure_tell(pipe);
}

sherd_status sherdi_pipeline_give(sherdi_pipeline *pipe, int is_written)
{
    if (!pipe->is_running || pipe->given == pipe->taken) {
        return sherdi_fail(SHERD_E_STATE, "no extent is taken that could be given back");
    }
    if (pipe->ring == NULL) {
        pipe->given++;
        return SHERD_OK;
    }
    return give_buffer(pipe, is_written);
}

sherd_status sherdi_pipeline_finish(sherdi_pipeline *pipe)
{
    if (!pipe->is_running) {
        return sherdi_fail(SHERD_E_STATE, "the pipeline is not running");
    }
    for (int i = 0; pipe->ring != NULL && i < pipe->params.buffer_count; i++) {
        ring_buffer *buffer = &pipe->ring[i];

        if (buffer->use == BUFFER_READING) {
            buffer_wait(pipe, buffer, &pipe->waits.read_ns);
        } else if (buffer->use == BUFFER_WRITING) {
            buffer_wait(pipe, buffer, &pipe->waits.write_ns);
        }
        buffer->use = BUFFER_FREE;
    }
    pipe->is_running = 0;
    return failure_tell(pipe);
}

sherdi_pipeline_waits sherdi_pipeline_waits_take(sherdi_pipeline *pipe)
{
    sherdi_pipeline_waits waits = pipe->waits;

    pipe->waits = (sherdi_pipeline_waits){0};
    return waits;
}
