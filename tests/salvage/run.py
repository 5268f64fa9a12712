"""Salvages one generated group by seed and compares the result with the undamaged log."""

from __future__ import annotations

import os
import shutil
import tempfile
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
    golden_group,
    lost_indexes,
    may_be_lost,
    plain_group,
    queue_differences,
)
from tests.salvage.heal import heal_differences

Case = tuple[int, bool, str | None]
"""The seed, whether every entry stays intact somewhere, and a folder to keep, else None."""


def run(case: Case) -> str:
    """Salvage one group; returns what is wrong with the result, empty if nothing is."""
    seed, is_lossless, kept = case
    folder = Path(kept or tempfile.mkdtemp(prefix=f"salvage-{seed}-"))
    try:
        with patch.object(os, "fsync", lambda _: None):  # many small files
            return check(group_of(folder, seed), seed, is_lossless, folder / "result")
    finally:
        if kept is None:
            shutil.rmtree(folder)


def group_of(folder: Path, seed: int) -> Group:
    """Every fourth group is one that Java wrote; every eighth is without DLedger."""
    if seed % 8 == 2:
        return plain_group(folder, PLAIN_GOLDENS[seed // 8 % len(PLAIN_GOLDENS)])
    if seed % 4 == 0:
        return golden_group(folder, GOLDENS[seed // 4 % len(GOLDENS)])
    return generated_group(folder, seed)


def check(group: Group, seed: int, is_lossless: bool, result: Path) -> str:
    damage(group, seed, 4 + seed % 12, is_lossless)
    try:
        report = salvage(SalvageRequest.of(group.members, undecided="majority"), result)
    except DLedgerError as error:
        return f"{group.name}: {error}"
    lost = lost_indexes(result, group.extents)
    problems = list(differences(group, result, lost))
    if is_lossless:
        problems += queue_differences(group, result)
    if unexpected := set(lost) - {extent.index for extent in group.extents if may_be_lost(group, extent)}:
        problems.append(f"fillers {sorted(unexpected)[:10]}, which are not lost")
    problems += heal_differences(group.members, result)
    if report.findings:
        problems.append(f"findings {report.findings[:3]}")
    return f"{group.name}: {'; '.join(problems[:5])}" if problems else ""
