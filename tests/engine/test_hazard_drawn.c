/* Draws sequences of operations and takes orders out of some of them. The check has to say at which
 * operation the first hazard is, or that there is none. It is compared with a graph of all
 * operations in which every path is looked for. */
#include "engine/proof/hazard.h"

#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPS      160
#define MAX_NODES    (10 * MAX_OPS)
#define MAX_ACCESSES (4 * SHERDI_USES * MAX_OPS)
#define WORDS        ((MAX_NODES + 63) / 64)

/* ------------------------------------------------------------------- the graph -- */

typedef struct access {
    size_t node;
    int    owner, where, is_write;
    size_t begin, end;
} access;

typedef struct rank_graph {
    sherdi_order order;
    size_t       host;
    size_t       tails[SHERDI_LANES];
    size_t       nodes[SHERDI_LANES][MAX_OPS + 1]; /* nodes by the operation's number */
    int          is_forgotten[MAX_OPS + 1];        /* of transfers */
    uint64_t     given[SHERDI_LANES];
    uint64_t     follows;
} rank_graph;

/* Node 0 comes before all others. */
typedef struct graph {
    sherdi_hazard_params params;
    uint64_t             before[MAX_NODES][WORDS];
    size_t               num_nodes;
    access               accesses[MAX_ACCESSES];
    size_t               num_accesses;
    rank_graph           ranks[2];
    uint64_t             dropped; /* calls so far of the kind that does not meet */
} graph;

static size_t node_add(graph *g)
{
    CHECK(g->num_nodes < MAX_NODES);
    memset(g->before[g->num_nodes], 0, sizeof(g->before[0]));
    return g->num_nodes++;
}

static int node_is_before(const graph *g, size_t node, size_t other)
{
    return node == other || (g->before[other][node / 64] >> node % 64 & 1) != 0;
}

static void node_follow(graph *g, size_t node, size_t other)
{
    for (size_t w = 0; w < WORDS; w++) {
        g->before[node][w] |= g->before[other][w];
    }
    g->before[node][other / 64] |= (uint64_t)1 << other % 64;
}

static int is_dropped(graph *g, rank_graph *rank, const sherdi_op *op, int lane)
{
    rank->follows++;
    return (g->params.drop == SHERDI_HAZARD_DROP_LANE && g->params.by == op->lane &&
            (int)g->params.followed == lane) ||
           (g->params.drop == SHERDI_HAZARD_DROP_NUMBER && g->params.number == rank->follows);
}

static void drives_follow(graph *g, rank_graph *rank, const sherdi_op *op,
                          const sherdi_follows *follows, size_t node)
{
    for (size_t i = 0; i < follows->num_drives; i++) {
        if (!is_dropped(g, rank, op, SHERDI_LANE_DRIVE)) {
            node_follow(g, node, rank->nodes[SHERDI_LANE_DRIVE][follows->drives[i]]);
        }
    }
    if (follows->is_all_drives && !is_dropped(g, rank, op, SHERDI_LANE_DRIVE)) {
        for (uint64_t n = 1; n <= rank->given[SHERDI_LANE_DRIVE]; n++) {
            node_follow(g, node, rank->nodes[SHERDI_LANE_DRIVE][n]);
        }
    }
}

/* Records in the order the operations whose end the calling thread has seen. */
static void host_go_on(graph *g, rank_graph *rank, size_t node)
{
    node_follow(g, node, rank->host);
    rank->host = node;
    for (uint64_t n = 1; n <= rank->given[SHERDI_LANE_DRIVE]; n++) {
        if (!rank->is_forgotten[n] &&
            node_is_before(g, rank->nodes[SHERDI_LANE_DRIVE][n], rank->host)) {
            rank->is_forgotten[n] = 1;
            sherdi_order_forget(&rank->order, SHERDI_LANE_DRIVE, n);
        }
    }
}

static int is_on_host(const graph *g, const sherdi_op *op)
{
    return op->lane == SHERDI_LANE_HOST ||
           (!g->params.has_device && !sherdi_lane_is_wire(op->lane) &&
            op->lane != SHERDI_LANE_DRIVE);
}

static void waits_add(graph *g, rank_graph *rank, const sherdi_op *op,
                      const sherdi_follows *follows)
{
    uint64_t given = rank->given[SHERDI_LANE_DRIVE];
    size_t   wait  = node_add(g);

    if (op->lane != SHERDI_LANE_DRIVE) {
        drives_follow(g, rank, op, follows, wait);
    } else if (given >= g->params.drive_room) {
        node_follow(g, wait, rank->nodes[SHERDI_LANE_DRIVE][given + 1 - g->params.drive_room]);
    }
    host_go_on(g, rank, wait);
}

static size_t start_add(graph *g, rank_graph *rank, const sherdi_op *op)
{
    sherdi_follows follows;
    size_t         start;

    sherdi_order_follows(&rank->order, op, &follows);
    waits_add(g, rank, op, &follows);
    start = node_add(g);
    node_follow(g, start, rank->host);
    if (op->lane == SHERDI_LANE_DRIVE) {
        drives_follow(g, rank, op, &follows, start);
    } else {
        node_follow(g, start, rank->tails[op->lane]);
    }
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows.last[lane] != 0 && !is_dropped(g, rank, op, lane)) {
            node_follow(g, start,
                        lane == SHERDI_LANE_COMPUTE ? rank->tails[lane]
                                                    : rank->nodes[lane][follows.last[lane]]);
        }
    }
    return start;
}

static void op_end(graph *g, rank_graph *rank, const sherdi_op *op, size_t node)
{
    uint64_t number;

    if (is_on_host(g, op)) {
        host_go_on(g, rank, node);
        return;
    }
    number                        = ++rank->given[op->lane];
    rank->nodes[op->lane][number] = node;
    rank->tails[op->lane]         = node;
    sherdi_order_enter(&rank->order, op, number);
    if (op->flags & SHERDI_OP_WAITS) {
        host_go_on(g, rank, node);
    }
}

static int conflicts(const access *a, const access *b)
{
    return a->node != b->node && a->owner == b->owner && a->where == b->where &&
           (a->is_write || b->is_write) && a->begin < b->end && b->begin < a->end;
}

/* Adds an access; returns whether it is in no hazard. */
static int access_add(graph *g, size_t node, int owner, const sherdi_range *range, int is_write)
{
    access a = {.node     = node,
                .owner    = owner,
                .where    = range->where,
                .is_write = is_write,
                .begin    = range->offset,
                .end      = range->offset + range->bytes};

    for (size_t i = 0; i < g->num_accesses; i++) {
        if (conflicts(&a, &g->accesses[i]) && !node_is_before(g, g->accesses[i].node, node)) {
            return 0;
        }
    }
    CHECK(g->num_accesses < MAX_ACCESSES);
    g->accesses[g->num_accesses++] = a;
    return 1;
}

static int accesses_add(graph *g, const sherdi_op *const ops[2], const size_t nodes[2], int meets)
{
    int is_ordered = 1;

    for (int r = 0; r < 2; r++) {
        for (int role = 0; role < SHERDI_USES; role++) {
            const sherdi_range *own  = &ops[r]->uses[role];
            const sherdi_range *peer = &ops[1 - r]->uses[role];

            if (own->where == SHERDI_AT_NOWHERE) {
                continue;
            }
            is_ordered &= access_add(g, nodes[r], r, own, own->access != SHERDI_READS);
            if (own->is_all_ranks) {
                /* if the call meets, the peer's bytes were read before the peer's call is over */
                is_ordered &= access_add(g, meets ? nodes[1 - r] : nodes[r], 1 - r, peer, 0);
            }
        }
    }
    return is_ordered;
}

static int meeting_is_dropped(graph *g, const sherdi_op *op)
{
    if (g->params.drop != SHERDI_HAZARD_DROP_MEETS || g->params.kind != op->kind ||
        (op->flags & SHERDI_OP_MEETS) == 0) {
        return 0;
    }
    g->dropped++;
    return g->params.number == 0 ||
           (g->dropped >= g->params.number && g->dropped <= g->params.last_number);
}

static int graph_op(graph *g, const sherdi_op *const ops[2])
{
    int    meets = (ops[0]->flags & SHERDI_OP_MEETS) != 0 && !meeting_is_dropped(g, ops[0]);
    size_t starts[2];
    size_t nodes[2];
    int    is_ordered;

    for (int r = 0; r < 2; r++) {
        starts[r] = start_add(g, &g->ranks[r], ops[r]);
    }
    for (int r = 0; r < 2; r++) {
        nodes[r] = node_add(g);
        node_follow(g, nodes[r], starts[r]);
        if (meets) {
            node_follow(g, nodes[r], starts[1 - r]);
        }
    }
    is_ordered = accesses_add(g, ops, nodes, meets);
    for (int r = 0; r < 2; r++) {
        op_end(g, &g->ranks[r], ops[r], nodes[r]);
    }
    return is_ordered;
}

static void graph_open(graph *g, const sherdi_hazard_params *params)
{
    g->params       = *params;
    g->num_nodes    = 0;
    g->num_accesses = 0;
    g->dropped      = 0;
    memset(g->ranks, 0, sizeof(g->ranks));
    (void)node_add(g);
}

/* -------------------------------------------------------------------- drawing -- */

/* Settings of the draw. */
typedef struct style {
    size_t   num_ops, bytes, longest; /* greatest length of a range */
    unsigned buffers, roles;
    unsigned collectives; /* of 100 operations */
    unsigned drives;
    unsigned alike; /* of 100 ranges: those at the same offset on both ranks */
} style;

static unsigned draw(uint64_t *seed, unsigned below)
{
    return (unsigned)(test_random(seed) % below);
}

static void ranges_draw(uint64_t *seed, const style *s, sherdi_op ops[2])
{
    for (unsigned role = 0; role < 1 + draw(seed, s->roles); role++) {
        sherdi_range range = {.where  = (int16_t)draw(seed, s->buffers),
                              .access = (uint8_t)(1 + draw(seed, 3)),
                              .bytes  = 1 + draw(seed, (unsigned)s->longest)};

        range.offset       = draw(seed, (unsigned)s->bytes);
        range.is_all_ranks = ops[0].kind != SHERDI_OP_USE && draw(seed, 2) == 0;
        range.access       = range.is_all_ranks ? SHERDI_READS : range.access;
        ops[0].uses[role]  = range;
        if (draw(seed, 100) >= s->alike) {
            range.offset = draw(seed, (unsigned)s->bytes);
        }
        ops[1].uses[role] = range;
    }
}

static void op_draw(uint64_t *seed, const style *s, sherdi_op ops[2])
{
    unsigned  chance = draw(seed, 100);
    sherdi_op op     = {.kind = SHERDI_OP_USE, .unit = -1, .segment = -1, .param = -1};

    for (int role = 0; role < SHERDI_USES; role++) {
        op.uses[role].where = SHERDI_AT_NOWHERE;
    }
    op.lane = (sherdi_lane_id)draw(seed, SHERDI_LANES);
    if (chance < s->collectives) {
        static const sherdi_op_kind KINDS[] = {SHERDI_OP_GATHER, SHERDI_OP_REDUCE,
                                               SHERDI_OP_EXCHANGE};

        op.kind = KINDS[draw(seed, 3)];
        op.lane = draw(seed, 3) == 0 ? SHERDI_LANE_HOST : SHERDI_LANE_WIRE;
        op.flags =
            op.kind == SHERDI_OP_GATHER && draw(seed, 2) ? SHERDI_OP_STABLE : SHERDI_OP_MEETS;
        op.flags |= op.kind == SHERDI_OP_EXCHANGE && chance % 2 ? SHERDI_OP_WAITS : 0;
    } else if (chance < s->collectives + s->drives) {
        op.lane = SHERDI_LANE_DRIVE;
    }
    ops[0] = ops[1] = op;
    ranges_draw(seed, s, ops);
}

static void params_draw(uint64_t *seed, const style *s, sherdi_hazard_params *params)
{
    static const sherdi_op_kind KINDS[] = {SHERDI_OP_GATHER, SHERDI_OP_REDUCE, SHERDI_OP_EXCHANGE};

    *params = (sherdi_hazard_params){
        .has_device = draw(seed, 8) != 0,
        .drive_room = 1 + draw(seed, draw(seed, 2) ? 4 : 100),
        .drop       = (sherdi_hazard_drop)draw(seed, 4),
        .by         = (sherdi_lane_id)draw(seed, SHERDI_LANES),
        .followed   = (sherdi_lane_id)draw(seed, SHERDI_LANES),
        .kind       = KINDS[draw(seed, 3)],
        .number     = 1 + draw(seed, (unsigned)s->num_ops * 2),
    };
    if (params->drop == SHERDI_HAZARD_DROP_MEETS) {
        /* all calls of the kind, or up to three from one of the first three on */
        params->number %= 4;
        params->last_number = params->number + draw(seed, 3);
    }
}

/* Returns the number of the operation at which the hazard is, or the number of operations if there
 * is none. */
static size_t sequence_check(const style *s, uint64_t seed, graph *g, sherdi_hazard_params *params)
{
    uint64_t       first = seed;
    sherdi_mem     mem;
    sherdi_hazard *hazard;
    size_t         i;

    params_draw(&seed, s, params);
    sherdi_mem_init(&mem);
    CHECK_OK(sherdi_hazard_open(params, &mem, &hazard));
    graph_open(g, params);
    for (i = 0; i < s->num_ops; i++) {
        sherdi_op              ops[2];
        const sherdi_op *const both[2] = {&ops[0], &ops[1]};
        sherd_status           got;
        int                    is_ordered;

        op_draw(&seed, s, ops);
        got        = sherdi_hazard_op(hazard, &ops[0], &ops[1]);
        is_ordered = graph_op(g, both);
        if ((got == SHERD_OK) != is_ordered) {
            test_fail(__FILE__, __LINE__, "seed %llu, operation %zu: %s, the graph says %s",
                      (unsigned long long)first, i,
                      got == SHERD_OK ? "no hazard" : sherd_last_error(),
                      is_ordered ? "there is none" : "there is one");
        }
        if (got != SHERD_OK) {
            break;
        }
        CHECK_INT(g->ranks[0].follows, sherdi_hazard_follows(hazard));
    }
    sherdi_hazard_close(hazard);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
    return i;
}

/* Checks sequences, among which must be enough without a hazard, and enough with a late one. */
static void sequences_check(const style *s, size_t count, uint64_t seed)
{
    graph *g       = calloc(1, sizeof(*g));
    size_t without = 0;
    size_t late    = 0;

    CHECK(g != NULL);
    for (size_t i = 0; i < count; i++) {
        sherdi_hazard_params params;
        size_t               at = sequence_check(s, seed + i, g, &params);

        without += at == s->num_ops;
        late += at > s->num_ops / 4 && at < s->num_ops;
        /* The follows that are derived order everything inside a rank. So without collectives a
         * sequence has a hazard only if something was taken out. */
        CHECK(params.drop != SHERDI_HAZARD_DROP_NOTHING || s->collectives > 0 || at == s->num_ops);
    }
    free(g);
    printf("  %zu sequences: %zu without a hazard, %zu with a late one\n", count, without, late);
    CHECK(without > count / 50);
    CHECK(late > count / 50);
}

static size_t times(size_t count)
{
    return test_is_long() ? 20 * count : count;
}

static void drawn_on_one_rank_agree_with_the_graph(void)
{
    style s = {.num_ops = 40, .bytes = 30, .longest = 8, .buffers = 3, .roles = 3, .alike = 100};

    sequences_check(&s, times(3000), 1);
}

static void drawn_with_many_transfers_agree_with_the_graph(void)
{
    style s = {.num_ops = 60,
               .bytes   = 60,
               .longest = 9,
               .buffers = 2,
               .roles   = 2,
               .drives  = 70,
               .alike   = 50};

    sequences_check(&s, times(1500), 100000);
}

static void drawn_between_ranks_agree_with_the_graph(void)
{
    style s = {.num_ops     = 40,
               .bytes       = 200,
               .longest     = 6,
               .buffers     = 3,
               .roles       = 2,
               .collectives = 40,
               .alike       = 50};

    sequences_check(&s, times(3000), 200000);
}

/* There are more accesses than the order remembers for a buffer. */
static void drawn_long_agree_with_the_graph(void)
{
    style s = {.num_ops = MAX_OPS,
               .bytes   = 3000,
               .longest = 20,
               .buffers = 1,
               .roles   = 3,
               .drives  = 10,
               .alike   = 50};

    sequences_check(&s, times(300), 300000);
    s.collectives = 5;
    sequences_check(&s, times(300), 400000);
}

static const test_case CASES[] = {
    CASE(drawn_on_one_rank_agree_with_the_graph),
    CASE(drawn_with_many_transfers_agree_with_the_graph),
    CASE(drawn_between_ranks_agree_with_the_graph),
    CASE(drawn_long_agree_with_the_graph),
};

RUN_MAIN(CASES)
