"""Salvages one generated group by seed and compares the result with the undamaged log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.salvage.groups import (
    GOLDENS,
    PLAIN_GOLDENS,
    Group,
    damage,
    differences,
    generated_group,
    generated_plain_group,
    golden_group,
    known_committed,
    lost_indexes,
    may_be_lost,
    older_terms_group,
    plain_group,
    queue_differences,
    spread_data,
)
from tests.salvage.heal import heal_differences
from tests.salvage.java import BROKERS, java_differences
from tests.support.dispatching import audit


def salvage_problem(folder: Path, seed: int, is_lossless: bool, has_java: bool) -> tuple[str, str] | None:
    """Salvage a damaged group in `folder`. Returns its name and what is wrong with the result, or None."""
    with patch.object(os, "fsync", lambda _: None):  # many small files
        group = group_of(folder, seed)
        problems = list(check(group, seed, is_lossless, folder / "result"))
    if not problems and has_java:
        brokers = BROKERS[1:] if seed % 16 == 2 else BROKERS  # 4.9.8 does not read all messages of 5.3.3
        problems = java_differences(folder / "result", brokers)
    return (group.name, "; ".join(problems[:5])) if problems else None


def group_of(folder: Path, seed: int) -> Group:
    """Every fourth group is one that Java wrote; every eighth is without DLedger, half of them Java's.

    Every eighth has stale entries of later terms.
    """
    if seed % 16 == 2:
        return plain_group(folder, PLAIN_GOLDENS[seed // 16 % len(PLAIN_GOLDENS)])
    if seed % 8 == 2:
        return generated_plain_group(folder, seed)
    if seed % 4 == 0:
        return golden_group(folder, GOLDENS[seed // 4 % len(GOLDENS)])
    if seed % 8 == 5:
        return older_terms_group(folder, seed)
    return generated_group(folder, seed)


def check(group: Group, seed: int, is_lossless: bool, result: Path) -> list[str]:
    damage(group, seed, 4 + seed % 12, is_lossless)
    sources = list(map(spread_data, group.members)) if seed % 8 == 3 else list(map(str, group.members))
    try:
        report = salvage(SalvageRequest.of(sources, undecided="majority"), result)
    except DLedgerError as error:
        return [str(error)]
    lost = lost_indexes(result, group.extents)
    problems = list(differences(group, result, lost))
    # A flipped bit in a checkpoint can prove more entries committed: then queues are longer.
    if is_lossless and (report.committed_index or 0) <= known_committed(group):
        problems += queue_differences(group, result)
    if unexpected := set(lost) - {extent.index for extent in group.extents if may_be_lost(group, extent)}:
        problems.append(f"fillers {sorted(unexpected)[:10]}, which are not lost")
    problems += heal_differences(sources, result)
    problems += audit_differences(group.original, result, is_lossless)
    if report.findings:
        problems.append(f"findings {report.findings[:3]}")
    return problems


def audit_differences(original: Path, result: Path, is_lossless: bool) -> Iterator[str]:
    """What an audit of the result finds that one of the undamaged store does not; messages that are lost are gaps."""
    if not (result / "consumequeue").is_dir():
        return
    known = {row["code"] for row in audit(original)} | (set() if is_lossless else {"queueOffsetGap"})
    yield from (
        f"audit: {row['code']}: expected {row['expected']}, found {row['found']}"
        for row in audit(result)
        if row["code"] not in known
    )
