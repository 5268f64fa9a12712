"""The bytes of a bundled store, field by field, for docs/format.md: what RocketMQ 5.3.3 wrote."""

from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyspark_dledger as dl
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format import layout
from pyspark_dledger.format.layout import Field
from pyspark_dledger.log.io.key_files import KeyFile, index_files, read_header
from pyspark_dledger.log.io.state_files import CHECKPOINT_LAYOUT as STORE_CHECKPOINT
from tests.support import golden

CASE = "mq-53-upgrade"
INDEX = 142
"""A short message with a key, a tag outside ASCII and IPv4 hosts."""
_BYTES_A_LINE = 8
_FORMATS = {2: ">h", 4: ">i", 8: ">q"}


class Piece(NamedTuple):
    """Some bytes of a record, the name of their field, and what they say."""

    data: bytes
    name: str
    says: str


def entry() -> str:
    """One entry of DLedger with the message in it."""
    data, pos = _entry()
    file = _segment_of(pos)
    pieces = _fields(data, layout.ENTRY_HEADER, {"magic": "an entry", "size": "48 + bodySize"})
    return _block(file, pos - int(file.name), [*pieces, *_message(data[layout.ENTRY_HEADER_SIZE :])])


def index_unit() -> str:
    """The unit of that entry in DLedger's index."""
    size = layout.INDEX_UNIT_SIZE
    file = _root() / "dledger-n0" / "index" / layout.segment_name(0)
    return _block(file, INDEX * size, _fields(_read(file, INDEX * size, size), layout.INDEX_UNIT, {}))


def queue_unit() -> str:
    """The unit of that message in its ConsumeQueue."""
    row = _row()
    at = row["queueOffset"] * layout.CONSUME_QUEUE_UNIT_SIZE
    files = sorted((_root() / "consumequeue" / row["topic"] / str(row["queueId"])).iterdir())
    file = [file for file in files if int(file.name) <= at][-1]
    data = _read(file, at - int(file.name), layout.CONSUME_QUEUE_UNIT_SIZE)
    says = {
        "commitLogOffset": "the message, 48 after its entry",
        "size": "of the message",
        "tagsCode": f"Java's hash of {row['tags']}",
    }
    pieces = _fields(data, layout.CONSUME_QUEUE_UNIT, says)
    assert int.from_bytes(data[12:], "big", signed=True) == java_hash(row["tags"])
    return _block(file, at - int(file.name), pieces)


def index_file() -> str:
    """The header of the IndexFile that has the message's key, the key's slot, and its unit."""
    row = _row()
    key_hash = abs(java_hash(f"{row['topic']}#{row['keys']}"))
    file, header = next(
        (file, header)
        for file in reversed(index_files(_root()))
        if (header := read_header(file)) and header.begin_phy_offset <= row["commitLogOffset"]
    )
    key_file = KeyFile.opened(file)
    assert key_file is not None
    slots = key_file.slots
    says = {"indexCount": "number of the next unit", "hashSlotCount": "slots in use"}
    head = _fields(_read(file, 0, layout.INDEX_FILE_HEADER_SIZE), layout.INDEX_FILE_HEADER, says)
    slot = layout.INDEX_FILE_HEADER_SIZE + key_hash % slots * layout.INDEX_FILE_SLOT_SIZE
    slot_piece = Piece(_read(file, slot, 4), "slot", f"{key_hash % slots} of {slots}: its newest unit")
    number, at, unit = int.from_bytes(slot_piece.data, "big"), 0, b""
    while number:
        at = layout.INDEX_FILE_HEADER_SIZE + slots * layout.INDEX_FILE_SLOT_SIZE + number * layout.INDEX_FILE_UNIT_SIZE
        unit = _read(file, at, layout.INDEX_FILE_UNIT_SIZE)
        if unit[:12] == struct.pack(">iq", key_hash, row["commitLogOffset"]):
            break
        number = int.from_bytes(unit[16:], "big")
    assert number, "the message's key is in its index file"
    says = {
        "keyHash": f"of {row['topic']}#{row['keys']}",
        "seconds": "after beginTimestamp",
        "previous": "unit of the same slot; 0: none",
    }
    blocks = ((0, head), (slot, [slot_piece]), (at, _fields(unit, layout.INDEX_FILE_UNIT, says)))
    return "\n\n".join(_block(file, start, pieces) for start, pieces in blocks)


def state_files() -> str:
    """The small files: a node's two texts, and the broker's page of numbers."""
    texts = (_root() / "dledger-n0" / name for name in ("checkpoint", "currterm"))
    shown = [f"```\n{_shown(file)}\n\n{file.read_text().rstrip()}\n```" for file in texts]
    file = _root() / "checkpoint"
    size = STORE_CHECKPOINT[-1].offset + STORE_CHECKPOINT[-1].length
    return "\n\n".join((*shown, _block(file, 0, _fields(_read(file, 0, size), STORE_CHECKPOINT, {}))))


def _message(data: bytes) -> Iterator[Piece]:
    """The pieces of a message with IPv4 hosts and version V1."""
    says = {
        "totalSize": "of the message",
        "magic": "V1",
        "bodyCrc": "CRC-32 of the body, highest bit 0",
        "physicalOffset": "pos + 48",
    }
    yield from _fields(data[: layout.MESSAGE_HEADER_SIZE], layout.MESSAGE_HEADER, says)
    at = layout.MESSAGE_HEADER_SIZE

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    def host(name: str) -> Piece:
        found = take(8)
        return Piece(found, name, f"{socket.inet_ntoa(found[:4])}:{int.from_bytes(found[4:], 'big')}")

    def number(name: str, size: int) -> Piece:
        found = take(size)
        return Piece(found, name, str(int.from_bytes(found, "big")))

    yield host("bornHost")
    yield number("storeTimestamp", 8)
    yield host("storeHost")
    yield number("reconsumeTimes", 4)
    yield number("preparedTransactionOffset", 8)
    for name, size in (("body", 4), ("topic", 1)):
        length = number(f"{name}Length", size)
        yield length
        text = take(int(length.says))
        yield Piece(text, name, text.decode())
    yield number("propertiesLength", 2)
    names = []
    for part in data[at:].split(b"\x02")[:-1]:
        key, _, value = (text.decode() for text in part.partition(b"\x01"))
        yield Piece(take(len(part) + 1), "property", f"{key} 01 {value} 02")
        names.append(key)
    assert at == len(data)
    assert names == list(dict(_row()["properties"])), "as the reader says"


def _fields(data: bytes, fields: Sequence[Field], says: dict[str, str]) -> list[Piece]:
    """The pieces of a fixed layout with their numbers; `says` has words for some."""
    pieces = []
    for field in fields:
        piece = data[field.offset : field.offset + field.length]
        (number,) = struct.unpack(_FORMATS[field.length], piece)
        words = f", {says[field.name]}" if field.name in says else ""
        pieces.append(Piece(piece, field.name, f"{number}{words}"))
    return pieces


def _block(file: Path, at: int, pieces: Sequence[Piece]) -> str:
    """The pieces as a dump: where each begins after byte `at` of its file, its bytes, its name and what it says."""
    width = max(len(piece.name) for piece in pieces)
    lines = [f"{_shown(file)} at byte {at}", ""]
    offset = 0
    for name, data, says in ((piece.name, piece.data, piece.says) for piece in pieces):
        for start in range(0, len(data), _BYTES_A_LINE):
            shown = f"{offset + start:4}  {data[start : start + _BYTES_A_LINE].hex():<16}"
            lines.append((shown if start else f"{shown}  {name:<{width}}  {says}").rstrip())
        offset += len(data)
    return "```\n" + "\n".join(lines) + "\n```"


def _shown(file: Path) -> str:
    return str(file.relative_to(_root().parent))


@cache
def _row() -> dict[str, Any]:
    """What the reader says of the entry."""
    (batch,) = _log().scan(startingOffsets=INDEX, endingOffsets=INDEX + 1)
    (row,) = batch.to_pylist()
    assert row["problem"] is None
    found: dict[str, Any] = row
    return found


def _entry() -> tuple[bytes, int]:
    """The bytes of the entry, and where it stands in the log."""
    pos, size = _row()["pos"], _row()["size"]
    file = _segment_of(pos)
    return _read(file, pos - int(file.name), size), pos


def _segment_of(pos: int) -> Path:
    files = sorted((_root() / "dledger-n0" / "data").iterdir())
    return [file for file in files if int(file.name) <= pos][-1]


def _read(file: Path, at: int, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(at)
        return opened.read(size)


@cache
def _log() -> dl.Log:
    return dl.open_log(_root())


@cache
def _root() -> Path:
    """The store, unpacked for as long as this process lives."""
    _FOLDER.append(tempfile.TemporaryDirectory(prefix="dledger-docs-"))
    return golden.unpack(CASE, Path(_FOLDER[0].name))


_FOLDER: list[tempfile.TemporaryDirectory[str]] = []
