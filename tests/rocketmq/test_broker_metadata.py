"""A broker's metadata: topics, their files, and copies from a leader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_dledger.common.fastjson import parse_fastjson
from pyspark_dledger.log.io.broker_config import read_config
from pyspark_dledger.rocketmq.broker.config_files import BrokerMetadata, fastjson_text


def test_topics_created_during_a_write_are_written_together(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    metadata = BrokerMetadata(tmp_path, waiting.append)
    metadata.add_topics({"A": 1})
    metadata.add_topics({"B": 2})
    sent = metadata.files()["topics.json"]
    assert len(waiting) == 1
    waiting.pop()()
    assert (tmp_path / "config" / "topics.json").read_bytes() == sent
    metadata.add_topics({"C": 3})
    waiting.pop()()
    counts = {name: BrokerMetadata(tmp_path).queue_count(name) for name in "ABC"}
    assert counts == {"A": 1, "B": 2, "C": 3}
    assert sent != metadata.files()["topics.json"]


def test_only_intact_files_with_a_brokers_names_are_taken_over(tmp_path: Path) -> None:
    metadata = BrokerMetadata(tmp_path)
    files = {"../escape.json": b"{}", "broker.json": b"{}", "delayOffset.json": b'{"offs', "topics.json": b"[]"}
    metadata.take_over(files)
    assert not list(tmp_path.rglob("*.json"))
    metadata.take_over({"delayOffset.json": b'{"offsetTable":{}}', "subscriptionGroup.json": b"{}"})
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["delayOffset.json", "subscriptionGroup.json"]
    assert set(metadata.files()) == {"topics.json", "delayOffset.json", "subscriptionGroup.json"}


def test_attributes_of_topics_are_kept_and_the_backup_is_read(tmp_path: Path) -> None:
    """An order topic with attributes of its own gets more queues, and keeps the attributes."""
    folder = tmp_path / "config"
    folder.mkdir()
    text = '{"dataVersion":{"counter":7,"timestamp":1},"topicConfigTable":{"A":{"attributes":{"+x":"y"},"order":true,'
    text += '"perm":4,"readQueueNums":3,"topicName":"A","writeQueueNums":2}},"more":{0:1}}'
    (folder / "topics.json.bak").write_text(text)
    (folder / "topics.json").write_text("{")
    metadata = BrokerMetadata(tmp_path)
    assert (metadata.queue_count("A"), metadata.queue_count("B")) == (3, None)
    assert metadata.queue_count("SCHEDULE_TOPIC_XXXX") == 18
    metadata.add_topics({"A": 5})
    found = parse_fastjson((folder / "topics.json").read_bytes())
    topic = found["topicConfigTable"]["A"]
    assert topic == {
        "attributes": {"+x": "y"},
        "order": True,
        "perm": 4,
        "readQueueNums": 5,
        "topicName": "A",
        "writeQueueNums": 5,
    }
    assert (found["dataVersion"]["counter"], found["more"]) == (8, {"0": 1})
    assert read_config(tmp_path).topic_queues == {"A": 5}


def test_config_is_written_like_fastjson() -> None:
    """The texts are those of fastjson 1.2.83 with PrettyFormat."""
    value = {"offsetTable": {"A@G": {}, "T@G": {"0": 12, "1": 2}}, "l": [1, "x", {"k": True}], "e": []}
    text = '{\n\t"offsetTable":{\n\t\t"A@G":{},\n\t\t"T@G":{0:12,1:2\n\t\t}\n\t},\n\t"l":[\n\t\t1,\n\t\t"x",\n\t\t{'
    text += '\n\t\t\t"k":true\n\t\t}\n\t],\n\t"e":[]\n}'
    assert fastjson_text(value) == text
    assert parse_fastjson(text.encode()) == value
