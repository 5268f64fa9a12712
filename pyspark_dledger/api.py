"""The public functions. None needs Spark, except where a Spark session is passed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import OptionError
from pyspark_dledger.log import open_log
from pyspark_dledger.raft.client import connect
from pyspark_dledger.rocketmq.jobs import MapParts, map_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_dledger.cluster.replay.replay_job import ReplayReport
    from pyspark_dledger.log.salvage.plan import SalvagePlan
    from pyspark_dledger.rocketmq.backup import BackupReport, RestoreReport
    from pyspark_dledger.rocketmq.check import CheckReport
    from pyspark_dledger.rocketmq.export.forms import ExportReport
    from pyspark_dledger.rocketmq.lives.trace import Traced
    from pyspark_dledger.rocketmq.migration import MigrationReport
    from pyspark_dledger.rocketmq.rebuild import CompareReport, RebuildReport
    from pyspark_dledger.rocketmq.salvage import SalvageReport

__all__ = [
    "backup",
    "check",
    "connect",
    "export",
    "migrate",
    "open_log",
    "rebuild",
    "replay",
    "restore",
    "salvage",
    "trace",
]


def backup(source: str | os.PathLike[str], target: str | os.PathLike[str], **options: Any) -> BackupReport:
    """Copy what the member with the store at `source` has committed to the folder `target`, and check every entry.

    The member can run. A backup of the same member in `target` is brought up to date, also an unfinished one. `options`
    are those of a read that choose a store and its committed bound. Raises OptionError for wrong options; StoreError
    for a damaged entry, and for a source or target that cannot be used.
    """
    from pyspark_dledger.log.options import BACKUP, check_use, parse_options
    from pyspark_dledger.rocketmq.backup import backup as back_up

    parsed = parse_options(options)
    check_use(parsed, BACKUP)
    return back_up(source, target, options=parsed)


def check(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    rocketmq: str | None = None,
    java: str | None = None,
    **options: Any,
) -> CheckReport:
    """What the store at `paths` is, or all replicas of a group: what is lost, who may start, and what to do next.

    `rocketmq` or `java` is the version that would be started. ``as_json()`` of the result is the object of
    ``dledger check --json``. `options` are those of a read that choose a store, and groupSize. Raises OptionError for
    wrong options, StoreError where there is no store.
    """
    from pyspark_dledger.log.options import CHECK, check_use, parse_options
    from pyspark_dledger.log.store_view import StoreView, answer, with_end
    from pyspark_dledger.rocketmq.check import check_stores

    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    first, *others = [os.fspath(path) for path in given]
    parsed = parse_options({**options, "replicas": others} if others else options)
    check_use(parsed, CHECK)
    log = answer(StoreView(first, replace(parsed, unread=())), with_end)
    return answer(log, lambda readable: check_stores(readable, rocketmq, java))


def restore(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    node: str,
    *,
    term: int | None = None,
    new_group: str | None = None,
) -> RestoreReport:
    """Write the store of member `node` from the backup `source` to the new or empty folder `target`, its root.

    A member of a living group needs `term`, one above the highest term of all other members. `new_group` is for a group
    that is restored whole: the same name at all members, another one at each restore. The same call continues a restore
    that was interrupted. Raises OptionError for wrong arguments; StoreError for a damaged backup, naming file and byte,
    and for a target that cannot be used.
    """
    from pyspark_dledger.rocketmq.backup import restore as restore_member

    return restore_member(source, target, node, term=term, new_group=new_group)


def export(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: str = "commitlog",
    spark: SparkSession | None = None,
    **options: Any,
) -> ExportReport:
    """Export the log of the store at `source` to the folder `target`, as ``commitlog``, ``parquet`` or ``jsonl``.

    ``iceberg`` and ``delta`` append to the table `target` what was committed since the last call (docs/lakes.md).

    With a session, Spark tasks write the parts; every executor needs both folders at the same path. `options` are those
    of a read and of an export (docs/export.md). The same call continues an export that was interrupted.
    Raises OptionError for wrong options, StoreError for a source or target that cannot be used, MalformedError with
    mode=FAILFAST.
    """
    from pyspark_dledger.rocketmq.export import export as export_log

    return export_log(source, target, to, run=_map_parts(spark), **options)


def migrate(
    sources: Sequence[str | os.PathLike[str]], targets: Sequence[str | os.PathLike[str]], mode: str = "controller"
) -> MigrationReport:
    """Write a store for a broker without DLedger to each of the `targets`, from the replicas of a group.

    The first target is the master's. `mode` is ``controller``, for brokers in controller mode, or ``slaves``, for a
    master and its slaves. While brokers of the group run, a call copies what is committed. When all are stopped, the
    same call adds the rest and finishes. It also continues a migration that was interrupted.

    Raises StoreError if something would be lost, or a source or a target cannot be used; OptionError for wrong
    arguments.
    """
    from pyspark_dledger.rocketmq.migration import migrate as migrate_group

    return migrate_group(sources, targets, mode)


def rebuild(
    path: str | os.PathLike[str],
    what: str,
    spark: SparkSession | None = None,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **options: Any,
) -> RebuildReport | CompareReport:
    """Rebuild ``consumequeue`` or ``index`` of the store at `path` from its log.

    The new folder replaces the old one, which is kept next to it. With `out`, a new or empty folder, it is built there
    and the store is only read. With `dry_run` nothing is written, and the result says what would change. With a
    session, Spark tasks read the log; every executor needs the folders at the same path.

    `options` are unitsPerFile, hashSlots, indexUnits, indexTags and brokerConf (docs/rebuild.md), and those of a read
    that choose a store and its committed bound. Raises OptionError for wrong options. Raises StoreError where a broker
    or a node has the store open, where it is written during the rebuild, where no committed bound is known, or where
    the disk fails.
    """
    from pyspark_dledger.rocketmq.rebuild import FileSettings, compare
    from pyspark_dledger.rocketmq.rebuild import rebuild as rebuild_store

    files, read_options = FileSettings.taken_from(options, what)
    if not dry_run:
        return rebuild_store(path, what, out=out, files=files, run=_map_parts(spark), options=read_options)
    if spark is not None or out is not None:
        raise OptionError("dry_run writes nothing: leave out spark and out")
    return compare(path, what, files=files, options=read_options)


def replay(
    source: str | os.PathLike[str],
    to: str,
    journal: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **options: Any,
) -> ReplayReport:
    """Send messages of the store at `source` to the running RocketMQ cluster with the name servers `to`.

    The folder `journal` is new or empty, or that of an unfinished replay of the same, which is continued. It gets files
    that say where each message is now, and which ones were sent without an acknowledgement. With `dry_run` nothing is
    sent, there is no journal, and the result says what would be sent. `options` are those of a read and of a replay,
    accessKey, secretKey, securityToken and those of TLS (docs/replay.md).

    Raises OptionError for wrong options, StoreError for a source or a journal that cannot be used, and ClusterError if
    topics are missing or a broker does not take messages: the same call continues after it.
    """
    from pyspark_dledger.cluster.replay import replay as replay_log

    return replay_log(source, to, journal, dry_run=dry_run, **options)


def salvage(
    sources: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str] | None,
    spark: SparkSession | None = None,
    **options: Any,
) -> SalvageReport | SalvagePlan:
    """Write one intact store to the folder `target` from damaged replicas of a group, or from one damaged store.

    The sources are only read. Without a target nothing is written, and the result is the plan. With a session, Spark
    tasks compare and copy; every executor needs the folders at the same path. The same call continues a salvage that
    was interrupted.

    `options` are node (the id of the new node), undecided (``refuse``, ``majority`` or ``filler``), take (the source to
    take by index), log_of, store_as (``commitlog``: a store without DLedger), topics_from_log and engine
    (docs/salvage.md). Raises OptionError for wrong options; StoreError for sources of
    different logs, for copies that differ where nothing decides, and where the disk fails.
    """
    from pyspark_dledger.rocketmq.salvage import SalvageRequest, plan
    from pyspark_dledger.rocketmq.salvage import salvage as salvage_stores

    request = SalvageRequest.of(sources, **options)
    run = _map_parts(spark)
    return plan(request, run) if target is None else salvage_stores(request, target, run=run)


def trace(path: str | os.PathLike[str], names: str | Iterable[str], *, scan: bool = False, **options: Any) -> Traced:
    """The lives of messages in the store at `path`, each in order of time, and the names for which there is none.

    A name is a key, a uniqKey (the client's msgId), an offsetMsgId or TOPIC/QUEUE/OFFSET. With `scan` the whole log is
    read, because an index of keys can lack messages. `options` are those of the table ``trace``. Raises OptionError
    for wrong options and without names, StoreError for a store that cannot be read.
    """
    from pyspark_dledger.log.options import check_use, parse_options
    from pyspark_dledger.log.store_view import StoreView
    from pyspark_dledger.rocketmq.lives.trace import trace as trace_messages

    parsed = parse_options(options)
    check_use(parsed, "table trace")
    return trace_messages(StoreView(os.fspath(path), parsed), [names] if isinstance(names, str) else names, scan=scan)


def _map_parts(spark: SparkSession | None) -> MapParts:
    if spark is None:
        return map_here
    from pyspark_dledger.spark.tasks import map_on

    return map_on(spark)
