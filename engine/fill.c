/* First values: what a trainer's fill function gives, to every place where this rank holds
 * a part of the parameter; and the fingerprints that are recomputed from the state. */
#include "engine/engine_impl.h"

#include "base/checked.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

/* What stays on the stack. */
#define FEW_ELEMS 2048

/* Where all ranks ask for values that not all of them hold, spread evenly. */
#define SAMPLES      4
#define SAMPLE_ELEMS 16

/* How many parameters come to each extent of state and each piece on NVMe. */
static void left_count(sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;

    for (size_t b = 0; b < plan->num_blocks; b++) {
        if (plan->blocks[b].place == SHERDI_PLACE_STORAGE) {
            engine->fill.extents_left[plan->blocks[b].extent] += plan->blocks[b].num_spans;
        }
    }
    for (size_t p = 0; p < plan->num_params; p++) {
        const sherdi_segment *segment = &plan->segments[plan->params[p].segment];
        size_t                slice   = (size_t)engine->rank * segment->slice_elems;
        size_t                begin;
        size_t                end;

        sherdi_plan_held(plan, p, engine->model.params[p].elems, &begin, &end);
        if (segment->num_pieces > 0 && begin < end) {
            size_t grain = plan->pieces[segment->first_piece].elems;
            size_t at    = plan->params[p].offset_elems + begin - slice;
            size_t last  = (at + end - begin - 1) / grain;

            for (size_t i = at / grain; i <= last; i++) {
                engine->fill.pieces_left[segment->first_piece + i]++;
            }
        }
    }
}

sherd_status sherdi_fill_open(sherd_engine *engine)
{
    const sherdi_plan *plan    = engine->plan;
    sherdi_fill       *fill    = &engine->fill;
    sherdi_mem        *mem     = &engine->mem;
    size_t             params  = plan->num_params;
    size_t             extents = plan->num_extents[SHERDI_PLACE_STORAGE];

    fill->is_filled = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->is_filled));
    fill->shares    = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->shares));
    fill->samples   = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, params, sizeof(*fill->samples));
    fill->extents_left =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, extents, sizeof(*fill->extents_left));
    fill->pieces_left =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, plan->num_pieces, sizeof(*fill->pieces_left));
    if (fill->is_filled == NULL || fill->shares == NULL || fill->samples == NULL ||
        fill->extents_left == NULL || fill->pieces_left == NULL) {
        return SHERD_E_NOMEM;
    }
    left_count(engine);
    return SHERD_OK;
}

void sherdi_fill_close(sherd_engine *engine)
{
    sherdi_free(engine->fill.is_filled);
    sherdi_free(engine->fill.shares);
    sherdi_free(engine->fill.samples);
    sherdi_free(engine->fill.extents_left);
    sherdi_free(engine->fill.pieces_left);
    engine->fill = (sherdi_fill){0};
}

/* A stretch of a parameter with its values. Positions are those of the segment's whole. */
typedef struct stretch {
    const sherdi_segment *segment;
    size_t                param;
    size_t                at, end;
    size_t                param_end; /* of what this rank holds of the parameter */
    uint64_t              index;     /* of the first element, in the model */
    float                *values;
} stretch;

/* One parameter less is missing in an extent; whether it was the last one. An extent that is filled again was
 * complete before. */
static int is_last(size_t *left)
{
    *left -= *left > 0;
    return *left == 0;
}

/* Writes the part of the stretch that lies in this rank's blocks to the master weights. */
static sherd_status stretch_to_master(sherd_engine *engine, const stretch *part)
{
    const sherdi_segment *segment = part->segment;
    size_t                first;
    size_t                last = sherdi_plan_owned(engine->plan, segment, &first) + first;
    size_t                grain;

    if (!segment->has_master) {
        return SHERD_OK;
    }
    grain = engine->plan->blocks[segment->first_block].elems; /* all but the last have as many */
    last  = sherdi_min_size(part->end, last);
    for (size_t at = sherdi_max_size(part->at, first), end; at < last; at = end) {
        const sherdi_block *block =
            &engine->plan->blocks[segment->first_block + (at - first) / grain];
        size_t start = first + block->offset_elems;
        float *state;

        end = sherdi_min_size(last, start + block->elems);
        SHERDI_TRY(sherdi_store_look(engine, block, 1, &state));
        sherdi_place_put(engine, block->place,
                         sherdi_block_master(engine, block, state) + (at - start),
                         part->values + (at - part->at), (end - at) * sizeof(float));
        if (block->place == SHERDI_PLACE_STORAGE &&
            (end == start + block->elems || end == part->param_end) &&
            is_last(&engine->fill.extents_left[block->extent])) {
            sherdi_store_put(engine, block);
        }
    }
    return SHERD_OK;
}

/* Values in the compute type to memory of a place. */
static void values_put(sherd_engine *engine, sherdi_place place, void *dst, const float *values,
                       size_t count)
{
    sherd_dtype dtype = engine->settings.compute_dtype;
    void       *cast  = dst;

    if (place == SHERDI_PLACE_DEVICE && sherdi_has_device(engine)) {
        cast = engine->buffers[SHERDI_BUFFER_FILL] + engine->plan->fill_cast_offset;
    }
    engine->host->kernels->cast(engine->host, cast, dtype, values, SHERD_F32, count);
    if (cast != dst) {
        sherdi_place_put(engine, place, dst, cast, count * sherd_dtype_bytes(dtype));
    }
}

/* ... and back, at most FEW_ELEMS. */
static sherd_status values_get(sherd_engine *engine, sherdi_place place, float *values,
                               const void *src, size_t count)
{
    sherd_dtype dtype = engine->settings.compute_dtype;
    float       cast[FEW_ELEMS];

    SHERDI_TRY(sherdi_place_get(engine, place, cast, src, count * sherd_dtype_bytes(dtype)));
    engine->host->kernels->cast(engine->host, values, SHERD_F32, cast, dtype, count);
    return SHERD_OK;
}

/* To what they are in the compute type. */
static void values_round(const sherd_engine *engine, float *values, size_t count)
{
    sherd_dtype dtype = engine->settings.compute_dtype;
    float       cast[FEW_ELEMS];

    for (size_t at = 0; at < count && dtype != SHERD_F32; at += FEW_ELEMS) {
        size_t some = sherdi_min_size(FEW_ELEMS, count - at);

        engine->host->kernels->cast(engine->host, cast, dtype, values + at, SHERD_F32, some);
        engine->host->kernels->cast(engine->host, values + at, SHERD_F32, cast, dtype, some);
    }
}

/* ... of a slice to its pieces on NVMe. */
static sherd_status stretch_to_pieces(sherd_engine *engine, const stretch *part)
{
    const sherdi_segment *segment = part->segment;
    size_t                elem    = sherd_dtype_bytes(engine->settings.compute_dtype);
    size_t                first   = (size_t)engine->rank * segment->slice_elems;
    size_t                grain   = engine->plan->pieces[segment->first_piece].elems;

    for (size_t at = part->at, end; at < part->end; at = end) {
        size_t              index = segment->first_piece + (at - first) / grain;
        const sherdi_piece *piece = &engine->plan->pieces[index];
        size_t              start = first + piece->offset_elems;
        void               *memory;

        end = sherdi_min_size(part->end, start + piece->elems);
        SHERDI_TRY(sherdi_window_open(&engine->store.param_window, index, 1, &memory));
        values_put(engine, SHERDI_PLACE_STORAGE, (unsigned char *)memory + (at - start) * elem,
                   part->values + (at - part->at), end - at);
        if ((end == start + piece->elems || end == part->param_end) &&
            is_last(&engine->fill.pieces_left[index])) {
            sherdi_window_put(&engine->store.param_window, index);
        }
    }
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

    if (segment->is_bound) {
        unsigned char *data = engine->model.params[part->param].bound_data;

        values_put(engine, SHERDI_PLACE_DEVICE,
                   data + (part->at - engine->plan->params[part->param].offset_elems) * elem,
                   part->values, part->end - part->at);
        return SHERD_OK;
    }
    if (segment->param_place == SHERDI_PLACE_STORAGE) {
        return stretch_to_pieces(engine, part);
    }
    if (!segment->is_resident) {
        first = (size_t)engine->rank * segment->slice_elems;
    }
    values_put(engine, segment->param_place,
               slice_memory(engine, segment) + (part->at - first) * elem, part->values,
               part->end - part->at);
    return SHERD_OK;
}

/* What the stretch adds to this rank's share of the fingerprint: of what is frozen, its slice in the compute
 * type; else what it updates. */
static void stretch_count(const sherd_engine *engine, const stretch *part, uint64_t *share)
{
    const sherdi_segment *segment = part->segment;
    size_t                first   = (size_t)engine->rank * segment->slice_elems;
    size_t                owned   = segment->slice_elems;
    size_t                from;
    size_t                to;

    if (segment->kind != SHERDI_SEGMENT_FROZEN) {
        owned = sherdi_plan_owned(engine->plan, segment, &first);
    }
    from = sherdi_max_size(part->at, first);
    to   = sherdi_min_size(part->end, first + owned);
    if (from < to) {
        sherdi_span span = {.offset_elems = from - part->at,
                            .count_elems  = to - from,
                            .first_index  = part->index + (from - part->at)};

        engine->host->kernels->fingerprint(engine->host, &span, 1, part->values, share);
    }
}

static sherd_status fill_call(const sherd_engine *engine, size_t param, sherd_fill_fn fill,
                              void *ctx, size_t at, size_t count, float *values)
{
    sherd_status status = fill(ctx, at, count, values);

    if (status != SHERD_OK) {
        return sherdi_fail(status, "the fill function of parameter %s returned %s at element %zu",
                           engine->model.params[param].name, sherd_status_name(status), at);
    }
    return SHERD_OK;
}

/* Values that this rank holds: asked for, and put wherever they rest. */
static sherd_status stretch_fill(sherd_engine *engine, stretch *part, sherd_fill_fn fill, void *ctx,
                                 uint64_t *share)
{
    size_t start  = engine->plan->params[part->param].offset_elems;
    size_t count  = part->end - part->at;
    int    frozen = part->segment->kind == SHERDI_SEGMENT_FROZEN;

    SHERDI_TRY(fill_call(engine, part->param, fill, ctx, part->at - start, count, part->values));
    if (frozen) {
        values_round(engine, part->values, count);
    }
    if (frozen || sherdi_plan_has_generations(engine->plan)) {
        stretch_count(engine, part, share);
    }
    SHERDI_TRY(stretch_to_master(engine, part));
    return stretch_to_param(engine, part);
}

/* A hash of a few values, the same places on every rank: of a sliced parameter no two ranks hold the same
 * elements, and only so can they see that they would fill it differently. */
static sherd_status sample_take(const sherd_engine *engine, size_t param, sherd_fill_fn fill,
                                void *ctx, uint64_t *out)
{
    size_t elems = engine->model.params[param].elems;
    size_t count = sherdi_min_size(elems, SAMPLE_ELEMS);
    size_t last  = SIZE_MAX;
    float  values[SAMPLE_ELEMS];

    *out = param;
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t at = (elems - count) * i / (SAMPLES - 1);

        if (at != last && count > 0) {
            SHERDI_TRY(fill_call(engine, param, fill, ctx, at, count, values));
            *out = sherdi_hash_bytes(*out, values, count * sizeof(*values));
        }
        last = at;
    }
    return SHERD_OK;
}

static sherd_status param_fill(sherd_engine *engine, size_t param, sherd_fill_fn fill, void *ctx)
{
    const sherdi_plan        *plan    = engine->plan;
    const sherdi_model_param *info    = &engine->model.params[param];
    const sherdi_segment     *segment = &plan->segments[plan->params[param].segment];
    size_t                    start   = plan->params[param].offset_elems;
    uint64_t                  share   = 0;
    size_t                    begin;
    size_t                    end;

    engine->fill.is_filled[param] = 0;
    sherdi_plan_held(plan, param, info->elems, &begin, &end);
    for (size_t at = begin; at < end; at += plan->fill_elems) {
        stretch part = {.segment   = segment,
                        .param     = param,
                        .at        = start + at,
                        .end       = start + sherdi_min_size(end, at + plan->fill_elems),
                        .param_end = start + end,
                        .index     = info->first_index + at,
                        .values    = (float *)(void *)engine->buffers[SHERDI_BUFFER_FILL]};

        SHERDI_TRY(stretch_fill(engine, &part, fill, ctx, &share));
    }
    if (engine->world_size > 1 && !segment->is_resident && !segment->is_bound) {
        SHERDI_TRY(sample_take(engine, param, fill, ctx, &engine->fill.samples[param]));
    }
    engine->fill.shares[param]    = share;
    engine->fill.is_filled[param] = 1;
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
    return param_fill(engine, (size_t)param, fill, ctx);
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

    for (size_t at = 0; at < count_elems; at += FEW_ELEMS) {
        SHERDI_TRY(values_get(source->engine, SHERDI_PLACE_DEVICE, out + at,
                              data + (first_elem + at) * sherd_dtype_bytes(dtype),
                              sherdi_min_size(FEW_ELEMS, count_elems - at)));
    }
    return SHERD_OK;
}

static sherd_status unfilled_take(sherd_engine *engine)
{
    for (size_t p = 0; p < engine->model.num_params; p++) {
        bound_source source = {engine, &engine->model.params[p]};

        if (engine->fill.is_filled[p]) {
            continue;
        }
        if (source.param->bound_data == NULL) {
            return sherdi_fail(SHERD_E_STATE,
                               "parameter %s was never filled; call sherd_param_fill for it before "
                               "the first acquire",
                               source.param->name);
        }
        SHERDI_TRY(param_fill(engine, p, bound_read, &source));
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
    unsigned char piece[FEW_ELEMS * sizeof(float)];

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

/* "rank 2", "ranks 1, 3", as many as there is room for: those whose value of parameter `p` is not rank 0's. */
static void others_text(const uint64_t *all, size_t p, size_t count, int world_size, char *text,
                        size_t len_bytes)
{
    size_t used   = 0;
    int    others = 0;

    for (int r = 1; r < world_size; r++) {
        others += all[(size_t)r * count + p] != all[p];
    }
    used = (size_t)snprintf(text, len_bytes, "rank%s", others > 1 ? "s" : "");
    for (int r = 1; r < world_size && used + 8 < len_bytes; r++) {
        if (all[(size_t)r * count + p] != all[p]) {
            used += (size_t)snprintf(text + used, len_bytes - used, "%s %d",
                                     used > sizeof("ranks") ? "," : "", r);
        }
    }
}

static sherd_status starts_check(const sherd_engine *engine, const uint64_t *all)
{
    size_t count = engine->model.num_params;
    char   others[64];

    for (size_t i = count; i < count * (size_t)engine->world_size; i++) {
        if (all[i] != all[i % count]) {
            others_text(all, i % count, count, engine->world_size, others, sizeof(others));
            return sherdi_fail(SHERD_E_INVAL,
                               "parameter %s starts with other values on %s than on rank 0; the "
                               "fill function must give the same on every rank (the same seed, the "
                               "same file)",
                               engine->model.params[i % count].name, others);
        }
    }
    return SHERD_OK;
}

/* What this rank compares of a parameter: all of it where it is whole, else the sample. */
static sherd_status start_hash(sherd_engine *engine, size_t param, uint64_t *out)
{
    const unsigned char *whole = whole_param(engine, param);

    *out = engine->fill.samples[param];
    if (whole == NULL) {
        return SHERD_OK;
    }
    return device_hash(
        engine, param, whole,
        engine->model.params[param].elems * sherd_dtype_bytes(engine->settings.compute_dtype), out);
}

static sherd_status starts_compare(sherd_engine *engine)
{
    size_t       count = engine->model.num_params;
    size_t       world = (size_t)engine->world_size;
    sherd_status status;
    uint64_t    *mine;
    uint64_t    *all;

    if (world == 1) {
        return SHERD_OK;
    }
    mine = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, count, sizeof(*mine));
    all  = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, count * world, sizeof(*all));
    status =
        sherdi_agree_status(engine->world, mine == NULL || all == NULL ? SHERD_E_NOMEM : SHERD_OK);
    for (size_t p = 0; p < count && status == SHERD_OK; p++) {
        status = start_hash(engine, p, &mine[p]);
    }
    if (status == SHERD_OK) {
        status = sherdi_world_exchange(engine->world, mine, all, count * sizeof(*mine));
    }
    if (status == SHERD_OK) {
        status = starts_check(engine, all);
    }
    sherdi_free(all);
    sherdi_free(mine);
    return status;
}

/* One message per rank: its frozen elements, and whether its parameters are filled and its state has begun. */
static sherd_status filled_exchange(sherd_engine *engine, sherd_status own, int is_filled,
                                    uint64_t fingerprint)
{
    sherdi_publish_message mine = {
        .fingerprint = fingerprint, .status = (uint64_t)own, .decision = (uint64_t)is_filled};
    char text[SHERDI_ERROR_BYTES];

    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    SHERDI_TRY(sherdi_world_exchange(engine->world, &mine, engine->publish_all, sizeof(mine)));
    if (own != SHERD_OK) {
        return sherdi_fail_relay(own, text);
    }
    engine->frozen_fingerprint = 0;
    for (int r = 0; r < engine->world_size; r++) {
        sherd_status status = (sherd_status)engine->publish_all[r].status;

        if (engine->publish_all[r].decision == 0) {
            return sherdi_fail(status, "rank %d has parameters that were not filled", r);
        }
        if (status != SHERD_OK) {
            return sherdi_fail(status,
                               "rank %d could not begin its state: %s; its own sherd_last_error() "
                               "says more",
                               r, sherd_status_text(status));
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
                               sherdi_block_master(engine, block, state),
                               &numbers->head->fingerprint);
}

sherd_status sherdi_fill_own_fingerprint(sherd_engine *engine, uint64_t *out)
{
    sherdi_numbers_head head   = {0};
    sherd_status        status = sherdi_run_settle(engine, SHERDI_RING_STATE);

    sherdi_lane_follow(engine->lanes.update, engine->backend);
    SHERDI_TRY(status);
    SHERDI_TRY(sherdi_update_fingerprint(engine, &head));
    *out = head.fingerprint;
    return SHERD_OK;
}

/* Elements [at, at + count) of a sliced parameter's segment, in the compute type; may give fewer. */
static sherd_status slice_look(sherd_engine *engine, const sherdi_segment *segment, size_t at,
                               size_t *count, const unsigned char **out)
{
    size_t              elem = sherd_dtype_bytes(engine->settings.compute_dtype);
    const sherdi_piece *piece;
    size_t              index;
    void               *memory;

    if (segment->param_place != SHERDI_PLACE_STORAGE) {
        *out = slice_memory(engine, segment) + at * elem;
        return SHERD_OK;
    }
    index = segment->first_piece + at / engine->plan->pieces[segment->first_piece].elems;
    piece = &engine->plan->pieces[index];
    SHERDI_TRY(sherdi_window_open(&engine->store.param_window, index, 0, &memory));
    *count = sherdi_min_size(*count, piece->offset_elems + piece->elems - at);
    *out   = (const unsigned char *)memory + (at - piece->offset_elems) * elem;
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
    float  values[FEW_ELEMS];

    while (at < end) {
        size_t               count = sherdi_min_size(FEW_ELEMS, end - at);
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

static sherd_status trainable_param_fingerprint(sherd_engine *engine, size_t param, uint64_t *sum)
{
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = &plan->segments[plan->params[param].segment];
    sherdi_numbers_head   head    = {0};

    sherdi_lane_follow(engine->lanes.update, engine->backend);
    sherdi_place_numbers(engine, SHERDI_PLACE_HOST)->head->fingerprint = 0;
    engine->lanes.update->device->fill(engine->lanes.update, &engine->device.head->fingerprint, 0,
                                       sizeof(engine->device.head->fingerprint));
    for (size_t b = 0; b < segment->num_blocks; b++) {
        const sherdi_block *block = &plan->blocks[segment->first_block + b];

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
    sherd_status status =
        sherdi_run_settle(engine, SHERDI_RING_STATE); /* the windows share the pipelines' memory */
    sherd_status own;

    *out = 0;
    if (status == SHERD_OK) {
        status = sherdi_run_settle(engine, SHERDI_RING_PARAMS);
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

/* This rank's share of what was filled. */
static uint64_t filled_fingerprint(const sherd_engine *engine, int is_frozen)
{
    uint64_t sum = 0;

    for (size_t p = 0; p < engine->model.num_params; p++) {
        sum += engine->model.params[p].is_frozen == is_frozen ? engine->fill.shares[p] : 0;
    }
    return sum;
}

/* What was filled becomes the first generation. A drive that does not give back what it was given shows when the
 * first update reads it, unless fast_init is on. */
static sherd_status state_begin(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_store_settle(engine));
    if (engine->store.is_resumed || !sherdi_plan_has_generations(engine->plan)) {
        return SHERD_OK;
    }
    engine->own_fingerprint     = filled_fingerprint(engine, 0);
    engine->has_own_fingerprint = 1;
    sherdi_store_verify(engine, engine->settings.verify_reads || !engine->settings.fast_init);
    return sherdi_run_commit(engine, engine->step, engine->own_fingerprint, &engine->scaler);
}

sherd_status sherdi_fill_finish(sherd_engine *engine)
{
    sherd_status status    = unfilled_take(engine);
    int          is_filled = status != SHERD_E_STATE;

    if (status == SHERD_OK) {
        status = state_begin(engine);
    }
    SHERDI_TRY(filled_exchange(engine, status, is_filled, filled_fingerprint(engine, 1)));
    SHERDI_TRY(sherdi_run_drain(engine));
    SHERDI_TRY(starts_compare(engine));
    sherdi_loop_fetch_ahead(engine);
    return SHERD_OK;
}
