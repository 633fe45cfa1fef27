/* First values: what a trainer's fill function gives, to every place where this rank holds
 * a part of the parameter; and the fingerprints that are recomputed from the state. */
#include "engine/engine_impl.h"

#include "base/checked.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

#define FILL_ELEMS 2048

/* A stretch of a parameter: elements [first, first + count) with their values. */
typedef struct stretch {
    const sherdi_segment     *segment;
    const sherdi_model_param *param;
    size_t                    at; /* of the first element, in the segment's whole */
    size_t                    count;
    const float              *values;
} stretch;

/* Writes the part of the stretch that lies in this rank's blocks to the master weights. */
static sherd_status stretch_to_master(sherd_engine *engine, const stretch *part, uint64_t *share)
{
    const sherdi_segment *segment = part->segment;
    size_t                first;
    size_t start_of_param = engine->plan->params[part->param - engine->model.params].offset_elems;

    (void)sherdi_plan_owned(engine->plan, segment, &first);
    for (size_t b = 0; b < segment->num_blocks && segment->has_master; b++) {
        const sherdi_block *block = &engine->plan->blocks[segment->first_block + b];
        size_t              start = sherdi_max_size(part->at, first + block->offset_elems);
        size_t              end =
            sherdi_min_size(part->at + part->count, first + block->offset_elems + block->elems);

        if (start < end) {
            float *state;

            SHERDI_TRY(sherdi_store_look(engine, block, 1, &state));
            sherdi_place_put(engine, block->place,
                             sherdi_block_parts(engine, block, state).master +
                                 (start - first - block->offset_elems),
                             part->values + (start - part->at), (end - start) * sizeof(float));
        }
        for (size_t at = start; at < end && engine->settings.fast_init; at++) {
            *share += sherdi_mix_element(part->param->first_index + (at - start_of_param),
                                         part->values[at - part->at]);
        }
    }
    return SHERD_OK;
}

/* ... of the slice, elements [start, end) of it, to the pieces on NVMe. */
static sherd_status stretch_to_pieces(sherd_engine *engine, const stretch *part, size_t start,
                                      size_t end)
{
    const sherdi_segment *segment = part->segment;
    sherd_dtype           dtype   = engine->settings.compute_dtype;
    size_t                slice   = (size_t)engine->rank * segment->slice_elems;

    for (size_t p = 0; p < segment->num_pieces; p++) {
        const sherdi_piece *piece = &engine->plan->pieces[segment->first_piece + p];
        size_t              from  = sherdi_max_size(start, piece->offset_elems);
        size_t              to    = sherdi_min_size(end, piece->offset_elems + piece->elems);
        void               *memory;

        if (from >= to) {
            continue;
        }
        SHERDI_TRY(
            sherdi_window_open(&engine->store.param_window, segment->first_piece + p, 1, &memory));
        engine->host->kernels->cast(
            engine->host,
            (unsigned char *)memory + (from - piece->offset_elems) * sherd_dtype_bytes(dtype),
            dtype, part->values + (slice + from - part->at), SHERD_F32, to - from);
    }
    return SHERD_OK;
}

/* Values in the compute type, at most FILL_ELEMS, to memory of a place. */
static void values_put(sherd_engine *engine, sherdi_place place, void *dst, const float *values,
                       size_t count)
{
    sherd_dtype dtype = engine->settings.compute_dtype;
    float       cast[FILL_ELEMS];

    engine->host->kernels->cast(engine->host, cast, dtype, values, SHERD_F32, count);
    sherdi_place_put(engine, place, dst, cast, count * sherd_dtype_bytes(dtype));
}

/* ... and back. */
static sherd_status values_get(sherd_engine *engine, sherdi_place place, float *values,
                               const void *src, size_t count)
{
    sherd_dtype dtype = engine->settings.compute_dtype;
    float       cast[FILL_ELEMS];

    SHERDI_TRY(sherdi_place_get(engine, place, cast, src, count * sherd_dtype_bytes(dtype)));
    engine->host->kernels->cast(engine->host, values, SHERD_F32, cast, dtype, count);
    return SHERD_OK;
}

/* What is resident, or this rank's slice, in the memory of its place. */
static unsigned char *slice_memory(const sherd_engine *engine, const sherdi_segment *segment)
{
    int buffer = segment->param_place == SHERDI_PLACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                           : SHERDI_BUFFER_PARAMS;

    return engine->buffers[buffer] + segment->param_offset;
}

/* Writes the stretch, or the part of it in this rank's slice, in the compute type. */
static sherd_status stretch_to_param(sherd_engine *engine, const stretch *part)
{
    const sherdi_segment *segment = part->segment;
    size_t                elem    = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t                first   = 0;
    size_t                owned   = segment->padded_elems;
    size_t                start;
    size_t                end;

    if (segment->is_bound) {
        unsigned char *data = part->param->bound_data;
        size_t         at =
            part->at - engine->plan->params[part->param - engine->model.params].offset_elems;

        values_put(engine, SHERDI_PLACE_DEVICE, data + at * elem, part->values, part->count);
        return SHERD_OK;
    }
    if (!segment->is_resident) {
        first = (size_t)engine->rank * segment->slice_elems;
        owned = segment->slice_elems;
    }
    start = sherdi_max_size(part->at, first);
    end   = sherdi_min_size(part->at + part->count, first + owned);
    if (start >= end) {
        return SHERD_OK;
    }
    if (segment->param_place == SHERDI_PLACE_NVME) {
        return stretch_to_pieces(engine, part, start - first, end - first);
    }
    values_put(engine, segment->param_place, slice_memory(engine, segment) + (start - first) * elem,
               part->values + (start - part->at), end - start);
    return SHERD_OK;
}

/* The elements of a parameter that this rank holds in any form. */
static void held_range(const sherd_engine *engine, const sherdi_segment *segment,
                       const sherdi_plan_param *place, size_t elems, size_t *begin, size_t *end)
{
    size_t first = (size_t)engine->rank * segment->slice_elems;

    *begin = 0;
    *end   = elems;
    if (!segment->is_resident) {
        *begin = place->offset_elems < first ? first - place->offset_elems : 0;
        *end   = first + segment->slice_elems > place->offset_elems
                     ? first + segment->slice_elems - place->offset_elems
                     : 0;
        *end   = sherdi_min_size(*end, elems);
        *begin = sherdi_min_size(*begin, *end);
    }
}

static sherd_status param_fill(sherd_engine *engine, int param, sherd_fill_fn fill, void *ctx)
{
    const sherdi_model_param *info    = &engine->model.params[param];
    const sherdi_plan_param  *place   = &engine->plan->params[param];
    const sherdi_segment     *segment = &engine->plan->segments[place->segment];
    float                     values[FILL_ELEMS];
    uint64_t                  share = 0;
    size_t                    begin;
    size_t                    end;

    held_range(engine, segment, place, info->elems, &begin, &end);
    for (size_t at = begin; at < end; at += FILL_ELEMS) {
        stretch      part   = {.segment = segment,
                               .param   = info,
                               .at      = place->offset_elems + at,
                               .count   = sherdi_min_size(FILL_ELEMS, end - at),
                               .values  = values};
        sherd_status status = fill(ctx, at, part.count, values);

        if (status != SHERD_OK) {
            return sherdi_fail(status,
                               "the fill function of parameter %s returned %s at element %zu",
                               info->name, sherd_status_name(status), at);
        }
        SHERDI_TRY(stretch_to_master(engine, &part, &share));
        SHERDI_TRY(stretch_to_param(engine, &part));
    }
    engine->fill_shares[param] = share;
    engine->is_filled[param]   = 1;
    return SHERD_OK;
}

sherd_status sherd_param_fill(sherd_engine *engine, sherd_param param, sherd_fill_fn fill,
                              void *ctx)
{
    SHERDI_TRY(sherdi_engine_check_alive(engine));
    if (engine->phase != SHERDI_PHASE_SEALED) {
        return sherdi_fail(SHERD_E_STATE, engine->phase == SHERDI_PHASE_OPEN
                                              ? "fill comes after sherd_engine_seal"
                                              : "fill comes before the first acquire");
    }
    if (param < 0 || (size_t)param >= engine->model.num_params) {
        return sherdi_fail(SHERD_E_INVAL, "parameter %d does not exist; there are %zu", param,
                           engine->model.num_params);
    }
    if (fill == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "parameter %s: fill needs a function",
                           engine->model.params[param].name);
    }
    if (engine->store.is_resumed && !engine->model.params[param].is_frozen) {
        return SHERD_OK; /* its values came with the state */
    }
    return param_fill(engine, param, fill, ctx);
}

/* ------------------------------------------------------- the first acquire -- */

typedef struct bound_source {
    sherd_engine             *engine;
    const sherdi_model_param *param;
} bound_source;

static sherd_status bound_read(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    const bound_source  *source = ctx;
    sherd_dtype          dtype  = source->engine->settings.compute_dtype;
    const unsigned char *data   = source->param->bound_data;

    return values_get(source->engine, SHERDI_PLACE_DEVICE, out,
                      data + first_elem * sherd_dtype_bytes(dtype), count_elems);
}

static sherd_status unfilled_take(sherd_engine *engine)
{
    for (size_t p = 0; p < engine->model.num_params; p++) {
        bound_source source = {engine, &engine->model.params[p]};

        if (engine->is_filled[p]) {
            continue;
        }
        if (source.param->bound_data == NULL) {
            return sherdi_fail(SHERD_E_STATE,
                               "parameter %s was never filled; call sherd_param_fill for it before "
                               "the first acquire",
                               source.param->name);
        }
        SHERDI_TRY(param_fill(engine, (int)p, bound_read, &source));
    }
    return SHERD_OK;
}

/* The whole of a parameter where it is kept whole, NULL where it is sliced. */
static const unsigned char *whole_param(const sherd_engine *engine, size_t param)
{
    const sherdi_plan_param *place   = &engine->plan->params[param];
    const sherdi_segment    *segment = &engine->plan->segments[place->segment];

    if (segment->is_bound) {
        return engine->model.params[param].bound_data;
    }
    if (!segment->is_resident) {
        return NULL;
    }
    return engine->buffers[SHERDI_BUFFER_PARAMS] + segment->param_offset +
           place->offset_elems * sherd_dtype_bytes(engine->settings.compute_dtype);
}

/* Of bytes on the device. */
static sherd_status device_hash(sherd_engine *engine, uint64_t seed, const unsigned char *bytes,
                                size_t len_bytes, uint64_t *out)
{
    unsigned char piece[FILL_ELEMS * sizeof(float)];

    *out = seed;
    if (!sherdi_has_device(engine)) {
        *out = sherdi_hash_bytes(seed, bytes, len_bytes);
        return SHERD_OK;
    }
    for (size_t at = 0; at < len_bytes; at += sizeof(piece)) {
        size_t len = sherdi_min_size(sizeof(piece), len_bytes - at);

        SHERDI_TRY(sherdi_place_get(engine, SHERDI_PLACE_DEVICE, piece, bytes + at, len));
        *out = sherdi_hash_bytes(*out, piece, len);
    }
    return SHERD_OK;
}

static sherd_status wholes_compare(sherd_engine *engine)
{
    size_t       elem  = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t       count = engine->model.num_params;
    size_t       world = (size_t)engine->world_size;
    sherd_status status;
    uint64_t    *mine = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, count, sizeof(*mine));
    uint64_t    *all =
        sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, count * world, sizeof(*all));

    status =
        sherdi_agree_status(engine->world, mine == NULL || all == NULL ? SHERD_E_NOMEM : SHERD_OK);
    for (size_t p = 0; p < count && status == SHERD_OK; p++) {
        const unsigned char *whole = whole_param(engine, p);

        mine[p] = 0;
        if (whole != NULL) {
            status = device_hash(engine, p, whole, engine->model.params[p].elems * elem, &mine[p]);
        }
    }
    if (status == SHERD_OK) {
        status = sherdi_world_exchange(engine->world, mine, all, count * sizeof(*mine));
    }
    for (size_t i = count; i < count * world && status == SHERD_OK; i++) {
        if (all[i] != all[i % count]) {
            status =
                sherdi_fail(SHERD_E_INVAL,
                            "parameter %s starts with other values on rank %zu than on rank 0; "
                            "the fill function must give the same on every rank",
                            engine->model.params[i % count].name, i / count);
        }
    }
    sherdi_free(all);
    sherdi_free(mine);
    return status;
}

/* One message per rank: its frozen elements, and whether its parameters are filled. */
static sherd_status filled_exchange(sherd_engine *engine, sherd_status own, uint64_t fingerprint)
{
    sherdi_publish_message mine = {.fingerprint = fingerprint, .status = (uint64_t)own};
    char                   text[SHERDI_ERROR_BYTES];

    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    SHERDI_TRY(sherdi_world_exchange(engine->world, &mine, engine->publish_all, sizeof(mine)));
    if (own != SHERD_OK) {
        return sherdi_fail_relay(own, text);
    }
    engine->frozen_fingerprint = 0;
    for (int r = 0; r < engine->world_size; r++) {
        if (engine->publish_all[r].status != SHERD_OK) {
            return sherdi_fail(SHERD_E_STATE, "rank %d has parameters that were not filled", r);
        }
        engine->frozen_fingerprint += engine->publish_all[r].fingerprint;
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------ fingerprints -- */

/* Of some of its spans, added to the results of the side where the block rests. */
static void block_fingerprint(sherd_engine *engine, const sherdi_block *block, float *state,
                              size_t first, size_t count)
{
    const sherdi_backend *lane    = sherdi_place_lane(engine, block->place);
    const sherdi_numbers *numbers = sherdi_place_numbers(engine, block->place);

    lane->kernels->fingerprint(lane, numbers->spans + block->first_span + first, count,
                               sherdi_block_parts(engine, block, state).master,
                               &numbers->head->fingerprint);
}

sherd_status sherdi_fill_own_fingerprint(sherd_engine *engine, uint64_t *out)
{
    const sherdi_plan  *plan   = engine->plan;
    sherdi_numbers_head head   = {0};
    sherd_status        status = sherdi_store_cancel(engine);
    sherd_status        own;

    sherdi_lane_follow(engine->lanes.update, engine->backend);
    sherdi_numbers_zero_update(engine);
    sherdi_store_read_ahead(engine);
    for (size_t b = 0; b < plan->num_blocks && status == SHERD_OK; b++) {
        float *state;

        status = sherdi_store_take(engine, &plan->blocks[b], 0, &state);
        if (status == SHERD_OK) {
            block_fingerprint(engine, &plan->blocks[b], state, 0, plan->blocks[b].num_spans);
        }
    }
    own = sherdi_store_pass_end(engine, 0);
    SHERDI_TRY(status);
    SHERDI_TRY(own);
    SHERDI_TRY(sherdi_numbers_read(engine, &head));
    *out = head.fingerprint;
    return SHERD_OK;
}

/* Elements [at, at + count) of a sliced parameter's segment, in the compute type; may give fewer. */
static sherd_status slice_look(sherd_engine *engine, const sherdi_segment *segment, size_t at,
                               size_t *count, const unsigned char **out)
{
    size_t elem = sherd_dtype_bytes(engine->settings.compute_dtype);

    if (segment->param_place != SHERDI_PLACE_NVME) {
        *out = slice_memory(engine, segment) + at * elem;
        return SHERD_OK;
    }
    for (size_t p = 0; p < segment->num_pieces; p++) {
        const sherdi_piece *piece = &engine->plan->pieces[segment->first_piece + p];
        void               *memory;

        if (at >= piece->offset_elems + piece->elems) {
            continue;
        }
        SHERDI_TRY(
            sherdi_window_open(&engine->store.param_window, segment->first_piece + p, 0, &memory));
        *count = sherdi_min_size(*count, piece->offset_elems + piece->elems - at);
        *out   = (const unsigned char *)memory + (at - piece->offset_elems) * elem;
        break;
    }
    return SHERD_OK;
}

/* Frozen elements are counted from the compute type, by the owner of their slice. */
static sherd_status frozen_param_fingerprint(sherd_engine *engine, size_t param, uint64_t *sum)
{
    const sherdi_model_param *info    = &engine->model.params[param];
    const sherdi_plan_param  *place   = &engine->plan->params[param];
    const sherdi_segment     *segment = &engine->plan->segments[place->segment];
    sherd_dtype               dtype   = engine->settings.compute_dtype;
    const unsigned char      *whole   = whole_param(engine, param);
    size_t                    first   = (size_t)engine->rank * segment->slice_elems;
    size_t                    at      = sherdi_max_size(place->offset_elems, first);
    size_t end = sherdi_min_size(place->offset_elems + info->elems, first + segment->slice_elems);
    float  values[FILL_ELEMS];

    while (at < end) {
        size_t               count = sherdi_min_size(FILL_ELEMS, end - at);
        const unsigned char *from  = NULL;

        if (whole != NULL) {
            from = whole + (at - place->offset_elems) * sherd_dtype_bytes(dtype);
        } else {
            SHERDI_TRY(slice_look(engine, segment, at - first, &count, &from));
        }
        SHERDI_TRY(values_get(engine, segment->param_place, values, from, count));
        for (size_t i = 0; i < count; i++) {
            *sum +=
                sherdi_mix_element(info->first_index + (at + i - place->offset_elems), values[i]);
        }
        at += count;
    }
    return SHERD_OK;
}

static sherd_status frozen_fingerprint(sherd_engine *engine, uint64_t *sum)
{
    for (size_t p = 0; p < engine->model.num_params; p++) {
        if (engine->model.params[p].is_frozen) {
            SHERDI_TRY(frozen_param_fingerprint(engine, p, sum));
        }
    }
    return SHERD_OK;
}

static sherd_status trainable_param_fingerprint(sherd_engine *engine, size_t param, uint64_t *sum)
{
    const sherdi_plan  *plan = engine->plan;
    sherdi_numbers_head head = {0};

    sherdi_lane_follow(engine->lanes.update, engine->backend);
    sherdi_numbers_zero_update(engine);

    for (size_t b = 0; b < plan->num_blocks; b++) {
        const sherdi_block *block = &plan->blocks[b];

        for (size_t i = 0; i < block->num_spans; i++) {
            const sherdi_span *span = &plan->spans[block->first_span + i];
            float             *state;

            if ((size_t)span->param == param) {
                SHERDI_TRY(sherdi_store_look(engine, block, 0, &state));
                block_fingerprint(engine, block, state, i, 1);
            }
        }
    }
    SHERDI_TRY(sherdi_numbers_read(engine, &head));
    *sum = head.fingerprint;
    return SHERD_OK;
}

sherd_status sherdi_fill_param_fingerprint(sherd_engine *engine, size_t param, uint64_t *out)
{
    sherd_status status = sherdi_store_cancel(engine); /* the windows share the pipelines' memory */
    sherd_status own;

    *out = 0;
    if (status == SHERD_OK) {
        status = sherdi_fetch_stop(engine);
    }
    if (status == SHERD_OK) {
        status = engine->model.params[param].is_frozen
                     ? frozen_param_fingerprint(engine, param, out)
                     : trainable_param_fingerprint(engine, param, out);
    }
    own = sherdi_store_settle(engine);
    return status == SHERD_OK ? own : status;
}

/* ------------------------------------------------------------- the start -- */

/* What was filled becomes the first generation, and is looked at once: a drive that does not give
 * back what it was given shows before the training, unless fast_init is on. */
static sherd_status state_begin(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_store_settle(engine));
    if (engine->store.is_resumed || !sherdi_plan_has_generations(engine->plan)) {
        return SHERD_OK;
    }
    if (engine->settings.fast_init) { /* as it was filled: nothing is read */
        engine->own_fingerprint = 0;
        for (size_t p = 0; p < engine->model.num_params; p++) {
            engine->own_fingerprint += engine->fill_shares[p];
        }
    } else {
        sherdi_store_verify(engine, 1);
        SHERDI_TRY(sherdi_fill_own_fingerprint(engine, &engine->own_fingerprint));
        sherdi_store_verify(engine, engine->settings.verify_reads);
    }
    engine->has_own_fingerprint = 1;
    return sherdi_store_commit(engine, engine->step, engine->own_fingerprint, &engine->scaler);
}

/* A resumed state publishes what is whole on every rank. */
static sherd_status publish_finish(sherd_engine *engine)
{
    for (size_t s = 0; s < engine->plan->num_segments; s++) {
        SHERDI_TRY(sherdi_world_wait(engine->world, engine->publish_tickets[s]));
    }
    return SHERD_OK;
}

sherd_status sherdi_fill_finish(sherd_engine *engine)
{
    uint64_t     frozen = 0;
    sherd_status status = unfilled_take(engine);

    if (status == SHERD_OK) {
        status = frozen_fingerprint(engine, &frozen);
    }
    if (status == SHERD_OK) {
        status = state_begin(engine);
    }
    SHERDI_TRY(filled_exchange(engine, status, frozen));
    SHERDI_TRY(publish_finish(engine));
    SHERDI_TRY(wholes_compare(engine));
    sherdi_fetch_rewind(engine);
    return SHERD_OK;
}
