/* The drive's lane over a tier that is told when it is done. */
#include "engine/drive.h"

#include "tests/lib/check.h"

#include <string.h>

typedef struct fake_tier {
    sherdi_tier tier;
    int         reads, writes; /* started */
    int         is_done;
} fake_tier;

static void fake_read(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    (void)extent, (void)memory, (void)io;
    ((fake_tier *)tier)->reads++;
}

static void fake_write(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    (void)extent, (void)memory, (void)io;
    ((fake_tier *)tier)->writes++;
}

static sherd_status fake_wait(sherdi_tier *tier, sherdi_io *io)
{
    (void)tier, (void)io;
    return SHERD_OK;
}

static int fake_is_done(sherdi_tier *tier, const sherdi_io *io)
{
    (void)io;
    return ((fake_tier *)tier)->is_done;
}

static const sherdi_tier_ops FAKE_OPS = {
    .read_start = fake_read, .write_start = fake_write, .wait = fake_wait, .is_done = fake_is_done};

typedef struct rig {
    sherdi_mem   mem;
    sherdi_order order;
    sherdi_drive drive;
    fake_tier    tier;
    uint64_t     waited[SHERDI_LANES];
} rig;

static int others_is_over(void *ctx, sherdi_lane_id lane, uint64_t number)
{
    return ((rig *)ctx)->waited[lane] >= number;
}

static sherd_status others_wait(void *ctx, sherdi_lane_id lane, uint64_t number)
{
    ((rig *)ctx)->waited[lane] = number;
    return SHERD_OK;
}

static rig *rig_open(void)
{
    static rig          r;
    sherdi_drive_others others = {others_is_over, others_wait, &r};

    memset(&r, 0, sizeof(r));
    r.tier.tier.ops = &FAKE_OPS;
    sherdi_mem_init(&r.mem);
    CHECK_OK(sherdi_drive_open(&r.drive, 40, &r.order, &others, &r.mem));
    return &r;
}

static sherdi_op op_on(sherdi_lane_id lane, sherdi_access access, size_t offset)
{
    sherdi_op op = {.lane = lane, .unit = -1, .segment = -1, .param = -1};

    for (int role = 0; role < SHERDI_USES; role++) {
        op.uses[role].where = SHERDI_AT_NOWHERE;
    }
    op.uses[0] = (sherdi_range){.where  = SHERDI_BUFFER_PARAM_RING,
                                .access = (uint8_t)access,
                                .offset = offset,
                                .bytes  = 64};
    return op;
}

/* As the executor gives it. */
static uint64_t give(rig *r, const sherdi_op *op)
{
    sherdi_transfer transfer = {.tier     = &r->tier.tier,
                                .ring     = SHERDI_RING_PARAMS,
                                .is_write = op->uses[0].access == SHERDI_READS};
    uint64_t        number;

    sherdi_order_follows(&r->order, op, &transfer.follows);
    number = sherdi_drive_give(&r->drive, &transfer);
    sherdi_order_enter(&r->order, op, number);
    sherdi_drive_poll(&r->drive);
    return number;
}

/* A read ahead waits for a copy up out of its slot. Dropped, it must not take along that the copy is to be waited
 * for. */
static void read_that_is_dropped_leaves_what_it_followed(void)
{
    rig           *r    = rig_open();
    sherdi_op      up   = op_on(SHERDI_LANE_UP, SHERDI_READS, 0);
    sherdi_op      read = op_on(SHERDI_LANE_DRIVE, SHERDI_WRITES, 0);
    sherdi_follows follows;

    sherdi_order_enter(&r->order, &up, 7);
    (void)give(r, &read);
    CHECK_INT(0, r->tier.reads);
    CHECK_OK(sherdi_drive_settle(&r->drive, SHERDI_RING_PARAMS));
    sherdi_order_follows(&r->order, &read, &follows);
    CHECK(r->waited[SHERDI_LANE_UP] == 7 || follows.last[SHERDI_LANE_UP] == 7);
    sherdi_drive_close(&r->drive);
}

/* Over before its giver comes back: nobody is to remember it for ever. */
static void transfer_that_is_over_at_once_is_not_remembered(void)
{
    rig           *r    = rig_open();
    sherdi_op      read = op_on(SHERDI_LANE_DRIVE, SHERDI_WRITES, 0);
    sherdi_follows follows;

    r->tier.is_done = 1;
    (void)give(r, &read);
    sherdi_order_follows(&r->order, &read, &follows);
    CHECK_INT(0, follows.num_drives);
    sherdi_drive_close(&r->drive);
}

/* More of them than a place remembers, one after the other, and among many that only read. */
static void transfers_that_are_over_are_not_followed_however_many_there_were(void)
{
    rig           *r = rig_open();
    sherdi_op      op;
    sherdi_follows follows;

    for (uint64_t n = 1; n <= SHERDI_ORDER_ACCESSES - 1; n++) {
        op = op_on(SHERDI_LANE_DRIVE, SHERDI_WRITES, 64 * n);
        sherdi_order_enter(&r->order, &op, n);
    }
    for (uint64_t n = 1; n <= SHERDI_ORDER_ACCESSES + 1; n++) {
        op = op_on(SHERDI_LANE_UP, SHERDI_READS, 64 * (1000 + n));
        sherdi_order_enter(&r->order, &op, n);
    }
    for (uint64_t n = 1; n <= SHERDI_ORDER_ACCESSES - 1; n++) {
        sherdi_order_forget(&r->order, SHERDI_LANE_DRIVE, n);
    }
    op = op_on(SHERDI_LANE_DRIVE, SHERDI_WRITES, 64);
    sherdi_order_follows(&r->order, &op, &follows);
    CHECK_INT(0, follows.is_all_drives);
    CHECK_INT(0, follows.num_drives);
    sherdi_drive_close(&r->drive);
}

/* What an operation that follows all of the drive does (op_follow): the read that it needs has to be made. */
static void following_all_of_the_drive_drops_no_read(void)
{
    rig           *r   = rig_open();
    sherdi_op      up  = op_on(SHERDI_LANE_UP, SHERDI_READS, 64 * 17);
    sherdi_op      all = op_on(SHERDI_LANE_DOWN, SHERDI_READS, 0);
    sherdi_follows follows;

    r->tier.is_done = 0;
    sherdi_order_enter(&r->order, &up, 7);
    for (size_t slot = 1; slot <= SHERDI_ORDER_DRIVES + 1; slot++) {
        sherdi_op read = op_on(SHERDI_LANE_DRIVE, SHERDI_WRITES, 64 * slot);

        (void)give(r, &read);
    }
    all.uses[0].bytes = 64 * (SHERDI_ORDER_DRIVES + 2);
    sherdi_order_follows(&r->order, &all, &follows);
    for (size_t i = 0; i < follows.num_drives; i++) {
        CHECK_OK(sherdi_drive_wait(&r->drive, follows.drives[i]));
    }
    if (follows.is_all_drives) {
        CHECK_OK(sherdi_drive_wait_all(&r->drive));
    }
    CHECK_INT(SHERDI_ORDER_DRIVES + 1, r->tier.reads);
    sherdi_drive_close(&r->drive);
}

static const test_case CASES[] = {
    CASE(read_that_is_dropped_leaves_what_it_followed),
    CASE(transfer_that_is_over_at_once_is_not_remembered),
    CASE(transfers_that_are_over_are_not_followed_however_many_there_were),
    CASE(following_all_of_the_drive_drops_no_read),
};

RUN_MAIN(CASES)
