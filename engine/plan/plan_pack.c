/* Packing: gives units their offsets in the gather pool and in the transient pool. All live ranges
 * of a unit have one offset, so that a parameter has one address for the life of the engine; units
 * that are in the pool together do not overlap. With sherd.free_packing each live range has an
 * offset of its own. plan_schedule.c has decided when units are in the pools. */
#include "engine/plan/plan.h"

#include "base/checked.h"

#include <stdlib.h>

/* An object with an offset: a unit; or with free packing one of its live ranges. */
typedef struct pack_item {
    size_t bytes, offset;
    size_t index; /* before the items were sorted */
    size_t first; /* the earliest time at which it is in the pool */
    size_t times; /* head of its list in packing.times, plus 1; 0: it is never in the pool */
} pack_item;

/* A time in the pool, from `first` to `last`, inclusive. */
typedef struct pack_time {
    size_t first, last;
    size_t next; /* next time of the same item, plus 1 */
} pack_time;

typedef struct packing {
    sherdi_plan *plan;
    pack_item   *items;
    size_t       num_items;
    pack_time   *times;
    size_t       num_times, cap_times;
    pack_item  **packed; /* by ascending offset */
} packing;

static sherd_status packing_init(packing *p, sherdi_plan *plan, size_t num_items)
{
    *p        = (packing){.plan = plan, .num_items = num_items};
    p->items  = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, num_items, sizeof(*p->items));
    p->packed = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, num_items, sizeof(*p->packed));
    return p->items == NULL || p->packed == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static void packing_fini(packing *p)
{
    sherdi_free(p->items);
    sherdi_free(p->times);
    sherdi_free(p->packed);
}

static sherd_status time_add(packing *p, size_t item, size_t first, size_t last)
{
    pack_item *owner = &p->items[item];

    SHERDI_TRY(sherdi_grow(p->plan->mem, SHERDI_MEM_CONTROL, (void **)&p->times, &p->cap_times,
                           p->num_times + 1, sizeof(*p->times)));
    owner->first           = owner->times == 0 ? first : sherdi_min_size(owner->first, first);
    p->times[p->num_times] = (pack_time){.first = first, .last = last, .next = owner->times};
    owner->times           = ++p->num_times;
    return SHERD_OK;
}

static int items_meet(const packing *p, const pack_item *a, const pack_item *b)
{
    for (size_t i = a->times; i != 0; i = p->times[i - 1].next) {
        for (size_t j = b->times; j != 0; j = p->times[j - 1].next) {
            if (p->times[i - 1].first <= p->times[j - 1].last &&
                p->times[j - 1].first <= p->times[i - 1].last) {
                return 1;
            }
        }
    }
    return 0;
}

static int item_order(const void *a, const void *b)
{
    const pack_item *left  = a;
    const pack_item *right = b;

    if (left->bytes != right->bytes) {
        return left->bytes > right->bytes ? -1 : 1;
    }
    if (left->first != right->first) {
        return left->first < right->first ? -1 : 1;
    }
    return left->index < right->index ? -1 : 1;
}

/* Packs an item at the lowest offset at which it overlaps no item that is in the pool at the same
 * time. */
static void item_pack(packing *p, size_t num_packed, pack_item *item)
{
    size_t at = num_packed;

    for (size_t i = 0; i < num_packed; i++) {
        const pack_item *other = p->packed[i];

        if (other->offset >= item->offset + item->bytes) {
            break;
        }
        if (other->offset + other->bytes > item->offset && items_meet(p, item, other)) {
            item->offset = other->offset + other->bytes;
        }
    }
    for (; at > 0 && p->packed[at - 1]->offset > item->offset; at--) {
        p->packed[at] = p->packed[at - 1];
    }
    p->packed[at] = item;
}

/* Packs items largest first, each at its lowest offset (greedy by size; Pisarchyk and Lee 2020 find
 * it near the optimum). Items of one size are packed in the order in which they first appear: so
 * layers alternate between as many offsets as there are units in the pool together. *peak becomes
 * the end of the highest item, if that is larger. */
static void items_pack(packing *p, size_t *peak)
{
    for (size_t i = 0; i < p->num_items; i++) {
        p->items[i].index = i;
    }
    qsort(p->items, p->num_items, sizeof(p->items[0]), item_order);
    for (size_t i = 0; i < p->num_items && p->items[i].bytes > 0; i++) {
        item_pack(p, i, &p->items[i]);
        *peak = sherdi_max_size(*peak, p->items[i].offset + p->items[i].bytes);
    }
}

/* ---------------------------------------------------------------- units -- */

static sherd_status live_ranges_add(packing *p, const sherdi_live_ranges *live_ranges, size_t begin)
{
    for (size_t i = 0; i < live_ranges->count; i++) {
        SHERDI_TRY(time_add(p, (size_t)live_ranges->items[i].unit,
                            begin + live_ranges->items[i].first,
                            begin + live_ranges->items[i].last));
    }
    return SHERD_OK;
}

/* A unit that no pass lists may come at any time. */
static sherd_status strays_add(packing *p)
{
    for (size_t u = 0; u < p->num_items; u++) {
        if (p->items[u].times == 0) {
            SHERDI_TRY(time_add(p, u, 0, SIZE_MAX));
        }
    }
    return SHERD_OK;
}

/* A unit and the units that it reads are in the pool together whenever the unit is acquired; this
 * counts as a separate time. */
static sherd_status reads_add(packing *p, const sherdi_model *model, size_t begin)
{
    for (size_t u = 0; u < model->num_units; u++) {
        const sherdi_model_unit *unit = &model->units[u];

        for (size_t i = 0; i < unit->num_reads; i++) {
            SHERDI_TRY(time_add(p, (size_t)unit->reads[i], begin + u, begin + u));
        }
        if (unit->num_reads > 0) {
            SHERDI_TRY(time_add(p, u, begin + u, begin + u));
        }
    }
    return SHERD_OK;
}

/* Adds the times at which units are in a pool: first the positions of training, then those of EVAL,
 * then the times of reads_add. */
static sherd_status units_times(packing *p, const sherdi_model *model, sherdi_buffer_id pool)
{
    const sherdi_plan *plan  = p->plan;
    size_t             train = plan->schedule.train.num_steps + 1; /* a reduction ends one later */
    int                is_free = plan->settings.sharding.free_packing;

    if (!is_free && pool == SHERDI_BUFFER_GATHER) {
        SHERDI_TRY(live_ranges_add(p, &plan->schedule.train.live_ranges, 0));
        SHERDI_TRY(live_ranges_add(p, &plan->schedule.eval.live_ranges, train));
        SHERDI_TRY(live_ranges_add(p, &plan->schedule.lasting, train));
    }
    if (pool == SHERDI_BUFFER_TRANSIENT) {
        SHERDI_TRY(live_ranges_add(p, &plan->schedule.transients, 0));
    }
    if (!is_free) {
        SHERDI_TRY(strays_add(p));
    }
    return reads_add(p, model, train + plan->schedule.eval.num_steps);
}

/* Packs the units of a pool. With free packing, these are the offsets at which gathered units lie
 * off the plan. */
static sherd_status units_pack(sherdi_plan *plan, const sherdi_model *model, sherdi_buffer_id pool)
{
    int          is_gather = pool == SHERDI_BUFFER_GATHER;
    packing      p;
    sherd_status status = packing_init(&p, plan, plan->layout.num_units);

    for (size_t u = 0; u < plan->layout.num_units && status == SHERD_OK; u++) {
        p.items[u].bytes =
            is_gather ? plan->layout.units[u].gather_bytes : plan->layout.units[u].transient_bytes;
    }
    if (status == SHERD_OK) {
        status = units_times(&p, model, pool);
    }
    if (status == SHERD_OK) {
        items_pack(&p, &plan->packing.buffers[pool].bytes);
    }
    for (size_t u = 0; u < plan->layout.num_units && status == SHERD_OK; u++) {
        sherdi_plan_unit *unit = &plan->layout.units[p.items[u].index];

        *(is_gather ? &unit->gather_pool_offset : &unit->transient_pool_offset) =
            p.items[u].bytes > 0 ? p.items[u].offset : SHERDI_NO_OFFSET;
    }
    packing_fini(&p);
    return status;
}

/* ---------------------------------------------------------------- live ranges -- */

/* Packs each live range for itself. */
static sherd_status live_ranges_pack(sherdi_plan *plan, sherdi_live_ranges *live_ranges,
                                     size_t *peak)
{
    packing      p;
    sherd_status status = packing_init(&p, plan, live_ranges->count);

    for (size_t i = 0; i < live_ranges->count && status == SHERD_OK; i++) {
        p.items[i].bytes = live_ranges->items[i].bytes;
        status           = time_add(&p, i, live_ranges->items[i].first, live_ranges->items[i].last);
    }
    if (status == SHERD_OK) {
        items_pack(&p, peak);
    }
    for (size_t i = 0; i < live_ranges->count && status == SHERD_OK; i++) {
        live_ranges->items[p.items[i].index].offset = p.items[i].offset;
    }
    packing_fini(&p);
    return status;
}

/* Gives live ranges the offsets of their units. */
static void live_ranges_settle(const sherdi_plan *plan, sherdi_live_ranges *live_ranges,
                               sherdi_buffer_id pool)
{
    for (size_t i = 0; i < live_ranges->count; i++) {
        const sherdi_plan_unit *unit = &plan->layout.units[live_ranges->items[i].unit];

        live_ranges->items[i].offset =
            pool == SHERDI_BUFFER_GATHER ? unit->gather_pool_offset : unit->transient_pool_offset;
    }
}

sherd_status sherdi_plan_pack(sherdi_plan *plan, const sherdi_model *model)
{
    size_t *gather = &plan->packing.buffers[SHERDI_BUFFER_GATHER].bytes;

    SHERDI_TRY(units_pack(plan, model, SHERDI_BUFFER_GATHER));
    SHERDI_TRY(units_pack(plan, model, SHERDI_BUFFER_TRANSIENT));
    live_ranges_settle(plan, &plan->schedule.transients, SHERDI_BUFFER_TRANSIENT);
    if (plan->settings.sharding.free_packing) {
        SHERDI_TRY(live_ranges_pack(plan, &plan->schedule.train.live_ranges, gather));
        return live_ranges_pack(plan, &plan->schedule.eval.live_ranges, gather);
    }
    live_ranges_settle(plan, &plan->schedule.train.live_ranges, SHERDI_BUFFER_GATHER);
    live_ranges_settle(plan, &plan->schedule.eval.live_ranges, SHERDI_BUFFER_GATHER);
    return SHERD_OK;
}
