/* Checksums of data on a drive: XXH3, 64 bits. They detect errors of a drive or a cable, and torn
 * writes; they do not protect against deliberate changes. */
#ifndef SHERDI_OFFLOAD_CHECKSUM_H
#define SHERDI_OFFLOAD_CHECKSUM_H

#include "base/status.h"

/** Returns E_NOTSUP when the library was built without libxxhash; no other function of this file
 *  may be called then. */
sherd_status sherdi_checksum_check_built(void);

uint64_t sherdi_checksum(const void *data, size_t len_bytes);

/* The same checksum, made portion by portion. */
typedef struct sherdi_checksum_stream {
    _Alignas(64) unsigned char opaque[640];
} sherdi_checksum_stream;

void     sherdi_checksum_begin(sherdi_checksum_stream *stream);
void     sherdi_checksum_add(sherdi_checksum_stream *stream, const void *data, size_t len_bytes);
uint64_t sherdi_checksum_end(const sherdi_checksum_stream *stream);

#endif
