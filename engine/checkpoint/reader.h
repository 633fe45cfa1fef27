/* Reads ranges of parameters out of a checkpoint, whoever saved it: the manifest says which ranks' files have them, their
 * headers where. Bytes come in slots, ahead of what is asked for, and are held against their checksums before they are
 * handed out. */
#ifndef SHERDI_ENGINE_CHECKPOINT_READER_H
#define SHERDI_ENGINE_CHECKPOINT_READER_H

#include "engine/checkpoint/manifest.h"
#include "engine/run/blobs.h"
#include "offload/io.h"

typedef struct sherdi_reader_params {
    sherdi_ioq    *queue;
    sherdi_mem    *mem;
    const char    *dir, *tag;
    unsigned char *memory;     /* [num_slots * slot_bytes], aligned; borrowed until close */
    size_t         slot_bytes; /* a multiple of SHERDI_CHECKPOINT_EXTENT_BYTES */
    size_t         num_slots;  /* 1 .. SHERDI_CHECKPOINT_SLOTS */
} sherdi_reader_params;

typedef struct sherdi_reader sherdi_reader;

/** Reads and checks the manifest. E_IO, E_INVAL, E_NOMEM, E_NOTSUP (a build without libxxhash). */
sherd_status           sherdi_reader_open(const sherdi_reader_params *params, sherdi_reader **out);
const sherdi_manifest *sherdi_reader_manifest(const sherdi_reader *reader);
/** A parameter of the manifest by name, a part of the state by name; -1: there is none. */
int64_t sherdi_reader_find_param(const sherdi_reader *reader, const char *name);
int     sherdi_reader_find_part(const sherdi_reader *reader, const char *name);

/** Takes values as they are stored; `first` is the row-major index of the first. */
typedef sherd_status (*sherdi_reader_fn)(void *ctx, size_t first, size_t count, const void *values,
                                         sherd_dtype dtype);
/** Elements [first, first + count) of a part of a parameter (of a frozen one: its compute type, `part` 0), in order, in as
 *  many calls as it takes. E_IO; E_INVAL with tensor, rank and file where they are not what their checksum says. */
sherd_status sherdi_reader_values(sherdi_reader *reader, size_t param, int part, size_t first,
                                  size_t count, sherdi_reader_fn fn, void *ctx);

/** The blobs that a rank saved, of that kind, are put to `out`. E_IO, E_INVAL (damaged), E_NOMEM. */
sherd_status sherdi_reader_blobs(sherdi_reader *reader, sherdi_blob_kind kind, int rank,
                                 sherdi_blobs *out);

/* What is wrong in a data file. */
typedef struct sherdi_reader_damage {
    const char *file;             /* its path */
    const char *tensor;           /* its name in the file; NULL: no tensor's in particular */
    size_t      begin, len_bytes; /* in the file; none: 0 */
    const char *what;             /* a sentence */
} sherdi_reader_damage;

/* Told while a file is read from end to end. */
typedef struct sherdi_reader_watch {
    void *ctx;
    void (*progress)(void *ctx, uint64_t more_bytes);
    void (*damage)(void *ctx, const sherdi_reader_damage *damage);
} sherdi_reader_watch;

/** Reads a data file from end to end: its length and header against the manifest, every extent against its checksum, the
 *  tensors against the manifest, which says what this rank saved, each element of each part once. Tells of all that is
 *  wrong and goes on. E_NOMEM; what is damaged is no error here. */
sherd_status sherdi_reader_verify(sherdi_reader *reader, sherdi_data_file which, int rank,
                                  const sherdi_reader_watch *watch);
/** How long that data file really is; -1: it is not there, or no file. */
int64_t sherdi_reader_file_bytes(const sherdi_reader *reader, sherdi_data_file which, int rank);
/** Bytes that came from the drive so far. */
uint64_t sherdi_reader_bytes(const sherdi_reader *reader);
/** Accepts NULL. */
void sherdi_reader_close(sherdi_reader *reader);

#endif
