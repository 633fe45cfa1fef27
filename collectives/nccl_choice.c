/* Decides whether ranks can be a world over NCCL. Every rank describes its devices on its card, and
 * all ranks compute the same answer from the cards. NCCL needs a separate device for each rank,
 * unless it is 2.30 or newer and is configured to allow several (NCCL_MULTI_RANK_GPU_ENABLE=1, a
 * variable of NCCL's). */
#include "collectives/nccl.h"

#include "collectives/device.h"
#include "kernels/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARES_FROM_VERSION 23000

static void nccl_card_fill(rendezvous_card *card, const char *backend)
{
    const char *shares = getenv("NCCL_MULTI_RANK_GPU_ENABLE");

    if (strcmp(backend, "cpu") == 0) {
        (void)snprintf(card->nccl_why, sizeof(card->nccl_why),
                       "NCCL moves memory of GPUs only, and the backend is cpu");
        return;
    }
    card->device_count = sherdi_backend_device_count(backend, NULL, 0);
    if (card->device_count == 0) {
        (void)snprintf(card->nccl_why, sizeof(card->nccl_why), "this process has no GPU");
        return;
    }
    for (int i = 0; i < RENDEZVOUS_DEVICES && i < card->device_count; i++) {
        card->device_ids[i] = sherdi_backend_device_identity(backend, i);
    }
    card->nccl_version = sherdi_nccl_version(card->nccl_why, sizeof(card->nccl_why));
    card->nccl_shares =
        card->nccl_version >= SHARES_FROM_VERSION && shares != NULL && strcmp(shares, "1") == 0;
}

/* Returns the number of a rank among the ranks of its host. */
static int local_rank(const rendezvous *meeting, int rank)
{
    const rendezvous_card *cards = meeting->cards;
    int                    count = 0;

    if (cards[rank].local_rank >= 0) {
        return cards[rank].local_rank;
    }
    for (int r = 0; r < rank; r++) {
        count += cards[r].host == cards[rank].host;
    }
    return count;
}

static int device_of(const rendezvous *meeting, int rank)
{
    const rendezvous_card *card = &meeting->cards[rank];

    return sherdi_device_index(card->device, local_rank(meeting, rank), card->device_count);
}

/* Returns a device's identity; for a device beyond those on the card, its index. */
static uint64_t identity_of(const rendezvous *meeting, int rank)
{
    int index = device_of(meeting, rank);

    return index < RENDEZVOUS_DEVICES ? meeting->cards[rank].device_ids[index] : (uint64_t)index;
}

static void version_write(int version, char *text, size_t len_bytes)
{
    (void)snprintf(text, len_bytes, "%d.%d.%d", version / 10000, version / 100 % 100,
                   version % 100);
}

/* Returns a rank below `rank` on the same device, unless both are configured to allow it; -1:
 * none. */
static int sharer_find(const rendezvous *meeting, int rank)
{
    for (int r = 0; r < rank; r++) {
        if (!(meeting->cards[r].nccl_shares && meeting->cards[rank].nccl_shares) &&
            meeting->cards[r].host == meeting->cards[rank].host &&
            identity_of(meeting, r) == identity_of(meeting, rank)) {
            return r;
        }
    }
    return -1;
}

static int nccl_is_possible(const rendezvous *meeting, char *why, size_t why_bytes)
{
    const rendezvous_card *cards = meeting->cards;

    for (int r = 0; r < meeting->world_size; r++) {
        char texts[2][32];
        int  other;

        if (cards[r].nccl_version == 0) {
            (void)snprintf(why, why_bytes, "rank %d: %s", r, cards[r].nccl_why);
            return 0;
        }
        if (cards[r].nccl_version != cards[0].nccl_version) {
            version_write(cards[0].nccl_version, texts[0], sizeof(texts[0]));
            version_write(cards[r].nccl_version, texts[1], sizeof(texts[1]));
            (void)snprintf(why, why_bytes, "rank 0 has NCCL %s, rank %d has %s", texts[0], r,
                           texts[1]);
            return 0;
        }
        other = sharer_find(meeting, r);
        if (other >= 0) {
            (void)snprintf(why, why_bytes,
                           "ranks %d and %d share device %d of host %s, and NCCL needs one device "
                           "for each, or version 2.30 or newer with NCCL_MULTI_RANK_GPU_ENABLE=1",
                           other, r, device_of(meeting, r), cards[r].host_name);
            return 0;
        }
    }
    return 1;
}

const char *sherdi_nccl_text(void)
{
    static _Thread_local char text[300];
    int                       version = sherdi_nccl_version(text, sizeof(text));

    if (version != 0) {
        version_write(version, text, sizeof(text));
    }
    return text;
}

const procs_mover sherdi_nccl_mover = {
    .ops         = &sherdi_nccl_ops,
    .card_fill   = nccl_card_fill,
    .is_possible = nccl_is_possible,
    .open        = sherdi_nccl_open,
    .close       = sherdi_nccl_close,
};
