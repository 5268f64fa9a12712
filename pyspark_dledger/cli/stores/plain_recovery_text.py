"""Prints what brokers without DLedger would do at their start on a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, cell, fields_row, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.output.text_table import print_fields, print_table
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    from pyspark_dledger.log.recovery.silent_damage import SilentDamage
    from pyspark_dledger.rocketmq.recovery.plain_recovery import PlainRecovery

_MAX_WARNINGS = 10
# What a table of versions shows; --json has everything.
_COLUMNS = ("rocketmq", "outcome", "recovery", "scanFrom", "maxPhyOffset", "dispatchFrom")


def print_plain_recoveries(out: Output, log: Log, version: str | None, file_size: int | None, as_json: bool) -> int:
    """Print the recovery of a store by one version of RocketMQ, or by each line of versions.

    Returns `FINDINGS` where a broker does not start, loses messages, or keeps damaged ones. Raises OptionError and
    StoreError as `preview_plain`.
    """
    from pyspark_dledger.log.recovery.silent_damage import silent_damage
    from pyspark_dledger.rocketmq.recovery.plain_recovery import LINES, preview_plain

    found = [preview_plain(log, line, file_size) for line in ([version] if version is not None else LINES)]
    silent = list(silent_damage(log))
    code = FINDINGS if any(item.is_trouble or _kept(item, silent) for item in found) else CLEAN
    if as_json:
        for item in found:
            kept = [fields_row(each) for each in _kept(item, silent)]
            out.line(json_line({"path": log.path, "node": None, **item.as_json(), "silentDamage": kept}))
        return code
    if version is not None:
        print_fields(out, _for_text(found[0]))
    else:
        out.line(f"{log.path}: if brokers of these versions started on it, without DLedger")
        print_table(out, [_short(item) for item in found])
        for text in dict.fromkeys(text for item in found for text in item.notes):
            out.line(f"note: {text}")
    for text in _warnings([each for each in silent if any(each in _kept(item, silent) for item in found)]):
        out.line(text)
    return code


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


def _for_text(item: PlainRecovery) -> Row:
    """A recovery without its empty values, and with the number of files."""
    row = item.as_json()
    del row["consumeQueueMaxOffsets"]
    row["filesAfter"] = len(row["filesAfter"])
    row["lost"] = _ranges(item.lost)
    return {name: value for name, value in row.items() if value not in (None, "", [], {})}


def _short(item: PlainRecovery) -> Row:
    row = item.as_json()
    return {name: row[name] for name in _COLUMNS} | {
        "filesDeleted": len(item.files_deleted),
        "queuesChanged": len(item.queues),
        "lost": _ranges(item.lost),
        "reason": item.reason,
    }


def _ranges(ranges: Sequence[tuple[int, int]]) -> list[str]:
    return [range_text(first, last) for first, last in ranges]
