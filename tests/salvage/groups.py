"""Groups of three replicas, damaged at random by seed, and what a salvage of them must give.

Every damage changes bytes of one member. It is not done if an entry could then not be restored: most of its bytes have
no checksum, so each of them must be intact on two of three members.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_dledger.format.spec import ScanRequest
from pyspark_dledger.log.committed import own_bound
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.rebuild.builder import BuildSettings, build
from tests.support.damage import write_log
from tests.support.generate import Payload, mq_message, raw, write_commitlog, write_dledger
from tests.support.golden import unpack
from tests.support.log_writer import DLedgerWriter
from tests.support.sparse_copy import copy_tree

GOLDENS = (
    "raw-three",
    "raw-three-diverged",
    "mq-53-three",
    "mq-498-three-diverged",
)
PLAIN_GOLDENS = ("mq-plain", "mq-plain-crc")
_SECTOR, _PAGE = 512, 4096


@dataclass
class Extent:
    """An entry of the undamaged log, and where the copies of members were damaged."""

    pos: int
    size: int
    index: int
    damaged: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


@dataclass
class Group:
    """A group on disk. ``original`` is the undamaged member with the restored log; ``members`` may be damaged."""

    name: str
    original: Path
    members: list[Path]
    extents: list[Extent]
    """The entries of the original's log, in order."""
    shared: list[int]
    """For each member, up to which position its log is the same as the original's."""


def generated_group(folder: Path, seed: int) -> Group:
    """A group of the tests' own writer: messages with queues, or raw bodies; one to three terms, small files."""
    draw = random.Random(seed)
    has_messages = draw.random() < 0.5
    count = draw.randint(20, 150)
    terms = sorted(draw.randint(0, 3) for _ in range(count))
    file_size = draw.choice((4096, 16384, 65536))
    payloads = [_message(draw, number) if has_messages else raw(_body(draw)) for number in range(count)]
    ends = [count, count, draw.randint(count // 2, count)]
    draw.shuffle(ends)
    for node, end in enumerate(ends):
        write_dledger(
            folder / f"n{node}",
            payloads[:end],
            node=f"n{node}",
            terms=terms[:end],
            file_size=file_size,
            committed=min(ends) - 1,
        )
        if has_messages:
            build_queues(folder / f"n{node}", min(ends))
    return group_at(folder, f"generated-{seed}", [folder / f"n{node}" for node in range(3)])


def older_terms_group(folder: Path, seed: int) -> Group:
    """A group in which members have stale entries of later terms after the end of the log, where bytes of them remain.

    Each such member was once a leader that reached nobody. A later leader has entries of an earlier term, and its log
    overwrites only some of them. The first member of the original order has none.
    """
    draw = random.Random(seed)
    sizes = draw.choice((16384, 65536)), draw.choice((64, 1024))
    term = draw.randint(0, 2)
    common = [(_body(draw), max(term - (number < 10), 0)) for number in range(draw.randint(20, 90))]
    newer = [(_body(draw), term) for _ in range(draw.choice((1, 2, 5, 20)))]
    newer += [(_body(draw), term + 3) for _ in range(draw.choice((0, 0, 0, 2)))]
    stale = [[], *([(_body(draw), term + node) for _ in range(draw.choice((0, 5, 20, 60)))] for node in (1, 2))]
    logs = [_log_over(sizes, common, each, newer) for each in stale]
    # Java, too, takes a stale entry that follows the last one for the log's next one.
    while any(continues for _, continues in logs):
        newer.append((draw.randbytes(draw.choice((11, 51))), newer[-1][1]))
        logs = [_log_over(sizes, common, each, newer) for each in stale]
    for node, (log, _) in enumerate(logs):
        last = log.entries[-1].index
        committed = draw.choice((None, len(common) - 1, last))
        end = draw.choice((last, len(common) + len(stale[node]) - 1)) if committed != last else last
        log.save(folder / f"n{node}" / f"dledger-n{node}", (), committed, end, term + 3)
    group = group_at(folder, f"older-terms-{seed}", [folder / f"n{node}" for node in range(3)])
    draw.shuffle(group.members)
    return group


Bodies = list[tuple[bytes, int]]


def _log_over(sizes: tuple[int, int], common: Bodies, stale: Bodies, newer: Bodies) -> tuple[DLedgerWriter, bool]:
    """A log that was truncated after the `common` entries, and whether a stale entry follows its last one."""
    log = DLedgerWriter(*sizes)
    for body, term in [*common, *stale]:
        log.append(lambda _, body=body: body, term)
    truncated = {(old.pos, old.index) for old in log.entries[len(common) :]}
    if stale:
        log.truncate(len(common))
        # As the leader, whose entries are not after a blank.
        log.at = log.entries[-1].pos + log.entries[-1].size
    for body, term in newer:
        log.append(lambda _, body=body: body, term)
    return log, (log.at, log.entries[-1].index + 1) in truncated


def spread_data(member: Path) -> str:
    """Move every second and third data file of a member to a folder of its own. Returns the source for a salvage."""
    data = next(member.glob("dledger-*/data"))
    folders = [data, member / "path1", member / "path2"]
    for number, file in enumerate(sorted(data.iterdir())):
        folders[number % 3].mkdir(exist_ok=True)
        file.rename(folders[number % 3] / file.name)
    return ",".join(map(str, [member, *(folder for folder in folders[1:] if folder.exists())]))


def generated_plain_group(folder: Path, seed: int) -> Group:
    """A master and slaves that lag, without DLedger, written by the tests' own writer."""
    draw = random.Random(seed)
    messages = [_message(draw, number) for number in range(draw.randint(20, 150))]
    file_size = draw.choice((4096, 16384, 65536))
    for member in range(3):
        kept = len(messages) if member == 0 else draw.randint(len(messages) // 2, len(messages))
        write_commitlog(folder / f"m{member}", messages[:kept], file_size=file_size)
        build_queues(folder / f"m{member}")
    return group_at(folder, f"plain-{seed}", [folder / f"m{member}" for member in range(3)])


def _message(draw: random.Random, number: int) -> Payload:
    keys = [("KEYS", f"order-{number}"), ("TAGS", "paid")]
    queue = {"queue_id": number % 4, "queue_offset": number // 4}
    return mq_message(body=_body(draw), topic="Orders", properties=keys, **queue)


def _body(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randint(1, 700))


def build_queues(root: Path, entries: int | None = None, units: int = 30) -> None:
    """Build queues and index of a member, of so many entries of DLedger's log."""
    log = _view(root)
    to = log.position_of(entries) if entries is not None else None
    build(log, root, settings=BuildSettings(units_per_file=units, hash_slots=50, index_units=200, to=to))


def golden_group(folder: Path, case: str) -> Group:
    """A group that Java wrote."""
    found = unpack(case, folder)
    is_raw = case.startswith("raw-")
    members = [found / (f"dledger-n{node}" if is_raw else f"n{node}") for node in range(3)]
    return group_at(folder, case, members)


def plain_group(folder: Path, case: str) -> Group:
    """A master and two slaves without DLedger. The extents of messages have their positions for an index."""
    root = unpack(case, folder / "unpacked")
    members = [copy_tree(root, folder / f"m{number}") for number in range(3)]
    return group_at(folder, case, members)


def group_at(folder: Path, name: str, members: list[Path]) -> Group:
    """The group of undamaged members; the originals are moved away, and damage goes to copies of them."""
    views = [_view(member) for member in members]
    lasts = [(view.end.last_term, view.end.last_index, view.max_offset) for view in views]
    leader = lasts.index(max(lasts))
    originals = folder / "originals"
    kept = []
    for number, member in enumerate(members):
        original = originals / str(number) / member.name
        copy_tree(member, original)
        kept.append(original)
    extents = [Extent(*row) for row in _rows(members[leader])]
    of_leader = {(row.pos, row.size, row.index) for row in extents}
    shared = []
    for member in members:
        same = [row for row in _rows(member) if row in of_leader]
        shared.append(max((row[0] + row[1] for row in same), default=0))
    return Group(name, kept[leader], members, extents, shared)


def _view(path: Path) -> StoreView:
    return StoreView(str(path), ReadOptions())


def known_committed(group: Group) -> int:
    """The highest index that undamaged members know to be committed."""
    bounds = (own_bound(_view(path)).index for path in group.original.parent.parent.glob("*/*"))
    return max((index for index in bounds if index is not None), default=0)


def _rows(path: Path) -> list[tuple[int, int, int]]:
    store = _view(path)
    rows: list[tuple[int, int, int]] = []
    for segment in store.segments:
        request = ScanRequest(segment, segment.base, store.segment_end(segment), ("pos", "size", "index"))
        for batch, _ in store.engine.scan(request):
            pos, size, index = (batch.column(name).to_pylist() for name in ("pos", "size", "index"))
            rows += zip(pos, size, index if store.ledger_segments else pos, strict=True)
    return rows


def damage(group: Group, seed: int, count: int, is_lossless: bool = True) -> int:
    """Damage members; returns how many damages were kept. Index files and state files are damaged as well."""
    draw = random.Random(seed)
    kept = 0
    for _ in range(count):
        number = draw.randrange(len(group.members))
        files = _segments(group.members[number])
        if draw.random() < 0.2:
            kept += _damage_other(draw, group.members[number])
        elif files:
            kept += _damage_data(draw, group, number, draw.choice(files), is_lossless)
    return kept


def lose(group: Group, member: int, indexes: list[int], offset: int = 0, size: int | None = None) -> None:
    """Zeroes bytes of entries of a member."""
    for extent in group.extents:
        if extent.index in indexes:
            change(group.members[member], extent.pos + offset, bytes(size or extent.size))


def change(member: Path, pos: int, data: bytes) -> None:
    write_log(next(iter(member.glob("dledger-*/data")), member / "data"), pos, data)


def _segments(member: Path) -> list[tuple[Path, int]]:
    folder = next(iter([*member.glob("dledger-*/data"), *member.glob("commitlog")]), member / "data")
    return [(file, int(file.name)) for file in sorted(folder.iterdir())]


def _damage_data(draw: random.Random, group: Group, number: int, file: tuple[Path, int], is_lossless: bool) -> bool:
    path, base = file
    before = path.read_bytes() if path.exists() else b""
    written = min(max(group.extents[-1].pos + group.extents[-1].size - base, 0), len(before))
    if not written:
        return False
    after = _damaged(draw, before, written)
    changed = _changed(before, after, base)
    hit = [
        extent
        for extent in group.extents
        if any(low < extent.pos + extent.size and extent.pos < high for low, high in changed)
    ]
    if not is_lossless or all(_may_lose(group, extent, number, changed) for extent in hit):
        for extent in hit:
            extent.damaged.setdefault(number, []).extend(changed)
        if after is None:
            path.unlink()
        else:
            path.write_bytes(after)
        return True
    return False


def _may_lose(group: Group, extent: Extent, number: int, changed: list[tuple[int, int]]) -> bool:
    """Whether the entry can be restored after the damage: each of its bytes is intact on a majority."""
    having = {each for each in range(len(group.members)) if extent.pos + extent.size <= group.shared[each]}
    if number not in having:
        return True
    others = [each for each in having & extent.damaged.keys() if each != number]
    left = len(having) - len(others) - 1
    return left >= 2 or (left == 1 and len(having) == 3 and not _overlaps(changed, extent.damaged[others[0]]))


def _overlaps(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
    return any(low < stop and start < high for low, high in some for start, stop in others)


def _damaged(draw: random.Random, data: bytes, written: int) -> bytes | None:
    """The bytes of a file after one damage; None for a deleted file."""
    found = bytearray(data)
    at = draw.randrange(written)
    kind = draw.choices(("flip", "zeros", "swap", "noise", "cut", "delete"), (30, 20, 15, 25, 5, 5))[0]
    if kind == "flip":
        found[at] ^= 1 << draw.randrange(8)
    elif kind == "zeros":
        size = draw.choice((_SECTOR, _PAGE))
        start = at // size * size
        found[start : start + size] = bytes(len(found[start : start + size]))
    elif kind == "swap":
        one, two = at // _SECTOR * _SECTOR, draw.randrange(written) // _SECTOR * _SECTOR
        first, second = bytes(found[one : one + _SECTOR]), bytes(found[two : two + _SECTOR])
        if len(first) == len(second):
            found[one : one + _SECTOR], found[two : two + _SECTOR] = second, first
    elif kind == "noise":
        size = min(draw.randint(1, 200), len(found) - at)
        found[at : at + size] = draw.randbytes(size)
    elif kind == "cut":
        del found[at:]
    else:
        return None
    return bytes(found)


def _changed(before: bytes, after: bytes | None, base: int) -> list[tuple[int, int]]:
    """The positions that changed, as extents."""
    if after is None:
        return [(base, base + len(before))]
    if len(after) < len(before):
        return [(base + len(after), base + len(before))]
    found: list[tuple[int, int]] = []
    for at in (offset for offset in range(len(before)) if before[offset] != after[offset]):
        if found and found[-1][1] == base + at:
            found[-1] = found[-1][0], base + at + 1
        else:
            found.append((base + at, base + at + 1))
    return found


def _damage_other(draw: random.Random, member: Path) -> bool:
    """Damage an index file, the checkpoint, a queue or a config file."""
    files = [
        file
        for pattern in ("**/index/*", "**/checkpoint", "**/currterm", "consumequeue/*/*/*", "config/*.json")
        for file in member.glob(pattern)
        if file.is_file() and file.stat().st_size < 1024 * 1024
    ]
    if not files:
        return False
    file = draw.choice(sorted(files))
    data = file.read_bytes()
    if not data:
        return False
    found = _damaged(draw, data, len(data))
    if found is None:
        file.unlink()
    else:
        file.write_bytes(found)
    return True


def differences(group: Group, target: Path, fillers: Sequence[int] = ()) -> Iterator[str]:
    """What in the result is not as in the original. Entries may differ that fewer than two members have intact."""
    lost = set(fillers) | {extent.index for extent in group.extents if may_be_lost(group, extent)}
    originals = {base: path for path, base in _segments(group.original)}
    results = {base: path for path, base in _segments(target)}
    end = max((extent.pos + extent.size for extent in group.extents if extent.index not in lost), default=0)
    for base in sorted(originals):
        if base >= end:
            continue
        if base not in results:
            yield f"no file {base}"
            continue
        one, two = originals[base].read_bytes(), results[base].read_bytes()
        is_cut = all(len(each) < len(one) for each in _copies(group, base))
        if len(one) != len(two) and not is_cut:
            yield f"file {base}: {len(two)} bytes, expected {len(one)}"
        for extent in group.extents:
            if base <= extent.pos < base + len(one) and extent.index not in lost:
                start, stop = extent.pos - base, extent.pos + extent.size - base
                if one[start:stop] != two[start:stop]:
                    yield f"entry {extent.index} at {extent.pos} differs"
        if not lost and one[: end - base] != two[: end - base]:
            yield f"file {base} differs outside of entries"


def queue_differences(group: Group, target: Path) -> Iterator[str]:
    """What in the ConsumeQueues and in the index of a whole result is not as in the original."""
    for file in sorted(group.original.glob("consumequeue/*/*/*")):
        result = target / file.relative_to(group.original)
        if not result.exists() or result.read_bytes() != file.read_bytes():
            yield f"{file.relative_to(group.original)} differs"
    for file in sorted(group.original.glob("dledger-*/index/*")) + sorted(group.original.glob("index/*")):
        node = group.original.name.startswith("dledger-") or file.parent.parent.name.startswith("dledger-")
        result = next(target.glob("dledger-*/index")) / file.name if node else None
        if result is not None and result.exists() and result.read_bytes() != file.read_bytes():
            yield f"index file {file.name} differs"


def _copies(group: Group, base: int) -> list[bytes]:
    """The files of the members at a position."""
    return [path.read_bytes() for member in group.members for path, found in _segments(member) if found == base]


def may_be_lost(group: Group, extent: Extent) -> bool:
    """Whether fewer than two members have an entry intact, and it was damaged."""
    having = {each for each in range(len(group.members)) if extent.pos + extent.size <= group.shared[each]}
    return bool(extent.damaged) and len(having - extent.damaged.keys()) < 2


def lost_indexes(target: Path, extents: Sequence[Extent] = ()) -> list[int]:
    """The indexes that the list of the result says are fillers; of old messages those of the `extents`."""
    file = target / "lost.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    indexes = {row["index"] for row in rows if row["index"] is not None}
    for row in rows:
        start, end = row["pos"], row["pos"] + row["size"]
        of_messages = extents if row["index"] is None else ()
        indexes |= {each.index for each in of_messages if start <= each.pos < end}
    return sorted(indexes)
