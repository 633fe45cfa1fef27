/* Tests of the check for hazards. First come sequences written by hand, with each kind of order in
 * them and with that order taken out; last, an allocation that fails. Drawn sequences are in
 * test_hazard_drawn.c. */
#include "engine/proof/hazard.h"

#include "tests/lib/check.h"
#include "engine/proof/names.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------- a rig -- */

typedef struct rig {
    sherdi_mem     mem;
    sherdi_hazard *hazard;
} rig;

static const char *unit_name(const void *ctx, int unit)
{
    static const char *const NAMES[] = {"layer0", "layer1", "layer2", "layer3"};

    (void)ctx;
    return NAMES[unit % 4];
}

static const char *where_name(const void *ctx, int where)
{
    (void)ctx;
    return where == SHERDI_BUFFER_GATHER ? "gathered units" : "another place";
}

static void rig_open(rig *r, sherdi_hazard_params params)
{
    params.drive_room = params.drive_room == 0 ? 8 : params.drive_room;
    params.unit_name  = unit_name;
    params.where_name = where_name;
    sherdi_mem_init(&r->mem);
    CHECK_OK(sherdi_hazard_open(&params, &r->mem, &r->hazard));
}

static void rig_close(rig *r)
{
    sherdi_hazard_close(r->hazard);
    CHECK_INT(0, sherdi_mem_held_all(&r->mem));
}

static sherdi_hazard_params on_device(void)
{
    return (sherdi_hazard_params){.has_device = 1};
}

static sherdi_hazard_params without(sherdi_lane_id by, sherdi_lane_id followed)
{
    return (sherdi_hazard_params){
        .has_device = 1, .drop = SHERDI_HAZARD_DROP_LANE, .by = by, .followed = followed};
}

static sherdi_op op_of(sherdi_op_kind kind, sherdi_lane_id lane, int unit)
{
    sherdi_op op = {.kind = kind, .lane = lane, .unit = unit, .segment = -1, .param = -1};

    for (int role = 0; role < SHERDI_USES; role++) {
        op.uses[role].where = SHERDI_AT_NOWHERE;
    }
    return op;
}

static void op_use(sherdi_op *op, int role, sherdi_access access, int where, size_t offset,
                   size_t bytes)
{
    op->uses[role] = (sherdi_range){
        .where = (int16_t)where, .access = (uint8_t)access, .offset = offset, .bytes = bytes};
}

/* Makes an operation with one range of the gathered units. */
static sherdi_op access_of(sherdi_lane_id lane, sherdi_access access, size_t offset, size_t bytes)
{
    static const sherdi_op_kind KINDS[SHERDI_LANES] = {
        [SHERDI_LANE_COMPUTE] = SHERDI_OP_USE, [SHERDI_LANE_UPDATE] = SHERDI_OP_UPDATE,
        [SHERDI_LANE_UP] = SHERDI_OP_CAST,     [SHERDI_LANE_DOWN] = SHERDI_OP_COPY,
        [SHERDI_LANE_WIRE] = SHERDI_OP_GATHER, [SHERDI_LANE_GROUP] = SHERDI_OP_ACROSS,
        [SHERDI_LANE_DRIVE] = SHERDI_OP_READ,  [SHERDI_LANE_HOST] = SHERDI_OP_COMMIT};
    sherdi_op op = op_of(KINDS[lane], lane, (int)lane % 4);

    op_use(&op, SHERDI_USE_DST, access, SHERDI_BUFFER_GATHER, offset, bytes);
    return op;
}

static sherd_status both(rig *r, const sherdi_op *op)
{
    return sherdi_hazard_op(r->hazard, op, op);
}

static sherd_status give(rig *r, sherdi_lane_id lane, sherdi_access access, size_t offset,
                         size_t bytes)
{
    sherdi_op op = access_of(lane, access, offset, bytes);

    return both(r, &op);
}

/* -------------------------------------------------------------- within a rank -- */

static const sherdi_access CONFLICTS[][2] = {{SHERDI_WRITES, SHERDI_READS},
                                             {SHERDI_READS, SHERDI_WRITES},
                                             {SHERDI_WRITES, SHERDI_WRITES},
                                             {SHERDI_ADDS, SHERDI_ADDS},
                                             {SHERDI_READS, SHERDI_ADDS}};
#define NUM_CONFLICTS (sizeof(CONFLICTS) / sizeof(CONFLICTS[0]))

static int pair_can_be_in_disorder(int first, int second)
{
    return first != SHERDI_LANE_HOST && (first != second || first == SHERDI_LANE_DRIVE);
}

/* For every pair of lanes and every conflict, the follow that is derived orders the two; without it
 * the hazard is found. */
static void conflict_of_two_lanes_is_ordered_by_its_follow_alone(void)
{
    for (int i = 0; i < SHERDI_LANES * SHERDI_LANES * (int)NUM_CONFLICTS; i++) {
        const sherdi_access *conflict = CONFLICTS[i % (int)NUM_CONFLICTS];
        sherdi_lane_id       first    = (sherdi_lane_id)(i / (int)NUM_CONFLICTS % SHERDI_LANES);
        sherdi_lane_id       second   = (sherdi_lane_id)(i / (int)NUM_CONFLICTS / SHERDI_LANES);
        rig                  r;
        char                 lane[32];

        rig_open(&r, on_device());
        CHECK_OK(give(&r, first, conflict[0], 100, 50));
        CHECK_OK(give(&r, second, conflict[1], 120, 50));
        rig_close(&r);
        rig_open(&r, without(second, first));
        CHECK_OK(give(&r, first, conflict[0], 100, 50));
        if (!pair_can_be_in_disorder(first, second)) {
            CHECK_OK(give(&r, second, conflict[1], 120, 50));
        } else {
            CHECK_STATUS(SHERD_E_STATE, give(&r, second, conflict[1], 120, 50));
            CHECK_ERROR_SAYS("30 bytes at 120");
            (void)snprintf(lane, sizeof(lane), "on lane %s still", sherdi_lane_name(first));
            CHECK_ERROR_SAYS(lane);
        }
        rig_close(&r);
    }
}

static void hazard_says_who_where_and_how_many(void)
{
    rig r;

    rig_open(&r, without(SHERDI_LANE_WIRE, SHERDI_LANE_COMPUTE));
    CHECK_OK(give(&r, SHERDI_LANE_COMPUTE, SHERDI_READS, 65536, 4096));
    CHECK_STATUS(SHERD_E_STATE, give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, 0, 1 << 20));
    CHECK_ERROR_SAYS(
        "gather of layer0 on lane wire writes bytes that use of layer0 on lane compute "
        "still reads (gathered units, 4096 bytes at 65536): nothing orders the two");
    rig_close(&r);
}

static void reads_beside_reads_and_other_bytes_need_no_order(void)
{
    rig r;

    rig_open(&r, without(SHERDI_LANE_WIRE, SHERDI_LANE_COMPUTE));
    CHECK_OK(give(&r, SHERDI_LANE_COMPUTE, SHERDI_READS, 100, 50));
    CHECK_OK(give(&r, SHERDI_LANE_WIRE, SHERDI_READS, 100, 50));
    CHECK_OK(give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, 150, 50));
    CHECK_OK(give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, 0, 100));
    CHECK_STATUS(SHERD_E_STATE, give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, 149, 1));
    CHECK_ERROR_SAYS("1 bytes at 149");
    rig_close(&r);
}

/* compute comes before wire and wire before update, so compute comes before update even if that
 * follow is dropped. */
static void order_goes_through_a_third_lane(void)
{
    for (int is_third = 0; is_third <= 1; is_third++) {
        sherdi_op op = access_of(SHERDI_LANE_WIRE, SHERDI_READS, 0, 10);
        rig       r;

        rig_open(&r, without(SHERDI_LANE_UPDATE, SHERDI_LANE_COMPUTE));
        CHECK_OK(give(&r, SHERDI_LANE_COMPUTE, SHERDI_WRITES, 0, 100));
        op_use(&op, SHERDI_USE_SRC, SHERDI_WRITES, SHERDI_BUFFER_STAGING, 0, 8);
        CHECK_OK(both(&r, &op));
        op = access_of(SHERDI_LANE_UPDATE, SHERDI_WRITES, 50, 10);
        if (is_third) {
            op_use(&op, SHERDI_USE_SRC, SHERDI_READS, SHERDI_BUFFER_STAGING, 4, 1);
        }
        CHECK_STATUS(is_third ? SHERD_OK : SHERD_E_STATE, both(&r, &op));
        rig_close(&r);
    }
}

/* What the calling thread has waited for comes before all that it gives later, on any lane. This
 * does not hold for what it has not waited for. */
static void host_orders_what_it_gives_behind_what_it_waited_for(void)
{
    for (int is_waited = 0; is_waited <= 1; is_waited++) {
        rig r;

        rig_open(&r, without(SHERDI_LANE_DOWN, SHERDI_LANE_UPDATE));
        CHECK_OK(give(&r, SHERDI_LANE_UPDATE, SHERDI_WRITES, 0, 100));
        CHECK_OK(give(&r, SHERDI_LANE_HOST, SHERDI_READS, is_waited ? 0 : 500, 1));
        CHECK_STATUS(is_waited ? SHERD_OK : SHERD_E_STATE,
                     give(&r, SHERDI_LANE_DOWN, SHERDI_READS, 60, 10));
        rig_close(&r);
    }
}

/* A lane of a device cannot wait for the drive. The calling thread waits instead, which orders all
 * that comes later. */
static void a_lane_that_follows_the_drive_makes_the_host_wait(void)
{
    for (int is_waited = 0; is_waited <= 1; is_waited++) {
        rig r;

        rig_open(&r, without(SHERDI_LANE_DOWN, SHERDI_LANE_DRIVE));
        CHECK_OK(give(&r, SHERDI_LANE_DRIVE, SHERDI_WRITES, 0, 100));
        CHECK_OK(give(&r, SHERDI_LANE_UP, SHERDI_READS, is_waited ? 0 : 500, 1));
        CHECK_STATUS(is_waited ? SHERD_OK : SHERD_E_STATE,
                     give(&r, SHERDI_LANE_DOWN, SHERDI_READS, 60, 10));
        rig_close(&r);
    }
}

/* The trainer's lane has no points at which others could wait: a lane that follows it follows its
 * end. */
static void compute_is_followed_at_its_end(void)
{
    sherdi_op op = access_of(SHERDI_LANE_WIRE, SHERDI_READS, 0, 1);
    rig       r;

    rig_open(&r, without(SHERDI_LANE_DOWN, SHERDI_LANE_COMPUTE));
    CHECK_OK(give(&r, SHERDI_LANE_COMPUTE, SHERDI_WRITES, 0, 10));
    CHECK_OK(give(&r, SHERDI_LANE_COMPUTE, SHERDI_WRITES, 20, 10));
    op_use(&op, SHERDI_USE_SRC, SHERDI_WRITES, SHERDI_BUFFER_STAGING, 0, 1);
    CHECK_OK(both(&r, &op));
    op = access_of(SHERDI_LANE_DOWN, SHERDI_READS, 20, 10);
    op_use(&op, SHERDI_USE_SRC, SHERDI_READS, SHERDI_BUFFER_STAGING, 0, 1);
    CHECK_OK(both(&r, &op));
    CHECK_OK(give(&r, SHERDI_LANE_COMPUTE, SHERDI_WRITES, 40, 10));
    CHECK_STATUS(SHERD_E_STATE, give(&r, SHERDI_LANE_DOWN, SHERDI_READS, 40, 10));
    rig_close(&r);
}

/* A lane that follows a point of another lane does not follow what came after that point. */
static void other_lanes_are_followed_at_the_operation(void)
{
    sherdi_op op = access_of(SHERDI_LANE_WIRE, SHERDI_READS, 0, 1);
    rig       r;

    rig_open(&r, without(SHERDI_LANE_DOWN, SHERDI_LANE_UPDATE));
    CHECK_OK(give(&r, SHERDI_LANE_UPDATE, SHERDI_WRITES, 0, 10));
    CHECK_OK(give(&r, SHERDI_LANE_UPDATE, SHERDI_WRITES, 20, 10));
    op_use(&op, SHERDI_USE_SRC, SHERDI_WRITES, SHERDI_BUFFER_STAGING, 0, 1);
    CHECK_OK(both(&r, &op));
    op = access_of(SHERDI_LANE_DOWN, SHERDI_READS, 20, 10);
    op_use(&op, SHERDI_USE_SRC, SHERDI_READS, SHERDI_BUFFER_STAGING, 0, 1);
    CHECK_STATUS(SHERD_E_STATE, both(&r, &op));
    rig_close(&r);
}

/* Without a device the other lanes are the calling thread. */
static void without_a_device_only_wire_and_drive_are_beside_the_host(void)
{
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        sherdi_hazard_params params = without(SHERDI_LANE_HOST, (sherdi_lane_id)lane);
        int is_beside = sherdi_lane_is_wire((sherdi_lane_id)lane) || lane == SHERDI_LANE_DRIVE;
        rig r;

        params.has_device = 0;
        rig_open(&r, params);
        CHECK_OK(give(&r, (sherdi_lane_id)lane, SHERDI_WRITES, 0, 10));
        CHECK_STATUS(is_beside ? SHERD_E_STATE : SHERD_OK,
                     give(&r, SHERDI_LANE_HOST, SHERDI_READS, 0, 10));
        rig_close(&r);
    }
}

/* ------------------------------------------------------------------ the drive -- */

static sherdi_op transfer_of(int is_read, size_t slot, size_t extent)
{
    sherdi_op op = op_of(is_read ? SHERDI_OP_READ : SHERDI_OP_WRITE, SHERDI_LANE_DRIVE, -1);

    op_use(&op, is_read ? SHERDI_USE_DST : SHERDI_USE_SRC, is_read ? SHERDI_WRITES : SHERDI_READS,
           SHERDI_BUFFER_STATE_RING, slot * 64, 64);
    op_use(&op, is_read ? SHERDI_USE_SRC : SHERDI_USE_DST, is_read ? SHERDI_READS : SHERDI_WRITES,
           is_read ? SHERDI_AT_STATE_LIVE : SHERDI_AT_STATE_SPARE, extent * 64, 64);
    return op;
}

static sherd_status update_slot(rig *r, sherdi_lane_id lane, size_t slot)
{
    sherdi_op op = op_of(SHERDI_OP_UPDATE, lane, 2);

    op_use(&op, SHERDI_USE_STATE, SHERDI_ADDS, SHERDI_BUFFER_STATE_RING, slot * 64, 64);
    return both(r, &op);
}

/* Walks over state on a drive: it reads ahead, and for each extent updates, writes, and reads the
 * next extent into the slot that is still being written. */
static sherd_status drive_walk(rig *r, sherdi_lane_id lane)
{
    for (size_t e = 0; e < 3; e++) {
        sherdi_op read = transfer_of(1, e, e);

        SHERDI_TRY(both(r, &read));
    }
    for (size_t e = 0; e < 12; e++) {
        sherdi_op write = transfer_of(0, e % 3, e);
        sherdi_op ahead = transfer_of(1, e % 3, e + 3);

        SHERDI_TRY(update_slot(r, lane, e % 3));
        SHERDI_TRY(both(r, &write));
        SHERDI_TRY(both(r, &ahead));
    }
    return SHERD_OK;
}

static void drive_reads_ahead_into_slots_that_are_still_written(void)
{
    static const sherdi_lane_id DROPS[][2] = {{SHERDI_LANE_DRIVE, SHERDI_LANE_DRIVE},
                                              {SHERDI_LANE_UPDATE, SHERDI_LANE_DRIVE},
                                              {SHERDI_LANE_DRIVE, SHERDI_LANE_UPDATE}};
    rig                         r;

    rig_open(&r, on_device());
    CHECK_OK(drive_walk(&r, SHERDI_LANE_UPDATE));
    CHECK_OK(drive_walk(&r, SHERDI_LANE_HOST));
    rig_close(&r);
    for (size_t i = 0; i < 3; i++) {
        rig_open(&r, without(DROPS[i][0], DROPS[i][1]));
        CHECK_STATUS(SHERD_E_STATE, drive_walk(&r, SHERDI_LANE_UPDATE));
        CHECK_ERROR_SAYS("on lane drive");
        rig_close(&r);
    }
    rig_open(&r, without(SHERDI_LANE_HOST, SHERDI_LANE_DRIVE));
    CHECK_STATUS(SHERD_E_STATE, drive_walk(&r, SHERDI_LANE_HOST));
    rig_close(&r);
}

/* The end of a later transfer says nothing about an earlier one. */
static void drive_transfers_are_not_ordered_by_their_lane(void)
{
    rig       r;
    sherdi_op op = op_of(SHERDI_OP_READ, SHERDI_LANE_DRIVE, 0);

    rig_open(&r, without(SHERDI_LANE_UPDATE, SHERDI_LANE_DRIVE));
    op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, SHERDI_BUFFER_GATHER, 0, 10);
    CHECK_OK(both(&r, &op));
    CHECK_OK(give(&r, SHERDI_LANE_DRIVE, SHERDI_WRITES, 20, 10));
    CHECK_OK(give(&r, SHERDI_LANE_HOST, SHERDI_READS, 20, 10));
    CHECK_OK(give(&r, SHERDI_LANE_UPDATE, SHERDI_READS, 20, 10));
    CHECK_STATUS(SHERD_E_STATE, give(&r, SHERDI_LANE_UPDATE, SHERDI_READS, 0, 10));
    CHECK_ERROR_SAYS("read of layer0 on lane drive");
    rig_close(&r);
}

/* With room for two transfers, the third waits for the first. */
static void drive_without_room_makes_the_host_wait(void)
{
    for (size_t room = 2; room <= 3; room++) {
        sherdi_hazard_params params = without(SHERDI_LANE_UPDATE, SHERDI_LANE_DRIVE);
        rig                  r;

        params.drive_room = room;
        rig_open(&r, params);
        for (size_t i = 0; i < 3; i++) {
            CHECK_OK(give(&r, SHERDI_LANE_DRIVE, SHERDI_WRITES, i * 10, 10));
        }
        CHECK_STATUS(room == 2 ? SHERD_OK : SHERD_E_STATE,
                     give(&r, SHERDI_LANE_UPDATE, SHERDI_READS, 0, 10));
        rig_close(&r);
    }
}

/* There are more accesses of a buffer, and more transfers to follow, than the order remembers. */
static void more_accesses_than_are_remembered_are_still_ordered(void)
{
    for (int lane = 0; lane < SHERDI_LANE_HOST; lane++) {
        sherdi_lane_id       by     = lane == SHERDI_LANE_DOWN ? SHERDI_LANE_UP : SHERDI_LANE_DOWN;
        sherdi_hazard_params params = without(by, (sherdi_lane_id)lane);

        for (int is_dropped = 0; is_dropped <= 1; is_dropped++) {
            rig r;

            params.drop       = is_dropped ? SHERDI_HAZARD_DROP_LANE : SHERDI_HAZARD_DROP_NOTHING;
            params.drive_room = 400;
            rig_open(&r, params);
            for (size_t i = 0; i < 200; i++) {
                CHECK_OK(
                    give(&r, (sherdi_lane_id)lane, i % 2 ? SHERDI_READS : SHERDI_ADDS, 10 * i, 9));
            }
            CHECK_OK(give(&r, by, SHERDI_WRITES, 9, 1));
            CHECK_STATUS(is_dropped ? SHERD_E_STATE : SHERD_OK,
                         give(&r, by, SHERDI_WRITES, 0, 3000));
            rig_close(&r);
        }
    }
}

/* --------------------------------------------------------------- between ranks -- */

/* Makes a gather of a buffer of two slices; this rank's slice goes to both ranks. */
static sherdi_op gather_of(int rank, uint32_t flags, int where)
{
    sherdi_op op  = op_of(SHERDI_OP_GATHER, SHERDI_LANE_WIRE, 3);
    size_t    own = (size_t)rank * 100;

    op.flags = flags;
    op_use(&op, SHERDI_USE_DST, SHERDI_WRITES, where, 100 - own, 100);
    op_use(&op, SHERDI_USE_SRC, SHERDI_READS, where, own, 100);
    op.uses[SHERDI_USE_SRC].is_all_ranks = 1;
    return op;
}

static sherd_status gather(rig *r, uint32_t flags)
{
    sherdi_op one   = gather_of(0, flags, SHERDI_BUFFER_PARAMS);
    sherdi_op other = gather_of(1, flags, SHERDI_BUFFER_PARAMS);

    return sherdi_hazard_op(r->hazard, &one, &other);
}

/* Gives an operation on the slice that this rank owns. */
static sherd_status own_slice(rig *r, sherdi_op_kind kind, sherdi_lane_id lane,
                              sherdi_access access)
{
    sherdi_op ops[2];

    for (int rank = 0; rank < 2; rank++) {
        ops[rank] = op_of(kind, lane, 2);
        op_use(&ops[rank], SHERDI_USE_PARAM, access, SHERDI_BUFFER_PARAMS, (size_t)rank * 100, 100);
        op_use(&ops[rank], SHERDI_USE_SCALARS, SHERDI_ADDS, SHERDI_BUFFER_SCALARS, 0, 8);
    }
    return sherdi_hazard_op(r->hazard, &ops[0], &ops[1]);
}

/* Exchanges control data that is made of the scalars, after what the wire did to the parameters. */
static sherd_status exchange(rig *r, sherdi_lane_id lane)
{
    sherdi_op op = op_of(SHERDI_OP_EXCHANGE, lane, -1);

    op.flags = SHERDI_OP_MEETS;
    op_use(&op, SHERDI_USE_SRC, SHERDI_READS, SHERDI_BUFFER_SCALARS, 0, 8);
    return both(r, &op);
}

static const sherdi_op_kind CHANGES[] = {SHERDI_OP_UPDATE, SHERDI_OP_CAST, SHERDI_OP_COPY,
                                         SHERDI_OP_ZERO};
#define NUM_CHANGES (sizeof(CHANGES) / sizeof(CHANGES[0]))

/* This rank's own order knows nothing of what its peer reads; only a meeting orders the two. */
static void stable_gather_is_behind_the_peers_change_if_they_met(void)
{
    for (size_t i = 0; i < 2 * NUM_CHANGES; i++) {
        int is_met = (int)(i % 2);
        rig r;

        rig_open(&r, on_device());
        CHECK_OK(own_slice(&r, CHANGES[i / 2], SHERDI_LANE_UPDATE, SHERDI_WRITES));
        if (is_met) {
            CHECK_OK(exchange(&r, SHERDI_LANE_HOST));
        }
        CHECK_STATUS(is_met ? SHERD_OK : SHERD_E_STATE, gather(&r, SHERDI_OP_STABLE));
        if (!is_met) {
            CHECK_ERROR_SAYS("another rank's gather of layer3 on lane wire reads");
            CHECK_ERROR_SAYS(sherdi_op_kind_name(CHANGES[i / 2]));
            CHECK_ERROR_SAYS("no call between them makes one rank wait");
        }
        rig_close(&r);
    }
}

static void change_is_behind_the_peers_stable_gather_if_they_met(void)
{
    for (size_t i = 0; i < 2 * NUM_CHANGES; i++) {
        int       is_met = (int)(i % 2);
        sherdi_op use    = op_of(SHERDI_OP_NORM, SHERDI_LANE_COMPUTE, 3);
        rig       r;

        rig_open(&r, on_device());
        CHECK_OK(gather(&r, SHERDI_OP_STABLE));
        op_use(&use, SHERDI_USE_SRC, SHERDI_READS, SHERDI_BUFFER_PARAMS, 0, 200);
        op_use(&use, SHERDI_USE_SCALARS, SHERDI_ADDS, SHERDI_BUFFER_SCALARS, 0, 8);
        CHECK_OK(both(&r, &use));
        if (is_met) {
            CHECK_OK(exchange(&r, SHERDI_LANE_HOST));
        }
        CHECK_STATUS(is_met ? SHERD_OK : SHERD_E_STATE,
                     own_slice(&r, CHANGES[i / 2], SHERDI_LANE_UPDATE, SHERDI_WRITES));
        if (!is_met) {
            CHECK_ERROR_SAYS("that another rank's gather of layer3 on lane wire still reads");
        }
        rig_close(&r);
    }
}

/* The exchange has to come after the gather itself; a meeting at any other time is not enough. */
static void meeting_orders_only_what_it_follows(void)
{
    rig r;

    rig_open(&r, on_device());
    CHECK_OK(gather(&r, SHERDI_OP_STABLE));
    CHECK_OK(exchange(&r, SHERDI_LANE_HOST));
    CHECK_STATUS(SHERD_E_STATE, own_slice(&r, SHERDI_OP_UPDATE, SHERDI_LANE_UPDATE, SHERDI_WRITES));
    rig_close(&r);
    rig_open(&r, on_device()); /* on the wire the exchange comes after the gather */
    CHECK_OK(gather(&r, SHERDI_OP_STABLE));
    CHECK_OK(exchange(&r, SHERDI_LANE_WIRE));
    CHECK_OK(exchange(&r, SHERDI_LANE_HOST));
    CHECK_OK(own_slice(&r, SHERDI_OP_UPDATE, SHERDI_LANE_UPDATE, SHERDI_WRITES));
    rig_close(&r);
}

/* If a rank's own call is over, its bytes were read, but the call of another rank may not be over
 * and may still write. */
static void what_a_call_makes_on_a_peer_needs_a_further_meeting(void)
{
    for (int is_met = 0; is_met <= 1; is_met++) {
        sherdi_op ops[2];
        rig       r;

        rig_open(&r, on_device());
        for (int rank = 0; rank < 2; rank++) {
            ops[rank]       = op_of(SHERDI_OP_REDUCE, SHERDI_LANE_WIRE, 1);
            ops[rank].flags = SHERDI_OP_MEETS;
            op_use(&ops[rank], SHERDI_USE_DST, SHERDI_WRITES, SHERDI_BUFFER_PARAMS,
                   (size_t)rank * 100, 100);
        }
        CHECK_OK(sherdi_hazard_op(r.hazard, &ops[0], &ops[1]));
        if (is_met) {
            CHECK_OK(exchange(&r, SHERDI_LANE_WIRE));
        }
        CHECK_STATUS(is_met ? SHERD_OK : SHERD_E_STATE, gather(&r, SHERDI_OP_STABLE));
        rig_close(&r);
    }
}

static sherd_status reduce_and_gather(rig *r)
{
    sherdi_op ops[2];

    for (int i = 0; i < 2; i++) {
        SHERDI_TRY(give(r, SHERDI_LANE_COMPUTE, SHERDI_ADDS, 0, 200));
        for (int rank = 0; rank < 2; rank++) {
            /* in place, to the own slice; peers read the whole */
            ops[rank]       = op_of(SHERDI_OP_REDUCE, SHERDI_LANE_WIRE, 1);
            ops[rank].flags = SHERDI_OP_MEETS;
            op_use(&ops[rank], SHERDI_USE_DST, SHERDI_WRITES, SHERDI_BUFFER_GATHER,
                   (size_t)rank * 100, 100);
            op_use(&ops[rank], SHERDI_USE_SRC, SHERDI_READS, SHERDI_BUFFER_GATHER, 0, 200);
            ops[rank].uses[SHERDI_USE_SRC].is_all_ranks = 1;
        }
        SHERDI_TRY(sherdi_hazard_op(r->hazard, &ops[0], &ops[1]));
        SHERDI_TRY(own_slice(r, SHERDI_OP_UPDATE, SHERDI_LANE_UPDATE, SHERDI_ADDS));
        SHERDI_TRY(gather(r, SHERDI_OP_MEETS));
    }
    return SHERD_OK;
}

/* A peer reads in place what the call writes. The call itself orders that, as long as it is one in
 * which the ranks meet. */
static void collectives_in_place_are_ordered_as_long_as_they_meet(void)
{
    static const sherdi_op_kind KINDS[] = {SHERDI_OP_GATHER, SHERDI_OP_REDUCE};
    rig                         r;

    rig_open(&r, on_device());
    CHECK_OK(reduce_and_gather(&r));
    rig_close(&r);
    for (size_t i = 0; i < 2; i++) {
        rig_open(&r, (sherdi_hazard_params){
                         .has_device = 1, .drop = SHERDI_HAZARD_DROP_MEETS, .kind = KINDS[i]});
        CHECK_STATUS(SHERD_E_STATE, reduce_and_gather(&r));
        CHECK_ERROR_SAYS("another rank's");
        CHECK_ERROR_SAYS(sherdi_op_kind_name(KINDS[i]));
        rig_close(&r);
    }
}

static sherd_status step(rig *r)
{
    SHERDI_TRY(gather(r, SHERDI_OP_STABLE));
    SHERDI_TRY(exchange(r, SHERDI_LANE_WIRE));
    SHERDI_TRY(exchange(r, SHERDI_LANE_HOST));
    SHERDI_TRY(own_slice(r, SHERDI_OP_UPDATE, SHERDI_LANE_UPDATE, SHERDI_WRITES));
    return exchange(r, SHERDI_LANE_HOST);
}

/* Takes out each follow by itself. Some are superfluous because of others, some are not. */
static void a_numbered_follow_is_taken_out(void)
{
    rig      r;
    uint64_t follows;
    int      found = 0;

    rig_open(&r, on_device());
    CHECK_OK(step(&r));
    CHECK_OK(step(&r));
    follows = sherdi_hazard_follows(r.hazard);
    CHECK(follows > 0);
    rig_close(&r);
    for (uint64_t n = 1; n <= follows + 1; n++) {
        sherd_status status;

        rig_open(&r, (sherdi_hazard_params){
                         .has_device = 1, .drop = SHERDI_HAZARD_DROP_NUMBER, .number = n});
        status = step(&r);
        status = status == SHERD_OK ? step(&r) : status;
        CHECK(n <= follows || status == SHERD_OK);
        found += status == SHERD_E_STATE;
        rig_close(&r);
    }
    CHECK(found > 0);
}

/* -------------------------------------------------------- uses that go on -- */

/* Between acquire and release the trainer may work at any time. What another lane does meanwhile is
 * a conflict, whatever that lane follows, also if the trainer's own lane writes over the bytes in
 * between. */
static void use_that_goes_on_is_in_conflict_with_what_comes_in_between(void)
{
    for (int i = 0; i < 4; i++) {
        int       is_writing = i % 2;
        sherdi_op use        = access_of(SHERDI_LANE_COMPUTE, SHERDI_READS, 0, 100);
        sherdi_op zero       = access_of(SHERDI_LANE_COMPUTE, SHERDI_ADDS, 90, 5);
        rig       r;

        use.unit  = 2;
        zero.kind = SHERDI_OP_ZERO;
        rig_open(&r, (sherdi_hazard_params){.has_device = i < 2, .uses_last = 1});
        CHECK_OK(give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, 0, 100));
        CHECK_OK(both(&r, &use));
        CHECK_OK(give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, 100, 10));
        CHECK_OK(both(&r, &zero));
        CHECK_STATUS(
            is_writing ? SHERD_E_STATE : SHERD_OK,
            give(&r, SHERDI_LANE_WIRE, is_writing ? SHERDI_WRITES : SHERDI_READS, 50, 100));
        if (is_writing) {
            CHECK_ERROR_SAYS("that use of layer2 on lane compute still reads");
            CHECK_ERROR_SAYS("50 bytes at 50");
        } else {
            CHECK_OK(sherdi_hazard_end(r.hazard, &use, &use));
            CHECK_OK(give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, 0, 80));
        }
        rig_close(&r);
    }
}

/* A lane that followed the trainer's lane earlier does not come after the end of the use. */
static void what_comes_behind_a_use_is_behind_its_end(void)
{
    for (int is_late = 0; is_late <= 1; is_late++) {
        sherdi_op            use   = access_of(SHERDI_LANE_COMPUTE, SHERDI_ADDS, 0, 100);
        sherdi_op            op    = access_of(SHERDI_LANE_WIRE, SHERDI_READS, 200, 10);
        sherdi_op            first = access_of(SHERDI_LANE_COMPUTE, SHERDI_WRITES, 200, 10);
        rig                  r;
        sherdi_hazard_params params = without(SHERDI_LANE_UPDATE, SHERDI_LANE_COMPUTE);

        use.unit         = 2;
        first.kind       = SHERDI_OP_ZERO;
        params.uses_last = 1;
        rig_open(&r, params);
        CHECK_OK(both(&r, &first));
        CHECK_OK(both(&r, &use));
        op_use(&op, SHERDI_USE_SRC, SHERDI_WRITES, SHERDI_BUFFER_STAGING, 0, 8);
        if (is_late) {
            CHECK_OK(sherdi_hazard_end(r.hazard, &use, &use));
        }
        CHECK_OK(both(&r, &op));
        if (!is_late) {
            CHECK_OK(sherdi_hazard_end(r.hazard, &use, &use));
        }
        op = access_of(SHERDI_LANE_UPDATE, SHERDI_READS, 0, 100);
        op_use(&op, SHERDI_USE_SRC, SHERDI_READS, SHERDI_BUFFER_STAGING, 0, 8);
        CHECK_STATUS(is_late ? SHERD_OK : SHERD_E_STATE, both(&r, &op));
        CHECK_STATUS(SHERD_E_STATE, sherdi_hazard_end(r.hazard, &use, &use));
        CHECK_ERROR_SAYS("did not begin");
        rig_close(&r);
    }
}

/* Uses of a unit may be nested: the inner one ends first. */
static void uses_end_in_turn(void)
{
    for (int is_outer = 0; is_outer <= 1; is_outer++) {
        sherdi_op outer = access_of(SHERDI_LANE_COMPUTE, SHERDI_READS, 0, 100);
        sherdi_op inner = access_of(SHERDI_LANE_COMPUTE, SHERDI_READS, 200, 100);
        rig       r;

        rig_open(&r, (sherdi_hazard_params){.has_device = 1, .uses_last = 1});
        CHECK_OK(both(&r, &outer));
        CHECK_OK(both(&r, &inner));
        CHECK_OK(sherdi_hazard_end(r.hazard, &inner, &inner));
        CHECK_STATUS(is_outer ? SHERD_E_STATE : SHERD_OK,
                     give(&r, SHERDI_LANE_WIRE, SHERDI_WRITES, is_outer ? 0 : 200, 1));
        rig_close(&r);
    }
}

/* Fails each allocation once, at the opening and later. */
static void no_room_is_told_and_nothing_is_left(void)
{
    sherd_status status = SHERD_E_NOMEM;

    for (size_t n = 1; status != SHERD_OK; n++) {
        sherdi_hazard_params params = {.has_device = 1, .drive_room = 8};
        sherdi_hazard       *hazard = NULL;
        rig                  r;

        sherdi_mem_init(&r.mem);
        (void)sherdi_mem_fail_nth(n);
        status = sherdi_hazard_open(&params, &r.mem, &hazard);
        CHECK(status == SHERD_OK || hazard == NULL);
        r.hazard = hazard;
        for (size_t i = 0; i < 12 && status == SHERD_OK; i++) {
            status =
                give(&r, SHERDI_LANE_WIRE, i % 3 == 0 ? SHERDI_WRITES : SHERDI_READS, 10 * i, 30);
        }
        (void)sherdi_mem_fail_nth(0);
        CHECK(status == SHERD_OK || status == SHERD_E_NOMEM);
        rig_close(&r);
    }
}

static const test_case CASES[] = {
    CASE(conflict_of_two_lanes_is_ordered_by_its_follow_alone),
    CASE(hazard_says_who_where_and_how_many),
    CASE(reads_beside_reads_and_other_bytes_need_no_order),
    CASE(order_goes_through_a_third_lane),
    CASE(host_orders_what_it_gives_behind_what_it_waited_for),
    CASE(a_lane_that_follows_the_drive_makes_the_host_wait),
    CASE(compute_is_followed_at_its_end),
    CASE(other_lanes_are_followed_at_the_operation),
    CASE(without_a_device_only_wire_and_drive_are_beside_the_host),
    CASE(drive_reads_ahead_into_slots_that_are_still_written),
    CASE(drive_transfers_are_not_ordered_by_their_lane),
    CASE(drive_without_room_makes_the_host_wait),
    CASE(more_accesses_than_are_remembered_are_still_ordered),
    CASE(stable_gather_is_behind_the_peers_change_if_they_met),
    CASE(change_is_behind_the_peers_stable_gather_if_they_met),
    CASE(meeting_orders_only_what_it_follows),
    CASE(what_a_call_makes_on_a_peer_needs_a_further_meeting),
    CASE(collectives_in_place_are_ordered_as_long_as_they_meet),
    CASE(a_numbered_follow_is_taken_out),
    CASE(use_that_goes_on_is_in_conflict_with_what_comes_in_between),
    CASE(what_comes_behind_a_use_is_behind_its_end),
    CASE(uses_end_in_turn),
    CASE(no_room_is_told_and_nothing_is_left),
};

RUN_MAIN(CASES)
