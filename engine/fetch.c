/* Parameters that rest elsewhere than on the device: a gather brings this rank's slice up, the update
 * writes new values back. On NVMe slices are read piece by piece through a ring, ahead in the order of
 * the planned gathers; a gather off the plan reads for itself and the plan goes on behind it. */
#include "engine/engine_impl.h"

#include "base/clock.h"

#include <stdio.h>

static int is_running(const sherdi_store *store)
{
    return store->param_pipe != NULL && sherdi_pipeline_is_running(store->param_pipe);
}

/* The fetches of a kind of pass: pieces in the order of its gathers. */
static const uint32_t *fetches_of(const sherd_engine *engine, sherd_pass pass, size_t *count_out)
{
    if (pass == SHERD_EVAL) {
        *count_out = engine->plan->num_eval_fetches;
        return engine->plan->fetches + engine->plan->num_train_fetches;
    }
    *count_out = engine->plan->num_train_fetches;
    return engine->plan->fetches;
}

static sherd_status fetch_start(sherd_engine *engine, const uint32_t *order, size_t count)
{
    SHERDI_TRY(sherdi_fetch_stop(engine));
    sherdi_pipeline_start(engine->store.param_pipe, order, count);
    engine->store.reading     = order;
    engine->store.reading_len = count;
    return SHERD_OK;
}

/* Makes `piece` the one that the pipeline gives next. */
static sherd_status fetch_aim(sherd_engine *engine, const sherdi_segment *segment, sherd_pass pass,
                              size_t piece)
{
    sherdi_store   *store = &engine->store;
    const uint32_t *order;
    size_t         *next = pass == SHERD_EVAL ? &store->eval_next : &store->train_next;
    size_t          count;

    if (is_running(store) && sherdi_pipeline_position(store->param_pipe) < store->reading_len &&
        store->reading[sherdi_pipeline_position(store->param_pipe)] == piece) {
        return SHERD_OK;
    }
    order = fetches_of(engine, pass, &count);
    for (size_t i = 0; i < count; i++) {
        size_t at = (*next + i) % count;

        if (order[at] == piece) {
            *next = at + 1;
            return fetch_start(engine, order + at, count - at);
        }
    }
    /* a unit that the pass does not list */
    order = store->identity + piece;
    count = segment->first_piece + segment->num_pieces - piece;
    return fetch_start(engine, order, count);
}

static sherd_status piece_fetch(sherd_engine *engine, const sherdi_segment *segment,
                                sherd_pass pass, size_t piece, unsigned char *dst)
{
    sherdi_store *store = &engine->store;
    size_t        elem  = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t        extent;
    void         *memory;

    SHERDI_TRY(fetch_aim(engine, segment, pass, piece));
    SHERDI_TRY(sherdi_pipeline_take(store->param_pipe, &extent, &memory));
    sherdi_link_up(engine, dst + engine->plan->pieces[piece].offset_elems * elem, memory,
                   engine->plan->pieces[piece].elems * elem);
    SHERDI_TRY(sherdi_lane_wait(engine->lanes.up)); /* the buffer is read into again */
    return sherdi_pipeline_give(store->param_pipe, 0);
}

static sherd_status slice_read(sherd_engine *engine, const sherdi_segment *segment, sherd_pass pass,
                               unsigned char *dst)
{
    for (size_t p = 0; p < segment->num_pieces; p++) {
        SHERDI_TRY(piece_fetch(engine, segment, pass, segment->first_piece + p, dst));
    }
    return SHERD_OK;
}

/* The pass of reads is over; another acquire begins a new one. */
static sherd_status fetch_fail(sherd_engine *engine, sherd_status status)
{
    char text[SHERDI_ERROR_BYTES];

    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    (void)sherdi_fetch_stop(engine);
    if (status == SHERD_E_IO && engine->world_size > 1) {
        sherd_world_abort(engine->world,
                          text); /* the others would wait for this rank in the gather */
    }
    return sherdi_fail_relay(status, text);
}

sherd_status sherdi_fetch_slice(sherd_engine *engine, const sherdi_segment *segment,
                                sherd_pass pass, unsigned char *dst)
{
    size_t       len = segment->slice_elems * sherd_dtype_bytes(engine->settings.compute_dtype);
    int64_t      start;
    sherd_status status;

    if (segment->param_place == SHERDI_PLACE_HOST) {
        sherdi_link_up(engine, dst,
                       engine->buffers[SHERDI_BUFFER_HOST_PARAMS] + segment->param_offset, len);
        return SHERD_OK;
    }
    start  = sherdi_now_ns();
    status = slice_read(engine, segment, pass, dst);
    engine->store.times.param_ns += sherdi_now_ns() - start;
    return status == SHERD_OK ? SHERD_OK : fetch_fail(engine, status);
}

void sherdi_fetch_rewind(sherd_engine *engine)
{
    size_t          count;
    const uint32_t *order = fetches_of(engine, SHERD_FORWARD, &count);

    if (engine->store.param_pipe == NULL || count == 0) {
        return;
    }
    if (is_running(&engine->store) && engine->store.reading == order &&
        sherdi_pipeline_position(engine->store.param_pipe) == 0) {
        return;
    }
    engine->store.train_next = 0;
    (void)fetch_start(engine, order, count); /* a failed read shows when it is taken again */
}

sherd_status sherdi_fetch_stop(sherd_engine *engine)
{
    return is_running(&engine->store) ? sherdi_pipeline_finish(engine->store.param_pipe) : SHERD_OK;
}
