#include "engine/run/drive.h"

#include "base/assert.h"
#include "base/clock.h"

sherd_status sherdi_drive_open(sherdi_drive *drive, size_t count, sherdi_order *order,
                               const sherdi_drive_others *others, sherdi_mem *mem)
{
    *drive = (sherdi_drive){.order = order, .others = *others};
    drive->transfers =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*drive->transfers));
    if (drive->transfers == NULL) {
        return SHERD_E_NOMEM;
    }
    drive->count = count;
    return SHERD_OK;
}

void sherdi_drive_close(sherdi_drive *drive)
{
    for (int ring = 0; ring < SHERDI_RINGS && drive->transfers != NULL; ring++) {
        (void)sherdi_drive_settle(drive, (sherdi_ring)ring);
    }
    sherdi_free(drive->transfers);
    *drive = (sherdi_drive){0};
}

/* Invariant: each transfer that is not over lies at its number % count, and follows only transfers that were given before it. So
 * every wait ends. */
static int are_in_place(const sherdi_drive *drive)
{
    for (size_t i = 0; i < drive->count; i++) {
        const sherdi_transfer *transfer = &drive->transfers[i];

        if (transfer->number == 0) {
            continue;
        }
        if (transfer->number % drive->count != i || transfer->number > drive->given ||
            drive->given - transfer->number >= drive->count) {
            return 0;
        }
        for (size_t k = 0; k < transfer->follows.num_drives; k++) {
            if (transfer->follows.drives[k] >= transfer->number) {
                return 0;
            }
        }
    }
    return 1;
}

static sherdi_transfer *transfer_find(sherdi_drive *drive, uint64_t number)
{
    sherdi_transfer *transfer = &drive->transfers[number % drive->count];

    return number != 0 && transfer->number == number ? transfer : NULL;
}

sherd_status sherdi_drive_status(const sherdi_drive *drive, sherdi_ring ring)
{
    return sherdi_outcome_end(&drive->outcomes[ring]);
}

static void transfer_start(sherdi_drive *drive, sherdi_transfer *transfer)
{
    sherdi_tier *tier = transfer->tier;

    transfer->is_started = 1;
    transfer->io         = (sherdi_io){0};
    if (drive->outcomes[transfer->ring].status != SHERD_OK) {
        transfer->is_failed = 1; /* the transfer is over at once */
        return;
    }
    if (transfer->is_write) {
        tier->ops->write_start(tier, transfer->extent, transfer->memory, &transfer->io);
    } else {
        tier->ops->read_start(tier, transfer->extent, transfer->memory, &transfer->io);
    }
}

/* Ends a transfer that was started; blocks until it is over. */
static void transfer_end(sherdi_drive *drive, sherdi_transfer *transfer)
{
    if (!transfer->is_failed) {
        sherd_status status = transfer->tier->ops->wait(transfer->tier, &transfer->io);

        sherdi_outcome_add(&drive->outcomes[transfer->ring], status);
        transfer->is_failed = status != SHERD_OK;
    }
    transfer->ended  = transfer->number;
    transfer->number = 0;
    sherdi_order_forget(drive->order, SHERDI_LANE_DRIVE, transfer->ended);
}

static int is_startable(sherdi_drive *drive, const sherdi_transfer *transfer)
{
    const sherdi_follows *follows = &transfer->follows;

    for (size_t i = 0; i < follows->num_drives; i++) {
        if (transfer_find(drive, follows->drives[i]) != NULL) {
            return 0;
        }
    }
    for (uint64_t n = drive->given > drive->count ? drive->given - drive->count : 0;
         follows->is_all_drives && n < transfer->number; n++) {
        if (transfer_find(drive, n) != NULL) {
            return 0;
        }
    }
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows->last[lane] != 0 &&
            !drive->others.is_over(drive->others.ctx, (sherdi_lane_id)lane, follows->last[lane])) {
            return 0;
        }
    }
    return 1;
}

static int is_over(sherdi_transfer *transfer)
{
    return transfer->is_failed || transfer->tier->ops->is_done(transfer->tier, &transfer->io);
}

/* Goes in the order in which transfers were given: the end of one may let the next one start. */
void sherdi_drive_poll(sherdi_drive *drive)
{
    uint64_t first = drive->given > drive->count ? drive->given - drive->count + 1 : 1;

    for (uint64_t n = first; n <= drive->given; n++) {
        sherdi_transfer *transfer = transfer_find(drive, n);

        if (transfer == NULL) {
            continue;
        }
        if (!transfer->is_started && is_startable(drive, transfer)) {
            transfer_start(drive, transfer);
        }
        if (transfer->is_started && is_over(transfer)) {
            transfer_end(drive, transfer);
        }
    }
}

/* Waits for what the transfer follows. Meanwhile the transfer itself may start, and end. */
static void follows_wait(sherdi_drive *drive, const sherdi_transfer *transfer)
{
    sherdi_follows follows = transfer->follows;
    sherdi_ring    ring    = transfer->ring;
    uint64_t       number  = transfer->number;
    uint64_t       first   = drive->given > drive->count ? drive->given - drive->count + 1 : 1;

    for (size_t i = 0; i < follows.num_drives; i++) {
        (void)sherdi_drive_wait(drive, follows.drives[i]);
    }
    for (uint64_t n = first; follows.is_all_drives && n < number; n++) {
        (void)sherdi_drive_wait(drive, n);
    }
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows.last[lane] != 0) {
            sherdi_outcome_add(
                &drive->outcomes[ring],
                drive->others.wait(drive->others.ctx, (sherdi_lane_id)lane, follows.last[lane]));
        }
    }
}

sherd_status sherdi_drive_wait(sherdi_drive *drive, uint64_t number)
{
    sherdi_transfer *transfer = transfer_find(drive, number);
    sherdi_ring      ring;
    int64_t          start_ns;
    int64_t         *waited_ns;

    if (transfer == NULL) {
        transfer = &drive->transfers[number % drive->count];
        return transfer->ended == number && transfer->is_failed
                   ? sherdi_drive_status(drive, transfer->ring)
                   : SHERD_OK;
    }
    ring = transfer->ring;
    if (!transfer->is_started) {
        follows_wait(drive, transfer);
    }
    if (transfer->number != number) {
        return sherdi_drive_status(drive, ring);
    }
    if (!transfer->is_started) {
        transfer_start(drive, transfer);
    }
    start_ns  = sherdi_now_ns();
    waited_ns = transfer->is_write ? &drive->waits[ring].write_ns : &drive->waits[ring].read_ns;
    transfer_end(drive, transfer);
    *waited_ns += sherdi_now_ns() - start_ns;
    sherdi_drive_poll(drive);
    return sherdi_drive_status(drive, ring);
}

uint64_t sherdi_drive_give(sherdi_drive *drive, const sherdi_transfer *transfer)
{
    uint64_t         number = drive->given + 1;
    sherdi_transfer *entry  = &drive->transfers[number % drive->count];

    if (entry->number != 0) {
        (void)sherdi_drive_wait(drive, entry->number);
    }
    *entry        = *transfer;
    entry->number = number;
    drive->given  = number;
    SHERDI_SLOW_ASSERT(are_in_place(drive));
    return number;
}

sherd_status sherdi_drive_wait_all(sherdi_drive *drive)
{
    sherd_status status = SHERD_OK;
    uint64_t     first  = drive->given > drive->count ? drive->given - drive->count + 1 : 1;

    for (uint64_t n = first; n <= drive->given; n++) {
        sherd_status own = transfer_find(drive, n) == NULL ? SHERD_OK : sherdi_drive_wait(drive, n);

        status = status == SHERD_OK ? own : status;
    }
    sherdi_order_forget(drive->order, SHERDI_LANE_DRIVE, 0);
    return status;
}

sherd_status sherdi_drive_settle(sherdi_drive *drive, sherdi_ring ring)
{
    sherd_status status;

    for (size_t i = 0; i < drive->count; i++) {
        uint64_t         n = drive->given + 1 + i;
        sherdi_transfer *transfer;

        n        = n > drive->count ? n - drive->count : 0;
        transfer = transfer_find(drive, n);
        if (transfer == NULL || transfer->ring != ring) {
            continue;
        }
        if (transfer->is_started || transfer->is_write) {
            (void)sherdi_drive_wait(drive, n);
            continue;
        }
        follows_wait(drive, transfer); /* whoever uses its slot next follows only this transfer */
        if (transfer->number == n && !transfer->is_started) { /* its result is not needed */
            transfer->number = 0;
            sherdi_order_forget(drive->order, SHERDI_LANE_DRIVE, n);
        } else {
            (void)sherdi_drive_wait(drive, n);
        }
    }
    status                       = sherdi_drive_status(drive, ring);
    drive->outcomes[ring].status = SHERD_OK;
    return status;
}
