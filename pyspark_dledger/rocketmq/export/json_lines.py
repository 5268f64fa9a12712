"""The form ``jsonl``: ``part-NNNNN.jsonl``, a JSON object a line, as ``dledger dump --json`` prints the rows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.columns import DEFAULT_NAMES, ENTRY_BODY
from pyspark_dledger.format.json_text import base64_text, json_lines
from pyspark_dledger.log.plan import Partition, read_partition
from pyspark_dledger.rocketmq.export.forms import (
    ExportSettings,
    FinishReport,
    PartReport,
    SummedFile,
    file_report,
    new_file,
    sync_file,
)
from pyspark_dledger.rocketmq.export.ranges import partitions_of
from pyspark_dledger.rocketmq.runs import Run

if TYPE_CHECKING:
    from pyspark_dledger.log import Log

_ENDINGS = {"none": ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
_BLOCK = 1024 * 1024


@dataclass(frozen=True)
class JsonLinesPart:
    """A partition of the log, the columns of a line, and how the file is compressed."""

    partition: Partition
    columns: tuple[str, ...]
    compression: str


class JsonLinesForm:
    """See the module."""

    name = "jsonl"

    def plan(self, log: Log, settings: ExportSettings) -> list[JsonLinesPart]:
        """A part is a partition of the read (maxPartitionBytes)."""
        wanted = settings.columns or DEFAULT_NAMES
        if settings.options.include_entry_body:
            wanted = (*wanted, ENTRY_BODY.name)
        columns = tuple(dict.fromkeys(wanted))
        partitions = partitions_of(log, settings, columns)
        return [JsonLinesPart(partition, columns, settings.compression or "none") for partition in partitions]

    def write(self, part: JsonLinesPart, number: int, target: Path) -> PartReport:
        """One file, empty where no row passes; see `Form.write`."""
        path = f"part-{number:05d}{_ENDINGS[part.compression]}"
        with new_file(target, path) as temporary:
            written, lines, crc = _write(part, temporary)
            sync_file(temporary)
            file = file_report(temporary, path, lines)
            if file.crc32 != written:
                raise _differs(path, f"CRC-32 {file.crc32}, not {written}")
            _verify(temporary, path, part.compression, lines, crc)
        return PartReport(number, lines, 0, (), (file,), part.partition.size)

    def finish(
        self, _log: Log, _settings: ExportSettings, _target: Path, _reports: Sequence[PartReport], _run: Run
    ) -> FinishReport:
        """Nothing is left to do."""
        return FinishReport()


def _write(part: JsonLinesPart, file: Path) -> tuple[int, int, int]:
    """The lines of a part to a file: the CRC-32 of its bytes, how many lines, and the CRC-32 of those."""
    count = crc = 0
    with SummedFile(file) as summed, _compressed(summed, part.compression) as stream:
        for batch in read_partition(part.partition):
            for lines in json_lines(batch, base64_text, "\n"):
                data = lines.buffers()[2]
                json.loads(lines[-1].as_py())
                stream.write(data)
                crc = zlib.crc32(data, crc)
                count += len(lines)
        stream.close()
        return summed.crc32, count, crc


def _compressed(file: SummedFile, compression: str) -> Any:
    """A file to write to, which compresses what it is given."""
    stream = pa.PythonFile(file, "w")
    return stream if compression == "none" else pa.CompressedOutputStream(stream, compression)


def _verify(file: Path, path: str, compression: str, lines: int, crc: int) -> None:
    """Raises StoreError where the file holds other lines than were written."""
    found = found_crc = 0
    last = b"\n"
    try:
        with pa.input_stream(str(file), compression=None if compression == "none" else compression) as stream:
            while block := stream.read(_BLOCK):
                found += block.count(b"\n{") + (last == b"\n" and block.startswith(b"{"))
                found_crc = zlib.crc32(block, found_crc)
                last = block[-1:]
    except (OSError, pa.ArrowException) as error:
        raise _differs(path, str(error)) from None
    if (found, last) != (lines, b"\n"):
        raise _differs(path, f"{found} lines that begin an object, not {lines}, and {last!r} at the end")
    if found_crc != crc:
        raise _differs(path, f"CRC-32 {found_crc}, not {crc}")


def _differs(path: str, found: str) -> StoreError:
    return StoreError(
        f"{path}: expected the lines that were written when the file was read back, found {found}: check the disk and "
        "the memory of this machine, and export again"
    )
