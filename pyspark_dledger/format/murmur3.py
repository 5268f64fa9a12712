"""MurmurHash3_x64_128 with the seed 0, by Austin Appleby's published algorithm; it is not cryptographic."""

from __future__ import annotations

import struct

_MASK = 2**64 - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")


def murmur128(data: bytes) -> bytes:
    """The 16 bytes of the hash, both halves little-endian."""
    length = len(data)
    h1 = h2 = 0
    whole = length - length % _BLOCK.size
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 = (_rotate(h1 ^ _mix1(k1), 27) + h2) * 5 + 0x52DCE729 & _MASK
        h2 = (_rotate(h2 ^ _mix2(k2), 31) + h1) * 5 + 0x38495AB5 & _MASK
    k1, k2 = _BLOCK.unpack(data[whole:].ljust(_BLOCK.size, b"\0"))
    h1 ^= _mix1(k1) ^ length
    h2 ^= _mix2(k2) ^ length
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _finish(h1), _finish(h2)
    h1 = h1 + h2 & _MASK
    return _BLOCK.pack(h1, h2 + h1 & _MASK)


def murmur128_halves(data: bytes) -> bytes:
    """The hashes of both halves, cut at a multiple of 16 bytes; a processor computes them in parallel."""
    half = len(data) // (2 * _BLOCK.size) * _BLOCK.size
    return murmur128(data[:half]) + murmur128(data[half:])


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _mix1(value: int) -> int:
    return _rotate(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(value: int) -> int:
    return _rotate(value * _C2 & _MASK, 33) * _C1 & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
