/* A 64-bit hash that compares models, plans and buffers between ranks. It is not for checksums on
 * disk, and gives no protection against an adversary. */
#ifndef SHERDI_BASE_HASH_H
#define SHERDI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t sherdi_mix64(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/** Adds `value` to `hash`; the order matters. */
static inline uint64_t sherdi_hash_u64(uint64_t hash, uint64_t value)
{
    return sherdi_mix64(hash * 0x9e3779b97f4a7c15u + value + 1);
}

static inline uint64_t sherdi_hash_bytes(uint64_t hash, const void *data, size_t len_bytes)
{
    const unsigned char *at   = data;
    size_t               left = len_bytes;
    uint64_t             word;

    for (; left >= sizeof(word); left -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        hash = sherdi_hash_u64(hash, word);
    }
    word = 0;
    if (left > 0) {
        memcpy(&word, at, left);
    }
    return sherdi_hash_u64(sherdi_hash_u64(hash, word), len_bytes);
}

#endif
