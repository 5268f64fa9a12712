"""The model of Java's recovery against Java itself, version by version.

The suite compares the telling damages and some random ones; with DLEDGER_INTEROP=SECONDS every recorded damage is
compared with every version, and random ones for so long (DLEDGER_INTEROP_SEED chooses them).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.log import open_log
from pyspark_dledger.log.recovery.recovery_preview import preview
from tests.interop import damages
from tests.interop.damages import Damage, RandomDamage
from tests.interop.java_stores import VERSIONS, Judge, judged
from tests.support import golden

Unpack = Callable[[str], Path]

SECONDS = float(os.environ.get("DLEDGER_INTEROP") or 0)
SEED = int(os.environ.get("DLEDGER_INTEROP_SEED") or 1)
# Their recovery is that of 0.3.1.2 line by line.
SAME_AS_OTHERS = ("0.2.7", "0.3.2")
BASES = [each for each in golden.ALL if each.is_raw and each.case != "raw-multipath"]


@pytest.fixture(scope="module")
def judges() -> Iterator[dict[str, Judge]]:
    with judged(VERSIONS) as found:
        yield found


def java_says(judge: Judge, node: Path, case: str, expects_answer: bool) -> dict[str, Any]:
    """What Java makes of a store, which it changes, in the words of a `Recovery`."""
    patience = 60 if expects_answer else 2
    answer = judge.open(node.parent, node.name.removeprefix("dledger-"), *damages.config(case), patience=patience)
    for name in ("data", "index"):
        folder = node / name
        answer[f"{name}FilesAfter"] = sorted(os.listdir(folder)) if folder.is_dir() else []
    return answer


def differences(judge: Judge, version: str, node: Path, case: str, work: Path) -> dict[str, Any]:
    """What the model says otherwise than Java does to a copy of the damaged store in `node`."""
    before = golden.fingerprint(node)
    model = preview(open_log(node, engine="python"), version, *damages.config(case)).as_json()
    assert golden.fingerprint(node) == before
    java = java_says(judge, damages.copy_store(node, work), case, model["outcome"] != "hangs")
    found = {name: (model[name], java[name]) for name in java if name in model and model[name] != java[name]}
    # The JDK's own texts differ between its versions.
    said = model["reason"].split("; ")[0]
    if java["outcome"] == "throws" and not java["message"].startswith(said):
        found["message"] = (said, java["message"])
    return found


def damaged(damage: Damage, case_folder: Unpack, folder: Path) -> Path:
    node = damages.copy_store(case_folder(damage.golden.case) / damage.golden.folder, folder)
    damages.apply(damage.operations, node)
    return node


def chosen_damages(version: str) -> list[Damage]:
    told = damages.telling()
    if SECONDS:
        return [*damages.recorded(), *(each for each in told if not each.java)]
    return [each for each in told if each.java] if version in SAME_AS_OTHERS else told


@pytest.mark.parametrize("version", VERSIONS)
def test_model_does_as_java(version: str, judges: dict[str, Judge], case_folder: Unpack, tmp_path: Path) -> None:
    wrong = {}
    for damage in chosen_damages(version):
        node = damaged(damage, case_folder, tmp_path / "damaged")
        found = differences(judges[version], version, node, damage.golden.case, tmp_path / "java")
        if found:
            wrong[str(damage)] = found
    assert not wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_model_does_as_java_on_undamaged_stores(
    version: str, judges: dict[str, Judge], case_folder: Unpack, tmp_path: Path
) -> None:
    """Any version opens any store, those of other versions too."""
    wrong = {}
    for base in BASES:
        node = case_folder(base.case) / base.folder
        found = differences(judges[version], version, node, base.case, tmp_path / "java")
        if found:
            wrong[str(base)] = found
    assert not wrong


@pytest.mark.parametrize("version", [version for version in VERSIONS if version not in ("0.1", "0.2.2")])
def test_model_does_as_java_with_several_data_folders(
    version: str, judges: dict[str, Judge], case_folder: Unpack, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(case_folder("raw-multipath"), tmp_path / "store"))
    dirs = tuple(root / name for name in ("path0", "path1", "path2"))
    sizes = damages.config("raw-multipath")
    model = preview(open_log(root / "dledger-n0", dataDirs=[str(path) for path in dirs]), version, *sizes)
    java = judges[version].open(root, "n0", *sizes, dirs)
    assert {name: model.as_json()[name] for name in java} == java
    assert model.data_files_after == sorted(file.name for path in dirs for file in path.iterdir())


def test_model_does_as_java_after_random_damage(judges: dict[str, Judge], case_folder: Unpack, tmp_path: Path) -> None:
    source = RandomDamage(SEED)
    ends = time.monotonic() + SECONDS
    compared = 0
    while compared < 60 or time.monotonic() < ends:
        base = source.random.choice(BASES)
        version = source.random.choice(VERSIONS)
        node = damages.copy_store(case_folder(base.case) / base.folder, tmp_path / "damaged")
        operations = source.operations(node)
        found = differences(judges[version], version, node, base.case, tmp_path / "java")
        assert not found, f"{version} on {base} after {operations}"
        compared += 1
