"""The model of a broker's recovery without DLedger against RocketMQ itself, over random damage.

With DLEDGER_INTEROP=SECONDS random damage is compared for so long (DLEDGER_INTEROP_SEED chooses it).
"""

from __future__ import annotations

import os
import random
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.format.codec import record_struct
from pyspark_dledger.format.state_files import EPOCH_FILE, consistent_point, parse_epochs
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.state_files import CHECKPOINT_LAYOUT, is_of_controller_mode, read_epochs
from pyspark_dledger.rocketmq.recovery.plain_recovery import preview_plain
from tests.interop.java_group import JavaProcess
from tests.interop.java_store import COMPILED_WITH
from tests.support import golden
from tests.support.damage import write_at
from tests.support.long_runs import SECONDS, SEED
from tests.support.sparse_copy import copy_tree

VERSIONS = ("4.9.8", "5.1.4", "5.3.3", "5.4.0", "5.5.0")
if os.environ.get("DLEDGER_INTEROP_VERSIONS"):
    VERSIONS = tuple(os.environ["DLEDGER_INTEROP_VERSIONS"].split())
AT_LEAST = 40
CASES = ("mq-plain", "mq-plain-crc", "mq-53-controller")
FILE_SIZE = 131072
SETTINGS = {
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1000,
}
_CHECKPOINT = record_struct(CHECKPOINT_LAYOUT)
# Stores that were loaded keep their buffers and threads.
_LOADS_OF_A_PROCESS = 40


class Judges:
    """RocketMQ's DefaultMessageStore of each version, which loads one root after the other."""

    def __init__(self) -> None:
        self._processes: dict[str, JavaProcess] = {}
        self._loads: dict[str, int] = {}

    def load(self, version: str, root: Path) -> dict[str, Any]:
        """What load() makes of a root, which it changes; in controller mode if it has an epoch file."""
        settings = {"storePathRootDir": root, "storePathCommitLog": root / "commitlog", **SETTINGS}
        words = [f"{name}={value}" for name, value in settings.items()]
        if is_of_controller_mode(root) and version >= "5":
            words.append("enableControllerMode=true")
        return self._ask(version, words)

    def compare_epochs(
        self, version: str, slave: Path, slave_end: int, master: Path, master_end: int
    ) -> dict[str, Any]:
        """The epochs that Java reads of two files, or the error, and their consistent point."""
        return self._ask(version, ["epochs", str(slave), str(slave_end), str(master), str(master_end)])

    def _ask(self, version: str, words: list[str]) -> dict[str, Any]:
        self._loads[version] = self._loads.get(version, 0) + 1
        if self._loads[version] % _LOADS_OF_A_PROCESS == 0:
            self._processes.pop(version).close()
        if version not in self._processes:
            options = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
            process = JavaProcess("LoadPlainStores", version, compiled_with=COMPILED_WITH, options=options)
            self._processes[version] = process
        return self._processes[version].ask("\t".join(words), 60)

    def close(self) -> None:
        for process in self._processes.values():
            process.close()


@pytest.fixture(scope="module")
def judges() -> Iterator[Judges]:
    found = Judges()
    yield found
    found.close()


class PlainDamage:
    """Random damage to a plain store, most of it near the log's end and in headers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def apply(self, root: Path) -> list[str]:
        """Damages a store; returns what was done."""
        if self.random.random() < 0.5:
            (root / "abort").touch()
        done = ["abort"] if (root / "abort").exists() else []
        kinds = (self._bytes, self._header, self._zeros, self._file, self._queue, self._queue_file, self._checkpoint)
        weights = (15, 35, 8, 12, 15, 8, 12)
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            done += [self.random.choices(kinds, weights)[0](root)]
        return done

    def _log_file(self, root: Path) -> Path | None:
        files = sorted(path for path in (root / "commitlog").iterdir() if path.stat().st_size == FILE_SIZE)
        return files[max(len(files) - 1 - int(self.random.expovariate(0.5)), 0)] if files else None

    def _overwrite(self, path: Path, at: int, data: bytes) -> str:
        write_at(path, at, data)
        return f"{path.name}[{at}] = {data.hex()}"

    def _bytes(self, root: Path) -> str:
        file = self._log_file(root)
        if file is None:
            return "no file"
        return self._overwrite(
            file, self.random.randrange(FILE_SIZE - 4), self.random.randbytes(self.random.choice((1, 4)))
        )

    def _header(self, root: Path) -> str:
        file = self._log_file(root)
        if file is None:
            return "no file"
        starts = _messages(file.read_bytes())
        at = self.random.choice([starts[0], *starts, *starts[-3:]])
        size = int.from_bytes(file.read_bytes()[at : at + 4], "big", signed=True)
        body = 84 if size > 120 else 0
        offset, length = self.random.choice(
            ((0, 4), (4, 4), (8, 4), (12, 4), (20, 8), (28, 8), (36, 4), (48, 8), (56, 8), (body, 4), (size - 20, 2))
        )
        data = bytearray(file.read_bytes()[at + offset : at + offset + length])
        if not data:
            return "nothing"
        value = int.from_bytes(data, "big")
        bits = 8 * len(data)
        changed = self.random.choice(
            (value ^ 1 << self.random.randrange(bits), 0, value + 1, self.random.getrandbits(bits))
        )
        # A queue offset or a physical offset far away makes Java create files of gigabytes.
        if offset in (20, 28):
            changed = value ^ 1 << self.random.randrange(8)
        return self._overwrite(file, at + offset, (changed % (1 << bits)).to_bytes(len(data), "big"))

    def _zeros(self, root: Path) -> str:
        file = self._log_file(root)
        return self._overwrite(file, self.random.randrange(0, FILE_SIZE, 4096), bytes(4096))[:30] if file else "no file"

    def _file(self, root: Path) -> str:
        file = self._log_file(root)
        if file is None:
            return "no file"
        action = self.random.choice(("delete", "truncate", "empty", "extra", "foreign", "folder", "next"))
        last = max(path.name for path in (root / "commitlog").iterdir() if path.name.isdecimal())
        following = root / "commitlog" / f"{int(last) + FILE_SIZE:020}"
        if action == "delete":
            file.unlink()
        elif action == "truncate":
            os.truncate(file, self.random.randrange(FILE_SIZE))
        elif action == "empty":
            following.touch()
        elif action == "extra":
            following.write_bytes(bytes(FILE_SIZE))
        elif action == "foreign":
            (root / "commitlog" / "notes.txt").write_bytes(bytes(self.random.choice((5, FILE_SIZE))))
        elif action == "folder":
            (root / "commitlog" / "backup").mkdir(exist_ok=True)
        else:
            shutil.copy(file, following)
        return f"{action} {file.name}"

    def _queue_files(self, root: Path) -> list[Path]:
        return sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())

    def _queue(self, root: Path) -> str:
        files = self._queue_files(root)
        if not files:
            return "no queue"
        file = self.random.choice(files)
        units = max(file.stat().st_size // 20, 1)
        at = 20 * self.random.randrange(min(units, 12)) + self.random.choice((0, 4, 8, 12))
        if at + 4 > file.stat().st_size:
            return "short queue"
        data = self.random.choice((bytes(4), self.random.randbytes(4), b"\xff" * 4))
        return f"{file.parent} {self._overwrite(file, at, data)}"

    def _queue_file(self, root: Path) -> str:
        files = self._queue_files(root)
        if not files:
            return "no queue"
        file = self.random.choice(files)
        action = self.random.choice(("delete", "zero", "truncate", "all", "empty"))
        if action == "delete":
            file.unlink()
        elif action == "zero":
            file.write_bytes(bytes(2000))
        elif action == "truncate":
            os.truncate(file, self.random.choice((1980, 1000, 20)))
        elif action == "empty":
            os.truncate(file, 0)
        else:
            shutil.rmtree(root / "consumequeue")
        return f"{action} {file}"

    def _checkpoint(self, root: Path) -> str:
        file = root / "checkpoint"
        values = list(_CHECKPOINT.unpack_from(file.read_bytes()))
        # The times, and the confirmed offset.
        for number in (0, 1, 2, 4):
            values[number] = self.random.choice(
                (values[number], 0, values[number] + self.random.randrange(-9000, 9000))
            )
        if self.random.random() < 0.1:
            values[4] = self.random.choice((2**40, -1, 130_000))
        return self._overwrite(file, 0, _CHECKPOINT.pack(*values))


def _messages(data: bytes) -> list[int]:
    """Where messages begin in a file, and where they end; a plain walk."""
    at, found = 0, []
    while at + 8 <= len(data):
        found.append(at)
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size <= 0 or data[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
            break
        at += size
    return found or [0]


def differences(judges: Judges, version: str, root: Path, work: Path) -> dict[str, Any]:
    """What the model says otherwise than RocketMQ does to a copy of a store."""
    before = golden.fingerprint(root)
    model = preview_plain(open_log(root), version, FILE_SIZE)
    assert golden.fingerprint(root) == before
    shutil.rmtree(work, ignore_errors=True)
    copy_tree(root, work)
    index_before = _names(work / "index")
    java = judges.load(version, work)
    if "OutOfMemoryError" in java.get("error", "") and any("heap" in note for note in model.notes):
        return {}
    said: dict[str, Any] = {"loaded": model.outcome == "loads", "files": model.files_after}
    found = {"loaded": java.get("loaded", java.get("error")), "files": _names(work / "commitlog")}
    if model.outcome == "loads" and java.get("loaded"):
        said |= {"maxOffset": model.max_phy_offset, "dispatchFrom": model.dispatch_from}
        found |= {"maxOffset": java["maxOffset"], "dispatchFrom": java["dispatchFrom"]}
        said["index"] = model.index_files_deleted
        found["index"] = sorted(set(index_before) - set(_names(work / "index")))
        after = {f"{each['topic']}/{each['queueId']}": each["maxOffsetAfter"] for each in model.queues}
        changed = {f"{each['topic']}/{each['queueId']}": each["maxOffsetBefore"] for each in model.queues}
        said["queues"] = after
        found["queues"] = {name: java["queues"].get(name, 0) for name in changed}
        said["units"] = model.consume_queue_max_offsets
        found["units"] = {name: offset for name, offset in java["queues"].items() if offset}
    return {name: (said[name], found[name]) for name in said if said[name] != found[name]}


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, list[Path]]:
    """The roots of each case."""
    found = {}
    for case in CASES:
        root = golden.unpack(case, tmp_path / "goldens")
        found[case] = [root] if (root / "commitlog").is_dir() else sorted(root.iterdir())
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_model_does_as_rocketmq_on_undamaged_stores(
    version: str, judges: Judges, stores: dict[str, list[Path]], tmp_path: Path
) -> None:
    wrong = {}
    for root in (root for roots in stores.values() for root in roots):
        found = differences(judges, version, root, tmp_path / "java")
        if found:
            wrong[str(root)] = found
    assert not wrong


def test_model_does_as_rocketmq_after_random_damage(
    judges: Judges, stores: dict[str, list[Path]], tmp_path: Path
) -> None:
    source = PlainDamage(SEED)
    ends = time.monotonic() + SECONDS
    compared = 0
    while compared < AT_LEAST or time.monotonic() < ends:
        case = source.random.choice(CASES)
        version = source.random.choice(VERSIONS)
        root = tmp_path / "damaged"
        shutil.rmtree(root, ignore_errors=True)
        copy_tree(source.random.choice(stores[case]), root)
        done = source.apply(root)
        found = differences(judges, version, root, tmp_path / "java")
        assert not found, f"{version} on {case} after {done}"
        compared += 1


def _random_epochs(source: random.Random) -> bytes:
    """An epoch file, sometimes damaged, in another order, or without its CRC."""
    starts = sorted(source.sample(range(0, 9000, 1000), source.randrange(1, 4)))
    lines = [f"{number + source.choice((1, 1, 1, 2))}-{start}" for number, start in enumerate(starts)]
    if source.random() < 0.3:
        source.shuffle(lines)
    text = "".join(f"{line}\n" for line in lines)
    crc = source.choice((zlib.crc32(text.encode()) & 0x7FFFFFFF,) * 3 + (0, 7))
    data = bytearray(f"{len(lines)}\n{crc}\n{text}".encode())
    if source.random() < 0.3:
        at = source.randrange(len(data))
        data[at:] = source.choice((b"", bytes([source.choice(b"0159-x\n\r \xff")]) + data[at + 1 :]))
    return bytes(data)


def test_epoch_files_and_consistent_points_are_javas(judges: Judges, tmp_path: Path) -> None:
    """Also of damaged files, and of epochs in another order."""
    source = random.Random(SEED)
    compared = 0
    for number in range(200):
        roots = [tmp_path / str(number) / name for name in ("slave", "master")]
        ends = [source.randrange(10_000) for _ in roots]
        for root in roots:
            root.mkdir(parents=True)
            (root / EPOCH_FILE).write_bytes(_random_epochs(source))
            if source.random() < 0.3:
                (root / f"{EPOCH_FILE}.bak").write_bytes(_random_epochs(source))
        java = judges.compare_epochs("5.3.3", roots[0] / EPOCH_FILE, ends[0], roots[1] / EPOCH_FILE, ends[1])
        said = [read_epochs(root)[0] for root in roots]
        where = [(root / EPOCH_FILE).read_bytes() for root in roots]
        for name, epochs, root in zip(("slave", "master"), said, roots, strict=True):
            if isinstance(java[name], str):
                # A number that is none ends the broker; here the copy counts.
                assert "NumberFormat" in java[name], where
                assert isinstance(parse_epochs((root / EPOCH_FILE).read_bytes()), str), where
            else:
                assert [list(epoch) for epoch in epochs] == java[name], where
        if "consistentPoint" in java:
            compared += 1
            pos = consistent_point(said[0], ends[0], said[1], ends[1])
            assert (-1 if pos is None else pos) == java["consistentPoint"], where
    assert compared > 50
