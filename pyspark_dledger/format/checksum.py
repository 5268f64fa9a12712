"""The CRC-32 of our own files: by the native engine if it is built, else by zlib, which is slower."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from pyspark_dledger.format.encode.encoded import Buffer

_crc32: Callable[[Buffer, int], int] = zlib.crc32
try:
    import pyspark_dledger._native as _native
except ImportError:
    pass
else:
    _crc32 = _native.crc32


def crc32(data: Buffer, before: int = 0) -> int:
    """CRC-32 of bytes, unsigned; `before` is the CRC of the bytes before these."""
    return _crc32(data, before)
