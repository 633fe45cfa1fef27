/* Checks the invariants of a plan, and of the plans of all ranks together. The walks are long: they
 * are for tests, `sherd plan --check` and builds with slow asserts. The comment of
 * sherd_engine_check_plans lists the rules. */
#include "engine/proof/check.h"

#include "base/checked.h"
#include "engine/report.h"

#include <string.h>

#define BROKEN(plan, ...) broken((plan)->rank, __VA_ARGS__)

static sherd_status broken(int rank, const char *rule, const char *where, size_t number)
{
    return sherdi_fail(SHERD_E_STATE,
                       "the plan of rank %d breaks a rule: %s (%s %zu); this is a bug in sherd: "
                       "please report it, with the model and the configuration",
                       rank, rule, where, number);
}

/* ------------------------------------------------------------- of one rank -- */

static sherd_status segments_check(const sherdi_plan *plan)
{
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];

        if (segment->padded_elems != segment->slice_elems * (size_t)plan->world_size ||
            segment->slice_elems % (SHERD_CHUNK_ELEMS * (size_t)plan->num_replicas) != 0 ||
            segment->padded_elems < segment->elems) {
            return BROKEN(plan, "a segment is equal slices of whole chunks", "segment", s);
        }
    }
    return SHERD_OK;
}

/* The parameters of a segment follow each other in the order of declaration. */
static sherd_status unit_params_check(const sherdi_plan *plan, const sherdi_model *model, int unit,
                                      int segment_index)
{
    const sherdi_segment *segment = &plan->layout.segments[segment_index];
    size_t                end     = 0;

    for (size_t i = 0; i < model->units[unit].num_params; i++) {
        size_t                   p      = (size_t)model->units[unit].params[i];
        const sherdi_plan_param *layout = &plan->layout.params[p];

        if (layout->segment != segment_index) {
            continue;
        }
        if (layout->offset_elems % SHERD_CHUNK_ELEMS != 0 || layout->offset_elems < end) {
            return BROKEN(plan, "parameters do not overlap and begin at chunks", "parameter", p);
        }
        end = layout->offset_elems + model->params[p].elems;
        if (end > segment->padded_elems) {
            return BROKEN(plan, "a parameter ends inside its segment", "parameter", p);
        }
    }
    return SHERD_OK;
}

static sherd_status params_check(const sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        for (size_t s = 0; s < plan->layout.units[u].num_segments; s++) {
            SHERDI_TRY(unit_params_check(
                plan, model, (int)u,
                plan->layout.unit_segments[plan->layout.units[u].first_segment + s]));
        }
    }
    for (size_t p = 0; p < plan->layout.num_params; p++) {
        const sherdi_model_param *param   = &model->params[p];
        const sherdi_segment     *segment = sherdi_param_segment(plan, p);
        const sherdi_optimizer   *wanted =
            param->is_frozen
                  ? NULL
                  : sherdi_group_optimizer(&plan->settings, &model->groups[param->group]);

        if (segment->unit != param->unit || segment->optimizer != wanted) {
            return BROKEN(plan, "a parameter lies in a segment of its unit and its optimizer",
                          "parameter", p);
        }
    }
    return SHERD_OK;
}

static int buffer_ends_at(const sherdi_plan *plan, sherdi_buffer_id id, size_t end)
{
    return plan->packing.buffers[id].bytes >= end;
}

/* Takes [offset, offset + bytes) after all that was taken before. */
static int cursor_take(size_t *at, size_t offset, size_t bytes)
{
    if (offset < *at || offset % SHERD_ALIGN_BYTES != 0) {
        return 0;
    }
    *at = offset + bytes;
    return 1;
}

/* Parameters, and whole or sliced gradients, do not overlap in their arenas. Gradients of staged
 * blocks are checked with the offload (gradients_are_valid). */
static sherd_status arenas_check(const sherdi_plan *plan)
{
    size_t params = 0;
    size_t host   = 0;
    size_t grads  = 0;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t elems = segment->is_resident ? segment->padded_elems : segment->slice_elems;
        size_t made  = plan->layout.has_slices ? segment->slice_elems : segment->padded_elems;

        if (segment->param_offset != SHERDI_NO_OFFSET &&
            !cursor_take(segment->param_space == SHERDI_SPACE_HOST ? &host : &params,
                         segment->param_offset, elems * sherdi_compute_bytes(segment))) {
            return BROKEN(plan, "parameters do not overlap in their arena", "segment", s);
        }
        if (segment->grad_offset != SHERDI_NO_OFFSET && !segment->is_staged &&
            !cursor_take(&grads, segment->grad_offset, made * sherdi_grad_bytes(plan, segment))) {
            return BROKEN(plan, "gradients do not overlap in their arena", "segment", s);
        }
    }
    if (!buffer_ends_at(plan, SHERDI_BUFFER_PARAMS, params) ||
        !buffer_ends_at(plan, SHERDI_BUFFER_HOST_PARAMS, host) ||
        !buffer_ends_at(plan, SHERDI_BUFFER_GRADS, grads)) {
        return BROKEN(plan, "arenas hold what lies in them", "segments", plan->layout.num_segments);
    }
    return SHERD_OK;
}

/* Segments lie inside a gathered unit and inside its transient gradient, in the order in which they
 * were made. */
static sherd_status units_check(const sherdi_plan *plan)
{
    size_t gathered  = 0;
    size_t transient = 0;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment   *segment = &plan->layout.segments[s];
        const sherdi_plan_unit *unit    = &plan->layout.units[segment->unit];
        size_t                  bytes   = segment->padded_elems * sherdi_compute_bytes(segment);

        if (s == 0 || segment->unit != plan->layout.segments[s - 1].unit) {
            gathered  = 0;
            transient = 0;
        }
        if ((segment->gather_offset != SHERDI_NO_OFFSET &&
             !cursor_take(&gathered, segment->gather_offset, bytes)) ||
            (segment->transient_offset != SHERDI_NO_OFFSET &&
             !cursor_take(&transient, segment->transient_offset, bytes)) ||
            gathered > unit->gather_bytes || transient > unit->transient_bytes) {
            return BROKEN(plan, "segments of a gathered unit lie inside it and do not overlap",
                          "segment", s);
        }
    }
    return SHERD_OK;
}

/* Blocks tile the elements that the rank owns; spans lie inside their block and do not overlap. */
static sherd_status blocks_check(const sherdi_plan *plan)
{
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *segment = &plan->layout.segments[s];
        size_t                at      = 0;

        for (size_t b = 0; b < segment->num_blocks; b++) {
            const sherdi_block *block = &plan->layout.blocks[segment->first_block + b];
            size_t              end   = 0;

            if (block->offset_elems != at) {
                return BROKEN(plan, "blocks tile what a rank updates", "segment", s);
            }
            at += block->elems;
            for (size_t i = 0; i < block->num_spans; i++) {
                const sherdi_span *span = &plan->layout.spans[block->first_span + i];

                if (span->offset_elems < end || span->count_elems == 0) {
                    return BROKEN(plan, "spans of a block do not overlap", "segment", s);
                }
                end = span->offset_elems + span->count_elems;
            }
            if (end > block->elems) {
                return BROKEN(plan, "spans end inside their block", "segment", s);
            }
        }
        if (segment->kind != SHERDI_SEGMENT_FROZEN &&
            at != (plan->layout.is_sliced ? segment->slice_elems : segment->padded_elems)) {
            return BROKEN(plan, "blocks cover what a rank updates", "segment", s);
        }
    }
    return SHERD_OK;
}

/* Two units that are in a pool at the same time share no byte. */
static sherd_status live_ranges_check(const sherdi_plan *plan, const char *name,
                                      const sherdi_live_ranges *live_ranges, sherdi_buffer_id pool)
{
    for (size_t i = 0; i < live_ranges->count; i++) {
        if (!buffer_ends_at(plan, pool,
                            live_ranges->items[i].offset + live_ranges->items[i].bytes)) {
            return BROKEN(plan, "a live range ends inside its pool", name, i);
        }
        for (size_t j = 0; j < i; j++) {
            if (live_ranges->items[i].first <= live_ranges->items[j].last &&
                live_ranges->items[j].first <= live_ranges->items[i].last &&
                live_ranges->items[i].offset <
                    live_ranges->items[j].offset + live_ranges->items[j].bytes &&
                live_ranges->items[j].offset <
                    live_ranges->items[i].offset + live_ranges->items[i].bytes) {
                return BROKEN(plan, "units that are there together do not overlap", name, i);
            }
        }
    }
    return SHERD_OK;
}

static int gathered_meet(const sherdi_plan_unit *left, const sherdi_plan_unit *right)
{
    return left->gather_bytes > 0 && right->gather_bytes > 0 &&
           left->gather_pool_offset < right->gather_pool_offset + right->gather_bytes &&
           right->gather_pool_offset < left->gather_pool_offset + left->gather_bytes;
}

static int units_overlap(const sherdi_plan *plan, int a, int b)
{
    const sherdi_plan_unit *left  = &plan->layout.units[a];
    const sherdi_plan_unit *right = &plan->layout.units[b];

    return gathered_meet(left, right) ||
           (left->transient_bytes > 0 && right->transient_bytes > 0 &&
            left->transient_pool_offset < right->transient_pool_offset + right->transient_bytes &&
            right->transient_pool_offset < left->transient_pool_offset + left->transient_bytes);
}

/* A unit lies inside the pools. It does not overlap the units that it reads, and they do not
 * overlap each other. */
static sherd_status pools_check(const sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        const sherdi_plan_unit  *unit = &plan->layout.units[u];
        const sherdi_model_unit *info = &model->units[u];

        if ((unit->gather_bytes > 0 &&
             !buffer_ends_at(plan, SHERDI_BUFFER_GATHER,
                             unit->gather_pool_offset + unit->gather_bytes)) ||
            (unit->transient_bytes > 0 &&
             !buffer_ends_at(plan, SHERDI_BUFFER_TRANSIENT,
                             unit->transient_pool_offset + unit->transient_bytes))) {
            return BROKEN(plan, "a unit's place lies inside its pool", "unit", u);
        }
        for (size_t i = 0; i < info->num_reads; i++) {
            int is_apart = !units_overlap(plan, (int)u, info->reads[i]);

            for (size_t j = 0; j < i; j++) {
                is_apart &= !units_overlap(plan, info->reads[j], info->reads[i]);
            }
            if (!is_apart) {
                return BROKEN(plan, "a unit and what it reads do not overlap", "unit", u);
            }
        }
    }
    return SHERD_OK;
}

/* Without free packing, all live ranges of a unit are at its offset. */
static sherd_status addresses_check(const sherdi_plan *plan, const sherdi_sequence *sequence)
{
    for (size_t i = 0; i < sequence->live_ranges.count && !plan->settings.sharding.free_packing;
         i++) {
        if (sequence->live_ranges.items[i].offset !=
            plan->layout.units[sequence->live_ranges.items[i].unit].gather_pool_offset) {
            return BROKEN(plan, "a unit has one place", "gather", i);
        }
    }
    return SHERD_OK;
}

/* No other unit that EVAL gathers overlaps a unit that evaluation keeps. */
static sherd_status eval_keeps_check(const sherdi_plan *plan)
{
    for (size_t k = 0; k < plan->schedule.lasting.count; k++) {
        int kept = plan->schedule.lasting.items[k].unit;

        for (size_t i = 0; i < plan->schedule.eval.live_ranges.count; i++) {
            int unit = plan->schedule.eval.live_ranges.items[i].unit;

            if (kept != unit &&
                gathered_meet(&plan->layout.units[kept], &plan->layout.units[unit])) {
                return BROKEN(plan, "a unit that evaluation keeps has a place of its own", "unit",
                              (size_t)kept);
            }
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_plan_check(const sherdi_plan *plan, const sherdi_model *model)
{
    SHERDI_TRY(segments_check(plan));
    SHERDI_TRY(params_check(plan, model));
    SHERDI_TRY(arenas_check(plan));
    SHERDI_TRY(units_check(plan));
    SHERDI_TRY(blocks_check(plan));
    if (!sherdi_plan_offload_is_valid(plan)) {
        return BROKEN(plan, "extents, gradients and pieces tile what they should", "blocks",
                      plan->layout.num_blocks);
    }
    SHERDI_TRY(pools_check(plan, model));
    SHERDI_TRY(
        live_ranges_check(plan, "gather", &plan->schedule.train.live_ranges, SHERDI_BUFFER_GATHER));
    SHERDI_TRY(live_ranges_check(plan, "gather of eval", &plan->schedule.eval.live_ranges,
                                 SHERDI_BUFFER_GATHER));
    SHERDI_TRY(addresses_check(plan, &plan->schedule.train));
    SHERDI_TRY(addresses_check(plan, &plan->schedule.eval));
    SHERDI_TRY(eval_keeps_check(plan));
    return live_ranges_check(plan, "transient", &plan->schedule.transients,
                             SHERDI_BUFFER_TRANSIENT);
}

/* ------------------------------------------------------- of all ranks together -- */

/* Adds the elements that a rank updates: the spans of a parameter must begin where those of the
 * ranks before ended. */
static sherd_status ownership_add(const sherdi_plan *plan, const sherdi_model *model, size_t *next)
{
    if (!plan->layout.is_sliced) {
        memset(next, 0, model->num_params * sizeof(*next)); /* every rank updates everything */
    }
    for (size_t i = 0; i < plan->layout.num_spans; i++) {
        const sherdi_span *span = &plan->layout.spans[i];
        size_t             p    = (size_t)span->param;

        if (span->first_index != model->params[p].first_index + next[p]) {
            return BROKEN(plan, "every element is updated by one rank", "parameter", p);
        }
        next[p] += span->count_elems;
    }
    return SHERD_OK;
}

static sherd_status ownership_check(const sherdi_plan *plan, const sherdi_model *model,
                                    const size_t *next)
{
    for (size_t p = 0; p < model->num_params; p++) {
        if (next[p] != (model->params[p].is_frozen ? 0 : model->params[p].elems)) {
            return BROKEN(plan, "every element of a trainable parameter is updated", "parameter",
                          p);
        }
    }
    return SHERD_OK;
}

static int live_ranges_equal(const sherdi_live_ranges *all, const sherdi_live_ranges *others)
{
    const sherdi_live_range *a = all->items;
    const sherdi_live_range *b = others->items;

    for (size_t i = 0; i < all->count; i++) {
        if (a[i].unit != b[i].unit || a[i].first != b[i].first || a[i].last != b[i].last ||
            a[i].offset != b[i].offset || a[i].bytes != b[i].bytes) {
            return 0;
        }
    }
    return 1;
}

/* Properties that must be equal on all ranks: slices, the offsets of memory that peers read, the
 * collectives and their order. */
static sherd_status alike_check(const sherdi_plan *first, const sherdi_plan *plan)
{
    const sherdi_plan_moves *moves = sherdi_plan_moves_of(plan);

    if (plan->layout.num_segments != first->layout.num_segments ||
        moves->num_collectives != sherdi_plan_moves_of(first)->num_collectives ||
        plan->schedule.train.live_ranges.count != first->schedule.train.live_ranges.count ||
        plan->schedule.eval.live_ranges.count != first->schedule.eval.live_ranges.count ||
        plan->schedule.transients.count != first->schedule.transients.count) {
        return BROKEN(plan, "ranks have the same segments, collectives and gathers", "segments",
                      plan->layout.num_segments);
    }
    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        const sherdi_segment *mine  = &plan->layout.segments[s];
        const sherdi_segment *other = &first->layout.segments[s];

        if (mine->unit != other->unit || mine->kind != other->kind ||
            mine->types.compute != other->types.compute || mine->types.wire != other->types.wire ||
            mine->slice_elems != other->slice_elems || mine->is_resident != other->is_resident ||
            mine->param_space != other->param_space || mine->param_offset != other->param_offset) {
            return BROKEN(plan, "ranks have the same slices at the same places", "segment", s);
        }
    }
    if (moves->collectives_hash != sherdi_plan_moves_of(first)->collectives_hash) {
        return BROKEN(plan, "ranks make the same collectives", "collectives",
                      moves->num_collectives);
    }
    if (!live_ranges_equal(&plan->schedule.train.live_ranges, &first->schedule.train.live_ranges) ||
        !live_ranges_equal(&plan->schedule.eval.live_ranges, &first->schedule.eval.live_ranges) ||
        !live_ranges_equal(&plan->schedule.transients, &first->schedule.transients)) {
        return BROKEN(plan, "ranks gather to the same places", "gathers",
                      plan->schedule.train.live_ranges.count);
    }
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        if (plan->packing.buffers[b].is_shared &&
            plan->packing.buffers[b].bytes != first->packing.buffers[b].bytes) {
            return BROKEN(plan, "buffers that peers read are equal", "buffer", (size_t)b);
        }
    }
    return SHERD_OK;
}

/* The shapes of programs that were seen. Programs are proved in pairs with rank 0's: those of rank
 * 1 and of the last rank, and each whose shape no rank before had. */
typedef struct shapes {
    uint64_t *at;
    size_t    count, capacity;
} shapes;

static sherd_status shape_add(shapes *seen, sherdi_mem *mem, uint64_t shape, int *is_new_out)
{
    *is_new_out = 0;
    for (size_t i = 0; i < seen->count; i++) {
        if (seen->at[i] == shape) {
            return SHERD_OK;
        }
    }
    SHERDI_TRY(sherdi_grow(mem, SHERDI_MEM_CONTROL, (void **)&seen->at, &seen->capacity,
                           seen->count + 1, sizeof(*seen->at)));
    seen->at[seen->count++] = shape;
    *is_new_out             = 1;
    return SHERD_OK;
}

static sherd_status order_check(const sherdi_plan *first, const sherdi_plan *plan,
                                const sherdi_model *model, const sherdi_plan_makers *by,
                                shapes *seen)
{
    int is_new;

    SHERDI_TRY(shape_add(seen, plan->mem, sherdi_program_shape(plan), &is_new));
    if (!(is_new && plan->rank > 0) && plan->rank != 1 && plan->rank != plan->world_size - 1) {
        return SHERD_OK;
    }
    return by->prove(first, plan, model);
}

sherd_status sherdi_plan_check_ranks(const sherdi_plan *plan, const sherdi_model *model,
                                     const sherdi_plan_makers *by)
{
    size_t *next =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, model->num_params, sizeof(*next));
    shapes       seen   = {0};
    sherdi_plan *first  = NULL;
    sherd_status status = next == NULL ? SHERD_E_NOMEM : SHERD_OK;

    for (int rank = 0; rank < plan->world_size && status == SHERD_OK; rank++) {
        sherdi_plan *other;

        status = by->make(model, &plan->settings, sherdi_plan_rank_of_all(plan, rank),
                          sherdi_plan_all_ranks(plan), &plan->machine, plan->mem, &other);
        if (status != SHERD_OK) {
            break;
        }
        first  = first == NULL ? other : first;
        status = sherdi_plan_check(other, model);
        if (status == SHERD_OK) {
            status = alike_check(first, other);
        }
        if (status == SHERD_OK) {
            status = ownership_add(other, model, next);
        }
        if (status == SHERD_OK && (!other->layout.is_sliced || rank == plan->world_size - 1)) {
            status = ownership_check(other, model, next);
        }
        if (status == SHERD_OK) {
            status = order_check(first, other, model, by, &seen);
        }
        if (other != first) {
            sherdi_plan_destroy(other);
        }
    }
    sherdi_plan_destroy(first);
    sherdi_free(seen.at);
    sherdi_free(next);
    return status;
}
