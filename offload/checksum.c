/* This file and the wide ones include the code of xxhash.h, so no library is linked. */
#include "offload/checksum.h"

#include "offload/checksum_wide.h"

#include "sherd_build.h"

#ifdef SHERDI_HAVE_XXHASH

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(sherdi_checksum_stream), "a stream has room for it");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(sherdi_checksum_stream), "and is aligned");

sherd_status sherdi_checksum_check_built(void)
{
    return SHERD_OK;
}

uint64_t sherdi_checksum(const void *data, size_t len_bytes)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        return sherdi_checksum_avx512(data, len_bytes);
    }
    if (__builtin_cpu_supports("avx2")) {
        return sherdi_checksum_avx2(data, len_bytes);
    }
#endif
    return XXH3_64bits(data, len_bytes);
}

void sherdi_checksum_begin(sherdi_checksum_stream *stream)
{
    XXH3_state_t *state = (void *)stream->opaque;

    XXH3_INITSTATE(state);
    (void)XXH3_64bits_reset(state);
}

void sherdi_checksum_add(sherdi_checksum_stream *stream, const void *data, size_t len_bytes)
{
    (void)XXH3_64bits_update((void *)stream->opaque, data, len_bytes);
}

uint64_t sherdi_checksum_end(const sherdi_checksum_stream *stream)
{
    return XXH3_64bits_digest((const void *)stream->opaque);
}

#else

sherd_status sherdi_checksum_check_built(void)
{
    return sherdi_fail(SHERD_E_NOTSUP, "state on NVMe needs checksums, and this library was built "
                                       "without libxxhash; install it and build again");
}

uint64_t sherdi_checksum(const void *data, size_t len_bytes)
{
    (void)data;
    (void)len_bytes;
    return 0;
}

void sherdi_checksum_begin(sherdi_checksum_stream *stream)
{
    (void)stream;
}

void sherdi_checksum_add(sherdi_checksum_stream *stream, const void *data, size_t len_bytes)
{
    (void)stream;
    (void)data;
    (void)len_bytes;
}

uint64_t sherdi_checksum_end(const sherdi_checksum_stream *stream)
{
    (void)stream;
    return 0;
}

#endif
