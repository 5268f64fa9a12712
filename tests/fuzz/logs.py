"""Makes segments to compare the engines: pieces of goldens, random logs, noise, and their damage.

Everything depends on a `random.Random`, so that a seed repeats a case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from pyspark_dledger.format import codec, layout
from pyspark_dledger.format.message import encode_host, encode_message
from pyspark_dledger.format.scan.frames import SPAN_WINDOW
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, PrecedingEntry
from tests.fuzz.corpus import Piece

HOSTS = ("127.0.0.1", "10.1.2.3", "::", "::ffff:1.2.3.4", "2001:db8::1:0:0:1", "1:0:3:4:5:6:7:8", "0:0:1::")
TEXTS = (
    b"",
    b"A",
    b"OrderTopic",
    "标题".encode(),
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
    b"\0\xff",
    b"x" * 200,
)
NAMES = (b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", b"WAIT", b"", b"\xc3")
NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    47,
    48,
    49,
    91,
    127,
    255,
    4096,
    2**31 - 1,
    -1,
    -2,
    -(2**31),
    2**63 - 1,
    -(2**63),
    2**32 + 1,
)
TIMES = (0, -1, 1700000000000, 1700000000137, -62135596800001, 253402300800000, 2**63 - 1)
ALPHABETS = (
    b"\0\1",
    b"\0\0\0\0\0\0\1\x30\xff",
    b"\xff",
    bytes(range(256)),
    b"\xda\xa3\x20\xa7\xab\0",
    b"\xcb\xd4\x31\x94\0\x08",
)


@dataclass
class Log:
    """The bytes of a segment and their meaning.

    ``frames`` are position and size of the written entries or messages. They are known for random logs that have only
    accidental damage, see `damage`.
    """

    source: str
    check_pos: bool
    base: int
    data: bytearray
    name: str
    missing: int = 0
    """The file is shorter than its segment by so many bytes."""
    before: PrecedingEntry | None = None
    frames: list[tuple[int, int]] = field(default_factory=list)
    knows_frames: bool = False
    is_hostile: bool = False
    """Whether bodies contain frames that could continue the log. After damage they cannot be distinguished from it."""
    steps: list[str] = field(default_factory=list)

    @property
    def is_dledger(self) -> bool:
        return self.source == DLEDGER


def random_log(random: Random, pieces: list[Piece]) -> Log:
    """A random segment without damage."""
    sort = random.choices(("made", "golden", "noise", "large"), (60, 30, 9, 1))[0]
    if sort == "golden":
        return _golden(random, pieces)
    if sort == "noise":
        return _noise(random)
    return _made(random, is_large=sort == "large")


def _golden(random: Random, pieces: list[Piece]) -> Log:
    piece = random.choice(pieces)
    data = bytearray(piece.data)
    # Another piece may follow, whose entries have other positions.
    if random.random() < 0.2:
        data += random.choice(pieces).data
    return Log(piece.source, piece.check_pos, piece.base, data, "golden")


def _noise(random: Random) -> Log:
    size = random.choice((0, 1, 7, 8, 47, 48, 91, 500, 3000))
    source = random.choice((DLEDGER, COMMITLOG))
    data = bytearray(random.choices(random.choice(ALPHABETS), k=size))
    return Log(source, random.random() < 0.5, random.choice((0, 4096, 2**61)), data, "noise")


class _Writer:
    """Writes consecutive frames."""

    def __init__(self, random: Random, log: Log, shift: int) -> None:
        self.random = random
        self.log = log
        self.index = random.choice((0, 1, 5, 2**40, 2**63 - 20))
        self.term = random.choice((-1, 0, 1, 7))
        self._shift = shift

    @property
    def pos(self) -> int:
        return self.log.base + len(self.log.data)

    def write(self, size: int) -> None:
        """An entry or message of about this size."""
        pos, random = self.pos, self.random
        if self.log.is_dledger:
            body = self._body(pos + layout.ENTRY_HEADER_SIZE, size)
            magic = random.choices((1, 2, 3), (20, 1, 1))[0]
            body_crc = codec.signed32(codec.crc32(body)) ^ (random.random() < 0.3) if random.random() < 0.1 else 0
            frame = codec.encode_entry(self.index, self.term, pos - self._shift, body, magic=magic, body_crc=body_crc)
        else:
            frame = self._message(pos, size)
        self.log.frames.append((pos, len(frame)))
        self.log.data += frame
        self.index = min(self.index + 1, 2**63 - 1)
        self.term += random.random() < 0.05

    def _body(self, at: int, size: int) -> bytes:
        sort = self.random.choices(("plain", "message", "hostile"), (40, 30, 30 * self.log.is_hostile))[0]
        if sort == "plain":
            return (
                self.random.randbytes(size)
                if self.random.random() < 0.5
                else bytes([self.random.randrange(256)]) * size
            )
        if sort == "message":
            return self._message(at, size)
        return self._hostile(at, size)

    def _message(self, at: int, size: int) -> bytes:
        random = self.random
        pairs = [random.choice(NAMES) + b"\1" + random.choice(TEXTS) for _ in range(random.choice((0, 1, 3, 3, 40)))]
        hostile = self.log.is_hostile and random.random() < 0.4
        body = self._hostile(at + 88, size) if hostile else random.randbytes(size)
        return encode_message(
            random.choice(TEXTS[1:]),
            body,
            at if random.random() < 0.95 or not self.log.is_dledger else at + 1,
            magic=random.choice((None, layout.MESSAGE_MAGIC_V2)),
            queue_id=random.choice((0, 1, -1)),
            sys_flag=random.choice((0, 0, 0, 1, 0x101, 0x201, 0x301, 0x701, 4, 8, 12)),
            born_host=encode_host(random.choice(HOSTS), random.choice((1, -1, 10911))),
            store_host=encode_host(random.choice(HOSTS), 10911),
            born_timestamp=random.choice(TIMES) if random.random() < 0.1 else TIMES[2],
            store_timestamp=random.choice(TIMES) if random.random() < 0.1 else TIMES[3] + len(self.log.frames),
            properties=b"\2".join(pairs),
            property_crc=random.random() < 0.2,
        )

    def _hostile(self, at: int, size: int) -> bytes:
        """Bytes that look like a log at this position: chains of entries, messages and blanks."""
        random = self.random
        data = b"." * random.choice((0, 1, 8, 48))
        index = self.index + random.choice((-1, 0, 1, 1, 2, 2, 3, 10, 1000))
        term = self.term + random.choice((-1, 0, 0, 0, 1, 100))
        while len(data) < size:
            inner = b"x" * random.choice((0, 1, 20, 100))
            index, term = min(max(index, 0), 2**63 - 1), max(term, -1)
            sort = random.choices(("entry", "message", "blank", "junk", "spanning"), (70, 10, 5, 5, 3))[0]
            if sort == "entry":
                data += codec.encode_entry(index, term, at + len(data) - self._shift, inner)
                index += 1
            elif sort == "message":
                data += encode_message(b"Inner", inner, at + len(data), store_timestamp=TIMES[3])
            elif sort == "blank":
                data += codec.encode_blank(random.choice(NUMBERS[:12]))
            elif sort == "junk":
                data += random.randbytes(random.choice((1, 4, 30)))
            else:  # an entry that extends past this body
                reach = b"y" * random.choice((size, 2 * size, 3000))
                data += codec.encode_entry(index, term, at + len(data) - self._shift, reach)[:48]
        return data


def _made(random: Random, is_large: bool) -> Log:
    source = DLEDGER if random.random() < 0.7 else COMMITLOG
    check_pos = random.random() < 0.7
    base = random.choice((0, 0, 4096, 2**30, 2**61))
    log = Log(source, check_pos, base, bytearray(), "large" if is_large else "made", knows_frames=True)
    log.is_hostile = random.random() < 0.5
    shift = 0 if check_pos or source == COMMITLOG else random.choice((0, 0, 1, 1000))
    writer = _Writer(random, log, shift)
    if writer.index > 2**62:  # the index stops growing at its maximum
        log.knows_frames = False
    if random.random() < 0.3 and log.is_dledger and writer.index > 4:
        missing = random.choice((0, 0, 0, 4))
        log.before = PrecedingEntry(writer.index - 1 - missing, writer.term, log.base)
        log.knows_frames = log.knows_frames and missing == 0
    if not check_pos and random.random() < 0.2:
        size = random.choice((8, 100, 1000))
        log.data += codec.encode_blank(size).ljust(size, random.choice((b"\0", b"\1")))
    if is_large:
        min_size = random.choice((SPAN_WINDOW // 2, SPAN_WINDOW, 3 * SPAN_WINDOW))
        length = random.choice((20_000, 300_000))
    else:
        min_size = random.choice((300, 2000, 6000))
        length = random.choice((0, 10, 60, 300))
    while len(log.data) < min_size:
        writer.write(random.randrange(length + 1))
        if random.random() < 0.01:  # either side of such a gap could be the log
            writer.index = min(max(0, writer.index + random.choice((1, 5, -3))), 2**63 - 1)
            log.knows_frames = False
    _close(random, log)
    return log


def _close(random: Random, log: Log) -> None:
    """Write the bytes after the last entry."""
    sort = random.choice(("nothing", "zeros", "blank", "odd blank", "stale", "junk", "short file"))
    log.steps.append(f"ends with {sort}")
    tail_size = random.choice((8, 9, 48, 100, 1000))
    if sort in ("blank", "odd blank"):
        size = tail_size if sort == "blank" else random.choice(NUMBERS[:14])
        blank = codec.encode_blank(size)
        if not log.is_dledger:
            blank = size.to_bytes(4, "big", signed=True) + layout.MESSAGE_MAGIC_BLANK.to_bytes(4, "big", signed=True)
        log.data += blank.ljust(tail_size, random.choice((b"\0", b"\1")))
    elif sort == "zeros":
        log.data += bytes(tail_size)
    elif sort == "junk":
        log.data += random.randbytes(tail_size)
    elif sort == "stale":
        writer = _Writer(random, Log(log.source, log.check_pos, log.base + len(log.data), bytearray(), "stale"), 0)
        while len(writer.log.data) < tail_size:
            writer.write(random.randrange(100))
        log.data += writer.log.data
        log.knows_frames = False
    elif sort == "short file":
        log.missing = random.choice((1, 8, 48, 5000, 2**20))


def damage(random: Random, log: Log) -> None:
    """Apply accidental damage, or deliberate changes, after which the frames are not known."""
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 6))):
        if random.random() < 0.7:
            _accident(random, log)
        else:
            log.knows_frames = False
            _change(random, log)


def _accident(random: Random, log: Log) -> None:
    data = log.data
    if not data:
        return
    at = random.randrange(len(data))
    if log.frames and random.random() < 0.7:
        pos, _ = random.choice(log.frames)
        at = min(pos - log.base + random.choice((0, 3, 4, 7, 8, 15, 20, 24, 31, 44, 47, 60)), len(data) - 1)
    page = random.choice((16, 64, 512, 4096))
    begin = at - at % page
    length = min(page, len(data) - begin)
    sort = random.choice(("bit", "zeros", "page of zeros", "swapped pages", "torn write", "noise", "lost end"))
    log.steps.append(f"{sort} at {at}")
    if sort == "bit":
        data[at] ^= 1 << random.randrange(8)
    elif sort == "zeros":
        length = min(random.choice((1, 4, 48, 200)), len(data) - at)
        data[at : at + length] = bytes(length)
    elif sort == "page of zeros":
        data[begin : begin + length] = bytes(length)
    elif sort == "swapped pages":
        # Without positions in the entries, complete ones can be in the other page too.
        log.knows_frames = log.knows_frames and (log.check_pos or not log.is_dledger)
        other = random.randrange(len(data)) // page * page
        length = min(length, len(data) - other)
        data[begin : begin + length], data[other : other + length] = (
            data[other : other + length],
            data[begin : begin + length],
        )
    elif sort == "torn write":  # no later byte was written
        data[at:] = bytes(len(data) - at)
    elif sort == "noise":
        length = min(random.choice((1, 8, 100, 1000)), len(data) - at)
        data[at : at + length] = random.randbytes(length)
    elif random.random() < 0.3:
        del data[at:]


def _change(random: Random, log: Log) -> None:
    data = log.data
    at = random.randrange(len(data) + 1)
    if log.frames:
        pos, _ = random.choice(log.frames)
        at = min(pos - log.base + 4 * random.randrange(24), len(data))
    sort = random.choice(("number", "number", "blank", "inserted", "removed", "copied", "sizes", "indexes"))
    log.steps.append(f"{sort} at {at}")
    if sort in ("sizes", "indexes"):
        if log.frames and log.is_dledger:
            (_change_sizes if sort == "sizes" else _change_indexes)(random, log)
        return
    size = random.choice((1, 4, 48, 100))
    if sort == "number":
        number = random.choice(NUMBERS)
        width = 8 if random.random() < 0.5 or not -(2**31) <= number < 2**31 else 4
        data[at : at + width] = number.to_bytes(width, "big", signed=True)[: len(data) - at]
    elif sort == "blank":
        blank = codec.encode_blank(random.choice(NUMBERS[:15]))
        data[at : at + 8] = (blank if log.is_dledger else blank[4:] + b"\xcb\xd4\x31\x94")[: len(data) - at]
    elif sort == "inserted":
        data[at:at] = random.randbytes(size)
    elif sort == "removed":
        del data[at : at + size]
    else:
        begin = random.randrange(len(data) + 1)
        data[at:at] = data[begin : begin + random.choice((48, 200, 1000))]


def _change_sizes(random: Random, log: Log) -> None:
    """Change one size of an entry, or both, so that they lead to another entry."""
    pos, size = random.choice(log.frames)
    ends = [at for at, _ in log.frames if at > pos]
    ends += [pos + offset for offset in range(48, size) if log.data[pos - log.base + offset :][:4] == b"\0\0\0\1"]
    wrong = random.choice(ends) - pos if ends else 48
    fields = random.choice(((4,), (44,), (4, 44), (0, 4), (0, 44)))
    for at in fields:
        value = {0: 0, 4: wrong, 44: wrong - layout.ENTRY_HEADER_SIZE}[at]
        _overwrite(log, pos + at, value.to_bytes(4, "big", signed=True))


def _change_indexes(random: Random, log: Log) -> None:
    """Change the indexes of consecutive entries, and destroy an entry after them."""
    first = random.randrange(len(log.frames))
    some = log.frames[first : first + random.choice((1, 2, 4, 5, 8))]
    add = random.choice((1, 2, 3, 100))
    for pos, _ in some:
        at = pos - log.base + 8
        index = int.from_bytes(log.data[at : at + 8], "big", signed=True) + add
        _overwrite(log, pos + 8, min(index, 2**63 - 1).to_bytes(8, "big", signed=True))
    last = first + len(some) + random.choice((0, 0, 0, 1, 4, 7))
    if last < len(log.frames):
        _overwrite(log, log.frames[last][0], bytes(8))


def _overwrite(log: Log, pos: int, data: bytes) -> None:
    at = pos - log.base
    data = data[: max(0, len(log.data) - at)]
    log.data[at : at + len(data)] = data
