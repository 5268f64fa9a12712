"""Seeds for the fuzz targets: one small piece of each sort from the goldens, and sorts that no golden has."""

from __future__ import annotations

import hashlib
import itertools
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.format import codec
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import encode_host, encode_message
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, ScanRequest, Segment
from tests.support import golden
from tests.support.generate import Row, entries_at, messages_at, rows_of

LONGEST = 4096
MOST_ROWS = 6
COLUMNS = ("pos", "size", "kind", "index", "term", "magic", "messageMagic", "sysFlag", "flag", "bornHost", "properties")

COMMITLOG_FLAG, TRUST_POS_FLAG = 1, 2


class Piece(NamedTuple):
    """Bytes of a segment from a position of the log, and the sorts of their contents."""

    source: str
    check_pos: bool
    base: int
    data: bytes
    sorts: frozenset[object]


def options(piece: Piece, **numbers: int) -> bytes:
    """The options before a segment, in the layout of input.hpp."""
    flags = COMMITLOG_FLAG * (piece.source == COMMITLOG) | TRUST_POS_FLAG * (not piece.check_pos)
    choices = ("mode", "filter", "filter_row", "batch_rows", "batch_bytes", "target", "range", "missing", "stretch")
    data = bytes([flags | numbers.get("flags", 0), *(numbers.get(name, 0) for name in choices)])
    return data + numbers.get("columns", 2**48 - 1).to_bytes(6, "big") + struct.pack(">qq", piece.base, 5)


def golden_segments(folder: Path) -> Iterator[Segment]:
    """Every data file of every golden, unpacked below ``folder``."""
    for case in sorted({item.case for item in golden.ALL}):
        root = golden.unpack(case, folder)
        check_pos = "040" not in case
        for path in sorted(root.rglob("*")):
            name = path.name
            if (
                path.is_file()
                and len(name) == 20
                and name.isdigit()
                and path.parent.name.startswith(("data", "commitlog"))
            ):
                source = COMMITLOG if path.parent.name.startswith("commitlog") else DLEDGER
                yield Segment.local(str(path), name, int(name), path.stat().st_size, source, check_pos)


def pieces_of(segment: Segment) -> Iterator[Piece]:
    """Runs of rows, including the end of the log and the end of the file."""
    request = ScanRequest(segment, segment.base, segment.end, COLUMNS)
    rows: list[Row] = []
    for batch, _ in get_engine("native").scan(request):
        rows += rows_of([batch])
    run: list[Row] = []
    size = 0
    for row in [*rows, None]:
        if row is None or size + row["size"] > LONGEST or len(run) == MOST_ROWS or row["kind"] == "corrupt":
            if run:
                # With the next bytes: the start of an entry, a blank, zeros, or stale bytes.
                yield _piece(segment, run, 200 if row is None or row["kind"] == "corrupt" else 0)
            run, size = [], 0
        if row and row["kind"] != "corrupt" and row["size"] <= LONGEST:
            run.append(row)
            size += row["size"]


def _piece(segment: Segment, rows: list[Row], more: int) -> Piece:
    start, end = rows[0]["pos"], rows[-1]["pos"] + rows[-1]["size"]
    with open(segment.path, "rb") as file:
        file.seek(start - segment.base)
        data = file.read(end - start + more)
    magic = data[end - start :][: 4 if segment.source == DLEDGER else 8][-4:]
    what_follows = segment.source, segment.check_pos, magic if more else None, len({row["term"] for row in rows})
    return Piece(segment.source, segment.check_pos, start, data, frozenset([what_follows, *map(_sort_of, rows)]))


def _sort_of(row: Row) -> object:
    properties = row["properties"] or []
    names = frozenset(name for name, _ in properties) & {"TAGS", "KEYS", "UNIQ_KEY", "__CRC32#"}
    is_v6 = (row["bornHost"] or "").startswith("[")
    return row["kind"], row["magic"], row["messageMagic"], row["sysFlag"], is_v6, names, len(properties) > 10


def made_pieces() -> Iterator[Piece]:
    """Pieces that no golden has: bodies that look like a log, all kinds of hosts and texts, damage."""

    def made(*sort: object) -> frozenset[object]:
        return frozenset([sort])

    for source, make in ((DLEDGER, entries_at), (COMMITLOG, messages_at)):
        for base in (0, 4096, 2**40, 2**61):
            for check_pos in (True, False):
                log = make(base, 6)
                yield Piece(source, check_pos, base, log + bytes(100), made("log", source, base, check_pos))
                torn = bytearray(log)
                torn[len(log) // 3 : len(log) // 2] = bytes(len(log) // 2 - len(log) // 3)
                yield Piece(source, check_pos, base, bytes(torn), made("torn", source, base, check_pos))
    for name, body in _bodies(1000 + 48):
        log = codec.encode_entry(0, 1, 1000, body)
        for index in range(1, 4):
            log += codec.encode_entry(index, 1, 1000 + len(log), b"x" * 20)
        yield Piece(DLEDGER, True, 1000, log + codec.encode_blank(50).ljust(50, b"\1"), made(name))


def _bodies(at: int) -> Iterator[tuple[str, bytes]]:
    yield "log in a log", b"." + entries_at(at + 1, 8)
    yield "continuing log", b"".join(codec.encode_entry(1 + n, 1, at + 50 * n, b"..") for n in range(5))
    yield "blank", codec.encode_blank(30) * 3
    yield "messages", b"." + messages_at(at + 1)
    for host in ("::", "::ffff:1.2.3.4", "2001:db8::1:0:0:1", "1:2:3:4:5:6:7:8"):
        born, store = encode_host(host, 1), encode_host("127.0.0.1", -1)
        yield f"host {host}", encode_message(b"T", b"body", at, born_host=born, store_host=store)
    for number, text in enumerate((b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xc0\x80\xff")):
        yield f"text {number}", encode_message(text, b"", at, properties=b"a\x01" + text + b"\x02" + text + b"\x01b")
    many = b"".join(b"k%d\x01v%d\x02" % (number % 40, number) for number in range(60))
    yield "properties", encode_message(b"T", b"body", at, properties=many)
    yield "flags", encode_message(b"T", b"body", at, sys_flag=0x7FF & ~0x30, property_crc=True)


def pieces(folder: Path) -> Iterator[Piece]:
    """The pieces with a new sort; goldens are unpacked below ``folder``."""
    seen: set[object] = set()
    segments = golden_segments(folder)
    for piece in itertools.chain(itertools.chain.from_iterable(map(pieces_of, segments)), made_pieces()):
        if not piece.sorts <= seen:
            seen |= piece.sorts
            yield piece


def write(folder: Path) -> int:
    """Write the seeds of each target to ``folder/TARGET``. Returns their number."""
    with tempfile.TemporaryDirectory() as unpacked:
        found = list(pieces(Path(unpacked)))
    segments = [options(piece, **_variation(number)) + piece.data for number, piece in enumerate(found)]
    written = _write_all(folder / "fuzz_scan", segments) + _write_all(folder / "fuzz_walk", segments)
    # A codec's seed is an unused byte, then the bytes of a message or a text.
    texts = [b"\0" + text for text in (b"", b"\xe6\xa0\x87", b"\xed\xa0\x80\xf4\x90", b"\xf0\x9f\x98\x80", bytes(20))]
    written += _write_all(folder / "fuzz_codec", [*texts, *(b"\0" + piece.data[48:] for piece in found)])
    written += _write_all(folder / "fuzz_append", _append_inputs(found))
    return written + _write_all(folder / "fuzz_puts", _put_inputs(found))


def _append_inputs(found: Iterable[Piece]) -> Iterator[bytes]:
    """Entries, and blocks of bodies, after their count, first number, space and position."""
    for number, piece in enumerate(found):
        numbers = bytes([number % 32, number % 7]) + struct.pack(">Hq", 30 * number % 65536, piece.base)
        yield numbers + piece.data
        bodies = [piece.data[at : at + 1 + number] for at in range(0, len(piece.data), 1 + number)][: number % 32 + 1]
        lengths = b"".join(struct.pack(">I", len(body)) for body in bodies)
        yield bytes([len(bodies) - 1]) + numbers[1:] + lengths + b"".join(bodies)


def _put_inputs(found: Iterable[Piece]) -> Iterator[bytes]:
    """Blocks of messages, after their count, the host, the kept ones, and the time."""
    properties = b"a\x01b\x02__DLEDGER_ID\x01" + b"aA0_-zZ9" * 4 + b"\x02"
    made = [
        encode_message(b"T" * length, b"body", 0, properties=properties, store_host=bytes(width), sys_flag=flags)
        for length, width, flags in ((1, 8, 0), (127, 20, 4), (128, 8, 8), (255, 20, 0x70D))
    ]
    ledger = (piece.data for piece in found if piece.source == DLEDGER)
    stored = [data[48 : codec.decode_entry_header(data).size] for data in ledger if len(data) > 48]
    for number, body in enumerate([*made, *stored]):
        bodies = [body, *made[: number % 3]]
        lengths = b"".join(struct.pack(">I", len(body)) for body in bodies)
        yield (
            bytes([len(bodies) - 1])
            + struct.pack(">BHq", number % 2, 65535 - number, number)
            + lengths
            + b"".join(bodies)
        )


def _variation(number: int) -> dict[str, Any]:
    """Options that differ from seed to seed and cover every choice."""
    flags = [0, 8, 4, 32, 16, 24][number % 6]
    return {
        "flags": flags,
        "mode": number % 3,
        "filter": number % 11 + 16 * (number % 4),
        "filter_row": number % 7,
        "batch_rows": number % 6,
        "batch_bytes": number % 5,
        "target": number % 6,
        "range": number % 251,
        "missing": number % 11,
        "stretch": 252 + number // 40 % 4 if number % 40 == 0 else 0,
    }


def _write_all(folder: Path, inputs: Iterable[bytes]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for data in inputs:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        written += 1
    return written
