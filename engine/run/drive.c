#include "engine/run/drive.h"

#include "base/assert.h"
#include "base/clock.h"

sherd_status sherdi_drive_open(sherdi_drive *drive, size_t count, sherdi_order *order,
                               pthread_mutex_t *lock, const sherdi_drive_others *others,
                               sherdi_mem *mem)
{
    *drive = (sherdi_drive){.order = order, .lock = lock, .others = *others};
    drive->transfers =
        sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*drive->transfers));
    drive->sorted = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, count, sizeof(*drive->sorted));
    if (drive->transfers == NULL || drive->sorted == NULL) {
        return SHERD_E_NOMEM;
    }
    drive->count = count;
    return SHERD_OK;
}

void sherdi_drive_close(sherdi_drive *drive)
{
    for (int ring = 0; ring < SHERDI_RINGS && drive->count > 0; ring++) {
        (void)sherdi_drive_settle(drive, (sherdi_ring)ring);
    }
    sherdi_free(drive->transfers);
    sherdi_free(drive->sorted);
    *drive = (sherdi_drive){0};
}

/* ------------------------------------------------------- under the lock -- */

static sherdi_transfer *transfer_at(sherdi_drive *drive, size_t position)
{
    return &drive->transfers[drive->sorted[position]];
}

/* Invariant: transfers lie in the order of their numbers, and each follows only transfers that were
 * submitted before it. So every wait ends. */
static int are_in_order(sherdi_drive *drive)
{
    uint64_t last = 0;

    for (size_t i = 0; i < drive->num_sorted; i++) {
        const sherdi_transfer *transfer = transfer_at(drive, i);

        if (transfer->number <= last || transfer->number > drive->given) {
            return 0;
        }
        last = transfer->number;
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
    for (size_t i = 0; i < drive->num_sorted; i++) {
        if (transfer_at(drive, i)->number == number) {
            return transfer_at(drive, i);
        }
    }
    return NULL;
}

/* Frees the entry of a transfer that is over, or that is dropped. */
static void transfer_leave(sherdi_drive *drive, sherdi_transfer *transfer)
{
    uint64_t number = transfer->number;
    size_t   kept   = 0;

    for (size_t i = 0; i < drive->num_sorted; i++) {
        if (transfer_at(drive, i) != transfer) {
            drive->sorted[kept++] = drive->sorted[i];
        }
    }
    drive->num_sorted = kept;
    transfer->ended   = number;
    transfer->number  = 0;
    sherdi_order_forget(drive->order, SHERDI_LANE_DRIVE, number);
}

static sherd_status ring_status(const sherdi_drive *drive, sherdi_ring ring)
{
    return sherdi_outcome_end(&drive->outcomes[ring]);
}

sherd_status sherdi_drive_status(const sherdi_drive *drive, sherdi_ring ring)
{
    return drive->outcomes[ring].status == SHERD_OK ? SHERD_OK : ring_status(drive, ring);
}

static void transfer_start(sherdi_drive *drive, sherdi_transfer *transfer)
{
    sherdi_tier *tier = transfer->tier;
    int          before;

    transfer->is_started = 1;
    transfer->io         = (sherdi_io){0};
    if (drive->outcomes[transfer->ring].status != SHERD_OK) {
        transfer->is_failed = 1; /* the transfer is over at once */
        return;
    }
    (void)pthread_mutex_unlock(drive->lock);
    before = sherdi_io_account(transfer->account);
    if (transfer->is_write) {
        tier->ops->write_start(tier, transfer->extent, transfer->memory, &transfer->io);
    } else {
        tier->ops->read_start(tier, transfer->extent, transfer->memory, &transfer->io);
    }
    (void)sherdi_io_account(before);
    (void)pthread_mutex_lock(drive->lock);
}

/* Ends a transfer that was started; blocks until it is over. */
static void transfer_end(sherdi_drive *drive, sherdi_transfer *transfer)
{
    if (!transfer->is_failed) {
        sherd_status status;

        (void)pthread_mutex_unlock(drive->lock);
        status = transfer->tier->ops->wait(transfer->tier, &transfer->io);
        (void)pthread_mutex_lock(drive->lock);
        sherdi_outcome_add(&drive->outcomes[transfer->ring], status);
        transfer->is_failed = status != SHERD_OK;
    }
    transfer_leave(drive, transfer);
}

static int is_startable(sherdi_drive *drive, const sherdi_transfer *transfer)
{
    const sherdi_follows *follows = &transfer->follows;

    for (size_t i = 0; i < follows->num_drives; i++) {
        if (transfer_find(drive, follows->drives[i]) != NULL) {
            return 0;
        }
    }
    if (follows->is_all_drives && transfer_at(drive, 0) != transfer) {
        return 0;
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

/* Returns the first transfer of the user's rings after `number`; NULL: none. */
static sherdi_transfer *next_of(sherdi_drive *drive, sherdi_user user, uint64_t number)
{
    for (size_t i = 0; i < drive->num_sorted; i++) {
        sherdi_transfer *transfer = transfer_at(drive, i);

        if (transfer->number > number && drive->others.users[transfer->ring] == user) {
            return transfer;
        }
    }
    return NULL;
}

/* Goes in the order in which transfers were submitted: the end of one may let the next one
 * start. */
static void rings_poll(sherdi_drive *drive, sherdi_user user)
{
    sherdi_transfer *transfer;
    uint64_t         number = 0;

    while ((transfer = next_of(drive, user, number)) != NULL) {
        number = transfer->number;
        if (!transfer->is_started && is_startable(drive, transfer)) {
            transfer_start(drive, transfer);
        }
        if (transfer->is_started && is_over(transfer)) {
            transfer_end(drive, transfer);
        }
    }
}

static sherd_status number_wait(sherdi_drive *drive, uint64_t number);

/* Waits for the operations that the transfer follows. Meanwhile the transfer itself may start, and
 * end. */
static void follows_wait(sherdi_drive *drive, const sherdi_transfer *transfer)
{
    sherdi_follows follows = transfer->follows;
    sherdi_ring    ring    = transfer->ring;
    uint64_t       number  = transfer->number;

    for (size_t i = 0; i < follows.num_drives; i++) {
        (void)number_wait(drive, follows.drives[i]);
    }
    while (follows.is_all_drives && drive->num_sorted > 0 &&
           transfer_at(drive, 0)->number < number) {
        (void)number_wait(drive, transfer_at(drive, 0)->number);
    }
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        sherd_status status;

        if (follows.last[lane] != 0) {
            (void)pthread_mutex_unlock(drive->lock);
            status =
                drive->others.wait(drive->others.ctx, (sherdi_lane_id)lane, follows.last[lane]);
            (void)pthread_mutex_lock(drive->lock);
            sherdi_outcome_add(&drive->outcomes[ring], status);
        }
    }
}

/* Returns the outcome of a transfer that is over, as long as no other has its entry. */
static sherd_status ended_status(const sherdi_drive *drive, uint64_t number)
{
    for (size_t i = 0; i < drive->count; i++) {
        const sherdi_transfer *transfer = &drive->transfers[i];

        if (transfer->number == 0 && transfer->ended == number && transfer->is_failed) {
            return ring_status(drive, transfer->ring);
        }
    }
    return SHERD_OK;
}

static sherd_status number_wait(sherdi_drive *drive, uint64_t number)
{
    sherdi_transfer      *transfer = transfer_find(drive, number);
    sherdi_storage_waits *waits;
    sherdi_ring           ring;
    int64_t               start_ns;
    int64_t              *waited_ns;

    if (transfer == NULL) {
        return ended_status(drive, number);
    }
    ring = transfer->ring;
    if (!transfer->is_started) {
        follows_wait(drive, transfer);
    }
    if (transfer->number != number) {
        return ring_status(drive, ring);
    }
    if (!transfer->is_started) {
        transfer_start(drive, transfer);
    }
    start_ns  = sherdi_now_ns();
    waits     = &drive->waits[drive->others.users[ring]][ring];
    waited_ns = transfer->is_write ? &waits->write_ns : &waits->read_ns;
    transfer_end(drive, transfer);
    *waited_ns += sherdi_now_ns() - start_ns;
    rings_poll(drive, drive->others.users[ring]);
    return ring_status(drive, ring);
}

/* --------------------------------------------------------- the interface -- */

void sherdi_drive_poll(sherdi_drive *drive, sherdi_user user)
{
    (void)pthread_mutex_lock(drive->lock);
    rings_poll(drive, user);
    (void)pthread_mutex_unlock(drive->lock);
}

sherd_status sherdi_drive_wait(sherdi_drive *drive, uint64_t number)
{
    sherd_status status;

    (void)pthread_mutex_lock(drive->lock);
    status = number_wait(drive, number);
    (void)pthread_mutex_unlock(drive->lock);
    return status;
}

/* Returns an entry that is free, and one that has not been used for long. Where there is none,
 * waits for the oldest transfer of the user's. */
static sherdi_transfer *entry_find(sherdi_drive *drive, sherdi_user user)
{
    size_t entry = (size_t)(drive->given % drive->count);

    if (drive->num_sorted == drive->count) {
        (void)number_wait(drive, next_of(drive, user, 0)->number);
    }
    while (drive->transfers[entry].number != 0) {
        entry = (entry + 1) % drive->count;
    }
    return &drive->transfers[entry];
}

uint64_t sherdi_drive_give(sherdi_drive *drive, const sherdi_transfer *transfer)
{
    sherdi_transfer *entry;
    uint64_t         number;

    (void)pthread_mutex_lock(drive->lock);
    entry                              = entry_find(drive, drive->others.users[transfer->ring]);
    number                             = ++drive->given;
    *entry                             = *transfer;
    entry->number                      = number;
    drive->sorted[drive->num_sorted++] = (size_t)(entry - drive->transfers);
    SHERDI_SLOW_ASSERT(are_in_order(drive));
    (void)pthread_mutex_unlock(drive->lock);
    return number;
}

sherd_status sherdi_drive_wait_all(sherdi_drive *drive, sherdi_user user)
{
    sherdi_transfer *transfer;
    sherd_status     status = SHERD_OK;

    (void)pthread_mutex_lock(drive->lock);
    while ((transfer = next_of(drive, user, 0)) != NULL) {
        sherd_status own = number_wait(drive, transfer->number);

        status = status == SHERD_OK ? own : status;
    }
    if (drive->num_sorted == 0) {
        sherdi_order_forget(drive->order, SHERDI_LANE_DRIVE, 0);
    }
    (void)pthread_mutex_unlock(drive->lock);
    return status;
}

/* Ends a transfer, or drops a read that has not started: its result is not needed. The next user of
 * its slot follows only this transfer, so the operations that the transfer follows must be over. */
static void transfer_settle(sherdi_drive *drive, sherdi_transfer *transfer)
{
    uint64_t number = transfer->number;

    if (!transfer->is_started && !transfer->is_write) {
        follows_wait(drive, transfer);
        if (transfer->number == number && !transfer->is_started) {
            transfer_leave(drive, transfer);
        }
    }
    (void)number_wait(drive, number);
}

static int has_write(sherdi_drive *drive, sherdi_ring ring)
{
    for (size_t i = 0; i < drive->num_sorted; i++) {
        if (transfer_at(drive, i)->ring == ring && transfer_at(drive, i)->is_write) {
            return 1;
        }
    }
    return 0;
}

static void ring_settle(sherdi_drive *drive, sherdi_ring ring)
{
    size_t i = 0;

    while (i < drive->num_sorted) {
        if (transfer_at(drive, i)->ring == ring) {
            transfer_settle(drive, transfer_at(drive, i));
            i = 0; /* others may have ended too */
        } else {
            i++;
        }
    }
}

sherd_status sherdi_drive_settle(sherdi_drive *drive, sherdi_ring ring)
{
    sherd_status status;

    (void)pthread_mutex_lock(drive->lock);
    ring_settle(drive, ring);
    status                       = ring_status(drive, ring);
    drive->outcomes[ring].status = SHERD_OK;
    (void)pthread_mutex_unlock(drive->lock);
    return status;
}

void sherdi_drive_drop(sherdi_drive *drive, sherdi_ring ring)
{
    (void)pthread_mutex_lock(drive->lock);
    SHERDI_SLOW_ASSERT(!has_write(drive, ring)); /* writes are waited for */
    ring_settle(drive, ring);
    drive->outcomes[ring].status = SHERD_OK;
    (void)pthread_mutex_unlock(drive->lock);
}
