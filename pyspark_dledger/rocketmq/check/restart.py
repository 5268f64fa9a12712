"""What a restart would change in a store: one row for each kind of recovery model, and the version to ask about."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.state_files import is_of_controller_mode
from pyspark_dledger.log.recovery.recovery_preview import LINES, RecoveryPreview, preview
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.units.stored import are_missing
from pyspark_dledger.rocketmq.recovery.broker_recovery import preview_broker
from pyspark_dledger.rocketmq.recovery.plain_recovery import LINES as PLAIN_LINES
from pyspark_dledger.rocketmq.recovery.plain_recovery import PlainRecovery, preview_plain

ROCKETMQ, DLEDGER = "RocketMQ", "DLedger"
BROKERS = ("4.9.8", "5.3.3")
"""The latest broker of each line with DLedger that is still in use."""
GIVEN, SHOWN, ASSUMED = "given", "shown", "assumed"
"""How the version is known: the user gave it, the store's files show it, or nothing tells."""
_ASSUMED_BROKER, _ASSUMED_LINE = "5.3.3", "0.3"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Restart:
    """What one version would do at its start.

    ``outcome`` is that of the recovery model, ``unknown`` if a file cannot be read; ``starts`` is None then. DLedger's
    ``dropped`` counts entries, and ``lost`` are ranges of the committed ones; without DLedger they are messages and
    positions. ``is_trouble``: the version does not start, or drops something.
    """

    software: str
    version: str
    outcome: str
    starts: bool | None
    begin_index: int | None = None
    end_index: int | None = None
    committed_index: int | None = None
    max_phy_offset: int | None = None
    confirm_offset: int | None = None
    is_too_old: bool = False
    dropped: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    lost_topics: dict[str, int] = field(default_factory=dict)
    files_deleted: int = 0
    consume_queue_units_cut: int = 0
    index_files_deleted: int = 0
    is_trouble: bool = False
    reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Version:
    """The software that would open a store; ``known`` is `GIVEN`, `SHOWN` or `ASSUMED`, ``evidence`` what shows it."""

    software: str
    version: str
    known: str
    evidence: str = ""


def is_broker(log: StoreView) -> bool:
    """Whether the store is a broker's: its root has a CommitLog or ConsumeQueues, or is missing these."""
    root = log.paths.root
    return root is not None and (
        any((root / name).is_dir() for name in ("commitlog", "consumequeue")) or are_missing(root)
    )


def restart_of(log: StoreView, software: str, version: str) -> Restart:
    """What a version would do with a store. Raises StoreError and OptionError as the recovery models."""
    found: RecoveryPreview | PlainRecovery
    if software == ROCKETMQ and log.paths.is_plain:
        found = preview_plain(log, version)
        broker, dropped, deleted = found.as_json() | {"notes": []}, sum(found.lost_topics.values()), found.files_deleted
    else:
        found = preview(log, version) if software == DLEDGER else preview_broker(log, version)
        broker, dropped = found.rocketmq or {}, found.dropped
        deleted = [*found.data_files_deleted, *found.index_files_deleted]
    shared = {each.name for each in fields(found)} & {each.name for each in fields(Restart)}
    cut = broker.get("consumeQueueUnitsBefore", 0) - broker.get("consumeQueueUnitsAfter", 0)
    values = {name: getattr(found, name) for name in shared} | {
        "starts": None if found.outcome == UNKNOWN else found.starts,
        "dropped": dropped,
        "lost": tuple(found.lost),
        "files_deleted": len(deleted),
        "consume_queue_units_cut": max(cut, 0),
        "index_files_deleted": len(broker.get("indexFilesDeleted", [])),
        "is_trouble": found.is_trouble,
        "notes": (*found.notes, *broker.get("notes", [])),
    }
    return Restart(software, version, **values)


def all_versions(log: StoreView) -> Iterator[tuple[str, str]]:
    """Every line of software and version that can open a store of this kind."""
    if log.paths.is_plain:
        yield from ((ROCKETMQ, version) for version in PLAIN_LINES)
        return
    yield from ((DLEDGER, line) for line in LINES)
    if is_broker(log):
        yield from ((ROCKETMQ, version) for version in BROKERS)


def version_of(log: StoreView, findings: Container[str], rocketmq: str | None, java: str | None) -> Version:
    """The version that would open a store: the given one, else what its files and their findings show.

    Raises OptionError for a version of the wrong software.
    """
    if java is not None:
        if log.paths.is_plain:
            raise OptionError(f"{log.path}: has no DLedger node, and --java is a version of DLedger: use --rocketmq")
        return Version(DLEDGER, java, GIVEN)
    if rocketmq is not None:
        return Version(ROCKETMQ, rocketmq, GIVEN)
    if not log.paths.is_plain and (log.dialect == "0.4" or "newerMagic" in findings):
        return Version(DLEDGER, "0.4", SHOWN, "its files are those of 0.4.0")
    if not log.paths.is_plain and not is_broker(log):
        return Version(DLEDGER, _ASSUMED_LINE, ASSUMED)
    evidence = next((text for is_there, text in _EVIDENCE if is_there(log)), "")
    return Version(ROCKETMQ, _ASSUMED_BROKER, ASSUMED, evidence)


def _has(*names: str) -> Callable[[StoreView], bool]:
    def is_there(log: StoreView) -> bool:
        return any((_root(log) / name).exists() for name in names)

    return is_there


def _root(log: StoreView) -> Path:
    return log.paths.root or path_of(log.path)


_EVIDENCE: tuple[tuple[Callable[[StoreView], bool], str], ...] = (
    (lambda log: is_of_controller_mode(_root(log)), "controller mode shows 5.0 or later"),
    (_has("compaction"), "its folder compaction/ shows 5.1 or later"),
    (_has("timerwheel", "timerlog"), "its timer files show 5.0 or later"),
)
"""What files of a root show of the version, the most exact first."""
