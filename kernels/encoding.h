/* The encodings: how a part of an optimizer's state is stored, often in fewer bits than fp32. The
 * plan uses the sizes; codecs.h has the formulas.
 *
 *   F32           4 bytes: the value itself.
 *   BF16          2 bytes: rounded to nearest, or at random in an update (sherdi_round_random).
 *   BESIDE        2 bytes of a master weight. The bf16 parameter is the master rounded, and these
 *                 bytes have what it lacks, so nothing is lost. Where rounding to nearest even met
 *                 a tie, one more bit is needed: the sign of another part, one that is never
 *                 negative.
 *   BESIDE_PLANE  the same where no part has a free sign. Behind the 2-byte values of each chunk
 *                 follows a plane: 64 bits, one for each element.
 *   FP8, UFP8     1 byte: a small float with 3 bits of fraction. FP8 has a sign and 4 bits of
 *                 exponent; UFP8, for parts that are never negative, has 5 bits of exponent. Behind
 *                 the floats of each chunk follows its scale, a power of two.
 *
 * A chunk is 64 elements of one parameter by its row-major index. Slices and blocks are whole
 * chunks, so elements share a scale in the same way in every world and layout. NaN is stored as one
 * fixed NaN, 0x7fc00000. If a chunk of FP8 or UFP8 has a NaN or an Inf, the whole chunk becomes
 * NaN. */
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
