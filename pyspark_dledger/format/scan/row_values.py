"""Makes rows of a segment's extents: column values, filters, problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from pyspark_dledger.common.integers import microseconds
from pyspark_dledger.common.java_text import host_text
from pyspark_dledger.errors import MalformedError
from pyspark_dledger.format import layout
from pyspark_dledger.format.codec import MEMBERS, NOOP, EntryHeader, crc32, header_kind, signed32
from pyspark_dledger.format.facts import Fact, ProblemCode
from pyspark_dledger.format.message import (
    MESSAGE_CRC_MASK,
    Message,
    compression,
    decode_put_id,
    has_message_magic,
    offset_msg_id,
    parse_message,
    stored_property_crc,
    transaction,
)
from pyspark_dledger.format.scan.segment_file import SegmentFile
from pyspark_dledger.format.scan.walk import Span
from pyspark_dledger.format.spec import DLEDGER, Filters, IntFilter, ScanRequest

_KINDS = {layout.MAGIC_NOOP: "noop", layout.MAGIC_CONFIG_CHANGE: "config"}
_CONTROL_KINDS = {NOOP: "noop", MEMBERS: "config"}
_CRC_CHUNK = 1024 * 1024


class Row:
    """One extent. The values of its columns are read from the file on first use."""

    def __init__(self, data: SegmentFile, span: Span, committed_index: int | None) -> None:
        self.data = data
        self.span = span
        self.segment = data.segment
        self.header: EntryHeader | None = span.frame.header if span.frame else None
        self._committed_index = committed_index

    @cached_property
    def _parsed(self) -> Message | Fact | None:
        """The message, or the problem in its structure, or None for bytes without a message's magic."""
        if self.span.frame is None:
            return None
        if self.header is None:
            return self.span.frame.message
        start = self.span.pos + layout.ENTRY_HEADER_SIZE
        size = self.header.body_size
        if self.header.magic != layout.MAGIC_NORMAL or not has_message_magic(self.data, start, size):
            return None
        return parse_message(self.data, start, size, start)

    @property
    def message(self) -> Message | None:
        return None if isinstance(self._parsed, Fact) else self._parsed

    @property
    def structure_problem(self) -> Fact | None:
        return self._parsed if isinstance(self._parsed, Fact) else None

    @property
    def kind(self) -> str:
        if self.span.problem:
            return "corrupt"
        if self.message:
            return "message"
        if self.header is None:
            return "entry"
        return _KINDS.get(self.header.magic) or _CONTROL_KINDS.get(header_kind(self.header), "entry")

    @property
    def committed(self) -> bool | None:
        if self.segment.source != DLEDGER:
            return True
        if self._committed_index is None or self.header is None:
            return None
        return self.header.index <= self._committed_index

    @property
    def entry_range(self) -> tuple[int, int] | None:
        """The extent of `entryBody`: the entry's body, or the whole message of an old CommitLog."""
        if self.span.frame is None:
            return None
        return self.span.pos + (layout.ENTRY_HEADER_SIZE if self.header else 0), self.span.end

    def bytes_of(self, extent: tuple[int, int] | None) -> bytes | None:
        return None if extent is None else self.data[extent[0] : extent[1]]

    @property
    def body(self) -> bytes | None:
        """The body before decompression; empty if it is compressed."""
        if self.message is None:
            return self.bytes_of(self.entry_range)
        return b"" if self.message.has_compressed_body else self.message.body

    @cached_property
    def properties(self) -> dict[str, str] | None:
        return None if self.message is None else self.message.properties

    def property(self, name: str) -> str | None:
        return self.properties.get(name) if self.properties is not None else None

    @cached_property
    def topic(self) -> str | None:
        return None if self.message is None else self.message.topic


def malformed(request: ScanRequest, kind: str, pos: int, problem: str) -> MalformedError:
    """The error of FAILFAST for a row with a problem."""
    return MalformedError(
        f"{request.segment.path}: {kind} at {pos}: {problem}; mode=PERMISSIVE keeps such rows with their problem, "
        "DROPMALFORMED drops them"
    )


def first_problem(row: Row, verify_crc: bool) -> Fact | None:
    """The first problem of a row in the order of the checks; None for an intact row."""
    return row.span.problem or next(row_problems(row, verify_crc), None)


def row_problems(row: Row, verify_crc: bool) -> Iterator[Fact]:
    """All problems of an entry or message, in the order of the checks."""
    if verify_crc and (problem := _stored_crc_problem(row)):
        yield problem
    if row.structure_problem:
        yield row.structure_problem
    if row.message:
        yield from _message_problems(row, row.message, verify_crc)


def _stored_crc_problem(row: Row) -> Fact | None:
    """The problem of a body that does not match the CRC in its entry's header; 0 there means no CRC."""
    if row.header is None or row.header.body_crc == 0 or row.entry_range is None:
        return None
    computed = signed32(_crc_of_range(row.data, *row.entry_range))
    stored = row.header.body_crc
    return None if computed == stored else Fact(ProblemCode.BODY_CRC, 0, stored, computed)


def _message_problems(row: Row, message: Message, verify_crc: bool) -> Iterator[Fact]:
    """Problems of a message with an intact structure."""
    start = row.span.pos + (layout.ENTRY_HEADER_SIZE if row.header else 0)
    is_copy = row.header is None and not row.segment.check_pos
    if message.physical_offset != start and not is_copy:
        yield Fact(ProblemCode.MESSAGE_OFFSET, 0, start, message.physical_offset)
    if verify_crc and message.body_length:
        body_end = message.body_start + message.body_length
        computed = _crc_of_range(row.data, message.body_start, body_end) & MESSAGE_CRC_MASK
        if computed != message.body_crc:
            yield Fact(ProblemCode.MESSAGE_CRC, 0, message.body_crc, computed)
    if verify_crc and row.header is None:
        stored = stored_property_crc(message.raw_properties)
        if stored is not None:
            end = start + message.total_size - layout.PROPERTY_CRC_SIZE
            computed = _crc_of_range(row.data, start, end) & MESSAGE_CRC_MASK
            if computed != stored:
                yield Fact(ProblemCode.PROPERTY_CRC, 0, stored, computed)
    if microseconds(message.born_timestamp) is None:
        yield Fact(ProblemCode.BORN_TIME, 0, 0, message.born_timestamp)
    if microseconds(message.store_timestamp) is None:
        yield Fact(ProblemCode.STORE_TIME, 0, 0, message.store_timestamp)


def _crc_of_range(data: SegmentFile, start: int, stop: int) -> int:
    crc = 0
    for at in range(start, stop, _CRC_CHUNK):
        crc = crc32(data[at : min(at + _CRC_CHUNK, stop)], crc)
    return crc


Reader = Callable[[Row], Any]


def _header(name: str) -> Reader:
    return lambda row: getattr(row.header, name, None)


def _message(read: str | Callable[[Message], Any]) -> Reader:
    """Reads a field of a message, or what a function makes of it."""
    if isinstance(read, str):
        return lambda row: getattr(row.message, read, None)
    return lambda row: read(row.message) if row.message else None


COLUMN_READERS: dict[str, Reader] = {
    "kind": lambda row: row.kind,
    "source": lambda row: row.segment.source,
    "index": _header("index"),
    "term": _header("term"),
    "pos": lambda row: row.span.pos,
    "size": lambda row: row.span.size,
    "magic": _header("magic"),
    "channel": _header("channel"),
    "chainCrc": _header("chain_crc"),
    "bodyCrc": _header("body_crc"),
    "bodySize": _header("body_size"),
    "committed": lambda row: row.committed,
    "segment": lambda row: row.segment.name,
    "topic": lambda row: row.topic,
    "queueId": _message("queue_id"),
    "queueOffset": _message("queue_offset"),
    "commitLogOffset": _message("physical_offset"),
    "storeSize": _message("total_size"),
    "messageMagic": _message("magic"),
    "flag": _message("flag"),
    "sysFlag": _message("sys_flag"),
    "reconsumeTimes": _message("reconsume_times"),
    "bornTimestamp": _message(lambda message: microseconds(message.born_timestamp)),
    "storeTimestamp": _message(lambda message: microseconds(message.store_timestamp)),
    "bornHost": _message(lambda message: host_text(message.born_host)),
    "storeHost": _message(lambda message: host_text(message.store_host)),
    "messageCrc": _message("body_crc"),
    "preparedTransactionOffset": _message("prepared_transaction_offset"),
    "transaction": _message(lambda message: transaction(message.sys_flag)),
    "compression": _message(lambda message: compression(message.sys_flag)),
    "tags": lambda row: row.property(layout.PROPERTY_TAGS),
    "keys": lambda row: row.property(layout.PROPERTY_KEYS),
    "uniqKey": lambda row: row.property(layout.PROPERTY_UNIQ_KEY),
    "offsetMsgId": _message(lambda message: offset_msg_id(message.store_host, message.physical_offset)),
    "properties": lambda row: None if row.properties is None else list(row.properties.items()),
    "body": lambda row: row.body,
    "healedFrom": lambda _row: None,
    "entryBody": lambda row: row.bytes_of(row.entry_range),
    "putId": lambda row: decode_put_id((row.property(layout.PROPERTY_ID) or "").encode()),
}
"""Reads the value of each column that needs no problem, as `pyarrow.array` takes it; times are in microseconds."""

Condition = IntFilter | tuple[str, ...] | bool

_FILTERED_COLUMNS = {
    "kind": "kind",
    "committed": "committed",
    "index": "index",
    "term": "term",
    "pos": "pos",
    "queue_id": "queueId",
    "store_timestamp": "storeTimestamp",
    "topic": "topic",
    "tags": "tags",
}


def row_test(filters: Filters) -> Callable[[Row], bool]:
    """A test for rows that meet every condition of ``filters``; a null value meets none."""
    conditions = [(COLUMN_READERS[column], condition) for column, condition in conditions_of(filters)]
    return lambda row: all(meets(read(row), condition) for read, condition in conditions)


def conditions_of(filters: Filters) -> list[tuple[str, Condition]]:
    """The columns with a condition of ``filters``."""
    given = ((column, getattr(filters, name)) for name, column in _FILTERED_COLUMNS.items())
    return [(column, condition) for column, condition in given if condition is not None]


def meets(value: Any, condition: Condition) -> bool:
    """Whether a value meets a condition; null meets none."""
    if value is None:
        return False
    if isinstance(condition, bool):
        return bool(value == condition)
    if isinstance(condition, tuple):
        return value in condition
    return condition.low <= value <= condition.high and (condition.values is None or value in condition.values)
