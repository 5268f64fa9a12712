"""The export form ``jsonl``: ``part-NNNNN.jsonl`` with the lines of ``dledger dump --json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_dledger.common.durable import sync_file
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.plan import read_once
from pyspark_dledger.rocketmq.export.forms import ExportSettings, Form, RowsPart
from pyspark_dledger.rocketmq.jobs.new_files import (
    ChecksumFile,
    DirectFile,
    file_report,
    read_back_error,
    written_ranges,
)
from pyspark_dledger.rocketmq.jobs.target_folder import FileReport, PartReport, new_file

if TYPE_CHECKING:
    from pyspark_dledger.log.store_view import StoreView

_ENDINGS = {"none": ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
# Stays in the processor's cache while its CRC is computed.
_BLOCK_BYTES = 512 * 1024


class JsonLinesForm(Form):
    """Writes JSON lines; a part is a partition of the read (maxPartitionBytes)."""

    name = "jsonl"

    def plan(self, log: StoreView, settings: ExportSettings) -> list[RowsPart]:
        return settings.parts(log, settings.names, ("problem",), "none")

    def write(self, part: RowsPart, number: int, target: Path) -> PartReport:
        """Write one file, which is empty if no row passes the filters; see `Form.write`."""
        path = f"part-{number:05d}{_ENDINGS[part.compression]}"
        lines = _Lines(part)
        with new_file(target, path) as temporary:
            write = _write_plain if part.compression == "none" else _write_compressed
            file = write(lines, temporary, path)
        return PartReport(number, file.rows, 0, (), (file,), part.partition.size, problems=lines.problems)


class _Lines:
    """Iterates over the lines of a part, in pieces; counts lines, bytes and problems."""

    def __init__(self, part: RowsPart) -> None:
        self.part = part
        self.count = self.size = self.problems = 0

    def __iter__(self) -> Iterator[bytes]:
        engine = get_engine(self.part.partition.engine)
        for batch in read_once(self.part.partition):
            self.problems += batch.num_rows - batch["problem"].null_count
            self.count += batch.num_rows
            text = b""
            for text in engine.json_lines(batch.select(self.part.columns), "base64"):
                self.size += len(text)
                yield text
            if text:
                json.loads(text[text.rfind(b"\n", 0, -1) + 1 :])


def _write_plain(lines: _Lines, file: Path, path: str) -> FileReport:
    """Write and sync a file, and read it back. Raises OSError, and StoreError if it differs."""
    with DirectFile(file) as direct:
        ranges = list(written_ranges(_appended(direct, lines)))
        direct.finish(lines.size)
        for _ in direct.read_back(path, ranges):
            pass
    return FileReport(path, lines.size, ranges[-1].crc if ranges else 0, lines.count)


def _appended(file: DirectFile, lines: _Lines) -> Iterator[tuple[memoryview, int]]:
    for text in lines:
        file.append(text)
        yield memoryview(text), 0


def _write_compressed(lines: _Lines, file: Path, path: str) -> FileReport:
    """As `_write_plain`; what is read back is decompressed, too."""
    compression, crc, found = lines.part.compression, 0, 0
    with ChecksumFile(file) as output, pa.CompressedOutputStream(pa.PythonFile(output, "w"), compression) as stream:
        for text in lines:
            crc = crc32(text, crc)
            stream.write(text)
        stream.close()
        written = f"lines with CRC-32 {crc:08x} in a file with CRC-32 {output.crc32:08x}"
    sync_file(file)
    try:
        with pa.input_stream(str(file), compression=compression) as stream:
            while block := stream.read(_BLOCK_BYTES):
                found = crc32(block, found)
    except (OSError, pa.ArrowException) as error:
        raise read_back_error(path, written, str(error)) from None
    report = file_report(file, path, lines.count)
    if (found, report.crc32) != (crc, output.crc32):
        raise read_back_error(path, written, f"lines with {found:08x} in a file with {report.crc32:08x}")
    return report
