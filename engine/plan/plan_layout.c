/* Layout: puts parameters into segments, cuts segments into slices and slices into blocks, and
 * gives everything an offset in an arena. Parameters start at multiples of 64 elements, a segment
 * is padded to a multiple of world_size x 64, and rank r owns the r-th of equal slices. */
#include "engine/plan/plan.h"

#include "base/checked.h"
#include "engine/modules.h"

/* Arrays whose starts are a large power of two apart share the sets of some processors' first-level
 * caches. An update that walks three of these arrays falls to a third of its speed. So blocks of
 * these sizes have their parts SKEW_ELEMS further apart: in fp32 a page and four lines. */
#define ALIASING_ELEMS ((size_t)1 << 20)
#define SKEW_ELEMS     ((size_t)1088)

static sherdi_segment_kind param_kind(const sherdi_plan *plan, const sherdi_model_param *param,
                                      size_t *persistent_elems)
{
    const sherdi_settings *settings = &plan->settings;

    if (param->is_frozen) {
        return SHERDI_SEGMENT_FROZEN;
    }
    if (settings->sharding.stage == 3 && param->elems <= settings->sharding.persistence_threshold &&
        param->elems <= settings->sharding.model_persistence_threshold - *persistent_elems) {
        *persistent_elems += param->elems;
        return SHERDI_SEGMENT_PERSISTENT;
    }
    return SHERDI_SEGMENT_TRAINABLE;
}

/* Lays out the unit's parameters that are in a segment, and sizes its slices: the smallest that
 * hold all of it. */
static void segment_size(sherdi_plan *plan, const sherdi_model *model,
                         const sherdi_model_unit *unit, int index)
{
    sherdi_segment *segment = &plan->layout.segments[index];
    size_t          world   = (size_t)plan->world_size;
    size_t          at      = 0;

    for (size_t i = 0; i < unit->num_params; i++) {
        sherdi_plan_param *layout = &plan->layout.params[unit->params[i]];

        if (layout->segment == index) {
            layout->offset_elems = at;
            at += sherdi_round_up(model->params[unit->params[i]].elems, SHERD_CHUNK_ELEMS);
        }
    }
    /* each replica adds up an equal part of a slice */
    segment->slice_elems =
        sherdi_round_up(sherdi_div_up(at, world), SHERD_CHUNK_ELEMS * (size_t)plan->num_replicas);
    segment->padded_elems = segment->slice_elems * world;
}

static sherd_status param_type_check(const sherdi_plan *plan, const sherdi_model_param *param)
{
    sherd_dtype compute = plan->settings.numerics.compute_dtype;

    if (param->dtype < 0 || param->dtype == SHERD_F32 || param->dtype == (int)compute) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_NOTSUP,
        "parameter %s is declared as %s in an engine that computes in %s; declare it "
        "as -1 (the engine's type) or SHERD_F32",
        param->name, sherd_dtype_name((sherd_dtype)param->dtype), sherd_dtype_name(compute));
}

static sherd_status optimizer_take(sherdi_plan *plan, const sherdi_optimizer *optimizer)
{
    for (size_t i = 0; i < plan->layout.num_optimizers; i++) {
        if (plan->layout.optimizers[i].optimizer == optimizer) {
            return SHERD_OK;
        }
    }
    SHERDI_TRY(SHERDI_GROW(plan->mem, plan->layout.optimizers, plan->layout.num_optimizers,
                           plan->layout.cap_optimizers));
    plan->layout.optimizers[plan->layout.num_optimizers++] =
        (sherdi_plan_optimizer){.optimizer = optimizer};
    return SHERD_OK;
}

/* The segment that a parameter needs: how it is treated. */
static sherdi_segment segment_wanted(const sherdi_plan *plan, const sherdi_model *model,
                                     const sherdi_model_param *param, sherdi_segment_kind kind)
{
    int is_wide = param->dtype == SHERD_F32 && plan->settings.numerics.compute_dtype != SHERD_F32;

    return (sherdi_segment){
        .unit             = param->unit,
        .kind             = kind,
        .types            = is_wide ? plan->layout.wide : plan->layout.types,
        .is_wide          = is_wide,
        .optimizer        = kind == SHERDI_SEGMENT_FROZEN
                                ? NULL
                                : sherdi_group_optimizer(&plan->settings, &model->groups[param->group]),
        .is_bound         = param->bound_data != NULL,
        .param_offset     = SHERDI_NO_OFFSET,
        .gather_offset    = SHERDI_NO_OFFSET,
        .grad_offset      = SHERDI_NO_OFFSET,
        .transient_offset = SHERDI_NO_OFFSET,
    };
}

/* Finds the segment of a parameter among its unit's, which begin at `first`; makes it for the first
 * parameter. */
static sherd_status segment_take(sherdi_plan *plan, const sherdi_segment *wanted, size_t first,
                                 int *out)
{
    size_t at = first;

    while (at < plan->layout.num_segments &&
           (plan->layout.segments[at].kind != wanted->kind ||
            plan->layout.segments[at].is_wide != wanted->is_wide ||
            plan->layout.segments[at].optimizer != wanted->optimizer)) {
        at++;
    }
    *out = (int)at;
    if (at < plan->layout.num_segments) {
        return SHERD_OK;
    }
    if (wanted->optimizer != NULL) {
        SHERDI_TRY(optimizer_take(plan, wanted->optimizer));
    }
    SHERDI_TRY(SHERDI_GROW(plan->mem, plan->layout.segments, plan->layout.num_segments,
                           plan->layout.cap_segments));
    plan->layout.segments[plan->layout.num_segments++] = *wanted;
    return SHERD_OK;
}

/* Makes all segments of a unit, from `first` on. */
static sherd_status unit_segments_make(sherdi_plan *plan, const sherdi_model *model,
                                       const sherdi_model_unit *unit, size_t first,
                                       size_t *persistent_elems)
{
    for (size_t i = 0; i < unit->num_params; i++) {
        const sherdi_model_param *param  = &model->params[unit->params[i]];
        sherdi_segment_kind       kind   = param_kind(plan, param, persistent_elems);
        sherdi_segment            wanted = segment_wanted(plan, model, param, kind);
        int                       index;

        SHERDI_TRY(param_type_check(plan, param));
        SHERDI_TRY(segment_take(plan, &wanted, first, &index));
        plan->layout.params[unit->params[i]].segment = index;
        plan->layout.segments[index].elems += param->elems;
    }
    for (size_t s = first; s < plan->layout.num_segments; s++) {
        segment_size(plan, model, unit, (int)s);
    }
    return SHERD_OK;
}

/* Makes the order in which a unit's segments are gathered and reduced: by kind, the wide ones
 * last. */
static sherd_status segments_order(sherdi_plan *plan)
{
    size_t count = 0;

    plan->layout.unit_segments =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, plan->layout.num_segments,
                           sizeof(*plan->layout.unit_segments));
    if (plan->layout.unit_segments == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        size_t first = plan->layout.units[u].first_segment;
        size_t end   = first + plan->layout.units[u].num_segments;

        for (int slot = 0; slot < 2 * SHERDI_SEGMENT_KINDS; slot++) {
            for (size_t s = first; s < end; s++) {
                const sherdi_segment *segment = &plan->layout.segments[s];

                if ((int)segment->kind + segment->is_wide * SHERDI_SEGMENT_KINDS == slot) {
                    plan->layout.unit_segments[count++] = (int)s;
                }
            }
        }
    }
    return SHERD_OK;
}

static sherd_status segments_make(sherdi_plan *plan, const sherdi_model *model)
{
    size_t persistent_elems = 0;

    for (size_t u = 0; u < model->num_units; u++) {
        size_t first = plan->layout.num_segments;

        SHERDI_TRY(unit_segments_make(plan, model, &model->units[u], first, &persistent_elems));
        plan->layout.units[u].first_segment = first;
        plan->layout.units[u].num_segments  = plan->layout.num_segments - first;
    }
    if (plan->layout.num_optimizers == 0) { /* nothing is trainable */
        SHERDI_TRY(optimizer_take(plan, plan->settings.update.optimizer));
    }
    return segments_order(plan);
}

/* Takes `elems` elements from an arena and returns their offset. */
static size_t arena_take(sherdi_plan_buffer *arena, size_t elems, size_t elem_bytes)
{
    size_t offset = arena->bytes;

    arena->bytes = sherdi_round_up(offset + elems * elem_bytes, SHERD_ALIGN_BYTES);
    return offset;
}

static void segment_lay_out(sherdi_plan *plan, sherdi_segment *segment)
{
    const sherdi_settings *settings  = &plan->settings;
    sherdi_plan_unit      *unit      = &plan->layout.units[segment->unit];
    size_t                 elem      = sherdi_compute_bytes(segment);
    int                    is_frozen = segment->kind == SHERDI_SEGMENT_FROZEN;
    sherdi_plan_buffer     gathered  = {.bytes = unit->gather_bytes};
    sherdi_plan_buffer     transient = {.bytes = unit->transient_bytes};

    plan->layout.widest_bytes = sherdi_max_size(plan->layout.widest_bytes, elem);
    plan->layout.padding_elems += segment->padded_elems - segment->elems;
    segment->slice_first = (size_t)plan->rank * segment->slice_elems;
    segment->own_first   = plan->layout.is_sliced ? segment->slice_first : 0;
    segment->own_elems   = plan->layout.is_sliced ? segment->slice_elems : segment->padded_elems;
    segment->is_resident = settings->sharding.stage < 3 ||
                           segment->kind == SHERDI_SEGMENT_PERSISTENT ||
                           (plan->world_size == 1 && segment->param_space == SHERDI_SPACE_DEVICE);
    segment->has_gradient = !is_frozen;
    /* an fp32 parameter is its own master if parameter and state both rest in the device's
     * memory */
    segment->has_master =
        !is_frozen && (segment->types.compute != SHERD_F32 || segment->is_bound ||
                       plan->layout.offloads_state || segment->param_space != SHERDI_SPACE_DEVICE);
    if (!segment->is_bound && segment->param_space != SHERDI_SPACE_STORAGE) {
        segment->param_offset = arena_take(
            &plan->packing
                 .buffers[segment->param_space == SHERDI_SPACE_HOST ? SHERDI_BUFFER_HOST_PARAMS
                                                                    : SHERDI_BUFFER_PARAMS],
            segment->is_resident ? segment->padded_elems : segment->slice_elems, elem);
    }
    if (!segment->is_resident) {
        segment->gather_offset = arena_take(&gathered, segment->padded_elems, elem);
        unit->gather_elems += (gathered.bytes - unit->gather_bytes) / elem;
        unit->gather_bytes = gathered.bytes;
    }
    if (is_frozen) {
        return;
    }
    if (plan->layout.has_transient) {
        segment->transient_offset = arena_take(&transient, segment->padded_elems, elem);
        unit->transient_bytes     = transient.bytes;
    }
}

void sherdi_plan_held(const sherdi_plan *plan, size_t param, size_t elems, size_t *begin,
                      size_t *end)
{
    const sherdi_plan_param *layout  = &plan->layout.params[param];
    const sherdi_segment    *segment = &plan->layout.segments[layout->segment];
    size_t                   first   = segment->slice_first;
    size_t                   last    = first + segment->slice_elems;

    *begin = 0;
    *end   = elems;
    if (!segment->is_resident && !segment->is_bound) {
        *end =
            last > layout->offset_elems ? sherdi_min_size(last - layout->offset_elems, elems) : 0;
        *begin = layout->offset_elems < first ? first - layout->offset_elems : 0;
        *begin = sherdi_min_size(*begin, *end);
    }
}

/* Sizes the fill buffer: values in fp32, and if the device has its own memory also in the
 * parameter's type. */
static void fill_size(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t p = 0; p < model->num_params; p++) {
        size_t begin;
        size_t end;

        sherdi_plan_held(plan, p, model->params[p].elems, &begin, &end);
        plan->packing.fill_elems = sherdi_max_size(plan->packing.fill_elems,
                                                   sherdi_min_size(end - begin, SHERDI_FILL_ELEMS));
    }
    plan->packing.fill_cast_offset = sherdi_round_up(plan->packing.fill_elems * sizeof(float), 64);
    plan->packing.buffers[SHERDI_BUFFER_FILL].bytes = sherdi_round_up(
        plan->packing.fill_cast_offset +
            (plan->machine.has_device ? plan->packing.fill_elems * plan->layout.widest_bytes : 0),
        SHERD_ALIGN_BYTES);
}

/* Adds the spans of parameters inside [first, first + elems) of a segment's whole to the block. */
static sherd_status block_add_spans(sherdi_plan *plan, const sherdi_model *model,
                                    sherdi_block *block, size_t first)
{
    const sherdi_model_unit *unit = &model->units[sherdi_block_segment(plan, block)->unit];

    block->first_span = plan->layout.num_spans;
    for (size_t i = 0; i < unit->num_params; i++) {
        const sherdi_model_param *param  = &model->params[unit->params[i]];
        const sherdi_plan_param  *layout = &plan->layout.params[unit->params[i]];
        size_t                    start  = sherdi_max_size(layout->offset_elems, first);
        size_t end = sherdi_min_size(layout->offset_elems + param->elems, first + block->elems);

        if (layout->segment != block->segment || start >= end) {
            continue;
        }
        SHERDI_TRY(SHERDI_GROW(plan->mem, plan->layout.spans, plan->layout.num_spans,
                               plan->layout.cap_spans));
        plan->layout.spans[plan->layout.num_spans++] = (sherdi_span){
            .offset_elems = start - first,
            .count_elems  = end - start,
            .first_index  = param->first_index + (start - layout->offset_elems),
            .param        = unit->params[i],
            .group        = param->group,
        };
    }
    block->num_spans = plan->layout.num_spans - block->first_span;
    return SHERD_OK;
}

static sherd_status blocks_make(sherdi_plan *plan, const sherdi_model *model)
{
    size_t most = plan->layout.block_elems;

    /* a block with nothing but padding has no spans, and its first_span must still be valid */
    SHERDI_TRY(
        SHERDI_GROW(plan->mem, plan->layout.spans, plan->layout.num_spans, plan->layout.cap_spans));
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        sherdi_segment *segment = &plan->layout.segments[s];
        size_t          owned   = segment->own_elems;

        segment->first_block = plan->layout.num_blocks;
        if (segment->kind == SHERDI_SEGMENT_FROZEN) {
            continue;
        }
        for (size_t at = 0; at < owned; at += most) {
            sherdi_block block = {
                .segment      = (int)s,
                .offset_elems = at,
                .elems        = sherdi_min_size(most, owned - at),
                .value_offset = SHERDI_NO_OFFSET,
            };

            block.stride_elems = block.elems + (block.elems % ALIASING_ELEMS == 0 ? SKEW_ELEMS : 0);
            SHERDI_TRY(block_add_spans(plan, model, &block, segment->own_first + at));
            SHERDI_TRY(SHERDI_GROW(plan->mem, plan->layout.blocks, plan->layout.num_blocks,
                                   plan->layout.cap_blocks));
            plan->layout.blocks[plan->layout.num_blocks++] = block;
        }
        segment->num_blocks = plan->layout.num_blocks - segment->first_block;
    }
    return SHERD_OK;
}

size_t sherdi_plan_part_offset(const sherdi_plan *plan, const sherdi_block *block, int part,
                               size_t offset_elems)
{
    const sherdi_segment *segment = sherdi_block_segment(plan, block);
    size_t                offset  = sherdi_segment_part_bytes(segment, part, offset_elems);

    for (int i = segment->has_master ? 0 : 1; i < part; i++) {
        offset += sherdi_segment_part_bytes(segment, i, block->stride_elems);
    }
    return offset;
}

size_t sherdi_plan_state_bytes(const sherdi_plan *plan, const sherdi_block *block)
{
    const sherdi_segment *segment = sherdi_block_segment(plan, block);
    int                   last    = sherdi_segment_parts(segment) - 1;

    return last == 0 && !segment->has_master
               ? 0
               : sherdi_plan_part_offset(plan, block, last, block->elems);
}

/* Lays out the state that rests on the device, block by block. */
static void states_lay_out(sherdi_plan *plan)
{
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        sherdi_block *block = &plan->layout.blocks[b];

        if (block->space == SHERDI_SPACE_DEVICE) {
            block->state_offset = arena_take(&plan->packing.buffers[SHERDI_BUFFER_STATE],
                                             sherdi_plan_state_bytes(plan, block), 1);
        }
    }
}

/* Lays out a segment's part of the device's gradient arena: the whole gradient, or its slice; where
 * it is staged, only the blocks whose gradient rests there. */
static void gradient_lay_out(sherdi_plan *plan, sherdi_segment *segment)
{
    sherdi_plan_buffer *arena      = &plan->packing.buffers[SHERDI_BUFFER_GRADS];
    size_t              elem       = sherdi_grad_bytes(plan, segment);
    int                 has_slices = plan->layout.has_slices;
    /* the begin of this rank's elements in the stored array */
    size_t first = has_slices ? 0 : segment->own_first;

    if (!segment->is_staged) {
        segment->grad_offset =
            arena_take(arena, has_slices ? segment->slice_elems : segment->padded_elems, elem);
    }
    for (size_t b = 0; b < segment->num_blocks; b++) {
        sherdi_block *block = &plan->layout.blocks[segment->first_block + b];

        if (!segment->is_staged) {
            block->grad_offset = segment->grad_offset + (first + block->offset_elems) * elem;
        } else if (block->grad_space == SHERDI_SPACE_DEVICE) {
            block->grad_offset = arena_take(arena, block->elems, elem);
        }
    }
}

/* Sizes the staging buffer, for what passes through another type or another space on its way: the
 * wire type of a reduction, then what modules publish. And the room into which the world
 * receives. */
static void staging_size(sherdi_plan *plan)
{
    sherdi_plan_packing *packing = &plan->packing;
    size_t               grads   = 0;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        const sherdi_types   *types   = &segment->types;
        sherd_dtype made_in = plan->settings.sharding.stage >= 2 ? types->compute : types->grad;
        size_t      whole   = segment->padded_elems * sherd_dtype_bytes(types->wire);

        if (segment->has_gradient && !plan->layout.is_deterministic && types->wire != made_in) {
            grads = sherdi_max_size(grads, whole);
        }
        if (segment->has_gradient && plan->machine.has_receive) {
            packing->reduced_bytes = sherdi_max_size(packing->reduced_bytes, whole);
        }
    }
    packing->receive_bytes =
        packing->reduced_bytes -
        (plan->machine.receives_own ? 0 : packing->reduced_bytes / (size_t)plan->world_size);
    packing->buffers[SHERDI_BUFFER_STAGING].bytes =
        sherdi_round_up(sherdi_max_size(grads, packing->publish_offset + packing->publish_bytes),
                        SHERD_ALIGN_BYTES);
}

sherd_status sherdi_plan_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    SHERDI_TRY(segments_make(plan, model));
    plan->layout.block_key   = "zero_optimization.sub_group_size";
    plan->layout.block_elems = sherdi_max_size(plan->settings.sharding.sub_group_size /
                                                   SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS,
                                               SHERD_CHUNK_ELEMS);
    SHERDI_TRY(sherdi_modules_segments_made(plan, model));
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        segment_lay_out(plan, &plan->layout.segments[s]);
    }
    SHERDI_TRY(blocks_make(plan, model));
    SHERDI_TRY(sherdi_modules_blocks_made(plan, model));
    states_lay_out(plan);
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        if (plan->layout.segments[s].has_gradient) {
            gradient_lay_out(plan, &plan->layout.segments[s]);
        }
    }
    staging_size(plan);
    fill_size(plan, model);
    return SHERD_OK;
}
