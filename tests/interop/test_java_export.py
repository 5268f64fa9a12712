"""RocketMQ without DLedger reads every message of an export of each broker store.

RocketMQ's own answers for the sources (tests/goldens) are the reference: by queue, offset, key and time.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.format import layout
from pyspark_dledger.rocketmq.export import export
from pyspark_dledger.rocketmq.export.forms import ExportReport
from tests.interop.java_broker import JavaBroker, cluster
from tests.interop.java_store import MAIN_VERSIONS, Received
from tests.interop.plain_stores import ByVersion, PlainStores
from tests.support import golden
from tests.support.golden import Golden, Record
from tests.support.groups import eventually
from tests.support.long_runs import BREADTH, SECONDS, first

STORES = [each for each in golden.ALL if each.case.startswith("mq-")]
PRESERVED = [each for each in STORES if each.case in ("mq-498-upgrade-killed", "mq-53-retention", "mq-53-three")]
# Killed before the broker had dispatched and indexed everything.
KILLED = ("mq-498-upgrade-killed", "mq-498-upgrade-killed-early")
TOPIC = "Leaving"
OUTSIDE_QUEUES = ("prepared", "rollback")
# Longer topics need version 2 of the message format, which 4.9.8 lacks.
LONGEST_TOPIC = {"4.9.8": 127, "5.3.3": 255}
TIMES_OF_QUEUE = 4
# 5.x clears this flag when it decompresses a body for a consumer.
COMPRESSED = 0x1

T = TypeVar("T")


def one_version_each(values: list[T]) -> list[tuple[T, str]]:
    """Values of a parameter with a version by turns; `make interop` and `make breadth` take all versions."""
    pairs = [(value, version) for value in values for version in MAIN_VERSIONS]
    if SECONDS or BREADTH:
        return pairs
    return [pair for number, pair in enumerate(pairs) if number % 2 == number // 2 % 2]


class Exported(NamedTuple):
    """An export and RocketMQ's answers about the messages of its source."""

    report: ExportReport
    options: dict[str, Any]
    source: Golden
    messages: list[Record]
    new_offsets: dict[int, int]
    """New physical offsets by old ones."""


@pytest.fixture(scope="module")
def exported(case_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """Returns a function that exports a store for a RocketMQ version, without topics that it cannot read."""

    def make(store: Golden, version: str, **options: Any) -> Exported:
        target = tmp_path_factory.mktemp("export") / "store"
        messages = store.expected().entries
        longest = LONGEST_TOPIC[version]
        if any(len(each["topic"].encode()) > longest for each in messages):
            messages = [each for each in messages if len(each["topic"].encode()) <= longest]
            options["topic"] = sorted({each["topic"] for each in messages})
        report = export(case_folder(store.case) / store.folder, target, "commitlog", **options)
        assert (report.rows, report.skipped) == (len(messages), 0)
        return Exported(
            report, options, store, messages, dict(zip(source_offsets(messages), new_offsets(target), strict=True))
        )

    return make


def source_offsets(messages: list[Record]) -> list[int]:
    return [each["physicalOffset"] for each in messages]


def new_offsets(target: Path) -> list[int]:
    rows = (row for batch in dl.open_log(str(target)).scan(["pos", "topic"]) for row in batch.to_pylist())
    return [row["pos"] for row in rows if row["topic"] != "DLEDGER_EXPORT_FILLER"]


@pytest.mark.parametrize(("store", "version"), one_version_each(STORES), ids=str)
def test_rocketmq_reads_every_message_of_an_export(
    plain_stores: ByVersion, exported: Callable[..., Exported], store: Golden, version: str
) -> None:
    plain = plain_stores(version)
    exported_store = exported(store, version)
    first, end = plain.open(exported_store.report.broker_conf)
    assert (first, end) == (file_base(exported_store), log_end(exported_store))
    check_messages(plain, exported_store)
    if (
        store.case not in KILLED
        and not exported_store.report.beyond_committed
        and "topic" not in exported_store.options
    ):
        expected_ranges = {
            (each["topic"], each["queueId"]): (each["min"], each["max"]) for each in store.expected().head["queues"]
        }
        assert without_empty(plain.queues()) == without_empty(expected_ranges)


@pytest.mark.parametrize(("store", "version"), one_version_each(PRESERVED), ids=str)
def test_rocketmq_reads_every_message_with_preserved_offsets(
    plain_stores: ByVersion, exported: Callable[..., Exported], store: Golden, version: str
) -> None:
    exported_store = exported(store, version, preserveOffsets=True)
    plain_stores(version).open(exported_store.report.broker_conf)
    check_messages(plain_stores(version), exported_store)
    moved = {old: new for old, new in exported_store.new_offsets.items() if old != new}
    assert 0 < len(moved) <= exported_store.report.parts
    assert all(old - new == 48 for old, new in moved.items())


@pytest.mark.parametrize(("node", "version"), first([("n0", "4.9.8"), ("n1", "5.3.3"), ("n2", "5.3.3")], 2))
def test_rocketmq_reads_every_message_of_a_live_group(
    plain_stores: ByVersion,
    case_folder: Callable[[str], Path],
    tmp_path: Path,
    node: str,
    version: str,
) -> None:
    """test_notebooks compares this store with the acknowledgements of the producer."""
    source = case_folder("mq-53-live") / node
    report = export(source, tmp_path / "store", "commitlog")
    plain_stores(version).open(report.broker_conf)
    found = plain_stores(version).dump()
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
def test_rocketmq_accepts_every_message_crc_after_offsets_changed(
    plain_stores: ByVersion, tmp_path: Path, preserve: bool
) -> None:
    """With forceVerifyPropCRC a broker ends its log at the first message with a wrong or missing CRC.

    Consumers get every message of a queue with holes, some more than once.
    """
    source = golden.unpack("mq-plain-crc", tmp_path)
    messages = Golden("mq-plain-crc", "").expected().entries
    for damaged in (messages[3], messages[40], messages[-1]):
        damage_body(source / "commitlog" / f"{0:020d}", damaged)
    report = export(source, tmp_path / "target", "commitlog", preserveOffsets=preserve)
    assert (report.rows, report.skipped) == (len(messages) - 3, 3)
    _, end = plain_stores("5.3.3").open({**report.broker_conf, "forceVerifyPropCRC": "true"})
    assert end == dl.open_log(report.target).state.max_offset
    found = {each.physical_offset for each in plain_stores("5.3.3").dump().messages}
    assert len(found) == sum(not is_outside_queues(each) for each in messages) - 3


def damage_body(file: Path, message: Record) -> None:
    """Changes the first byte of a message's body. `file` is the first of the log."""
    hosts_v6 = (message["sysFlag"] & (layout.FLAG_BORN_HOST_V6 | layout.FLAG_STORE_HOST_V6)).bit_count()
    with file.open("r+b") as stream:
        stream.seek(message["physicalOffset"] + 88 + 12 * hosts_v6)
        byte = stream.read(1)[0]
        stream.seek(-1, 1)
        stream.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(("preserve", "version"), one_version_each([False, True]))
def test_rocketmq_builds_queues_and_index_from_an_exported_log(
    plain_stores: ByVersion, exported: Callable[..., Exported], preserve: bool, version: str
) -> None:
    exported_store = exported(Golden("mq-53-upgrade", ""), version, preserveOffsets=preserve, commitLogOnly=True)
    target = Path(exported_store.report.target)
    assert not (target / "consumequeue").exists()
    plain_stores(version).open(exported_store.report.broker_conf)
    # 4.9.8 searches by modification times of files, which are those of the export.
    check_messages(plain_stores(version), exported_store, has_times=version != "4.9.8")


@pytest.mark.parametrize("version", MAIN_VERSIONS)
def test_rocketmq_appends_after_an_export(
    plain_stores: ByVersion, exported: Callable[..., Exported], version: str
) -> None:
    plain = plain_stores(version)
    exported_store = exported(Golden("mq-498-upgrade-killed", ""), version, preserveOffsets=version == "5.3.3")
    plain.open(exported_store.report.broker_conf)
    before = plain.dump().messages
    plain.close_store()
    plain.open(exported_store.report.broker_conf, "ASYNC_MASTER")
    plain.put(100, before[0].topic, 1)
    plain.close_store()
    plain.open(exported_store.report.broker_conf)
    after = plain.dump().messages
    added = [each for each in after if each.properties.get("TAGS") == "java"]
    assert [each.body for each in added] == [f"java {number}".encode() for number in range(100)]
    assert set(map(repr, before)) <= set(map(repr, after))


@pytest.mark.skipif(not SECONDS, reason="takes long; DLEDGER_INTEROP=SECONDS starts brokers")
@pytest.mark.parametrize("options", [{}, {"preserveOffsets": True}, {"commitLogOnly": True}], ids=str)
def test_broker_leaves_dledger(tmp_path: Path, options: dict[str, Any]) -> None:
    """Consumers get old and new messages from the broker without DLedger."""
    with cluster(tmp_path) as members:
        members.master()
        clients = members.clients
        clients.send_first(TOPIC)
        clients.start_load(TOPIC, 4)
        clients.wait_for(2000)
        sent = clients.end_load()
        ends = clients.max_offsets(TOPIC)
        members.brokers.pop("n0").stop()
        report = export(members.root(), tmp_path / "left", "commitlog", **options)
        plain = {**report.broker_conf, "brokerRole": "ASYNC_MASTER", "brokerId": 0}
        members.brokers["n0"] = JavaBroker(tmp_path / "left", clients.port, plain)
        assert eventually(lambda: members.brokers["n0"].state()["behind"] <= 0, 60)
        assert clients.max_offsets(TOPIC) == ends
        consumed = {(each.queue_id, each.queue_offset): each.text for each in clients.consume(TOPIC)}
        assert {(each.queue_id, each.queue_offset): str(each.number) for each in sent}.items() <= consumed.items()
        clients.start_load(TOPIC, 4)
        clients.wait_for(500)
        more = clients.end_load()
        after = {(each.queue_id, each.queue_offset): each.text for each in clients.consume(TOPIC)}
        assert consumed.items() <= after.items()
        assert {(each.queue_id, each.queue_offset): str(each.number) for each in more}.items() <= after.items()
        members.brokers["n0"].stop()


def without_empty(queues: dict[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Drops empty queues: some versions list queues that never had a message."""
    return {queue: ends for queue, ends in queues.items() if ends != (0, 0)}


def file_base(exported_store: Exported) -> int:
    return min(int(path.name) for path in (Path(exported_store.report.target) / "commitlog").iterdir())


def log_end(exported_store: Exported) -> int:
    return dl.open_log(exported_store.report.target).state.max_offset


def check_messages(plain: PlainStores, exported_store: Exported, has_times: bool = True) -> None:
    """Checks all messages by queue, physical offset, key and time, and that there are no others."""
    found = plain.dump()
    is_longer = exported_store.options.get("preserveOffsets", False)
    in_queues = [each for each in exported_store.messages if not is_outside_queues(each)]
    expected = {queue_place(each): expected_fields(exported_store, each) for each in in_queues}
    assert len(expected) == len(in_queues)
    got = {(each.topic, each.queue_id, each.queue_offset): received_fields(each) for each in found.messages}
    assert got.keys() == expected.keys()
    differing = [(got[place], expected[place]) for place in expected if got[place] != expected[place]]
    assert differing[:1] == []
    sizes = {each.physical_offset: each.store_size for each in found.messages}
    for each in in_queues:
        size = sizes[exported_store.new_offsets[each["physicalOffset"]]]
        assert size == each["storeSize"] or (is_longer and size > each["storeSize"])
    assert found.missing_by_offset == []
    check_keys(plain, exported_store)
    if has_times:
        check_times(plain, in_queues)


def is_outside_queues(message: Record) -> bool:
    return golden.TRANSACTIONS[message["sysFlag"] >> 2 & 3] in OUTSIDE_QUEUES


def queue_place(message: Record) -> tuple[str, int, int]:
    return message["topic"], message["queueId"], message["queueOffset"]


def expected_fields(exported_store: Exported, message: Record) -> tuple[object, ...]:
    return (
        exported_store.new_offsets[message["physicalOffset"]],
        *(message["flag"], message["sysFlag"] | COMPRESSED, message["bornTimestamp"], message["storeTimestamp"]),
        *(message["bodyLength"], message["bodySha256"], without_crc(message["properties"])),
    )


def received_fields(message: Received) -> tuple[object, ...]:
    return (
        message.physical_offset,
        *(message.flag, message.sys_flag | COMPRESSED, message.born_timestamp, message.store_timestamp),
        *(len(message.body), hashlib.sha256(message.body).hexdigest(), without_crc(message.properties)),
    )


def without_crc(properties: dict[str, str]) -> dict[str, str]:
    """Drops the CRC: it covers the physical offset, which may differ."""
    return {name: value for name, value in properties.items() if name != layout.PROPERTY_CRC}


def check_keys(plain: PlainStores, exported_store: Exported) -> None:
    """Checks that the index has the messages of each key, including other keys with the same hash.

    It must find at least what Java found in the source. Rolled back messages are not indexed.
    """
    by_hash: dict[int, set[int]] = defaultdict(set)
    keys: dict[tuple[str, str], int] = {}
    for message in exported_store.messages:
        for key in keys_of(message):
            value = abs(java_hash(f"{message['topic']}#{key}"))
            keys[message["topic"], key] = value
            if golden.TRANSACTIONS[message["sysFlag"] >> 2 & 3] != "rollback":
                by_hash[value & 0x7FFFFFFF].add(exported_store.new_offsets[message["physicalOffset"]])
    found = dict(zip(keys, plain.by_keys(keys), strict=True))
    assert found == {key: by_hash[value & 0x7FFFFFFF] for key, value in keys.items()}
    for query in exported_store.source.expected().queries:
        key = query["topic"], query["key"]
        if key in found:
            assert {exported_store.new_offsets[offset] for offset in query["phyOffsets"]} <= found[key]


def keys_of(message: Record) -> set[str]:
    words = {*(message["keys"] or "").split(" "), message["properties"].get("UNIQ_KEY") or ""}
    return words - {""}


def check_times(plain: PlainStores, in_queues: list[Record]) -> None:
    """Checks that a search by a message's time finds a message of that time in its queue."""
    queues: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for message in in_queues:
        queues[message["topic"], message["queueId"]][message["queueOffset"]] = message["storeTimestamp"]
    asked = [
        (*queue, times[offset])
        for queue, times in queues.items()
        for offset in sorted(times)[:: max(len(times) // TIMES_OF_QUEUE, 1)]
    ]
    found = [
        queues[topic, queue][offset] for (topic, queue, _), offset in zip(asked, plain.by_times(asked), strict=True)
    ]
    assert found == [time for _, _, time in asked]
