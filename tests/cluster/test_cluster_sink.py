"""Writes to a cluster without Spark: which message a row becomes, its queue and its UNIQ_KEY, and what is an error."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pyspark_dledger.cluster import cluster as cluster_module
from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.cluster.producer import Batch, BatchMessage, batches_of
from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.common.java_text import java_hash
from pyspark_dledger.errors import ClusterError, OptionError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.message import message_in
from pyspark_dledger.spark.cluster.cluster_rows import NO_HOST, ClusterRows
from pyspark_dledger.spark.cluster.cluster_write_options import CLUSTER_WRITE_OPTIONS, parse_cluster_write_options
from pyspark_dledger.spark.cluster.cluster_writers import ClusterBatchWriter, ClusterStreamWriter
from pyspark_dledger.spark.sink.job_identity import PartitionIdentities
from pyspark_dledger.spark.sink.row_format import NOT_IN_CLUSTERS, row_format
from pyspark_dledger.spark.sink.task_writer import MessageEncoder
from pyspark_dledger.spark.sink.write_options import WriteOptions
from tests.support.cluster_reads import batch_reader, rows
from tests.support.cluster_writes import Task, frame
from tests.support.fake_cluster import FakeServer
from tests.support.long_runs import examples

BODY = b"x"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    monkeypatch.setattr(cluster_module, "_MAX_FIRST_WAIT", 0.3)
    server.queues["Orders", 3] = []


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The task in which a test writes."""
    found: dict[str, Any] = {
        "partition": 0,
        "sql.streaming.queryId": "query",
        "streaming.sql.batchId": "7",
        "spark.jobGroup.id": "run",
    }

    monkeypatch.setattr(TaskContext, "get", lambda: Task(found))
    return found


def writer(
    server: FakeServer, schema: StructType, kind: type[Any] = ClusterBatchWriter, **options: Any
) -> ClusterBatchWriter:
    found: ClusterBatchWriter = kind(
        parse_cluster_write_options({"nameServer": server.address, "topic": "Orders", **options}), schema
    )
    return found


def write(server: FakeServer, columns: dict[str, list[Any]], **options: Any) -> int:
    batch, schema = frame(columns)
    half = batch.num_rows // 2
    parts = [batch.slice(0, half), batch.slice(half)]
    return writer(server, schema, **options).write(iter(parts)).count  # type: ignore[attr-defined]


def found(server: FakeServer, topic: str = "Orders") -> list[dict[str, Any]]:
    return rows(batch_reader(server.address, topic=topic))


def test_a_row_becomes_a_message_with_its_columns(server: FakeServer) -> None:
    born = 1_700_000_000_123
    columns = {
        "body": [b"a", b"b"],
        "keys": ["k1 k2", None],
        "tags": ["t", None],
        "properties": [[("p", "1"), ("q", "é")], None],
        "flag": [5, None],
        "bornTimestamp": [born, born],
    }
    assert write(server, columns) == 2
    first, second = sorted(found(server), key=lambda row: row["body"])
    assert (first["body"], first["keys"], first["tags"], first["flag"]) == (b"a", "k1 k2", "t", 5)
    assert dict(first["properties"]) | {"p": "1", "q": "é"} == dict(first["properties"])
    assert first["bornTimestamp"].timestamp() == born / 1000
    assert (second["keys"], second["tags"], second["flag"]) == (None, None, 0)
    assert len(first["uniqKey"]) == 32 and first["uniqKey"] != second["uniqKey"]
    assert "__DLEDGER_ID" not in dict(first["properties"])


def test_keys_choose_the_queue_and_other_rows_take_turns(server: FakeServer) -> None:
    keys = [f"k{number}" for number in range(20)]
    write(server, {"body": [BODY] * 20, "keys": keys})
    assert {row["keys"]: row["queueId"] for row in found(server)} == {key: abs(java_hash(key)) % 4 for key in keys}


def test_rows_without_keys_are_spread_over_the_queues(server: FakeServer) -> None:
    write(server, {"body": [b"%d" % number for number in range(40)]})
    assert Counter(row["queueId"] for row in found(server)) == dict.fromkeys(range(4), 10)


def test_a_queue_id_is_that_of_one_broker_and_others_take_none_of_its_rows(server: FakeServer) -> None:
    with FakeServer("c") as other:
        server.brokers["c"] = {0: other.address}
        other.queues["Orders", 3] = []
        write(server, {"body": [BODY] * 40, "queueId": [*range(4)] * 10})
        assert [len(server.queues["Orders", queue]) for queue in range(4)] == [10, 0, 10, 0]
        assert [len(other.queues["Orders", queue]) for queue in range(4)] == [0, 10, 0, 10]
    with pytest.raises(OptionError, match="row 1: expected a queueId from 0 to 3 of topic Orders, found 4"):
        write(server, {"body": [BODY] * 2, "queueId": [None, 4]})


def repeated_keys(server: FakeServer) -> set[int]:
    return set(Counter(row["uniqKey"] for row in found(server)).values())


def test_a_repeated_task_sends_its_rows_with_the_same_keys(server: FakeServer) -> None:
    batch, schema = frame({"body": [b"a", b"a", b"b"]})
    job = writer(server, schema)
    for _ in range(2):
        job.write(iter([batch]))
    assert len(found(server)) == 6 and repeated_keys(server) == {2}


def test_a_repeated_micro_batch_or_version_has_the_same_keys_and_another_has_others(
    server: FakeServer, task: dict[str, Any]
) -> None:
    columns = {"body": [b"a", b"b"]}
    for run in ("first", "second"):
        task["spark.jobGroup.id"] = run
        batch, schema = frame(columns)
        writer(server, schema, ClusterStreamWriter).write(iter([batch]))
        write(server, columns, txnAppId="app", txnVersion=1)
    assert len(found(server)) == 8 and repeated_keys(server) == {2}
    write(server, columns, txnAppId="app", txnVersion=2)
    assert repeated_keys(server) == {1, 2}


def test_id_columns_give_a_row_the_same_key_in_any_partition(server: FakeServer, task: dict[str, Any]) -> None:
    version = {"txnAppId": "app", "txnVersion": 1, "idColumns": "number"}
    write(server, {"body": [b"a", b"b"], "number": [1, 2]}, **version)
    task["partition"] = 5
    write(server, {"body": [b"c", b"d"], "number": [2, 1]}, **version)
    by_key = Counter((row["uniqKey"], row["body"] in (b"a", b"d")) for row in found(server))
    assert len(by_key) == 2 and set(by_key.values()) == {2}
    with pytest.raises(OptionError, match="needs txnAppId"):
        write(server, {"body": [b"a"], "number": [1]}, idColumns="number")


def test_a_row_that_has_a_unique_key_keeps_it(server: FakeServer) -> None:
    properties = [[("UNIQ_KEY", "own")], [("a", "1"), ("UNIQ_KEY", "other")], [("MY_UNIQ_KEY", "mine")]]
    write(server, {"body": [b"a", b"b", b"c"], "properties": properties})
    keys = {row["body"]: row["uniqKey"] for row in found(server)}
    assert (keys[b"a"], keys[b"b"], len(keys[b"c"])) == ("own", "other", 32)


def test_delayed_rows_are_sent_alone_with_their_property(server: FakeServer) -> None:
    at = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    columns = {
        "body": [b"a", b"b", b"c", b"d"],
        "delayLevel": [3, None, 0, None],
        "deliverAt": [None, at, None, None],
        "properties": [None, [("p", "1")], None, None],
        "queueId": [0, 0, 0, None],
    }
    write(server, columns)
    by_body = {row["body"]: dict(row["properties"]) for row in found(server)}
    assert by_body[b"a"]["DELAY"] == "3" and by_body[b"b"]["TIMER_DELIVER_MS"] == str(int(at.timestamp()) * 1000)
    assert not {"DELAY", "TIMER_DELIVER_MS"} & (by_body[b"c"].keys() | by_body[b"d"].keys())
    codes_sent = Counter(request.code for request in server.requests if request.code > 300)
    assert codes_sent == {codes.SEND_MESSAGE: 2, codes.SEND_BATCH: 2}
    with pytest.raises(OptionError, match="row 0: expected a delayLevel or deliverAt, found both"):
        write(server, {"body": [BODY], "delayLevel": [1], "deliverAt": [at]})
    with pytest.raises(OptionError, match="row 0: expected no property TRAN_MSG"):
        write(server, {"body": [BODY], "delayLevel": [1], "properties": [[("TRAN_MSG", "true")]]})


def test_transactions_are_for_logs_and_times_of_delivery_for_clusters(server: FakeServer) -> None:
    _, schema = frame({"body": [BODY], "transaction": ["prepared"]})
    with pytest.raises(OptionError, match="column transaction cannot be written"):
        writer(server, schema)
    _, schema = frame({"body": [BODY], "deliverAt": [None]})
    with pytest.raises(OptionError, match="column deliverAt cannot be written"):
        row_format(schema, WriteOptions(path="/log", topic="T"))


def test_rows_choose_their_topics(server: FakeServer) -> None:
    server.queues["Other", 0] = []
    batch, schema = frame({"topic": ["Orders", "Other", "Other"], "body": [BODY] * 3})
    options = parse_cluster_write_options({"nameServer": server.address})
    ClusterBatchWriter(options, schema).write(iter([batch]))
    assert [len(found(server, topic)) for topic in ("Orders", "Other")] == [1, 2]


def test_a_missing_topic_is_an_error_of_the_driver_or_is_made(server: FakeServer) -> None:
    with pytest.raises(ClusterError, match="expected topic New to write to, found no route to it: create the topic"):
        write(server, {"body": [BODY]}, topic="New")
    server.queues["TBW102", 7] = []
    assert write(server, {"body": [BODY] * 4}, topic="New", autoCreate="true", queueNums=2) == 4
    assert [len(server.queues["New", queue]) for queue in range(2)] == [2, 2]


def test_bodies_and_batches_have_the_size_that_brokers_take(server: FakeServer) -> None:
    with pytest.raises(
        OptionError, match=r"row 1: expected a body of at most 1000 bytes \(maxMessageSize\), found 1001"
    ):
        write(server, {"body": [b"a", bytes(1001)]}, maxMessageSize=1000)
    server.requests.clear()
    write(server, {"body": [bytes(400)] * 40, "queueId": [0] * 40}, maxMessageSize=1000)
    assert len(server.requests_of(codes.SEND_BATCH)) == 20


@pytest.mark.parametrize("code", [BrokerCode.FLUSH_DISK_TIMEOUT, BrokerCode.SLAVE_NOT_AVAILABLE])
def test_messages_that_are_not_safe_are_an_error_unless_that_is_accepted(server: FakeServer, code: BrokerCode) -> None:
    server.change = lambda _, request: (
        (code, {"msgId": "0" * 32, "queueId": 0, "queueOffset": 5}, b"") if request.code == codes.SEND_BATCH else None
    )
    with pytest.raises(ClusterError, match=f"partition 0: .*found {code.name}.*the broker has the messages"):
        write(server, {"body": [BODY]})
    assert write(server, {"body": [BODY]}, acceptStatus=code.name.lower()) == 1


def test_a_broker_that_goes_away_is_replaced_by_another_and_its_rows_are_there_at_least_once(
    server: FakeServer,
) -> None:
    with FakeServer("c") as other:
        server.brokers["c"] = {0: other.address}
        other.queues["Orders", 3] = []
        other.change = lambda broker, request: broker.drop_connections() or b"" if request.code > 300 else None
        assert write(server, {"body": [b"%d" % number for number in range(40)]}) == 40
        assert Counter(row["body"] for row in found(server)) == Counter(b"%d" % number for number in range(40))


def test_options_are_checked_and_secrets_are_not_shown(server: FakeServer) -> None:
    secret = {"nameServer": server.address, "accessKey": "user", "secretKey": "hidden"}
    assert "hidden" not in repr(parse_cluster_write_options(secret))
    for options, expected in (
        ({}, "option nameServer is missing"),
        ({"accessKey": "a"}, "belong together"),
        ({"readFrom": "slave"}, "unknown option readFrom"),
        ({"path": "/data"}, "a cluster has no path"),
        ({"acceptStatus": "anything"}, "option acceptStatus: expected FLUSH_DISK_TIMEOUT"),
        ({"txnVersion": 1}, "belong together"),
        ({"group": "g"}, "unknown option group"),
    ):
        given = {} if not options else {"nameServer": server.address}
        with pytest.raises(OptionError, match=expected):
            parse_cluster_write_options({**given, **options})
    _, schema = frame({"body": [BODY]})
    with pytest.raises(OptionError, match="is for batch writes"):
        writer(server, schema, ClusterStreamWriter, txnAppId="a", txnVersion=1)
    assert {option.name for option in CLUSTER_WRITE_OPTIONS} >= {"nameServer", "secretKey", "autoCreate"}


QUEUES = {topic: tuple(Queue(topic, "b", number) for number in range(2)) for topic in ("Orders", "Other", "x" * 128)}
PAIRS = st.dictionaries(st.sampled_from(["a", "UNIQ_KEY", "MY_UNIQ_KEY"]), st.text("xé", max_size=3))
ROW = st.fixed_dictionaries({
    "topic": st.sampled_from(sorted(QUEUES)),
    "body": st.binary(max_size=30),
    "queueId": st.sampled_from([0, 1, None]),
    "keys": st.sampled_from(["k1", "k2", None]),
    "properties": PAIRS.map(lambda pairs: [*pairs.items()]) | st.none(),
    "flag": st.integers(0, 9) | st.none(),
    "bornTimestamp": st.sampled_from([1, 2]),
    "delayLevel": st.sampled_from([0, None, None, None, 3]),
})  # fmt: skip


class NoProducer:
    def queues(self, topic: str) -> tuple[Queue, ...]:
        return QUEUES[topic]


def as_sent(encoded: bytes) -> tuple[Queue, bool, BatchMessage]:
    """A message that is encoded for a log, its queue, and whether no other queue takes it."""
    found = message_in(encoded)
    assert found is not None
    properties, _, identity = found.raw_properties.rpartition(b"__DLEDGER_ID\1")
    if b"\2UNIQ_KEY\1" not in b"\2" + properties:
        properties += b"UNIQ_KEY\1" + identity
    is_alone, is_pinned = bool(found.sys_flag & 4), bool(found.sys_flag & 8)
    message = BatchMessage(found.body, properties, found.born_timestamp, found.flag, 0, is_alone)
    return QUEUES[found.topic][found.queue_id], is_pinned, message


def by_key(batches: Iterable[Batch]) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """What is in the batches of each queue, in their order."""
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for batch in batches:
        key = batch.queue, batch.is_pinned, batch.born_timestamp
        found.setdefault(key, []).append((batch.count, bytes(batch.data), batch.is_alone, batch.sys_flag))
    return found


@given(given=st.lists(ROW, min_size=1, max_size=40), max_bytes=st.sampled_from([1, 300, 1 << 20]))
@settings(deadline=None, max_examples=examples(100))
def test_batches_have_the_messages_that_are_made_one_by_one(given: list[dict[str, Any]], max_bytes: int) -> None:
    batch, schema = frame({name: [row[name] for row in given] for name in given[0]})
    rows = row_format(schema, WriteOptions(write_as="message"), NOT_IN_CLUSTERS)
    made = ClusterRows(rows, NoProducer(), 1 << 20)  # type: ignore[arg-type]
    (bodies,) = MessageEncoder(made, made, 2, PartitionIdentities("job", 0), 0, NO_HOST).encode(batch, 0)
    messages = [as_sent(encoded) for encoded in get_engine().unpack_bodies(bodies)]
    found = list(made.batches(bodies, 0, max_bytes))
    assert by_key(found) == by_key(batches_of(messages, max_bytes))


def test_batches_of_several_queues_take_turns(server: FakeServer) -> None:
    write(server, {"body": [bytes(100)] * 40}, maxMessageSize=400)
    queues = [request.fields["e"] for request in server.requests_of(codes.SEND_BATCH)]
    assert queues[:4] == ["0", "1", "2", "3"] == sorted(queues[4:8])


@pytest.mark.parametrize(
    "columns",
    [{"bornTimestamp": [5, 3] * 4}, {"bornTimestamp": [5] * 8, "queueId": [3, None] * 4}],
    ids=["bornTimestamp", "queueId"],
)
def test_rows_of_a_queue_keep_their_order_whatever_their_batches_have(
    server: FakeServer, columns: dict[str, list[Any]]
) -> None:
    bodies = [b"%d" % number for number in range(8)]
    assert write(server, {"body": bodies, "keys": ["k"] * 8, **columns}) == 8
    assert [row["body"] for row in found(server)] == bodies


@pytest.mark.parametrize(("topic", "value"), [("Orders", "true"), ("Orders", "True"), ("T" * 130, "true")])
def test_a_row_that_a_broker_would_take_for_a_prepared_message_is_an_error(
    server: FakeServer, topic: str, value: str
) -> None:
    server.queues[topic, 0] = []
    properties = [[("a", "b")], [("TRAN_MSG", value)]]
    with pytest.raises(OptionError, match="row 1: expected no property TRAN_MSG of true, found one: remove it"):
        write(server, {"body": [b"a", b"b"], "properties": properties}, topic=topic)
    assert write(server, {"body": [b"a"], "properties": [[("TRAN_MSG", "false"), ("x", "TRAN_MSG")]]}, topic=topic) == 1
