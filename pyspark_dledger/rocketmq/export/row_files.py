"""The export forms whose files have rows of the log table: ``parquet`` and ``jsonl``.

Parquet files are ``topic=NAME/day=YYYY-MM-DD/part-NNNNN.parquet``, the partitions of Spark and Hive. The day is that of
storeTimestamp, in UTC. Rows without a topic (such as noop and corrupt ones) or without a day are in the partition for
null. As with Spark, the files do not contain the topic. With ``flat`` there are no partitions: ``part-NNNNN.parquet``
contains the topic, too. ``part-NNNNN.jsonl`` has the lines of ``dledger dump --json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_dledger.common.durable import sync_file
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import MalformedError, OptionError, StoreError
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.json_text import NOT_PRINTABLE
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.plan import WIDE_COLUMNS, read_partition
from pyspark_dledger.rocketmq.export.forms import MAX_SKIPPED, ExportSettings, FinishReport, Form, RowsPart
from pyspark_dledger.rocketmq.jobs.new_files import (
    ChecksumFile,
    DirectFile,
    file_report,
    read_back_error,
    written_ranges,
)
from pyspark_dledger.rocketmq.jobs.target_folder import (
    PARQUET_MANIFEST,
    FileReport,
    PartReport,
    new_file,
    write_parquet_manifest,
)

if TYPE_CHECKING:
    from pyspark_dledger.log.store_view import StoreView


NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"

# Spark's ExternalCatalogUtils.charToEscape, NUL, which no file name can contain, and what changes a terminal's text.
_ESCAPED = re.compile(r"""["#%'*/:=?\\{\[\]^]|""" + NOT_PRINTABLE.pattern)
# Spark reads an escape as one character, and others as a byte of UTF-8: they differ above ASCII.
_ABOVE_ASCII = re.compile("%[89A-F]")
MAX_NAME_BYTES = 255
"""Of a folder's name."""
# Rows buffered for all files, and for a row group of one file.
_MAX_BUFFERED_BYTES = 256 * 1024 * 1024
_ROW_GROUP_BYTES = 32 * 1024 * 1024
_MAX_OPEN_FILES = 64
# Files that are synced and read back meanwhile.
_MAX_CLOSING_FILES = 8
# Columns with few distinct values, which a dictionary makes smaller.
_REPEATED = (
    *("kind", "source", "term", "magic", "channel", "chainCrc", "bodyCrc", "committed", "problem", "segment"),
    *("queueId", "messageMagic", "flag", "sysFlag", "reconsumeTimes", "bornHost", "storeHost"),
    *("preparedTransactionOffset", "transaction", "compression", "tags", "properties.key_value.key"),
)
_NEEDED = ("pos", "index", "topic", "storeTimestamp", "problem")


class ParquetForm(Form):
    """Writes Parquet files; a part is a partition of the read (maxPartitionBytes)."""

    name = "parquet"

    def plan(self, log: StoreView, settings: ExportSettings) -> list[RowsPart]:
        """The parts. Raises OptionError if there is no column but topic."""
        columns = _columns(settings)
        if not columns:
            raise OptionError("option columns: expected another column than topic, which is in the names of folders")
        return settings.parts(log, columns, _NEEDED, "zstd")

    def write(self, part: RowsPart, number: int, target: Path) -> PartReport:
        """Write one or more files for each topic and day; see `Form.write`."""
        writer = _PartWriter(part, number, target)
        try:
            for batch in read_partition(part.partition, is_once=True):
                writer.add(batch)
            files = writer.finish()
        except BaseException:
            writer.discard()
            raise
        skipped = (writer.skipped, tuple(writer.first_skipped))
        return PartReport(number, files, part.partition.size, *skipped, problems=writer.problems)

    def finish(
        self, _log: StoreView, _settings: ExportSettings, _target: Path, reports: Sequence[PartReport]
    ) -> FinishReport:
        """Only notes the rows that are read back with another topic."""
        files = [file for report in reports for file in report.files]
        null_topic = f"topic={NULL_PARTITION}/"
        empty = sum(file.rows for file in files if file.path.startswith(null_topic))
        rows = counted(empty, "row is", "rows are")
        note = f"without a topic, or with an empty one, {rows} in the partition {NULL_PARTITION}, which is read as null"
        notes = [note] if empty else []
        if invisible := sum(file.rows for file in files if _ABOVE_ASCII.search(file.path)):
            rows = counted(invisible, "row has", "rows have")
            notes.append(f"{rows} a topic with invisible characters, which Spark reads as others: use option flat")
        return FinishReport(notes=tuple(notes))

    def seal(
        self, settings: ExportSettings, target: Path, reports: Sequence[PartReport], manifest: dict[str, Any]
    ) -> bool:
        """Write the manifest as a Parquet file without rows, which has the columns of the partition if it has none."""
        schema = arrow_schema(_columns(settings))
        first = next((file.path for report in reports for file in report.files), None)
        if first is None and not settings.flat:
            schema = schema.append(pa.field("topic", pa.string())).append(pa.field("day", pa.date32()))
        path = PARQUET_MANIFEST if first is None else str(Path(first).with_name(PARQUET_MANIFEST))
        with new_file(target, path) as file:
            write_parquet_manifest(file, schema, manifest)
        return True


def _columns(settings: ExportSettings) -> tuple[str, ...]:
    """The columns of the files: the topic is in the names of their folders, if there are any."""
    return tuple(name for name in settings.names if settings.flat or name != "topic")


def folder_of(topic: str | None, day: str | None) -> str:
    """The folder of a topic and a day, named as by Spark: ``topic=a%3Ab/day=2026-07-21``."""
    return f"topic={_escaped(topic)}/day={_escaped(day)}"


def _escaped(value: str | None) -> str:
    """A value in a folder's name. As with Spark, an empty text is null."""
    if not value:
        return NULL_PARTITION
    if value == NULL_PARTITION:
        return f"%5F{value[1:]}"
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), value)


class _PartWriter:
    """Writes the rows of a part to files by topic and day, with bounded memory and few open files.

    ``skipped`` rows were left out, ``problems`` rows have a ``problem``; see `PartReport`.
    """

    def __init__(self, part: RowsPart, number: int, target: Path) -> None:
        self._part, self._number, self._target = part, number, target
        self._schema = arrow_schema(part.columns)
        self._buffered: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._open: dict[str, _File] = {}
        self._counts: dict[str, int] = {}
        self._closer = ThreadPoolExecutor(1, "dledger-close")
        self._closing: list[Future[FileReport]] = []
        self.problems = self.skipped = 0
        self.first_skipped: list[str] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the log. With mode=FAILFAST raises MalformedError for a topic that is too long."""
        for folder, rows in self._by_folder(batch):
            self._buffered.setdefault(folder, []).append(rows)
            size = rows.nbytes
            self._sizes[folder] = self._sizes.get(folder, 0) + size
            self._size += size
            if self._sizes[folder] >= _ROW_GROUP_BYTES:
                self._write(folder)
        while self._size > _MAX_BUFFERED_BYTES:
            self._write(max(self._sizes, key=self._sizes.__getitem__))

    def finish(self) -> tuple[FileReport, ...]:
        """Complete all files."""
        for folder in [*self._open, *(folder for folder in self._buffered if folder not in self._open)]:
            self._write(folder)
            self._close(folder)
        files = [each.result() for each in self._closing]
        self._closer.shutdown()
        return tuple(sorted(files, key=lambda file: file.path))

    def discard(self) -> None:
        """Remove the incomplete files."""
        self._closer.shutdown()
        for file in self._open.values():
            file.discard()

    def _by_folder(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of a batch for each folder."""
        if self._part.flat:
            self.problems += _problems(batch)
            yield "", batch.select(self._part.columns)
            return
        for each, rows in by_topic_and_day(batch):
            folder = folder_of(each.topic, each.iso_day)
            size = max(len(name.encode()) for name in folder.split("/"))
            if size > MAX_NAME_BYTES:
                self._skip(rows, f"the folder of the topic has a name of {size} bytes, at most {MAX_NAME_BYTES} fit")
            else:
                self.problems += _problems(rows)
                yield folder, rows.select(self._part.columns)

    def _skip(self, rows: pa.RecordBatch, why: str) -> None:
        if self._part.mode == "FAILFAST":
            raise MalformedError(f"pos {rows['pos'][0]}: {why}; mode=PERMISSIVE leaves it out and lists it")
        self.skipped += rows.num_rows
        first = rows.slice(0, MAX_SKIPPED - len(self.first_skipped))
        for pos, index in zip(first["pos"].to_pylist(), first["index"].to_pylist(), strict=True):
            self.first_skipped.append(f"pos={pos} index={index}: {why}")

    def _write(self, folder: str) -> None:
        """Write the buffered rows of a folder to its file as a row group."""
        batches = self._buffered.pop(folder, [])
        self._size -= self._sizes.pop(folder, 0)
        if not batches:
            return
        file = self._open.pop(folder, None)
        if file is None:
            while len(self._open) >= _MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            file = _File(self._target, self._next_path(folder), self._schema, self._part.compression)
        self._open[folder] = file  # last: the least recently written one is closed first
        file.write(_merged(batches, self._schema))

    def _next_path(self, folder: str) -> str:
        """``part-00003.parquet``, or ``part-00003-1.parquet`` after the folder's first file was closed."""
        count = self._counts.get(folder, 0)
        self._counts[folder] = count + 1
        return f"{f'{folder}/' if folder else ''}part-{self._number:05d}{f'-{count}' if count else ''}.parquet"

    def _close(self, folder: str) -> None:
        """Close a file in a thread, which does so in order. Raises what closing an earlier one raised."""
        if len(self._closing) >= _MAX_CLOSING_FILES:
            self._closing[-_MAX_CLOSING_FILES].result()
        self._closing.append(self._closer.submit(self._open.pop(folder).close))


def _merged(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """A table of batches; each column that costs little to copy is one array."""
    table = pa.Table.from_batches(batches, schema)
    named = zip(schema.names, table.columns, strict=True)
    return pa.table([each if name in WIDE_COLUMNS else each.combine_chunks() for name, each in named], schema=schema)


def parquet_writer(stream: Any, schema: pa.Schema, compression: str) -> pq.ParquetWriter:
    """A writer of rows with these columns of the log table: dictionaries where values repeat, checksums of pages."""
    names = set(schema.names)
    return pq.ParquetWriter(
        stream,
        schema,
        compression=compression,
        use_dictionary=[name for name in _REPEATED if name.partition(".")[0] in names],
        write_statistics=[name for name in schema.names if name not in WIDE_COLUMNS],
        write_page_checksum=True,
    )


class _File:
    """A Parquet file that is being written, with a temporary name."""

    def __init__(self, target: Path, path: str, schema: pa.Schema, compression: str) -> None:
        self._path, self._schema = path, schema
        self._rows = 0
        self._stack = ExitStack()
        self._temporary = self._stack.enter_context(new_file(target, path))
        self._stream = self._stack.enter_context(ChecksumFile(self._temporary))
        self._writer = parquet_writer(self._stream, schema, compression)

    def write(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> FileReport:
        """Sync and verify the file, then give it its name. Raises StoreError if it differs when read back."""
        try:
            self._writer.close()
            self._stream.close()
            sync_file(self._temporary)
            report = file_report(self._temporary, self._path, self._rows)
            if report.crc32 != self._stream.crc32:
                raise self._differs(f"CRC-32 {self._stream.crc32:08x}", f"{report.crc32:08x}")
            self._verify()
        except BaseException:
            self.discard()
            raise
        self._stack.close()
        return report

    def discard(self) -> None:
        with suppress(Exception):  # the first error is already being raised
            self._writer.close()
        self._writer.is_open = False  # else its destructor closes it again, with an error
        self._stack.__exit__(_DiscardedError, _DiscardedError(), None)

    def _verify(self) -> None:
        """The bytes are those that were written, so that only the footer is parsed."""
        try:
            with pq.ParquetFile(self._temporary) as file:
                found, rows = file.schema_arrow, file.metadata.num_rows
        except (ValueError, pa.ArrowException, OSError) as error:
            raise self._differs("a Parquet file", str(error)) from None
        if found != self._schema:
            raise self._differs(f"the schema {self._schema}", str(found))
        if rows != self._rows:
            raise self._differs(f"{self._rows} rows", str(rows))

    def _differs(self, expected: str, found: str) -> StoreError:
        return read_back_error(self._path, expected, found)


def _problems(rows: pa.RecordBatch) -> int:
    return rows.num_rows - rows["problem"].null_count


class _DiscardedError(Exception):
    """Makes `new_file` remove a file instead of giving it its name."""


_EPOCH = date(1970, 1, 1)


class TopicDay(NamedTuple):
    """A topic, and a day in days since 1970. None for rows without."""

    topic: str | None
    day: int | None

    @property
    def iso_day(self) -> str | None:
        """The day as ``YYYY-MM-DD``."""
        return None if self.day is None else (_EPOCH + timedelta(days=self.day)).isoformat()


def by_topic_and_day(batch: pa.RecordBatch) -> Iterator[tuple[TopicDay, pa.RecordBatch]]:
    """The rows of a batch for each topic and day, in the order of their first rows; copies if there are several."""
    if not batch.num_rows:
        return
    topics = batch["topic"].dictionary_encode("encode")
    days = batch["storeTimestamp"].cast(pa.date32()).cast(pa.int32()).dictionary_encode("encode")
    key = _indices(topics) * len(days.dictionary) + _indices(days)
    groups, firsts, number, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    names, dates, starts = topics.dictionary.to_pylist(), days.dictionary.to_pylist(), np.cumsum(counts) - counts
    for at in np.argsort(firsts).tolist():
        topic, day = divmod(int(groups[at]), len(dates))
        rows = order[starts[at] : starts[at] + counts[at]]
        yield TopicDay(names[topic], dates[day]), batch if len(groups) == 1 else _taken(batch, rows)


def _taken(batch: pa.RecordBatch, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of a batch. Their numbers stay a buffer, because pyarrow imports pandas to look at an array of numpy."""
    return batch.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)]))


def _indices(values: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    indices = values.indices
    return np.frombuffer(indices.buffers()[1], np.int32, len(indices), indices.offset * 4).astype(np.int64)


# JSON lines

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
        return PartReport(number, (file,), part.partition.size, problems=lines.problems)


class _Lines:
    """Iterates over the lines of a part, in pieces; counts lines, bytes and problems."""

    def __init__(self, part: RowsPart) -> None:
        self.part = part
        self.count = self.size = self.problems = 0

    def __iter__(self) -> Iterator[bytes]:
        engine = get_engine(self.part.partition.engine)
        for batch in read_partition(self.part.partition, is_once=True):
            self.problems += _problems(batch)
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
