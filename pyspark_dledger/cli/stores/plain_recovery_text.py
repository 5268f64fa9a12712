"""Prints what brokers without DLedger would do at their start on a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, cell, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.output.text_table import print_fields, print_table
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    from pyspark_dledger.log.recovery.log_damage import SilentDamage
    from pyspark_dledger.rocketmq.recovery.plain_recovery import PlainRecovery

_MAX_WARNINGS = 10
_MAX_QUEUES = 20
_MAX_NAMES = 5
# A line or a table of its own has them.
_ELSEWHERE = ("rocketmq", "filesAfter", "queues", "consumeQueueMaxOffsets", "isTooOld", "notes")


def print_plain_recoveries(
    out: Output,
    log: Log,
    silent: list[SilentDamage],
    version: str | None,
    file_size: int | None,
    as_json: bool,
) -> int:
    """Print the recovery of a store by one version of RocketMQ, or one for each family of versions that do the same.

    Returns `FINDINGS` where a broker does not start, loses messages, or keeps damaged ones. Raises OptionError and
    StoreError as `preview_plain`.
    """
    from pyspark_dledger.rocketmq.recovery.plain_recovery import LINES, families, preview_plain

    found = [preview_plain(log, line, file_size) for line in ([version] if version is not None else LINES)]
    unread = log.unread.texts()
    # Versions older than the store cannot have run on it.
    known = [item for item in found if version is not None or not item.is_too_old]
    is_trouble = unread or any(item.is_trouble or _kept(item, silent) for item in known)
    if as_json:
        for item in found:
            kept = [fields_row(each) for each in _kept(item, silent)]
            more = {"silentDamage": kept, "unreadable": unread}
            out.line(json_line({"path": log.path, "node": None, **item.as_json(), **more}))
        return FINDINGS if is_trouble else CLEAN
    for text in log.unread.lines("what a start does"):
        out.line(text)
    answers = families(known)
    agree = "" if version is not None else ": all versions do the same" if len(answers) == 1 else ": versions differ"
    out.line(f"{log.path}: if a broker started on it, without DLedger{agree}")
    for family in answers:
        _print_family(out, family)
    for family in families(item for item in found if item not in known):
        out.line("")
        end = family[0].max_phy_offset
        out.line(f"too old for this store: RocketMQ {_versions(family)}, which would truncate it at {end}")
    for text in _warnings([each for each in silent if any(each in _kept(item, silent) for item in known)]):
        out.line(text)
    return FINDINGS if is_trouble else CLEAN


def _print_family(out: Output, family: Sequence[PlainRecovery]) -> None:
    """Print the result that the versions of a family have in common, their notes, and the ends of the queues."""
    out.line("")
    out.line(f"RocketMQ {_versions(family)}")
    print_fields(out, _for_text(family))
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
        out.line(
            f"{same} queue{'' if same == 1 else 's'} end{'s' if same == 1 else ''} as before: dledger state --queues"
        )


def _kept(item: PlainRecovery, silent: list[SilentDamage]) -> list[SilentDamage]:
    """The damaged messages that stay in the log: in files that are not checked, or in bytes that no check covers."""
    return [each for each in silent if item.max_phy_offset is not None and each.pos < item.max_phy_offset]


def _warnings(silent: list[SilentDamage]) -> Iterator[str]:
    if silent:
        yield (
            f"warning: damaged messages that a broker keeps: {len(silent)}. A master would send them to slaves and "
            "consumers. Before a start, run dledger diff with all replicas:"
        )
    for each in silent[:_MAX_WARNINGS]:
        yield f"  pos {each.pos}, in {cell('/'.join(Path(each.file).parts[-2:]))}: {each.text}"
    if len(silent) > _MAX_WARNINGS:
        yield f"  and {len(silent) - _MAX_WARNINGS} more: see dledger verify"


def _for_text(family: Sequence[PlainRecovery]) -> Row:
    """The recovery of a family without its empty values; long lists are cut."""
    row = family[0].as_json()
    scans = list(dict.fromkeys(item.scan_from for item in family))
    row["scanFrom"] = scans if len(scans) > 1 else scans[0]
    row["reason"] = next((item.reason for item in family if item.reason), "")
    row["lost"] = _ranges(family[0].lost)
    row["lostTopics"] = [f"{topic} {count}" for topic, count in row["lostTopics"].items()]
    for name in ("filesDeleted", "indexFilesDeleted", "lostTopics"):
        names = row[name]
        row[name] = [*names[:_MAX_NAMES], f"and {len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else names
    kept = {name: value for name, value in row.items() if name not in _ELSEWHERE and value not in (None, "", [], {})}
    return {"files": len(row["filesAfter"]), **kept} if row["filesAfter"] else kept


def _ranges(ranges: Sequence[tuple[int, int]]) -> list[str]:
    return [range_text(first, last) for first, last in ranges]
