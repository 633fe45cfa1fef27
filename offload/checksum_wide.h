/* XXH3 of wider registers than the compiler may use elsewhere: the same sums, several times as fast on what lies in a cache.
 * checksum_avx2.c and checksum_avx512.c are this file, compiled with their flags. */
#ifndef SHERDI_OFFLOAD_CHECKSUM_WIDE_H
#define SHERDI_OFFLOAD_CHECKSUM_WIDE_H

#include <stddef.h>
#include <stdint.h>

uint64_t sherdi_checksum_avx2(const void *data, size_t len_bytes);
uint64_t sherdi_checksum_avx512(const void *data, size_t len_bytes);

#endif
