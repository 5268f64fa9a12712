"""Groups of brokers without DLedger, each damaged at random, and what is damaged where."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.damage import write_at
from tests.support.generate import mq_message, write_commitlog, write_consume_queue

FILE = 4096


@dataclass
class PlainMember:
    """One broker: its root, the rows of its log, and the undamaged bytes of each file."""

    node: str
    path: Path
    rows: list[dict[str, Any]]
    files: dict[str, bytes]

    def file(self, name: str) -> Path:
        return self.path / "commitlog" / name

    def damaged(self) -> set[int]:
        """The positions of the messages whose bytes have changed."""
        now = {name: self.file(name).read_bytes() if self.file(name).exists() else b"" for name in self.files}
        return {row["pos"] for row in self.rows if _of(row, now) != _of(row, self.files)}

    def absent(self, members: Sequence[PlainMember]) -> set[int]:
        """The positions of the messages that only others had."""
        return {row["pos"] for member in members for row in member.rows} - {row["pos"] for row in self.rows}


def _of(row: dict[str, Any], files: dict[str, bytes]) -> bytes:
    at = row["pos"] - int(row["segment"])
    return files[row["segment"]][at : at + row["size"]]


def write_plain_group(root: Path, rng: random.Random) -> list[PlainMember]:
    """Three brokers with the same log; some end a little earlier."""
    count = rng.randint(20, 50)
    payloads = [
        mq_message("T", rng.randbytes(rng.randint(20, 300)), queue_id=n % 2, queue_offset=n // 2) for n in range(count)
    ]
    members = []
    for number in range(3):
        node = f"p{number}"
        store = write_commitlog(
            root / node, payloads[: count - (rng.choice((0, 0, 1, 4)) if number else 0)], file_size=FILE
        )
        write_consume_queue(root / node, store.rows)
        files = {path.name: path.read_bytes() for path in (root / node / "commitlog").iterdir()}
        members.append(PlainMember(node, root / node, store.rows, files))
    return members


def damage_plain(members: list[PlainMember], rng: random.Random) -> None:
    """Damage up to eight places; sometimes the same message on all members. First files stay: others expire too."""
    for _ in range(rng.choice((1, 2, 4, 8))):
        member = rng.choice(members)
        row = rng.choice(member.rows)
        rng.choice((_flip, _flip, _flip, _zeros, _noise, _everywhere, _short, _missing, _queues))(
            members, member, row, rng
        )


Damage = Callable[[list[PlainMember], PlainMember, dict[str, Any], random.Random], None]


def _write(member: PlainMember, row: dict[str, Any], place: int, data: bytes) -> None:
    file, at = member.file(row["segment"]), row["pos"] - int(row["segment"]) + place
    if file.exists() and at + len(data) <= file.stat().st_size:
        write_at(file, at, data)


def _flip(_: list[PlainMember], member: PlainMember, row: dict[str, Any], rng: random.Random) -> None:
    place = rng.randrange(row["size"])
    _write(member, row, place, bytes([_of(row, member.files)[place] ^ 1 << rng.randrange(8)]))


def _zeros(_: list[PlainMember], member: PlainMember, row: dict[str, Any], rng: random.Random) -> None:
    _write(member, row, 0, bytes(rng.randint(1, 600)))


def _noise(_: list[PlainMember], member: PlainMember, row: dict[str, Any], rng: random.Random) -> None:
    _write(member, row, 0, rng.randbytes(rng.randint(1, 200)))


def _everywhere(members: list[PlainMember], _: PlainMember, row: dict[str, Any], rng: random.Random) -> None:
    for member in members:
        _write(member, row, rng.choice((4, 8, 91)), b"\x55\x56")


def _short(_: list[PlainMember], member: PlainMember, row: dict[str, Any], rng: random.Random) -> None:
    if member.file(row["segment"]).exists():
        os.truncate(member.file(row["segment"]), rng.randrange(FILE))


def _missing(_: list[PlainMember], member: PlainMember, row: dict[str, Any], __: random.Random) -> None:
    if row["segment"] != min(member.files):
        member.file(row["segment"]).unlink(missing_ok=True)


def _queues(_: list[PlainMember], member: PlainMember, __: dict[str, Any], ___: random.Random) -> None:
    shutil.rmtree(member.path / "consumequeue", ignore_errors=True)
