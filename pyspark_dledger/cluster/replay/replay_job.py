"""Sends messages of a log to a running cluster, each once as far as the journal knows.

The target is the folder of the journal. `jobs.job` runs the parts of the log in their order. Each has a journal, and at
its end a file ``offsets-NNNNN.jsonl``. Batches are sent in rounds, in which a queue has one, so that its order is kept.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark_dledger.cluster.cluster import Cluster
from pyspark_dledger.cluster.producer import (
    MAX_BATCH_BYTES,
    NOT_FLUSHED,
    Batch,
    BatchMessage,
    Producer,
    SendSettings,
    batches_of,
)
from pyspark_dledger.cluster.replay.journal import Journal, Outcome
from pyspark_dledger.cluster.replay.replay_options import ReplayOptions, parse_replay_options
from pyspark_dledger.cluster.replay.replayed import COLUMNS, DAMAGED, Chooser, LeftOut, Origin, Replayed
from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.common.durable import replace_durably
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import ClusterError, OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.healed_store import open_store
from pyspark_dledger.log.io.store_use import MANIFEST
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import Partition, read_partition
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.export.export_job import (
    LogRange,
    count_lost,
    range_of,
    resumed_range,
    with_absolute_paths,
)
from pyspark_dledger.rocketmq.export.forms import MAX_SKIPPED, plan_parts
from pyspark_dledger.rocketmq.jobs import Progress, map_here
from pyspark_dledger.rocketmq.jobs.job import Job
from pyspark_dledger.rocketmq.jobs.new_files import ChecksumFile, file_report
from pyspark_dledger.rocketmq.jobs.target_folder import (
    STATE_FOLDER,
    PartReport,
    absolute_path,
    check_apart,
    locked_folder,
    new_file,
    not_ours,
    parsed,
    read_json,
    report_path,
    target_path,
)

UNKNOWN_FILE, REJECTED_FILE = "unknown.jsonl", "rejected.jsonl"
_VERB = "replay"
_ROUND_BYTES = 32 * 1024 * 1024
_UNKNOWN, _REPEATED, _REJECTED = "unknown", "repeated", "rejected"
_Round = Sequence[tuple[Batch, Sequence[Origin]]]
Guard = Callable[[], AbstractContextManager[None]]
"""Makes a context in which an interrupt waits for its end: responses are read and noted."""


@dataclass(frozen=True)
class QueueCount:
    """How many messages of a queue of the log are sent, and to which topic."""

    topic: str
    queue_id: int
    new_topic: str
    messages: int


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """The result of a replay.

    `messages` are acknowledged, in all runs; in a dry run they would be sent. Of them, `repeated` were sent again after
    a lost response, so that the cluster can have them twice, and `not_flushed` counts those that a broker acknowledged
    less safely than it is configured. `unknown` were sent without a response, and are not sent again. `rejected` are
    those that a broker does not take. `problems` are why the cluster would not take the messages, of a dry run only.
    `lost` and `committed_index` are as in an export.
    """

    source: str
    target: str | None
    name_server: str
    is_dry_run: bool
    messages: int
    queues: tuple[QueueCount, ...]
    left_out: dict[str, int]
    first_left_out: tuple[str, ...]
    unknown: int = 0
    rejected: int = 0
    repeated: int = 0
    not_flushed: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    lost: int
    lost_is_all: bool
    committed_index: int | None
    beyond_committed: int | None
    parts: int
    resumed: int = 0
    seconds: float
    notes: tuple[str, ...] = ()


def replay(
    source: str | os.PathLike[str],
    to: str,
    journal: str | os.PathLike[str] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
    guard: Guard = nullcontext,
    **options: Any,
) -> ReplayReport:
    """Send messages of the store at `source` to the cluster with the name servers `to`. See `api.replay`."""
    if dry_run == (journal is not None):
        raise OptionError(
            "a dry run writes no journal: leave it out"
            if dry_run
            else "expected a folder for the journal of a replay, found none: name one, or make a dry run"
        )
    began = time.monotonic()
    address, read, own = parse_replay_options({**options, "nameServer": to})
    path, read = absolute_path(os.fspath(source)), with_absolute_paths(read)
    log = open_store(path, read)
    with Cluster(address) as cluster, closing(Producer(cluster, _SETTINGS)) as producer:
        if journal is None:
            return _Replay(log, read, own, producer, range_of(log, read), progress=progress).dry_run(began)
        target = target_path(journal)
        check_apart(log, (path, *(read.replicas or ())), target)
        request = {
            "form": _VERB,
            "source": path,
            "nameServer": str(address),
            "options": {**asdict(read), **own.request},
        }
        with locked_folder(target, _VERB):
            job = Job(target, _VERB, request, map_here, progress)
            earlier = job.earlier()
            found = range_of(log, read) if earlier is None else resumed_range(log, earlier, target, job.advice)
            salt = uuid.uuid4().hex if earlier is None else str(earlier.get("salt"))
            run = _Replay(log, read, own, producer, found, salt, progress, guard)
            return run.send(began, job, target, earlier)


_SETTINGS = SendSettings(accepted=frozenset(NOT_FLUSHED.values()))


@dataclass
class _Survey:
    """What a replay sends, and what it leaves out."""

    messages: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    first_left_out: list[str] = field(default_factory=list)

    def add(self, choice: Replayed | LeftOut) -> None:
        if isinstance(choice, Replayed):
            self.messages[choice.origin.topic, choice.origin.queue_id, choice.topic] += 1
            return
        self.left_out[choice.reason] += 1
        if choice.place and len(self.first_left_out) < MAX_SKIPPED:
            self.first_left_out.append(choice.place)


@dataclass
class _Replay:
    """One run of a replay."""

    log: StoreView
    read: ReadOptions
    options: ReplayOptions
    producer: Producer
    range: LogRange
    salt: str = ""
    progress: Progress | None = None
    guard: Guard = nullcontext
    queues: dict[str, tuple[Queue, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = self.range.committed_index, self.range.start, self.range.end
        self.parts = plan_parts(self.log, COLUMNS, self.read, *bounds)
        self.chooser = Chooser(self.log, self.read.topic or (), self.options, self.salt)

    def dry_run(self, began: float) -> ReplayReport:
        survey = self._survey()
        _, problems = self._targets(survey)
        messages = survey.messages.total()
        return self._report(survey, began, is_dry_run=True, target=None, messages=messages, problems=tuple(problems))

    def send(self, began: float, job: Job, target: Path, earlier: Mapping[str, Any] | None) -> ReplayReport:
        survey = self._survey()
        if earlier is None:
            self.queues, problems = self._targets(survey)
            if problems:
                raise ClusterError("; ".join(problems))
        else:
            self.queues = _queues_of(earlier, target)
            if self.options.send_unknown:
                _forget_unknown(target, len(self.parts))
        queues = {topic: [each[1:] for each in found] for topic, found in self.queues.items()}
        state = {**self.range.to_json(), "salt": self.salt, "queues": queues}
        try:
            reports, resumed = job.write(
                self._send_part, self.parts, self.range.end - self.range.start, earlier=earlier, state=state
            )
        finally:
            _list_unsent(target)
        counts: Counter[str] = sum((Counter(each.counts) for each in reports), Counter())
        report = self._report(
            survey,
            began,
            is_dry_run=False,
            target=str(target),
            messages=sum(each.rows for each in reports),
            unknown=counts[_UNKNOWN],
            rejected=counts[_REJECTED],
            repeated=counts[_REPEATED],
            not_flushed={name: counts[name] for name in NOT_FLUSHED if counts[name]},
            resumed=resumed,
        )
        job.check_files(file for each in reports for file in each.files)
        if not report.unknown:
            job.end(asdict(report), reports)
        return report

    def _survey(self) -> _Survey:
        """The same choices as when messages are sent."""
        found = _Survey()
        for number, part in enumerate(self.parts):
            for choice in self.chooser.choose(batch.drop_columns(["body"]) for batch in read_partition(part)):
                found.add(choice)
            if self.progress is not None:
                self.progress(number + 1, len(self.parts))
        return found

    def _targets(self, survey: _Survey) -> tuple[dict[str, tuple[Queue, ...]], list[str]]:
        """The queues of each topic that messages are sent to, and what the cluster lacks. Raises ClusterError."""
        wanted: dict[str, set[int]] = defaultdict(set)
        for _, queue_id, topic in survey.messages:
            wanted[topic].add(queue_id)
        cluster, broker = self.producer.cluster, self.options.broker
        found: dict[str, tuple[Queue, ...]] = {}
        for topic in sorted(wanted):
            route = cluster.route(topic)
            writable = () if route is None else route.writable
            found[topic] = tuple(queue for queue in writable if broker in (None, queue.broker))
        missing = [topic for topic, queues in found.items() if not queues]
        at = cluster.name if broker is None else f"broker {broker} of {cluster.name}"
        problems = [f"{at} has no topic {', '.join(missing)} that takes messages: create it"] if missing else []
        if self.options.same_queues:
            problems += [
                text for each in sorted(set(found) - set(missing)) for text in _too_few(found[each], wanted[each])
            ]
        return found, problems

    def _report(self, survey: _Survey, began: float, **fields: Any) -> ReplayReport:
        is_damaged = bool(survey.left_out[DAMAGED])
        found = self.range
        lost, lost_is_all = count_lost(self.log, self.read, found.start, found.end) if is_damaged else (0, True)
        return ReplayReport(
            source=self.log.path,
            name_server=str(self.producer.cluster.address),
            queues=tuple(QueueCount(*queue, count) for queue, count in sorted(survey.messages.items())),
            left_out=dict(survey.left_out.most_common()),
            first_left_out=tuple(survey.first_left_out),
            lost=lost,
            lost_is_all=lost_is_all,
            committed_index=found.committed_index,
            beyond_committed=found.beyond_committed,
            parts=len(self.parts),
            seconds=round(time.monotonic() - began, 3),
            notes=tuple(self._notes()),
            **fields,
        )

    def _notes(self) -> Iterator[str]:
        if self.log.ledger_segments and self.range.beyond_committed is None:
            yield "no committed bound is known: some of the entries may not be committed"
        elif self.range.beyond_committed:
            yield (
                f"{counted(self.range.beyond_committed, 'entry')} after the committed index "
                f"{self.range.committed_index} may or may not be acknowledged; isolationLevel=read_committed leaves "
                "them out"
            )

    # A part

    def _send_part(self, part: Partition, number: int, target: Path) -> PartReport:
        """Send what the journal does not know, then write the file of offsets. Raises ClusterError."""
        file = _journal(target, number)
        with closing(Journal(file)) as journal:
            for group in _paced(self._messages(part, journal), self.options.messages_per_second):
                for batches in _rounds(self._batches(group)):
                    with self.guard():
                        while batches:
                            batches = self._send_round(journal, batches)
        counts: Counter[str] = Counter()
        rows, path = 0, f"offsets-{number:05d}.jsonl"
        with closing(Journal(file)) as journal, new_file(target, path) as temporary:
            with ChecksumFile(temporary) as output:
                for outcome in journal.outcomes():
                    count = len(outcome.acknowledged)
                    rows += count
                    counts[_REPEATED] += count if outcome.may_repeat else 0
                    counts[outcome.status] += count
                    output.write("".join(f"{json_line(row)}\n" for row in _offset_rows(outcome)).encode())
                os.fsync(output.fileno())
            counts[_UNKNOWN], counts[_REJECTED] = len(journal.unknown), len(journal.rejected)
            report = file_report(temporary, path, rows)
        return PartReport(number, (report,), part.size, counts=dict(+counts))

    def _messages(self, part: Partition, journal: Journal) -> Iterator[Replayed]:
        done = journal.acknowledged | journal.rejected.keys()
        done |= set() if self.options.send_unknown else journal.unknown.keys()
        for choice in self.chooser.choose(read_partition(part, is_once=True)):
            if isinstance(choice, Replayed) and choice.origin.pos not in done:
                yield choice

    def _batches(self, messages: Iterable[Replayed]) -> Iterator[tuple[Batch, Sequence[Origin]]]:
        # The messages of a queue are batched in their order.
        origins: dict[Queue, deque[Origin]] = defaultdict(deque)
        now = int(time.time() * 1000)

        def queued() -> Iterator[tuple[Queue, bool, BatchMessage]]:
            for each in messages:
                queue = self._queue(each)
                origins[queue].append(each.origin)
                yield queue, True, each.message._replace(born_timestamp=now)

        for batch in batches_of(queued(), MAX_BATCH_BYTES):
            yield batch, [origins[batch.queue].popleft() for _ in range(batch.count)]

    def _queue(self, message: Replayed) -> Queue:
        queues = self.queues[message.topic]
        if self.options.same_queues:
            return next(queue for queue in queues if queue.id == message.origin.queue_id)
        return queues[message.origin.queue_id % len(queues)]

    def _send_round(self, journal: Journal, batches: _Round) -> _Round:
        """Send batches of different queues. Returns the rest of each batch in which a broker rejects a message."""
        numbers = dict(zip((id(batch) for batch, _ in batches), journal.begin(batches), strict=True))
        origins = {id(batch): found for batch, found in batches}
        problems, left = [], []
        for sent in self.producer.send(batch for batch, _ in batches):
            journal.end(numbers[id(sent.batch)], sent)
            done = len(sent.offsets) + 1
            if sent.is_rejected and done < sent.batch.count:
                rest = Batch.of(sent.batch.queue, list(sent.batch.messages)[done:], is_pinned=True)
                left.append((rest, origins[id(sent.batch)][done:]))
            elif sent.problem and not sent.is_rejected:
                problems.append(sent.problem)
        if problems:
            journal.sync()
            raise ClusterError(f"{problems[0]}; the same {_VERB} continues")
        return left


def _too_few(queues: Sequence[Queue], ids: Iterable[int]) -> Iterator[str]:
    """Why a topic's queues are not those of the log."""
    topic, brokers = queues[0].topic, sorted({queue.broker for queue in queues})
    missing = sorted(set(ids) - {queue.id for queue in queues})
    if len(brokers) > 1:
        yield f"option sameQueues: topic {topic} is at brokers {', '.join(brokers)}: name one with option broker"
    elif missing:
        yield (
            f"option sameQueues: topic {topic} has {counted(len(queues), 'queue')}, and messages are of queue "
            f"{missing[-1]}, too: give the topic more queues, or leave the option out"
        )


def _paced(messages: Iterator[Replayed], per_second: int | None) -> Iterator[Iterable[Replayed]]:
    """The messages in groups of a second; in one group without a limit."""
    if per_second is None:
        yield messages
        return
    began = time.monotonic()
    while group := list(islice(messages, per_second)):
        yield group
        time.sleep(max(len(group) / per_second - (time.monotonic() - began), 0))
        began = time.monotonic()


def _rounds(batches: Iterable[tuple[Batch, Sequence[Origin]]]) -> Iterator[_Round]:
    """The batches in groups in which a queue has one batch."""
    found: list[tuple[Batch, Sequence[Origin]]] = []
    queues: set[Queue] = set()
    size = 0
    for each in batches:
        batch = each[0]
        if found and (size + batch.size > _ROUND_BYTES or batch.queue in queues):
            yield found
            found, queues, size = [], set(), 0
        found.append(each)
        queues.add(batch.queue)
        size += batch.size
    if found:
        yield found


# The folder of the journal


def _journal(target: Path, number: int) -> Path:
    return target / STATE_FOLDER / f"journal-{number:05d}.jsonl"


def _queues_of(manifest: Mapping[str, Any], target: Path) -> dict[str, tuple[Queue, ...]]:
    """The queues that the first run has chosen: a topic that gets more queues keeps the order of its messages."""
    try:
        found = {topic: [Queue(topic, *each) for each in queues] for topic, queues in manifest["queues"].items()}
        return {topic: tuple(parsed(Queue, each._asdict()) for each in queues) for topic, queues in found.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        raise not_ours(target / MANIFEST) from None


def _forget_unknown(target: Path, parts: int) -> None:
    """Delete the reports of parts with unknown messages, so that these parts are done again by their journals."""
    for file in (target / report_path(number) for number in range(parts)):
        if file.exists() and read_json(file).get("counts", {}).get(_UNKNOWN):
            file.unlink()


def _list_unsent(target: Path) -> None:
    """Write the lists of unknown and of rejected messages; there is no file if there are none."""
    lines: dict[str, list[str]] = {UNKNOWN_FILE: [], REJECTED_FILE: []}
    for file in sorted((target / STATE_FOLDER).glob("journal-*.jsonl")):
        with closing(Journal(file)) as journal:
            for name, found in ((UNKNOWN_FILE, journal.unknown), (REJECTED_FILE, journal.rejected)):
                lines[name] += [f"{json_line(_row(origin, queue))}\n" for origin, queue in found.values()]
    for name, some in lines.items():
        if some:
            replace_durably(target / name, "".join(some).encode())
        else:
            (target / name).unlink(missing_ok=True)


def _row(origin: Origin, queue: Queue) -> dict[str, Any]:
    return {
        "pos": origin.pos,
        "topic": origin.topic,
        "queueId": origin.queue_id,
        "queueOffset": origin.queue_offset,
        "uniqKey": origin.uniq_key,
        "newTopic": queue.topic,
        "newBroker": queue.broker,
        "newQueueId": queue.id,
    }


def _offset_rows(outcome: Outcome) -> Iterator[dict[str, Any]]:
    for origin, offset, message_id in zip(outcome.acknowledged, outcome.offsets, outcome.ids, strict=True):
        row = {**_row(origin, outcome.queue), "newQueueOffset": offset, "newOffsetMsgId": message_id}
        yield {**row, "status": outcome.status, "mayRepeat": outcome.may_repeat}
