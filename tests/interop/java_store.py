"""Runs the message store of a RocketMQ broker in DLedger mode in a process that can be killed."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.java_group import JavaProcess
from tests.interop.java_stores import JAVA
from tests.support.groups import eventually, free_ports

COMPILED_WITH = "5.3.3"
MAIN_VERSIONS = ("4.9.8", "5.3.3")
# Golden files are old: a broker would delete them at four o'clock or if the disk is full.
_KEPT: dict[str, object] = {"fileReservedTime": 1_000_000, "cleanFileForciblyEnable": False}


class Received(NamedTuple):
    """A message as a consumer of the store receives it."""

    queue: tuple[str, int]
    """Topic and id of the queue that the message was read from."""
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    flag: int
    sys_flag: int
    born_timestamp: int
    store_timestamp: int
    body: bytes
    properties: dict[str, str]


class Dump(NamedTuple):
    """Every message of every queue, and the physical offsets that lookups by offset or by key do not find."""

    messages: list[Received]
    missing_by_offset: list[int]
    missing_by_key: list[int]


class JavaStore(JavaProcess):
    """RocketMQ's DefaultMessageStore on `root`, the only member of its group."""

    def __init__(
        self,
        version: str,
        root: Path,
        settings: dict[str, object],
        group: str = "g",
        node: str = "n0",
        java: Iterable[str] = JAVA,
    ) -> None:
        """Starts the store with `settings` of MessageStoreConfig by the command `java`. Skips the test without Java."""
        self._dump = root.parent / f"{root.name}.dump"
        fields = {
            "storePathRootDir": root,
            "storePathCommitLog": root / "commitlog",
            "dLegerGroup": group,
            "dLegerSelfId": node,
            "dLegerPeers": f"{node}-127.0.0.1:{free_ports(1)[0]}",
            **_KEPT,
            **settings,
        }
        words = (f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items())
        super().__init__("RunStore", version, *words, compiled_with=COMPILED_WITH, java=java)

    def state(self) -> dict[str, Any]:
        return self.ask("state")

    def wait_master(self) -> dict[str, Any]:
        """Waits until it is the master and has committed and dispatched its log. Returns its state."""

        def leads() -> dict[str, Any] | None:
            state = self.state()
            is_done = state["role"] == "LEADER" and state["committed"] == state["end"] and state["behind"] <= 0
            return state if is_done else None

        state = eventually(leads, 30)
        assert state is not None
        assert self.ask("lead") == {}
        return state

    def settle(self) -> dict[str, Any]:
        """Waits until it has dispatched everything committed. Returns its state."""
        assert eventually(lambda: self.state()["behind"] <= 0, 30)
        return self.state()

    def put(self, count: int, topic: str, queues: int) -> int:
        """Puts `count` messages, one queue after the other. Returns the physical offset of the last."""
        answer = self.ask(f"put\t{count}\t{topic}\t{queues}")
        assert answer["statuses"] == {"PUT_OK": count}, answer
        return int(answer["last"])

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Returns the minimum and maximum offset of every queue."""
        return queue_ranges(self.ask("queues"))

    def by_key(self, topic: str, key: str) -> set[int]:
        """Returns the physical offsets that the index has for a key, including keys with the same hash."""
        return set(self.ask(f"key\t{topic}\t{key}")["offsets"])

    def dump(self) -> Dump:
        answer = self.ask(f"dump\t{self._dump}", 120)
        assert "error" not in answer, answer
        return read_dump(self._dump, answer)

    def stop(self) -> None:
        """Stops the store with a clean shutdown."""
        assert self.ask("stop", 60) == {"stopped": True}
        self.wait()


@contextmanager
def serving_store(version: str, root: Path, settings: dict[str, object], **member: str) -> Iterator[JavaStore]:
    """A store that is the master and has dispatched its log. It is killed at the end."""
    with closing(JavaStore(version, root, settings, **member)) as java:
        java.wait_started()
        java.wait_master()
        yield java


def queue_ranges(found: dict[str, Any]) -> dict[tuple[str, int], tuple[int, int]]:
    """Parses the minimum and maximum offset of every queue from a program's answer."""
    return {_queue(name): (minimum, maximum) for name, (minimum, maximum) in found.items()}


def read_dump(file: Path, answer: dict[str, Any]) -> Dump:
    """Reads a dump: `file` has the messages, `answer` the missing offsets."""
    messages = [_received(line) for line in file.read_text().split("\n")[:-1]]
    assert len(messages) == answer["count"]
    return Dump(messages, answer["missingByOffset"], answer["missingByKey"])


def _queue(name: str) -> tuple[str, int]:
    topic, _, queue = name.rpartition("/")
    return topic, int(queue)


def _received(line: str) -> Received:
    asked_topic, asked_queue, topic, *numbers, body, properties = line.split("\t")
    pairs = (pair.split("\1", 1) for pair in base64.b64decode(properties).decode().split("\2") if pair)
    values = [int(number) for number in numbers]
    return Received(
        (asked_topic, int(asked_queue)),
        topic,
        *values,
        body=base64.b64decode(body),
        properties=dict(pairs),
    )
