"""Rounds of faults while messages are written and tailed, and the checks at the end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from tests.chaos.group import GROUP
from tests.exactly_once.group import MessageGroup
from tests.support.driven_stream import MAX_WAIT, DrivenStream
from tests.support.groups import eventually

TOPIC = "Orders"
FILES_PER_ROUND, MESSAGES_PER_FILE, DUPLICATES = 4, 100, 3
_MAX_SHOWN = 5
_DRIVER = Path(__file__).parent / "driver.py"


@dataclass
class Report:
    """What happened. ``wrong`` is empty if each message is in the log and in the tail's rows exactly once."""

    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    drivers: int = 0
    drivers_ended: int = 0
    terms: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.messages} messages, {self.drivers} drivers ({self.drivers_ended} ended by themselves), "
            f"term {self.terms}; faults: {faults or 'none'}; {len(self.wrong)} wrong"
        )


class Job:
    """The group, the driver, and the files between them, in ``folder``."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.folder = folder
        self.report = report
        self.input = folder / "input"
        (folder / "nodes").mkdir()
        self.input.mkdir()
        self.group = MessageGroup(folder / "nodes", 3, "async")
        self.expected: Counter[bytes] = Counter()
        settings = {"input": str(self.input), "topic": TOPIC, "group": GROUP, "peers": self.group.peers}
        self.stream = DrivenStream(_DRIVER, folder, settings)
        self._files = 0

    def add_files(self, files: int) -> None:
        """Add files for the writer. A file has a few equal messages; each of them counts."""
        for _ in range(files):
            first = self._files * MESSAGES_PER_FILE
            bodies = [f"message {first + number}" for number in range(MESSAGES_PER_FILE - DUPLICATES)]
            bodies += [f"equal in file {self._files}"] * DUPLICATES
            self.expected.update(body.encode() for body in bodies)
            keys = [f"k{number % 7}" for number in range(MESSAGES_PER_FILE)]
            table = pa.table({"topic": [TOPIC] * MESSAGES_PER_FILE, "body": bodies, "keys": keys})
            hidden = self.input / f".{self._files}.parquet"
            pq.write_table(table, hidden)
            hidden.rename(self.input / f"{self._files}.parquet")
            self._files += 1
        self.report.messages = self.expected.total()

    def kill_driver(self) -> None:
        self.stream.kill()

    def kill_leader(self) -> None:
        leader = eventually(self.group.leader, MAX_WAIT)
        assert leader is not None
        self.group.kill(leader)

    def heal(self) -> None:
        """Start all nodes and the driver that do not run, also a driver that ended by itself."""
        self.report.wrong += [f"{node} ended by itself, see {node}.log" for node in self.group.crashed()]
        self.group.start_all()
        self.stream.heal()
        self.report.drivers, self.report.drivers_ended = self.stream.started, self.stream.ended

    def await_rows(self, count: int) -> bool:
        return self.stream.await_rows(count, self.heal)

    def stop(self) -> None:
        self.kill_driver()
        self.group.stop()


def run(folder: Path, rounds: int, seed: int, show: Callable[[str], None] = lambda _: None) -> Report:
    """Run rounds of faults. The first round kills a leader and the driver."""
    report = Report()
    chance = random.Random(seed)
    job = Job(folder, report)
    try:
        job.group.start_all()
        job.add_files(FILES_PER_ROUND)
        job.heal()
        if not job.await_rows(1):
            report.wrong.append(f"no row within {MAX_WAIT:.0f} s, see driver.log")
        for number in range(rounds):
            if report.wrong:
                break
            _round(job, number, chance, report)
            show(f"round {number + 1} of {rounds}: {report}")
        if not report.wrong and not job.await_rows(report.messages):
            report.wrong.append(
                f"{job.stream.count_rows()} of {report.messages} rows within {MAX_WAIT:.0f} s, see driver.log"
            )
        job.kill_driver()
        report.terms = _settle(job)
    finally:
        job.stop()
    _check(job, report)
    return report


def _round(job: Job, number: int, chance: random.Random, report: Report) -> None:
    """Add files, cause a fault while they are written and tailed, and heal it before that ends."""
    job.add_files(FILES_PER_ROUND)
    time.sleep(chance.choice((0.1, 0.5, 1.0, 2.0)))
    faults: list[list[Callable[[], None]]] = [[job.kill_leader, job.kill_driver], [job.kill_leader], [job.kill_driver]]
    for fault in faults[number] if number < len(faults) else chance.choice(faults):
        fault()
        report.faults[fault.__name__] += 1
        time.sleep(chance.choice((0.0, 0.3, 1.0)))
    job.heal()
    # Some rows are still missing at the next fault.
    if not job.await_rows(report.messages - FILES_PER_ROUND * MESSAGES_PER_FILE // 2):
        report.wrong.append(f"{job.stream.count_rows()} rows within {MAX_WAIT:.0f} s after a fault, see driver.log")


def _settle(job: Job) -> int:
    """Wait until all members have the same end and committed index. Return their term."""
    with dl.connect(group=GROUP, peers=job.group.peers, max_retries=20) as client:
        deadline = time.monotonic() + MAX_WAIT
        while time.monotonic() < deadline:
            try:
                statuses = [client.status(node) for node in job.group.ids]
            except DLedgerError:
                continue
            if len({(status.end_index, status.committed_index) for status in statuses}) == 1:
                return max(status.term for status in statuses)
            time.sleep(0.1)
    job.report.wrong.append(f"the members did not reach the same end within {MAX_WAIT:.0f} s")
    return -1


def _check(job: Job, report: Report) -> None:
    """Compare logs and rows with the messages. After a wait that was too long, messages may be missing for now."""
    is_whole = not report.wrong
    columns = ["index", "queueId", "queueOffset", "body"]
    logs = {}
    for node in job.group.ids:
        log = dl.open_log(job.group.root(node))
        logs[node] = [row for batch in log.scan(columns, topic=TOPIC) for row in batch.to_pylist()]
    for node, rows in logs.items():
        texts = chain(differences(rows, job.expected, is_whole), wrong_offsets(rows))
        report.wrong += [f"log of {node}: {text}" for text in islice(texts, _MAX_SHOWN)]
    tailed = sorted(job.stream.read_rows(columns), key=lambda row: row["index"])
    report.wrong += [f"tail: {text}" for text in islice(differences(tailed, job.expected, is_whole), _MAX_SHOWN)]
    if tailed != logs[job.group.ids[0]] and not report.wrong:
        report.wrong.append("tail: the rows are not those of the log")


def differences(rows: list[dict[str, Any]], expected: Counter[bytes], is_whole: bool = True) -> Iterator[str]:
    """Yield each body that was found more often than expected, and if these are all rows, less often."""
    found = Counter(row["body"] for row in rows)
    for body in sorted(found.keys() | expected.keys()):
        if found[body] > expected[body] or (is_whole and found[body] < expected[body]):
            yield f"{body.decode()!r} expected {expected[body]} times, found {found[body]} times"


def wrong_offsets(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the offsets of a queue that are not 0, 1, 2 and so on, in the order of the log."""
    next_offsets: Counter[int] = Counter()
    for row in rows:
        queue, offset = row["queueId"], row["queueOffset"]
        if offset != next_offsets[queue]:
            yield f"index {row['index']}: expected offset {next_offsets[queue]} of queue {queue}, found {offset}"
        next_offsets[queue] += 1
