"""Damages copies of golden stores with simple operations on the files of a node.

The operations are those in ``corruption-java-behaviour.json``: write, zero, truncate, append, create, delete, mkdir and
swap.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.damage import write_at
from tests.support.golden import GOLDENS, Golden
from tests.support.sparse_copy import copy_tree

Operation = dict[str, Any]


@dataclass(frozen=True)
class Damage:
    """Operations on a copy of a golden store; ``java`` is the recorded result of version 0.3.1.2, if there is one."""

    name: str
    golden: Golden
    operations: list[Operation]
    java: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.golden}-{self.name}"


@cache
def file_sizes(case: str) -> tuple[int, int]:
    """Returns the sizes of data and index files, in bytes, of a case."""
    settings = json.loads((GOLDENS / f"{case}.meta.json").read_text())["config"]
    return int(settings["dataFileSize"]), int(settings["indexFileSize"])


def recorded() -> list[Damage]:
    """Returns the damages with a recorded outcome."""
    cases = json.loads((GOLDENS / "corruption-java-behaviour.json").read_text())
    return [Damage(case["name"], Golden("raw-single", ""), case["operations"], case["java"]) for case in cases]


def apply(operations: list[Operation], node: Path) -> None:
    """Damage the store in the folder `node`."""
    for operation in operations:
        _APPLY[operation["op"]](node / operation["file"], operation)


def _write(file: Path, data: bytes, offset: int) -> None:
    write_at(file, offset, data)


def _truncate(file: Path, operation: Operation) -> None:
    os.truncate(file, operation["length"])


def _append(file: Path, operation: Operation) -> None:
    with file.open("ab") as stream:
        stream.write(bytes(operation["zeros"]))


def _swap(file: Path, operation: Operation) -> None:
    other = file.parent.parent / operation["other"]
    first, second = file.read_bytes(), other.read_bytes()
    file.write_bytes(second)
    other.write_bytes(first)


_APPLY: dict[str, Callable[[Path, Operation], Any]] = {
    "write": lambda file, it: _write(file, bytes.fromhex(it["hex"]), it["offset"]),
    "zero": lambda file, it: _write(file, bytes(it["length"]), it["offset"]),
    "truncate": _truncate,
    "append": _append,
    "create": lambda file, it: file.write_bytes(it["text"].encode() if "text" in it else bytes(it["zeros"])),
    "delete": lambda file, _: file.unlink(),
    "mkdir": lambda file, _: file.mkdir(),
    "swap": _swap,
}


def write(file: str, offset: int, data: bytes) -> Operation:
    return {"op": "write", "file": file, "offset": offset, "hex": data.hex()}


def create(file: str, text: str) -> Operation:
    return {"op": "create", "file": file, "text": text}


def checkpoint(text: str) -> Operation:
    return create("checkpoint", text)


def _blank(size: int) -> bytes:
    return b"\xff\xff\xff\xff" + size.to_bytes(4, "big", signed=True)


def corner_cases() -> list[Damage]:
    """Returns damages that versions handle differently, or that reach corner cases of the model."""
    single, short = Golden("raw-single", ""), Golden("raw-truncated-tail", "n0")
    noops, snapshot, blank_only = (
        Golden("raw-single-040", ""),
        Golden("raw-040-snapshot-keep", "n2"),
        Golden("raw-040-snapshot-blank", "n2"),
    )
    names = {damage.name: damage for damage in recorded()}
    wrong_pos = names["pos-middle-file-middle-entry"].operations
    first, last = "data/00000000000000000000", "data/00000000000003473408"
    snapshot_first = "data/00000000000000065536"
    return [
        *(names[name] for name in _RECORDED_CORNER_CASES),
        Damage("checkpoint-no-number", single, [checkpoint("committedIndex=many\n")]),
        Damage("checkpoint-negative", single, [checkpoint("committedIndex=-7\n")]),
        Damage("checkpoint-with-blanks", single, [checkpoint("# old\ncommittedIndex : +12 \n")]),
        Damage("committed-entry-damaged", single, [*wrong_pos, checkpoint("committedIndex=1585\n")]),
        Damage("currterm-no-number", single, [create("currterm", "currTerm=many\nvoteLeader=n0\n")]),
        Damage("foreign-name-right-size", single, [{"op": "create", "file": "data/notes", "zeros": 65536}]),
        Damage("foreign-number-right-size", single, [{"op": "create", "file": "data/7", "zeros": 65536}]),
        Damage("last-body-size-negative", single, [write(last, 19345 - 8 + 4, bytes.fromhex("0000002d")),
                                                   write(last, 19345 - 8 + 44, bytes.fromhex("fffffffd"))]),
        Damage("first-index-one-bit", short, [write(first, 8, (4).to_bytes(8, "big"))]),
        Damage("first-index-far", short, [write(first, 8, (2**40).to_bytes(8, "big"))]),
        Damage("first-index-negative", short, [write(first, 8, b"\xff")]),
        Damage("first-index-far-elsewhere", single, [write(first, 8, (2**40).to_bytes(8, "big"))]),
        Damage("begin-after-end", short, [write(first, 8, b"\0" * 7 + b"\xb4"), checkpoint("committedIndex=300")]),
        Damage("files-swapped", Golden("raw-three-diverged", "n0"),
               [{"op": "swap", "file": first, "other": "data/00000000000000049152"}]),
        Damage("no-data", short, [{"op": "delete", "file": first}]),
        Damage("as-it-is", noops, []),
        Damage("blank-in-the-middle", noops, [write("data/00000000000000327680", 0, _blank(1000))]),
        Damage("blank-of-nothing", noops, [write("data/00000000000000327680", 0, _blank(0))]),
        Damage("as-it-is", snapshot, []),
        Damage("leading-blank-too-long", snapshot, [write(snapshot_first, 4, bytes.fromhex("0001ffff"))]),
        Damage("as-it-is", blank_only, []),
        Damage("blank-over-the-file", blank_only, [write(first, 0, _blank(32768))]),
    ]  # fmt: skip


_RECORDED_CORNER_CASES = (
    *(
        "untouched",
        "magic-last-file-first-entry",
        "term-up-last-file-middle-entry",
        "index-second-last-file-middle-entry",
    ),
    *("blank-magic-second-last-file", "magic-third-last-file-middle-entry", "last-file-cut", "delete-middle-data-file"),
    *("delete-first-data-file", "extra-zero-data-file", "foreign-directory-in-data", "delete-all-index-files"),
    *("delete-last-index-file", "delete-middle-index-file", "zero-first-index-file", "forged-entry-behind-end"),
)


class RandomDamage:
    """Random damages, mostly to headers, the last files and the first entries of files."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def operations(self, node: Path) -> list[Operation]:
        """Applies one to three random operations to the store in `node` and returns them."""
        done = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            made = self.random.choices(*zip(*self._WEIGHTS, strict=True))[0](self, node)
            apply(made, node)
            done += made
        return done

    def _data_file(self, node: Path) -> Path | None:
        files = sorted(file for file in (node / "data").iterdir() if file.is_file() and file.stat().st_size)
        from_end = min(int(self.random.expovariate(0.4)), len(files) - 1)
        return files[len(files) - 1 - from_end] if files else None

    def _header_field(self, node: Path) -> list[Operation]:
        file = self._data_file(node)
        offsets = _frames(file) if file is not None else []
        if file is None or not offsets:
            return []
        at = self.random.choice([offsets[0]] * 3 + offsets)
        offset, length = self.random.choice(((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (32, 12), (44, 4)))
        data = file.read_bytes()[at + offset : at + offset + length]
        return [write(f"data/{file.name}", at + offset, self._changed(data))] if len(data) == length else []

    def _changed(self, data: bytes) -> bytes:
        value, bits = int.from_bytes(data, "big"), 8 * len(data)
        changed = self.random.choice((
            value ^ 1 << self.random.randrange(bits), value ^ 1 << self.random.randrange(bits), 0, -1,
            value + self.random.choice((1, -1, 2, -3, 48, 100)), self.random.getrandbits(bits),
        ))  # fmt: skip
        return (changed % (1 << bits)).to_bytes(len(data), "big")

    def _zeros(self, node: Path) -> list[Operation]:
        file = self._data_file(node)
        if file is None:
            return []
        size = file.stat().st_size
        offset = self.random.randrange(0, size, 512)
        return [{"op": "zero", "file": f"data/{file.name}", "offset": offset, "length": min(4096, size - offset)}]

    def _blank(self, node: Path) -> list[Operation]:
        file = self._data_file(node)
        offsets = _frames(file) if file is not None else []
        if file is None or not offsets:
            return []
        at = self.random.choice(offsets)
        left = file.stat().st_size - at
        size = self.random.choice((left, 0, 8, -8, 1, 16, 100, -100, 2**31 - 1, left - 8))
        return [write(f"data/{file.name}", at, _blank(size))] if left >= 8 else []

    def _files(self, node: Path) -> list[Operation]:
        file = self._data_file(node)
        if file is None:
            return []
        name, size = f"data/{file.name}", file.stat().st_size
        files = sorted(each.name for each in (node / "data").iterdir() if each.is_file())
        next_base = (
            max((int(each) for each in files if each.isdecimal()), default=0) + self.random.choice((1, 2)) * size
        )
        foreign = self.random.choice(("notes.txt", "0", "x"))
        return self.random.choice((
            [{"op": "delete", "file": name}],
            [{"op": "delete", "file": f"data/{each}"} for each in files[: self.random.randrange(1, len(files) + 1)]],
            [{"op": "truncate", "file": name, "length": self.random.choice((0, 100, size + 1))}],
            [{"op": "create", "file": f"data/{foreign}", "zeros": self.random.choice((13, size))}],
            [{"op": "create", "file": f"data/{next_base:020d}", "zeros": size}],
            [{"op": "swap", "file": name, "other": f"data/{self.random.choice(files)}"}],
        ))  # fmt: skip

    def _index(self, node: Path) -> list[Operation]:
        files = sorted((node / "index").iterdir())
        if not files:
            return []
        file = self.random.choice(files)
        name, size = f"index/{file.name}", file.stat().st_size
        if not size:
            return []
        unit = self.random.choice((0, self.random.randrange(size // 32)))
        at = 32 * unit + self.random.choice((0, 4, 12, 16, 24))
        damages: list[list[Operation]] = [
            [write(name, at, self.random.randbytes(4))],
            [write(name, at, self.random.randbytes(4))],
            [{"op": "delete", "file": name}],
            [{"op": "zero", "file": name, "offset": 0, "length": size}],
            [{"op": "delete", "file": f"index/{each.name}"} for each in files],
        ]
        return self.random.choice(damages)

    def _state(self, _: Path) -> list[Operation]:
        committed = ("5000", "3", "", "abc", " 12 ", "-7", "-1", "+20", "9" * 20, str(self.random.randrange(1000)))
        texts = [f"committedIndex={value}\n" for value in committed] + ["", "endIndex=4\n", "committedIndex: 7"]
        terms = ("currTerm=7\nvoteLeader=n0\n", "currTerm=x\nvoteLeader=n0\n", "voteLeader=n5\n", "", "currTerm= 9\n")
        return [
            self.random.choice((checkpoint(self.random.choice(texts)), create("currterm", self.random.choice(terms))))
        ]

    _WEIGHTS = ((_header_field, 45), (_zeros, 5), (_blank, 7), (_files, 17), (_index, 16), (_state, 10))


def _frames(file: Path) -> list[int]:
    """Returns the offsets of entries and blanks in a data file, and of their end if it is inside the file."""
    data, at, offsets = file.read_bytes(), 0, []
    while at + 48 <= len(data):
        magic, size = (int.from_bytes(data[at + i : at + i + 4], "big", signed=True) for i in (0, 4))
        if magic not in (-1, 1, 2, 3) or not 8 <= size <= len(data) - at:
            break
        offsets.append(at)
        at += size
    return [*offsets, at] if at < len(data) else offsets


def copy_store(node: Path, folder: Path) -> Path:
    """Copies a node's folder into `folder`, which is emptied first. Holes are not kept: raw goldens have none."""
    shutil.rmtree(folder, ignore_errors=True)
    return copy_tree(node, folder / node.name)
