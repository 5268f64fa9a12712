"""The table ``consumers``: offsets of consumer groups from fastjson files, compared with the queues."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.common.fastjson import parse_fastjson
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.broker_config import read_config
from pyspark_dledger.rocketmq.tables import read_table
from tests.support.generate import Store, mq_message, write_commitlog, write_dledger
from tests.support.queues import units_of, write_units

TOPICS = """{
	"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1795230467000},
	"topicConfigTable":{
		"Orders":{"order":false,"perm":6,"readQueueNums":3,"topicFilterType":"SINGLE_TAG","topicName":"Orders",
			"topicSysFlag":0,"writeQueueNums":3}
	}
}"""
GROUPS = """{
	"dataVersion":{"counter":2,"timestamp":1795230467000},
	"subscriptionGroupTable":{
		"GroupA":{"brokerId":0,"consumeEnable":true,"groupName":"GroupA","retryMaxTimes":16},
		"Idle":{"groupName":"Idle"}
	}
}"""
OFFSETS = """{
	"offsetTable":{
		"Orders@GroupA":{0:12,1:2
		},
		"Gone@GroupB":{0:5
		}
	}
}"""
DELAYS = """{
	"offsetTable":{4:3
	}
}"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two queues of Orders with 20 messages each, and a delay queue."""
    payloads = []
    for number in range(20):
        payloads += [mq_message("Orders", b"x" * 200, queue_id=queue, queue_offset=number) for queue in (0, 1)]
    payloads += [mq_message("SCHEDULE_TOPIC_XXXX", b"d", queue_id=3, queue_offset=number) for number in range(5)]
    store = write_dledger(tmp_path, payloads, file_size=4096)
    write_units(tmp_path, units_of(store.rows))
    write_config(tmp_path, topics=TOPICS, subscriptionGroup=GROUPS, consumerOffset=OFFSETS, delayOffset=DELAYS)
    return store


def write_config(root: Path, **files: str) -> None:
    (root / "config").mkdir(exist_ok=True)
    for name, text in files.items():
        (root / "config" / f"{name}.json").write_text(text)


def rows_of(path: Path | str, **options: Any) -> list[dict[str, Any]]:
    log = open_log(path, **options)
    return [row for batch in read_table(log, "consumers") for row in batch.to_pylist()]


def test_lag_and_messages_that_expired_unread(store: Store) -> None:
    Path(store.segments[0].path).unlink()
    kept = [row for row in store.rows if row["pos"] >= store.segments[1].base]
    first, second = (min(row["queueOffset"] for row in kept if row["queueId"] == queue) for queue in (0, 1))
    assert (first, second) == (6, 5)
    nothing = dict.fromkeys(("topic", "queueId", "consumerOffset", "minOffset", "maxOffset", "lag", "lost"))
    orders = {"consumerGroup": "GroupA", "topic": "Orders", "maxOffset": 20}
    assert rows_of(store.path) == [
        {**orders, "queueId": 0, "consumerOffset": 12, "minOffset": 6, "lag": 8, "lost": 0},
        {**orders, "queueId": 1, "consumerOffset": 2, "minOffset": 5, "lag": 18, "lost": 3},
        {"consumerGroup": "GroupA", **nothing, "topic": "Orders", "queueId": 2},
        {"consumerGroup": "GroupB", **nothing, "topic": "Gone", "queueId": 0, "consumerOffset": 5},
        {"consumerGroup": "Idle", **nothing},
        {
            "consumerGroup": "SCHEDULE_CONSUMER",
            "topic": "SCHEDULE_TOPIC_XXXX",
            "queueId": 3,
            "consumerOffset": 3,
            "minOffset": 0,
            "maxOffset": 5,
            "lag": 2,
            "lost": 0,
        },
    ]


def test_a_queue_that_lost_its_end_has_a_negative_lag(store: Store) -> None:
    write_config(store.path, consumerOffset='{"offsetTable":{"Orders@GroupA":{0:25}}}')
    (row,) = rows_of(store.path, topic="Orders", queueId=0)
    assert (row["maxOffset"], row["lag"], row["lost"]) == (20, -5, 0)


def test_a_group_without_an_offset_in_a_queue_has_no_lag(store: Store) -> None:
    write_config(store.path, consumerOffset='{"offsetTable":{"Orders@GroupA":{0:0}}}')
    (row,) = rows_of(store.path, topic="Orders", queueId=1)
    assert (row["consumerOffset"], row["maxOffset"], row["lag"], row["lost"]) == (None, 20, None, None)


def test_a_queue_of_expired_messages_begins_at_its_end(tmp_path: Path) -> None:
    payloads = [mq_message("Early", b"x" * 500, queue_offset=n) for n in range(3)]
    payloads += [mq_message("Late", b"x" * 900, queue_offset=n) for n in range(9)]
    store = write_dledger(tmp_path, payloads)
    write_units(tmp_path, units_of(store.rows))
    Path(store.segments[0].path).unlink()
    write_config(tmp_path, consumerOffset='{"offsetTable":{"Early@G":{0:1}}}')
    (row,) = rows_of(tmp_path)
    assert (row["minOffset"], row["maxOffset"], row["lag"], row["lost"]) == (3, 3, 2, 2)


def test_the_old_commitlog_counts_if_the_nodes_folder_is_opened(tmp_path: Path) -> None:
    old = write_commitlog(tmp_path, [mq_message("Old", queue_offset=n) for n in range(9)])
    store = write_dledger(tmp_path, [mq_message("Old", queue_offset=9)], base=old.segments[-1].end)
    write_units(tmp_path, units_of(old.rows + store.rows))
    write_config(tmp_path, consumerOffset='{"offsetTable":{"Old@G":{0:4}}}')
    for path in (tmp_path, tmp_path / "dledger-n0"):
        (row,) = rows_of(path)
        assert (row["minOffset"], row["maxOffset"], row["lag"], row["lost"]) == (0, 10, 6, 0)


@pytest.mark.parametrize("text", ["", "\0\0\0\0", '{"offsetTable":{"Orders@GroupA":{0:1', "[1]"])
def test_a_damaged_file_is_read_from_its_backup(store: Store, text: str) -> None:
    offsets = store.path / "config" / "consumerOffset.json"
    offsets.with_name("consumerOffset.json.bak").write_text('{"offsetTable":{"Orders@GroupA":{0:7}}}')
    offsets.write_text(text)
    (row,) = rows_of(store.path, topic="Orders", queueId=0)
    assert row["consumerOffset"] == 7


def test_a_missing_file_is_read_from_its_backup(store: Store) -> None:
    offsets = store.path / "config" / "consumerOffset.json"
    offsets.rename(offsets.with_name("consumerOffset.json.bak"))
    assert len(rows_of(store.path, topic="Orders")) == 3


def test_damage_without_a_backup_is_an_error(store: Store) -> None:
    (store.path / "config" / "consumerOffset.json").write_text('{"offsetTable"')
    with pytest.raises(
        StoreError, match=r"consumerOffset.json: expected the JSON of a broker's config, found .*: restore"
    ):
        rows_of(store.path)


def test_a_store_without_config(case_folder: Callable[[str], Path]) -> None:
    with pytest.raises(StoreError, match=r"config: expected topics.json, .* found none of them"):
        rows_of(case_folder("mq-498-single"))


def test_a_config_without_any_group(case_folder: Callable[[str], Path]) -> None:
    assert rows_of(case_folder("mq-498-upgrade-killed")) == []


# What fastjson writes


def test_numbers_as_keys() -> None:
    text = r'{"a@b":{0:12,17 : -1},"{3:4}":"5:6 \" {7:8","n":{"9":1}}'
    assert parse_fastjson(text.encode()) == {"a@b": {"0": 12, "17": -1}, "{3:4}": '5:6 " {7:8', "n": {"9": 1}}


@pytest.mark.parametrize(
    "text", ["{'a':1}", "nonsense", "[" * 100_000, '{"a":' * 100_000, "\xff\xfe", '{"a":1}}', "null", "12"]
)
def test_other_texts_than_objects_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_fastjson(text.encode())


@given(st.binary(max_size=60))
def test_random_bytes_give_an_object_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(parse_fastjson(data), dict)


@pytest.mark.parametrize(
    ("table", "offsets"),
    [
        ('{"T@G":{0:1,"x":2,3:"4",5:null,6:true,7:99999999999999999999,8:{}}}', {("T", "G"): {0: 1, 3: 4}}),
        ('{"no group":{0:1},"T@":{0:1},"T@G":[1,2],"U@G":null}', {("T", ""): {0: 1}}),
        ("[]", {}),
        ("null", {}),
    ],
)
def test_invalid_offsets_are_skipped(tmp_path: Path, table: str, offsets: dict[Any, Any]) -> None:
    write_config(tmp_path, consumerOffset=f'{{"offsetTable":{table}}}')
    assert read_config(tmp_path).offsets == offsets


def test_a_topic_of_very_many_queues_is_bounded(tmp_path: Path) -> None:
    write_config(tmp_path, topics='{"topicConfigTable":{"T":{"readQueueNums":2147483647},"U":{"readQueueNums":-5}}}')
    assert read_config(tmp_path).topic_queues == {"T": 65536, "U": -5}
