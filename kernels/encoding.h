/* How a part of an optimizer's state is stored. */
#ifndef SHERDI_KERNELS_ENCODING_H
#define SHERDI_KERNELS_ENCODING_H

#include "sherd.h"

#include <assert.h>
#include <stddef.h>

typedef enum sherdi_encoding {
    SHERDI_ENCODING_F32 = 0,
    SHERDI_ENCODINGS,
} sherdi_encoding;

/** Bytes of SHERD_CHUNK_ELEMS elements, with what belongs to the chunk as a whole. */
static inline size_t sherdi_encoding_chunk_bytes(sherdi_encoding encoding)
{
    static const size_t CHUNK_BYTES[SHERDI_ENCODINGS] = {
        [SHERDI_ENCODING_F32] = SHERD_CHUNK_ELEMS * sizeof(float),
    };

    return CHUNK_BYTES[encoding];
}

/** Bytes of `elems` elements: whole chunks, or any number where an element has bytes of its own. */
static inline size_t sherdi_encoding_bytes(sherdi_encoding encoding, size_t elems)
{
    size_t chunk = sherdi_encoding_chunk_bytes(encoding);

    assert(elems % SHERD_CHUNK_ELEMS == 0 || chunk % SHERD_CHUNK_ELEMS == 0);
    return elems / SHERD_CHUNK_ELEMS * chunk +
           elems % SHERD_CHUNK_ELEMS * chunk / SHERD_CHUNK_ELEMS;
}

#endif
