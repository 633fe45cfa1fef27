/* See bounce.h. */
#include "collectives/bounce.h"

#include "base/checked.h"

unsigned char *sherdi_peers_half_to_fill(const sherdi_peers *peers)
{
    return peers->bounce + ((size_t)peers->me * 2 + ((peers->meetings + 1) & 1)) * PEERS_HALF_BYTES;
}

const unsigned char *sherdi_peers_half_of(const sherdi_peers *peers, int index)
{
    return peers->bounce + ((size_t)index * 2 + (peers->meetings & 1)) * PEERS_HALF_BYTES;
}

static sherd_status bounce_gather(sherdi_peers *peers, const sherdi_all_gather_args *args)
{
    const unsigned char *send = args->send;

    for (size_t at = 0; at < args->slice_bytes; at += PEERS_HALF_BYTES) {
        size_t portion = sherdi_min_size(PEERS_HALF_BYTES, args->slice_bytes - at);

        sherdi_peers_copy(peers, sherdi_peers_half_to_fill(peers), send + at, portion);
        SHERDI_TRY(sherdi_peers_meet(peers));
        sherdi_peers_copy(peers, sherdi_peers_slice(peers, args, peers->me) + at, send + at,
                          portion);
        for (int step = 1; step < peers->count; step++) {
            int index = sherdi_peers_neighbour(peers, step);

            sherdi_peers_copy(peers, sherdi_peers_slice(peers, args, index) + at,
                              sherdi_peers_half_of(peers, index), portion);
        }
    }
    return SHERD_OK;
}

/* Bytes of a half for each rank of the host, a multiple of the cache line and so of every
 * element. */
static size_t share_bytes(const sherdi_peers *peers)
{
    return PEERS_HALF_BYTES / (size_t)peers->count / 64 * 64;
}

/* The half has a share for each other rank of the host. */
static sherd_status shares_fill(sherdi_peers *peers, const reduction_work *work, const int *slices,
                                size_t first_byte, size_t len_bytes)
{
    const unsigned char *send = work->args->send;
    unsigned char       *half = sherdi_peers_half_to_fill(peers);

    for (int i = 0; i < peers->count; i++) {
        if (i != peers->me && slices[i] >= 0) {
            sherdi_peers_copy(peers, half + (size_t)i * share_bytes(peers),
                              send + (size_t)slices[i] * work->slice_bytes + first_byte, len_bytes);
        }
    }
    return sherdi_peers_meet(peers);
}

static const unsigned char *share_of(const sherdi_peers *peers, int index)
{
    return sherdi_peers_half_of(peers, index) + (size_t)peers->me * share_bytes(peers);
}

const peers_bounce_ops sherdi_peers_bounce = {
    .buffer_bytes = 2 * PEERS_HALF_BYTES,
    .gather       = bounce_gather,
    .shares_fill  = shares_fill,
    .share_of     = share_of,
    .share_bytes  = share_bytes,
};

int sherdi_peers_index(const sherdi_peers *peers, int rank)
{
    for (int i = 0; i < peers->count; i++) {
        if (peers->ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

sherd_status sherdi_peers_broadcast(sherd_world *world, void *data, size_t len_bytes, int root)
{
    sherdi_peers *peers = world->peers;
    int           index = sherdi_peers_index(peers, root);
    peers_note    note = {.kind = CALL_BROADCAST, .detail = (uint32_t)root, .len_bytes = len_bytes};

    peers->lane = world->host;
    SHERDI_TRY(sherdi_peers_meet_with(peers, &note, NULL, 0));
    for (size_t at = 0; at < len_bytes; at += PEERS_HALF_BYTES) {
        size_t         portion = sherdi_min_size(PEERS_HALF_BYTES, len_bytes - at);
        unsigned char *here    = (unsigned char *)data + at;

        if (peers->me == index) {
            sherdi_peers_copy(peers, sherdi_peers_half_to_fill(peers), here, portion);
        }
        SHERDI_TRY(sherdi_peers_meet(peers));
        if (peers->me != index) {
            sherdi_peers_copy(peers, here, sherdi_peers_half_of(peers, index), portion);
        }
    }
    return SHERD_OK;
}
