"""The checksum of checkpoint files: XXH3, 64 bits, seed 0, for programs that read a few of their bytes without an engine.

It is written after the algorithm's definition by Yann Collet (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). The library computes
the same sums a thousand times faster; this is for the extents of a blob alone, which are a MiB at most.
"""
from __future__ import annotations

import struct

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
M32, M64 = (1 << 32) - 1, (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
BEGIN = (P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0])
STRIPE, BLOCK = 64, 1024  # bytes; the accumulators are scrambled after each block
KEYS = [struct.unpack_from("<8Q", SECRET, 8 * n) for n in range(BLOCK // STRIPE)]  # of the stripes of a block
SCRAMBLE, LAST = struct.unpack_from("<8Q", SECRET, 128), struct.unpack_from("<8Q", SECRET, 121)


def xxh3(data: bytes) -> int:
    """Returns the checksum of `data`, a number of 64 bits."""
    if len(data) > 240:
        return _long(data)
    if len(data) > 16:
        return _middle(data)
    return _short(data)


def _read(data: bytes, at: int, count: int = 8) -> int:
    return int.from_bytes(data[at: at + count], "little")


def _fold(a: int, b: int) -> int:
    """Returns both halves of the product of 128 bits, by exclusive or."""
    product = a * b
    return product & M64 ^ product >> 64


def _avalanche(value: int) -> int:
    value = (value ^ value >> 37) * 0x165667919E3779F9 & M64
    return value ^ value >> 32


def _avalanche_xxh64(value: int) -> int:
    value = (value ^ value >> 33) * P64[1] & M64
    value = (value ^ value >> 29) * P64[2] & M64
    return value ^ value >> 32


def _short(data: bytes) -> int:
    """The checksum of 0 to 16 bytes."""
    size = len(data)
    if size > 8:
        low = _read(data, 0) ^ _read(SECRET, 24) ^ _read(SECRET, 32)
        high = _read(data, size - 8) ^ _read(SECRET, 40) ^ _read(SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high) & M64)
    if size > 3:
        value = _read(data, size - 4, 4) + (_read(data, 0, 4) << 32) ^ _read(SECRET, 8) ^ _read(SECRET, 16)
        value ^= (value << 49 | value >> 15) & M64 ^ (value << 24 | value >> 40) & M64
        value = value * 0x9FB21C651E98DF25 & M64
        value = (value ^ (value >> 35) + size) * 0x9FB21C651E98DF25 & M64
        return value ^ value >> 28
    if size:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return _avalanche_xxh64(combined ^ _read(SECRET, 0, 4) ^ _read(SECRET, 4, 4))
    return _avalanche_xxh64(_read(SECRET, 56) ^ _read(SECRET, 64))


def _mix(data: bytes, at: int, key: int) -> int:
    """Mixes 16 bytes of the data with 16 of the secret."""
    return _fold(_read(data, at) ^ _read(SECRET, key), _read(data, at + 8) ^ _read(SECRET, key + 8))


def _middle(data: bytes) -> int:
    """The checksum of 17 to 240 bytes."""
    size = len(data)
    value = size * P64[0]
    if size <= 128:
        for n in range((size - 1) // 32 + 1):
            value += _mix(data, 16 * n, 32 * n) + _mix(data, size - 16 * (n + 1), 32 * n + 16)
        return _avalanche(value & M64)
    value = _avalanche(value + sum(_mix(data, 16 * n, 16 * n) for n in range(8)) & M64)
    value += sum(_mix(data, 16 * n, 16 * (n - 8) + 3) for n in range(8, size // 16))
    return _avalanche(value + _mix(data, size - 16, 119) & M64)


def _accumulate(sums: list[int], stripe: tuple[int, ...], keys: tuple[int, ...]) -> None:
    for n in range(8):
        keyed = stripe[n] ^ keys[n]
        sums[n ^ 1] += stripe[n]
        sums[n] += (keyed & M32) * (keyed >> 32)


def _long(data: bytes) -> int:
    """The checksum of more than 240 bytes. The sums are kept to 64 bits once in each block."""
    sums, whole = list(BEGIN), (len(data) - 1) // BLOCK
    for block in range(whole + 1):
        begin = block * BLOCK
        count = BLOCK // STRIPE if block < whole else (len(data) - 1 - begin) // STRIPE
        for n in range(count):
            _accumulate(sums, struct.unpack_from("<8Q", data, begin + n * STRIPE), KEYS[n])
        sums = [value & M64 for value in sums]
        if block < whole:
            sums = [(value ^ value >> 47 ^ key) * P32[0] & M64 for value, key in zip(sums, SCRAMBLE)]
    _accumulate(sums, struct.unpack_from("<8Q", data, len(data) - STRIPE), LAST)
    keyed = [value & M64 ^ key for value, key in zip(sums, struct.unpack_from("<8Q", SECRET, 11))]
    merged = len(data) * P64[0] + sum(_fold(keyed[n], keyed[n + 1]) for n in range(0, 8, 2))
    return _avalanche(merged & M64)
