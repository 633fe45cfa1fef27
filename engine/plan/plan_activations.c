/* Where activations rest. The activations of a tier pass through places that they share, in the
 * order of forward: one that is n-th takes place n modulo the number of places. If backward is the
 * reverse of forward, the last units of forward are the first of backward: the last ones, one for
 * each place, are never moved. Places in host memory on the way to a drive work in the same way. */
#include "engine/plan/activations.h"

#include "base/checked.h"

/* The activations of a space, while they are laid out. */
typedef struct group {
    sherdi_activation *first;
    size_t             count, longest;
    size_t             places;      /* on the device */
    size_t            *backward;    /* their numbers in the group, in the order of backward */
    int                is_reversed; /* which is the reverse of that of forward */
} group;

static const sherdi_tier_kind *tier_of(const sherdi_plan *plan, const sherdi_model_unit *unit)
{
    return unit->activation_tier == NULL ? plan->settings.offload.activations.tier
                                         : unit->activation_tier;
}

/* Checks how often the passes acquire a unit that has an activation. */
static sherd_status uses_check(const sherdi_model_unit *unit, const size_t uses[2])
{
    if (unit->activation_bytes == 0 || (uses[SHERD_FORWARD] == 1 && uses[SHERD_BACKWARD] == 1)) {
        return SHERD_OK;
    }
    return sherdi_fail(
        SHERD_E_NOTSUP,
        "unit %s has an activation, but the passes list it %zu times for forward and "
        "%zu times for backward; list it once for each, or declare no activation",
        unit->name, uses[SHERD_FORWARD], uses[SHERD_BACKWARD]);
}

static sherd_status uses_check_all(const sherdi_plan *plan, const sherdi_model *model)
{
    size_t(*uses)[2] =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, plan->layout.num_units, sizeof(*uses));
    sherd_status status = uses == NULL ? SHERD_E_NOMEM : SHERD_OK;

    for (size_t p = 0; status == SHERD_OK && p < plan->schedule.train.num_steps; p++) {
        uses[plan->schedule.train.steps[p].unit][plan->schedule.train.steps[p].pass]++;
    }
    for (size_t u = 0; status == SHERD_OK && u < plan->layout.num_units; u++) {
        status = uses_check(&model->units[u], uses[u]);
    }
    sherdi_free(uses);
    return status;
}

/* Adds the activations of a space, in the order of forward. */
static void group_collect(sherdi_plan *plan, const sherdi_model *model, sherdi_space space,
                          group *out)
{
    *out = (group){.first = &plan->activations->items[plan->activations->count]};
    for (size_t p = 0; p < plan->schedule.train.num_steps; p++) {
        int                      unit  = plan->schedule.train.steps[p].unit;
        const sherdi_model_unit *info  = &model->units[unit];
        sherdi_activation        added = {.unit         = unit,
                                          .host_offset  = SHERDI_NO_OFFSET,
                                          .extent       = SHERDI_NO_OFFSET,
                                          .next         = SHERDI_NO_ACTIVATION,
                                          .next_on_host = SHERDI_NO_ACTIVATION};

        if (plan->schedule.train.steps[p].pass != SHERD_FORWARD || info->activation_bytes == 0 ||
            tier_of(plan, info)->space != space) {
            continue;
        }
        if (space == SHERDI_SPACE_STORAGE) {
            plan->rings[SHERDI_RING_ACTIVATIONS].tier = tier_of(plan, info);
        }
        added.bytes = sherdi_round_up(info->activation_bytes, SHERD_ALIGN_BYTES);
        plan->layout.units[unit].activation                = plan->activations->count;
        plan->activations->items[plan->activations->count] = added;
        plan->activations->count++;
        out->count++;
        out->longest = sherdi_max_size(out->longest, added.bytes);
    }
}

static int is_in(const sherdi_plan *plan, const group *g, int unit)
{
    size_t at    = plan->layout.units[unit].activation;
    size_t begin = (size_t)(g->first - plan->activations->items);

    return at != SHERDI_NO_ACTIVATION && at >= begin && at - begin < g->count;
}

/* Finds the order of backward. */
static sherd_status backward_find(const sherdi_plan *plan, group *g)
{
    size_t count = 0;

    g->backward = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, g->count, sizeof(*g->backward));
    if (g->backward == NULL) {
        return SHERD_E_NOMEM;
    }
    g->is_reversed = 1;
    for (size_t p = 0; p < plan->schedule.train.num_steps; p++) {
        const sherdi_step_of_pass *step  = &plan->schedule.train.steps[p];
        size_t                     at    = plan->layout.units[step->unit].activation;
        size_t                     begin = (size_t)(g->first - plan->activations->items);

        if (step->pass == SHERD_BACKWARD && is_in(plan, g, step->unit)) {
            g->is_reversed       = g->is_reversed && at - begin == g->count - 1 - count;
            g->backward[count++] = at - begin;
        }
    }
    return SHERD_OK;
}

/* Links the first `count` activations that have the same place, in the order of backward. */
static sherd_status places_link(sherdi_plan *plan, const group *g, size_t count, size_t places,
                                sherdi_buffer_id id)
{
    size_t **last =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, places, sizeof(*last)); /* by place */

    if (last == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t i = 0; i < g->count; i++) {
        sherdi_activation *a = &g->first[g->backward[i]];

        if (g->backward[i] < count) {
            size_t place = g->backward[i] % places;

            if (last[place] != NULL) {
                *last[place] = (size_t)(a - plan->activations->items);
            }
            last[place] = id == SHERDI_BUFFER_ACTIVATIONS ? &a->next : &a->next_on_host;
        }
    }
    sherdi_free(last);
    return SHERD_OK;
}

/* Gives each of the first `count` activations a place. With a place for each, none is longer than
 * its activation. */
static sherd_status places_give(sherdi_plan *plan, const group *g, size_t count, size_t places,
                                sherdi_buffer_id id)
{
    size_t *bytes = &plan->packing.buffers[id].bytes;
    size_t  begin = *bytes;

    for (size_t i = 0; i < count; i++) {
        sherdi_activation *a  = &g->first[i];
        size_t             at = places >= count ? *bytes : begin + i % places * g->longest;

        *bytes += places >= count ? a->bytes : 0;
        *(id == SHERDI_BUFFER_ACTIVATIONS ? &a->offset : &a->host_offset) = at;
    }
    *bytes += places >= count ? 0 : places * g->longest;
    return places == 0 ? SHERD_OK : places_link(plan, g, count, places, id);
}

static sherd_status extents_give(sherdi_plan *plan, const group *g, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sherdi_extent extent = {.offset_bytes = plan->nvme_bytes[3],
                                .len_bytes    = g->first[i].bytes};

        SHERDI_TRY(sherdi_grow(
            plan->mem, SHERDI_MEM_CONTROL, (void **)&plan->rings[SHERDI_RING_ACTIVATIONS].extents,
            &plan->rings[SHERDI_RING_ACTIVATIONS].cap_extents,
            plan->rings[SHERDI_RING_ACTIVATIONS].num_extents + 1, sizeof(extent)));
        g->first[i].extent = plan->rings[SHERDI_RING_ACTIVATIONS].num_extents;
        plan->rings[SHERDI_RING_ACTIVATIONS]
            .extents[plan->rings[SHERDI_RING_ACTIVATIONS].num_extents++] = extent;
        plan->nvme_bytes[3] += extent.len_bytes;
    }
    return SHERD_OK;
}

/* Returns the places that the group needs: while a unit is held, no activation that is put or got
 * may have the place of its own. */
static size_t places_needed(const sherdi_plan *plan, const group *g,
                            const sherdi_sequence *sequence)
{
    size_t most = 1;

    for (size_t p = 0; p < sequence->num_steps; p++) {
        size_t last = sherdi_min_size(sequence->steps[p].last, sequence->num_steps - 1);
        size_t own  = plan->layout.units[sequence->steps[p].unit].activation;

        for (size_t q = p + 1; is_in(plan, g, sequence->steps[p].unit) && q <= last; q++) {
            size_t other = plan->layout.units[sequence->steps[q].unit].activation;

            if (is_in(plan, g, sequence->steps[q].unit)) {
                most = sherdi_max_size(most, 1 + (other > own ? other - own : own - other));
            }
        }
    }
    return most;
}

static sherd_status group_places(sherdi_plan *plan, group *g, sherdi_space space)
{
    size_t buffers = (size_t)plan->settings.offload.activations.buffer_count;
    size_t needed;   /* places */
    size_t moved;    /* activations that leave their places */
    size_t kept = 0; /* the last of these, which stay in host memory */

    needed = sherdi_max_size(places_needed(plan, g, &plan->schedule.train),
                             places_needed(plan, g, &plan->schedule.eval)); /* scratch of EVAL */
    needed = sherdi_max_size(needed, buffers);
    SHERDI_TRY(backward_find(plan, g));
    g->places = space == SHERDI_SPACE_DEVICE ? g->count : sherdi_min_size(g->count, needed);
    moved     = g->is_reversed || g->places == g->count ? g->count - g->places : g->count;
    SHERDI_TRY(places_give(plan, g, g->count, g->places, SHERDI_BUFFER_ACTIVATIONS));
    if (space == SHERDI_SPACE_HOST) {
        kept = moved;
    } else if (plan->machine.has_device) {
        kept = sherdi_min_size(moved, buffers);
    }
    if (kept > 0) {
        SHERDI_TRY(places_give(plan, g, moved, kept, SHERDI_BUFFER_HOST_ACTIVATIONS));
    }
    if (!g->is_reversed && kept < moved) {
        kept = 0; /* all have to leave host memory too */
    }
    if (moved > kept) {
        plan->rings[SHERDI_RING_ACTIVATIONS].transfers =
            2 * sherdi_max_size(buffers, g->places) + 1;
    }
    return extents_give(plan, g, moved - kept);
}

static sherd_status group_lay_out(sherdi_plan *plan, const sherdi_model *model, sherdi_space space)
{
    group        g;
    sherd_status status;

    group_collect(plan, model, space, &g);
    status = group_places(plan, &g, space);
    sherdi_free(g.backward);
    return status;
}

sherd_status sherdi_plan_activations_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    size_t count = 0;

    plan->activations = sherdi_alloc(plan->mem, SHERDI_MEM_CONTROL, sizeof(*plan->activations));
    if (plan->activations == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_ACTIVATIONS, "activations", SHERDI_MEM_ACTIVATIONS,
                            0);
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_HOST_ACTIVATIONS, "offloaded activations",
                            SHERDI_MEM_HOST_ACTIVATIONS, 1);
    plan->packing.buffers[SHERDI_BUFFER_HOST_ACTIVATIONS].is_pinned =
        plan->machine.has_device && plan->settings.offload.activations.pin_memory;
    for (size_t u = 0; u < plan->layout.num_units; u++) {
        plan->layout.units[u].activation = SHERDI_NO_ACTIVATION;
        count += model->units[u].activation_bytes > 0;
    }
    if (count == 0) {
        return SHERD_OK;
    }
    SHERDI_TRY(uses_check_all(plan, model));
    plan->activations->items =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, count, sizeof(*plan->activations->items));
    if (plan->activations->items == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int space = 0; space < SHERDI_SPACES; space++) {
        SHERDI_TRY(group_lay_out(plan, model, (sherdi_space)space));
    }
    return SHERD_OK;
}

void sherdi_plan_activations_destroy(sherdi_plan *plan)
{
    if (plan->activations != NULL) {
        sherdi_free(plan->activations->items);
        sherdi_free(plan->activations);
    }
}
