/* Decodes and encodes chunks of 64 elements, element by element. This is the reference for
 * encodings (kernels/codecs.h), and the vector files use it for chunks that are short or have
 * ties. The last chunk of a parameter may be short. Ranges of encodings with a plane or a scale
 * begin at chunks. */
#include "kernels/cpu/encoded.h"

#include "base/checked.h"

#include <string.h>

/* One chunk of a part, or as much of it as the range covers. */
typedef struct part_chunk {
    const sherdi_encoded *part;
    void                 *data;
    unsigned char        *start; /* of the whole chunk */
    size_t                first; /* element of the block */
    size_t                count;
} part_chunk;

static part_chunk chunk_at(const sherdi_encoded *part, size_t first, size_t count)
{
    return (part_chunk){
        .part  = part,
        .data  = sherdi_encoded_at(part->data, part->encoding, first),
        .start = sherdi_encoded_at(part->data, part->encoding, first - first % SHERD_CHUNK_ELEMS),
        .first = first,
        .count = sherdi_min_size(count, SHERD_CHUNK_ELEMS - first % SHERD_CHUNK_ELEMS),
    };
}

/* Makes the random bits of a chunk's elements. The keys of consecutive indices are at equal
 * distances, up to the next multiple of 2^32. */
static void chunk_randoms(uint32_t *out, const sherdi_rounding *how, size_t at)
{
    uint64_t index = how->first_index + at;
    uint32_t key   = sherdi_mix_key(index);
    uint32_t step  = sherdi_mix_key(1);

    for (uint32_t i = 0; i < SHERD_CHUNK_ELEMS; i++) {
        out[i] = sherdi_random_bits(how->random, key + i * step);
    }
    for (uint32_t i = (uint32_t)0 - (uint32_t)index; i > 0 && i < SHERD_CHUNK_ELEMS; i++) {
        out[i] = sherdi_random_bits(how->random, sherdi_mix_key(index + i));
    }
}

/* ----------------------------------------------------------------- bf16 -- */

static void bf16_decode(float *out, const part_chunk *chunk)
{
    const uint16_t *x    = chunk->data;
    uint16_t        mask = chunk->part->has_ties ? 0x7fff : 0xffff;

    for (size_t i = 0; i < chunk->count; i++) {
        out[i] = sherdi_cast_bf16_f32(x[i] & mask);
    }
}

static void bf16_encode(const part_chunk *chunk, const float *x, const sherdi_rounding *how,
                        size_t at)
{
    uint16_t *out  = chunk->data;
    uint16_t  kept = chunk->part->has_ties ? 0x8000 : 0;
    uint32_t  random[SHERD_CHUNK_ELEMS];

    if (how->is_random) {
        chunk_randoms(random, how, at);
        for (size_t i = 0; i < chunk->count; i++) {
            out[i] =
                (uint16_t)((out[i] & kept) | (sherdi_bf16_encode_random(x[i], random[i]) & ~kept));
        }
    } else {
        for (size_t i = 0; i < chunk->count; i++) {
            out[i] = (uint16_t)((out[i] & kept) | (sherdi_bf16_encode(x[i]) & ~kept));
        }
    }
}

/* ------------------------------------------------------------------ f32 -- */

static void f32_decode(float *out, const part_chunk *chunk)
{
    const float *x    = chunk->data;
    uint32_t     mask = chunk->part->has_ties ? 0x7fffffffu : 0xffffffffu;

    for (size_t i = 0; i < chunk->count; i++) {
        out[i] = sherdi_f32_from_bits(sherdi_bits_f32(x[i]) & mask);
    }
}

static void f32_encode(const part_chunk *chunk, const float *x)
{
    float   *out  = chunk->data;
    uint32_t kept = chunk->part->has_ties ? 0x80000000u : 0;

    for (size_t i = 0; i < chunk->count; i++) {
        out[i] = sherdi_f32_from_bits((sherdi_bits_f32(out[i]) & kept) |
                                      (sherdi_bits_f32(x[i]) & ~kept));
    }
}

/* -------------------------------------------------------- split masters -- */

/* Where the ties of a chunk are stored. */
typedef struct chunk_ties {
    const part_chunk *chunk;
    uint64_t          plane; /* BESIDE_PLANE: a copy of the plane in memory */
} chunk_ties;

static void *plane_at(const part_chunk *chunk)
{
    return chunk->start + SHERDI_CHUNK_BF16_BYTES;
}

static int tie_get(const chunk_ties *ties, size_t i)
{
    const sherdi_encoded *part = ties->chunk->part;
    size_t                at   = ties->chunk->first + i;

    if (part->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        return (int)(ties->plane >> at % SHERD_CHUNK_ELEMS & 1);
    }
    return part->ties_encoding == SHERDI_ENCODING_BF16
               ? ((const uint16_t *)part->ties)[at] >> 15
               : (int)(((const uint32_t *)part->ties)[at] >> 31);
}

static void tie_set(chunk_ties *ties, size_t i, int is_up)
{
    const sherdi_encoded *part = ties->chunk->part;
    size_t                at   = ties->chunk->first + i;

    if (part->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        ties->plane |= (uint64_t)is_up << at % SHERD_CHUNK_ELEMS;
    } else if (part->ties_encoding == SHERDI_ENCODING_BF16) {
        uint16_t *word = (uint16_t *)part->ties + at;

        *word = (uint16_t)((*word & 0x7fffu) | (unsigned)is_up << 15);
    } else {
        uint32_t *word = (uint32_t *)part->ties + at;

        *word = (*word & 0x7fffffffu) | (uint32_t)is_up << 31;
    }
}

static unsigned rests_decode(float *out, const uint16_t *param, const int16_t *rest, size_t count)
{
    unsigned ties = 0;

    for (size_t i = 0; i < count; i++) {
        out[i] = sherdi_beside_decode(param[i], rest[i]);
        ties |= rest[i] == SHERDI_BESIDE_TIE;
    }
    return ties;
}

/* Corrects the masters at ties; one element in 2^16 is a tie. A caller that `takes` the master will
 * write it again, so the signs of the other part are cleared here. */
static void ties_decode(float *out, const part_chunk *chunk, int takes)
{
    const int16_t *rest = chunk->data;
    chunk_ties     ties = {.chunk = chunk};

    if (chunk->part->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        memcpy(&ties.plane, plane_at(chunk), sizeof(ties.plane));
    }
    for (size_t i = 0; i < chunk->count; i++) {
        if (rest[i] == SHERDI_BESIDE_TIE && tie_get(&ties, i)) {
            out[i] = sherdi_beside_up(out[i]);
            if (takes && chunk->part->encoding == SHERDI_ENCODING_BESIDE) {
                tie_set(&ties, i, 0);
            }
        }
    }
}

static void beside_decode(float *out, const part_chunk *chunk, int takes)
{
    const uint16_t *param = chunk->part->param + chunk->first;

    if (rests_decode(out, param, chunk->data, chunk->count) != 0) {
        ties_decode(out, chunk, takes);
    }
}

static unsigned rests_encode(uint16_t *param, int16_t *rest, const float *x, size_t count)
{
    unsigned ties = 0;

    for (size_t i = 0; i < count; i++) {
        sherdi_beside beside = sherdi_beside_encode(x[i]);

        param[i] = beside.param;
        rest[i]  = beside.rest;
        ties |= beside.rest == SHERDI_BESIDE_TIE;
    }
    return ties;
}

/* Sets or clears the bit of every element of the chunk, so no element keeps the bit of an old
 * tie. */
static void ties_encode(const part_chunk *chunk, const float *x)
{
    chunk_ties ties = {.chunk = chunk};

    for (size_t i = 0; i < chunk->count; i++) {
        tie_set(&ties, i, sherdi_beside_encode(x[i]).is_up);
    }
    if (chunk->part->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        memcpy(plane_at(chunk), &ties.plane, sizeof(ties.plane));
    }
}

/* were_taken: an update has cleared the ties in the signs of the other part when it read the
 * master. Other writes have not, so they set every bit anew. */
static void beside_encode(const part_chunk *chunk, const float *x, int were_taken)
{
    uint16_t *param = chunk->part->param + chunk->first;
    unsigned  ties  = rests_encode(param, chunk->data, x, chunk->count);

    if (ties != 0 || !were_taken || chunk->part->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        ties_encode(chunk, x);
    }
}

/* ------------------------------------------------------------------ fp8 -- */

static float *scale_at(const part_chunk *chunk)
{
    return (float *)(void *)(chunk->start + SHERD_CHUNK_ELEMS);
}

static void fp8_decode(float *out, const part_chunk *chunk)
{
    const uint8_t *codes = chunk->data;
    float          scale = *scale_at(chunk);

    if (chunk->part->encoding == SHERDI_ENCODING_UFP8) {
        for (size_t i = 0; i < chunk->count; i++) {
            out[i] = sherdi_ufp8_decode(codes[i], scale);
        }
    } else {
        for (size_t i = 0; i < chunk->count; i++) {
            out[i] = sherdi_fp8_decode(codes[i], scale);
        }
    }
}

static uint32_t magnitude_most(const float *x, size_t count)
{
    uint32_t most = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = sherdi_bits_f32(x[i]) & 0x7fffffffu;

        most = magnitude > most ? magnitude : most;
    }
    return most;
}

static void fp8_encode(const part_chunk *chunk, const float *x, const sherdi_rounding *how,
                       size_t at)
{
    uint8_t *codes                     = chunk->data;
    float    scale                     = sherdi_fp8_scale(magnitude_most(x, chunk->count));
    float    inverse                   = sherdi_fp8_inverse(scale);
    uint32_t random[SHERD_CHUNK_ELEMS] = {0};

    if (how->is_random) {
        chunk_randoms(random, how, at);
    }
    *scale_at(chunk) = scale;
    if (chunk->part->encoding == SHERDI_ENCODING_UFP8) {
        for (size_t i = 0; i < chunk->count; i++) {
            codes[i] = sherdi_ufp8_encode(x[i], inverse, random[i], how->is_random);
        }
    } else {
        for (size_t i = 0; i < chunk->count; i++) {
            codes[i] = sherdi_fp8_encode(x[i], inverse, random[i], how->is_random);
        }
    }
}

/* ---------------------------------------------------------------- parts -- */

void sherdi_part_decode(float *out, const sherdi_encoded *part, size_t first, size_t count,
                        int takes)
{
    for (size_t done = 0; done < count;) {
        part_chunk chunk = chunk_at(part, first + done, count - done);

        switch (part->encoding) {
        case SHERDI_ENCODING_BF16:
            bf16_decode(out + done, &chunk);
            break;
        case SHERDI_ENCODING_BESIDE:
        case SHERDI_ENCODING_BESIDE_PLANE:
            beside_decode(out + done, &chunk, takes);
            break;
        case SHERDI_ENCODING_FP8:
        case SHERDI_ENCODING_UFP8:
            fp8_decode(out + done, &chunk);
            break;
        default:
            f32_decode(out + done, &chunk);
            break;
        }
        done += chunk.count;
    }
}

void sherdi_part_encode(const sherdi_encoded *part, size_t first, size_t count, const float *x,
                        const sherdi_rounding *how)
{
    for (size_t done = 0; done < count;) {
        part_chunk chunk = chunk_at(part, first + done, count - done);

        switch (part->encoding) {
        case SHERDI_ENCODING_BF16:
            bf16_encode(&chunk, x + done, how, done);
            break;
        case SHERDI_ENCODING_BESIDE:
        case SHERDI_ENCODING_BESIDE_PLANE:
            beside_encode(&chunk, x + done, how->is_random);
            break;
        case SHERDI_ENCODING_FP8:
        case SHERDI_ENCODING_UFP8:
            fp8_encode(&chunk, x + done, how, done);
            break;
        default:
            f32_encode(&chunk, x + done);
            break;
        }
        done += chunk.count;
    }
}

void sherdi_encoded_read(float *dst, const sherdi_encoded *part, size_t first, size_t count_elems)
{
    sherdi_part_decode(dst, part, first, count_elems, 0);
}
