"""``dledger verify``: what is wrong with a store."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import EACH, add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, not_checked
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.next_text import next_lines
from pyspark_dledger.cli.stores.open_stores import open_stores
from pyspark_dledger.common.fields import fields_row
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.io.store_paths import BACKUP_MANIFEST

if TYPE_CHECKING:
    from pyspark_dledger.log.verify.findings import Finding


def add_verify(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, EACH, "a warning or an error, also if not printed")
    text = "the least severity to print"
    parser.add_argument("--least", choices=("info", "warning", "error"), default="info", help=text)


def run_verify(args: argparse.Namespace, out: Output) -> int:
    """Print all findings; `FINDINGS` if there is a warning or an error."""
    from pyspark_dledger.log.next_step import after_findings
    from pyspark_dledger.log.verify.findings import INFO, SEVERITIES
    from pyspark_dledger.log.verify.verify_store import not_checked as not_compared
    from pyspark_dledger.log.verify.verify_store import verify as find_all

    wanted = SEVERITIES[SEVERITIES.index(args.least) :]
    code = CLEAN
    codes: set[str] = set()
    unchecked: list[str] = []
    backups = [path for path in args.path if (Path(path) / BACKUP_MANIFEST).is_file()]
    for path in backups:
        code = max(code, _verify_backup(path, out, is_json=args.json))
    args.path = [path for path in args.path if path not in backups]
    if not args.path:
        return code
    for log in open_stores(args, "table findings"):
        found: list[Finding] = []
        for finding in find_all(log, out.progress):
            code = code if finding.severity == INFO else FINDINGS
            codes.add(finding.code)
            if args.json and finding.severity in wanted:
                row = fields_row(finding)
                row.pop("unlisted", None)
                out.line(json_line(row))
            elif not args.json:
                found.append(finding)
        if not args.json:
            followed = _print_findings(out, [finding for finding in found if finding.severity in wanted])
            counts = Counter(finding.severity for finding in found)
            summary = ", ".join(f"{severity} {counts[severity]}" for severity in reversed(SEVERITIES))
            if followed:
                out.line(f"{counted(followed, 'finding follows', 'findings follow')} from damage of the log")
            out.line(f"{log.path}: {summary}")
            unchecked.extend(not_compared(log))
    if not args.json:
        step = after_findings(args.path, codes)
        out.lines(next_lines(step) if step is not None else ())
        out.line("; ".join([not_checked("verify"), *dict.fromkeys(unchecked)]))
    return code


def _verify_backup(path: str, out: Output, *, is_json: bool) -> int:
    """Print what is wrong with the files of a backup; returns the exit code."""
    from pyspark_dledger.rocketmq.backup import damaged_files, read_manifest

    manifest = read_manifest(Path(path))
    assert manifest is not None
    problems = list(damaged_files(Path(path), manifest))
    code = FINDINGS if problems else CLEAN
    files, entries = len(manifest.all_files), (manifest.first_index, manifest.last_index)
    if is_json:
        row = {"path": path, "node": manifest.node, "firstIndex": entries[0], "lastIndex": entries[1]}
        out.line(json_line({**row, "files": files, "problems": problems}))
        return code
    out.lines(problems)
    out.line(
        f"{path}: a backup of {manifest.node}, index {entries[0]} to {entries[1]}: {len(problems)} of "
        f"{counted(files, 'file is', 'files are')} damaged{': back up to a new folder' if problems else ''}"
    )
    return code


def _print_findings(out: Output, found: list[Finding]) -> int:
    """Print findings by severity, the worst first, then by code; returns how many follow from damage of the log.

    What a code means is printed once.
    """
    from pyspark_dledger.cli.stores.finding_groups import grouped, section_lines
    from pyspark_dledger.log.verify.findings import CODES, SEVERITIES

    groups, followed = grouped(found)
    for severity, code in ((severity, code) for severity in reversed(SEVERITIES) for code in CODES):
        if CODES[code].severity != severity or code not in groups:
            continue
        out.line(f"{severity} {code}: {CODES[code].text}")
        out.line(f"  Java: {CODES[code].java_does}")
        out.lines(f"  {line}" for line in section_lines(groups[code]))
        out.line("")
    return followed
