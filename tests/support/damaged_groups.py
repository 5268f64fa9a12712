"""Groups of three members, each damaged at random, and what is damaged where."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_dledger.log import open_log
from tests.support.damage import write_at
from tests.support.generate import Payload, Store, mq_message, raw, write_consume_queue, write_dledger
from tests.support.sparse_copy import copy_tree

FILE = 4096
SECTOR = 512


@dataclass
class Member:
    """One member: its path and, for each index, the file, offset and bytes of the undamaged entry.

    ``has_pos``: headers have their position; those of 0.4.0 keep the leader's, so nothing shows a wrong one.
    """

    node: str
    path: Path
    entries: dict[int, tuple[Path, int, bytes]]
    damaged: set[int] = field(default_factory=set)
    has_pos: bool = True

    def without_pos(self, data: bytes) -> bytes:
        """The bytes of an entry; without its position if that says nothing."""
        return data if self.has_pos else data[:24] + bytes(8) + data[32:]

    def touched(self, file: Path, start: int, end: int) -> set[int]:
        """The entries with bytes in ``[start, end)`` of a file."""
        return {
            index
            for index, (path, offset, data) in self.entries.items()
            if path == file and offset < end and start < offset + len(data)
        }

    def write(self, file: Path, start: int, data: bytes) -> None:
        write_at(file, start, data)

    def find_damaged(self) -> None:
        """Set `damaged` to the entries whose bytes have changed."""
        contents = {path: path.read_bytes() if path.exists() else b"" for path, _, _ in self.entries.values()}
        self.damaged = {
            index
            for index, (path, offset, data) in self.entries.items()
            if self.without_pos(contents[path][offset : offset + len(data)]) != self.without_pos(data)
        }


def write_group(root: Path, rng: random.Random, as_messages: bool) -> list[Member]:
    """Three members with the same log; some end a little earlier."""
    count = rng.randint(25, 60)
    terms = sorted(rng.choice((1, 1, 2, 3)) for _ in range(count))
    payloads = [_message(n, rng) if as_messages else raw(f"{n} ".encode() * rng.randint(5, 80)) for n in range(count)]
    members = []
    for number in range(3):
        length = count - rng.choice((0, 0, 0, 1, 4)) if number else count
        node = f"n{number}"
        folder = root / node
        options = {"node": node, "terms": terms[:length], "file_size": FILE, "committed": count - 5}
        store = write_dledger(folder, payloads[:length], **options)
        if as_messages:
            write_consume_queue(folder, store.rows)
        members.append(_member(node, folder, store))
    return members


def _message(number: int, rng: random.Random) -> Payload:
    body = bytes(rng.randrange(256) for _ in range(rng.randint(20, 300)))
    return mq_message("T", body, queue_id=number % 3, queue_offset=number // 3, properties=[("KEYS", f"k{number}")])


def _member(node: str, folder: Path, store: Store) -> Member:
    bases = {segment.name: (Path(segment.path), segment.base) for segment in store.segments}
    entries = {}
    for row in store.rows:
        path, base = bases[row["segment"]]
        offset = row["pos"] - base
        entries[row["index"]] = path, offset, path.read_bytes()[offset : offset + row["size"]]
    return Member(node, folder, entries)


def copied_member(source: Path, folder: Path, node: str) -> Member:
    """A copy of a node's store, with the entries that a read finds in it."""
    copy_tree(source, folder)
    log = open_log(folder)
    bases = {segment.name: (Path(segment.path), segment.base) for segment in log.segments}
    contents = {name: path.read_bytes() for name, (path, _) in bases.items()}
    entries = {}
    for batch in log.scan(["index", "pos", "size", "segment"]):
        for row in batch.to_pylist():
            path, base = bases[row["segment"]]
            offset = row["pos"] - base
            entries[row["index"]] = path, offset, contents[row["segment"]][offset : offset + row["size"]]
    return Member(node, folder, entries, has_pos=log.dialect != "0.4")


def damage(members: list[Member], rng: random.Random, count: int = 6) -> None:
    """Damage members at random so that every entry stays intact on one of those that have it."""
    for _ in range(count):
        member = rng.choice(members)
        index = rng.choice(sorted(member.entries))
        file, offset, data = member.entries[index]
        start, change = rng.choice((_flip, _flip, _flip, _zeros, _noise, _sector))(file, offset, data, rng)
        touched = member.touched(file, start, start + len(change))
        if all(_is_intact_elsewhere(members, member, each) for each in touched):
            member.write(file, start, change)
            member.damaged |= touched
    for member in members:
        member.find_damaged()


def lose(members: list[Member], rng: random.Random, count: int = 3) -> set[int]:
    """Damage some entries on every member that has them, so that a check shows it; returns their indexes."""
    common = sorted(set.intersection(*(set(member.entries) for member in members)))
    lost = set(rng.sample(common[1:-8], count))
    for index in lost:
        for number, member in enumerate(members):
            file, offset, data = member.entries[index]
            # The header, or the message's body: both are protected. Equal copies may have been written so.
            place = rng.choice((4, 12, 48 + 91))
            member.write(file, offset + place, bytes(value ^ 0x55 + number for value in data[place : place + 2]))
    for member in members:
        member.find_damaged()
    return lost


def _is_intact_elsewhere(members: Iterable[Member], damaged: Member, index: int) -> bool:
    data = damaged.without_pos(damaged.entries[index][2])
    others = (member for member in members if member is not damaged and index in member.entries)
    return any(
        member.without_pos(member.entries[index][2]) == data and index not in member.damaged for member in others
    )


Damage = Callable[[Path, int, bytes, random.Random], tuple[int, bytes]]


def _flip(_: Path, offset: int, data: bytes, rng: random.Random) -> tuple[int, bytes]:
    place = rng.choice((rng.randrange(len(data)), rng.randrange(48)))
    return offset + place, bytes([data[place] ^ 1 << rng.randrange(8)])


def _zeros(_: Path, offset: int, data: bytes, rng: random.Random) -> tuple[int, bytes]:
    return offset + rng.randrange(len(data)), bytes(rng.randint(1, 600))


def _noise(_: Path, offset: int, data: bytes, rng: random.Random) -> tuple[int, bytes]:
    return offset + rng.randrange(len(data)), rng.randbytes(rng.randint(1, 200))


def _sector(_: Path, offset: int, data: bytes, rng: random.Random) -> tuple[int, bytes]:
    start = (offset + rng.randrange(len(data))) // SECTOR * SECTOR
    return start, bytes(SECTOR)
