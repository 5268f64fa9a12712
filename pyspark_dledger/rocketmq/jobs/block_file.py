"""Files that are written from their start in blocks, each with a CRC-32, synced and read back from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, final

from pyspark_dledger.common.durable import drop_cached, open_own, write_at
from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.rocketmq.jobs.manifest import Count, Crc, RelativePath
from pyspark_dledger.rocketmq.jobs.target_folder import source_errors

BLOCK_BYTES = 4 << 20
"""Damage is located to a block."""


@dataclass(frozen=True)
class FileBlocks:
    """A file at ``path`` in a folder: its first ``size`` bytes, with the CRC-32 of each block of `BLOCK_BYTES`.

    The whole file has ``file_size`` bytes; the others are zeros.
    """

    path: RelativePath
    size: Count
    file_size: Count
    crc32: tuple[Crc, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that do not fit together."""
        if not self.size <= self.file_size <= INT32_MAX or len(self.crc32) != -(-self.size // BLOCK_BYTES):
            raise ValueError(f"{self.size} of {self.file_size} bytes with {len(self.crc32)} CRCs")

    def whole_blocks(self) -> FileBlocks:
        """The part of the file that is whole blocks."""
        blocks = self.size // BLOCK_BYTES
        return replace(self, size=blocks * BLOCK_BYTES, crc32=self.crc32[:blocks])


def read_blocks(file: BinaryIO, name: str, record: FileBlocks, first_block: int = 0) -> Iterator[bytes]:
    """The blocks of an open file from that one on.

    Raises StoreError for the first that does not match its CRC, UnreadableError for one that cannot be read.
    """
    file.seek(first_block * BLOCK_BYTES)
    for number in range(first_block, len(record.crc32)):
        start = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, record.size - start)
        with source_errors(name):
            data = file.read(size)
        found = crc32(data)
        if len(data) != size or found != record.crc32[number]:
            raise StoreError(
                f"{name} at byte {start} to {start + size - 1}: expected {size} bytes with CRC-32 "
                f"{record.crc32[number]:08x}, found {len(data)} with {found:08x}"
            )
        yield data


@final
class BlockFile:
    """A file that is being written. What is `kept` of it is not written again, and its last block is not checked.

    Raises OSError.
    """

    def __init__(self, file: Path, kept: FileBlocks | None = None) -> None:
        self._file = file
        self._whole = kept.whole_blocks() if kept is not None else None
        self._crcs = list(self._whole.crc32) if self._whole is not None else []
        self._crc, self.size = 0, self._whole.size if self._whole is not None else 0
        self._descriptor = open_own(file, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self._descriptor, kept.size if kept is not None else 0)
        if kept is not None:
            self._add(os.pread(self._descriptor, kept.size - self.size, self.size))

    def __enter__(self) -> BlockFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes to the file."""
        write_at(self._descriptor, data, self.size)
        self._add(data)

    def skip_to(self, offset: int) -> None:
        """Leave zeros up to an offset; they are a hole of the file."""
        while self.size < offset:
            self._add(bytes(min(BLOCK_BYTES, offset - self.size)))

    def _add(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            part = view[: BLOCK_BYTES - self.size % BLOCK_BYTES]
            self._crc = crc32(part, self._crc)
            self.size += len(part)
            if self.size % BLOCK_BYTES == 0:
                self._crcs.append(self._crc)
                self._crc = 0
            view = view[len(part) :]

    def finish(self, path: str, file_size: int, written_size: int | None = None) -> FileBlocks:
        """Sync the file and read back what was written. Raises StoreError if it differs.

        The record has the `path` and `file_size`; the file itself gets `written_size`, by default that of its content.
        """
        crcs = (*self._crcs, *([self._crc] if self.size % BLOCK_BYTES else ()))
        record = FileBlocks(path, self.size, file_size, crcs)
        os.ftruncate(self._descriptor, self.size if written_size is None else written_size)
        os.fsync(self._descriptor)
        drop_cached(self._descriptor)
        with self._file.open("rb") as file:
            for _ in read_blocks(file, str(self._file), record, len(self._whole.crc32) if self._whole else 0):
                pass
        return record


def write_blocks(file: Path, path: str, blocks: Iterable[bytes], file_size: int, *, is_full: bool) -> FileBlocks:
    """Write a file in blocks of any size, and read it back; with `is_full` it gets all of `file_size`."""
    with BlockFile(file) as written:
        for block in blocks:
            written.write(block)
        return written.finish(path, file_size, file_size if is_full else None)
