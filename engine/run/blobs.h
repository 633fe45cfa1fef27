/* Blobs: the trainer's own bytes (its place in the data, its random numbers), which are saved and
 * restored with the engine's state. A rank has few, holds them in memory and finds them by key. A
 * checkpoint has all of them (checkpoint/shard.c). A generation (store.c) has the small ones,
 * written and read as one sequence of bytes. */
#ifndef SHERDI_ENGINE_RUN_BLOBS_H
#define SHERDI_ENGINE_RUN_BLOBS_H

#include "base/mem.h"
#include "sherd.h"

/* Whom a blob belongs to. */
typedef enum sherdi_blob_kind {
    SHERDI_BLOB_GLOBAL = 0, /* of the run: one for each key; rank 0's is the valid one */
    SHERDI_BLOB_OF_RANK,    /* one for each key and rank */
    SHERDI_BLOB_KINDS,
} sherdi_blob_kind;

typedef struct sherdi_blob {
    char             key[SHERD_BLOB_KEY_BYTES + 1];
    sherdi_blob_kind kind;
    int              rank;     /* SHERDI_BLOB_OF_RANK: the rank that saved it; else 0 */
    int              is_large; /* only checkpoints have it, and commits of state do not */
    unsigned char   *data;
    size_t           len_bytes;
} sherdi_blob;

typedef struct sherdi_blobs {
    sherdi_mem  *mem;
    sherdi_blob *list; /* in the order in which the keys were first set */
    size_t       count, capacity;
    uint64_t     changes;       /* of the list, so far */
    void (*changed)(void *ctx); /* the trainer has set or removed one; NULL: nobody wants to know */
    void *ctx;
} sherdi_blobs;

/** Makes an empty list; allocates nothing. */
void sherdi_blobs_init(sherdi_blobs *blobs, sherdi_mem *mem);
void sherdi_blobs_fini(sherdi_blobs *blobs);
/** Removes all blobs, or all but the large ones. */
void sherdi_blobs_clear(sherdi_blobs *blobs, int is_large_too);

/** Returns the blob, valid until the list changes next; NULL: there is none. */
const sherdi_blob *sherdi_blobs_find(const sherdi_blobs *blobs, const char *key,
                                     sherdi_blob_kind kind, int rank);
/** Copies `data` into a blob, which replaces the one that the key had; on failure that one stays.
 *  E_NOMEM. E_INVAL: the key is not 1 to SHERD_BLOB_KEY_BYTES bytes of printable ASCII. */
sherd_status sherdi_blobs_put(sherdi_blobs *blobs, const char *key, sherdi_blob_kind kind, int rank,
                              int is_large, const void *data, size_t len_bytes);

/** Returns how many small blobs there are. */
size_t sherdi_blobs_small(const sherdi_blobs *blobs);
/** Returns the length of sherdi_blobs_write's output. `rank` below 0: of all ranks. */
size_t sherdi_blobs_bytes(const sherdi_blobs *blobs, sherdi_blob_kind kind, int rank);
/** Writes the small blobs of a kind to out [sherdi_blobs_bytes] as one sequence of bytes, which is
 *  the same on every machine; of the blobs of ranks only those of `rank`. */
void sherdi_blobs_write(const sherdi_blobs *blobs, sherdi_blob_kind kind, int rank,
                        unsigned char *out);
/** Puts all blobs of the sequence into the list, of any kind and rank. The bytes need not be
 *  trusted. E_INVAL: they are damaged. E_NOMEM. After a failure, some of the blobs may have been
 *  put. */
sherd_status sherdi_blobs_read(sherdi_blobs *blobs, const unsigned char *bytes, size_t len_bytes);

#endif
