"""What verify, the audit of queues and the recovery model say of one store, without the others of its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log.diff.salvage_doubts import SalvageDoubts, salvage_doubts
from pyspark_dledger.log.io.files import ignore_error
from pyspark_dledger.log.io.key_files import index_files
from pyspark_dledger.log.io.queue_files import FOLDER, file_queues, usual_units
from pyspark_dledger.log.io.store_use import KnownLoss, StoreWatch, known_loss
from pyspark_dledger.log.recovery.recovery_preview import SILENT_CODES
from pyspark_dledger.log.state import State, state_of
from pyspark_dledger.log.store_view import StoreView, answer
from pyspark_dledger.log.verify.findings import CODES, INFO, Finding, Severity
from pyspark_dledger.log.verify.verify_store import not_checked, verify
from pyspark_dledger.rocketmq.check.restart import Restart, Version, is_broker, restart_of, version_of
from pyspark_dledger.rocketmq.tables.audit_table import plan as audit_parts
from pyspark_dledger.rocketmq.tables.audit_table import read as read_audit

YES, NO, UNKNOWN = "yes", "no", "unknown"

_Item = TypeVar("_Item")
Progress = Callable[[int, int], None]
_Place = tuple[Any, ...]
"""A code, and where it was found."""
MAX_EXAMPLES = 20
"""How many findings of one code are kept; the others are counted."""


@dataclass(frozen=True)
class QueueFacts:
    """Where log and ConsumeQueues disagree: rows of the table ``audit`` by code, or the ``reason`` that none is known.

    ``is_there`` is false for a store that is no broker's. ``examples`` are the first rows of each code.
    """

    is_there: bool
    counts: Counter[str]
    reason: str | None = None
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def answer(self) -> str | None:
        """Whether consumers get every message of the log: ``yes``, ``no`` or ``unknown``; None if it is no broker's."""
        if not self.is_there:
            return None
        return UNKNOWN if self.reason is not None else NO if self.counts else YES


@dataclass(frozen=True)
class StoreFacts:
    """What is known of one store without the others. ``unreadable`` are its files that cannot be read.

    ``findings`` are counts by code, ``examples`` the first ones of each code. ``queue_file_units`` is how many units
    most of its ConsumeQueue files have; 0 without files. ``key_files`` counts its IndexFiles, and ``had_key_files``
    says that its messages have keys, and the broker's checkpoint knows of some.
    """

    path: str
    state: State
    is_broker: bool
    is_in_use: bool
    findings: Counter[str]
    queues: QueueFacts
    version: Version
    restart: Restart | None
    no_restart: str | None
    unreadable: tuple[str, ...]
    not_checked: tuple[str, ...]
    examples: dict[str, list[Finding]]
    queue_file_units: int
    key_files: int
    had_key_files: bool
    known_loss: KnownLoss | None
    """What was lost after the end of its log, if a salvage wrote it."""
    doubts: SalvageDoubts | None
    """The entries that may be damaged because of the salvage that wrote it; None without any."""

    def count(self, severity: Severity) -> int:
        """The number of findings with that severity."""
        return sum(count for code, count in self.findings.items() if CODES[code].severity == severity)

    @property
    def silent(self) -> int:
        """The number of damaged entries that no version of Java notices."""
        return sum(self.findings[code] for code in SILENT_CODES)

    @property
    def faults(self) -> dict[str, int]:
        """The findings that are warnings and errors, by code."""
        return {code: count for code, count in self.findings.most_common() if CODES[code].severity != INFO}


class _Read(NamedTuple):
    """What one read of a store found: codes with places, in counters, and the first ones of each code."""

    findings: Counter[_Place]
    queues: Counter[_Place]
    no_queues: str | None
    examples: dict[str, list[Finding]]
    queue_examples: dict[str, list[dict[str, Any]]]

    def confirmed_by(self, other: _Read) -> _Read:
        """What both reads found: a write in progress is in one of them only."""
        return self._replace(findings=self.findings & other.findings, queues=self.queues & other.queues)


def no_progress(_done: int, _total: int) -> None:
    """For a caller that shows no progress."""


def watch_of(log: StoreView) -> StoreWatch:
    """Watches a store from now on, to tell later if a process used it meanwhile."""
    watch = StoreWatch(log.paths)
    for segment, end in log.ends.values():
        watch.note_end(segment, end.pos)
    return watch


def store_facts(
    log: StoreView, watch: StoreWatch, rocketmq: str | None, java: str | None, progress: Progress
) -> StoreFacts:
    """Read a store: its findings, its queues, and what a restart would do. Raises OptionError for a wrong version."""
    alone, root = _alone(log), log.paths.root
    found = _read(alone, progress)
    is_in_use = watch.use() is not None
    if is_in_use and (found.findings or found.queues):
        found = found.confirmed_by(_read(_alone(log), progress))
    findings, disagreements = _by_code(found.findings), _by_code(found.queues)
    version = version_of(alone, findings, rocketmq, java)
    restart, no_restart = _restart(alone, version, is_in_use)
    state = answer(alone, state_of)
    return StoreFacts(
        path=log.argument,
        state=state,
        is_broker=is_broker(alone),
        is_in_use=is_in_use,
        findings=findings,
        queues=QueueFacts(_has_queues(alone), disagreements, found.no_queues, _of(found.queue_examples, disagreements)),
        version=version,
        restart=restart,
        no_restart=no_restart,
        unreadable=tuple(alone.unread.texts()),
        not_checked=tuple(not_checked(alone)),
        examples=_of(found.examples, findings),
        queue_file_units=usual_units(file_queues(root, ignore_error)) if root is not None else 0,
        key_files=len(index_files(root)) if root is not None else 0,
        had_key_files=findings["keyIndexMissing"] > 0 and (state.index_msg_timestamp or 0) > 0,
        known_loss=known_loss(log.path),
        doubts=salvage_doubts([(log.path, log)]).get(log.path),
    )


def _alone(log: StoreView) -> StoreView:
    return StoreView(log.path, replace(log.options, replicas=None, group_size=None, unread=()))


def _by_code(found: Counter[_Place]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (code, *_), count in found.items():
        counts[code] += count
    return counts


def _of(examples: dict[str, list[_Item]], counts: Counter[str]) -> dict[str, list[_Item]]:
    """The examples of the codes that are confirmed."""
    return {code: found for code, found in examples.items() if counts[code]}


def _read(log: StoreView, progress: Progress) -> _Read:
    found = _Read(Counter(), Counter(), None, {}, {})
    for each in verify(log, progress):
        found.findings[each.code, each.file, each.offset] += each.count
        _keep(found.examples, each.code, each)
    if not _has_queues(log):
        return found
    try:
        for row in _audited(log):
            found.queues[row["code"], row["topic"], row["queueId"], row["queueOffset"]] += 1
            _keep(found.queue_examples, row["code"], row)
    except DLedgerError as error:
        return found._replace(queues=Counter(), no_queues=str(error))
    unread = log.unread.queue_texts() if not found.queues else ()
    return found._replace(no_queues=unread[0]) if unread else found


def _keep(examples: dict[str, list[_Item]], code: str, item: _Item) -> None:
    same = examples.setdefault(code, [])
    if len(same) < MAX_EXAMPLES:
        same.append(item)


def _has_queues(log: StoreView) -> bool:
    root = log.paths.root
    return root is not None and (is_broker(log) or (root / FOLDER).is_dir())


def _audited(log: StoreView) -> Iterator[dict[str, Any]]:
    for part in audit_parts(log, log.options, log.unread.add):
        for batch in read_audit(part, log.unread):
            yield from rows_of(batch, bytes)


def _restart(log: StoreView, version: Version, is_in_use: bool) -> tuple[Restart | None, str | None]:
    try:
        found = restart_of(log, version.software, version.version)
    except OptionError:
        raise
    except DLedgerError as error:
        return None, str(error)
    if is_in_use and not found.starts:
        # The model reads entries and index units that the process has not completed.
        return None, "a process uses the store"
    return found, None
