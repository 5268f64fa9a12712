"""Java DLedger and RocketMQ open salvaged stores and read every entry and message; fillers are passed over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pyspark_dledger.log.io.queue_files import FILLER_SIZE, UNIT_DTYPE, queues
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.interop.java_store import serving_store
from tests.interop.java_stores import store_openers
from tests.interop.plain_stores import ByVersion
from tests.interop.test_java_opens_stores import expected_answer, open_store
from tests.salvage import judge
from tests.salvage.groups import Group, damage, differences, golden_group, group_at, lost_indexes
from tests.support import golden
from tests.support.damage import write_log
from tests.support.golden import Golden, Record
from tests.support.long_runs import first, some
from tests.support.sparse_copy import copy_tree

VERSIONS = first(("0.3.1.2", "0.2.7", "0.3.2"), 1)
RAW_SIZES = (32768, 8192)
SIZES = {"mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "500", "maxIndexNum": "1000"}
OUTSIDE_QUEUES = 0x4


def lose(group: Group, indexes: list[int]) -> None:
    """Zeroes entries in all members."""
    for extent in group.extents:
        if extent.index in indexes:
            for member in group.members:
                write_log(next(iter(member.glob("dledger-*/data")), member / "data"), extent.pos, bytes(extent.size))


@pytest.mark.parametrize("lost", [[], [0, 1, 200, 201, 202, 450]], ids=["whole", "with fillers"])
def test_java_dledger_opens_a_salvaged_store(tmp_path: Path, lost: list[int]) -> None:
    group = golden_group(tmp_path, "raw-three")
    damage(group, 5, 20)
    lose(group, lost)
    result = tmp_path / "result"
    salvage(SalvageRequest.of(group.members, undecided="majority"), result)
    assert lost_indexes(result) == lost
    assert list(differences(group, result, lost)) == []
    store = open_store(copy_tree(result, tmp_path / "ours"), sizes=RAW_SIZES)
    expected = expected_answer(store)
    store.shutdown()
    with store_openers(VERSIONS) as openers:
        for version, opener in openers.items():
            copy = copy_tree(result, tmp_path / version)
            assert opener.open(copy, "n0", *RAW_SIZES, appends=0) == expected, version


@pytest.mark.parametrize(("case", "version"), [("mq-53-three", "5.3.3"), ("mq-498-three-diverged", "4.9.8")])
def test_a_broker_serves_a_salvaged_store(tmp_path: Path, case: str, version: str) -> None:
    group = golden_group(tmp_path, case)
    damage(group, 7, 15)
    leader = next(number for number, member in enumerate(group.members) if member.name == group.original.name)
    entries = Golden(case, f"n{leader}").expected().entries
    by_index = {extent.pos + 48: extent.index for extent in group.extents}
    lost_offsets = {each["physicalOffset"] for each in in_queues(entries)[100:110]}
    lost = sorted(by_index[offset] for offset in lost_offsets)
    lose(group, lost)
    result = tmp_path / "result"
    report = salvage(SalvageRequest.of(group.members, undecided="majority", node="n0"), result)
    assert (lost_indexes(result), report.findings) == (lost, ())
    with serving_store(version, result, {**SIZES, "mappedFileSizeCommitLog": 131072}, group="golden") as java:
        found = java.dump()
        wanted = {each["physicalOffset"] for each in in_queues(entries)} - lost_offsets
        assert {each.physical_offset for each in found.messages} == wanted
        assert (found.missing_by_offset, found.missing_by_key) == ([], [])
        java.put(20, "After", 2)
        java.settle()
        # In the log's first file, the unit of a lost message is a copy of the next one (see queue_writer).
        assert len({each.physical_offset for each in java.dump().messages}) == len(wanted) + 20


def test_a_broker_without_dledger_serves_the_salvage_of_a_group(tmp_path: Path, plain_stores: ByVersion) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    damage(group, 7, 15)
    leader = next(number for number, member in enumerate(group.members) if member.name == group.original.name)
    expected = in_queues(Golden("mq-53-three", f"n{leader}").expected().entries)
    by_index = {extent.pos + 48: extent.index for extent in group.extents}
    lost = expected[100:110]
    lose(group, sorted(by_index[each["physicalOffset"]] for each in lost))
    result = tmp_path / "result"
    report = salvage(
        SalvageRequest.of(group.members, undecided="majority", store_as="commitlog", topics_from_log=True), result
    )
    assert (report.lost, report.findings) == (10, ())
    java = plain_stores("5.3.3")
    java.open(report.broker_conf)
    found = java.dump()
    wanted = {place(each) for each in expected} - {place(each) for each in lost}
    assert {(each.topic, each.queue_id, each.queue_offset) for each in found.messages} == wanted
    assert (found.missing_by_offset, found.missing_by_key) == ([], [])


def place(message: Record) -> tuple[str, int, int]:
    return message["topic"], message["queueId"], message["queueOffset"]


def test_a_broker_without_dledger_serves_a_salvaged_store(tmp_path: Path, plain_stores: ByVersion) -> None:
    root = golden.unpack("mq-plain", tmp_path)
    members = [copy_tree(root, tmp_path / f"m{number}") for number in range(3)]
    expected = in_queues(Golden("mq-plain", "").expected().entries)
    lost = {each["physicalOffset"] for each in expected[40:45] + expected[200:201]}
    for each in expected:
        for number, member in enumerate(members):
            if each["physicalOffset"] in lost or each["queueOffset"] % 5 == number:
                write_log(member / "commitlog", each["physicalOffset"], bytes(each["storeSize"]))
    result = tmp_path / "result"
    report = salvage(SalvageRequest.of(members, undecided="majority"), result)
    assert (report.lost > 0, report.findings) == (True, ())
    java = plain_stores("5.3.3")
    java.open_root(result, SIZES)
    wanted = {each["physicalOffset"] for each in expected} - lost
    assert {each.physical_offset for each in java.dump().messages} == wanted


@pytest.mark.parametrize("version", first(["5.3.3", "5.1.4", "5.5.0"], 1))
def test_new_messages_come_after_the_lost_ends_of_queues(tmp_path: Path, version: str, plain_stores: ByVersion) -> None:
    """A queue that ends with a filler gets none of them: Java takes its last unit for the end in the log."""
    root = golden.unpack("mq-plain", tmp_path)
    before = {queue.name: QueueUnits(queue).end for queue in queues(root)}
    lost = Golden("mq-plain", "").expected().entries[-60:]
    for each in lost:
        write_log(root / "commitlog", each["physicalOffset"], bytes(each["storeSize"]))
    result = tmp_path / "result"
    salvage(SalvageRequest.of([root]), result)
    topic = max((each["topic"] for each in in_queues(lost)), key=[each["topic"] for each in lost].count)
    own = sorted(name for name in before if name[0] == topic)
    java = plain_stores(version)
    java.open_root(result, SIZES, "ASYNC_MASTER")
    java.put(2 * len(own), topic, len(own))
    assert {name: end for name, (_, end) in java.queues().items() if name in own} == {
        name: before[name] + 2 for name in own
    }
    found = {(each.topic, each.queue_id, each.queue_offset) for each in java.dump().messages}
    assert found >= {(*name, before[name] + number) for name in own for number in range(2)}


@pytest.mark.parametrize("version", first(["5.3.3", "5.1.4", "5.5.0"], 1))
def test_a_broker_of_controller_mode_opens_a_salvaged_store(
    tmp_path: Path, version: str, plain_stores: ByVersion
) -> None:
    """From 5.3.1 on it rejects one that does not say what is confirmed."""
    root = golden.unpack("mq-53-controller", tmp_path)
    group = group_at(tmp_path, "mq-53-controller", [root / "b2", root / "b3"])
    damage(group, 11, 10)
    result = tmp_path / "result"
    report = salvage(SalvageRequest.of(group.members, undecided="majority"), result)
    assert (report.lost, report.findings) == (0, ())
    java = plain_stores(version)
    begin, end = java.open_root(result, {**SIZES, "enableControllerMode": "true"})
    assert (begin, end) == (0, group.extents[-1].pos + group.extents[-1].size)
    assert {each.physical_offset for each in java.dump().messages} == offsets_in_queues(result)


def offsets_in_queues(root: Path) -> set[int]:
    """The physical offsets that the ConsumeQueues of a store point to, fillers left out."""
    data = b"".join(file.read_bytes() for file in (root / "consumequeue").rglob("0" * 20))
    units = np.frombuffer(data, UNIT_DTYPE)
    return set(units["commitLogOffset"][(units["size"] > 0) & (units["size"] < FILLER_SIZE)].tolist())


@pytest.mark.parametrize(
    "case", [judge.CONTROLLER, *some([each for each in judge.CASES if each != judge.CONTROLLER], 1)]
)
def test_brokers_serve_of_a_salvage_what_they_serve_of_the_undamaged_store(tmp_path: Path, case: str) -> None:
    with closing(judge.Judges(tmp_path)) as judges:
        assert list(judge.differences(judges, case, 2, tmp_path / "group", first(judge.CASES[case], 1))) == []


def in_queues(messages: list[Record]) -> list[Record]:
    return [each for each in messages if not each["sysFlag"] & OUTSIDE_QUEUES]
