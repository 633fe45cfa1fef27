/* Finds hazards with vector clocks (Mattern 1989): a clock has, for each thread of order, the
 * number of its last operation that is known to be over. The threads are the lanes. The drive's
 * transfers are put on chains, as many as there is room for; each transfer follows the one before
 * it on its chain anyway. hazard_bytes.h remembers who touched which bytes. */
#include "engine/proof/hazard.h"

#include "base/checked.h"
#include "engine/proof/hazard_bytes.h"
#include "engine/program/order.h"
#include "engine/proof/names.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define RANKS 2

/* The threads that give operations. */
enum { CALLER, UPDATER, GIVERS };

/* The operations of a lane that the calling thread does not know to be over. Each is a row of
 * numbers: its thread, then its clock. */
typedef struct history {
    uint32_t *rows;
    size_t    capacity, head, count;
    uint64_t  first; /* number of the operation at `head` */
} history;

/* In place of a row's thread: the order has forgotten the transfer. */
#define FORGOTTEN UINT32_MAX

/* A use of the trainer that has not ended. */
typedef struct open_use {
    sherdi_op      op;
    sherdi_toucher who;
} open_use;

typedef struct rank_state {
    sherdi_order order;
    history      histories[SHERDI_LANES];
    sherdi_cells buffers[SHERDI_BUFFERS_AND_FILES];
    uint32_t    *last;          /* by thread of this rank: number of its last operation */
    uint32_t    *hosts[GIVERS]; /* clocks of the threads that give operations */
    uint32_t    *known;         /* what both of them know */
    uint32_t    *posts;         /* [units + 2] clocks: of the updater when it posted */
    uint32_t    *start;         /* clock at the start of the operation in work */
    int          is_forked;     /* the updater works */
    uint64_t     submitted[SHERDI_LANES + 1]; /* the last is the updater's */
    uint64_t     follows;
    open_use    *uses;
    size_t       num_uses, uses_capacity;
} rank_state;

struct sherdi_hazard {
    sherdi_mem          *mem;
    sherdi_hazard_params params;
    size_t               threads; /* of a rank */
    rank_state           ranks[RANKS];
    sherdi_readers       readers;
    uint64_t             dropped; /* calls so far of the kind that does not meet */
};

/* An operation in work, on one rank. */
typedef struct doing {
    const sherdi_op *op;
    int              rank;
    sherdi_toucher   who;
} doing;

/* ------------------------------------------------------------------ clocks -- */

static size_t clock_entries(const sherdi_hazard *hazard)
{
    return RANKS * hazard->threads;
}

static void clock_join(const sherdi_hazard *hazard, uint32_t *clock, const uint32_t *other)
{
    for (size_t i = 0; i < clock_entries(hazard); i++) {
        clock[i] = other[i] > clock[i] ? other[i] : clock[i];
    }
}

static uint32_t thread_of(const sherdi_hazard *hazard, int rank, size_t index)
{
    return (uint32_t)((size_t)rank * hazard->threads + index);
}

static int giver_of(const sherdi_op *op)
{
    return op->flags & SHERDI_OP_QUEUED ? UPDATER : CALLER;
}

/* Returns the clock of what all threads that give operations know. */
static const uint32_t *known_of(const sherdi_hazard *hazard, rank_state *rank)
{
    if (!rank->is_forked) {
        return rank->hosts[CALLER];
    }
    for (size_t i = 0; i < clock_entries(hazard); i++) {
        uint32_t one = rank->hosts[CALLER][i];
        uint32_t two = rank->hosts[UPDATER][i];

        rank->known[i] = one < two ? one : two;
    }
    return rank->known;
}

/* The updater's thread comes after all lanes and chains. */
static size_t updater_index(const sherdi_hazard *hazard)
{
    return hazard->threads - 1;
}

/* The first chain has the index of the drive's lane; the others come after all lanes. */
static size_t chain_index(size_t chain)
{
    return chain == 0 ? SHERDI_LANE_DRIVE : SHERDI_LANES + chain - 1;
}

/* --------------------------------------------------------------- histories -- */

static size_t row_entries(const sherdi_hazard *hazard)
{
    return 1 + clock_entries(hazard);
}

static uint32_t *row_at(const sherdi_hazard *hazard, const history *history, size_t i)
{
    return history->rows + (history->head + i) * row_entries(hazard);
}

static int row_is_known(const uint32_t *row, const uint32_t *clock)
{
    return row[0] == FORGOTTEN || clock[row[0]] >= row[1 + row[0]];
}

/* Returns the clock after an operation; NULL: the calling thread knows it to be over. */
static const uint32_t *history_find(const sherdi_hazard *hazard, const history *history,
                                    uint64_t number)
{
    return number < history->first ? NULL
                                   : row_at(hazard, history, (size_t)(number - history->first)) + 1;
}

static sherd_status history_push(sherdi_hazard *hazard, history *history, uint32_t thread,
                                 const uint32_t *clock)
{
    size_t    bytes = row_entries(hazard) * sizeof(*history->rows);
    uint32_t *row;

    if (history->head > 0 && history->head + history->count == history->capacity) {
        memmove(history->rows, row_at(hazard, history, 0), history->count * bytes);
        history->head = 0;
    }
    SHERDI_TRY(sherdi_grow(hazard->mem, SHERDI_MEM_CONTROL, (void **)&history->rows,
                           &history->capacity, history->head + history->count + 1, bytes));
    row    = row_at(hazard, history, history->count++);
    row[0] = thread;
    memcpy(row + 1, clock, bytes - sizeof(*row));
    return SHERD_OK;
}

/* Forgets operations that are known to be over: operations that are enqueued from now on come after
 * them. */
static void histories_prune(sherdi_hazard *hazard, rank_state *rank)
{
    const uint32_t *known = known_of(hazard, rank);
    history        *drive = &rank->histories[SHERDI_LANE_DRIVE];

    for (size_t i = 0; i < drive->count; i++) {
        uint32_t *row = row_at(hazard, drive, i);

        if (row[0] != FORGOTTEN && row_is_known(row, known)) {
            sherdi_order_forget(&rank->order, SHERDI_LANE_DRIVE, drive->first + i);
            row[0] = FORGOTTEN;
        }
    }
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        history *history = &rank->histories[lane];

        while (history->count > 0 && row_is_known(row_at(hazard, history, 0), known)) {
            history->head++;
            history->first++;
            history->count--;
        }
    }
}

/* ------------------------------------------------------------------- order -- */

static int is_on_host(const sherdi_hazard *hazard, const sherdi_op *op)
{
    return op->lane == SHERDI_LANE_HOST ||
           (!hazard->params.has_device && !sherdi_lane_is_wire(op->lane) &&
            op->lane != SHERDI_LANE_DRIVE);
}

static int meets(sherdi_hazard *hazard, const sherdi_op *op)
{
    const sherdi_hazard_params *params = &hazard->params;

    if ((op->flags & SHERDI_OP_MEETS) == 0 || params->drop != SHERDI_HAZARD_DROP_MEETS ||
        params->kind != op->kind) {
        return (op->flags & SHERDI_OP_MEETS) != 0;
    }
    hazard->dropped++;
    return params->number != 0 &&
           (hazard->dropped < params->number || hazard->dropped > params->last_number);
}

/* Counts a follow; returns 0 if it is taken out. */
static int is_followed(sherdi_hazard *hazard, rank_state *rank, const sherdi_op *op, int lane)
{
    const sherdi_hazard_params *params = &hazard->params;

    rank->follows++;
    switch (params->drop) {
    case SHERDI_HAZARD_DROP_LANE:
        return params->by != op->lane || (int)params->followed != lane;
    case SHERDI_HAZARD_DROP_NUMBER:
        return rank->follows != params->number;
    default:
        return 1;
    }
}

static void clock_follow(sherdi_hazard *hazard, const rank_state *rank, int lane, uint64_t number,
                         uint32_t *clock)
{
    const history  *history = &rank->histories[lane];
    uint64_t        last    = history->first + history->count - 1;
    const uint32_t *behind =
        history_find(hazard, history, lane == SHERDI_LANE_COMPUTE ? last : number);

    if (behind != NULL) {
        clock_join(hazard, clock, behind);
    }
}

static void drives_follow(sherdi_hazard *hazard, rank_state *rank, const sherdi_op *op,
                          const sherdi_follows *follows, uint32_t *clock)
{
    const history *drive = &rank->histories[SHERDI_LANE_DRIVE];

    for (size_t i = 0; i < follows->num_drives; i++) {
        if (is_followed(hazard, rank, op, SHERDI_LANE_DRIVE)) {
            clock_follow(hazard, rank, SHERDI_LANE_DRIVE, follows->drives[i], clock);
        }
    }
    if (follows->is_all_drives && is_followed(hazard, rank, op, SHERDI_LANE_DRIVE)) {
        for (size_t i = 0; i < drive->count; i++) {
            clock_join(hazard, clock, row_at(hazard, drive, i) + 1);
        }
    }
}

/* Makes the submitting thread wait for the operations that it has to wait for first. */
static void host_waits(sherdi_hazard *hazard, rank_state *rank, const sherdi_op *op,
                       const sherdi_follows *follows)
{
    uint64_t  submitted = rank->submitted[SHERDI_LANE_DRIVE];
    uint32_t *host      = rank->hosts[giver_of(op)];

    if (op->lane != SHERDI_LANE_DRIVE) {
        drives_follow(hazard, rank, op, follows, host);
    } else if (submitted >= hazard->params.drive_room) {
        clock_follow(hazard, rank, SHERDI_LANE_DRIVE, submitted + 1 - hazard->params.drive_room,
                     host);
    }
    if (follows->num_drives > 0 || follows->is_all_drives || op->lane == SHERDI_LANE_DRIVE) {
        histories_prune(hazard, rank);
    }
}

/* Starts the operation after everything that the submitting thread knows, and after the earlier
 * operations of its lane. */
static void lane_start(sherdi_hazard *hazard, const doing *doing)
{
    rank_state    *rank = &hazard->ranks[doing->rank];
    const history *own  = &rank->histories[doing->op->lane];

    memcpy(rank->start, rank->hosts[giver_of(doing->op)],
           clock_entries(hazard) * sizeof(*rank->start));
    if (doing->op->lane != SHERDI_LANE_DRIVE && own->count > 0) {
        clock_join(hazard, rank->start, row_at(hazard, own, own->count - 1) + 1);
    }
}

static void start_make(sherdi_hazard *hazard, const doing *doing)
{
    rank_state      *rank = &hazard->ranks[doing->rank];
    const sherdi_op *op   = doing->op;
    sherdi_follows   follows;

    sherdi_order_follows(&rank->order, op, &follows);
    host_waits(hazard, rank, op, &follows);
    lane_start(hazard, doing);
    if (op->lane == SHERDI_LANE_DRIVE) {
        drives_follow(hazard, rank, op, &follows, rank->start);
    }
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows.last[lane] != 0 && is_followed(hazard, rank, op, lane)) {
            clock_follow(hazard, rank, lane, follows.last[lane], rank->start);
        }
    }
}

/* Returns a chain whose last transfer is over when this one starts. A slot is free for this
 * transfer, so a chain of this kind exists. */
static size_t chain_find(const sherdi_hazard *hazard, const doing *doing)
{
    const rank_state *rank = &hazard->ranks[doing->rank];

    for (size_t chain = 0; chain < hazard->params.drive_room; chain++) {
        size_t index = chain_index(chain);

        if (rank->start[thread_of(hazard, doing->rank, index)] >= rank->last[index]) {
            return index;
        }
    }
    assert(!"more transfers than there is room for");
    return SHERDI_LANE_DRIVE;
}

/* Gives the operation its number. From here on its start clock covers the operation itself, so that
 * it is in no hazard with itself. */
static void operation_number(sherdi_hazard *hazard, doing *doing)
{
    rank_state      *rank      = &hazard->ranks[doing->rank];
    const sherdi_op *op        = doing->op;
    int              is_queued = giver_of(op) == UPDATER && is_on_host(hazard, op);
    size_t           index     = is_queued                       ? updater_index(hazard)
                                 : is_on_host(hazard, op)        ? SHERDI_LANE_HOST
                                 : op->lane == SHERDI_LANE_DRIVE ? chain_find(hazard, doing)
                                                                 : (size_t)op->lane;
    size_t lane = is_queued ? SHERDI_LANES : index < SHERDI_LANES ? index : SHERDI_LANE_DRIVE;

    doing->who = (sherdi_toucher){
        .number = (uint32_t)++rank->submitted[lane],
        .thread = thread_of(hazard, doing->rank, index),
        .unit   = op->unit,
        .kind   = (uint8_t)op->kind,
        .lane   = (uint8_t)op->lane,
    };
    rank->last[index]              = doing->who.number;
    rank->start[doing->who.thread] = doing->who.number;
}

/* `is_entered`: later operations have to follow it. */
static sherd_status operation_end(sherdi_hazard *hazard, const doing *doing, int is_entered)
{
    rank_state *rank = &hazard->ranks[doing->rank];

    if (is_on_host(hazard, doing->op)) { /* over when the call returns: nothing has to follow it */
        memcpy(rank->hosts[giver_of(doing->op)], rank->start,
               clock_entries(hazard) * sizeof(*rank->start));
        histories_prune(hazard, rank);
        return SHERD_OK;
    }
    if (is_entered) {
        sherdi_order_enter(&rank->order, doing->op, doing->who.number);
    }
    SHERDI_TRY(
        history_push(hazard, &rank->histories[doing->op->lane], doing->who.thread, rank->start));
    if (doing->op->flags & SHERDI_OP_WAITS) {
        clock_join(hazard, rank->hosts[giver_of(doing->op)], rank->start);
        histories_prune(hazard, rank);
    }
    return SHERD_OK;
}

/* -------------------------------------------------------------------- uses -- */

static sherd_status use_begin(sherdi_hazard *hazard, const doing *doing)
{
    rank_state *rank = &hazard->ranks[doing->rank];

    SHERDI_TRY(sherdi_grow(hazard->mem, SHERDI_MEM_CONTROL, (void **)&rank->uses,
                           &rank->uses_capacity, rank->num_uses + 1, sizeof(*rank->uses)));
    rank->uses[rank->num_uses++] = (open_use){*doing->op, doing->who};
    return SHERD_OK;
}

static sherd_status use_end(sherdi_hazard *hazard, const doing *doing)
{
    rank_state      *rank = &hazard->ranks[doing->rank];
    const sherdi_op *op   = doing->op;

    for (size_t n = rank->num_uses; n-- > 0;) {
        const sherdi_op *that = &rank->uses[n].op;

        if (that->unit == op->unit && that->segment == op->segment && that->param == op->param) {
            rank->num_uses--;
            memmove(&rank->uses[n], &rank->uses[n + 1], (rank->num_uses - n) * sizeof(*rank->uses));
            return SHERD_OK;
        }
    }
    return sherdi_fail(SHERD_E_STATE, "a use of unit %d ends that did not begin", op->unit);
}

static int range_conflicts(const sherdi_range *range, int where, const sherdi_touch *touch,
                           sherdi_conflict *out)
{
    size_t end = range->offset + range->bytes;

    if (range->where != where || range->offset >= touch->end || touch->begin >= end ||
        (range->access == SHERDI_READS && !touch->is_write)) {
        return 0;
    }
    out->was_write = range->access != SHERDI_READS;
    out->begin     = sherdi_max_size(range->offset, touch->begin);
    out->end       = sherdi_min_size(end, touch->end);
    return 1;
}

/* Returns whether a touch of the rank's memory conflicts with an open use of another thread. */
static int uses_conflict(const rank_state *owner, int where, const sherdi_touch *touch,
                         sherdi_conflict *out)
{
    for (size_t n = 0; n < owner->num_uses; n++) {
        const open_use *use = &owner->uses[n];

        for (int role = 0; role < SHERDI_USES && use->who.thread != touch->who.thread; role++) {
            if (range_conflicts(&use->op.uses[role], where, touch, out)) {
                out->earlier = use->who;
                return 1;
            }
        }
    }
    return 0;
}

/* ------------------------------------------------------------------ hazards -- */

static int rank_of(const sherdi_hazard *hazard, const sherdi_toucher *who)
{
    return (int)(who->thread / hazard->threads);
}

/* Writes "update of layer3 on lane update"; says "another rank's" if it is not the rank whose
 * memory it is. */
static void toucher_text(const sherdi_hazard *hazard, const sherdi_toucher *who, int owner,
                         char *out, size_t out_bytes)
{
    const sherdi_hazard_params *params = &hazard->params;
    const char                 *other  = rank_of(hazard, who) == owner ? "" : "another rank's ";
    const char                 *kind   = sherdi_op_kind_name((sherdi_op_kind)who->kind);
    const char                 *lane   = sherdi_lane_name((sherdi_lane_id)who->lane);

    if (who->unit < 0) {
        (void)snprintf(out, out_bytes, "%s%s on lane %s", other, kind, lane);
    } else if (params->unit_name == NULL) {
        (void)snprintf(out, out_bytes, "%s%s of unit %d on lane %s", other, kind, who->unit, lane);
    } else {
        (void)snprintf(out, out_bytes, "%s%s of %s on lane %s", other, kind,
                       params->unit_name(params->ctx, who->unit), lane);
    }
}

/* Fails with a conflict in memory of rank `owner`. */
static sherd_status conflict_fail(const sherdi_hazard *hazard, const sherdi_touch *touch, int owner,
                                  int where, const sherdi_conflict *conflict)
{
    const sherdi_hazard_params *params = &hazard->params;
    int  is_between = rank_of(hazard, &touch->who) != rank_of(hazard, &conflict->earlier);
    char later[256];
    char earlier[256];
    char name[64];

    toucher_text(hazard, &touch->who, owner, later, sizeof(later));
    toucher_text(hazard, &conflict->earlier, owner, earlier, sizeof(earlier));
    if (params->where_name == NULL) {
        (void)snprintf(name, sizeof(name), "place %d", where);
    } else {
        (void)snprintf(name, sizeof(name), "%s", params->where_name(params->ctx, where));
    }
    return sherdi_fail(SHERD_E_STATE, "%s %s bytes that %s still %s (%s, %zu bytes at %zu): %s",
                       later, touch->is_write ? "writes" : "reads", earlier,
                       conflict->was_write ? "writes" : "reads", name,
                       conflict->end - conflict->begin, conflict->begin,
                       is_between ? "no call between them makes one rank wait for the other"
                                  : "nothing orders the two");
}

/* Records the accesses to the operation's ranges; with `peer`, those to the other rank, at the
 * ranges of the peer's operation. */
static sherd_status ranges_enter(sherdi_hazard *hazard, const doing *doing,
                                 const struct doing *peer)
{
    for (int role = 0; role < SHERDI_USES; role++) {
        const sherdi_range *own   = &doing->op->uses[role];
        const sherdi_range *range = peer == NULL ? own : &peer->op->uses[role];
        int                 owner = peer == NULL ? doing->rank : peer->rank;
        sherdi_touch        touch = {
                   .begin    = range->offset,
                   .end      = range->offset + range->bytes,
                   .is_write = peer == NULL && range->access != SHERDI_READS,
                   .who      = doing->who,
                   .clock    = hazard->ranks[doing->rank].start,
                   .known = {known_of(hazard, &hazard->ranks[0]), known_of(hazard, &hazard->ranks[1])},
        };
        sherdi_conflict conflict;

        if (range->where == SHERDI_AT_NOWHERE || range->bytes == 0 ||
            (peer != NULL && !own->is_all_ranks)) {
            continue;
        }
        if (uses_conflict(&hazard->ranks[owner], range->where, &touch, &conflict)) {
            return conflict_fail(hazard, &touch, owner, range->where, &conflict);
        }
        SHERDI_TRY(sherdi_cells_touch(&hazard->ranks[owner].buffers[range->where], &hazard->readers,
                                      &touch, &conflict));
        if (conflict.earlier.number != 0) {
            return conflict_fail(hazard, &touch, owner, range->where, &conflict);
        }
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------ the updater -- */

static size_t post_place(const sherdi_hazard *hazard, const sherdi_op *op)
{
    return op->part == SHERDI_POST_UNIT ? (size_t)op->unit
                                        : hazard->params.num_units + (op->part == SHERDI_POST_END);
}

static uint32_t *post_at(const sherdi_hazard *hazard, const rank_state *rank, const sherdi_op *op)
{
    return rank->posts + post_place(hazard, op) * clock_entries(hazard);
}

static void posts_note(sherdi_hazard *hazard, const sherdi_op *op)
{
    for (int r = 0; r < RANKS; r++) {
        rank_state *rank = &hazard->ranks[r];

        memcpy(post_at(hazard, rank, op), rank->hosts[UPDATER],
               clock_entries(hazard) * sizeof(*rank->posts));
    }
}

/* One rank alone may await. */
static void posts_await(sherdi_hazard *hazard, const sherdi_op *const ops[RANKS])
{
    const sherdi_hazard_params *params = &hazard->params;

    for (int r = 0; r < RANKS; r++) {
        const sherdi_op *op   = ops[r];
        rank_state      *rank = &hazard->ranks[r];

        if (op->kind != SHERDI_OP_AWAIT) {
            continue;
        }
        if (params->drop != SHERDI_HAZARD_DROP_AWAIT || params->number != (uint64_t)op->part) {
            clock_join(hazard, rank->hosts[CALLER], post_at(hazard, rank, op));
            if (op->flags & SHERDI_OP_STABLE) {
                clock_join(hazard, rank->hosts[CALLER], post_at(hazard, &hazard->ranks[1 - r], op));
            }
        }
        rank->is_forked &= op->part != SHERDI_POST_END;
        histories_prune(hazard, rank);
    }
}

void sherdi_hazard_fork(sherdi_hazard *hazard)
{
    for (int r = 0; r < RANKS; r++) {
        rank_state *rank = &hazard->ranks[r];

        clock_join(hazard, rank->hosts[UPDATER], rank->hosts[CALLER]);
        rank->is_forked = 1;
    }
}

/* ------------------------------------------------------------ the interface -- */

sherd_status sherdi_hazard_op(sherdi_hazard *hazard, const sherdi_op *one, const sherdi_op *other)
{
    doing doings[RANKS] = {{.op = one, .rank = 0}, {.op = other, .rank = 1}};
    int   is_meeting    = meets(hazard, one);

    if (one->kind == SHERDI_OP_POST) {
        posts_note(hazard, one);
        return SHERD_OK;
    }
    if (one->kind == SHERDI_OP_AWAIT || other->kind == SHERDI_OP_AWAIT) {
        posts_await(hazard, (const sherdi_op *[]){one, other});
        return SHERD_OK;
    }
    for (int r = 0; r < RANKS; r++) {
        start_make(hazard, &doings[r]);
    }
    if (is_meeting) {
        clock_join(hazard, hazard->ranks[0].start, hazard->ranks[1].start);
        clock_join(hazard, hazard->ranks[1].start, hazard->ranks[0].start);
    }
    for (int r = 0; r < RANKS; r++) {
        operation_number(hazard, &doings[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        SHERDI_TRY(ranges_enter(hazard, &doings[r], NULL));
    }
    /* In a call that meets, the other rank's bytes are read between the beginning and the end of
     * its own call: that rank's own touch covers it. */
    for (int r = 0; r < RANKS && !is_meeting; r++) {
        SHERDI_TRY(ranges_enter(hazard, &doings[r], &doings[1 - r]));
    }
    for (int r = 0; r < RANKS; r++) {
        if (sherdi_op_is_trainers(one->kind) && hazard->params.uses_last) {
            SHERDI_TRY(use_begin(hazard, &doings[r]));
        }
        SHERDI_TRY(operation_end(hazard, &doings[r], 1));
    }
    return SHERD_OK;
}

sherd_status sherdi_hazard_end(sherdi_hazard *hazard, const sherdi_op *one, const sherdi_op *other)
{
    doing doings[RANKS] = {{.op = one, .rank = 0}, {.op = other, .rank = 1}};

    for (int r = 0; r < RANKS; r++) {
        SHERDI_TRY(use_end(hazard, &doings[r]));
        lane_start(hazard, &doings[r]);
        operation_number(hazard, &doings[r]);
        SHERDI_TRY(ranges_enter(hazard, &doings[r], NULL));
        SHERDI_TRY(operation_end(hazard, &doings[r], 0)); /* who follows the lane follows the end */
    }
    return SHERD_OK;
}

uint64_t sherdi_hazard_follows(const sherdi_hazard *hazard)
{
    return hazard->ranks[0].follows;
}

static sherd_status rank_open(sherdi_hazard *hazard, rank_state *rank)
{
    size_t entries = clock_entries(hazard);

    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        rank->histories[lane].first = 1;
    }
    rank->last =
        sherdi_alloc_array(hazard->mem, SHERDI_MEM_CONTROL, hazard->threads, sizeof(*rank->last));
    for (int giver = 0; giver < GIVERS; giver++) {
        rank->hosts[giver] =
            sherdi_alloc_array(hazard->mem, SHERDI_MEM_CONTROL, entries, sizeof(*rank->hosts[0]));
    }
    rank->known =
        sherdi_alloc_array(hazard->mem, SHERDI_MEM_CONTROL, entries, sizeof(*rank->known));
    rank->posts =
        sherdi_alloc_array(hazard->mem, SHERDI_MEM_CONTROL,
                           (hazard->params.num_units + 2) * entries, sizeof(*rank->posts));
    rank->start =
        sherdi_alloc_array(hazard->mem, SHERDI_MEM_CONTROL, entries, sizeof(*rank->start));
    for (int at = 0; at < SHERDI_BUFFERS_AND_FILES; at++) {
        SHERDI_TRY(sherdi_cells_open(&rank->buffers[at], &hazard->readers));
    }
    return rank->last == NULL || rank->hosts[CALLER] == NULL || rank->hosts[UPDATER] == NULL ||
                   rank->known == NULL || rank->posts == NULL || rank->start == NULL
               ? SHERD_E_NOMEM
               : SHERD_OK;
}

sherd_status sherdi_hazard_open(const sherdi_hazard_params *params, sherdi_mem *mem,
                                sherdi_hazard **out)
{
    sherdi_hazard *hazard = sherdi_alloc(mem, SHERDI_MEM_CONTROL, sizeof(*hazard));
    sherd_status   status = SHERD_OK;

    if (hazard == NULL) {
        return SHERD_E_NOMEM;
    }
    assert(params->drive_room > 0);
    hazard->mem         = mem;
    hazard->readers.mem = mem;
    hazard->params      = *params;
    hazard->threads     = SHERDI_LANES + params->drive_room - 1 + 1; /* chains, and the updater */
    for (int r = 0; r < RANKS && status == SHERD_OK; r++) {
        status = rank_open(hazard, &hazard->ranks[r]);
    }
    if (status != SHERD_OK) {
        sherdi_hazard_close(hazard);
        return status;
    }
    *out = hazard;
    return SHERD_OK;
}

void sherdi_hazard_close(sherdi_hazard *hazard)
{
    if (hazard == NULL) {
        return;
    }
    for (int r = 0; r < RANKS; r++) {
        rank_state *rank = &hazard->ranks[r];

        for (int lane = 0; lane < SHERDI_LANES; lane++) {
            sherdi_free(rank->histories[lane].rows);
        }
        for (int at = 0; at < SHERDI_BUFFERS_AND_FILES; at++) {
            sherdi_cells_close(&rank->buffers[at]);
        }
        sherdi_free(rank->uses);
        sherdi_free(rank->last);
        sherdi_free(rank->hosts[CALLER]);
        sherdi_free(rank->hosts[UPDATER]);
        sherdi_free(rank->known);
        sherdi_free(rank->posts);
        sherdi_free(rank->start);
    }
    sherdi_free(hazard->readers.at);
    sherdi_free(hazard);
}
