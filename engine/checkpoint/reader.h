/* Reads ranges of parameters out of a checkpoint, whoever saved it: the manifest says which ranks' files have them, their
 * headers where. Bytes come in slots, ahead of what is asked for, and are held against their checksums before they are
 * handed out. */
#ifndef SHERDI_ENGINE_CHECKPOINT_READER_H
#define SHERDI_ENGINE_CHECKPOINT_READER_H

#include "engine/checkpoint/manifest.h"
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
/** Reads a data file from end to end and compares; counts its bytes to `progress` (may be NULL). Errors as above. */
sherd_status sherdi_reader_verify(sherdi_reader *reader, sherdi_data_file which, int rank,
                                  void (*progress)(void *ctx, uint64_t more_bytes), void *ctx);
/** Bytes that came from the drive so far. */
uint64_t sherdi_reader_bytes(const sherdi_reader *reader);
/** Accepts NULL. */
void sherdi_reader_close(sherdi_reader *reader);

#endif
