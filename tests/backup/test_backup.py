"""Backups of stores, and stores restored from them."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.rocketmq.backup import backup, restore
from pyspark_dledger.rocketmq.backup import backup_job as job
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.damage import flip
from tests.support.stores import bodies, entries, opened, reopened


def filled(base: Path, count: int = 23, **config: Any) -> MmapFileStore:
    """A stopped store with committed entries in several files, of a group of three."""
    store = opened(base, **config)
    grow(store, count)
    store.save_term(3, "n1")
    store.save_cluster_id("c" * 32)
    store.save_member_ids(("n0", "n1", "n2"))
    store.shutdown()
    return store


def grow(store: MmapFileStore, count: int, term: int = 2) -> None:
    store.append_as_leader(bodies(store._next_index, count), term)
    store.flush()
    store.update_committed_index(term, store.ledger_end_index)


def restored(backup_folder: Path, root: Path, node: str = "n1", **options: Any) -> MmapFileStore:
    restore(backup_folder, root, node, **(options or {"term": 9}))
    return opened(root, self_id=node)


def test_a_restored_member_has_every_committed_entry(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    report = backup(tmp_path / "a", tmp_path / "b")
    assert (report.first_index, report.last_index, report.files, report.notes) == (0, 22, 5, ())
    copy = restored(tmp_path / "b", tmp_path / "c")
    source = reopened(store)
    assert entries(copy) == entries(source) and copy.committed_index == 22
    assert (copy.curr_term, copy.vote_leader, copy.restored_term) == (9, None, 9)
    assert [(tmp_path / name).stat().st_mode & 0o77 for name in ("b", "c", "c/dledger-n1")] == [0, 0, 0]
    assert (copy.cluster_id, copy.member_ids) == ("c" * 32, ("n0", "n1", "n2"))
    for name in ("data", "index"):
        files = sorted((source.config.node_dir / name).iterdir())
        assert [file.read_bytes() for file in files] == [
            (copy.config.node_dir / name / file.name).read_bytes() for file in files
        ]


def test_uncommitted_entries_are_not_backed_up(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    grow(store, 7)
    store.append_as_leader(bodies(7, 9), 2)
    store.shutdown()
    report = backup(tmp_path / "a", tmp_path / "b")
    assert report.last_index == 6 and report.notes[0].startswith("entries 7 to 15 are left out")
    copy = restored(tmp_path / "b", tmp_path / "c")
    assert copy.ledger_end_index == 6
    grow(copy, 3, 9)
    assert copy.ledger_end_index == 9


def test_a_second_backup_copies_only_what_is_new(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    first = backup(tmp_path / "a", tmp_path / "b")
    same = backup(tmp_path / "a", tmp_path / "b")
    assert (same.kept_files, same.copied_bytes) == (first.files, 0)
    before = {file.name: file.stat().st_ino for file in (tmp_path / "b" / "data").iterdir()}
    store = reopened(store)
    grow(store, 9)
    store.shutdown()
    second = backup(tmp_path / "a", tmp_path / "b")
    assert (second.last_index, second.kept_files, second.copied_bytes) == (31, 4, 9 * 148)
    assert before.items() <= {file.name: file.stat().st_ino for file in (tmp_path / "b" / "data").iterdir()}.items()
    assert len(entries(restored(tmp_path / "b", tmp_path / "c"))) == 32


@pytest.mark.parametrize("at", [100, 500])
def test_a_file_that_has_rotted_in_the_backup_is_copied_again_before_it_grows(tmp_path: Path, at: int) -> None:
    store = filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    last = max((tmp_path / "b" / "data").iterdir())
    flip(last, at % last.stat().st_size)
    store = reopened(store)
    grow(store, 1)
    store.shutdown()
    backup(tmp_path / "a", tmp_path / "b")
    assert len(entries(restored(tmp_path / "b", tmp_path / "c"))) == 24


def test_expired_files_leave_the_backup(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    store = reopened(store)
    assert store.delete_expired(0, force=True) > 0
    begin = store.ledger_begin_index
    store.shutdown()
    report = backup(tmp_path / "a", tmp_path / "b")
    assert report.first_index == begin > 0 and report.kept_files == report.files
    assert len(list((tmp_path / "b" / "data").iterdir())) == report.files
    copy = restored(tmp_path / "b", tmp_path / "c")
    assert (copy.ledger_begin_index, copy.ledger_end_index) == (begin, 22)


def test_files_that_expire_during_a_backup_begin_it_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = reopened(filled(tmp_path / "a"))
    kept, expire = job.LogCopy._copy_file, iter([True])

    def copy_file(self: Any, segment: Any) -> Any:
        if segment.base > 0 and next(expire, False):
            store._begin, count = store._files.expired(store._begin, 0, True, 11, store._next_index)
            assert count == 2
            store._files.delete_before(segment.base * 2, store._begin)
        return kept(self, segment)

    monkeypatch.setattr(job.LogCopy, "_copy_file", copy_file)
    monkeypatch.setattr(job, "_CHECKPOINT_SECONDS", 0.0)
    report = backup(tmp_path / "a", tmp_path / "b")
    assert (report.first_index, report.last_index) == (store.ledger_begin_index, 22)
    store.shutdown()
    assert entries(restored(tmp_path / "b", tmp_path / "c")) == entries(reopened(store))


def test_a_killed_backup_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "a")
    whole = backup(tmp_path / "a", tmp_path / "whole")
    fsync, seen = os.fsync, [0]

    class Killed(BaseException):
        pass

    def limited(limit: int) -> None:
        def sync(descriptor: int) -> None:
            seen[0] += 1
            if seen[0] > limit:
                raise Killed
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", sync)

    kills = 0
    for limit in random.Random(3).sample(range(15), 6):
        seen[0] = 0
        limited(limit)
        try:
            backup(tmp_path / "a", tmp_path / "b")
        except Killed:
            kills += 1
            with pytest.raises(StoreError, match=r"no backup.json"):
                restore(tmp_path / "b", tmp_path / "c", "n1", term=9)
        else:
            break
    assert kills >= 3
    monkeypatch.setattr(os, "fsync", fsync)
    report = backup(tmp_path / "a", tmp_path / "b")
    assert report.kept_files > 0 and report.copied_bytes < whole.copied_bytes
    for file in (tmp_path / "whole" / "data").iterdir():
        assert (tmp_path / "b" / "data" / file.name).read_bytes() == file.read_bytes()


def test_a_killed_restore_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    fsync, seen = os.fsync, [0]

    def sync(descriptor: int) -> None:
        seen[0] += 1
        if seen[0] > 17:
            raise KeyboardInterrupt
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(KeyboardInterrupt):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)
    monkeypatch.setattr(os, "fsync", fsync)
    assert not (tmp_path / "c" / "dledger-n1").exists()
    report = restore(tmp_path / "b", tmp_path / "c", "n1", term=9)
    assert report.resumed > 0 and [path.name for path in (tmp_path / "c").iterdir()] == ["dledger-n1"]
    assert len(entries(opened(tmp_path / "c", self_id="n1"))) == 23


@pytest.mark.parametrize("where", range(8))
def test_a_flipped_bit_in_a_backup_is_named(tmp_path: Path, where: int, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    file = random.Random(where).choice(sorted((tmp_path / "b" / "data").iterdir()))
    data = bytearray(file.read_bytes())
    at = random.Random(where).randrange(len(data))
    data[at] ^= 1 << where
    file.write_bytes(data)
    with pytest.raises(StoreError, match=f"{file} at byte 0 to {len(data) - 1}: expected .* CRC-32"):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)
    assert not (tmp_path / "c" / "dledger-n1").exists()
    assert main(["verify", str(tmp_path / "b")]) == 1
    damage, result = capsys.readouterr().out.splitlines()
    assert damage.startswith(f"{file} at byte 0 to ") and "1 of " in result and "back up to a new folder" in result


def test_verify_reads_a_whole_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    assert main(["verify", str(tmp_path / "b"), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["node"], row["firstIndex"], row["lastIndex"], row["problems"]) == ("n0", 0, 22, [])
    next((tmp_path / "b" / "data").iterdir()).unlink()
    assert main(["verify", str(tmp_path / "b"), "--json"]) == 1
    assert "No such file" in json.loads(capsys.readouterr().out)["problems"][0]
    assert main(["check", str(tmp_path / "b")]) == 2
    assert "found a backup: dledger verify checks it" in capsys.readouterr().err


def changed_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, with the right CRC."""
    manifest = folder / "backup.json"
    value = json.loads(manifest.read_text())
    change(value)
    del value["crc32"]
    value["crc32"] = crc32(json.dumps(value, sort_keys=True).encode())
    manifest.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("id", wrong) for wrong in (5, "a\nb", None)),
        *(("cluster", wrong) for wrong in ("x\ny=1", 7)),
        *(("members", wrong) for wrong in (["n1", "n2\nx=1"], [1], 3)),
        *((name, wrong) for name in ("begin", "term", "last_index") for wrong in ("x", 2**63, -2, 1e300, True)),
        *((name, wrong) for name in ("data_file_size", "index_file_size") for wrong in (0, 33, 2**31, "9")),
        *(("log", wrong) for wrong in (None, [[]], "x")),
        ("state", "../state-1"),
        ("term", 2**62),
        ("files", [{"path": f"state-1/index/{'a/' * 1500}x", "size": 0, "file_size": 0, "crc32": []}]),
    ],
)
def test_a_manifest_with_impossible_values_is_refused(tmp_path: Path, name: str, wrong: object) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    changed_manifest(tmp_path / "b", lambda value: value.update({name: wrong}))
    with pytest.raises(StoreError, match="expected the manifest of a backup"):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)


@pytest.mark.parametrize("wrong", [2**63, 1e300, -1, "7", None])
def test_a_file_of_an_impossible_size_is_refused(tmp_path: Path, wrong: object) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    changed_manifest(tmp_path / "b", lambda value: value["log"][0].update(file_size=wrong))
    with pytest.raises(StoreError, match="expected the manifest of a backup"):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)


@pytest.mark.parametrize("name", ["backup.json", "data/00000000000000000000"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_what_is_no_file_is_never_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    file = tmp_path / "b" / name
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="not a file"):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)


def test_a_huge_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with (tmp_path / "b" / "backup.json").open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(StoreError, match="more than 16777216 bytes"):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)


def test_a_damaged_or_missing_file_of_a_backup_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    manifest = tmp_path / "b" / "backup.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"last_index": 22', '"last_index": 23'))
    with pytest.raises(StoreError, match="CRC-32"):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)
    for name, wrong in (("path", "../x"), ("crc32", []), ("size", -1), ("file_size", 7)):
        manifest.write_text(text)
        changed_manifest(tmp_path / "b", lambda value, change={name: wrong}: value["log"][1].update(change))  # type: ignore[misc]
        with pytest.raises(StoreError, match="expected the manifest of a backup"):
            restore(tmp_path / "b", tmp_path / "c", "n1", term=9)
    manifest.write_text(text)
    sorted((tmp_path / "b" / "data").iterdir())[2].unlink()
    with pytest.raises(StoreError, match="the backup is incomplete"):
        restore(tmp_path / "b", tmp_path / "c", "n1", term=9)


@pytest.mark.parametrize("at", [9, 20, 60])
def test_a_damaged_entry_of_the_source_is_named(tmp_path: Path, at: int) -> None:
    store = filled(tmp_path / "a")
    file = sorted((store.config.node_dir / "data").iterdir())[1]
    flip(file, 148 + at, 4)
    with pytest.raises(StoreError, match=rf"{file} at byte (0|148), index (5|6): .*back up another member"):
        backup(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b" / "backup.json").exists()


def test_an_index_unit_that_contradicts_its_entry_is_named(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    file = min((store.config.node_dir / "index").iterdir())
    flip(file, 3 * 32 + 31, 4)
    with pytest.raises(StoreError, match="index 3: expected the index unit"):
        backup(tmp_path / "a", tmp_path / "b")


def test_restored_files_do_not_expire_at_once(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    old = time.time() - 1000 * 3600
    for file in (store.config.node_dir / "data").iterdir():
        os.utime(file, (old, old))
    backup(tmp_path / "a", tmp_path / "b")
    for file in (tmp_path / "b" / "data").iterdir():
        os.utime(file, (old, old))
    copy = restored(tmp_path / "b", tmp_path / "c")
    assert copy.delete_expired(copy.config.expires_before(time.time()), force=False) == 0


def test_a_group_restored_whole_gets_one_new_cluster_id(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    first = restored(tmp_path / "b", tmp_path / "c", "n0", new_group="today")
    second = restored(tmp_path / "b", tmp_path / "d", "n1", new_group="today")
    third = restored(tmp_path / "b", tmp_path / "e", "n1", new_group="tomorrow")
    assert first.cluster_id == second.cluster_id not in ("", "c" * 32, third.cluster_id)
    assert (first.curr_term, first.vote_leader, first.restored_term, first.member_ids) == (4, None, -1, ())


def test_what_cannot_be_restored_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "a")
    backup(tmp_path / "a", tmp_path / "b")
    for options in ({}, {"term": 9, "new_group": "x"}, {"term": 0}, {"new_group": " "}):
        with pytest.raises(OptionError):
            restore(tmp_path / "b", tmp_path / "c", "n1", **options)
    with pytest.raises(StoreError, match="expected one of the members n0, n1, n2, found n9"):
        restore(tmp_path / "b", tmp_path / "c", "n9", term=9)
    with pytest.raises(StoreError, match="expected a new or empty folder"):
        restore(tmp_path / "b", tmp_path / "a", "n1", term=9)
    for folder, found in (("a", "no backup.json in it"), ("nowhere", "no such folder")):
        with pytest.raises(StoreError, match=f"expected a finished backup, found {found}"):
            restore(tmp_path / folder, tmp_path / "c", "n1", term=9)
    given = ["restore", tmp_path / "b", "--to", tmp_path / "c", "--id", "n1", "--new-group", "x", "--group", "g"]
    assert main(list(map(str, given))) == 2
    assert "leave out --group and --peers" in capsys.readouterr().err
    with pytest.raises(StoreError, match="apart from the backup"):
        restore(tmp_path / "b", tmp_path / "b" / "c", "n1", term=9)
    filled(tmp_path / "other", self_id="n2")
    with pytest.raises(StoreError, match=r"expected a backup of n2, .*found one of n0"):
        backup(tmp_path / "other", tmp_path / "b")
    assert json.loads((tmp_path / "b" / "backup.json").read_text())["node"] == "n0"


@pytest.mark.parametrize("seed", range(3))
def test_every_backup_of_a_growing_log_restores_its_entries(tmp_path: Path, seed: int) -> None:
    """With entries of any size, a log that begins inside a file, and expired files."""
    choice = random.Random(seed)
    store = opened(tmp_path / "a", data_file_size=choice.choice((400, 1000, 5000)))
    if seed:
        store.reset(50, 600 + 40)
    for turn in range(4):
        sizes = [choice.randrange(300) for _ in range(choice.randrange(1, 40))]
        store.append_as_leader([choice.randbytes(size) for size in sizes], turn)
        store.update_committed_index(turn, store.ledger_end_index - choice.randrange(3) * (turn < 3))
        store.flush()
        if choice.random() < 0.4:
            store.delete_expired(0, force=True)
        store = reopened(store)
        expected = [each for each in entries(store) if each.index <= store.committed_index]
        store.shutdown()
        if expected:
            report = dl.backup(tmp_path / "a", tmp_path / "b")
            again = dl.restore(tmp_path / "b", tmp_path / f"c{turn}", "n0", new_group=str(turn))
            assert (report.first_index, report.last_index) == (again.first_index, again.last_index)
            copy = opened(tmp_path / f"c{turn}")
            assert entries(copy) == expected
            copy.shutdown()
        store = opened(tmp_path / "a")
    found, known = ({each.code for each in dl.open_log(str(tmp_path / name)).findings()} for name in ("c3", "a"))
    assert found <= known
