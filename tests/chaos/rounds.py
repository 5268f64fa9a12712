"""Rounds of faults on a group under load, and what has to hold afterwards."""

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

PATIENCE = 30.0  # seconds for a group without faults to acknowledge again


@dataclass
class Report:
    """What was done to the group and what its clients saw."""

    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    reads: int = 0
    entries: int = 0
    slowest_recovery: float = 0.0
    leaders: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return (
            f"faults: {faults}; appends: {outcomes}; reads {self.reads}; entries {self.entries}; terms {self.leaders}; "
            f"slowest recovery {self.slowest_recovery:.1f} s; violations {len(self.wrong)}"
        )


class Faults:
    """Each method does one thing to a running group; `heal` undoes whatever was done."""

    def __init__(self, group: Group, chance: random.Random) -> None:
        self.group = group
        self.chance = chance

    def choose(self) -> Callable[[], None]:
        kills = (self.kill_leader, self.kill_one, self.kill_two, self.kill_all)
        cuts = (self.cut_off, self.drop_everything, self.deaf, self.mute)
        return self.chance.choice((*kills, self.pause, self.pause, *cuts))

    def leader(self) -> str:
        """The node that the group says leads it, or any."""
        try:
            with dl.connect(group=GROUP, peers=self.group.peers, timeout_ms=500, max_retries=0) as client:
                return client.metadata().leader_id or self.any()
        except DLedgerError:
            return self.any()

    def any(self) -> str:
        return self.chance.choice(self.group.ids)

    def kill_leader(self) -> None:
        self.group.kill(self.leader())

    def kill_one(self) -> None:
        self.group.kill(self.any())

    def kill_two(self) -> None:
        for node in self.chance.sample(self.group.ids, 2):
            self.group.kill(node)

    def kill_all(self) -> None:
        for node in list(self.group.ids):
            self.group.kill(node)

    def pause(self) -> None:
        self.group.pause(self.chance.choice((self.leader(), self.any())))

    def cut_off(self) -> None:
        self.group.network.isolate(self.leader(), "cut")

    def drop_everything(self) -> None:
        self.group.network.isolate(self.chance.choice((self.leader(), self.any())), "held")

    def deaf(self) -> None:
        self.group.network.isolate(self.leader(), "held", "in")

    def mute(self) -> None:
        self.group.network.isolate(self.leader(), "held", "out")

    def heal(self) -> None:
        self.group.network.heal()
        self.group.resume()
        self.group.start_all()


def run(
    folder: Path, rounds: int, seed: int, flush: str = "async", say: Callable[[str], None] = lambda _: None
) -> Report:
    """Rounds of faults; the report's ``wrong`` is empty if nothing that was promised broke."""
    report = Report()
    chance = random.Random(seed)
    group = Group(folder, 3, flush)
    faults = Faults(group, chance)
    load: Load | None = None
    try:
        group.start_all()
        load = Load(GROUP, group.peers, 4, seed)
        _await_progress(load, report)
        for number in range(rounds):
            _round(group, load, faults, chance, report)
            say(f"round {number + 1} of {rounds}: {report}")
            if report.wrong:
                break
        _settle(group, load.stop(), report)
    finally:
        if load is not None:
            load.stop()
        group.stop()
    _judge(folder, group, load, report)
    return report


def _round(group: Group, load: Load, faults: Faults, chance: random.Random, report: Report) -> None:
    fault = faults.choose()
    report.faults[fault.__name__] += 1
    fault()
    time.sleep(chance.choice((0.1, 0.5, 1.0, 2.0)))
    report.wrong += [f"{node} ended by itself, see {node}.log" for node in group.crashed()]
    faults.heal()
    _await_progress(load, report)
    report.wrong += [f"a client failed: {error!r}" for error in load.failures]


def _await_progress(load: Load, report: Report) -> None:
    begun = time.monotonic()
    if not load.wait_for_progress(PATIENCE):
        report.wrong.append(f"nothing was acknowledged within {PATIENCE:.0f} s after the faults were mended")
    report.slowest_recovery = max(report.slowest_recovery, time.monotonic() - begun)


def _settle(group: Group, history: History, report: Report) -> None:
    """Wait until every member has and knows committed everything; one more append lets a new leader commit."""
    with dl.connect(group=GROUP, peers=group.peers, timeout_ms=3_000, max_retries=20) as client:
        last = Append(b"last", time.monotonic())
        last.index = client.append(last.body).index
        last.answered, last.outcome = time.monotonic(), "acknowledged"
        history.add(last)
        deadline = time.monotonic() + PATIENCE
        stands: set[tuple[int, int]] = set()
        while time.monotonic() < deadline:
            try:
                statuses = [client.status(node) for node in group.ids]
            except DLedgerError:
                continue
            stands = {(status.end_index, status.committed_index) for status in statuses}
            report.leaders = max(status.term for status in statuses)
            if len(stands) == 1 and all(end == committed for end, committed in stands):
                return
            time.sleep(0.1)
    report.wrong.append(f"members did not come to the same end, and it committed, within {PATIENCE:.0f} s: {stands}")


def _judge(folder: Path, group: Group, load: Load, report: Report) -> None:
    logs = {node: _bodies(folder / f"dledger-{node}") for node in group.ids}
    longest = max(logs.values(), key=len)
    for node, bodies in logs.items():
        if bodies != longest:
            report.wrong.append(f"the log of {node} differs: {len(bodies)} of {len(longest)} entries")
    history = load.history
    report.wrong += violations(history, longest)[:10]
    report.outcomes = Counter(append.outcome for append in history.appends)
    report.reads = len(history.gets)
    report.entries = len(longest)


def _bodies(folder: Path) -> list[bytes]:
    log = dl.open_log(folder)
    return [body for batch in log.scan(columns=["index", "body"]) for body in batch.column("body").to_pylist()]
