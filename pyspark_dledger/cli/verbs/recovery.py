"""``dledger recovery``: what Java would do on opening a store."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, not_checked
from pyspark_dledger.cli.output.rows import Row, cell, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.output.text_table import print_fields, print_table
from pyspark_dledger.cli.stores.open_stores import open_stores
from pyspark_dledger.cli.stores.plain_recovery_text import print_plain_recoveries
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.options import parse_size
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log import Log
from pyspark_dledger.log.option_uses import RECOVERY
from pyspark_dledger.log.store_view import answer

if TYPE_CHECKING:
    from pyspark_dledger.log.recovery.log_damage import SilentDamage
    from pyspark_dledger.log.recovery.recovery_preview import RecoveryPreview

_MAX_WARNINGS = 10
# What a table of versions shows; --json has everything.
_COLUMNS = ("java", "outcome", "beginIndex", "endIndex", "endTerm", "committedIndex")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "a version rejects the store, truncates entries or keeps damage; unreadable files")
    version = parser.add_mutually_exclusive_group()
    text = "of DLedger, such as 0.3.1.2; default: every line of versions"
    version.add_argument("--java", metavar="VERSION", help=text)
    version.add_argument(
        "--rocketmq",
        metavar="VERSION",
        help="of the broker, such as 5.3.3, with its own recovery; default for stores without DLedger: every line",
    )
    for name in ("data", "index"):
        text = "Java's configured size of these files, such as 160m; default: that of the existing ones"
        parser.add_argument(f"--{name}-file-size", type=_file_size, metavar="SIZE", help=text)


def _file_size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a size such as 65536, 64k or 1g, found {text}") from None


def run(args: argparse.Namespace, out: Output) -> int:
    """Print what Java would do; `FINDINGS` if a version does not open the store, cuts entries or keeps damaged ones."""
    code = CLEAN
    for log in open_stores(args, RECOVERY, leave_out=True):
        code = max(code, answer(log, lambda readable: _print_recovery(args, out, readable)))
    if not args.json:
        out.line(not_checked("recovery"))
    return code


def _print_recovery(args: argparse.Namespace, out: Output, log: Log) -> int:
    from pyspark_dledger.log.recovery.log_damage import silent_damage

    silent = list(silent_damage(log))
    if args.java is None and _is_plain(log):
        _check_plain(args)
        return print_plain_recoveries(out, log, silent, args.rocketmq, args.data_file_size, args.json)
    found = list(_recoveries(args, log))
    unread = log.unread.texts()
    is_trouble = silent or unread or any(item.is_trouble for item in found)
    code = FINDINGS if is_trouble else CLEAN
    if args.json:
        more = {"silentDamage": [fields_row(each) for each in silent], "unreadable": unread}
        for item in found:
            out.line(json_line({"path": log.path, "node": log.paths.node, **item.as_json(), **more}))
        return code
    for text in log.unread.lines("what a start does"):
        out.line(text)
    if len(found) == 1:
        print_fields(out, _for_text(found[0]))
    else:
        out.line(f"{log.path}: if Java DLedger of these versions opened it")
        print_table(out, [_short(item) for item in found])
        for text in dict.fromkeys(text for item in found for text in item.notes):
            out.line(f"note: {text}")
    for text in _warnings(silent):
        out.line(text)
    return code


def _warnings(silent: list[SilentDamage]) -> Iterator[str]:
    """Sentences about damaged entries that Java keeps."""
    if silent:
        yield (
            f"warning: {len(silent)} damaged entr{'y looks' if len(silent) == 1 else 'ies look'} whole. No version of "
            "Java notices: this member would serve what is damaged, and as leader push it to the others. Before a "
            "start, run dledger diff with all replicas:"
        )
    for each in silent[:_MAX_WARNINGS]:
        where = f"index {each.index}" if each.index is not None else f"pos {each.pos}"
        yield f"  {where}, in {cell('/'.join(Path(each.file).parts[-2:]))}: {each.text}"
    if len(silent) > _MAX_WARNINGS:
        yield f"  and {len(silent) - _MAX_WARNINGS} more: see dledger verify"


def _is_plain(log: Log) -> bool:
    """Whether the store has a CommitLog and no DLedger node."""
    return log.paths.node_dir is None and bool(log.paths.commitlog_dirs)


def _check_plain(args: argparse.Namespace) -> None:
    if args.index_file_size is not None:
        raise OptionError("--index-file-size has no effect on a store without DLedger: leave it out")


def _recoveries(args: argparse.Namespace, log: Log) -> Iterator[RecoveryPreview]:
    from pyspark_dledger.log.recovery.recovery_preview import LINES, preview

    if args.rocketmq is not None:
        from pyspark_dledger.rocketmq.recovery.broker_recovery import preview_broker

        yield preview_broker(log, args.rocketmq, args.data_file_size, args.index_file_size)
    else:
        for version in [args.java] if args.java is not None else LINES:
            yield preview(log, version, args.data_file_size, args.index_file_size)


def _for_text(item: RecoveryPreview) -> Row:
    """A recovery without its empty values, and with counts of files instead of lists."""
    row = item.as_json()
    for name in ("dataFilesAfter", "indexFilesAfter"):
        row[name] = len(row[name])
    row["lost"] = [range_text(first, last) for first, last in item.lost]
    row |= {f"rocketmq.{name}": value for name, value in (row.pop("rocketmq") or {}).items()}
    return {name: value for name, value in row.items() if value not in (None, "", [], {})}


def _short(item: RecoveryPreview) -> Row:
    row = item.as_json()
    return {name: row[name] for name in _COLUMNS} | {
        "dataFiles": len(item.data_files_after),
        "deleted": len(item.data_files_deleted) + len(item.index_files_deleted),
        "lost": [range_text(first, last) for first, last in item.lost],
        "reason": item.reason,
    }
