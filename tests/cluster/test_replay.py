"""Replays of logs to a cluster: which messages, in which form, and none lost or sent twice although runs are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.cluster.producer import Batch, Producer, Sent
from pyspark_dledger.cluster.replay import journal as journal_module
from pyspark_dledger.cluster.replay import replay_job
from pyspark_dledger.errors import ClusterError, OptionError, StoreError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log.io.salvage_fillers import DECIDED_FILE
from pyspark_dledger.raft.wire.remoting import Command
from tests.support import golden
from tests.support.cluster_reads import batch_reader, rows
from tests.support.fake_cluster import Answer, FakeServer
from tests.support.generate import Payload, mq_message, raw, write_commitlog, write_dledger
from tests.support.long_runs import examples

Row = dict[str, Any]
KILLED = """
import os, signal, sys
import pyspark_dledger as dl
from pyspark_dledger.cluster.replay import journal
def dying(end):
    def called(*args):
        os.kill(os.getpid(), signal.SIGKILL)
    return called
journal.Journal.end = dying(journal.Journal.end)
dl.replay(*sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def server_with_topics(server: FakeServer) -> None:
    server.queues["Orders", 3] = []
    server.queues["Payments", 0] = []


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    with mock.patch.object(replay_job, "_SETTINGS", replace(replay_job._SETTINGS, seconds=0.2)):
        yield


def message(number: int, topic: str = "Orders", queue_id: int = 0, **fields: Any) -> Payload:
    properties = [("KEYS", f"k{number}"), ("UNIQ_KEY", f"u{number}"), *fields.pop("properties", ())]
    return mq_message(
        *(topic, b"body %d" % number),
        properties=properties,
        queue_id=queue_id,
        queue_offset=number,
        flag=number,
        **fields,
    )


def lines_of(folder: Path, pattern: str) -> list[Row]:
    return [json.loads(line) for file in sorted(folder.glob(pattern)) for line in file.read_text().splitlines()]


def stored(server: FakeServer, topic: str = "Orders") -> list[Row]:
    return rows(batch_reader(server.address, topic=topic))


def bodies(server: FakeServer, topic: str = "Orders") -> list[str]:
    return sorted(row["body"].decode() for row in stored(server, topic))


# Which messages, and in which form


@pytest.mark.parametrize("is_same", [False, True])
def test_messages_of_a_golden_arrive_in_their_order_with_keys_tags_properties_and_body(
    is_same: bool, server: FakeServer, tmp_path: Path
) -> None:
    source = golden.unpack("mq-53-single", tmp_path)
    log = dl.open_log(source, topic="OrderTopic")
    expected = [row for batch in log.scan() for row in batch.to_pylist() if row["transaction"] in ("none", "commit")]
    queues = max(row["queueId"] for row in expected) + 1 if is_same else 2
    server.queues["OrderTopic", queues - 1] = []
    report = dl.replay(source, server.address, tmp_path / "j", topic="OrderTopic", sameQueues=is_same)
    assert (report.messages, report.unknown, report.first_left_out) == (len(expected), 0, ())
    found = stored(server, "OrderTopic")
    for queue in range(queues):
        here = [row for row in found if row["queueId"] == queue]
        there = [row for row in expected if row["queueId"] % queues == queue]
        assert [row["body"] for row in here] == [row["body"] for row in there]
        for new, old in zip(here, there, strict=True):
            assert {name: new[name] for name in ("keys", "tags", "flag")} == {
                name: old[name] for name in ("keys", "tags", "flag")
            }
            assert old["uniqKey"] in (None, new["uniqKey"])
            properties = dict(new["properties"])
            assert properties.pop("BORN_TIMESTAMP") == str(int(old["bornTimestamp"].timestamp() * 1000))
            assert properties.pop("UNIQ_KEY") == new["uniqKey"]
            before = dict(old["properties"])
            before.pop("UNIQ_KEY", None)
            before.pop("__CRC32#", None)
            for name in ["TRAN_MSG"] + ["WAIT"] * (before.get("WAIT") == "false"):
                if name in before:
                    before[f"REPLAYED_{name}"] = before.pop(name)
            assert properties == before
    places = lines_of(tmp_path / "j", "offsets-*.jsonl")
    assert [(row["pos"], row["queueOffset"], row["uniqKey"]) for row in sorted(places, key=lambda row: row["pos"])] == [
        (row["pos"], row["queueOffset"], next(r["uniqKey"] for r in places if r["pos"] == row["pos"]))
        for row in expected
    ]
    at = {(row["queueId"], row["queueOffset"]): row["uniqKey"] for row in found}
    assert all(at[row["newQueueId"], row["newQueueOffset"]] == row["uniqKey"] for row in places)


def test_what_a_broker_would_delay_or_hide_has_other_names_and_what_brokers_keep_for_themselves_is_left_out(
    server: FakeServer, tmp_path: Path
) -> None:
    hiding = [("DELAY", "3"), ("TIMER_DELIVER_MS", "9"), ("TRAN_MSG", "true"), ("REAL_TOPIC", "X"), ("WAIT", "false")]
    payloads = [
        message(0, properties=hiding, transaction="commit"),
        message(1, transaction="prepared"),
        message(2, transaction="rollback"),
        *(message(3, topic) for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_REVIVE_LOG_c")),
        message(4, "%RETRY%g", properties=[("RETRY_TOPIC", "Orders")]),
    ]
    write_commitlog(tmp_path / "s", payloads)
    report = dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    assert sorted(report.left_out.values()) == [1, 2, 3]
    (found,) = stored(server)
    properties = dict(found["properties"])
    assert {name: properties.pop(f"REPLAYED_{name}") for name, _ in hiding} == dict(hiding)
    assert properties.keys() == {"KEYS", "UNIQ_KEY", "BORN_TIMESTAMP"}


def test_dead_letters_that_are_named_go_to_their_original_topic(server: FakeServer, tmp_path: Path) -> None:
    dead = message(0, "%DLQ%g", properties=[("RETRY_TOPIC", "Payments")])
    write_commitlog(tmp_path / "s", [dead, message(1, "%DLQ%g"), message(2)])
    report = dl.replay(tmp_path / "s", server.address, tmp_path / "j", topic="%DLQ%g")
    assert bodies(server, "Payments") == ["body 0"]
    assert report.messages == 1
    assert [place.split(": ")[1] for place in report.first_left_out] == ["expected property RETRY_TOPIC, found none"]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"queueId": 1}, {1, 3, 5}),
        ({"keys": "k2,u5,nothing"}, {2, 5}),
        ({"startingOffsets": 3, "endingOffsets": 5}, {3, 4}),
    ],
)
def test_a_range_queues_and_keys_choose_messages(
    options: Row, numbers: set[int], server: FakeServer, tmp_path: Path
) -> None:
    write_dledger(tmp_path / "s", [message(number, queue_id=number % 2) for number in range(6)])
    dl.replay(tmp_path / "s", server.address, tmp_path / "j", **options)
    assert bodies(server) == [f"body {number}" for number in sorted(numbers)]


def test_only_messages_where_a_list_says_that_a_salvage_lost_them(server: FakeServer, tmp_path: Path) -> None:
    store = write_dledger(tmp_path / "s", [message(number) for number in range(6)])
    chosen = [store.rows[1], store.rows[4]]
    lost = tmp_path / "lost.jsonl"
    lost.write_text("".join(json_line({"pos": row["pos"], "size": row["size"]}) + "\n" for row in chosen))
    dl.replay(tmp_path / "s", server.address, tmp_path / "j", lostList=lost)
    assert bodies(server) == ["body 1", "body 4"]
    lost.write_text("[]")
    with pytest.raises(OptionError, match="option lostList: expected lines of JSON with pos and size"):
        dl.replay(tmp_path / "s", server.address, dry_run=True, lostList=lost)


def test_damaged_and_unproven_messages_and_other_entries_are_left_out_and_named(
    server: FakeServer, tmp_path: Path
) -> None:
    store = write_dledger(tmp_path / "s", [*(message(number) for number in range(4)), raw(b"no message")])
    file = Path(store.segments[0].path)
    file.write_bytes(file.read_bytes().replace(b"body 1", b"bodY 1"))
    doubt = {"source": "dledger", "index": 2, "pos": store.rows[2]["pos"], "size": 1, "why": "tie"}
    (tmp_path / "s" / DECIDED_FILE).write_text(json_line(doubt) + "\n")
    report = dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    assert bodies(server) == ["body 0", "body 3"]
    assert sum(report.left_out.values()) == len(report.first_left_out) == 3
    assert [place.split(":")[0].split()[0] for place in report.first_left_out] == [
        f"pos={store.rows[number]['pos']}" for number in (1, 2, 4)
    ]


def test_new_uniq_keys_are_the_same_when_a_replay_continues(server: FakeServer, tmp_path: Path) -> None:
    write_commitlog(tmp_path / "s", [message(0), mq_message("Orders", b"without")])
    dl.replay(tmp_path / "s", server.address, tmp_path / "a", keepUniqKey=False)
    dl.replay(tmp_path / "s", server.address, tmp_path / "b")
    keys = [row["uniqKey"] for row in stored(server)]
    assert len(set(keys)) == 4
    assert "u0" in keys


# The cluster


def test_a_dry_run_counts_names_what_the_cluster_lacks_and_sends_nothing(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payloads = [message(0), message(1, queue_id=5), message(2, "Missing"), message(3, "SCHEDULE_TOPIC_XXXX")]
    write_commitlog(tmp_path / "s", payloads)
    assert main(["replay", str(tmp_path / "s"), "--to", server.address, "--dry-run", "--same-queues"]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        f"would be sent to {server.address}: 3 messages\n  Missing/0: 1\n  Orders/0: 1\n  Orders/5: 1\n"
    )
    assert "messages of system topics: 1" in out
    assert "has no topic Missing that takes messages" in out
    assert "--same-queues" not in out
    assert "topic Orders has 4 queues, and messages are of queue 5, too" in out
    assert not server.requests_of(codes.SEND_BATCH) + server.requests_of(codes.SEND_MESSAGE)
    with pytest.raises(ClusterError, match="has no topic Missing that takes messages"):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_same_queues_at_several_brokers_need_the_name_of_one(server: FakeServer, tmp_path: Path) -> None:
    write_commitlog(tmp_path / "s", [message(0, queue_id=2)])
    with FakeServer("c") as other:
        other.queues["Orders", 3] = []
        server.brokers["c"] = {0: other.address}
        with pytest.raises(ClusterError, match="topic Orders is at brokers b, c: name one with option broker"):
            dl.replay(tmp_path / "s", server.address, tmp_path / "j", sameQueues=True)
        dl.replay(tmp_path / "s", server.address, tmp_path / "j", sameQueues=True, broker="c")
        assert len(other.queues["Orders", 2]) == 1


def test_a_journal_belongs_to_one_source_one_cluster_and_the_same_options(server: FakeServer, tmp_path: Path) -> None:
    for name in ("s", "t"):
        write_commitlog(tmp_path / name, [message(0)])
    server.change = refusing(BrokerCode.NO_PERMISSION)
    with pytest.raises(ClusterError, match=r"NO_PERMISSION .*the same replay continues$"):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    with pytest.raises(StoreError, match=r"the interrupted replay has the source .*, this one .*: use the same"):
        dl.replay(tmp_path / "t", server.address, tmp_path / "j")
    with pytest.raises(StoreError, match="the interrupted replay has the nameServer"):
        dl.replay(tmp_path / "s", f"{server.address};127.0.0.1:1", tmp_path / "j")
    with pytest.raises(StoreError, match="the interrupted replay has the options topic None, this one topic"):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j", topic="Orders")
    server.change = None
    assert dl.replay(tmp_path / "s", server.address, tmp_path / "j", messagesPerSecond=5).messages == 1
    with pytest.raises(StoreError, match="found a finished replay"):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    assert bodies(server) == ["body 0"]


def test_options_that_have_no_effect_are_rejected(server: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="option mode has no effect on a replay"):
        dl.replay(tmp_path, server.address, tmp_path / "j", mode="FAILFAST")
    with pytest.raises(OptionError, match="unknown option sameQueue"):
        dl.replay(tmp_path, server.address, tmp_path / "j", sameQueue=True)
    with pytest.raises(OptionError, match="a dry run writes no journal"):
        dl.replay(tmp_path, server.address, tmp_path / "j", dry_run=True)
    with pytest.raises(OptionError, match="expected a folder for the journal"):
        dl.replay(tmp_path, server.address)


def test_the_rate_has_a_limit(server: FakeServer, tmp_path: Path) -> None:
    write_commitlog(tmp_path / "s", [message(number) for number in range(30)])
    began = time.monotonic()
    dl.replay(tmp_path / "s", server.address, tmp_path / "j", messagesPerSecond=20)
    assert time.monotonic() - began > 1.4


# What became of each message


def refusing(code: BrokerCode) -> Callable[[FakeServer, Command], Answer | None]:
    def change(_: FakeServer, request: Command) -> Answer | None:
        return (code, {}, b"") if request.code in (codes.SEND_BATCH, codes.SEND_MESSAGE) else None

    return change


def test_messages_that_are_sent_again_after_a_lost_response_are_counted(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_commitlog(tmp_path / "s", [message(0)])
    lost = iter([b""])

    def change(asked: FakeServer, request: Command) -> bytes | None:
        if request.code != codes.SEND_BATCH or next(lost, None) is None:
            return None
        asked.answer(request, b"")
        asked.drop_connections()
        return b""

    server.change = change
    monkeypatch.setattr(replay_job, "_SETTINGS", replay_job.SendSettings())
    report = dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    assert (report.messages, report.repeated, report.unknown) == (1, 1, 0)
    assert [row["mayRepeat"] for row in lines_of(tmp_path / "j", "offsets-*.jsonl")] == [True]


def test_messages_that_a_broker_has_not_flushed_are_counted(server: FakeServer, tmp_path: Path) -> None:
    write_commitlog(tmp_path / "s", [message(0)])

    def change(_: FakeServer, request: Command) -> Answer | None:
        fields = {"msgId": "0" * 32, "queueOffset": 7}
        return (BrokerCode.FLUSH_DISK_TIMEOUT, fields, b"") if request.code == codes.SEND_BATCH else None

    server.change = change
    report = dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    assert (report.messages, report.not_flushed) == (1, {"FLUSH_DISK_TIMEOUT": 1})


def test_a_killed_process_leaves_unknown_messages_which_only_an_option_sends_again(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_commitlog(tmp_path / "s", [message(number, queue_id=number % 2) for number in range(6)])
    arguments = [str(tmp_path / "s"), server.address, str(tmp_path / "j")]
    assert subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False).returncode == -9
    command = ["replay", arguments[0], "--to", arguments[1], "--journal", arguments[2]]
    assert main(command) == 1
    assert "unknown: 6 messages were sent without an acknowledgement, and not again" in capsys.readouterr().out
    assert [row["uniqKey"] for row in lines_of(tmp_path / "j", "unknown.jsonl")] == ["u0", "u2", "u4", "u1", "u3", "u5"]
    sent = len(stored(server))
    assert main(command) == 1
    assert len(stored(server)) == sent
    assert main([*command, "--send-unknown"]) == 0
    assert Counter(bodies(server)).keys() == {f"body {number}" for number in range(6)}
    assert len(stored(server)) == sent + 6
    assert not (tmp_path / "j" / "unknown.jsonl").exists()


def test_messages_that_a_broker_does_not_take_are_listed_and_stop_no_others(
    server: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_commitlog(tmp_path / "s", [message(number) for number in range(9)])

    def change(_: FakeServer, request: Command) -> Answer | None:
        is_wrong = any(f"KEYS\1k{number}\2" in request.fields.get("i", "") for number in (2, 5, 8))
        rejects = request.code == codes.SEND_BATCH or (request.code == codes.SEND_MESSAGE and is_wrong)
        return (BrokerCode.MESSAGE_ILLEGAL, {}, b"") if rejects else None

    server.change = change
    command = list(map(str, ["replay", tmp_path / "s", "--to", server.address, "--journal", tmp_path / "j"]))
    assert main(command) == 1
    assert "rejected: 3 messages that a broker does not take" in capsys.readouterr().out
    assert [row["uniqKey"] for row in lines_of(tmp_path / "j", "rejected.jsonl")] == ["u2", "u5", "u8"]
    assert bodies(server) == [f"body {number}" for number in (0, 1, 3, 4, 6, 7)]


def test_a_replay_continues_only_with_the_same_list(server: FakeServer, tmp_path: Path) -> None:
    store = write_dledger(tmp_path / "s", [message(number) for number in range(6)])
    lost = tmp_path / "lost.jsonl"
    lost.write_text(json_line({"pos": store.rows[1]["pos"], "size": store.rows[1]["size"]}) + "\n")
    server.change = refusing(BrokerCode.NO_PERMISSION)
    with pytest.raises(ClusterError):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j", lostList=lost)
    server.change = None
    listed = lost.read_text()
    lost.write_text(json_line({"pos": store.rows[2]["pos"], "size": store.rows[2]["size"]}) + "\n")
    with pytest.raises(StoreError, match="name another folder"):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j", lostList=lost)
    lost.write_text(listed)
    assert dl.replay(tmp_path / "s", server.address, tmp_path / "j", lostList=lost).messages == 1


def test_a_damaged_journal_is_an_error_and_a_torn_last_line_is_none(server: FakeServer, tmp_path: Path) -> None:
    write_commitlog(tmp_path / "s", [message(0), message(1, queue_id=1)])
    server.change = refusing(BrokerCode.NO_PERMISSION)
    with pytest.raises(ClusterError):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    server.change = None
    (file,) = (tmp_path / "j").rglob("journal-*.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"origins": [[0', b'"origins": [["'))
    with pytest.raises(StoreError, match=r"journal-00000\.jsonl: line 1 is damaged: nothing is sent"):
        dl.replay(tmp_path / "s", server.address, tmp_path / "j")
    assert stored(server) == []
    file.write_bytes(whole + b'{"batch": 9')
    assert dl.replay(tmp_path / "s", server.address, tmp_path / "j").messages == 2


class Killed(BaseException):
    """The process ends here: what it wrote so far is there."""


class Cuts:
    """Ends the process at its n-th write to a journal, of which a part is written, or response that it reads."""

    def __init__(self, event: int, part: float) -> None:
        self._left, self._part = event, part
        self._write, self._send = journal_module.write_all, Producer.send

    def _is_now(self) -> bool:
        self._left -= 1
        return self._left < 0

    def write(self, descriptor: int, data: bytes) -> None:
        is_now = self._is_now()
        self._write(descriptor, data[: int(len(data) * self._part)] if is_now else data)
        if is_now:
            raise Killed

    def send(self, producer: Producer, batches: Iterator[Batch]) -> Iterator[Sent]:
        for sent in self._send(producer, batches):
            if self._is_now():
                raise Killed
            yield sent


def run_until(cut: tuple[int, float], *arguments: object, **options: Any) -> Any:
    cuts = Cuts(*cut)
    with (
        mock.patch.object(journal_module, "write_all", cuts.write),
        mock.patch.object(Producer, "send", lambda producer, batches: cuts.send(producer, batches)),
        mock.patch.object(replay_job, "MAX_BATCH_BYTES", 400),
        mock.patch.object(replay_job, "_ROUND_BYTES", 1000),
    ):
        try:
            return dl.replay(*arguments, maxPartitionBytes=4096, **options)  # type: ignore[arg-type]
        except Killed:
            return None


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(0, 1)), max_size=6), st.integers(0, 2**32))
@settings(max_examples=examples(10), deadline=None)
def test_kills_at_any_point_neither_lose_messages_nor_repeat_acknowledged_ones(
    cuts: Sequence[tuple[int, float]], seed: int
) -> None:
    queues = [(seed >> number) % 3 for number in range(60)]
    with FakeServer() as server, TemporaryDirectory() as folder:
        server.queues["Orders", 1] = []
        source, target = Path(folder, "s"), Path(folder, "j")
        write_commitlog(source, [message(number, queue_id=queue) for number, queue in enumerate(queues)])
        arguments = source, server.address, target
        for cut in cuts:
            if (report := run_until(cut, *arguments)) is not None and not report.unknown:
                return
        report = run_until((10**6, 1), *arguments)
        places, unknown = lines_of(target, "offsets-*.jsonl"), lines_of(target, "unknown.jsonl")
        keys = [row["uniqKey"] for row in (*places, *unknown)]
        assert sorted(keys) == sorted(f"u{number}" for number in range(60))
        assert (report.messages, report.unknown) == (len(places), len(unknown))
        found = stored(server)
        at = {(row["queueId"], row["queueOffset"]): row["uniqKey"] for row in found}
        assert all(at[row["newQueueId"], row["newQueueOffset"]] == row["uniqKey"] for row in places)
        assert max(Counter(row["uniqKey"] for row in found).values()) == 1
        for queue in (0, 1):
            order = [int(row["uniqKey"][1:]) for row in found if row["queueId"] == queue]
            by_source = [[number for number in order if queues[number] == each] for each in range(3)]
            assert by_source == [sorted(each) for each in by_source]
        if unknown:
            last = run_until((10**6, 1), *arguments, sendUnknown=True)
            assert (last.messages, last.unknown) == (60, 0)
            counts = Counter(row["uniqKey"] for row in stored(server))
            assert {key for key, count in counts.items() if count > 1} <= {row["uniqKey"] for row in unknown}
            assert len(counts) == 60
