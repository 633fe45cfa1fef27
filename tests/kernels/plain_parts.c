#include "tests/kernels/plain_parts.h"

#include <math.h>
#include <string.h>

void every_backend(void (*body)(const sherdi_backend *tested))
{
    static const char *const ISAS[]    = {"scalar", "avx2", "avx512"};
    static const int         THREADS[] = {1, 3};

    for (size_t i = 0; i < sizeof(ISAS) / sizeof(ISAS[0]); i++) {
        for (size_t t = 0; t < sizeof(THREADS) / sizeof(THREADS[0]); t++) {
            sherdi_backend tested = backend_make(ISAS[i], THREADS[t]);

            if (tested.kernels != NULL) {
                body(&tested);
            }
            backend_destroy(&tested);
        }
    }
}

part_array part_make(sherdi_encoding encoding, size_t block_elems)
{
    size_t     chunks = (block_elems + SHERD_CHUNK_ELEMS - 1) / SHERD_CHUNK_ELEMS;
    part_array array  = {
         .bytes = guarded_make(SHERD_BF16, chunks * sherdi_encoding_chunk_bytes(encoding) / 2, 0)};

    memset(array.bytes.first, 0, chunks * sherdi_encoding_chunk_bytes(encoding));
    array.part = (sherdi_encoded){.encoding = encoding, .data = array.bytes.first};
    return array;
}

static float plain_scale(const sherdi_encoded *part, size_t chunk)
{
    float scale;

    memcpy(&scale, (unsigned char *)part->data + chunk * SHERDI_CHUNK_FP8_BYTES + SHERD_CHUNK_ELEMS,
           sizeof(scale));
    return scale;
}

static uint64_t plain_plane(const sherdi_encoded *part, size_t chunk)
{
    uint64_t plane;

    memcpy(&plane,
           (unsigned char *)part->data + chunk * SHERDI_CHUNK_PLANE_BYTES + SHERDI_CHUNK_BF16_BYTES,
           sizeof(plane));
    return plane;
}

static int plain_tie(const sherdi_encoded *part, size_t i)
{
    if (part->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        return (int)(plain_plane(part, i / SHERD_CHUNK_ELEMS) >> i % SHERD_CHUNK_ELEMS & 1);
    }
    return part->ties_encoding == SHERDI_ENCODING_BF16 ? ((const uint16_t *)part->ties)[i] >> 15
                                                       : signbit(((const float *)part->ties)[i]);
}

float plain_get(const sherdi_encoded *part, size_t i)
{
    const void *at    = sherdi_encoded_at(part->data, part->encoding, i);
    float       value = 0;
    int16_t     rest;

    switch (part->encoding) {
    case SHERDI_ENCODING_BF16:
        value = sherdi_cast_bf16_f32(*(const uint16_t *)at);
        return part->has_ties ? fabsf(value) : value;
    case SHERDI_ENCODING_BESIDE:
    case SHERDI_ENCODING_BESIDE_PLANE:
        rest  = *(const int16_t *)at;
        value = sherdi_beside_decode(part->param[i], rest);
        return rest == SHERDI_BESIDE_TIE && plain_tie(part, i) ? sherdi_beside_up(value) : value;
    case SHERDI_ENCODING_FP8:
        return sherdi_fp8_decode(*(const uint8_t *)at, plain_scale(part, i / SHERD_CHUNK_ELEMS));
    case SHERDI_ENCODING_UFP8:
        return sherdi_ufp8_decode(*(const uint8_t *)at, plain_scale(part, i / SHERD_CHUNK_ELEMS));
    default:
        memcpy(&value, at, sizeof(value));
        return part->has_ties ? fabsf(value) : value;
    }
}

/* One element; of FP8 the chunk's scale is there already. */
static void plain_set(const sherdi_encoded *part, size_t i, float x, uint32_t random, int is_random)
{
    void         *at = sherdi_encoded_at(part->data, part->encoding, i);
    sherdi_beside beside;

    switch (part->encoding) {
    case SHERDI_ENCODING_BF16:
        *(uint16_t *)at = is_random ? sherdi_bf16_encode_random(x, random) : sherdi_bf16_encode(x);
        break;
    case SHERDI_ENCODING_BESIDE:
    case SHERDI_ENCODING_BESIDE_PLANE:
        beside         = sherdi_beside_encode(x);
        part->param[i] = beside.param;
        *(int16_t *)at = beside.rest;
        if (part->encoding == SHERDI_ENCODING_BESIDE_PLANE) {
            size_t         chunk = i / SHERD_CHUNK_ELEMS;
            uint64_t       bit   = (uint64_t)1 << i % SHERD_CHUNK_ELEMS;
            uint64_t       plane = plain_plane(part, chunk);
            unsigned char *to    = (unsigned char *)part->data + chunk * SHERDI_CHUNK_PLANE_BYTES +
                                SHERDI_CHUNK_BF16_BYTES;

            plane = beside.is_up ? plane | bit : plane & ~bit;
            memcpy(to, &plane, sizeof(plane));
        } else if (part->ties_encoding == SHERDI_ENCODING_BF16) {
            uint16_t *word = (uint16_t *)part->ties + i;

            *word = (uint16_t)((*word & 0x7fff) | beside.is_up << 15);
        } else {
            float *v = (float *)part->ties + i;

            *v = copysignf(*v, beside.is_up ? -1.0f : 1.0f);
        }
        break;
    case SHERDI_ENCODING_FP8:
        *(uint8_t *)at = sherdi_fp8_encode(
            x, sherdi_fp8_inverse(plain_scale(part, i / SHERD_CHUNK_ELEMS)), random, is_random);
        break;
    case SHERDI_ENCODING_UFP8:
        *(uint8_t *)at = sherdi_ufp8_encode(
            x, sherdi_fp8_inverse(plain_scale(part, i / SHERD_CHUNK_ELEMS)), random, is_random);
        break;
    default:
        memcpy(at, &x, sizeof(x));
        break;
    }
}

static void plain_scale_set(const sherdi_encoded *part, size_t first, const float *x, size_t count)
{
    uint32_t most = 0;
    float    scale;

    if (part->encoding != SHERDI_ENCODING_FP8 && part->encoding != SHERDI_ENCODING_UFP8) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = sherdi_bits_f32(x[i]) & 0x7fffffffu;

        most = bits > most ? bits : most;
    }
    scale = sherdi_fp8_scale(most);
    memcpy((unsigned char *)part->data + first / SHERD_CHUNK_ELEMS * SHERDI_CHUNK_FP8_BYTES +
               SHERD_CHUNK_ELEMS,
           &scale, sizeof(scale));
}

void plain_encode(const sherdi_encoded *part, size_t first, const float *x, size_t count,
                  const sherdi_random *random, uint64_t index)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = random == NULL ? 0 : sherdi_random_bits(*random, sherdi_mix_key(index + i));

        if (i % SHERD_CHUNK_ELEMS == 0) {
            size_t left = count - i;

            plain_scale_set(part, first + i, x + i,
                            left < SHERD_CHUNK_ELEMS ? left : SHERD_CHUNK_ELEMS);
        }
        plain_set(part, first + i, x[i], bits, random != NULL);
    }
}
