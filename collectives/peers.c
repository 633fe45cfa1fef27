/* The calls of ranks of one host: their work between meetings. See peers.h.
 *
 * If all ranks pass world memory, each reads its peers' bytes in place. This way takes one copy and
 * no staging, and a second meeting at the end, so that no rank changes memory that others still
 * read. Ranks of one process also read device memory in place (peers_device.c). All other memory
 * goes through the bounce buffers of a module. */
#include "collectives/peers.h"

#include "base/absent.h"
#include "base/checked.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

static const peers_bounce_ops *const BOUNCE = SHERDI_PEERS_BOUNCE;

static sherd_status bounce_absent(void)
{
    return sherdi_absent("bounce", "a call on memory that is not the world's");
}

/* Returns whether every rank sends from memory that the others can reach, or, with `is_recv`,
 * receives into it. It depends on what all have published, so all ranks get the same answer. */
static int all_are_shared(const sherdi_peers *peers, int is_recv)
{
    for (int i = 0; i < peers->count; i++) {
        const peers_note *note = sherdi_peers_note(peers, i);

        if ((is_recv ? note->recv : note->send).segment == 0) {
            return 0;
        }
    }
    return 1;
}

static sherd_status address_read(const sherdi_peers *peers, int index, peers_address address,
                                 unsigned char **out)
{
    unsigned char *at = sherdi_peers_at(peers, index, address);

    if (at == NULL) {
        return sherdi_world_fail(peers->world, SHERD_E_INVAL,
                                 "rank %d uses world memory that rank %d has freed already",
                                 peers->ranks[index], peers->world->rank);
    }
    *out = at;
    return SHERD_OK;
}

/* Data other than control data belongs to a unit. */
static void note_name(peers_note *note, const char *what, int is_control)
{
    size_t len  = what == NULL ? 0 : strlen(what);
    size_t room = sizeof(note->name) - sizeof("unit \"\"");
    size_t cut  = len > room ? len - room : 0;

    if (len > 0) {
        note->name_hash = sherdi_hash_bytes(0, what, len);
        (void)snprintf(note->name, sizeof(note->name), is_control ? "%s" : "unit \"%s\"",
                       what + cut);
    }
}

/* ------------------------------------------------------- memory of a call -- */

/* Returns whether peers' memory is copied before it is summed. */
static int uses_scratch(const sherdi_peers *peers)
{
    return peers->on_device != NULL && peers->scratch != NULL;
}

/* Returns the world's peers, with the lane that the call's flags ask for. */
static sherdi_peers *peers_of(sherd_world *world, uint32_t flags)
{
    sherdi_peers *peers        = world->peers;
    int           is_on_device = sherdi_world_is_on_lane(world) && !(flags & SHERDI_COLL_HOST);

    peers->lane      = is_on_device ? world->backend : world->host;
    peers->on_device = is_on_device ? world->device->ops->peers : NULL;
    return peers;
}

static peers_address address_of(const sherdi_peers *peers, const void *data, size_t len_bytes)
{
    return peers->on_device != NULL
               ? (peers_address){.segment = PEERS_ADDRESS, .offset_bytes = (uintptr_t)data}
               : sherdi_peers_find_address(peers, data, len_bytes);
}

static sherd_status call_begin(sherdi_peers *peers, const peers_note *note)
{
    return peers->on_device != NULL ? peers->on_device->begin(peers, note)
                                    : sherdi_peers_meet_with(peers, note, NULL, 0);
}

/* Ends a call that read in place: after it, nobody reads the buffers any more. */
static sherd_status call_end(sherdi_peers *peers)
{
    return peers->on_device != NULL ? peers->on_device->end(peers) : sherdi_peers_meet(peers);
}

/* ---------------------------------------------------------- all-gather -- */

/* The peers' send buffers are at the same position as mine, or, if the gather is in place, at their
 * own slices. */
static sherd_status gather_stable(sherdi_peers *peers, const sherdi_all_gather_args *args)
{
    int           is_in_place = args->send == sherdi_peers_slice(peers, args, peers->me);
    peers_address address     = sherdi_peers_find_address(peers, args->send, args->slice_bytes);

    if (address.segment == 0) {
        return sherdi_fail(SHERD_E_INVAL, "all-gather: stable senders must lie in world memory");
    }
    sherdi_peers_copy(peers, sherdi_peers_slice(peers, args, peers->me), args->send,
                      args->slice_bytes);
    for (int step = 1; step < peers->count; step++) {
        int            index = sherdi_peers_neighbour(peers, step);
        unsigned char *from  = sherdi_peers_at(peers, index, address);

        if (is_in_place) {
            from += (ptrdiff_t)(peers->ranks[index] - peers->world->rank) *
                    (ptrdiff_t)args->slice_bytes;
        }
        sherdi_peers_copy(peers, sherdi_peers_slice(peers, args, index), from, args->slice_bytes);
    }
    return SHERD_OK;
}

static sherd_status gather_in_place(sherdi_peers *peers, const sherdi_all_gather_args *args)
{
    for (int step = 0; step < peers->count; step++) {
        int            index = sherdi_peers_neighbour(peers, step);
        unsigned char *from  = NULL;

        SHERDI_TRY(address_read(peers, index, sherdi_peers_note(peers, index)->send, &from));
        sherdi_peers_copy(peers, sherdi_peers_slice(peers, args, index), from, args->slice_bytes);
    }
    return call_end(peers);
}

/* If the gather is in place, this rank's own slice is not written, not even with the same bytes:
 * others may be reading it. */
static void gather_mail(sherdi_peers *peers, const sherdi_all_gather_args *args)
{
    for (int i = 0; i < peers->count && args->slice_bytes > 0; i++) {
        unsigned char *slice = sherdi_peers_slice(peers, args, i);

        if (slice != args->send) {
            memcpy(slice, sherdi_peers_mail(peers, i), args->slice_bytes);
        }
    }
}

sherd_status sherdi_peers_all_gather(sherd_world *world, const sherdi_all_gather_args *args)
{
    sherdi_peers *peers   = peers_of(world, args->flags);
    int           is_mail = args->slice_bytes <= PEERS_MAIL_BYTES && peers->on_device == NULL;
    peers_note    note    = {.kind      = CALL_ALL_GATHER,
                             .detail    = args->flags & SHERDI_COLL_STABLE,
                             .len_bytes = args->slice_bytes};

    SHERDI_TRY(sherdi_peers_check(peers));
    if (args->slice_bytes > 0 && (args->flags & SHERDI_COLL_STABLE) && peers->on_device == NULL) {
        return gather_stable(peers, args);
    }
    note_name(&note, args->what, (args->flags & SHERDI_COLL_HOST) != 0);
    if (is_mail) {
        SHERDI_TRY(sherdi_peers_meet_with(peers, &note, args->send, args->slice_bytes));
        gather_mail(peers, args);
        return SHERD_OK;
    }
    note.send = address_of(peers, args->send, args->slice_bytes);
    SHERDI_TRY(call_begin(peers, &note));
    if (all_are_shared(peers, 0)) {
        return gather_in_place(peers, args);
    }
    return BOUNCE == NULL ? bounce_absent() : BOUNCE->gather(peers, args);
}

/* ---------------------------------------------------------- reductions -- */

static uint32_t reduction_detail(const sherdi_reduction_args *args)
{
    return (uint32_t)args->send_dtype | (uint32_t)args->comm_dtype << 4 |
           (uint32_t)args->recv_dtype << 8 | (uint32_t)(args->accumulate != 0) << 12 |
           (uint32_t)(args->fixed != NULL) << 13 | (uint32_t)(args->add != NULL) << 14;
}

static peers_note reduction_note(const sherdi_peers *peers, world_call_kind kind,
                                 const sherdi_reduction_args *args)
{
    size_t     slice_bytes = args->slice_elems * sherdi_reduction_send_bytes(args);
    peers_note note = {.kind = kind, .detail = reduction_detail(args), .len_bytes = slice_bytes};

    note_name(&note, args->what, 0);
    memcpy(&note.scale_bits, &args->scale, sizeof(note.scale_bits));
    note.send = address_of(peers, args->send, slice_bytes * (size_t)peers->world->world_size);
    return note;
}

/* Finds the data that a rank of this host has for the slice that this rank adds up: from
 * `first_byte` of its send buffer on if shared, else its bytes in the bounce buffer. */
static sherd_status source_find(sherdi_peers *peers, const reduction_work *work, size_t first_byte,
                                int index, const unsigned char **out)
{
    unsigned char *from = NULL;

    if (index == peers->me) {
        *out = (const unsigned char *)work->args->send + first_byte;
    } else if (work->is_shared) {
        SHERDI_TRY(address_read(peers, index, sherdi_peers_note(peers, index)->send, &from));
        *out = from + first_byte;
    } else {
        *out = BOUNCE->share_of(peers, index);
    }
    return SHERD_OK;
}

sherd_status sherdi_peers_sources_find(sherdi_peers *peers, const reduction_work *work,
                                       const int *slices, size_t first_byte, size_t len_bytes)
{
    size_t from_byte = (size_t)slices[peers->me] * work->slice_bytes + first_byte;

    if (!work->is_shared) {
        SHERDI_TRY(BOUNCE->shares_fill(peers, work, slices, first_byte, len_bytes));
    }
    for (int i = 0; i < peers->count && slices[peers->me] >= 0; i++) {
        const unsigned char *from = NULL;
        unsigned char       *here = uses_scratch(peers) && i != peers->me
                                        ? peers->scratch + (size_t)i * peers->scratch_bytes
                                        : NULL;

        SHERDI_TRY(source_find(peers, work, from_byte, i, &from));
        if (here != NULL) {
            sherdi_peers_copy(peers, here, from, len_bytes);
        }
        peers->srcs[peers->ranks[i]] = here != NULL ? here : from;
    }
    return SHERD_OK;
}

static void srcs_reduce(sherdi_peers *peers, const sherdi_reduction_args *args, void *dst,
                        size_t count_elems, int num_more_dsts)
{
    sherdi_world_reduce_local(peers->lane, args, peers->srcs, peers->world->world_size, dst,
                              count_elems, peers->dsts, num_more_dsts);
}

size_t sherdi_peers_sum_portion(const sherdi_peers *peers, const reduction_work *work, size_t count)
{
    if (!work->is_shared) {
        return BOUNCE->share_bytes(peers) / work->elem_bytes;
    }
    return uses_scratch(peers) ? peers->scratch_bytes / work->elem_bytes : count;
}

sherd_status sherdi_peers_reduction_begin(sherd_world *world, const sherdi_reduction_args *args,
                                          reduction_work *work)
{
    sherdi_peers *peers = peers_of(world, args->flags);
    peers_note    note  = reduction_note(peers, CALL_REDUCE_SCATTER, args);

    *work = (reduction_work){.args        = args,
                             .elem_bytes  = sherdi_reduction_send_bytes(args),
                             .slice_bytes = note.len_bytes};
    SHERDI_TRY(call_begin(peers, &note));
    work->is_shared = all_are_shared(peers, 0);
    return work->is_shared || BOUNCE != NULL ? SHERD_OK : bounce_absent();
}

sherd_status sherdi_peers_reduction_end(sherdi_peers *peers, const reduction_work *work)
{
    return work->is_shared ? call_end(peers) : SHERD_OK;
}

sherd_status sherdi_peers_reduce_scatter(sherd_world *world, const sherdi_reduction_args *args)
{
    sherdi_peers  *peers      = world->peers;
    size_t         recv_bytes = sherdi_reduction_recv_bytes(args);
    reduction_work work;
    size_t         portion;

    SHERDI_TRY(sherdi_peers_reduction_begin(world, args, &work));
    portion = sherdi_peers_sum_portion(peers, &work, args->slice_elems);
    for (size_t at = 0; at < args->slice_elems; at += portion) {
        size_t count = sherdi_min_size(portion, args->slice_elems - at);

        SHERDI_TRY(sherdi_peers_sources_find(peers, &work, peers->ranks, at * work.elem_bytes,
                                             count * work.elem_bytes));
        srcs_reduce(peers, args, (unsigned char *)args->recv + at * recv_bytes, count, 0);
    }
    return sherdi_peers_reduction_end(peers, &work);
}

/* Sums this rank's slice once and stores it in every rank's result, so no gather is needed. */
static sherd_status all_reduce_push(sherdi_peers *peers, const sherdi_reduction_args *args,
                                    size_t slice_bytes)
{
    const reduction_work work = {
        .args        = args,
        .elem_bytes  = sherdi_reduction_send_bytes(args),
        .slice_bytes = slice_bytes,
        .is_shared   = 1,
    };
    size_t mine  = (size_t)peers->world->rank * slice_bytes;
    int    count = 0;

    SHERDI_TRY(sherdi_peers_sources_find(peers, &work, peers->ranks, 0, slice_bytes));
    for (int step = 1; step < peers->count; step++) {
        int            index = sherdi_peers_neighbour(peers, step);
        unsigned char *to    = NULL;

        SHERDI_TRY(address_read(peers, index, sherdi_peers_note(peers, index)->recv, &to));
        peers->dsts[count++] = to + mine;
    }
    srcs_reduce(peers, args, (unsigned char *)args->recv + mine, args->slice_elems, count);
    return call_end(peers);
}

sherd_status sherdi_peers_all_reduce(sherd_world *world, const sherdi_reduction_args *args)
{
    sherdi_peers *peers = peers_of(world, 0);
    peers_note    note  = reduction_note(peers, CALL_ALL_REDUCE, args);

    if (uses_scratch(peers) || args->add != NULL) {
        return sherdi_world_all_reduce_in_two(world, args); /* this rank cannot reach all results */
    }
    note.recv = address_of(peers, args->recv, note.len_bytes * (size_t)world->world_size);
    SHERDI_TRY(call_begin(peers, &note));
    return all_are_shared(peers, 0) && all_are_shared(peers, 1)
               ? all_reduce_push(peers, args, note.len_bytes)
               : sherdi_world_all_reduce_in_two(world, args);
}
