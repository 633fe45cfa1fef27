/* Tests of the drive's lane. For the tier of these tests, the test itself decides when a transfer
 * is done. */
#include "engine/run/drive.h"

#include "tests/lib/check.h"

#include <string.h>

#define EXTENTS    5
#define SLOTS      3
#define SLOT_BYTES 64

/* A tier whose transfers move their bytes only when they are waited for, so that who uses a slot
 * earlier finds wrong bytes. */
typedef struct fake_tier {
    sherdi_tier tier;
    int         reads, writes; /* transfers that were started */
    int         in_flight;
    int         is_done;
    int         fails_at; /* the number of the wait that fails, counted from here; 0: none */
    uint64_t    held[EXTENTS];
} fake_tier;

static void fake_start(sherdi_tier *tier, size_t extent, void *memory, int is_write, sherdi_io *io)
{
    fake_tier *self = (fake_tier *)tier;

    io->memory   = memory;
    io->number   = extent;
    io->is_write = is_write;
    self->in_flight++;
    *(is_write ? &self->writes : &self->reads) += 1;
}

static void fake_read(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    fake_start(tier, extent, memory, 0, io);
}

static void fake_write(sherdi_tier *tier, size_t extent, void *memory, sherdi_io *io)
{
    fake_start(tier, extent, memory, 1, io);
}

static sherd_status fake_wait(sherdi_tier *tier, sherdi_io *io)
{
    fake_tier *self = (fake_tier *)tier;

    self->in_flight--;
    if (self->fails_at > 0 && --self->fails_at == 0) {
        return sherdi_fail(SHERD_E_IO, "%s %zu failed", io->is_write ? "write" : "read",
                           io->number);
    }
    if (io->memory != NULL && io->is_write) {
        memcpy(&self->held[io->number], io->memory, sizeof(uint64_t));
    } else if (io->memory != NULL) {
        memcpy(io->memory, &self->held[io->number], sizeof(uint64_t));
    }
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
    sherdi_mem      mem;
    pthread_mutex_t lock;
    sherdi_order    order;
    sherdi_drive    drive;
    fake_tier       tier;
    uint64_t        waited[SHERDI_LANES];
    uint64_t        slots[SLOTS]; /* memory of the ring */
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

static rig *rig_open_for(size_t transfers)
{
    static const sherdi_user users[SHERDI_RINGS];
    static rig               r;
    sherdi_drive_others      others = {others_is_over, others_wait, &r, users};

    memset(&r, 0, sizeof(r));
    r.tier.tier.ops = &FAKE_OPS;
    sherdi_mem_init(&r.mem);
    CHECK_OK(sherdi_drive_open(&r.drive, transfers, &r.order, &r.lock, &others, &r.mem));
    return &r;
}

static rig *rig_open(void)
{
    return rig_open_for(40);
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

/* Gives the operation as the executor does. */
static uint64_t give(rig *r, const sherdi_op *op)
{
    sherdi_transfer transfer = {.tier     = &r->tier.tier,
                                .ring     = SHERDI_RING_PARAMS,
                                .is_write = op->uses[0].access == SHERDI_READS};
    uint64_t        number;

    sherdi_order_follows(&r->order, op, &transfer.follows);
    number = sherdi_drive_give(&r->drive, &transfer);
    sherdi_order_enter(&r->order, op, number);
    sherdi_drive_poll(&r->drive, SHERDI_USER_TRAINER);
    return number;
}

/* A read ahead waits for a copy up from its slot. If the read is dropped, a later operation must
 * still wait for the copy. */
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

/* The transfer is over before the call that gives it returns; the order must not remember it for
 * ever. */
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

/* There are nearly as many transfers as accesses of a buffer are remembered, and after them more
 * reads than are remembered. */
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

/* Does what an operation that follows all of the drive does (op_follow). The read that it needs
 * must be started. */
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
        CHECK_OK(sherdi_drive_wait_all(&r->drive, SHERDI_USER_TRAINER));
    }
    CHECK_INT(SHERDI_ORDER_DRIVES + 1, r->tier.reads);
    sherdi_drive_close(&r->drive);
}

/* ------------------------------------------------------------------ passes -- */

/* Moves an extent from or to a slot. */
static uint64_t move(rig *r, int is_write, size_t slot, size_t extent)
{
    sherdi_op op =
        op_on(SHERDI_LANE_DRIVE, is_write ? SHERDI_READS : SHERDI_WRITES, slot * SLOT_BYTES);
    sherdi_transfer transfer = {.tier     = &r->tier.tier,
                                .memory   = (unsigned char *)&r->slots[slot],
                                .extent   = extent,
                                .ring     = SHERDI_RING_PARAMS,
                                .is_write = is_write};
    uint64_t        number;

    op.uses[1] = (sherdi_range){.where  = SHERDI_AT_PARAM_FILE,
                                .access = is_write ? SHERDI_WRITES : SHERDI_READS,
                                .offset = extent * SLOT_BYTES,
                                .bytes  = SLOT_BYTES};
    sherdi_order_follows(&r->order, &op, &transfer.follows);
    number = sherdi_drive_give(&r->drive, &transfer);
    sherdi_order_enter(&r->order, &op, number);
    sherdi_drive_poll(&r->drive, SHERDI_USER_TRAINER);
    return number;
}

/* Lets the host use a slot, after the transfers from and to that slot. */
static sherd_status slot_take(rig *r, size_t slot)
{
    sherdi_op      op = op_on(SHERDI_LANE_HOST, SHERDI_ADDS, slot * SLOT_BYTES);
    sherdi_follows follows;
    sherd_status   status = SHERD_OK;

    sherdi_order_follows(&r->order, &op, &follows);
    for (size_t i = 0; i < follows.num_drives && status == SHERD_OK; i++) {
        status = sherdi_drive_wait(&r->drive, follows.drives[i]);
    }
    return status == SHERD_OK ? sherdi_drive_status(&r->drive, SHERDI_RING_PARAMS) : status;
}

/* Draws reads, writes and changes of slots, in which the same extents come again soon. Their effect
 * must be that of doing them one by one. */
static void effects_check(size_t slots, size_t transfers, uint64_t *random)
{
    rig     *r                  = rig_open_for(transfers);
    uint64_t want_held[EXTENTS] = {0};
    uint64_t want_slots[SLOTS]  = {0};

    for (uint64_t n = 1; n <= 60; n++) {
        size_t slot     = test_random(random) % slots;
        size_t extent   = test_random(random) % EXTENTS;
        size_t kind     = test_random(random) % 3;
        r->tier.is_done = test_random(random) % 4 == 0;
        if (kind < 2) {
            (void)move(r, kind == 0, slot, extent);
            *(kind == 0 ? &want_held[extent] : &want_slots[slot]) =
                kind == 0 ? want_slots[slot] : want_held[extent];
            continue;
        }
        CHECK_OK(slot_take(r, slot));
        CHECK_INT(want_slots[slot], r->slots[slot]);
        r->slots[slot] = want_slots[slot] = n;
    }
    CHECK_OK(sherdi_drive_settle(&r->drive, SHERDI_RING_PARAMS));
    CHECK_INT(0, r->tier.in_flight);
    CHECK_BYTES_EQUAL(want_held, r->tier.held, sizeof(want_held));
    sherdi_drive_close(&r->drive);
}

static void transfers_do_what_they_would_do_one_by_one(void)
{
    uint64_t random = 7;

    for (int run = 0; run < 200; run++) { /* also with one slot, and with room for one transfer */
        effects_check(1 + run % SLOTS, run % 2 == 0 ? 1 : 7, &random);
    }
}

static void closing_waits_for_what_is_on_its_way(void)
{
    rig *r = rig_open();

    (void)move(r, 0, 0, 1);
    (void)move(r, 1, 1, 2);
    CHECK_INT(2, r->tier.in_flight);
    sherdi_drive_close(&r->drive);
    CHECK_INT(0, r->tier.in_flight);
}

static void read_that_fails_ends_the_pass(void)
{
    rig     *r = rig_open();
    uint64_t first, second;

    r->tier.fails_at = 1;
    first            = move(r, 0, 0, 1);
    second           = move(r, 0, 1, 2);
    CHECK_STATUS(SHERD_E_IO, sherdi_drive_wait(&r->drive, first));
    CHECK_ERROR_SAYS("read 1 failed");
    /* its own bytes came, but its pass has failed */
    CHECK_STATUS(SHERD_E_IO, sherdi_drive_wait(&r->drive, second));
    CHECK_INT(2, r->tier.reads);
    (void)move(r, 0, 2, 3);
    CHECK_STATUS(SHERD_E_IO, slot_take(r, 2));
    CHECK_ERROR_SAYS("read 1 failed");
    CHECK_INT(2, r->tier.reads); /* the third read was not started */
    CHECK_OK(sherdi_drive_status(&r->drive, SHERDI_RING_STATE));
    CHECK_STATUS(SHERD_E_IO, sherdi_drive_settle(&r->drive, SHERDI_RING_PARAMS));
    CHECK_ERROR_SAYS("read 1 failed");
    CHECK_OK(sherdi_drive_wait(&r->drive, move(r, 0, 2, 3))); /* in another pass */
    sherdi_drive_close(&r->drive);
}

/* The transfer is over before anybody waits for it, but it was never made. */
static void transfer_that_was_refused_fails_whoever_waits_for_it(void)
{
    rig     *r = rig_open();
    uint64_t failed, refused, other;

    r->tier.fails_at = 1;
    failed           = move(r, 0, 0, 1);
    CHECK_STATUS(SHERD_E_IO, sherdi_drive_wait(&r->drive, failed));
    refused = move(r, 0, 1, 2);
    CHECK_INT(1, r->tier.reads);
    CHECK_STATUS(SHERD_E_IO, sherdi_drive_wait(&r->drive, refused));
    CHECK_ERROR_SAYS("read 1 failed");
    CHECK_STATUS(SHERD_E_IO, sherdi_drive_wait(&r->drive, failed)); /* also a second time */
    CHECK_STATUS(SHERD_E_IO, sherdi_drive_settle(&r->drive, SHERDI_RING_PARAMS));
    other = move(r, 0, 1, 2);
    CHECK_OK(sherdi_drive_wait(&r->drive, other));
    CHECK_OK(sherdi_drive_wait(&r->drive, other));
    sherdi_drive_close(&r->drive);
}

/* No one waits for the write. The next operation in the ring fails, and the settle fails too. */
static void write_that_fails_is_told_later(void)
{
    for (int is_asked = 0; is_asked < 2; is_asked++) {
        rig *r = rig_open();

        r->tier.fails_at = 1;
        r->tier.is_done  = 1;
        (void)move(r, 1, 0, 1);
        if (is_asked) {
            CHECK_STATUS(SHERD_E_IO, slot_take(r, 1));
            CHECK_ERROR_SAYS("write 1 failed");
        }
        CHECK_STATUS(SHERD_E_IO, sherdi_drive_settle(&r->drive, SHERDI_RING_PARAMS));
        CHECK_ERROR_SAYS("write 1 failed");
        /* the failure is returned once */
        CHECK_OK(sherdi_drive_settle(&r->drive, SHERDI_RING_PARAMS));
        sherdi_drive_close(&r->drive);
    }
}

static const test_case CASES[] = {
    CASE(read_that_is_dropped_leaves_what_it_followed),
    CASE(transfer_that_is_over_at_once_is_not_remembered),
    CASE(transfers_that_are_over_are_not_followed_however_many_there_were),
    CASE(following_all_of_the_drive_drops_no_read),
    CASE(transfers_do_what_they_would_do_one_by_one),
    CASE(closing_waits_for_what_is_on_its_way),
    CASE(read_that_fails_ends_the_pass),
    CASE(transfer_that_was_refused_fails_whoever_waits_for_it),
    CASE(write_that_fails_is_told_later),
};

RUN_MAIN(CASES)
