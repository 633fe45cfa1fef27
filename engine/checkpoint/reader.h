/* Reads ranges of parameters from a checkpoint, whatever layout saved it. The manifest says which
 * ranks' files have a range, and the headers of these files say where. Slots read the data ahead,
 * and bytes are checked against their checksums before the caller gets them. load.c and tools.c use
 * it. */
#ifndef SHERDI_ENGINE_CHECKPOINT_READER_H
#define SHERDI_ENGINE_CHECKPOINT_READER_H

#include "engine/checkpoint/manifest.h"
#include "engine/run/blobs.h"
#include "offload/io.h"
#include "engine/plan/checkpoint.h"

typedef struct sherdi_reader_params {
    sherdi_ioq    *queue;
    sherdi_mem    *mem;
    const char    *dir, *tag;
    unsigned char *memory;     /* [num_slots * slot_bytes], aligned; borrowed until close */
    size_t         slot_bytes; /* a multiple of SHERDI_CHECKPOINT_EXTENT_BYTES */
    size_t         num_slots;  /* 1 .. SHERDI_CHECKPOINT_SLOTS */
} sherdi_reader_params;

typedef struct sherdi_reader sherdi_reader;

/** Opens a checkpoint: reads and checks the manifest. E_IO, E_INVAL, E_NOMEM, E_NOTSUP (a build
 *  without libxxhash). */
sherd_status           sherdi_reader_open(const sherdi_reader_params *params, sherdi_reader **out);
const sherdi_manifest *sherdi_reader_manifest(const sherdi_reader *reader);
/** Return the number of a parameter, and of a part of the state, by name; -1: there is none. */
int64_t sherdi_reader_find_param(const sherdi_reader *reader, const char *name);
int     sherdi_reader_find_part(const sherdi_reader *reader, const char *name);

/** Receives values as they are stored, borrowed for the call; `first` is the row-major index of the
 *  first. */
typedef sherd_status (*sherdi_reader_fn)(void *ctx, size_t first, size_t count, const void *values,
                                         sherd_dtype dtype);
/** Gives elements [first, first + count) of a part of a parameter to `fn`, in order, in several
 *  calls. A frozen parameter has its compute type as `part` 0. Blocks. E_IO; E_INVAL, with tensor,
 *  rank and file, if bytes do not match their checksum; what `fn` returns. */
sherd_status sherdi_reader_values(sherdi_reader *reader, size_t param, int part, size_t first,
                                  size_t count, sherdi_reader_fn fn, void *ctx);

/** From now on, data files are read also where bytes do not match their checksum: *damage becomes 1
 *  then. NULL, as at first: damaged bytes are a failure. Linked state is always compared. */
void sherdi_reader_tolerate(sherdi_reader *reader, int *damage);

/** Adds the blobs of a kind that a rank saved to `out`. E_IO, E_INVAL (damaged), E_NOMEM. */
sherd_status sherdi_reader_blobs(sherdi_reader *reader, sherdi_blob_kind kind, int rank,
                                 sherdi_blobs *out);

/* A damage of a data file. */
typedef struct sherdi_reader_damage {
    const char *file;             /* its path */
    const char *tensor;           /* its name in the file; NULL: no particular tensor */
    size_t      begin, len_bytes; /* bytes in the file; 0, 0: no particular bytes */
    const char *what;             /* a sentence */
} sherdi_reader_damage;

/* Callbacks while a file is read from end to end. */
typedef struct sherdi_reader_watch {
    void *ctx;
    void (*progress)(void *ctx, uint64_t more_bytes);
    void (*damage)(void *ctx, const sherdi_reader_damage *damage);
} sherdi_reader_watch;

/** Reads a data file from end to end. It checks the length and the header against the manifest,
 *  every extent against its checksum, and the tensors against the manifest: the file must have each
 *  element of each part that this rank saved exactly once. It reports every damage to `watch` and
 *  continues. Damage is not an error here; E_NOMEM. */
sherd_status sherdi_reader_verify(sherdi_reader *reader, sherdi_data_file which, int rank,
                                  const sherdi_reader_watch *watch);
/** Says whether a data file that has bytes is there, with its length, and with its linked state.
 *  E_INVAL (its header is damaged), E_IO, E_NOMEM. */
sherd_status sherdi_reader_look(sherdi_reader *reader, sherdi_data_file which, int rank,
                                int *is_there_out);
/** Returns the number of files of a rank's linked state; 0: it has none. Call it after
 *  sherdi_reader_look has found the data file. */
int sherdi_reader_stripes(const sherdi_reader *reader, int rank);
/** Marks the data files that have elements of a parameter, in flags by rank and kind. */
void sherdi_reader_mark(const sherdi_reader *reader, size_t param, size_t first, size_t count,
                        unsigned char (*flags)[SHERDI_DATA_FILES]);
/** Returns the real length of a data file; -1: it does not exist, or is not a file. */
int64_t sherdi_reader_file_bytes(const sherdi_reader *reader, sherdi_data_file which, int rank);
/** Returns the bytes that were read from the drive so far. */
uint64_t sherdi_reader_bytes(const sherdi_reader *reader);
/** Accepts NULL. */
void sherdi_reader_close(sherdi_reader *reader);

#endif
