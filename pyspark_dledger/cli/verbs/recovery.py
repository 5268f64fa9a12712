"""``dledger recovery``: what Java would do on opening a store."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, not_checked
from pyspark_dledger.cli.output.rows import Row, cell, print_fields, print_table, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import open_stores
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.options import parse_size
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log import Log
from pyspark_dledger.log.options import RECOVERY
from pyspark_dledger.log.store_view import answer

if TYPE_CHECKING:
    from pyspark_dledger.log.recovery.recovery_preview import RecoveryPreview, SilentDamage
    from pyspark_dledger.rocketmq.recovery.plain_recovery import PlainRecovery


_MAX_WARNINGS = 10
_MAX_QUEUES = 20
_MAX_NAMES = 5
# A line or a table of its own has them.
_ELSEWHERE = ("rocketmq", "filesAfter", "queues", "consumeQueueMaxOffsets", "isTooOld", "notes")
# What a table of versions shows; --json has everything.
_COLUMNS = ("java", "outcome", "beginIndex", "endIndex", "endTerm", "committedIndex")


def add_recovery(parser: argparse.ArgumentParser) -> None:
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


def run_recovery(args: argparse.Namespace, out: Output) -> int:
    """Print what Java would do; `FINDINGS` if a version does not open the store, cuts entries or keeps damaged ones."""
    code = CLEAN
    for log in open_stores(args, RECOVERY, leave_out=True):
        code = max(code, answer(log, lambda readable: _print_recovery(args, out, readable)))
    if not args.json:
        out.line(not_checked("recovery"))
    return code


def _print_recovery(args: argparse.Namespace, out: Output, log: Log) -> int:
    from pyspark_dledger.log.recovery.recovery_preview import silent_damage

    silent, unread = list(silent_damage(log)), log.unread.texts()
    is_plain = args.java is None and log.paths.is_plain
    found: Sequence[Any] = _plain_recoveries(args, log) if is_plain else _recoveries(args, log)
    # Versions older than the store cannot have run on it.
    known = [item for item in found if args.rocketmq is not None or not getattr(item, "is_too_old", False)]
    is_trouble = bool(unread) or any(item.is_trouble or _kept(item, silent) for item in known)
    if args.json:
        for item in found:
            kept = [fields_row(each) for each in _kept(item, silent)]
            row = {"path": log.path, "node": log.paths.node, **item.as_json()}
            out.line(json_line({**row, "silentDamage": kept, "unreadable": unread}))
        return FINDINGS if is_trouble else CLEAN
    out.lines(log.unread.lines("what a start does"))
    print_all = _print_plain_recoveries if is_plain else _print_ledger_recoveries
    print_all(out, log, found, known)
    shown = [each for each in silent if any(each in _kept(item, silent) for item in known)]
    out.lines(_warnings(shown, is_plain))
    return FINDINGS if is_trouble else CLEAN


def _print_ledger_recoveries(out: Output, log: Log, found: Sequence[RecoveryPreview], _: object) -> None:
    if len(found) == 1:
        print_fields(out, _for_text(found[0]))
        return
    out.line(f"{log.path}: if Java DLedger of these versions opened it")
    print_table(out, [_short(item) for item in found])
    out.lines(f"note: {text}" for text in dict.fromkeys(text for item in found for text in item.notes))


def _warnings(kept: Sequence[SilentDamage], is_plain: bool) -> Iterator[str]:
    """Sentences about damage that Java keeps, and the first places."""
    silent = [each for each in kept if each.looks_whole]
    head = f"{counted(len(silent), 'damaged entry looks', 'damaged entries look')} whole. No version of Java notices: "
    head += "this member would serve what is damaged, and as leader push it to the others."
    if is_plain:
        head = f"damaged messages that a broker keeps: {len(silent)}. A master would send them to slaves and consumers."
    yield from _places(head, silent)
    unseen = [each for each in kept if not each.looks_whole]
    places = counted(len(unseen), "damaged or missing place stays", "damaged or missing places stay")
    yield from _places(f"{places} in the log: a start does not look there.", unseen)


def _places(head: str, silent: Sequence[SilentDamage]) -> Iterator[str]:
    if not silent:
        return
    yield f"warning: {head} Before a start, run dledger check with all replicas:"
    for each in silent[:_MAX_WARNINGS]:
        where = f"index {each.index}" if each.index is not None else f"pos {each.pos}"
        yield f"  {where}, in {cell('/'.join(Path(each.file).parts[-2:]))}: {each.text}"
    if len(silent) > _MAX_WARNINGS:
        yield f"  and {len(silent) - _MAX_WARNINGS} more: see dledger verify"


def _recoveries(args: argparse.Namespace, log: Log) -> Sequence[RecoveryPreview]:
    from pyspark_dledger.log.recovery.recovery_preview import LINES, preview

    sizes = args.data_file_size, args.index_file_size
    if args.rocketmq is not None:
        from pyspark_dledger.rocketmq.recovery.broker_recovery import preview_broker

        return [preview_broker(log, args.rocketmq, *sizes)]
    return [preview(log, version, *sizes) for version in ([args.java] if args.java is not None else LINES)]


def _plain_recoveries(args: argparse.Namespace, log: Log) -> Sequence[PlainRecovery]:
    from pyspark_dledger.rocketmq.recovery.plain_recovery import LINES, preview_plain

    if args.index_file_size is not None:
        raise OptionError("--index-file-size has no effect on a store without DLedger: leave it out")
    versions = [args.rocketmq] if args.rocketmq is not None else LINES
    return [preview_plain(log, version, args.data_file_size) for version in versions]


def _for_text(item: RecoveryPreview) -> Row:
    """A recovery without its empty values, and with counts of files instead of lists."""
    row = item.as_json()
    for name in ("dataFilesAfter", "indexFilesAfter"):
        row[name] = len(row[name])
    row |= _ranges(item)
    row["dropped"] = item.dropped or None
    row |= {f"rocketmq.{name}": value for name, value in (row.pop("rocketmq") or {}).items()}
    return {name: value for name, value in row.items() if value not in (None, "", [], {})}


def _short(item: RecoveryPreview) -> Row:
    row = item.as_json()
    return {name: row[name] for name in _COLUMNS} | {
        "dataFiles": len(item.data_files_after),
        "deleted": len(item.data_files_deleted) + len(item.index_files_deleted),
        **_ranges(item),
        "reason": item.reason,
    }


def _ranges(item: RecoveryPreview | PlainRecovery) -> Row:
    """What a start loses, as text."""
    cut = range_text(*item.truncated) if item.truncated is not None else None
    return {"lost": [range_text(first, last) for first, last in item.lost], "truncated": cut}


def _print_plain_recoveries(
    out: Output, log: Log, found: Sequence[PlainRecovery], known: Sequence[PlainRecovery]
) -> None:
    """Print the recovery of a store by each family of versions that do the same."""
    from pyspark_dledger.rocketmq.recovery.plain_recovery import families

    answers = families(known)
    agree = ": all versions do the same" if len(answers) == 1 else ": versions differ"
    out.line(f"{log.path}: if a broker started on it, without DLedger{agree if len(found) > 1 else ''}")
    for family in answers:
        _print_family(out, family)
    for family in families(item for item in found if item not in known):
        out.line("")
        end = family[0].max_phy_offset
        out.line(f"too old for this store: RocketMQ {_versions(family)}, which would truncate it at {end}")


def _print_family(out: Output, family: Sequence[PlainRecovery]) -> None:
    """Print the result that the versions of a family have in common, their notes, and the ends of the queues."""
    out.line("")
    out.line(f"RocketMQ {_versions(family)}")
    print_fields(out, _family_row(family))
    notes: dict[str, list[str]] = {}
    for item in family:
        for text in item.notes:
            notes.setdefault(text, []).append(item.rocketmq)
    for text, versions in notes.items():
        of_some = f" ({', '.join(versions)})" if len(versions) < len(family) else ""
        out.line(f"note: {text}{of_some}")
    _print_queues(out, family[0])


def _versions(family: Sequence[PlainRecovery]) -> str:
    return ", ".join(item.rocketmq for item in family)


def _print_queues(out: Output, item: PlainRecovery) -> None:
    """Print the queues that end elsewhere, and how many do not."""
    print_table(out, item.queues[:_MAX_QUEUES])
    if len(item.queues) > _MAX_QUEUES:
        out.line(f"and {len(item.queues) - _MAX_QUEUES} more: --json prints all")
    changed = {f"{row['topic']}/{row['queueId']}" for row in item.queues}
    same = len(item.consume_queue_max_offsets.keys() - changed)
    if same:
        out.line(f"{counted(same, 'queue ends', 'queues end')} as before: dledger state --queues")


def _kept(item: RecoveryPreview | PlainRecovery, silent: Sequence[SilentDamage]) -> list[SilentDamage]:
    """The damage that stays in the log: in files that are not checked, or in bytes that no check covers."""
    from pyspark_dledger.log.recovery.recovery_preview import RecoveryPreview

    end = item.write_pos if isinstance(item, RecoveryPreview) else item.max_phy_offset
    return [each for each in silent if end is not None and each.pos < end]


def _family_row(family: Sequence[PlainRecovery]) -> Row:
    """The recovery of a family without its empty values; long lists are cut."""
    row = family[0].as_json()
    scans = list(dict.fromkeys(item.scan_from for item in family))
    row["scanFrom"] = scans if len(scans) > 1 else scans[0]
    row["reason"] = next((item.reason for item in family if item.reason), "")
    row |= _ranges(family[0])
    row["lostTopics"] = [f"{topic} {count}" for topic, count in row["lostTopics"].items()]
    for name in ("filesDeleted", "indexFilesDeleted", "lostTopics"):
        names = row[name]
        row[name] = [*names[:_MAX_NAMES], f"and {len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else names
    kept = {name: value for name, value in row.items() if name not in _ELSEWHERE and value not in (None, "", [], {})}
    return {"files": len(row["filesAfter"]), **kept} if row["filesAfter"] else kept
