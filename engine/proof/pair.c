/* See pair.h. */
#include "engine/proof/pair.h"

#include "base/checked.h"
#include "engine/proof/names.h"

#include <stdio.h>
#include <string.h>

#define RANKS SHERDI_PAIR_RANKS

/* Checks that no range exceeds its buffer. Scalars of kernels have no buffer in the plan if there
 * is no device. */
static sherd_status bounds_check(const sherdi_plan *plan, const sherdi_op *op)
{
    for (int role = 0; role < SHERDI_USES; role++) {
        const sherdi_range *use = &op->uses[role];

        if (use->where >= 0 && use->where < SHERDI_BUFFERS && use->where != SHERDI_BUFFER_SCALARS &&
            (use->offset > plan->packing.buffers[use->where].bytes ||
             use->bytes > plan->packing.buffers[use->where].bytes - use->offset)) {
            return sherdi_fail(SHERD_E_INVAL,
                               "rank %d: the operation %s of segment %d %s %zu bytes at offset %zu "
                               "of %s, which has only %zu",
                               plan->rank, sherdi_op_kind_name(op->kind), op->segment,
                               sherdi_access_name((sherdi_access)use->access), use->bytes,
                               use->offset, sherdi_where_name(plan, use->where),
                               plan->packing.buffers[use->where].bytes);
        }
    }
    return SHERD_OK;
}

/* Collects an operation as the machine would carry it out: on a device every gather meets; and
 * where collectives are ordered on the device's lane, control data does not wait for that lane. */
sherd_status sherdi_pair_collect(void *ctx, const sherdi_op *op)
{
    sherdi_pair_side *side      = ctx;
    int               is_queued = (op->flags & SHERDI_OP_QUEUED) != 0;
    sherdi_op       **ops       = is_queued ? &side->queued : &side->ops;
    size_t           *num_ops   = is_queued ? &side->num_queued : &side->num_ops;
    sherdi_op        *copy;

    SHERDI_TRY(bounds_check(side->plan, op));
    SHERDI_TRY(sherdi_grow(side->mem, SHERDI_MEM_CONTROL, (void **)ops,
                           is_queued ? &side->cap_queued : &side->cap_ops, *num_ops + 1,
                           sizeof(**ops)));
    if (is_queued && side->forked_at == SIZE_MAX) {
        side->forked_at = side->num_ops;
    }
    copy  = &(*ops)[(*num_ops)++];
    *copy = *op;
    if (side->plan->machine.has_device && (op->flags & SHERDI_OP_STABLE) != 0) {
        copy->flags |= SHERDI_OP_MEETS;
    }
    if (side->plan->machine.is_on_lane && (op->flags & SHERDI_OP_WAITS) != 0) {
        copy->lane = SHERDI_LANE_HOST;
    }
    return SHERD_OK;
}

/* Writes operation `at` of a call, on one side. */
static void op_text(const sherdi_pair_side *side, size_t at, char out[64])
{
    const sherdi_op *op = at < side->num_ops ? &side->ops[at] : NULL;

    (void)snprintf(out, 64, "%s%s%s", op == NULL ? "nothing more" : sherdi_op_kind_name(op->kind),
                   op == NULL ? "" : " on lane ", op == NULL ? "" : sherdi_lane_name(op->lane));
}

sherd_status sherdi_pair_part(const sherdi_pair *pair, size_t one, size_t other)
{
    char texts[RANKS][64];

    op_text(&pair->sides[0], one, texts[0]);
    op_text(&pair->sides[1], other, texts[1]);
    return sherdi_fail(SHERD_E_STATE,
                       "ranks %d and %d do different operations in the same call: %s, and %s",
                       pair->sides[0].plan->rank, pair->sides[1].plan->rank, texts[0], texts[1]);
}

static sherd_status use_add(sherdi_pair *pair, const sherdi_op *one, const sherdi_op *other)
{
    SHERDI_TRY(sherdi_grow(pair->mem, SHERDI_MEM_CONTROL, (void **)&pair->uses, &pair->cap_uses,
                           pair->num_uses + 1, sizeof(*pair->uses)));
    pair->uses[pair->num_uses++] = (sherdi_pair_use){
        .ops = {*one, *other}, .unit = pair->unit, .pass = pair->pass, .acquire = pair->acquires};
    return SHERD_OK;
}

/* The same operation without bytes: an operation that only one rank makes has no effect on the
 * other. */
static sherdi_op without_bytes(const sherdi_op *op)
{
    sherdi_op nothing = *op;

    nothing.kind = op->kind == SHERDI_OP_AWAIT ? SHERDI_OP_KINDS : op->kind;
    for (int role = 0; role < SHERDI_USES; role++) {
        nothing.uses[role] = (sherdi_range){.where = SHERDI_AT_NOWHERE};
    }
    return nothing;
}

static sherd_status both_prove(sherdi_pair *pair, const sherdi_op *one, const sherdi_op *other)
{
    SHERDI_TRY(sherdi_hazard_op(pair->hazard, one, other));
    return sherdi_op_is_trainers(one->kind) ? use_add(pair, one, other) : SHERD_OK;
}

/* Returns whether all operations of the updater that come before this await were proved. */
static int is_behind(const sherdi_pair *pair, const sherdi_op *await)
{
    const sherdi_pair_side *side = &pair->sides[0];

    for (size_t i = 0; i < side->at_queued; i++) {
        const sherdi_op *op = &side->queued[i];

        if (op->kind == SHERDI_OP_POST && op->part == await->part && op->unit == await->unit) {
            return 1;
        }
    }
    return side->at_queued == side->end_queued;
}

/* Proves the updater's operations up to the post that `await` waits for; NULL: all of them. */
static sherd_status beside_prove(sherdi_pair *pair, const sherdi_op *await)
{
    sherdi_pair_side *sides = pair->sides;

    while (await == NULL ? sides[0].at_queued < sides[0].end_queued : !is_behind(pair, await)) {
        const sherdi_op *ops[RANKS];

        for (int r = 0; r < RANKS; r++) {
            if (sides[r].at_queued == sides[r].end_queued) {
                return sherdi_pair_part(pair, sides[0].num_ops, sides[1].num_ops);
            }
            ops[r] = &sides[r].queued[sides[r].at_queued++];
        }
        if (ops[0]->kind != ops[1]->kind || ops[0]->lane != ops[1]->lane) {
            return sherdi_pair_part(pair, sides[0].num_ops, sides[1].num_ops);
        }
        SHERDI_TRY(both_prove(pair, ops[0], ops[1]));
    }
    return SHERD_OK;
}

/* Before an await, the updater comes as far as it waits for. */
static sherd_status await_prove(sherdi_pair *pair, const sherdi_op *op)
{
    int is_dropped = pair->dropped_await == op->part;

    return op->kind == SHERDI_OP_AWAIT && !is_dropped ? beside_prove(pair, op) : SHERD_OK;
}

/* The next operation of a side before `end`; NULL: there is none. *is_alone: the other side need
 * not have it. */
static const sherdi_op *next_of(const sherdi_pair_side *side, size_t at, size_t end,
                                int is_mirrored, int *is_alone)
{
    const sherdi_op *op = at < end ? &side->ops[at] : NULL;

    *is_alone = op != NULL && (is_mirrored || (op->flags & SHERDI_OP_ALONE) != 0);
    return op;
}

/* Checks the operations of a call from at[] up to ends[] for hazards. is_mirrored: only one rank
 * made it. */
static sherd_status ops_prove(sherdi_pair *pair, size_t at[RANKS], const size_t ends[RANKS],
                              int is_mirrored)
{
    while (at[0] < ends[0] || at[1] < ends[1]) {
        int              is_alone[RANKS];
        const sherdi_op *ops[RANKS];
        sherdi_op        nothing;

        for (int r = 0; r < RANKS; r++) {
            ops[r] = next_of(&pair->sides[r], at[r], ends[r], is_mirrored, &is_alone[r]);
        }
        if (is_alone[0] != is_alone[1] || (is_alone[0] && ops[0]->kind != ops[1]->kind)) {
            int who = is_alone[0] ? 0 : 1;

            nothing = without_bytes(ops[who]);
            SHERDI_TRY(await_prove(pair, ops[who]));
            SHERDI_TRY(
                both_prove(pair, who == 0 ? ops[0] : &nothing, who == 0 ? &nothing : ops[1]));
            at[who]++;
            continue;
        }
        if (!is_alone[0] && (ops[0] == NULL || ops[1] == NULL || ops[0]->kind != ops[1]->kind ||
                             ops[0]->lane != ops[1]->lane)) {
            return sherdi_pair_part(pair, at[0], at[1]);
        }
        SHERDI_TRY(await_prove(pair, ops[0]));
        SHERDI_TRY(both_prove(pair, ops[0], ops[1]));
        at[0]++;
        at[1]++;
    }
    return SHERD_OK;
}

/* Begins the queued update, if the current call does so, after the operations before it. */
static sherd_status fork_prove(sherdi_pair *pair, size_t at[RANKS])
{
    const size_t ends[RANKS] = {pair->sides[0].forked_at, pair->sides[1].forked_at};

    if (ends[0] == SIZE_MAX) {
        return SHERD_OK;
    }
    SHERDI_TRY(ops_prove(pair, at, ends, 0));
    SHERDI_TRY(beside_prove(pair, NULL));
    for (int r = 0; r < RANKS; r++) {
        sherdi_pair_side *side = &pair->sides[r];

        side->num_queued -= side->end_queued; /* those of the update before */
        memmove(side->queued, side->queued + side->end_queued,
                side->num_queued * sizeof(*side->queued));
        side->at_queued  = 0;
        side->end_queued = side->num_queued;
    }
    sherdi_hazard_fork(pair->hazard);
    pair->updates_queued++;
    return pair->is_late ? SHERD_OK : beside_prove(pair, NULL);
}

/* Checks all operations of a call. */
sherd_status sherdi_pair_prove(sherdi_pair *pair, int is_mirrored)
{
    const size_t ends[RANKS] = {pair->sides[0].num_ops, pair->sides[1].num_ops};
    size_t       at[RANKS]   = {0, 0};

    SHERDI_TRY(fork_prove(pair, at));
    return ops_prove(pair, at, ends, is_mirrored);
}

/* Ends the trainer's use where it releases the unit. */
sherd_status sherdi_pair_uses_end(sherdi_pair *pair, int unit, sherd_pass pass)
{
    size_t remaining = 0;
    size_t which     = 0;

    for (size_t i = 0; i < pair->num_uses; i++) {
        if (pair->uses[i].unit == unit && pair->uses[i].pass == pass) {
            which = sherdi_max_size(which, pair->uses[i].acquire);
        }
    }
    for (size_t i = 0; i < pair->num_uses; i++) {
        const sherdi_pair_use *u = &pair->uses[i];

        if (u->unit == unit && u->pass == pass && u->acquire == which) {
            SHERDI_TRY(sherdi_hazard_end(pair->hazard, &u->ops[0], &u->ops[1]));
        } else {
            pair->uses[remaining++] = *u;
        }
    }
    pair->num_uses = remaining;
    return SHERD_OK;
}

void sherdi_pair_begin(sherdi_pair *pair)
{
    for (int r = 0; r < RANKS; r++) {
        pair->sides[r].num_ops   = 0;
        pair->sides[r].forked_at = SIZE_MAX;
    }
}

void sherdi_pair_close(sherdi_pair *pair)
{
    for (int r = 0; r < RANKS; r++) {
        sherdi_free(pair->sides[r].ops);
        sherdi_free(pair->sides[r].queued);
    }
    sherdi_hazard_close(pair->hazard);
    sherdi_free(pair->uses);
}
