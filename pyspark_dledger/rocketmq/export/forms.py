"""What every form of an export has in common: what it is told, what its parts report, and how it places its files."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pyspark_dledger.common.durable import sync_dir
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.columns import DEFAULT_NAMES, ENTRY_BODY
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.rocketmq.export.export_options import ExportOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.log.store_view import StoreView

STATE_FOLDER = "_export"
"""Below the target: one report for each finished part; the underscore keeps Spark and Hive from reading it."""
MOST_SKIPPED = 100
"""So many of the rows that were left out are listed, of a part and of an export."""

MANIFEST = "_export.json"
"""Below the target: what is exported, from where, how far, and its ``state``."""
RUNNING, FINISHED = "running", "finished"

_PART = "part-{:05d}"
_TEMPORARY = "tmp"
_BLOCK = 8 * 1024 * 1024

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExportSettings(ExportOptions):
    """What is exported and how, the same in every run that goes on with an export.

    ``start`` and ``end`` are positions where the walk over the log arrives: the rows that begin in ``[start, end)`` are
    exported, as far as the filters of `options` let them pass. ``committed_index`` is the committed bound when the
    export began, None where none was known; with isolationLevel=read_committed ``end`` is not behind it. What `options`
    say of places and of the bound is done with these three.
    """

    options: ReadOptions
    start: int
    end: int
    committed_index: int | None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are exported, each once: those of the log table, if none were chosen."""
        chosen = self.columns or DEFAULT_NAMES
        return tuple(dict.fromkeys((*chosen, ENTRY_BODY.name) if self.options.include_entry_body else chosen))

    @property
    def filters(self) -> Filters:
        """The filters of the read: topic, queueId, tags and times."""
        return option_filters(self.options)


@dataclass(frozen=True)
class FileReport:
    """A file of an export: its path relative to the target with ``/``, its bytes, and the rows in it.

    ``crc32`` is of the file's bytes as they were read back after writing; of a file with a hole behind its content, of
    the content.
    """

    path: str
    size: int
    crc32: int
    rows: int


@dataclass(frozen=True)
class PartReport:
    """What became of a part. ``source_bytes`` are the bytes of the log that it covers.

    ``skipped`` counts rows that were left out although the filters let them pass, ``first_skipped`` says which and why,
    for at most `MOST_SKIPPED`, as ``pos=... index=...: why``. ``problems`` counts the rows that were written and have a
    ``problem``. ``notes`` and ``counts`` are the form's own, for its `Form.finish`, and so is the file ``left``,
    which is deleted when the export is done.
    """

    number: int
    rows: int
    skipped: int
    first_skipped: tuple[str, ...]
    files: tuple[FileReport, ...]
    source_bytes: int
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    problems: int = 0
    left: FileReport | None = None


@dataclass(frozen=True)
class FinishReport:
    """What was made of all parts together: further files, and lines that the user has to know.

    ``broker_conf`` are the settings that a broker needs to serve what was exported.
    """

    files: tuple[FileReport, ...] = ()
    notes: tuple[str, ...] = ()
    broker_conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportReport:
    """An export that is done.

    ``rows`` were written, ``problems`` of them with a ``problem``; ``skipped`` were left out, see `PartReport`.
    ``beyond_committed`` counts the entries of the exported range that lie behind the committed bound
    ``committed_index``; both are None where no bound is known. ``bytes`` are those of all ``files`` written, but for
    those of consumequeue/ and index/, ``source_bytes`` those of the log that they come from; ``resumed`` counts the
    parts that an earlier run had done; ``seconds`` are of this run.
    """

    source: str
    target: str
    form: str
    rows: int
    problems: int
    skipped: int
    first_skipped: tuple[str, ...]
    committed_index: int | None
    beyond_committed: int | None
    parts: int
    resumed: int
    files: int
    bytes: int
    source_bytes: int
    seconds: float
    notes: tuple[str, ...]
    broker_conf: dict[str, str]


class Form(Protocol):
    """A form that a log is exported to. It holds nothing; an instance of it is picklable."""

    @property
    def name(self) -> str:
        """As users name it, such as ``parquet``."""

    def plan(self, log: StoreView, settings: ExportSettings) -> list[Any]:
        """The parts, one for a task: picklable values whose repr is the same whenever the same is planned again.

        Raises StoreError and OptionError for what cannot be exported in this form; nothing is written.
        """

    def write(self, part: Any, number: int, target: Path) -> PartReport:
        """Write a part, from the beginning: what an earlier attempt left is replaced by the same bytes.

        Files are written with `new_file`, read back and verified there, and appear under their names when they are
        whole; two attempts at once do not disturb each other. Raises StoreError and OSError.
        """

    def finish(
        self, log: StoreView, settings: ExportSettings, target: Path, reports: Sequence[PartReport]
    ) -> FinishReport:
        """What is left when all parts are written; done again from the beginning where an earlier run ended in it."""


def problems_of(rows: pa.RecordBatch) -> int:
    """How many rows have a ``problem``."""
    return rows.num_rows - rows["problem"].null_count


def report_path(number: int) -> str:
    """Where the report of a part stands, relative to the target."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.json"


def left_path(number: int) -> str:
    """Where a part leaves what `Form.finish` needs of it."""
    return f"{STATE_FOLDER}/{_PART.format(number)}.left"


def temporary_folder(target: Path) -> Path:
    """Where files stand until they are whole; emptied whenever a run begins, and gone when an export is done."""
    return target / STATE_FOLDER / _TEMPORARY


def check_running(target: Path) -> None:
    """Raises StoreError where no export to a target is running: what one has finished may be a broker's by now."""
    try:
        state = json.loads((target / MANIFEST).read_text(encoding="utf-8"))["state"]
    except (OSError, ValueError, KeyError, TypeError):
        state = "none"
    if state != RUNNING:
        raise StoreError(
            f"{target}: expected the export that this part belongs to at work, found {state}: a task that came late; "
            "nothing was changed"
        )


@contextmanager
def new_file(target: Path, path: str) -> Iterator[Path]:
    """A name to write a file at, that nobody else has; after the block the file stands at `path` below the target.

    The block leaves a file that was synced and verified. Where it raises, nothing appears at `path`. Raises OSError,
    and StoreError where the export has come to its end meanwhile.
    """
    folder = temporary_folder(target)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{uuid.uuid4().hex}{Path(path).suffix}"
    try:
        yield temporary
        final = target / path
        check_running(target)
        make_folders(target, final.parent)
        temporary.replace(final)
        sync_dir(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


def make_folders(target: Path, folder: Path) -> None:
    """Make a folder below the target, durably, with those above it. Raises OSError."""
    if folder == target or folder.is_dir():
        return
    make_folders(target, folder.parent)
    folder.mkdir(exist_ok=True)
    sync_dir(folder.parent)


class SummedFile(io.RawIOBase):
    """A new file to be written from its begin to its end, with the CRC-32 of what it is to hold."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.crc32 = 0
        self._file = file.open("xb", buffering=0)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """All of `data`. Raises OSError."""
        view = memoryview(data).cast("B")
        self.crc32 = crc32(view, self.crc32)
        left = view
        while left:
            left = left[self._file.write(left) :]
        return len(view)

    def close(self) -> None:
        self._file.close()
        super().close()


def file_report(file: Path, path: str, rows: int) -> FileReport:
    """What a file holds that will stand at `path`, by reading all of it. Raises OSError."""
    crc = size = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            crc = crc32(block, crc)
            size += len(block)
    return FileReport(path, size, crc, rows)
