"""Groups of replicas by seed, with the truth: which replica has which entry, of which history, and what is committed.

A world is small, so that thousands of them can be checked: a few files of 4 KiB to 16 KiB for each replica.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.format.state_files import Epoch, encode_epochs
from pyspark_dledger.log.io.state_files import StoreCheckpoint
from tests.salvage.groups import Group, build_queues, golden_group, plain_group
from tests.support.dispatching import Messages
from tests.support.generate import Payload, raw
from tests.support.log_writer import CommitLogWriter, DLedgerWriter, Written

LEDGER, COMMIT_LOG = "dledger", "commitlog"
SIZES = (4096, 8192, 16384)
STORED = 1_700_000_000_137
FAILOVER_MS = 60_000


@dataclass(frozen=True)
class Entry:
    """An entry or message as it was written. ``number`` is its index, of a message of a CommitLog its position."""

    number: int
    pos: int
    data: bytes = field(repr=False)

    @property
    def end(self) -> int:
        return self.pos + len(self.data)


@dataclass
class Replica:
    """One replica: ``entries`` is its log as it was written, without what expired.

    ``before`` are the entries of its log before it truncated a tail, ``earlier`` the files of that time by their paths.
    """

    name: str
    path: Path
    entries: list[Entry]
    damages: list[str] = field(default_factory=list)
    copy_of: str | None = None
    before: list[Entry] = field(default_factory=list)
    earlier: dict[str, bytes] = field(default_factory=dict)

    @property
    def log_folder(self) -> Path:
        folders = (*self.path.glob("dledger-*/data"), self.path / "data", self.path / "commitlog")
        return next(each for each in folders if each.is_dir())

    def files(self) -> list[Path]:
        """The files of the log in order."""
        return sorted(self.log_folder.iterdir())

    def intact(self, entries: Iterable[Entry] | None = None) -> set[Entry]:
        """The entries whose bytes are on disk as they were written, by default of its own log."""
        found = {int(path.name): path.read_bytes() for path in self.files()}
        bases = sorted(found, reverse=True)
        kept = set()
        for entry in self.entries if entries is None else entries:
            base = next((each for each in bases if each <= entry.pos), None)
            if base is not None and found[base][entry.pos - base : entry.end - base] == entry.data:
                kept.add(entry)
        return kept


@dataclass
class World:
    """A group on disk. ``main`` is the history of its leader; ``committed`` of its entries are committed."""

    seed: int
    kind: str
    """`LEDGER` or `COMMIT_LOG`."""
    shape: str
    has_messages: bool
    file_size: int
    replicas: list[Replica]
    main: list[Entry]
    committed: int
    leader: str

    @property
    def name(self) -> str:
        messages = "messages" if self.has_messages else "raw"
        return f"{self.kind}/{self.shape}/{messages}"

    def replica(self, name: str) -> Replica:
        return next(each for each in self.replicas if each.name == name)


class _Payloads:
    """Makes payloads of one history; a copy continues another one."""

    def __init__(self, draw: random.Random, has_messages: bool) -> None:
        self._draw = draw
        self._messages = Messages(STORED) if has_messages else None
        self._count = 0

    def next(self) -> Payload:
        draw = self._draw
        self._count += 1
        if self._messages is None:
            return raw(draw.randbytes(draw.choice((1, 17, 60, 200, 500))))
        body = draw.randbytes(draw.choice((1, 30, 120, 400)))
        kind = draw.choices(("none", "prepared", "rollback"), (20, 1, 1))[0]
        keys = [("KEYS", f"k{self._count}")] if draw.random() < 0.7 else []
        tags = [("TAGS", draw.choice(("paid", "open")))] if draw.random() < 0.5 else []
        topic = draw.choice(("Orders", "Orders", "Pays"))
        return self._messages.make(topic, draw.randrange(2), body, transaction=kind, properties=[*keys, *tags])

    def some(self, count: int) -> list[Payload]:
        return [self.next() for _ in range(count)]

    def wait(self) -> None:
        """Store the next messages later: a master is elected only seconds after another one failed."""
        if self._messages is not None:
            self._messages.stored += FAILOVER_MS

    def branch(self) -> _Payloads:
        """Payloads of another history with the same past."""
        return _branched(self)


def _branched(payloads: _Payloads) -> _Payloads:
    found = _Payloads(payloads._draw, False)
    found._messages = deepcopy(payloads._messages)
    found._count = payloads._count
    return found


class _PlainLog(CommitLogWriter):
    """A CommitLog that can be truncated; what was truncated stays until it is overwritten."""

    def truncate(self, kept: int) -> None:
        self.at = self.entries[kept].pos
        del self.entries[kept:]
        self.data.drop_from(self.at)


Log = DLedgerWriter | _PlainLog
Part = tuple[list[Payload], int]
"""Payloads of one term or epoch."""


class _Made(NamedTuple):
    """A log, its parts, and the log as it was before a truncation."""

    log: Log
    parts: list[Part]
    before: Log | None = None


def _append(log: Log, parts: Sequence[Part]) -> None:
    for payloads, term in parts:
        for payload in payloads:
            if isinstance(log, DLedgerWriter):
                log.append(payload.make, term)
            else:
                log.append(payload.make)


def _entries(log: Log) -> list[Entry]:
    return [_entry(log, each) for each in log.entries]


def _files_of(log: Log, replica: Replica) -> dict[str, bytes]:
    folder = str(replica.log_folder.relative_to(replica.path))
    found = [(folder, log.data)]
    if isinstance(log, DLedgerWriter):
        found.append((folder.replace("/data", "/index"), log.index))
    return {f"{path}/{base:020}": bytes(data) for path, files in found for base, data in files.files.items()}


def _entry(log: Log, each: Written) -> Entry:
    base = log.data.base_of(each.pos)
    data = bytes(log.data.files[base][each.pos - base : each.pos - base + each.size])
    return Entry(each.index if each.index >= 0 else each.pos, each.pos, data)


SHAPES = {
    LEDGER: ("lag", "lag", "diverged", "stale", "rewritten"),
    COMMIT_LOG: ("lag", "lag", "epochs", "diverged epochs", "stale epochs"),
}


GOLDENS = ("raw-three", "mq-53-three", "mq-498-three-diverged", "raw-three-diverged", "mq-plain", "mq-plain-crc")
EVERY = 40
"""So many seeds, and one is of a group that Java wrote: it takes longer."""


def world(folder: Path, seed: int) -> World:
    """The undamaged group of a seed."""
    if seed % EVERY == EVERY - 1:
        case = GOLDENS[seed // EVERY % len(GOLDENS)]
        made = plain_group(folder, case) if case.startswith("mq-plain") else golden_group(folder, case)
        return replace(world_of(made), seed=seed)
    draw = random.Random(f"world {seed}")
    kind = draw.choices((LEDGER, COMMIT_LOG), (3, 2))[0]
    has_messages = kind == COMMIT_LOG or draw.random() < 0.6
    shape = draw.choice(SHAPES[kind])
    file_size = draw.choice(SIZES)
    names = ["n0", "n1", "n2"]
    draw.shuffle(names)
    maker = _Payloads(draw, has_messages)
    logs = _logs(draw, kind, shape, maker, file_size)
    histories = [_entries(each.log) for each in logs]
    main = histories[0]
    # What two of three have; the first one is the leader, and has the main history.
    shared = sorted(sum(entry in set(main) for entry in history) for history in histories)
    committed = max(shared[1] - draw.choice((0, 0, 1, 4)), 1) if kind == LEDGER else shared[0]
    replicas = []
    for number, (name, (log, parts, before)) in enumerate(zip(names, logs, strict=True)):
        path = folder / name
        if isinstance(log, DLedgerWriter):
            _save_ledger(
                draw,
                log,
                path,
                name,
                min(committed, shared_count(main, histories[number])),
                has_messages,
                shape in ("stale", "rewritten"),
            )
        else:
            _save_plain(draw, log, path, parts, shape)
        replicas.append(Replica(name, path, histories[number], before=_entries(before) if before else []))
        replicas[-1].earlier = _files_of(before, replicas[-1]) if before else {}
    found = World(seed, kind, shape, has_messages, file_size, replicas, main, committed, names[0])
    _expire(draw, found)
    found.replicas.sort(key=lambda each: each.name)
    return found


def shared_count(main: Sequence[Entry], history: Sequence[Entry]) -> int:
    """How many entries a history shares with the main one."""
    return next(
        (n for n, (one, two) in enumerate(zip(main, history, strict=False)) if one != two), min(len(main), len(history))
    )


def _logs(draw: random.Random, kind: str, shape: str, maker: _Payloads, file_size: int) -> list[_Made]:
    """The logs of three replicas, that of the leader first."""
    new: Callable[[], Log] = (
        (lambda: DLedgerWriter(file_size, draw_units)) if kind == LEDGER else (lambda: _PlainLog(file_size))
    )
    draw_units = draw.choice((64, 256))
    first = draw.randint(1, 3)
    common: list[Part] = [(maker.some(draw.randint(6, 25)), first), (maker.some(draw.randint(1, 25)), first + 1)]
    last = first + 1
    if shape in ("lag", "epochs"):
        return _lagging(draw, new, common)
    if shape in ("diverged", "diverged epochs"):
        stranded = [*common, (maker.branch().some(draw.randint(1, 12)), last + 1)]
        elected = [*common, (maker.some(draw.randint(1, 12)), last + 2)]
        logs = _lagging(draw, new, elected, 2)
        lonely = new()
        _append(lonely, stranded)
        return [*logs, _Made(lonely, stranded)]
    return _with_stale(draw, new, common, last, maker, shape)


def _lagging(draw: random.Random, new: Callable[[], Log], whole: list[Part], count: int = 3) -> list[_Made]:
    """Logs of which the first is complete, and one may end earlier."""
    logs = []
    for number in range(count):
        kept = whole
        if number == count - 1:
            payloads, term = whole[-1]
            kept = [
                *whole[:-1],
                (payloads[: draw.choice((len(payloads), len(payloads), draw.randint(0, len(payloads))))], term),
            ]
        log = new()
        _append(log, kept)
        logs.append(_Made(log, kept))
    return logs


def _with_stale(
    draw: random.Random, new: Callable[[], Log], common: list[Part], last: int, maker: _Payloads, shape: str
) -> list[_Made]:
    """Two replicas truncated a tail that nobody else had, and overwrote only a part of it.

    What overwrote the tail is of a later term (``rewritten``), or of an earlier one (``stale``): a term has one leader,
    and so no two entries for an index.
    """
    term = last + 1
    tails: list[list[Part]] = [[]]
    tails += [[(maker.branch().some(draw.choice((0, 5, 15))), term + number)] for number in (0, 1)]
    newer = last if shape == "stale" else last + 3
    maker.wait()
    parts = [*common, (maker.some(draw.choice((1, 2, 5))), newer)]
    while True:
        logs = [_over(new, common, tail, parts[len(common) :]) for tail in tails]
        # Java, too, takes a stale entry that follows the last one for the next one of the log.
        if not any(continues for *_, continues in logs):
            return [_Made(log, parts, before) for log, before, _ in logs]
        parts[-1] = ([*parts[-1][0], maker.next()], newer)


def _over(new: Callable[[], Log], common: list[Part], tail: list[Part], newer: list[Part]) -> tuple[Log, Log, bool]:
    log = new()
    _append(log, common)
    kept = len(log.entries)
    _append(log, tail)
    before = deepcopy(log)
    truncated = {(old.pos, old.index) for old in log.entries[kept:]}
    if len(log.entries) > kept:
        log.truncate(kept)
        # As the leader, whose entries are not after a blank.
        log.at = log.entries[-1].pos + log.entries[-1].size
    _append(log, newer)
    index = log.entries[-1].index
    return log, before, (log.at, index + 1 if index >= 0 else -1) in truncated


def _save_ledger(
    draw: random.Random,
    log: DLedgerWriter,
    path: Path,
    name: str,
    committed: int,
    has_messages: bool,
    is_stale: bool,
) -> None:
    known = draw.choice((None, committed - 1, committed - 1, max(committed - 4, 0)))
    term = max(each.term for each in log.entries)
    # It was in the terms of its truncated tail, too.
    later = draw.choice((0, 0, 2)) + (3 if is_stale else 0)
    log.save(path / f"dledger-{name}", (), known, log.entries[-1].index, term + later)
    if has_messages:
        build_queues(path, committed, units=20)
        _checkpoint(path, 0)


def _save_plain(draw: random.Random, log: _PlainLog, path: Path, parts: list[Part], shape: str) -> None:
    log.data.save(path / "commitlog")
    build_queues(path, units=20)
    if "epochs" not in shape:
        _checkpoint(path, 0)
        return
    # A master confirms what its slaves in sync have, a slave what it has itself, and both dispatch that.
    _checkpoint(path, log.at)
    number, epochs = 0, []
    for payloads, term in parts:
        if payloads:
            epochs.append(Epoch(term, log.entries[number].pos))
        number += len(payloads)
    (path / "epochFileCheckpoint").write_bytes(encode_epochs(epochs))
    if draw.random() < 0.5:
        (path / "epochFileCheckpoint.bak").write_bytes(encode_epochs(epochs[:-1] or epochs))


def _checkpoint(path: Path, confirmed: int) -> None:
    data = StoreCheckpoint(STORED, STORED, STORED, 0, confirmed).pack()
    (path / "checkpoint").write_bytes(data.ljust(4096, b"\0"))


def _expire(draw: random.Random, found: World) -> None:
    """Delete first files, as retention does: sometimes of all replicas, sometimes of one."""
    which = draw.choices(((), found.replicas, found.replicas[-1:]), (8, 1, 1))[0]
    for replica in which:
        files = replica.files()
        if len(files) > 2:
            files[0].unlink()
            replica.entries = [each for each in replica.entries if each.pos >= int(files[1].name)]
    left = {each for replica in found.replicas for each in replica.entries}
    gone = sum(each not in left for each in found.main)
    found.main = found.main[gone:]
    found.committed -= gone


def world_of(group: Group) -> World:
    """The world of a group of the tests of salvages: its original, and what each member had of the same log."""
    original = Replica("original", group.original, [])
    files = {int(path.name): path.read_bytes() for path in original.files()}
    main = []
    for each in group.extents:
        base = max(base for base in files if base <= each.pos)
        main.append(Entry(each.index, each.pos, files[base][each.pos - base : each.pos - base + each.size]))
    replicas = [
        Replica(path.name, path, [entry for entry in main if entry.end <= shared])
        for path, shared in zip(group.members, group.shared, strict=True)
    ]
    kind = COMMIT_LOG if original.log_folder.name == "commitlog" else LEDGER
    return World(0, kind, group.name, True, 0, replicas, main, 0, "")
