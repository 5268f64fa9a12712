"""The model of a broker's load() equals RocketMQ itself, on unclean and damaged stores.

Runs only with DLEDGER_INTEROP=SECONDS: it fetches about 250 jars and starts a broker store for each comparison.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.log import open_log
from pyspark_dledger.rocketmq.recovery.broker_recovery import preview_broker
from pyspark_dledger.rocketmq.recovery.broker_start import RecoveredQueues
from tests.interop.java_stores import ROCKETMQ_VERSIONS, BrokerLoader
from tests.support.golden import Golden
from tests.support.long_runs import SECONDS, SEED

CASES = [
    *(Golden(case, "") for case in ("mq-498-upgrade-killed", "mq-498-upgrade-killed-early", "mq-498-single")),
    *(Golden(case, "") for case in ("mq-53-single", "mq-53-upgrade", "mq-53-retention")),
    *(Golden("mq-53-three", "n0"), Golden("mq-498-three-diverged", "n2")),
]


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS compares with RocketMQ for so long")
def test_model_equals_the_broker(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    loaders = {version: BrokerLoader(version) for version in ROCKETMQ_VERSIONS}
    choice = random.Random(SEED)
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        case = choice.choice(CASES)
        node = f"dledger-{case.node or 'n0'}"
        damaged = copy(case_folder(case.case) / case.folder, tmp_path / "damaged")
        applied = damage(damaged, node, choice)
        for version, loader in loaders.items():
            found = differences(loader, version, damaged, node, case, tmp_path / "java")
            assert not found, f"{version} on {case} after {applied}"


def copy(root: Path, to: Path) -> Path:
    """Copies a root and keeps holes: index files are 160 MiB of them."""
    subprocess.run(["rm", "-rf", str(to)], check=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(root), str(to)], check=True)
    return to


def damage(root: Path, node: str, choice: random.Random) -> list[str]:
    """Applies up to two damages, in most cases with the mark of an unclean end. Returns their names."""
    kinds = (shorten_queue, delete_queue_file, reset_checkpoint, set_back_checkpoint, damage_data, delete_data)
    if choice.random() < 0.75:
        (root / "abort").touch()
    chosen = choice.choices((*kinds, damage_data, delete_dledger), k=choice.randrange(3))
    for kind in chosen:
        kind(root, node, choice)
    return [kind.__name__ for kind in chosen]


def shorten_queue(root: Path, _: str, choice: random.Random) -> None:
    file = choice.choice(sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file()))
    data = bytearray(file.read_bytes())
    kept = choice.randrange(len(data) // 20) * 20
    file.write_bytes(data[:kept].ljust(len(data), b"\0"))


def delete_queue_file(root: Path, _: str, choice: random.Random) -> None:
    choice.choice(sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())).unlink()


def reset_checkpoint(root: Path, _: str, __: random.Random) -> None:
    data = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(bytes(24) + data[24:])


def set_back_checkpoint(root: Path, _: str, choice: random.Random) -> None:
    data = bytearray((root / "checkpoint").read_bytes())
    for at in (0, 8):
        time_ms = int.from_bytes(data[at : at + 8], "big") - choice.randrange(20_000)
        data[at : at + 8] = max(time_ms, 0).to_bytes(8, "big")
    (root / "checkpoint").write_bytes(data)


def damage_data(root: Path, node: str, choice: random.Random) -> None:
    """Flips one bit in the header of an entry or of its message, in one of the last files."""
    files = sorted((root / node / "data").iterdir())
    if not files:
        return
    file = files[-min(choice.choice((1, 1, 1, 2, 3)), len(files))]
    data, at, entries = bytearray(file.read_bytes()), 0, []
    while at + 48 < len(data) and data[at : at + 4] == b"\0\0\0\1":
        entries.append(at)
        at += int.from_bytes(data[at + 4 : at + 8], "big")
    if entries:
        data[choice.choice(entries) + choice.choice((0, 15, 23, 31, 47, 53, 60, 138))] ^= 1 << choice.randrange(8)
        file.write_bytes(data)


def delete_data(root: Path, node: str, _: random.Random) -> None:
    files = sorted((root / node / "data").iterdir())
    for file in files[-1:]:
        file.unlink()


def delete_dledger(root: Path, node: str, _: random.Random) -> None:
    for file in [*(root / node / "data").iterdir(), *(root / node / "index").iterdir()]:
        file.unlink()


def differences(
    loader: BrokerLoader, version: str, root: Path, node: str, case: Golden, work: Path
) -> dict[str, tuple[Any, Any]]:
    """Returns results that differ between the model and a broker store on a copy of `root`."""
    found = preview_broker(open_log(root, engine="python", selfId=node.removeprefix("dledger-")), version)
    model = found.rocketmq
    assert model is not None
    java_root = copy(root, work)
    java = loader.load(java_root, node.removeprefix("dledger-"), case.meta["config"])
    indexes = [name for name in names(root / "index") if name not in model["indexFilesDeleted"]]
    # The scan of 5.3 may create an index file named by the current time.
    java_indexes = [name for name in names(java_root / "index") if name in names(root / "index")]
    compared = {"starts": (model["starts"], java["loaded"]), "index": (indexes, java_indexes)}
    if java["loaded"]:
        queues = {
            f"{topic}/{queue}": state.max_offset for (topic, queue), state in RecoveredQueues(root).by_key.items()
        }
        queues |= {f"{each['topic']}/{each['queueId']}": each["maxOffsetAfter"] for each in model["queues"]}
        data = sorted({*found.data_files_after, *filter(None, [model["dataFileCreated"]])})
        old = [name for name in names(root / "commitlog") if name not in model["oldFilesDeleted"]]
        compared |= {
            "queues": (filled(queues), filled(java["queues"])),
            "data": (data, names(java_root / node / "data")),
            "commitlog": (old, names(java_root / "commitlog")),
        }
    return {name: (modelled, actual) for name, (modelled, actual) in compared.items() if modelled != actual}


def filled(queues: dict[str, int]) -> dict[str, int]:
    return {name: offset for name, offset in queues.items() if offset}


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []
