"""The export form ``jsonl``: ``part-NNNNN.jsonl`` with the lines of ``dledger dump --json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_dledger.common.durable import sync_file
from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.plan import Partition, read_once
from pyspark_dledger.rocketmq.export.forms import ExportSettings, Form
from pyspark_dledger.rocketmq.export.log_range import partitions_of
from pyspark_dledger.rocketmq.jobs.manifest import FileReport, PartReport
from pyspark_dledger.rocketmq.jobs.new_files import ChecksumFile, DirectFile, file_report, read_back_error
from pyspark_dledger.rocketmq.jobs.target_folder import new_file

if TYPE_CHECKING:
    from pyspark_dledger.log.store_view import StoreView

_ENDINGS = {"none": ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
# Stays in the processor's cache while its lines are counted and its CRC computed.
_BLOCK_BYTES = 512 * 1024
_WINDOW_BYTES = 16 * 1024 * 1024
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class JsonLinesPart:
    """A partition of the log, the columns of its file, and its compression."""

    partition: Partition
    columns: tuple[str, ...]
    compression: str


class JsonLinesForm(Form):
    """Writes JSON lines; a part is a partition of the read (maxPartitionBytes)."""

    name = "jsonl"

    def plan(self, log: StoreView, settings: ExportSettings) -> list[JsonLinesPart]:
        compression = settings.compression or "none"
        columns = settings.names
        partitions = partitions_of(log, settings, tuple(dict.fromkeys((*columns, "problem"))))
        return [JsonLinesPart(partition, columns, compression) for partition in partitions]

    def write(self, part: JsonLinesPart, number: int, target: Path) -> PartReport:
        """Write one file, which is empty if no row passes the filters; see `Form.write`."""
        path = f"part-{number:05d}{_ENDINGS[part.compression]}"
        lines = _Lines(part)
        with new_file(target, path) as temporary:
            if part.compression == "none":
                written, found = _write_plain(lines, temporary)
            else:
                written, found = _write_compressed(lines, temporary, path)
            if found != written:
                raise read_back_error(path, str(written), str(found))
            size = temporary.stat().st_size
        file = FileReport(path, size, found.file_crc32, found.lines)
        return PartReport(number, found.lines, 0, (), (file,), part.partition.size, problems=lines.problems)


class _Checksums(NamedTuple):
    """The number of lines of a file, their CRC-32, and the CRC-32 of the file's bytes, which may be compressed."""

    lines: int
    crc32: int
    file_crc32: int

    def __str__(self) -> str:
        return f"{self.lines} lines with CRC-32 {self.crc32:08x} in a file with CRC-32 {self.file_crc32:08x}"


class _Lines:
    """Iterates over the lines of a part, in pieces; counts lines, bytes and problems, and computes their CRC-32."""

    def __init__(self, part: JsonLinesPart) -> None:
        self.part = part
        self.count = self.size = self.crc32 = self.problems = 0

    def __iter__(self) -> Iterator[bytes]:
        engine = get_engine(self.part.partition.engine)
        for batch in read_once(self.part.partition):
            self.problems += batch.num_rows - batch["problem"].null_count
            self.count += batch.num_rows
            text = b""
            for text in engine.json_lines(batch.select(self.part.columns), "base64"):
                self.size += len(text)
                self.crc32 = crc32(text, self.crc32)
                yield text
            if text:
                json.loads(text[text.rfind(b"\n", 0, -1) + 1 :])


def _write_plain(lines: _Lines, file: Path) -> tuple[_Checksums, _Checksums]:
    """Write and sync a file, and read it back. Returns the checksums as written and as read. Raises OSError."""
    with DirectFile(file) as direct:
        for text in lines:
            direct.append(text)
        direct.finish(lines.size)
        count, crc = _count_lines(_blocks(direct, lines.size))
    return _Checksums(lines.count, lines.crc32, lines.crc32), _Checksums(count, crc, crc)


def _blocks(file: DirectFile, size: int) -> Iterator[memoryview]:
    """The first `size` bytes of a file, as they are read back."""
    ranges = [(start, min(start + _WINDOW_BYTES, size)) for start in range(0, size, _WINDOW_BYTES)]
    for (start, end), window in zip(ranges, file.read(ranges), strict=True):
        data = window.data(start, end)
        for at in range(0, len(data), _BLOCK_BYTES):
            yield data[at : at + _BLOCK_BYTES]


def _write_compressed(lines: _Lines, file: Path, path: str) -> tuple[_Checksums, _Checksums]:
    """As `_write_plain`. Raises OSError, and StoreError if the file cannot be decompressed."""
    compression = lines.part.compression
    with ChecksumFile(file) as output, pa.CompressedOutputStream(pa.PythonFile(output, "w"), compression) as stream:
        for text in lines:
            stream.write(text)
        stream.close()
        written = _Checksums(lines.count, lines.crc32, output.crc32)
    sync_file(file)
    try:
        with pa.input_stream(str(file), compression=compression) as stream:
            count, crc = _count_lines(iter(partial(stream.read, _BLOCK_BYTES), b""))
    except (OSError, pa.ArrowException) as error:
        raise read_back_error(path, str(written), str(error)) from None
    return written, _Checksums(count, crc, file_report(file, path, count).crc32)


def _count_lines(blocks: Iterable[Buffer]) -> tuple[int, int]:
    """The number of lines in blocks of text, and the CRC-32 of the text."""
    count = crc = 0
    for block in blocks:
        # Several times faster than `bytes.count`.
        count += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))
        crc = crc32(block, crc)
    return count, crc
