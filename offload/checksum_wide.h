/* XXH3 with wider registers than the compiler may use elsewhere: the same checksums, several times
 * as fast for data in a cache. checksum_avx2.c and checksum_avx512.c compile the same code with
 * their own flags. */
#ifndef SHERDI_OFFLOAD_CHECKSUM_WIDE_H
#define SHERDI_OFFLOAD_CHECKSUM_WIDE_H

#include <stddef.h>
#include <stdint.h>

uint64_t sherdi_checksum_avx2(const void *data, size_t len_bytes);
uint64_t sherdi_checksum_avx512(const void *data, size_t len_bytes);

#endif
