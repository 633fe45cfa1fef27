/* The blobs of an engine that moves. The rules are those of a checkpoint that is loaded on another
 * number of ranks: every rank gets rank 0's blobs of the run, and blobs of rank r go to rank r
 * modulo the new number. */
#include "engine/elastic/generation.h"
#include "engine/elastic/lost.h"

#include "base/checked.h"
#include "collectives/broadcast.h"
#include "engine/run/agree.h"

#include <string.h>

/* Before the data of a blob; an empty key: there are no more. */
typedef struct blob_head {
    char     key[SHERD_BLOB_KEY_BYTES + 1];
    int32_t  kind, rank, is_large;
    uint64_t len_bytes;
} blob_head;

static blob_head head_of(const sherdi_blob *blob)
{
    blob_head head;

    memset(&head, 0, sizeof(head));
    memcpy(head.key, blob->key, sizeof(head.key));
    head.kind      = (int32_t)blob->kind;
    head.rank      = blob->rank;
    head.is_large  = blob->is_large;
    head.len_bytes = blob->len_bytes;
    return head;
}

static int is_wanted(const sherdi_move *m, const blob_head *head)
{
    return m->new_world != NULL && (head->kind == (int32_t)SHERDI_BLOB_GLOBAL ||
                                    head->rank % m->new_size == sherd_world_rank(m->new_world));
}

/* Brings the data of a blob from `root`, in portions of the wire's room; `data` is the root's, and
 * whole (NULL: nobody wants it here) gets them. */
static sherd_status data_pass(const sherdi_move *m, int root, const unsigned char *data,
                              unsigned char *whole, size_t len_bytes)
{
    unsigned char *room = m->wire.pass.own;

    for (size_t at = 0; at < len_bytes; at += m->wire.slot_bytes) {
        size_t some = sherdi_min_size(m->wire.slot_bytes, len_bytes - at);

        if (data != NULL) {
            memcpy(room, data + at, some);
        }
        SHERDI_TRY(sherdi_world_broadcast(m->all, room, some, root));
        if (whole != NULL) {
            memcpy(whole + at, room, some);
        }
    }
    return SHERD_OK;
}

/* The others wait in the data, so a rank without memory takes part; *own is its status. */
static sherd_status blob_pass(sherdi_move *m, int root, const sherdi_blob *blob,
                              const blob_head *head, sherdi_outcome *own)
{
    unsigned char *whole = NULL;
    sherd_status   status;

    if (is_wanted(m, head) && own->status == SHERD_OK) {
        whole = sherdi_alloc(&m->engine->mem, SHERDI_MEM_CONTROL, (size_t)head->len_bytes);
        if (whole == NULL) {
            sherdi_outcome_add(own, SHERD_E_NOMEM);
        }
    }
    status = data_pass(m, root, blob == NULL ? NULL : blob->data, whole, (size_t)head->len_bytes);
    if (status == SHERD_OK && whole != NULL) {
        sherdi_outcome_add(own, sherdi_blobs_put(&m->blobs, head->key, (sherdi_blob_kind)head->kind,
                                                 head->rank, head->is_large, whole,
                                                 (size_t)head->len_bytes));
    }
    sherdi_free(whole);
    return status;
}

/* Returns the old rank whose blobs of the run are taken: rank 0, or the first that is there. */
static int run_rank(const sherdi_move *m)
{
    int rank = 0;

    while (m->is_lost && !m->is_aimed && m->goes[rank] < 0 &&
           sherdi_keeps_nothing(&m->engine->settings)) {
        rank++;
    }
    return rank;
}

/* Returns the blobs that this rank gives of an old rank, if it gives any. */
static const sherdi_blobs *blobs_of(const sherdi_move *m, int old_rank)
{
    if (m->is_aimed) {
        return sherdi_generation_blobs(m, old_rank);
    }
    return m->goes != NULL && m->goes[old_rank] < 0 && m->is_lost ? sherdi_lost_blobs(m, old_rank)
                                                                  : m->engine->blobs;
}

/* Passes the blobs of one rank of the old world on. */
static sherd_status rank_pass(sherdi_move *m, int old_rank, sherdi_outcome *own)
{
    const sherdi_blobs *blobs = blobs_of(m, old_rank);
    int                 root  = m->old_at[old_rank];
    int                 gives = root == sherd_world_rank(m->all) && blobs != NULL;
    blob_head           head;

    for (size_t i = 0;; i++) {
        const sherdi_blob *blob = NULL;

        while (gives && i < blobs->count && old_rank != run_rank(m) &&
               blobs->list[i].kind == SHERDI_BLOB_GLOBAL) {
            i++;
        }
        memset(&head, 0, sizeof(head));
        if (gives && i < blobs->count) {
            blob = &blobs->list[i];
            head = head_of(blob);
        }
        SHERDI_TRY(sherdi_world_broadcast(m->all, &head, sizeof(head), root));
        if (head.key[0] == '\0') {
            return SHERD_OK;
        }
        SHERDI_TRY(blob_pass(m, root, blob, &head, own));
    }
}

sherd_status sherdi_move_blobs(sherdi_move *m)
{
    sherdi_outcome own = {.status = SHERD_OK};

    for (int r = 0; r < m->old_size; r++) {
        SHERDI_TRY(rank_pass(m, r, &own));
    }
    return sherdi_agree_world(m->all, sherdi_outcome_end(&own));
}
