"""Chooses an engine: the native one, or the pure-Python reference with the same calls and results."""

from __future__ import annotations

import importlib
import mmap
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.encode.encoded import (
    Bodies,
    Buffer,
    CheckedEntries,
    EncodedEntries,
    NumberedPuts,
    Ordinals,
    Puts,
    PutSettings,
)
from pyspark_dledger.format.scan.segment_file import FileBytes
from pyspark_dledger.format.spec import Compressed, LogEnd, ScanRequest, Segment, Survey, SurveyRequest, TermRun

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pyspark_dledger.format.dispatched_rows import DispatchedRows
    from pyspark_dledger.format.encode.identities import IdentityFilter, IdentityTable
    from pyspark_dledger.format.json_text import BytesForm
    from pyspark_dledger.format.message import CopiedMessages, Longs

ENGINES = ("auto", "native", "python")
OF_SEGMENTS = ("log_end", "split", "seek", "term_runs", "copy_messages")
"""The calls whose first argument is a segment."""

_NATIVE_MODULE = "pyspark_dledger.format.native_engine"
_PYTHON_MODULE = "pyspark_dledger.format.python_engine"
_HOW_TO_BUILD = "reinstall pyspark_dledger where a C++17 compiler is found, or run `make setup` in a clone"


class Engine(Protocol):
    """The calls of both engines, which return the same values and raise the same error texts.

    Positions are those of the log, in bytes. Records are big-endian, see `layout`. A range ``[start, end)`` begins at
    an entry boundary. Calls that read a segment raise StoreError if the file cannot be opened, and MissingBytes (see
    `scan.segment_file`) if they need bytes that a partial copy does not have. Of a file that cannot be read from some
    byte on, the rest is damage, whose problem says so; `log_end`, `seek` and `term_runs` raise UnreadableError.
    """

    NAME: str

    def scan(self, request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]:
        """The rows that begin in ``[request.start, request.end)``, as batches in the order of the log.

        Compressed bodies are empty in the batch; the list has them. Raises StoreError if the end is not a boundary, and
        MalformedError under FAILFAST, both after the rows before.
        """

    def map_file(self, path: str) -> FileBytes:
        """The bytes of a file of any kind. Raises StoreError or OSError if it cannot be opened."""

    def log_end(self, segment: Segment, start: int, search_all: bool) -> LogEnd:
        """Where the log ends inside a segment, by the entries from ``start`` on whose indexes and terms are in order.

        After damage, the next 8 MiB (``search_all``: all bytes) are searched for an entry that continues the log.
        """

    def split(self, segment: Segment, start: int, end: int, target_bytes: int) -> list[int]:
        """Positions inside ``(start, end)``, ascending and about ``target_bytes`` apart, that every walk visits."""

    def seek(self, segment: Segment, start: int, end: int, index: int) -> int:
        """The position of the first DLedger entry in ``[start, end)`` with at least this index, or ``end``."""

    def term_runs(self, segment: Segment, start: int, end: int) -> list[TermRun]:
        """Runs of entries with the same term in ``[start, end)``; damage does not end a run.

        Raises StoreError for more than 1,000,000 runs.
        """

    def survey(self, request: SurveyRequest) -> Survey:
        """What every byte of a segment is, and every problem, in one pass."""

    def copy_messages(
        self, segment: Segment, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
    ) -> CopiedMessages:
        """Copy messages of ``sizes`` bytes at the positions ``starts`` into consecutive bytes of ``into``.

        The first byte of ``into`` gets ``position`` in a new CommitLog. A message keeps everything except its
        physicalOffset, and the CRC in its properties if they end with one. Messages with lengths that a broker reads as
        negative are left out: its log would end there. Raises ValueError if ``into`` is too small.
        """

    def crc32(self, data: Buffer, before: int = 0) -> int:
        """CRC-32 as ``java.util.zip.CRC32``, unsigned; ``before`` is the CRC of the bytes before these."""

    def pack_bodies(self, bodies: Sequence[Buffer]) -> Bodies:
        """Pack bodies. Raises ValueError for no body, a body above 4 MiB - 48 bytes, and a block above 1 GiB."""

    def unpack_bodies(self, bodies: Bodies) -> list[bytes]:
        """The bodies of a block. Raises ValueError if the block's lengths do not fit it."""

    def encode_entries(self, bodies: Bodies, first: int, index: int, term: int, pos: int, space: int) -> EncodedEntries:
        """Encode bodies from number ``first`` on as consecutive entries from ``index`` and ``pos`` on.

        Only bodies are encoded that fit into ``space`` bytes and leave 8 bytes for a blank; possibly none. Raises
        ValueError if the block's lengths do not fit it, and for numbers out of range.
        """

    def check_entries(self, data: Buffer, index: int, pos: int, min_term: int, max_term: int) -> CheckedEntries:
        """Check consecutive complete entries, which must begin with ``index`` at ``pos``.

        Their terms must not decrease. Raises ValueError with the number of the first wrong entry, and for no entry.
        """

    def find_torn(self, data: Buffer, pos: int) -> int | None:
        """The offset of the first entry whose body may not have been written completely, or None.

        ``data`` are consecutive complete entries from ``pos`` on. A bodyCrc decides. Without one: a sector of 512 bytes
        that a power loss kept from the disk is zero, so a body with such a sector is suspect; it can also contain these
        zeros. Without a body, a sector that begins in channel or chainCrc is suspect, unless they are right. Raises
        ValueError for incomplete entries.
        """

    def find_damaged(self, data: Buffer) -> int | None:
        """The offset of the first entry with a wrong bodyCrc, channel or chainCrc, or with a damaged message, or None.

        ``data`` are consecutive complete entries. Without a bodyCrc, a body with a message's magic is damaged if it
        cannot be parsed or does not match its CRC. Raises ValueError for incomplete entries.
        """

    def find_wrong_body(self, data: Buffer, needs_crc: bool = False) -> int | None:
        """The offset of the first entry whose body does not match its bodyCrc, or None.

        A bodyCrc of 0 matches all bodies, with `needs_crc` only those whose CRC is 0. With another bodyCrc, or an
        empty body, channel and chainCrc must be 0 or those of a control entry. Raises ValueError for incomplete
        entries.
        """

    def write_body_crcs(self, data: bytearray) -> None:
        """Write the CRC of each body into the header of its entry. Raises ValueError for incomplete entries."""

    def new_ordinals(self) -> Ordinals:
        """Counts of equal contents, for all batches of one attempt of a task."""

    def encode_messages(self, batch: pa.RecordBatch, settings: PutSettings, ordinals: Ordinals) -> Bodies:
        """Encode rows of `put_rows.PUT_SCHEMA` as puts, in their order.

        A row's queue is its queueId, else the Java hash of its keys modulo the topic's queues, else the next of the
        topic's queues in turn. Its properties are those of the map in their order, then KEYS, TAGS, DELAY, REAL_TOPIC,
        REAL_QID and the identity; null values are left out. Raises ValueError with the number of the first invalid row
        and what to do, TypeError for wrong columns. The ordinals do not change then.
        """

    def read_puts(self, bodies: Bodies) -> Puts:
        """Check puts of a producer. Raises ValueError with the number of the first that is not as RocketMQ's."""

    def number_puts(self, puts: Puts, keep: npt.NDArray[np.bool_], ends: list[int]) -> NumberedPuts:
        """A queue offset for each put to keep, in order, from the end of its queue on.

        Prepared and rolled back messages are in no queue: they get 0 and use no queue offset (RocketMQ's
        ``CommitLog.assignQueueOffset`` and ``doAppend``), as do those that are not kept.
        """

    def locate_puts(
        self, bodies: Bodies, first_index: int, runs: Sequence[tuple[int, int]], queue_offsets: npt.NDArray[np.int64]
    ) -> bytes:
        """Index, position and queue offset of each body's entry, 24 bytes each, big-endian.

        ``runs`` are index and position of the first entry in each file. Raises ValueError for a malformed block.
        """

    def stamp_puts(
        self,
        bodies: Bodies,
        keep: npt.NDArray[np.bool_],
        queue_offsets: npt.NDArray[np.int64],
        store_timestamp: int,
        store_host: bytes,
    ) -> Bodies:
        """A new block of the puts to keep, with their queue offsets, the store's time (ms) and its host.

        A message grows or shrinks if its storeHost has another width. A writable memoryview may be changed and
        returned: a received request has no other user. Raises ValueError if none is kept, for an invalid
        message, and for one that becomes too long.
        """

    def patch_physical_offsets(self, data: bytearray, units: bytearray) -> None:
        """Write the position of each message among consecutive entries into it: that of its entry's body.

        ``units`` are the entries' index units. Bodies that are not messages stay unchanged. Raises ValueError if the
        units do not fit the entries.
        """

    def new_identity_table(self) -> IdentityTable: ...

    def new_identity_filter(self, min_ids: int) -> IdentityFilter:
        """A filter with a capacity of at least `min_ids`."""

    def dispatched_rows(
        self, batch: pa.RecordBatch, header_size: int, has_tags: bool, batch_topics: Collection[str] | None
    ) -> DispatchedRows:
        """Units, keys and identities of rows with `dispatched_rows.DISPATCHED_COLUMNS`, in the order of the log.

        A unit points to ``header_size`` bytes after its row's position. Prepared and rolled back messages have no unit,
        rolled back ones no keys. Of each message its UNIQ_KEY is a key, then those of KEYS, and if `has_tags` its TAGS,
        as in RocketMQ 5.5.0. With `batch_topics`, their messages and inner batches have no unit.
        """

    def java_hashes(self, strings: pa.StringArray) -> npt.NDArray[np.int32]:
        """Java's ``String.hashCode`` of each string, 0 for null. Invalid UTF-8 counts as Java decodes it."""

    def json_lines(self, batch: pa.RecordBatch, form: BytesForm) -> Iterator[bytes]:
        """The rows of a batch as JSON lines, in pieces of complete lines; see `json_text.json_lines`."""


def get_engine(name: str = "auto") -> Engine:
    """The engine of that name (in any case): ``native``, ``python``, or ``auto`` for native if it is built.

    If it is not built, ``auto`` warns once and returns the slow Python engine, and ``native`` raises OptionError.
    """
    wanted = name.lower()
    if wanted not in ENGINES:
        raise OptionError(f"expected engine {', '.join(ENGINES[:-1])} or {ENGINES[-1]}, found {name!r}")
    if wanted == "python":
        return _load(_PYTHON_MODULE)
    try:
        return _load(_NATIVE_MODULE)
    except ImportError as error:
        if wanted == "native":
            raise OptionError(
                f"the native engine is not built ({error}): {_HOW_TO_BUILD}, or use engine=python"
            ) from error
        _warn_once(str(error))
        return _load(_PYTHON_MODULE)


class WholeFile:
    """All bytes of a file, mapped as ``view``. Bytes that cannot be read are zeros.

    Without the native engine, a read that fails ends the process, and all bytes count as loaded.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self.view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

    def is_intact(self) -> bool:
        """Whether the bytes that were read so far are the file's."""
        return True

    def is_loaded(self, _at: int) -> bool:
        """Whether reading that byte needs no disk."""
        return True


def map_whole(path: str) -> WholeFile:
    """Map a file. Raises OSError, or StoreError for something that is not a file."""
    try:
        native = importlib.import_module(_NATIVE_MODULE)
    except ImportError:
        return WholeFile(path)
    try:
        mapped: WholeFile = native.MappedBytes(path)
    except StoreError:
        Path(path).stat()  # raises FileNotFoundError if it was deleted
        raise
    return mapped


def _load(module: str) -> Engine:
    # Import only the engine that is used: imports cost time in every task of Spark.
    engine: Engine = importlib.import_module(module)
    return engine


_warned = False


def _warn_once(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"the native engine is not built ({reason}), the pure-Python one is many times slower: {_HOW_TO_BUILD}; "
            "engine=python silences this",
            RuntimeWarning,
            stacklevel=3,
        )
