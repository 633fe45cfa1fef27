/* The encodings: how a part of an optimizer's state is stored, often in fewer bits than fp32. The
 * plan uses the sizes; codecs.h describes the encodings, and has the formulas. */
#ifndef SHERDI_KERNELS_ENCODING_H
#define SHERDI_KERNELS_ENCODING_H

#include "sherd.h"

#include <assert.h>
#include <stddef.h>

typedef enum sherdi_encoding {
    SHERDI_ENCODING_F32 = 0,
    SHERDI_ENCODING_BF16,
    SHERDI_ENCODING_BESIDE,
    SHERDI_ENCODING_BESIDE_PLANE,
    SHERDI_ENCODING_FP8,
    SHERDI_ENCODING_UFP8,
    SHERDI_ENCODINGS,
} sherdi_encoding;

/* Bytes of a chunk, with its plane or scale. */
#define SHERDI_CHUNK_BF16_BYTES  ((size_t)2 * SHERD_CHUNK_ELEMS)
#define SHERDI_CHUNK_PLANE_BYTES (SHERDI_CHUNK_BF16_BYTES + SHERD_CHUNK_ELEMS / 8)
#define SHERDI_CHUNK_FP8_BYTES   (SHERD_CHUNK_ELEMS + sizeof(float))

/** Returns the bytes of a chunk, with its plane or scale. */
static inline size_t sherdi_encoding_chunk_bytes(sherdi_encoding encoding)
{
    static const size_t CHUNK_BYTES[SHERDI_ENCODINGS] = {
        SHERD_CHUNK_ELEMS * sizeof(float), /* F32 */
        SHERDI_CHUNK_BF16_BYTES,           /* BF16 */
        SHERDI_CHUNK_BF16_BYTES,           /* BESIDE */
        SHERDI_CHUNK_PLANE_BYTES,          /* BESIDE_PLANE */
        SHERDI_CHUNK_FP8_BYTES,            /* FP8 */
        SHERDI_CHUNK_FP8_BYTES,            /* UFP8 */
    };

    return CHUNK_BYTES[encoding];
}

/** Returns the bytes of an element, without the plane or scale of its chunk. */
static inline size_t sherdi_encoding_elem_bytes(sherdi_encoding encoding)
{
    return sherdi_encoding_chunk_bytes(encoding) / SHERD_CHUNK_ELEMS;
}

/** Returns the bytes of `elems` elements: a multiple of SHERD_CHUNK_ELEMS, or any number where
 *  chunks have no plane and no scale. */
static inline size_t sherdi_encoding_bytes(sherdi_encoding encoding, size_t elems)
{
    size_t chunk = sherdi_encoding_chunk_bytes(encoding);

    assert(elems % SHERD_CHUNK_ELEMS == 0 || chunk % SHERD_CHUNK_ELEMS == 0);
    return elems / SHERD_CHUNK_ELEMS * chunk +
           elems % SHERD_CHUNK_ELEMS * sherdi_encoding_elem_bytes(encoding);
}

/** Returns whether it is one of a split master: the bf16 parameter is a
 *  half of the master. */
static inline int sherdi_encoding_is_beside(sherdi_encoding encoding)
{
    return encoding == SHERDI_ENCODING_BESIDE || encoding == SHERDI_ENCODING_BESIDE_PLANE;
}

/** Returns whether any of `count` parts is stored otherwise than as plain fp32. */
static inline int sherdi_has_encoded(const sherdi_encoding *encodings, int count)
{
    for (int i = 0; i < count; i++) {
        if (encodings[i] != SHERDI_ENCODING_F32) {
            return 1;
        }
    }
    return 0;
}

#endif
