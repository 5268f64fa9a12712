"""RocketMQ without DLedger opens what `export` made of every store of a broker, and has every message of it.

Its own reader's answers about the stores (tests/goldens) say which: by queue, by offset, by key and by time.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format import layout
from pyspark_dledger.rocketmq.export import export
from pyspark_dledger.rocketmq.export.forms import ExportReport
from tests.interop.java_broker import JavaBroker, cluster
from tests.interop.java_store import MAIN_VERSIONS, Got
from tests.interop.java_stores import JavaMissing
from tests.interop.plain_stores import PlainStores
from tests.support import golden
from tests.support.golden import Golden, Record
from tests.support.groups import eventually

STORES = [each for each in golden.ALL if each.case.startswith("mq-")]
PRESERVED = [each for each in STORES if each.case in ("mq-498-upgrade-killed", "mq-53-retention", "mq-53-three")]
# The broker had not dispatched and indexed all when it was killed.
KILLED = ("mq-498-upgrade-killed", "mq-498-upgrade-killed-early")
SECONDS = float(os.environ.get("DLEDGER_INTEROP") or 0)
TOPIC = "Leaving"
OUTSIDE_QUEUES = ("prepared", "rollback")
# 4.9.8 knows no messages of the second version, which longer topics need.
LONGEST_TOPIC = {"4.9.8": 127, "5.3.3": 255}
TIMES_OF_QUEUE = 4
# The flag that 5.x clears of a message whose body it decompresses for a consumer.
COMPRESSED = 0x1


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PlainStores]]:
    folder = tmp_path_factory.mktemp("judges")
    with ExitStack() as stack:
        try:
            found = {version: PlainStores(version, folder) for version in MAIN_VERSIONS}
        except JavaMissing as reason:
            pytest.skip(f"no RocketMQ to open stores with: {reason}")
        for judge in found.values():
            stack.callback(judge.close)
        yield found


class Exported(NamedTuple):
    """An export, and what Java said of the messages of its source, each with where it stands now."""

    report: ExportReport
    options: dict[str, Any]
    source: Golden
    messages: list[Record]
    places: dict[int, int]
    """New physical offset by the old one."""


@pytest.fixture(scope="module")
def exported(case_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """Exports a store for a version of RocketMQ: without the topics that it cannot read."""

    def make(store: Golden, version: str, **options: Any) -> Exported:
        target = tmp_path_factory.mktemp("export") / "store"
        messages = store.expected().entries
        longest = LONGEST_TOPIC[version]
        if any(len(each["topic"].encode()) > longest for each in messages):
            messages = [each for each in messages if len(each["topic"].encode()) <= longest]
            options["topic"] = sorted({each["topic"] for each in messages})
        report = export(case_folder(store.case) / store.folder, target, "commitlog", **options)
        assert (report.rows, report.skipped) == (len(messages), 0)
        return Exported(report, options, store, messages, dict(zip(old_places(messages), places(target), strict=True)))

    return make


def old_places(messages: list[Record]) -> list[int]:
    return [each["physicalOffset"] for each in messages]


def places(target: Path) -> list[int]:
    rows = (row for batch in dl.open_log(str(target)).scan(["pos", "topic"]) for row in batch.to_pylist())
    return [row["pos"] for row in rows if row["topic"] != "DLEDGER_EXPORT_FILLER"]


@pytest.mark.parametrize("version", MAIN_VERSIONS)
@pytest.mark.parametrize("store", STORES, ids=str)
def test_rocketmq_has_every_message_of_an_export(
    judges: dict[str, PlainStores], exported: Callable[..., Exported], store: Golden, version: str
) -> None:
    judge = judges[version]
    made = exported(store, version)
    first, end = judge.open(made.report.broker_conf)
    assert (first, end) == (file_base(made), log_end(made))
    check_messages(judge, made)
    if store.case not in KILLED and not made.report.beyond_committed and "topic" not in made.options:
        told = {
            (each["topic"], each["queueId"]): (each["min"], each["max"]) for each in store.expected().head["queues"]
        }
        assert without_empty(judge.queues()) == without_empty(told)


@pytest.mark.parametrize("version", MAIN_VERSIONS)
@pytest.mark.parametrize("store", PRESERVED, ids=str)
def test_rocketmq_has_every_message_where_offsets_are_preserved(
    judges: dict[str, PlainStores], exported: Callable[..., Exported], store: Golden, version: str
) -> None:
    made = exported(store, version, preserveOffsets=True)
    judges[version].open(made.report.broker_conf)
    check_messages(judges[version], made)
    moved = {old: new for old, new in made.places.items() if old != new}
    assert 0 < len(moved) <= made.report.parts
    assert all(old - new == 48 for old, new in moved.items())


@pytest.mark.parametrize(("node", "version"), [("n0", "4.9.8"), ("n1", "5.3.3"), ("n2", "5.3.3")])
def test_rocketmq_has_every_message_that_a_live_group_took(
    judges: dict[str, PlainStores], case_folder: Callable[[str], Path], tmp_path: Path, node: str, version: str
) -> None:
    """What a producer was told is held against that store in test_notebooks."""
    source = case_folder("mq-53-live") / node
    report = export(source, tmp_path / "store", "commitlog")
    judges[version].open(report.broker_conf)
    found = judges[version].dump()
    got = {
        (each.topic, each.queue_id, each.queue_offset): (each.born_timestamp, each.store_timestamp, each.body)
        for each in found.messages
    }
    columns = ["topic", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp", "body"]
    rows = [row for batch in dl.open_log(str(source)).scan(columns) for row in batch.to_pylist()]
    assert got == {
        (row["topic"], row["queueId"], row["queueOffset"]): (
            ms(row["bornTimestamp"]),
            ms(row["storeTimestamp"]),
            row["body"],
        )
        for row in rows
    }
    assert (found.missing_by_offset, found.missing_by_key) == ([], [])


def ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


@pytest.mark.parametrize("preserve", [False, True])
def test_rocketmq_finds_the_crc_of_each_message_right_where_offsets_changed(
    judges: dict[str, PlainStores], tmp_path: Path, preserve: bool
) -> None:
    """With forceVerifyPropCRC a broker ends its log at the first message that is without, or whose CRC is wrong.

    Of a queue with holes consumers get every message, some more than once.
    """
    source = golden.unpack("mq-plain-crc", tmp_path)
    messages = Golden("mq-plain-crc", "").expected().entries
    for damaged in (messages[3], messages[40], messages[-1]):
        damage_body(source / "commitlog" / f"{0:020d}", damaged)
    report = export(source, tmp_path / "target", "commitlog", preserveOffsets=preserve)
    assert (report.rows, report.skipped) == (len(messages) - 3, 3)
    _, end = judges["5.3.3"].open({**report.broker_conf, "forceVerifyPropCRC": "true"})
    assert end == dl.open_log(report.target).state.max_offset
    found = {each.physical_offset for each in judges["5.3.3"].dump().messages}
    assert len(found) == sum(not is_outside_queues(each) for each in messages) - 3


def damage_body(file: Path, message: Record) -> None:
    """Change the first byte of a message's body; the file begins with the log."""
    hosts_v6 = (message["sysFlag"] & (layout.FLAG_BORN_HOST_V6 | layout.FLAG_STORE_HOST_V6)).bit_count()
    with file.open("r+b") as stream:
        stream.seek(message["physicalOffset"] + 88 + 12 * hosts_v6)
        byte = stream.read(1)[0]
        stream.seek(-1, 1)
        stream.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("version", MAIN_VERSIONS)
@pytest.mark.parametrize("preserve", [False, True])
def test_rocketmq_builds_queues_and_index_of_the_log_itself(
    judges: dict[str, PlainStores], exported: Callable[..., Exported], preserve: bool, version: str
) -> None:
    made = exported(Golden("mq-53-upgrade", ""), version, preserveOffsets=preserve, commitLogOnly=True)
    target = Path(made.report.target)
    assert not (target / "consumequeue").exists()
    judges[version].open(made.report.broker_conf)
    # 4.9.8 goes by when files were modified, which was just now.
    check_messages(judges[version], made, has_times=version != "4.9.8")


@pytest.mark.parametrize("version", MAIN_VERSIONS)
def test_rocketmq_goes_on_behind_an_export(
    judges: dict[str, PlainStores], exported: Callable[..., Exported], version: str
) -> None:
    judge = judges[version]
    made = exported(Golden("mq-498-upgrade-killed", ""), version, preserveOffsets=version == "5.3.3")
    judge.open(made.report.broker_conf)
    before = judge.dump().messages
    judge.close_store()
    judge.open(made.report.broker_conf, "ASYNC_MASTER")
    judge.put(100, before[0].topic, 1)
    judge.close_store()
    judge.open(made.report.broker_conf)
    after = judge.dump().messages
    added = [each for each in after if each.properties.get("TAGS") == "java"]
    assert [each.body for each in added] == [f"java {number}".encode() for number in range(100)]
    assert set(map(repr, before)) <= set(map(repr, after))


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS starts brokers")
@pytest.mark.parametrize("options", [{}, {"preserveOffsets": True}, {"commitLogOnly": True}], ids=str)
def test_a_broker_leaves_dledger(tmp_path: Path, options: dict[str, Any]) -> None:
    """A consumer gets from the broker without DLedger what the one with it took, and what a producer sends after."""
    with cluster(tmp_path) as members:
        members.master()
        clients = members.clients
        clients.send_first(TOPIC)
        clients.load(TOPIC, 4)
        clients.wait_for(2000)
        sent = clients.end()
        ends = clients.max_offsets(TOPIC)
        members.brokers.pop("n0").stop()
        report = export(members.root(), tmp_path / "left", "commitlog", **options)
        plain = {**report.broker_conf, "brokerRole": "ASYNC_MASTER", "brokerId": 0}
        members.brokers["n0"] = JavaBroker(tmp_path / "left", "n0", "", clients.port, plain)
        assert eventually(lambda: members.brokers["n0"].state()["behind"] <= 0, 60)
        assert clients.max_offsets(TOPIC) == ends
        consumed = {(each.queue_id, each.queue_offset): each.text for each in clients.consume(TOPIC)}
        assert {(each.queue_id, each.queue_offset): str(each.number) for each in sent}.items() <= consumed.items()
        clients.load(TOPIC, 4)
        clients.wait_for(500)
        more = clients.end()
        after = {(each.queue_id, each.queue_offset): each.text for each in clients.consume(TOPIC)}
        assert consumed.items() <= after.items()
        assert {(each.queue_id, each.queue_offset): str(each.number) for each in more}.items() <= after.items()
        members.brokers["n0"].stop()


def without_empty(queues: dict[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Some versions know of queues in which nothing ever was."""
    return {queue: ends for queue, ends in queues.items() if ends != (0, 0)}


def file_base(made: Exported) -> int:
    return min(int(path.name) for path in (Path(made.report.target) / "commitlog").iterdir())


def log_end(made: Exported) -> int:
    return dl.open_log(made.report.target).state.max_offset


def check_messages(judge: PlainStores, made: Exported, has_times: bool = True) -> None:
    """Every message, and nothing else, by its queue, its physical offset, its keys and its time."""
    found = judge.dump()
    is_longer = made.options.get("preserveOffsets", False)
    in_queues = [each for each in made.messages if not is_outside_queues(each)]
    expected = {queue_place(each): told(made, each) for each in in_queues}
    assert len(expected) == len(in_queues)
    got = {(each.topic, each.queue_id, each.queue_offset): got_of(each) for each in found.messages}
    assert got.keys() == expected.keys()
    differing = [(got[place], expected[place]) for place in expected if got[place] != expected[place]]
    assert differing[:1] == []
    sizes = {each.physical_offset: each.store_size for each in found.messages}
    for each in in_queues:
        size = sizes[made.places[each["physicalOffset"]]]
        assert size == each["storeSize"] or (is_longer and size > each["storeSize"])
    assert found.missing_by_offset == []
    check_keys(judge, made)
    if has_times:
        check_times(judge, in_queues)


def is_outside_queues(message: Record) -> bool:
    return golden.TRANSACTIONS[message["sysFlag"] >> 2 & 3] in OUTSIDE_QUEUES


def queue_place(message: Record) -> tuple[str, int, int]:
    return message["topic"], message["queueId"], message["queueOffset"]


def told(made: Exported, message: Record) -> tuple[object, ...]:
    return (
        made.places[message["physicalOffset"]],
        *(message["flag"], message["sysFlag"] | COMPRESSED, message["bornTimestamp"], message["storeTimestamp"]),
        *(message["bodyLength"], message["bodySha256"], without_crc(message["properties"])),
    )


def got_of(message: Got) -> tuple[object, ...]:
    return (
        message.physical_offset,
        *(message.flag, message.sys_flag | COMPRESSED, message.born_timestamp, message.store_timestamp),
        *(len(message.body), hashlib.sha256(message.body).hexdigest(), without_crc(message.properties)),
    )


def without_crc(properties: dict[str, str]) -> dict[str, str]:
    """All but the CRC over the message with its physical offset, which may have changed."""
    return {name: value for name, value in properties.items() if name != layout.PROPERTY_CRC}


def check_keys(judge: PlainStores, made: Exported) -> None:
    """The index has the messages of each key, and those of others with the same hash, which it cannot tell apart.

    What Java found in the source's index it finds here, and no less; rolled back messages have no keys in it.
    """
    by_hash: dict[int, set[int]] = defaultdict(set)
    keys: dict[tuple[str, str], int] = {}
    for message in made.messages:
        for key in keys_of(message):
            value = abs(java_hash(f"{message['topic']}#{key}"))
            keys[message["topic"], key] = value
            if golden.TRANSACTIONS[message["sysFlag"] >> 2 & 3] != "rollback":
                by_hash[value & 0x7FFFFFFF].add(made.places[message["physicalOffset"]])
    found = dict(zip(keys, judge.by_keys(keys), strict=True))
    assert found == {key: by_hash[value & 0x7FFFFFFF] for key, value in keys.items()}
    for query in made.source.expected().queries:
        key = query["topic"], query["key"]
        if key in found:
            assert {made.places[offset] for offset in query["phyOffsets"]} <= found[key]


def keys_of(message: Record) -> set[str]:
    words = {*(message["keys"] or "").split(" "), message["properties"].get("UNIQ_KEY") or ""}
    return words - {""}


def check_times(judge: PlainStores, in_queues: list[Record]) -> None:
    """The time of a message leads to a message of that time in its queue."""
    queues: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for message in in_queues:
        queues[message["topic"], message["queueId"]][message["queueOffset"]] = message["storeTimestamp"]
    asked = [
        (*queue, times[offset])
        for queue, times in queues.items()
        for offset in sorted(times)[:: max(len(times) // TIMES_OF_QUEUE, 1)]
    ]
    found = [
        queues[topic, queue][offset] for (topic, queue, _), offset in zip(asked, judge.by_times(asked), strict=True)
    ]
    assert found == [time for _, _, time in asked]
