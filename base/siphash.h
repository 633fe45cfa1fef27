/* SipHash-2-4 (Aumasson, Bernstein 2012): a keyed hash of 64 bits. Without the key nobody can
 * compute the hash of a text of his choice, so a hash proves to another holder of the key that its
 * sender has the key. It encrypts nothing, and has only 64 bits. */
#ifndef SHERDI_BASE_SIPHASH_H
#define SHERDI_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t sherdi_sip_rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sherdi_sip_rounds(uint64_t v[4], int rounds)
{
    for (int i = 0; i < rounds; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = sherdi_sip_rotate(v[1], 13) ^ v[0];
        v[3] = sherdi_sip_rotate(v[3], 16) ^ v[2];
        v[0] = sherdi_sip_rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = sherdi_sip_rotate(v[1], 17) ^ v[2];
        v[3] = sherdi_sip_rotate(v[3], 21) ^ v[0];
        v[2] = sherdi_sip_rotate(v[2], 32);
    }
}

/** Words are little-endian. The last word is padded with zeros and has the length modulo 256 in its
 *  top byte. */
static inline uint64_t sherdi_siphash(const uint64_t key[2], const void *data, size_t len_bytes)
{
    const unsigned char *bytes = data;
    uint64_t             v[4]  = {
                     key[0] ^ 0x736f6d6570736575u,
                     key[1] ^ 0x646f72616e646f6du,
                     key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u,
    };

    for (size_t word = 0; word <= len_bytes / 8; word++) {
        uint64_t m = word == len_bytes / 8 ? (uint64_t)len_bytes << 56 : 0;

        for (size_t i = 0; i < 8 && word * 8 + i < len_bytes; i++) {
            m |= (uint64_t)bytes[word * 8 + i] << 8 * i;
        }
        v[3] ^= m;
        sherdi_sip_rounds(v, 2);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    sherdi_sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
