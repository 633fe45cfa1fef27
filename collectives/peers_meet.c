/* Meetings of the ranks of one host, and the memory that they share. See peers.h; peers.c has what
 * happens between meetings.
 *
 * A meeting is a counter and a generation in shared memory. The rank that comes last raises the
 * generation to the number of the meeting. The others look at it for a short while and then sleep on
 * it (futex), so that eight ranks on two cores leave the cores to a rank that works. Sleeps are
 * bounded: a sleeper looks for failures many times a second even if nobody wakes it. */
#include "collectives/peers.h"

#include "base/checked.h"
#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLEEP_NS 50000000
#define SPINS    4000
/* A gap between the ranks' shares, never touched. The first-level cache of AMD's cores confuses
 * addresses that differ by a multiple of 256 MiB, which makes sums over such shares very slow. */
#define SHARE_GAP_BYTES ((size_t)37 * SHERD_ALIGN_BYTES)
/* With fewer cores than ranks, spinning takes the core from the rank that it waits for. */
#define SPINS_CROWDED 0
/* After many vain looks, 1/SPINS_SHARE of the most spins remains. */
#define SPINS_SHARE 64

static size_t control_bytes(int count)
{
    return sherdi_round_up(sizeof(peers_control) + (size_t)count * sizeof(peers_slot),
                           SHERD_ALIGN_BYTES);
}

size_t sherdi_peers_shared_bytes(int count)
{
    const peers_bounce_ops *bounce = SHERDI_PEERS_BOUNCE;

    return control_bytes(count) + (size_t)count * (bounce == NULL ? 0 : bounce->buffer_bytes);
}

sherd_status sherdi_peers_init(sherdi_peers *peers, sherd_world *world, const peers_hooks *hooks,
                               int count, int me, const int *ranks, void *shared)
{
    int crowd = count > world->crowd ? count : world->crowd;

    *peers            = (sherdi_peers){.world = world, .hooks = hooks, .count = count, .me = me};
    world->peers      = peers;
    peers->control    = shared;
    peers->bounce     = (unsigned char *)shared + control_bytes(count);
    peers->most_spins = crowd <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : SPINS_CROWDED;
    peers->spins      = peers->most_spins;
    peers->ranks =
        sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, (size_t)count, sizeof(*peers->ranks));
    peers->srcs = sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, (size_t)world->world_size,
                                     sizeof(*peers->srcs));
    peers->dsts =
        sherdi_alloc_array(&world->mem, SHERDI_MEM_CONTROL, (size_t)count, sizeof(*peers->dsts));
    if (peers->ranks == NULL || peers->srcs == NULL || peers->dsts == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int i = 0; i < count; i++) {
        peers->ranks[i] = ranks == NULL ? i : ranks[i];
    }
    world->local_rank          = me;
    world->local_size          = count;
    world->held.overhead_bytes = sherdi_peers_shared_bytes(count) / (size_t)count;
    return SHERD_OK;
}

void sherdi_peers_wake(sherdi_peers *peers)
{
    if (peers->control != NULL) {
        (void)syscall(SYS_futex, &peers->control->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

void sherdi_peers_leave(sherdi_peers *peers)
{
    if (peers->control != NULL) {
        atomic_store(&peers->control->slots[peers->me].has_left, 1);
        sherdi_peers_wake(peers);
    }
}

void sherdi_peers_fini(sherdi_peers *peers)
{
    sherdi_peers_leave(peers);
    for (size_t i = 0; i < peers->segment_capacity; i++) {
        peers_segment *segment = &peers->segments[i];

        if (segment->number != 0) {
            peers->hooks->drop(peers, segment->base, segment->share_bytes * (size_t)peers->count,
                               segment->handle);
        }
    }
    sherdi_free(peers->segments);
    sherdi_free(peers->ranks);
    sherdi_free(peers->srcs);
    sherdi_free(peers->dsts);
    memset(peers, 0, sizeof(*peers));
}

/* ------------------------------------------------------------- failure -- */

sherd_status sherdi_peers_check(sherdi_peers *peers)
{
    if (peers->hooks->look != NULL) {
        peers->hooks->look(peers);
    }
    return sherdi_world_status(peers->world);
}

/* Lists the ranks that have not come to this rank's meeting, "1, 3, 4", as many as fit. */
static void missing_list(const sherdi_peers *peers, char *text, size_t len_bytes)
{
    text[0] = '\0';
    for (int i = 0; i < peers->count; i++) {
        if (atomic_load(&peers->control->slots[i].meetings) < peers->meetings) {
            sherdi_ranks_add(text, len_bytes, sherdi_world_number(peers->world, peers->ranks[i]));
        }
    }
}

/* Fails if a rank has disconnected before it reached this rank's meeting, which then can never be
 * complete. (A rank counts a meeting before it leaves, so a rank that came is never taken for one
 * that did not.) */
static sherd_status check_left(sherdi_peers *peers)
{
    for (int i = 0; i < peers->count; i++) {
        peers_slot *slot = &peers->control->slots[i];

        if (atomic_load(&slot->has_left) && atomic_load(&slot->meetings) < peers->meetings) {
            return sherdi_world_fail_left(peers->world, peers->ranks[i]);
        }
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------- meeting -- */

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Whether all ranks have come to this rank's meeting; generations count meetings modulo 2^32. */
static int is_complete(const sherdi_peers *peers)
{
    return atomic_load_explicit(&peers->control->generation, memory_order_acquire) ==
           (unsigned)peers->meetings;
}

/* Looks at the generation for a while. After a look without success the next one is half as long:
 * the others are late, or have no core to run on. */
static int becomes_complete(sherdi_peers *peers)
{
    for (size_t i = 0; i <= peers->spins; i++) {
        if (is_complete(peers)) {
            peers->spins = sherdi_min_size(2 * peers->spins, peers->most_spins);
            return 1;
        }
        cpu_relax();
    }
    peers->spins = sherdi_max_size(peers->spins / 2, peers->most_spins / SPINS_SHARE);
    return 0;
}

static void generation_sleep(sherdi_peers *peers)
{
    const struct timespec bound  = {.tv_nsec = SLEEP_NS};
    unsigned              before = (unsigned)peers->meetings - 1;

    (void)atomic_fetch_add(&peers->control->sleepers, 1);
    (void)syscall(SYS_futex, &peers->control->generation, FUTEX_WAIT, before, &bound, NULL, 0);
    (void)atomic_fetch_sub(&peers->control->sleepers, 1);
}

/* Leaves a meeting for a failure. From then on nobody comes to a meeting, so this one is complete for
 * all of its ranks, or for none: who is late must not complete it without this rank. */
static sherd_status meeting_leave(sherdi_peers *peers, sherd_status status)
{
    uint64_t arrived = atomic_fetch_or(&peers->control->arrived, PEERS_CLOSED) & ~PEERS_CLOSED;

    return arrived >= peers->meetings * (uint64_t)peers->count ? SHERD_OK : status;
}

static sherd_status meeting_wait(sherdi_peers *peers)
{
    int64_t deadline_ns;
    char    missing[256];

    if (becomes_complete(peers)) {
        return SHERD_OK;
    }
    deadline_ns = sherdi_now_ns() + peers->world->timeout_ns;
    for (;;) {
        sherd_status status = sherdi_peers_check(peers);

        if (status == SHERD_OK) {
            status = check_left(peers);
        }
        /* Look at the generation after looking for failures: a meeting that was complete when a
         * rank disconnected or died has not failed. */
        if (is_complete(peers)) {
            return SHERD_OK;
        }
        if (status == SHERD_OK && sherdi_now_ns() >= deadline_ns) {
            missing_list(peers, missing, sizeof(missing));
            status = sherdi_world_fail_late(peers->world, "rank %s", missing);
        }
        if (status != SHERD_OK) {
            return meeting_leave(peers, status);
        }
        generation_sleep(peers);
    }
}

sherd_status sherdi_peers_meet(sherdi_peers *peers)
{
    peers_control *control = peers->control;
    uint64_t       arrived = atomic_load(&control->arrived);

    peers->meetings++;
    atomic_store(&control->slots[peers->me].meetings, peers->meetings);
    while ((arrived & PEERS_CLOSED) == 0 &&
           !atomic_compare_exchange_weak(&control->arrived, &arrived, arrived + 1)) {
    }
    if (arrived + 1 !=
        peers->meetings *
            (uint64_t)peers->count) { /* also where a failure has closed the meetings */
        return meeting_wait(peers);
    }
    atomic_store(&control->generation, (unsigned)peers->meetings);
    if (atomic_load(&control->sleepers) > 0) {
        sherdi_peers_wake(peers);
    }
    return SHERD_OK;
}

unsigned char *sherdi_peers_mail(sherdi_peers *peers, int index)
{
    return peers->control->slots[index].mail[peers->meetings & 1];
}

const peers_note *sherdi_peers_note(const sherdi_peers *peers, int index)
{
    return &peers->control->slots[index].notes[peers->meetings & 1];
}

const char *sherdi_peers_describe(const peers_note *note, char text[WORLD_CALL_TEXT_BYTES])
{
    return sherdi_world_call_describe(note->kind, note->len_bytes, note->name, note->caller, text);
}

/* Of a meeting to which a rank comes without a call. */
static sherd_status (*const REGROUPED)(sherdi_peers *peers) = SHERDI_PEERS_REGROUPED;

/* All ranks must have come with the same call. A different call is a bug of the program, and the
 * world cannot be used afterwards. */
static sherd_status notes_compare(sherdi_peers *peers)
{
    const peers_note *mine = sherdi_peers_note(peers, peers->me);
    char              text[2][WORLD_CALL_TEXT_BYTES];

    for (int i = 0; i < peers->count; i++) {
        if (REGROUPED != NULL && sherdi_peers_note(peers, i)->kind == CALL_REGROUP) {
            return REGROUPED(peers);
        }
    }
    for (int i = 0; i < peers->count; i++) {
        const peers_note *note = sherdi_peers_note(peers, i);

        if (note->kind != mine->kind || note->len_bytes != mine->len_bytes ||
            note->name_hash != mine->name_hash) {
            return sherdi_world_fail_differ(peers->world, peers->world->rank,
                                            sherdi_peers_describe(mine, text[0]), peers->ranks[i],
                                            sherdi_peers_describe(note, text[1]), "");
        }
        if (note->detail != mine->detail || note->scale_bits != mine->scale_bits) {
            return sherdi_world_fail(peers->world, SHERD_E_INVAL,
                                     "ranks disagree: ranks %d and %d call %s with different "
                                     "types, flags, scale or root; all ranks must pass the same",
                                     peers->world->rank, peers->ranks[i],
                                     sherdi_peers_describe(mine, text[0]));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_peers_meet_with(sherdi_peers *peers, const peers_note *note, const void *mail,
                                    size_t mail_bytes)
{
    peers_slot *slot   = &peers->control->slots[peers->me];
    unsigned    parity = (unsigned)(peers->meetings + 1) & 1;

    SHERDI_TRY(sherdi_peers_check(peers));
    slot->notes[parity] = *note;
    (void)snprintf(slot->notes[parity].caller, sizeof(slot->notes[parity].caller), "%s",
                   peers->world->running == NULL ? "" : peers->world->running);
    if (mail_bytes > 0) {
        memcpy(slot->mail[parity], mail, mail_bytes);
    }
    SHERDI_TRY(sherdi_peers_meet(peers));
    return notes_compare(peers);
}

sherd_status sherdi_peers_barrier(sherd_world *world)
{
    peers_note note = {.kind = CALL_BARRIER};

    return sherdi_peers_meet_with(world->peers, &note, NULL, 0);
}

/* -------------------------------------------------------------- memory -- */

peers_address sherdi_peers_find_address(const sherdi_peers *peers, const void *data,
                                        size_t len_bytes)
{
    for (size_t i = 0; i < peers->segment_capacity; i++) {
        const peers_segment *segment = &peers->segments[i];
        uintptr_t            begin;

        if (segment->number == 0) {
            continue;
        }
        begin = (uintptr_t)segment->base + (size_t)peers->me * segment->share_bytes;
        if ((uintptr_t)data >= begin && (uintptr_t)data - begin <= segment->share_bytes &&
            len_bytes <= segment->share_bytes - ((uintptr_t)data - begin)) {
            return (peers_address){.segment      = segment->number,
                                   .offset_bytes = (uintptr_t)data - begin};
        }
    }
    return (peers_address){.segment = 0};
}

unsigned char *sherdi_peers_at(const sherdi_peers *peers, int index, peers_address address)
{
    if (address.segment == PEERS_ADDRESS) {
        return (unsigned char *)(uintptr_t)address.offset_bytes;
    }
    for (size_t i = 0; i < peers->segment_capacity; i++) {
        const peers_segment *segment = &peers->segments[i];

        if (segment->number == address.segment) {
            return segment->base + (size_t)index * segment->share_bytes + address.offset_bytes;
        }
    }
    return NULL;
}

/* Sends to all ranks the status of this rank (with its message, if it failed) and returns the
 * status of the first rank that failed, with that rank and its message; else SHERD_OK. */
static sherd_status agree(sherdi_peers *peers, sherd_status status, size_t len_bytes)
{
    peers_note note = {.kind = CALL_ALLOC, .status = (int32_t)status, .len_bytes = len_bytes};
    char       text[PEERS_MAIL_BYTES];

    (void)snprintf(text, sizeof(text), "%s", status == SHERD_OK ? "" : sherd_last_error());
    SHERDI_TRY(sherdi_peers_meet_with(peers, &note, text, strlen(text) + 1));
    for (int i = 0; i < peers->count; i++) {
        sherd_status other = (sherd_status)sherdi_peers_note(peers, i)->status;

        if (other != SHERD_OK) {
            return sherdi_fail(other, "rank %d: %s", peers->ranks[i],
                               (const char *)sherdi_peers_mail(peers, i));
        }
    }
    return SHERD_OK;
}

static sherd_status entry_find(sherdi_peers *peers, size_t *out)
{
    size_t entry = 0;

    while (entry < peers->segment_capacity && peers->segments[entry].number != 0) {
        entry++;
    }
    SHERDI_TRY(sherdi_grow(&peers->world->mem, SHERDI_MEM_CONTROL, (void **)&peers->segments,
                           &peers->segment_capacity, entry + 1, sizeof(*peers->segments)));
    *out = entry;
    return SHERD_OK;
}

sherd_status sherdi_peers_alloc(sherd_world *world, size_t len_bytes, void **out)
{
    sherdi_peers *peers = world->peers;
    peers_segment made  = {.number = 0};
    size_t        whole_bytes;
    size_t        entry   = 0;
    int           is_made = 0;
    sherd_status  status;

    made.share_bytes = sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES) + SHARE_GAP_BYTES;
    whole_bytes      = made.share_bytes * (size_t)peers->count;
    status           = entry_find(peers, &entry);
    if (status == SHERD_OK && peers->me == 0) {
        status  = peers->hooks->make(peers, whole_bytes);
        is_made = status == SHERD_OK;
    }
    status = agree(peers, status, len_bytes);
    if (status != SHERD_OK) {
        if (is_made) {
            peers->hooks->unmake(peers);
        }
        return status;
    }
    status = peers->hooks->take(peers, whole_bytes, &made.base, &made.handle);
    if (status == SHERD_OK) { /* this rank's share, so that a lack of memory is known now */
        status = sherdi_host_touch(world->host, made.base + (size_t)peers->me * made.share_bytes,
                                   sherdi_round_up(len_bytes, SHERD_ALIGN_BYTES));
    }
    status = agree(peers, status, len_bytes);
    if (status != SHERD_OK) {
        if (made.base != NULL) {
            peers->hooks->drop(peers, made.base, whole_bytes, made.handle);
        }
        return status;
    }
    made.number            = ++peers->last_number;
    peers->segments[entry] = made;
    *out                   = made.base + (size_t)peers->me * made.share_bytes;
    return SHERD_OK;
}

void sherdi_peers_free(sherd_world *world, void *memory)
{
    sherdi_peers *peers = world->peers;

    for (size_t i = 0; i < peers->segment_capacity; i++) {
        peers_segment *segment = &peers->segments[i];

        if (segment->number != 0 &&
            segment->base + (size_t)peers->me * segment->share_bytes == memory) {
            peers->hooks->drop(peers, segment->base, segment->share_bytes * (size_t)peers->count,
                               segment->handle);
            *segment = (peers_segment){.number = 0};
            return;
        }
    }
    assert(!"memory that is not the world's");
}
