"""Rounds of faults in a group under load, and the checks of its guarantees."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from tests.chaos.changes import Changes
from tests.chaos.faults import HUNG_SECONDS, Faults
from tests.chaos.group import GROUP, Group
from tests.chaos.history import violations
from tests.chaos.judge import bodies_of, wrong_stores
from tests.chaos.load import Load, MessageLoad


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

    def totals(self) -> Counter[str]:
        return self.faults + self.outcomes + Counter({"reads": self.reads, "entries": self.entries})

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return (
            f"faults: {faults}; appends: {outcomes}; reads {self.reads}; entries {self.entries}; terms {self.leaders}; "
            f"slowest recovery {self.slowest_recovery:.1f} s; violations {len(self.violations)}"
        )


def run(
    folder: Path,
    rounds: int,
    seed: int,
    flush: str = "async",
    log: Callable[[str], None] = lambda _: None,
    *,
    messages: bool = False,
    changes: bool = False,
) -> Report:
    """Run rounds of faults and check the guarantees.

    With `messages` the load is messages with identities; with `changes` the members are changed all the time.
    """
    report = Report()
    group = Group(folder, 3, flush, messages, spares=3 if changes else 0)
    faults = (Changes if changes else Faults)(group)
    report.faults, report.violations = faults.counts, faults.violations
    load: Load | None = None
    try:
        group.start_all()
        load = (MessageLoad if messages else Load)(GROUP, group.peers, 4, seed)
        _await_progress(load, faults, report)
        for number in range(rounds):
            if report.violations:
                break
            faults.begin_round(f"{seed}-{number}")
            _round(load, faults, report)
            report.outcomes["acknowledged"] = load.acknowledged
            log(f"round {number + 1} of {rounds}: {report}")
        settled = faults.settle()
        load.stop()
        if settled:
            _settle(group, load, faults, report)
    finally:
        if load is not None:
            load.stop()
        group.stop()
    _check(group, load, report)
    return report


def _round(load: Load, faults: Faults, report: Report) -> None:
    fault, pause = faults.choose(), faults.rng.choice((0.1, 0.5, 1.0, 2.0))
    report.faults[fault.__name__] += 1
    fault()
    time.sleep(pause)
    faults.heal()
    _await_progress(load, faults, report)
    report.violations += [f"a client failed: {error!r}" for error in load.failures]


def _await_progress(load: Load, faults: Faults, report: Report) -> None:
    """Wait until appends that are called from now on are acknowledged."""
    started = time.monotonic()
    target = load.next_target()
    while load.acknowledged < target and not report.violations:
        faults.tend()
        time.sleep(0.02)
        if time.monotonic() - started > HUNG_SECONDS:
            report.violations.append(
                f"nothing was acknowledged within {HUNG_SECONDS:.0f} s after the end of the faults"
            )
    report.slowest_recovery = max(report.slowest_recovery, time.monotonic() - started)


def _settle(group: Group, load: Load, faults: Faults, report: Report) -> None:
    """Wait until all members have committed all entries. One more append lets a new leader commit."""
    with dl.connect(group=GROUP, peers=group.peers, timeout_ms=3_000, max_retries=60) as client:
        load.append_last(client)
        deadline = time.monotonic() + HUNG_SECONDS
        ends: set[tuple[int, int]] = set()
        while time.monotonic() < deadline and not report.violations:
            faults.tend()
            try:
                statuses = [client.status(node) for node in group.ids]
            except DLedgerError:
                continue
            ends = {(status.end_index, status.committed_index) for status in statuses}
            report.leaders = max(status.term for status in statuses)
            if len(ends) == 1 and all(end == committed for end, committed in ends):
                return
            time.sleep(0.1)
    report.violations.append(f"members did not reach the same committed end within {HUNG_SECONDS:.0f} s: {ends}")


def _check(group: Group, load: Load, report: Report) -> None:
    report.outcomes = Counter(append.outcome for append in load.history.appends)
    report.reads = len(load.history.gets)
    if report.violations:
        return  # nodes may have stopped in the middle of a repair
    report.violations += wrong_stores(group, load.queue_offsets)
    log = bodies_of(group.root(group.ids[0]))
    report.violations += violations(load.history, log)[:10]
    report.entries = len(log)
