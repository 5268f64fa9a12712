"""Prints what brokers without DLedger would do at their start on a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.rows import Row, range_text
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.output.text_table import print_fields, print_table
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.recovery.plain_recovery import PlainRecovery

# What a table of versions shows; --json has everything.
_COLUMNS = ("rocketmq", "outcome", "recovery", "scanFrom", "maxPhyOffset", "dispatchFrom")


def print_plain_recoveries(out: Output, log: Log, version: str | None, file_size: int | None, as_json: bool) -> int:
    """Print the recovery of a store by one version of RocketMQ, or by each line of versions.

    Returns `FINDINGS` where a broker does not start or loses messages. Raises OptionError and StoreError as
    `preview_plain`.
    """
    from pyspark_dledger.rocketmq.recovery.plain_recovery import LINES, preview_plain

    found = [preview_plain(log, line, file_size) for line in ([version] if version is not None else LINES)]
    if as_json:
        for item in found:
            out.line(json_line({"path": log.path, "node": None, **item.as_json()}))
    elif version is not None:
        print_fields(out, _for_text(found[0]))
    else:
        out.line(f"{log.path}: if brokers of these versions started on it, without DLedger")
        print_table(out, [_short(item) for item in found])
        for text in dict.fromkeys(text for item in found for text in item.notes):
            out.line(f"note: {text}")
    return FINDINGS if any(item.is_trouble for item in found) else CLEAN


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
