"""The form ``jsonl``: ``part-NNNNN.jsonl``, a JSON object a line, as ``dledger dump --json`` prints the rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.durable import sync_file
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.log.plan import Partition, read_partition
from pyspark_dledger.rocketmq.export.forms import (
    ExportSettings,
    FileReport,
    FinishReport,
    PartReport,
    SummedFile,
    file_report,
    new_file,
    problems_of,
)
from pyspark_dledger.rocketmq.export.ranges import partitions_of

if TYPE_CHECKING:
    from pyspark_dledger.log import Log

_ENDINGS = {"none": ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
_BLOCK = 1024 * 1024


@dataclass(frozen=True)
class JsonLinesPart:
    """A partition of the log, the columns of its file, and how that is compressed."""

    partition: Partition
    columns: tuple[str, ...]
    compression: str


class JsonLinesForm:
    """See the module."""

    name = "jsonl"

    def plan(self, log: Log, settings: ExportSettings) -> list[JsonLinesPart]:
        """A part is a partition of the read (maxPartitionBytes)."""
        compression = settings.compression or "none"
        columns = settings.names
        partitions = partitions_of(log, settings, tuple(dict.fromkeys((*columns, "problem"))))
        return [JsonLinesPart(partition, columns, compression) for partition in partitions]

    def write(self, part: JsonLinesPart, number: int, target: Path) -> PartReport:
        """One file, empty where no row passes; see `Form.write`."""
        path = f"part-{number:05d}{_ENDINGS[part.compression]}"
        with new_file(target, path) as temporary:
            written, problems = _write(part, temporary)
            sync_file(temporary)
            size, found = _read_back(temporary, path, part.compression)
            if found != written:
                raise _differs(path, f"{found}, not {written}")
        file = FileReport(path, size, found.file_crc32, found.lines)
        return PartReport(number, found.lines, 0, (), (file,), part.partition.size, problems=problems)

    def finish(
        self, _log: Log, _settings: ExportSettings, _target: Path, _reports: Sequence[PartReport]
    ) -> FinishReport:
        """Nothing is left to do."""
        return FinishReport()


class _Sums(NamedTuple):
    """What a file holds: how many lines, their CRC-32, and the CRC-32 of the file's bytes, which may be compressed."""

    lines: int
    crc32: int
    file_crc32: int

    def __str__(self) -> str:
        """As errors name it."""
        return f"{self.lines} lines with CRC-32 {self.crc32}, in a file with CRC-32 {self.file_crc32}"


def _write(part: JsonLinesPart, file: Path) -> tuple[_Sums, int]:
    """The lines of a part to a file; how many of them have a problem, besides. Raises OSError."""
    count = crc = problems = 0
    is_plain = part.compression == "none"
    engine = get_engine(part.partition.engine)
    with SummedFile(file) as summed, _compressed(summed, part.compression) as stream:
        for batch in read_partition(part.partition):
            problems += problems_of(batch)
            count += batch.num_rows
            lines = b""
            for lines in engine.json_lines(batch.select(part.columns), "base64"):
                stream.write(lines)
                crc = 0 if is_plain else crc32(lines, crc)
            if lines:
                json.loads(lines[lines.rfind(b"\n", 0, -1) + 1 :])
        stream.close()
        return _Sums(count, summed.crc32 if is_plain else crc, summed.crc32), problems


def _compressed(file: SummedFile, compression: str) -> Any:
    """A file to write to, which compresses what it is given."""
    stream = pa.PythonFile(file, "w")
    return stream if compression == "none" else pa.CompressedOutputStream(stream, compression)


def _read_back(file: Path, path: str, compression: str) -> tuple[int, _Sums]:
    """The size of a file, and what it holds. Raises StoreError where it cannot be decompressed."""
    lines = crc = 0
    is_plain = compression == "none"
    try:
        with pa.input_stream(str(file), compression=None if is_plain else compression) as stream:
            while block := stream.read(_BLOCK):
                lines += block.count(b"\n")
                crc = crc32(block, crc)
    except (OSError, pa.ArrowException) as error:
        raise _differs(path, str(error)) from None
    return file.stat().st_size, _Sums(lines, crc, crc if is_plain else file_report(file, path, lines).crc32)


def _differs(path: str, found: str) -> StoreError:
    return StoreError(
        f"{path}: expected the lines that were written when the file was read back, found {found}: check the disk and "
        "the memory of this machine, and export again"
    )
