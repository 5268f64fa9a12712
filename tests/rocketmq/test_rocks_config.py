"""Topics, groups and offsets in a RocksDB are read as those in JSON. Real brokers' classes wrote the databases."""

from __future__ import annotations

import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_dledger import open_log
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.broker_config import TABLES as TABLES_IN_FILES
from pyspark_dledger.log.io.broker_config import read_config, read_config_file
from pyspark_dledger.log.io.rocks_database import NEEDS
from pyspark_dledger.rocketmq.broker.config_files import BrokerMetadata
from pyspark_dledger.rocketmq.jobs.store_files import copy_config
from pyspark_dledger.rocketmq.tables import TABLES
from tests.rocketmq.test_rocksdb import GOLDENS, files_of

NAMES = {"own-533": "consumerOffsets", "all-550": "metadata", "v2-550": "rdb"}
OFFSETS = {("JavaTopic", "JavaGroup"): {3: 77}}


@pytest.fixture(params=NAMES)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pytest.importorskip("rocksdict")
    with tarfile.open(GOLDENS / "config.tar.gz") as packed:
        packed.extractall(tmp_path)
    root = tmp_path / str(request.param)
    with tarfile.open(GOLDENS / "rocks-533.tar.gz") as packed:
        packed.extractall(root)
    return root


def write_offsets(root: Path, version: dict[str, int], offset: int) -> None:
    content = {"dataVersion": version, "offsetTable": {"JavaTopic@JavaGroup": {"3": offset}}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(content))


def test_a_database_is_read(root: Path) -> None:
    found = read_config(root)
    assert found.topic_queues["JavaTopic"] == 6
    assert "JavaGroup" in found.groups
    assert found.offsets == OFFSETS
    assert found.delay_offsets == {5: 21}
    assert found.offsets_path == root / "config" / NAMES[root.name]


def test_newer_offsets_in_json_are_read_instead(root: Path) -> None:
    write_offsets(root, {"counter": 0, "timestamp": 1000}, 5)
    assert read_config(root).offsets == OFFSETS
    write_offsets(root, {"counter": 1000, "timestamp": 2**42}, 5)
    assert read_config(root).offsets == {("JavaTopic", "JavaGroup"): {3: 5}}


def test_offsets_that_a_restart_drops_are_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def found() -> list[str]:
        return [str(each) for each in open_log(root).findings() if each.code == "consumerOffsetUnused"]

    assert not found()
    write_offsets(root, {"counter": 0, "timestamp": 1000}, 99)
    (finding,) = found()
    assert "config/consumerOffset.json" in finding
    assert f"expected 77 of JavaGroup in JavaTopic/3 from {NAMES[root.name]} (counter " in finding
    assert "found 99 (counter 0)" in finding
    main(["check", str(root)])
    assert "where a start with a RocksDB drops 1 offset of a consumer group" in capsys.readouterr().out
    write_offsets(root, {"counter": 1000, "timestamp": 2**42}, 99)
    assert not found()


def test_a_backup_has_no_counter_for_a_start_with_a_database(root: Path) -> None:
    write_offsets(root, {"counter": 1000, "timestamp": 0}, 99)
    file = root / "config" / "consumerOffset.json"
    file.rename(file.with_name("consumerOffset.json.bak"))
    assert read_config(root).offsets == OFFSETS


def test_reading_leaves_the_folder_as_it_is(root: Path) -> None:
    before = list(files_of(root))
    read_config(root)
    for verb in ("check", "audit", "recovery", "stats"):
        assert main([verb, str(root)]) in (0, 1)
    assert main(["dump", str(root), "--table", "consumers"]) == 0
    assert list(files_of(root)) == before


def test_consumers_are_those_of_the_database(root: Path) -> None:
    log, table = open_log(root), TABLES["consumers"]
    parts = table.plan(log, log.options)
    rows = [row for part in parts for batch in table.read(part) for row in batch.to_pylist()]
    assert {row["queueId"]: row["consumerOffset"] for row in rows if row["consumerGroup"] == "JavaGroup"}[3] == 77
    found = [each for each in open_log(root).findings() if each.code == "consumerOffsetBeyondEnd"]
    (finding,) = [each for each in found if "JavaGroup" in str(each)]
    assert finding.file == f"config/{NAMES[root.name]}"


def test_a_copy_of_the_configuration_has_files(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    notes = list(copy_config([root], target))
    assert len(notes) == 1
    assert "RocksDB is in consumerOffset.json, subscriptionGroup.json and topics.json" in notes[0]
    assert sorted(path.name for path in (target / "config").iterdir()) == [
        *("consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "topics.json")
    ]
    ours, theirs = read_config(target), read_config(root)
    assert (ours.topic_queues, sorted(ours.groups)) == (theirs.topic_queues, sorted(theirs.groups))
    assert (ours.offsets, ours.delay_offsets) == (theirs.offsets, theirs.delay_offsets)
    written = read_config_file(target / "config" / "consumerOffset.json")
    assert written is not None
    assert written.content["dataVersion"]["counter"] > 0  # A broker with a RocksDB does not take over a file with 0.


def test_a_new_broker_gets_no_counter_of_0(tmp_path: Path) -> None:
    """A broker with a RocksDB does not take over such a file."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "config").mkdir(parents=True)
    target.mkdir()
    write_offsets(source, {"counter": 0, "timestamp": 1000}, 5)
    (source / "config" / "topics.json").write_text('{"topicConfigTable": {"T": {"readQueueNums": 1}}}')
    (source / "config" / "delayOffset.json").write_text('{"offsetTable": {"5": 21}}')
    list(copy_config([source], target, for_new_broker=True))
    versions = {
        name: file.content.get("dataVersion")
        for name in ("consumerOffset.json", "topics.json", "delayOffset.json")
        if (file := read_config_file(target / "config" / name)) is not None
    }
    assert versions == {
        "consumerOffset.json": {"counter": 1, "stateVersion": 0, "timestamp": 1000},
        "topics.json": {"counter": 1, "stateVersion": 0, "timestamp": 0},
        "delayOffset.json": None,
    }
    ours, theirs = read_config(target), read_config(source)
    assert (ours.topic_queues, ours.offsets, ours.delay_offsets) == (
        *(theirs.topic_queues, theirs.offsets, theirs.delay_offsets),
    )


def test_a_member_serves_what_is_in_a_database(root: Path, tmp_path: Path) -> None:
    leader, follower = BrokerMetadata(root), BrokerMetadata(tmp_path / "follower")
    assert leader.queue_count("JavaTopic") == 6
    copied = leader.files()
    assert copied == BrokerMetadata(root).files()
    follower.take_over(copied)
    theirs = read_config(root)
    assert read_config(tmp_path / "follower") == replace(
        theirs, offsets_path=tmp_path / "follower" / "config" / "consumerOffset.json"
    )
    leader.add_topics({"Ours": 3})
    assert read_config(root).topic_queues == {**theirs.topic_queues, "Ours": 3}
    assert BrokerMetadata(root).queue_count("JavaTopic") == 6


def test_without_rocksdict_the_configuration_is_not_checked(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for verb in ("check", "verify"):
        main([verb, str(root)])
        printed = capsys.readouterr().out
        assert "unreadableFile" not in printed
        assert "consumers miss: nothing" not in printed
        assert f"topics, consumer groups and their offsets in RocksDB: {NEEDS}" in printed.splitlines()[-1]
    for table in ("consumers", "pop"):
        assert main(["dump", str(root), "--table", table]) != 0
        assert NEEDS in capsys.readouterr().err
    with pytest.raises(StoreError, match="needs rocksdict"):
        BrokerMetadata(root)
    target = tmp_path / "target"
    target.mkdir()
    notes = list(copy_config([root], target))
    assert [name for name in TABLES_IN_FILES if any(f"config/{name} is left out" in note for note in notes)] == [
        *TABLES_IN_FILES
    ]
    assert all(NEEDS in note for note in notes)


def test_a_damaged_database_is_an_error_with_its_path(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = root / "config" / NAMES[root.name]
    for manifest in folder.glob("MANIFEST-*"):
        manifest.write_bytes(b"x" * 100)
    with pytest.raises(StoreError, match="copy the folder from a replica") as caught:
        read_config(root)
    assert str(folder) in str(caught.value)
    assert "dledger-rocksdb-" not in str(caught.value)
    main(["verify", str(root)])
    assert str(folder) in "".join(capsys.readouterr())
