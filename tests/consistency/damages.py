"""Damages of a world by seed: bits, sectors, pages, torn writes, whole files, headers, and files other than the log."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path

from tests.consistency.worlds import LEDGER, Replica, World
from tests.support import damage as support
from tests.support.damage import write_at
from tests.support.sparse_copy import copy_tree

SECTOR, PAGE = 512, 4096
COUNTS = (0, 1, 1, 2, 3, 5, 8, 12, 20, 40)

Files = dict[Path, bytes]
OLD_FILES = 10
"""One of so many seeds has a file that was put back, by a draw of its own: the other damages of a seed stay."""

Damage = Callable[[random.Random, World, Replica], str | None]
"""Damages a replica; says what it did, None if it could do nothing."""


def damage(world: World, count: int | None = None) -> None:
    """Damage replicas; sometimes one is given twice, as a copied folder."""
    draw = random.Random(f"damages {world.seed}")
    files = {path: path.read_bytes() for each in world.replicas for path in each.path.rglob("*") if path.is_file()}
    count = draw.choice(COUNTS) if count is None else count
    # By a draw of its own: the other damages of a seed stay.
    own = random.Random(f"properties {world.seed}")
    if count and own.random() < 0.1:
        replica = own.choice(world.replicas)
        done = zeros_in_properties(own, world, replica)
        if done is not None:
            replica.damages.append(f"zeros_in_properties {done}")
    for _ in range(count):
        made, weight = zip(*DAMAGES.items(), strict=True)
        one = draw.choices(made, weight)[0]
        replica = draw.choice(world.replicas)
        done = one(draw, world, replica)
        if done is not None:
            replica.damages.append(f"{one.__name__.strip('_')} {done}")
    if count and world.seed % OLD_FILES == OLD_FILES // 2:
        own = random.Random(f"old files {world.seed}")
        replica = own.choice(world.replicas)
        done = old_file(own, world, replica, files)
        if done is not None:
            replica.damages.append(f"old_file {done}")


def copied(world: World, draw: random.Random) -> Replica:
    """A copy of a replica's folder, with the same files."""
    source = draw.choice(world.replicas)
    path = source.path.parent / "copy"
    copy_tree(source.path, path)
    return Replica("copy", path, source.entries, source.damages, source.name)


def _log_file(draw: random.Random, replica: Replica) -> Path | None:
    files = replica.files()
    return draw.choice(files) if files else None


def _written(replica: Replica, path: Path) -> int:
    """How many bytes of a file of the log were written."""
    base = int(path.name)
    return max((entry.end - base for entry in replica.entries if base <= entry.pos < base + 2**20), default=0)


def _at_a_place(change: Callable[[random.Random, Path, int, int], str | None]) -> Damage:
    """A damage of a file of the log, of which `change` gets the size and a place that was written."""

    @wraps(change)
    def damaged(draw: random.Random, _: World, replica: Replica) -> str | None:
        path = _log_file(draw, replica)
        if path is None:
            return None
        size = path.stat().st_size
        written = min(_written(replica, path), size)
        return change(draw, path, size, draw.randrange(written)) if written > 0 else None

    return damaged


def _zero(path: Path, start: int, size: int) -> str:
    """Zero bytes of a file up to its end; says which."""
    write_at(path, start, bytes(max(min(size, path.stat().st_size - start), 0)))
    return f"{path.name} at {start}, {size} bytes"


@_at_a_place
def flip(draw: random.Random, path: Path, _size: int, at: int) -> str:
    support.flip(path, at, 1 << draw.randrange(8))
    return f"{path.name} at {at}"


@_at_a_place
def zeros(draw: random.Random, path: Path, _size: int, at: int) -> str:
    size = draw.choice((SECTOR, PAGE, draw.randint(1, 600)))
    return _zero(path, at // size * size if size in (SECTOR, PAGE) else at, size)


@_at_a_place
def noise(draw: random.Random, path: Path, length: int, at: int) -> str:
    size = min(draw.randint(1, 200), length - at)
    write_at(path, at, draw.randbytes(size))
    return f"{path.name} at {at}, {size} bytes"


def torn(draw: random.Random, _: World, replica: Replica) -> str | None:
    """The last sectors of the log were not written, or some of them."""
    files = [path for path in replica.files() if _written(replica, path) > 0]
    if not files or not files[-1].stat().st_size:
        return None
    path = files[-1]
    last = (min(_written(replica, path), path.stat().st_size) - 1) // SECTOR
    if last < 0:
        return None
    sectors = [each for each in range(max(last - draw.randint(0, 4), 0), last + 1) if draw.random() < 0.7]
    for each in sectors:
        _zero(path, each * SECTOR, SECTOR)
    return f"{path.name} sectors {sectors}"


def zeros_in_properties(draw: random.Random, _: World, replica: Replica) -> str | None:
    """The sector, or the page, from an edge within the last properties of a message on: its checksum does not tell."""
    files = {int(path.name): path for path in replica.files()}
    size = draw.choice((SECTOR, PAGE))
    edges = []
    for entry in replica.entries:
        base = max((each for each in files if each <= entry.pos), default=None)
        edge = entry.end // size * size
        if base is not None and entry.end - edge < len(entry.data) - entry.data.rfind(b"\1") and edge > entry.pos:
            edges.append((files[base], edge - base))
    if not edges:
        return None
    path, at = draw.choice(edges)
    return _zero(path, at, size)


def header(draw: random.Random, world: World, replica: Replica) -> str | None:
    """Some bytes of the header of an entry or of its message."""
    if not replica.entries:
        return None
    entry = draw.choice(replica.entries)
    fields = (
        [(0, 4), (4, 4), (20, 4), (28, 8)]
        if world.kind != LEDGER
        else [(0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (44, 4)]
    )
    at, size = draw.choice(fields)
    done = _write_at(replica, entry.pos + at, draw.choice((bytes(size), draw.randbytes(size), b"\xff" * size)))
    return f"entry {entry.number} byte {at}" if done else None


def everywhere(draw: random.Random, world: World, _: Replica) -> str | None:
    """The same entry on all replicas."""
    entry = draw.choice(world.main)
    place = draw.choice((0, 4, draw.randrange(len(entry.data))))
    is_equal = draw.random() < 0.3
    change = draw.randbytes(2)
    having = [each for each in world.replicas if entry in each.entries]
    for each in having:
        done = _write_at(each, entry.pos + place, change if is_equal else draw.randbytes(2))
        if done:
            each.damages.append(f"everywhere entry {entry.number} byte {place}{' alike' if is_equal else ''}")
    return None


def _write_at(replica: Replica, pos: int, change: bytes) -> bool:
    path = max((each for each in replica.files() if int(each.name) <= pos), default=None)
    if path is None:
        return False
    at = pos - int(path.name)
    if at + len(change) > path.stat().st_size:
        return False
    write_at(path, at, change)
    return True


@_at_a_place
def swap_sectors(draw: random.Random, path: Path, length: int, at: int) -> str | None:
    one, two = at // SECTOR * SECTOR, draw.randrange(length) // SECTOR * SECTOR
    data = path.read_bytes()
    first, second = data[one : one + SECTOR], data[two : two + SECTOR]
    if len(first) != len(second):
        return None
    write_at(path, one, second)
    write_at(path, two, first)
    return f"{path.name} {one} and {two}"


def swap_files(draw: random.Random, _: World, replica: Replica) -> str | None:
    files = replica.files()
    if len(files) < 2:
        return None
    one, two = draw.sample(files, 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    return f"{one.name} and {two.name}"


def missing_file(draw: random.Random, _: World, replica: Replica) -> str | None:
    path = _log_file(draw, replica)
    if path is None or len(replica.files()) < 2:
        return None
    path.unlink()
    return path.name


def short_file(draw: random.Random, _: World, replica: Replica) -> str | None:
    path = _log_file(draw, replica)
    if path is None or not path.stat().st_size:
        return None
    size = draw.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} to {size}"


def old_file(draw: random.Random, world: World, replica: Replica, files: Files) -> str | None:
    """A file was put back from another replica, or is as it was at an earlier time; the undamaged ones are `files`."""
    known = {kind: list(_old_files(draw, world, replica, files, kind)) for kind in _PUT_BACK}
    kinds = [kind for kind, found in known.items() if found]
    if not kinds:
        return None
    path, text, data = draw.choice(known[draw.choices(kinds, [_PUT_BACK[kind] for kind in kinds])[0]])
    path.write_bytes(data)
    return f"{path.relative_to(replica.path)} {text}"


def _old_files(
    draw: random.Random, world: World, replica: Replica, files: Files, kind: str
) -> Iterator[tuple[Path, str, bytes]]:
    """The undamaged files of a kind that a replica still has, with other contents, and what these are."""
    unit = next((size for folder, size in _UNITS.items() if folder in kind), 0)
    for path in sorted(path for path in replica.path.glob(kind) if path.is_file()):
        data = files[path]
        name = str(path.relative_to(replica.path))
        found = [(f"of {other.name}", other.path / name.replace(replica.name, other.name)) for other in world.replicas]
        contents = [(text, files[other]) for text, other in found if other in files]
        contents += [("as before a truncation", replica.earlier[name])] if name in replica.earlier else []
        ends = [entry.end - int(path.name) for entry in replica.entries] if path.parent == replica.log_folder else []
        ends = ends or [at for at in range(unit, len(data), unit or len(data)) if data[at : at + 16].strip(b"\0")]
        ends = [at for at in ends if 0 < at < len(data)]
        for at in draw.sample(ends, min(1, len(ends))):
            contents.append((f"as it was up to {at}", data[:at].ljust(len(data), b"\0")))
        yield from ((path, text, each) for text, each in contents if each != data)


_PUT_BACK = {"dledger-*/data/*": 6, "commitlog/*": 6, "dledger-*/index/*": 2, "consumequeue/*/*/*": 2}
"""The files that are put back, and how often."""
_UNITS = {"dledger-*/index": 32, "consumequeue": 20}


def _one_of(draw: random.Random, replica: Replica, *patterns: str) -> Path | None:
    files = sorted(path for pattern in patterns for path in replica.path.glob(pattern) if path.is_file())
    return draw.choice(files) if files else None


def _any_change(draw: random.Random, path: Path, used: int | None = None) -> str:
    """Flip, zero, cut or delete a small file; `used` bytes of it have contents."""
    data = bytearray(path.read_bytes())
    kind = draw.choice(("flip", "flip", "zeros", "cut", "delete", "noise"))
    if kind == "delete" or not data:
        path.unlink()
        return f"{path.name} deleted"
    at = draw.randrange(min(used or len(data), len(data)))
    if kind == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == "noise":
        data[at : at + 8] = draw.randbytes(len(data[at : at + 8]))
    else:
        del data[at:]
    path.write_bytes(data)
    return f"{path.name} {kind} at {at}"


def index_units(draw: random.Random, _: World, replica: Replica) -> str | None:
    path = _one_of(draw, replica, "dledger-*/index/*")
    return _any_change(draw, path, 32 * len(replica.entries)) if path is not None else None


def queue_file(draw: random.Random, _: World, replica: Replica) -> str | None:
    """A ConsumeQueue file: missing, zeroed, of another size, or other bytes."""
    path = _one_of(draw, replica, "consumequeue/*/*/*")
    if path is None:
        return None
    name = path.relative_to(replica.path / "consumequeue")
    data = path.read_bytes()
    kind = draw.choice(("folder", "delete", "zeros", "last", "size", "change"))
    units = [at for at in range(0, len(data) - 19, 20) if data[at : at + 20].strip(b"\0")]
    if kind == "folder":
        shutil.rmtree(path.parent)
    elif kind == "delete":
        path.unlink()
    elif kind == "zeros":
        path.write_bytes(bytes(len(data)))
    elif kind == "last" and units:
        path.write_bytes(data[: units[-min(len(units), 5)]].ljust(len(data), b"\0"))
    elif kind == "size":
        path.write_bytes(data[: len(data) // 2])
    else:
        return f"{name} {_any_change(draw, path, 20 * len(units) or None)}"
    return f"{name} {kind}"


def key_index(draw: random.Random, _: World, replica: Replica) -> str | None:
    path = _one_of(draw, replica, "index/*")
    return _any_change(draw, path) if path is not None else None


def state_file(draw: random.Random, _: World, replica: Replica) -> str | None:
    path = _one_of(draw, replica, "dledger-*/checkpoint", "dledger-*/currterm", "checkpoint", "epochFileCheckpoint*")
    return _any_change(draw, path, 100) if path is not None else None


DAMAGES: dict[Damage, int] = {
    flip: 20,
    zeros: 15,
    noise: 10,
    torn: 6,
    header: 15,
    everywhere: 6,
    swap_sectors: 5,
    swap_files: 1,
    missing_file: 2,
    short_file: 2,
    index_units: 5,
    queue_file: 8,
    key_index: 4,
    state_file: 5,
}
