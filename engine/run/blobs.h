/* The trainer's own bytes (its place in the data, its random numbers), which ride with the engine's state: in memory
 * here, few and small, found by key. Who keeps them with a generation or a checkpoint goes over them, or takes them as
 * one sequence of bytes. */
#ifndef SHERDI_ENGINE_RUN_BLOBS_H
#define SHERDI_ENGINE_RUN_BLOBS_H

#include "base/mem.h"
#include "sherd.h"

/* Whose they are. */
typedef enum sherdi_blob_kind {
    SHERDI_BLOB_GLOBAL = 0, /* one of a key; rank 0's counts */
    SHERDI_BLOB_OF_RANK,    /* one of a key and a rank */
    SHERDI_BLOB_KINDS,
} sherdi_blob_kind;

typedef struct sherdi_blob {
    char             key[SHERD_BLOB_KEY_BYTES + 1];
    sherdi_blob_kind kind;
    int              rank; /* SHERDI_BLOB_OF_RANK: as it was saved; else 0 */
    unsigned char   *data;
    size_t           len_bytes;
} sherdi_blob;

typedef struct sherdi_blobs {
    sherdi_mem  *mem;
    sherdi_blob *list; /* in the order in which keys came */
    size_t       count, capacity;
} sherdi_blobs;

/** Empty; nothing is allocated. */
void sherdi_blobs_init(sherdi_blobs *blobs, sherdi_mem *mem);
void sherdi_blobs_fini(sherdi_blobs *blobs);
/** Forgets those of a kind, of every rank. */
void sherdi_blobs_clear(sherdi_blobs *blobs, sherdi_blob_kind kind);

/** NULL: there is none. Valid until the next change. */
const sherdi_blob *sherdi_blobs_find(const sherdi_blobs *blobs, const char *key,
                                     sherdi_blob_kind kind, int rank);
/** A copy of `data`, in place of the one before, which stays when this fails. E_NOMEM, E_INVAL (a key that cannot be one). */
sherd_status sherdi_blobs_put(sherdi_blobs *blobs, const char *key, sherdi_blob_kind kind, int rank,
                              const void *data, size_t len_bytes);
/** Nothing where there is none. */
void sherdi_blobs_remove(sherdi_blobs *blobs, const char *key, sherdi_blob_kind kind, int rank);

/** Those of a kind as one sequence of bytes, the same on every machine: of ranks those of `rank` alone. */
size_t sherdi_blobs_bytes(const sherdi_blobs *blobs, sherdi_blob_kind kind, int rank);
/** out [sherdi_blobs_bytes]. */
void sherdi_blobs_write(const sherdi_blobs *blobs, sherdi_blob_kind kind, int rank,
                        unsigned char *out);
/** Puts what such bytes hold, of whatever kind and rank. They may come from anywhere: E_INVAL, and then some may have
 *  been put. E_NOMEM. */
sherd_status sherdi_blobs_read(sherdi_blobs *blobs, const unsigned char *bytes, size_t len_bytes);

#endif
