"""What is wrong with a store, what Java would do about it, and where replicas differ."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.open_stores import open_each, open_given
from pyspark_dledger.cli.output.output import Output, Row, camel_case, cell, note, print_fields, print_table
from pyspark_dledger.cli.tables import is_finding
from pyspark_dledger.format.json_text import json_line

if TYPE_CHECKING:
    from pyspark_dledger.log import Log
    from pyspark_dledger.log.diff.comparison import Comparison
    from pyspark_dledger.log.recovery.recovery_preview import RecoveryPreview
    from pyspark_dledger.log.verify.findings import Finding

# What a table of versions shows of a recovery; --json has everything.
_RECOVERY_COLUMNS = ("java", "outcome", "beginIndex", "endIndex", "endTerm", "committedIndex")


def verify(given: argparse.Namespace, out: Output) -> int:
    """All findings; `FINDINGS` if one is more than information."""
    from pyspark_dledger.log.verify.findings import INFO, SEVERITIES
    from pyspark_dledger.log.verify.verify_store import verify as find_all

    wanted = SEVERITIES[SEVERITIES.index(given.least) :]
    code = CLEAN
    for log in open_each(given):
        found: list[Finding] = []
        for finding in find_all(log, out.progress):
            code = code if finding.severity == INFO else FINDINGS
            if given.json and finding.severity in wanted:
                out.line(json_line(_row(finding)))
            elif not given.json:
                found.append(finding)
        if not given.json:
            _print_findings(out, [finding for finding in found if finding.severity in wanted])
            counts = Counter(finding.severity for finding in found)
            summary = ", ".join(f"{severity} {counts[severity]}" for severity in reversed(SEVERITIES))
            out.line(f"{log.path}: {summary}")
    return code


def _row(item: Any) -> Row:
    """The fields of a dataclass by the names of the columns."""
    return {camel_case(name): value for name, value in dataclasses.asdict(item).items()}


def _print_findings(out: Output, found: list[Finding]) -> None:
    """By severity, the worst first, then by code, with what the code means and what Java does said once."""
    from pyspark_dledger.log.verify.findings import CODES, SEVERITIES

    order = [(severity, code) for severity in reversed(SEVERITIES) for code in CODES]
    for severity, code in order:
        same = [finding for finding in found if (finding.severity, finding.code) == (severity, code)]
        if not same:
            continue
        out.line(f"{severity} {code}: {CODES[code].text}")
        out.line(f"  Java: {same[0].java_does}")
        for finding in same:
            out.line(f"  {_place(finding)}{_text(finding)}")
        out.line("")


def _place(finding: Finding) -> str:
    offset = f" at byte {finding.offset}" if finding.offset is not None else ""
    index = f" (index {finding.index})" if finding.index is not None else ""
    return f"{cell(finding.file)}{offset}{index}"


def _text(finding: Finding) -> str:
    parts = [
        f"{name} {cell(value)}"
        for name, value in (("expected", finding.expected), ("found", finding.found))
        if value is not None
    ]
    return f": {', '.join(parts)}" if parts else ""


def recovery(given: argparse.Namespace, out: Output) -> int:
    """What Java would do; `FINDINGS` where a version does not open the store, or committed entries would be lost."""
    code = CLEAN
    for log in open_each(given):
        found = list(_recoveries(given, log))
        if any(_is_trouble(item, log.end.last_index) for item in found):
            code = FINDINGS
        if given.json:
            for item in found:
                out.line(json_line({"path": log.path, "node": log.paths.node, **item.as_json()}))
        elif len(found) == 1:
            print_fields(out, _for_text(found[0]))
        else:
            out.line(f"{log.path}: if Java DLedger of these versions opened it")
            print_table(out, [_short(item) for item in found])
            for text in dict.fromkeys(text for item in found for text in item.notes):
                out.line(f"note: {text}")
    return code


def _is_trouble(item: RecoveryPreview, last_index: int) -> bool:
    """Whether a version does not open the store or cuts entries, known to be committed or not."""
    starts = (item.rocketmq or {}).get("starts", True)
    return item.outcome != "opens" or bool(item.lost) or (item.end_index or 0) < last_index or not starts


def _recoveries(given: argparse.Namespace, log: Log) -> Iterator[RecoveryPreview]:
    from pyspark_dledger.log.recovery.recovery_preview import LINES, preview

    if given.rocketmq is not None:
        from pyspark_dledger.rocketmq.recovery.broker_recovery import preview_broker

        yield preview_broker(log, given.rocketmq, given.data_file_size, given.index_file_size)
    else:
        for version in [given.java] if given.java is not None else LINES:
            yield preview(log, version, given.data_file_size, given.index_file_size)


def _for_text(item: RecoveryPreview) -> Row:
    """What a recovery says, with lists of files as their numbers."""
    row = item.as_json()
    for name in ("dataFilesAfter", "indexFilesAfter"):
        row[name] = len(row[name])
    row["lost"] = [_span(first, last) for first, last in item.lost]
    row |= {f"rocketmq.{name}": value for name, value in (row.pop("rocketmq") or {}).items()}
    return {name: value for name, value in row.items() if value not in (None, "", [], {})}


def _short(item: RecoveryPreview) -> Row:
    row = item.as_json()
    return {name: row[name] for name in _RECOVERY_COLUMNS} | {
        "dataFiles": len(item.data_files_after),
        "deleted": len(item.data_files_deleted) + len(item.index_files_deleted),
        "lost": [_span(first, last) for first, last in item.lost],
        "reason": item.reason,
    }


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def diff(given: argparse.Namespace, out: Output) -> int:
    """Where replicas differ; `FINDINGS` where they contradict each other or one is damaged, not where one is behind."""
    given.path = _replicas(given.path)
    if given.md5:
        return _md5(given, out)
    log = open_given(given)
    if given.json:
        from pyspark_dledger.log.diff.diff_table import diff_rows

        code = FINDINGS if list(cut_logs(log)) else CLEAN
        for row in map(_row, diff_rows(log)):
            code = FINDINGS if is_finding("diff", row) else code
            out.line(json_line(row))
        return code
    from pyspark_dledger.log.diff.comparison import compare

    code = _print_comparison(out, compare(log))
    for text in cut_logs(log):
        out.line(text)
        code = FINDINGS
    return code


def cut_logs(log: Log) -> Iterator[str]:
    """The replicas that knew of more committed entries than they have."""
    for member in (log, *log.replicas):
        known = member.checkpoint.committed_index if member.checkpoint is not None else -1
        if known > member.end.last_index:
            yield (
                f"note: {member.path}: the checkpoint says that {known} is committed, and the log ends at "
                f"{member.end.last_index}: its end is lost"
            )


def _replicas(paths: list[str]) -> list[str]:
    """The paths to compare: of a single folder with several nodes each node, as after a trial on one machine."""
    from pyspark_dledger.log.io.files import path_of
    from pyspark_dledger.log.io.store_paths import node_folders

    folder = path_of(paths[0])
    if len(paths) > 1 or not folder.is_dir():
        return paths
    nodes = node_folders(folder, sorted(path.name for path in folder.iterdir()))
    return [str(node) for node in nodes.values()] if len(nodes) > 1 else paths


def _print_comparison(out: Output, found: Comparison) -> int:
    print_table(out, [_standing_row(item) for item in found.standings])
    out.line("")
    for text in sentences(found):
        out.line(text)
    rows = [_row(row) for row in found.rows]
    if rows:
        out.line("")
        print_table(out, rows)
    if found.more_rows:
        out.line(f"and {found.more_rows} more: --json prints all")
    return FINDINGS if any(is_finding("diff", {"verdict": verdict}) for verdict in found.entries) else CLEAN


def _standing_row(item: Any) -> Row:
    row: Row = {}
    for name, value in dataclasses.asdict(item).items():
        if name == "path":
            continue
        row[camel_case(name)] = _ranges(value) if isinstance(value, dict) else value
    return row


def _ranges(value: dict[str, Any]) -> str:
    spans = [_span(first, last) for first, last in value["ranges"][:3]]
    return ", ".join(spans) + (" ..." if len(value["ranges"]) > 3 else "")


def sentences(found: Comparison) -> Iterator[str]:
    """What the comparison comes to."""
    first = found.first_divergence
    if first is None:
        yield "no divergence: where replicas have the same index, it is the same entry"
    else:
        terms = ", ".join(f"{node} term {term}" for node, term in first.terms.items())
        byte = f", from byte {first.byte} of the entry on" if first.byte is not None else ""
        yield f"first divergence ({first.verdict}) at index {first.index}, pos {first.pos}: {terms}{byte}"
        for node, (file, offset) in first.places.items():
            yield f"  {node}: {cell('/'.join(Path(file).parts[-2:]))} at byte {offset}"
    if found.committed_index is None:
        yield "committed: nothing is proven"
    else:
        yield f"committed: up to {found.committed_index}, proven by {found.committed_from}"
    if found.majority_index >= 0 and not found.is_proven:
        nodes = ", ".join(found.majority_nodes)
        doubt = f": {found.majority_doubt}" if found.majority_doubt else ""
        yield f"on a majority, not proven committed: up to {found.majority_index} ({nodes}){doubt}"
    damaged = {item.node: item.damaged.ranges[0][0] for item in found.standings if item.damaged.ranges}
    for candidate in found.candidates:
        losses = "; ".join(
            f"{loss.node} would lose {_span(loss.first_index, loss.last_index)}"
            f"{', committed' if loss.committed else ', on a majority' if loss.on_majority else ''}"
            for loss in candidate.losses
        )
        if candidate.node in damaged:
            lost = damaged[candidate.node]
            restarted = f"a restart may cut its log before {lost}, where it is damaged (dledger recovery tells)"
            losses = f"{losses}; {restarted}" if losses else restarted
        yield f"{candidate.node} can be elected: {losses or 'no replica would lose anything'}"
    for text in found.notes:
        yield f"note: {text}"


def _md5(given: argparse.Namespace, out: Output) -> int:
    """MD5 of the last two files of each part of the log, as RocketMQ's upgrade guide asks."""
    from pyspark_dledger.log.diff.digests import file_digests

    digests = file_digests(list(open_each(given)))
    if not digests:
        note("no file has been written to")
    rows: Iterable[Row] = ({**_row(digest), "equal": digest.equal} for digest in digests)
    if given.json:
        for row in rows:
            out.line(json_line(row))
    else:
        print_table(out, ({name: value for name, value in row.items() if name != "md5"} | row["md5"] for row in rows))
    return CLEAN if all(digest.equal for digest in digests) else FINDINGS
