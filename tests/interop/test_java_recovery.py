"""The recovery model equals Java itself, for each version.

The suite compares corner cases and some random damages. DLEDGER_INTEROP=SECONDS compares every recorded damage with
every version, and random damages that long (DLEDGER_INTEROP_SEED is the seed).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.log import open_log
from pyspark_dledger.log.recovery.recovery_preview import preview
from tests.interop import damages
from tests.interop.damages import Damage, RandomDamage
from tests.interop.java_stores import VERSIONS, StoreOpener, store_openers
from tests.support import golden
from tests.support.long_runs import BREADTH, SECONDS, SEED
from tests.support.sparse_copy import copy_tree

Unpack = Callable[[str], Path]

# The same recovery code as 0.3.1.2.
SAME_AS_OTHERS = ("0.2.7", "0.3.2")
COMPARED = [each for each in VERSIONS if SECONDS or BREADTH or each not in SAME_AS_OTHERS]
BASES = [each for each in golden.ALL if each.is_raw and each.case != "raw-multipath"]


@pytest.fixture(autouse=True)
def _many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs, too, are scanned many entries at a time."""
    monkeypatch.setattr("pyspark_dledger.log.recovery.java_scan._FEW", 1)


@pytest.fixture(scope="module")
def openers() -> Iterator[dict[str, StoreOpener]]:
    with store_openers(VERSIONS) as found:
        yield found


def open_with_java(opener: StoreOpener, node: Path, case: str, expects_answer: bool) -> dict[str, Any]:
    """Opens a store with Java, which may change it. Returns the result with the names of a `Recovery`."""
    patience = 60 if expects_answer else 2
    answer = opener.open(node.parent, node.name.removeprefix("dledger-"), *damages.file_sizes(case), patience=patience)
    for name in ("data", "index"):
        folder = node / name
        answer[f"{name}FilesAfter"] = sorted(os.listdir(folder)) if folder.is_dir() else []
    return answer


def differences(opener: StoreOpener, version: str, node: Path, case: str, work: Path) -> dict[str, Any]:
    """Returns results that differ between the model and Java on a copy of the damaged store in `node`."""
    before = golden.fingerprint(node)
    model = preview(open_log(node, engine="python"), version, *damages.file_sizes(case)).as_json()
    assert golden.fingerprint(node) == before
    java = open_with_java(opener, damages.copy_store(node, work), case, model["outcome"] != "hangs")
    found = {name: (model[name], java[name]) for name in java if name in model and model[name] != java[name]}
    # The texts of the JDK differ between its versions.
    modelled_reason = model["reason"].split("; ")[0]
    if java["outcome"] == "throws" and not java["message"].startswith(modelled_reason):
        found["message"] = (modelled_reason, java["message"])
    return found


def damaged(damage: Damage, case_folder: Unpack, folder: Path) -> Path:
    node = damages.copy_store(case_folder(damage.golden.case) / damage.golden.folder, folder)
    damages.apply(damage.operations, node)
    return node


def chosen_damages(version: str) -> list[Damage]:
    corner_cases = damages.corner_cases()
    if SECONDS:
        return [*damages.recorded(), *(each for each in corner_cases if not each.java)]
    return [each for each in corner_cases if each.java] if version in SAME_AS_OTHERS else corner_cases


@pytest.mark.parametrize("version", COMPARED)
def test_model_equals_java(version: str, openers: dict[str, StoreOpener], case_folder: Unpack, tmp_path: Path) -> None:
    wrong = {}
    for damage in chosen_damages(version):
        node = damaged(damage, case_folder, tmp_path / "damaged")
        found = differences(openers[version], version, node, damage.golden.case, tmp_path / "java")
        if found:
            wrong[str(damage)] = found
    assert not wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_model_equals_java_on_undamaged_stores(
    version: str, openers: dict[str, StoreOpener], case_folder: Unpack, tmp_path: Path
) -> None:
    """Every version opens every store, also of other versions."""
    wrong = {}
    for base in BASES:
        node = case_folder(base.case) / base.folder
        found = differences(openers[version], version, node, base.case, tmp_path / "java")
        if found:
            wrong[str(base)] = found
    assert not wrong


@pytest.mark.parametrize("version", [version for version in VERSIONS if version not in ("0.1", "0.2.2")])
def test_model_equals_java_with_several_data_folders(
    version: str, openers: dict[str, StoreOpener], case_folder: Unpack, tmp_path: Path
) -> None:
    root = copy_tree(case_folder("raw-multipath"), tmp_path / "store")
    dirs = tuple(root / name for name in ("path0", "path1", "path2"))
    sizes = damages.file_sizes("raw-multipath")
    model = preview(open_log(root / "dledger-n0", dataDirs=[str(path) for path in dirs]), version, *sizes)
    java = openers[version].open(root, "n0", *sizes, dirs)
    assert {name: model.as_json()[name] for name in java} == java
    assert model.data_files_after == sorted(file.name for path in dirs for file in path.iterdir())


def test_model_equals_java_after_random_damage(
    openers: dict[str, StoreOpener], case_folder: Unpack, tmp_path: Path
) -> None:
    source = RandomDamage(SEED)
    ends = time.monotonic() + SECONDS
    compared = 0
    while compared < 60 or time.monotonic() < ends:
        base = source.random.choice(BASES)
        version = source.random.choice(VERSIONS)
        node = damages.copy_store(case_folder(base.case) / base.folder, tmp_path / "damaged")
        operations = source.operations(node)
        found = differences(openers[version], version, node, base.case, tmp_path / "java")
        assert not found, f"{version} on {base} after {operations}"
        compared += 1
