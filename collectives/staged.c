/* Device memory over a transport that moves host memory only (shm, mpi). Each portion of a call is
 * copied down to pinned memory, the transport's own host call moves or sums it, and the result is
 * copied up. The sums are the host's, in the order of the ranks, so the bits are the same.
 * calls.c calls it on the thread that runs the calls.
 *
 * No rank can read another rank's device memory, so every call here meets, with or without
 * SHERDI_COLL_STABLE. Where a reduction adds to the result buffer, the old values come down first.
 * The counts of a deterministic reduction are added on the host, so nothing else may add to the
 * same counts meanwhile. */
#include "collectives/device.h"

#include "base/checked.h"
#include "kernels/devices.h"

#include <stdlib.h>

/* Bytes of both buffers together, unless a rank would get less than the smallest portion. */
#define BOUNCE_BYTES      ((size_t)16 << 20)
#define PORTION_MIN_BYTES ((size_t)64 << 10)
/* A result takes at most four times the bytes that are sent for it: 64-bit integers of 16-bit
 * gradients. */
#define WIDEST 4

struct sherdi_staged {
    sherd_world         *world;
    size_t               portion_bytes; /* of one rank's slice, at most */
    size_t               up_bytes;
    unsigned char       *down; /* [world_size * portion_bytes] to send */
    unsigned char       *up;   /* [up_bytes] received */
    sherdi_fixed_counts *counts;
};

sherd_status sherdi_staged_create(sherd_world *world, struct sherdi_staged **out)
{
    struct sherdi_staged *staged = calloc(1, sizeof(*staged));
    sherdi_backend       *lane   = world->backend;
    size_t                size   = (size_t)world->world_size;
    size_t                down_bytes;
    void                 *memory = NULL;
    sherd_status          status;

    if (staged == NULL) {
        return sherdi_fail(SHERD_E_NOMEM, "no memory for the staging of device memory");
    }
    staged->world         = world;
    staged->portion_bytes = sherdi_max_size(
        PORTION_MIN_BYTES, BOUNCE_BYTES / 2 / size / SHERD_ALIGN_BYTES * SHERD_ALIGN_BYTES);
    down_bytes       = size * staged->portion_bytes;
    staged->up_bytes = sherdi_max_size(size, WIDEST) * staged->portion_bytes;
    /* One allocation: pages are pinned as a whole. */
    status = sherdi_pinned_alloc(world->host, lane, &world->mem, SHERDI_MEM_TRANSPORT,
                                 down_bytes + staged->up_bytes + sizeof(*staged->counts), &memory);
    if (status != SHERD_OK) {
        free(staged);
        return status;
    }
    staged->down   = memory;
    staged->up     = staged->down + down_bytes;
    staged->counts = (sherdi_fixed_counts *)(void *)(staged->up + staged->up_bytes);
    world->held.overhead_bytes += down_bytes + staged->up_bytes + sizeof(*staged->counts);
    *out = staged;
    return SHERD_OK;
}

void sherdi_staged_destroy(struct sherdi_staged *staged)
{
    if (staged != NULL) {
        sherdi_pinned_free(staged->world->backend, staged->down);
        free(staged);
    }
}

/* -------------------------------------------------------------- portions -- */

static void copy(const struct sherdi_staged *staged, void *dst, const void *src, size_t len_bytes)
{
    staged->world->backend->kernels->copy(staged->world->backend, dst, src, len_bytes);
}

/* Waits until the queued work is done. A failure of the device fails the world. */
static sherd_status lane_settle(const struct sherdi_staged *staged)
{
    sherd_world *world  = staged->world;
    sherd_status status = sherdi_lane_wait(world->backend);

    return status == SHERD_OK
               ? SHERD_OK
               : sherdi_world_fail(world, status, "rank %d: %s", world->rank, sherd_last_error());
}

/* Compares the ranks' sizes before a call of several portions, so that all ranks make equally many.
 * The transport itself compares a call of one portion. */
static sherd_status portions_agree(struct sherdi_staged *staged, const world_call *call)
{
    sherd_world           *world = staged->world;
    uint64_t               mine  = call->slice_bytes;
    uint64_t              *all   = (uint64_t *)(void *)staged->up;
    sherdi_all_gather_args args  = {.send        = &mine,
                                    .recv        = all,
                                    .slice_bytes = sizeof(mine),
                                    .flags       = SHERDI_COLL_HOST,
                                    .what        = call->what};

    if (call->slice_bytes <= staged->portion_bytes) {
        return SHERD_OK;
    }
    SHERDI_TRY(lane_settle(staged)); /* `up` may still be on its way to the device */
    SHERDI_TRY(world->ops->all_gather(world, &args));
    for (int r = 0; r < world->world_size; r++) {
        if (all[r] != mine) {
            return sherdi_world_fail(world, SHERD_E_INVAL,
                                     "ranks disagree: rank %d calls %s of %zu bytes of unit "
                                     "\"%s\", rank %d of %llu; " SHERDI_USUAL_CAUSE,
                                     world->rank, sherdi_world_call_name(call->kind),
                                     call->slice_bytes, call->what == NULL ? "" : call->what, r,
                                     (unsigned long long)all[r]);
        }
    }
    return SHERD_OK;
}

/* Copies bytes [at, at + portion) of `count` slices down, one after the other; slices_up copies
 * them back. */
static void slices_down(const struct sherdi_staged *staged, const unsigned char *slices,
                        size_t slice_bytes, size_t count, size_t at, size_t portion)
{
    for (size_t r = 0; r < count; r++) {
        copy(staged, staged->down + r * portion, slices + r * slice_bytes + at, portion);
    }
}

/* Skips the slice at `own`, which stays as it is (NULL: none). */
static void slices_up(const struct sherdi_staged *staged, unsigned char *slices, size_t slice_bytes,
                      size_t count, size_t at, size_t portion, const unsigned char *own)
{
    for (size_t r = 0; r < count; r++) {
        if (slices + r * slice_bytes != own) {
            copy(staged, slices + r * slice_bytes + at, staged->up + r * portion, portion);
        }
    }
}

static sherd_status all_gather_portion(struct sherdi_staged         *staged,
                                       const sherdi_all_gather_args *args, size_t at,
                                       size_t portion)
{
    sherd_world           *world = staged->world;
    sherdi_all_gather_args here  = {.send        = staged->down,
                                    .recv        = staged->up,
                                    .slice_bytes = portion,
                                    .flags       = SHERDI_COLL_HOST,
                                    .what        = args->what};

    slices_down(staged, args->send, 0, 1, at, portion);
    SHERDI_TRY(lane_settle(staged));
    SHERDI_TRY(world->ops->all_gather(world, &here));
    slices_up(staged, args->recv, args->slice_bytes, (size_t)world->world_size, at, portion,
              args->send); /* in place, this rank's slice is there already */
    return SHERD_OK;
}

/* Adds the counts of the host to those of the device. */
static sherd_status counts_add(struct sherdi_staged *staged, const sherdi_fixed_sink *sink,
                               const sherdi_fixed_counts *counted)
{
    copy(staged, staged->counts, sink->counts, sizeof(*staged->counts));
    SHERDI_TRY(lane_settle(staged));
    staged->counts->nonfinite += counted->nonfinite;
    staged->counts->out_of_range += counted->out_of_range;
    copy(staged, sink->counts, staged->counts, sizeof(*staged->counts));
    return SHERD_OK;
}

/* Sums a portion of all slices. `is_whole`: the results of all slices come back (all-reduce), not
 * of this rank's alone. */
static sherd_status reduction_portion(struct sherdi_staged        *staged,
                                      const sherdi_reduction_args *args, int is_whole, size_t at,
                                      size_t portion)
{
    sherd_world          *world      = staged->world;
    size_t                size       = (size_t)world->world_size;
    size_t                send_bytes = sherd_dtype_bytes(args->send_dtype);
    size_t                recv_bytes = sherdi_reduction_recv_bytes(args);
    size_t                first      = at / send_bytes;
    size_t                count      = portion / send_bytes;
    sherdi_fixed_counts   counted    = {0, 0};
    sherdi_fixed_sink     sink       = {.counts = &counted};
    sherdi_reduction_args here       = *args;

    slices_down(staged, args->send, args->slice_elems * send_bytes, size, at, portion);
    if (args->accumulate) {
        copy(staged, staged->up, (unsigned char *)args->recv + first * recv_bytes,
             count * recv_bytes);
    }
    SHERDI_TRY(lane_settle(staged));
    here.send        = staged->down;
    here.recv        = staged->up;
    here.slice_elems = count;
    if (args->fixed != NULL) {
        sink.multiplier = args->fixed->multiplier;
        sink.limit      = args->fixed->limit;
        here.fixed      = &sink;
    }
    SHERDI_TRY(is_whole ? world->ops->all_reduce(world, &here)
                        : world->ops->reduce_scatter(world, &here));
    slices_up(staged, args->recv, args->slice_elems * recv_bytes, is_whole ? size : 1,
              first * recv_bytes, count * recv_bytes, NULL);
    return args->fixed != NULL ? counts_add(staged, args->fixed, &counted) : SHERD_OK;
}

static sherd_status portion_run(struct sherdi_staged *staged, const world_call *call, size_t at,
                                size_t portion)
{
    switch (call->kind) {
    case CALL_ALL_GATHER:
        return all_gather_portion(staged, &call->args.all_gather, at, portion);
    case CALL_REDUCE_SCATTER:
        return reduction_portion(staged, &call->args.reduction, 0, at, portion);
    case CALL_ALL_REDUCE:
        return reduction_portion(staged, &call->args.reduction, 1, at, portion);
    case CALL_BARRIER:
    case CALL_BROADCAST:
    case CALL_ALLOC:
    case CALL_REGROUP:
        break;
    }
    return sherdi_fail(SHERD_E_STATE, "%s is no call on device memory",
                       sherdi_world_call_name(call->kind));
}

sherd_status sherdi_staged_run(struct sherdi_staged *staged, const world_call *call)
{
    size_t at = 0;

    SHERDI_TRY(portions_agree(staged, call));
    do { /* at least once: a call of zero bytes meets, too */
        size_t portion = sherdi_min_size(staged->portion_bytes, call->slice_bytes - at);

        SHERDI_TRY(portion_run(staged, call, at, portion));
        at += portion;
    } while (at < call->slice_bytes);
    return lane_settle(staged);
}
