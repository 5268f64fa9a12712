"""Salvage: damaged groups give the undamaged log again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.verify_store import verify
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.salvage.groups import GOLDENS, damage, differences, generated_group, golden_group
from tests.support.golden import fingerprint

ENGINES = ("native", "python")

pytestmark = pytest.mark.usefixtures("no_fsync")


def findings(path: Path) -> list[object]:
    return [found for found in verify(StoreView(str(path), ReadOptions())) if found.severity != "info"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("engine", ENGINES)
def test_generated_groups(tmp_path: Path, seed: int, engine: str) -> None:
    group = generated_group(tmp_path, seed)
    damage(group, seed, 8)
    before = [fingerprint(member) for member in group.members]
    request = SalvageRequest.of(group.members, undecided="majority", engine=engine)
    report = salvage(request, tmp_path / "result")
    assert list(differences(group, tmp_path / "result")) == []
    assert (report.lost, report.findings) == (0, ())
    assert findings(tmp_path / "result") == []
    assert [fingerprint(member) for member in group.members] == before


@pytest.mark.parametrize("case", GOLDENS)
def test_goldens(tmp_path: Path, case: str) -> None:
    group = golden_group(tmp_path, case)
    damage(group, 1, 12)
    report = salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "result")
    assert list(differences(group, tmp_path / "result")) == []
    assert (report.lost, report.findings) == (0, ())


def test_a_finished_salvage_is_in_its_manifest(tmp_path: Path) -> None:
    group = generated_group(tmp_path, 1)
    salvage(SalvageRequest.of(group.members), tmp_path / "result")
    manifest = json.loads((tmp_path / "result/_export.json").read_text())
    assert (manifest["state"], manifest["form"]) == ("finished", "salvage")
