"""``dledger migrate``: writes the stores of brokers without DLedger from the replicas of a DLedger group."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import add_json
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, MIGRATE_EXITS
from pyspark_dledger.cli.output.rows import print_report
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.open_stores import replica_paths
from pyspark_dledger.common.plurals import counted, enumerated
from pyspark_dledger.common.process_memory import keep_freed_memory
from pyspark_dledger.log.next_step import as_given

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.migration import MigrationReport, NewStore

_CONTROLLER = "controller"
_MODES = (_CONTROLLER, "slaves")
_MAX_SHOWN = 10


def add_migrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the stores of brokers without DLedger from the replicas of a DLedger group. While its brokers run, "
        "copy what is committed. When they are stopped, the same command adds the rest and finishes."
    )
    parser.epilog = MIGRATE_EXITS
    parser.add_argument("path", nargs="+", metavar="PATH", help="a store of the group; give all, or their folder")
    text = "a new folder for each new broker, the first for the master, or folders that this command has written"
    parser.add_argument("--to", nargs="+", metavar="TARGET", required=True, help=text)
    text = "controller (default): brokers in controller mode; slaves: a master, and slaves that nothing makes a master"
    parser.add_argument("--for", dest="mode", choices=_MODES, default=_CONTROLLER, metavar="MODE", help=text)
    add_json(parser, "the report as one JSON object")


def run_migrate(args: argparse.Namespace, out: Output) -> int:
    """Migrate, or continue a migration; print what would be lost if something would be."""
    keep_freed_memory()
    from pyspark_dledger.rocketmq.migration import NotSafeError, migrate

    try:
        report = migrate(replica_paths(args.path), args.to, args.mode, progress=out.progress)
    except NotSafeError as error:
        from pyspark_dledger.cli.stores.check_text import check_lines

        out.progress.clear()
        note(str(error))
        out.lines(check_lines(error.report))
        return FINDINGS
    except KeyboardInterrupt:
        note("interrupted: the same command continues the migration")
        raise
    print_report(out, report, _lines(report), args.json, _next_lines(report))
    return FINDINGS if any(store.skipped for store in report.stores) else CLEAN


def _lines(report: MigrationReport) -> Iterator[str]:
    done = "migrated" if report.stores else "copied what is committed"
    end = "" if report.end_index is None else f" up to index {report.end_index}"
    yield f"{done} from {report.source}{end} to {enumerated(report.targets)}"
    rate = f"{report.bytes} bytes, {report.seconds:.1f} s"
    yield f"files of the logs: {report.files}, {report.kept} of them by an earlier run; read back; {rate}"
    if report.stores:
        yield f"{counted(report.stores[0].rows, 'message')} in each store; the CommitLogs are equal"
        yield from _left_out(report.stores[0])


def _left_out(store: NewStore) -> Iterator[str]:
    if store.skipped:
        yield f"left out: {counted(store.skipped, 'row')}"
        yield from (f"  {line}" for line in store.first_skipped[:_MAX_SHOWN])


def _next_lines(report: MigrationReport) -> Iterator[str]:
    """The settings of each broker, and what to do next."""
    if not report.stores:
        yield f"in use: {enumerated(report.in_use)}"
        yield "next: stop the producers, then all brokers of the group, and run the same command again"
        return
    yield "broker.conf needs:"
    first = report.stores[0].broker_conf
    common = {name for name in first if all(store.broker_conf.get(name) == first[name] for store in report.stores)}
    yield from (f"  {name}={first[name]}" for name in first if name in common)
    for store in report.stores:
        own = (f"{name}={value}" for name, value in store.broker_conf.items() if name not in common)
        yield f"  of {store.path}: {' '.join(own)}"
    yield "next (docs/migrate.md):"
    yield from (f"  {number}. {text}" for number, text in enumerate(_steps(report), 1))


def _steps(report: MigrationReport) -> Iterator[str]:
    """What to do with the new stores, in order."""
    is_controller = report.mode == _CONTROLLER
    yield f"check the stores, also while they are moved: dledger check {shlex.join(map(as_given, report.targets))}"
    yield "move each folder to its machine; adjust its paths in broker.conf"
    yield "broker.conf: keep the other lines, above all brokerName; remove those that begin with dLeger"
    if is_controller:
        yield "start the controllers; set controllerAddr in each broker.conf"
        yield "start the brokers in any order: mqbroker -c broker.conf"
        yield "check: mqadmin getSyncStateSet -a CONTROLLER -b BROKER_NAME lists all brokers"
    else:
        yield "start the broker with brokerId=0, then the slaves: mqbroker -c broker.conf"
        yield "check: mqadmin haStatus -n NAMESERVER lists all slaves, and none is behind"
    yield "check: mqadmin clusterList, mqadmin topicStatus of some topics, one consumer of each group"
    yield "start the producers"
    yield "way back: stop the new brokers, and start the old ones with their old broker.conf: nothing in them changed"
