"""The CRC-32 of bytes that stand one behind the other, from those of the pieces, which are faster to compute."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320
_BITS = 32

Matrix = tuple[int, ...]
"""What becomes of each bit of a CRC, from the lowest on, over the field of two elements."""


def joined_crc(pieces: Iterable[tuple[int, int]]) -> int:
    """The CRC-32 of pieces in a row, each given by its size in bytes and its own CRC-32."""
    crc = 0
    for size, piece in pieces:
        crc = _times(_behind(size), crc) ^ piece
    return crc


@lru_cache(maxsize=64)
def _behind(size: int) -> Matrix:
    """What so many zero bytes make of a CRC that stands before them."""
    done: Matrix = tuple(1 << bit for bit in range(_BITS))
    step = _ONE_BYTE
    while size:
        if size & 1:
            done = tuple(_times(step, row) for row in done)
        step = tuple(_times(step, row) for row in step)
        size >>= 1
    return done


def _times(matrix: Matrix, crc: int) -> int:
    result = 0
    for row in matrix:
        if crc & 1:
            result ^= row
        crc >>= 1
    return result


def _after_bits(crc: int, count: int) -> int:
    for _ in range(count):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_ONE_BYTE: Matrix = tuple(_after_bits(1 << bit, 8) for bit in range(_BITS))
