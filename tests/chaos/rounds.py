"""Rounds of faults in a group under load, and the checks of its guarantees."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from tests.chaos.group import GROUP, Group
from tests.chaos.history import Append, History, violations
from tests.chaos.load import Load

RECOVERY_SECONDS = 30.0  # until a group without faults acknowledges again


@dataclass
class Report:
    """Counts of the faults and of the results of clients, and all violations."""

    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    entries: int = 0
    slowest_recovery: float = 0.0
    leaders: int = 0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return (
            f"faults: {faults}; appends: {outcomes}; reads {self.reads}; entries {self.entries}; terms {self.leaders}; "
            f"slowest recovery {self.slowest_recovery:.1f} s; violations {len(self.violations)}"
        )


class Faults:
    """Each method causes one fault; `heal` repairs all."""

    def __init__(self, group: Group, rng: random.Random) -> None:
        self.group = group
        self.rng = rng

    def choose(self) -> Callable[[], None]:
        kills = (self.kill_leader, self.kill_one, self.kill_two, self.kill_all)
        partitions = (self.disconnect, self.drop_all, self.drop_incoming, self.drop_outgoing)
        return self.rng.choice((*kills, self.pause, self.pause, *partitions, self.replace_disk))

    def leader(self) -> str:
        """The leader if one is known, else any node."""
        try:
            with dl.connect(group=GROUP, peers=self.group.peers, timeout_ms=500, max_retries=0) as client:
                return client.metadata().leader_id or self.any()
        except DLedgerError:
            return self.any()

    def any(self) -> str:
        return self.rng.choice(self.group.ids)

    def kill_leader(self) -> None:
        self.group.kill(self.leader())

    def kill_one(self) -> None:
        self.group.kill(self.any())

    def kill_two(self) -> None:
        for node in self.rng.sample(self.group.ids, 2):
            self.group.kill(node)

    def kill_all(self) -> None:
        for node in list(self.group.ids):
            self.group.kill(node)

    def replace_disk(self) -> None:
        """A follower loses its disk, and begins empty as docs/operations.md says; `heal` starts it."""
        leader = self.leader()
        lost, other = self.rng.sample([node for node in self.group.ids if node != leader], 2)
        self.group.kill(lost)
        deadline = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < deadline:
            if self._has_all(leader, other):
                self.group.lose_disk(lost)
                return
            time.sleep(0.1)

    def _has_all(self, leader: str, other: str) -> bool:
        """Whether another member has what its leader had before."""
        try:
            with dl.connect(group=GROUP, peers=self.group.peers, timeout_ms=500, max_retries=0) as client:
                first, second = client.status(leader), client.status(other)
        except DLedgerError:
            return False
        is_led = first.leader_id == second.leader_id == leader and first.term == second.term
        return is_led and second.end_index >= first.end_index

    def pause(self) -> None:
        self.group.pause(self.rng.choice((self.leader(), self.any())))

    def disconnect(self) -> None:
        self.group.network.isolate(self.leader(), "closed")

    def drop_all(self) -> None:
        self.group.network.isolate(self.rng.choice((self.leader(), self.any())), "stopped")

    def drop_incoming(self) -> None:
        self.group.network.isolate(self.leader(), "stopped", "in")

    def drop_outgoing(self) -> None:
        self.group.network.isolate(self.leader(), "stopped", "out")

    def heal(self) -> None:
        self.group.network.heal()
        self.group.resume()
        self.group.start_all()


def run(
    folder: Path, rounds: int, seed: int, flush: str = "async", log: Callable[[str], None] = lambda _: None
) -> Report:
    """Run rounds of faults and check the guarantees."""
    report = Report()
    rng = random.Random(seed)
    group = Group(folder, 3, flush)
    faults = Faults(group, rng)
    load: Load | None = None
    try:
        group.start_all()
        load = Load(GROUP, group.peers, 4, seed)
        _await_progress(load, report)
        for number in range(rounds):
            _round(group, load, faults, rng, report)
            log(f"round {number + 1} of {rounds}: {report}")
            if report.violations:
                break
        _settle(group, load.stop(), report)
    finally:
        if load is not None:
            load.stop()
        group.stop()
    _check(folder, group, load, report)
    return report


def _round(group: Group, load: Load, faults: Faults, rng: random.Random, report: Report) -> None:
    fault = faults.choose()
    report.faults[fault.__name__] += 1
    fault()
    time.sleep(rng.choice((0.1, 0.5, 1.0, 2.0)))
    report.violations += [f"{node} ended by itself, see {node}.log" for node in group.crashed()]
    faults.heal()
    _await_progress(load, report)
    report.violations += [f"a client failed: {error!r}" for error in load.failures]


def _await_progress(load: Load, report: Report) -> None:
    started = time.monotonic()
    if not load.wait_for_progress(RECOVERY_SECONDS):
        report.violations.append(
            f"nothing was acknowledged within {RECOVERY_SECONDS:.0f} s after the end of the faults"
        )
    report.slowest_recovery = max(report.slowest_recovery, time.monotonic() - started)


def _settle(group: Group, history: History, report: Report) -> None:
    """Wait until all members have committed all entries. One more append lets a new leader commit."""
    with dl.connect(group=GROUP, peers=group.peers, timeout_ms=3_000, max_retries=20) as client:
        last = Append(b"last", time.monotonic())
        last.index = client.append(last.body).index
        last.returned, last.outcome = time.monotonic(), "acknowledged"
        history.add(last)
        deadline = time.monotonic() + RECOVERY_SECONDS
        ends: set[tuple[int, int]] = set()
        while time.monotonic() < deadline:
            try:
                statuses = [client.status(node) for node in group.ids]
            except DLedgerError:
                continue
            ends = {(status.end_index, status.committed_index) for status in statuses}
            report.leaders = max(status.term for status in statuses)
            if len(ends) == 1 and all(end == committed for end, committed in ends):
                return
            time.sleep(0.1)
    report.violations.append(f"members did not reach the same committed end within {RECOVERY_SECONDS:.0f} s: {ends}")


def _check(folder: Path, group: Group, load: Load, report: Report) -> None:
    logs = {node: _bodies(folder / f"dledger-{node}") for node in group.ids}
    longest = max(logs.values(), key=len)
    for node, bodies in logs.items():
        if bodies != longest:
            report.violations.append(f"the log of {node} differs: {len(bodies)} of {len(longest)} entries")
    history = load.history
    report.violations += violations(history, longest)[:10]
    report.outcomes = Counter(append.outcome for append in history.appends)
    report.reads = len(history.gets)
    report.entries = len(longest)


def _bodies(folder: Path) -> list[bytes | None]:
    log = dl.open_log(folder)
    rows = (row for batch in log.scan(columns=["index", "kind", "body"]) for row in batch.to_pylist())
    return [None if row["kind"] in ("noop", "config") else row["body"] for row in rows]
