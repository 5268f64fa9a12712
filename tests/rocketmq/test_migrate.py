"""A migration writes equal stores with every message, and continues where it was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log.io.state_files import read_epochs, read_store_checkpoint
from pyspark_dledger.rocketmq import migration
from pyspark_dledger.rocketmq.export.commit_log_form import CommitLogForm
from pyspark_dledger.rocketmq.jobs import store_files
from pyspark_dledger.rocketmq.migration import MigrationReport, NotSafeError, migrate
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.support.damage import flip
from tests.support.groups import eventually
from tests.support.long_runs import mostly_slow
from tests.support.message_nodes import MessageNodes, message_nodes, puts, rows
from tests.support.sparse_copy import copy_tree

MEMBERS = ("n0", "n1", "n2")
TARGETS = ("a", "b", "c")
COLUMNS = ("topic", "queueId", "queueOffset", "storeTimestamp", "uniqKey", "properties", "body")
GOLDENS = ("mq-53-live", "mq-53-upgrade", "mq-53-retention", "mq-498-three-diverged", "mq-498-upgrade-killed")
Unpack = Callable[[str], Path]

pytestmark = pytest.mark.usefixtures("no_fsync")


class Killed(Exception):
    """The migration ended here."""


def replicas(folder: Path) -> list[Path]:
    return [folder / node for node in MEMBERS if (folder / node).is_dir()] or [folder]


def migrated(sources: list[Path], folder: Path, mode: str = "controller") -> MigrationReport:
    return migrate(sources, [folder / name for name in TARGETS], mode)


def messages(path: Path | str) -> list[dict[str, Any]]:
    found = dl.open_log(path).scan(columns=("kind", *COLUMNS))
    return [row for batch in found for row in batch.to_pylist() if row["kind"] == "message"]


def commit_log(target: Path | str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((Path(target) / "commitlog").iterdir())}


def contents(target: str) -> dict[str, bytes]:
    """All files but those of the job."""
    files = [file for file in Path(target).rglob("*") if file.is_file() and "_export" not in str(file)]
    return {str(file.relative_to(target)): file.read_bytes() for file in files}


def is_clean(targets: tuple[str, ...]) -> bool:
    return dl.check(targets).is_clean


def interrupted(sources: list[Path], targets: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has copied all of the log to the first target only."""

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CommitLogForm, "finish", die)
        with pytest.raises(Killed):
            migrate(sources, targets)


@pytest.mark.parametrize("case", mostly_slow(GOLDENS, 2, 4))
def test_each_new_store_has_every_message_of_the_group(case_folder: Unpack, tmp_path: Path, case: str) -> None:
    report = migrated(replicas(case_folder(case)), tmp_path)
    expected = messages(report.source)
    assert [store.rows for store in report.stores] == [len(expected)] * 3
    assert [messages(target) == expected for target in report.targets] == [True] * 3
    first, *others = map(contents, report.targets)
    assert others == [first, first]
    assert is_clean(report.targets)


def test_controller_mode_begins_with_epoch_0_and_a_confirmed_log(case_folder: Unpack, tmp_path: Path) -> None:
    report = migrated(replicas(case_folder("mq-53-live")), tmp_path)
    for store in report.stores:
        assert read_epochs(Path(store.path))[0] == ((0, 0),)
        checkpoint = read_store_checkpoint(Path(store.path))
        assert checkpoint is not None
        assert checkpoint.confirm_phy_offset == dl.open_log(store.path).state.max_offset
        assert store.broker_conf["enableControllerMode"] == "true"
        assert "brokerRole" not in store.broker_conf
        assert not list(Path(store.path).glob("brokerIdentity*"))


def test_timers_of_the_old_log_must_not_be_copied(case_folder: Unpack, tmp_path: Path) -> None:
    """The broker would look for their messages at the old positions, and never deliver them."""
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    for node in MEMBERS:
        (group / node / "timerlog").mkdir()
        (group / node / "timerlog" / f"{0:020}").write_bytes(bytes(52))
    (note,) = [note for note in migrated(replicas(group), tmp_path).notes if note.startswith("timerlog")]
    assert "do not copy it" in note


def test_a_plain_master_and_its_slaves_have_no_epochs(case_folder: Unpack, tmp_path: Path) -> None:
    targets = [tmp_path / name for name in TARGETS]
    report = dl.migrate(replicas(case_folder("mq-53-live")), targets, "slaves")
    roles = [(store.broker_conf["brokerRole"], store.broker_conf["brokerId"]) for store in report.stores]
    assert roles == [("SYNC_MASTER", "0"), ("SLAVE", "1"), ("SLAVE", "2")]
    assert not [path for target in report.targets for path in Path(target).glob("epoch*")]


def test_config_is_that_of_the_replica_with_the_furthest_consumer_offsets(case_folder: Unpack, tmp_path: Path) -> None:
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    for node in ("n0", "n2"):
        for file in (group / node / "config").glob("consumerOffset*"):
            file.write_text(file.read_text().replace("OrderTopic@billing", "OrderTopic@others"))
            file.write_text('{"offsetTable":{"OrderTopic@billing":{0:1}}}')
    report = migrated(replicas(group), tmp_path)
    found = {(Path(target) / "config/consumerOffset.json").read_bytes() for target in report.targets}
    assert found == {(group / "n1/config/consumerOffset.json").read_bytes()}


def test_a_run_after_the_stop_adds_only_the_rest(tmp_path: Path) -> None:
    sources = [tmp_path / node for node in MEMBERS]
    with message_nodes(tmp_path, 3, store_options={"data_file_size": 64 << 10, "index_file_size": 32 << 10}) as group:
        send(group, 300)
        # A member without any entry has no log to migrate yet.
        eventually(lambda: all([*source.glob("dledger-*/data/*")] for source in sources))
        first = migrated(sources, tmp_path)
        assert (first.stores, first.in_use) == ((), MEMBERS)
        times = {
            path: path.stat().st_mtime_ns for name in TARGETS for path in (tmp_path / name / "commitlog").iterdir()
        }
        assert not (tmp_path / "a/consumequeue").exists()
        send(group, 200)
        again = migrated(sources, tmp_path)
        assert again.kept == first.files - len(TARGETS)
        send(group, 100)
        group.ready_leader()
    report = migrated(sources, tmp_path)
    assert report.kept == again.files - len(TARGETS)
    assert report.stores[0].rows == 600 == len(messages(tmp_path / "a"))
    changed = [path for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert len(changed) == len(TARGETS), "only the file with the end of the log is written again"
    assert is_clean(report.targets)


def send(group: MessageNodes, count: int) -> None:
    group.ready_leader()
    with dl.connect("g", group.peers) as client:
        batch = rows(count, size=200, keys=[f"key-{number}" for number in range(count)])
        assert len(list(client.put_messages(puts(batch, job=None)))) == count


@pytest.mark.parametrize("parts", mostly_slow([1, 2, 8, 0, 4, 5, 13], 2, 4))
def test_a_killed_migration_continues(
    case_folder: Unpack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """After any number of files of the log, before queues are built, and after some of them are copied."""
    sources = replicas(case_folder("mq-498-three-diverged"))
    expected = migrated(sources, tmp_path / "whole")
    count = 0

    def die(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count > parts:
                raise Killed
            return method(*args)

        return run

    with monkeypatch.context() as patch:
        for owner, name in ((CommitLogForm, "write"), (CommitLogForm, "finish"), (store_files, "_copy_file")):
            patch.setattr(owner, name, die(getattr(owner, name)))
        with pytest.raises(Killed):
            migrated(sources, tmp_path)
    report = migrated(sources, tmp_path)
    assert [store.log_crc32 for store in report.stores] == [store.log_crc32 for store in expected.stores]
    first, *others = map(contents, report.targets)
    assert others == [first, first]
    assert is_clean(report.targets)


def test_a_finished_migration_is_not_written_again(case_folder: Unpack, tmp_path: Path) -> None:
    sources = replicas(case_folder("mq-53-live"))
    first = migrated(sources, tmp_path)
    second = migrated(sources, tmp_path)
    assert (second.stores, second.kept) == (first.stores, first.files)
    with pytest.raises(StoreError, match="found a finished migration of"):
        migrated(sources, tmp_path, "slaves")


def test_files_of_another_replica_are_kept(
    case_folder: Unpack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed entries are the same on all replicas, so it does not matter which one an earlier run has read."""
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    interrupted(replicas(group), [tmp_path / name for name in TARGETS], monkeypatch)
    for file in (group / "n0/config").glob("consumerOffset*"):
        file.write_text("{}")
    report = migrated(replicas(group), tmp_path)
    files = len(commit_log(tmp_path / "a"))
    assert not report.source.endswith("n0")
    assert (report.kept, report.files) == (files, 3 * files)


def test_expired_files_are_deleted_from_the_target(case_folder: Unpack, tmp_path: Path, monkeypatch: Any) -> None:
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    interrupted(replicas(group), [tmp_path / name for name in TARGETS], monkeypatch)
    for node in MEMBERS:
        min((group / node / f"dledger-{node}/data").iterdir()).unlink()
    report = migrated(replicas(group), tmp_path)
    assert "00000000000000000000" not in commit_log(tmp_path / "a")
    assert report.kept == report.files // 3
    assert is_clean(report.targets)


def test_a_lost_entry_stops_the_migration_before_anything_is_written(case_folder: Unpack, tmp_path: Path) -> None:
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    for node in MEMBERS:
        flip(sorted((group / node / f"dledger-{node}/data").iterdir())[1], 30_000)
    with pytest.raises(NotSafeError) as raised:
        migrated(replicas(group), tmp_path)
    assert raised.value.report.next.arguments[:2] == ("dledger", "salvage")
    assert not [name for name in TARGETS if (tmp_path / name).exists()]
    salvage(SalvageRequest.of(replicas(group), undecided="filler"), tmp_path / "healthy")
    (tmp_path / "healthy/_export.json").unlink()
    report = migrated([tmp_path / "healthy"], tmp_path)
    assert report.stores[0].rows == len(messages(tmp_path / "healthy"))
    assert report.notes[0] == "1 entry lost for good: an earlier salvage wrote fillers instead"


def test_damage_of_one_replica_is_no_obstacle(case_folder: Unpack, tmp_path: Path) -> None:
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    flip(sorted((group / "n0/dledger-n0/data").iterdir())[1], 30_000)
    report = migrated(replicas(group), tmp_path)
    assert report.source != str(group / "n0")
    assert [note for note in report.notes if note.startswith("n0: damaged")]


def test_what_only_a_minority_has_is_left_out_and_named(case_folder: Unpack, tmp_path: Path) -> None:
    report = migrated(replicas(case_folder("mq-498-three-diverged")), tmp_path)
    assert report.notes[0].startswith("left out: entries 178 to 197 of n2, which are on no majority")


def test_a_log_that_was_replaced_is_rejected(case_folder: Unpack, tmp_path: Path, monkeypatch: Any) -> None:
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    interrupted(replicas(group), [tmp_path / name for name in TARGETS], monkeypatch)
    shutil.rmtree(group)
    copy_tree(case_folder("mq-53-three"), group)
    with pytest.raises(StoreError, match="the log was truncated or replaced"):
        migrated(replicas(group), tmp_path)


def test_only_the_first_run_checks_all_of_the_logs(
    case_folder: Unpack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, target = replicas(case_folder("mq-53-live")), [tmp_path / "a"]
    interrupted(sources, target, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(migration, "check_stores", lambda *_: pytest.fail("checked again"))
        assert len(migrate(sources, target).stores) == 1


def test_damage_after_the_first_run_is_found(
    case_folder: Unpack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file that an interrupted run did not write, and that another replica has intact."""
    group = copy_tree(case_folder("mq-53-live"), tmp_path / "group")
    sources, target = replicas(group), [tmp_path / "a"]
    interrupted(sources, target, monkeypatch)
    (tmp_path / "a/_export/part-00003.json").unlink()
    for node in MEMBERS[:2]:
        flip(sorted((group / node / f"dledger-{node}/data").iterdir())[3], 10_000)
    report = migrate(sources, target)
    assert report.source == str(group / "n2")
    assert report.stores[0].skipped == 0
    assert messages(tmp_path / "a") == messages(group / "n2")


def test_wrong_arguments_are_rejected(case_folder: Unpack, tmp_path: Path) -> None:
    source = case_folder("mq-53-live") / "n0"
    with pytest.raises(OptionError, match="a folder of its own for each new broker"):
        migrate([source], [tmp_path / "a", tmp_path / "a"])
    with pytest.raises(OptionError, match="controller or slaves"):
        migrate([source], [tmp_path / "a"], "dledger")
    with pytest.raises(StoreError, match="expected a store of a broker in DLedger mode"):
        migrate([case_folder("mq-plain")], [tmp_path / "a"])
