"""The message stores of RocketMQ brokers without DLedger, one after the other in one Java process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.interop.java_group import JavaProcess
from tests.interop.java_store import COMPILED_WITH, Dump, got_messages, queue_ranges

_PATIENCE = 60
# What runs for seconds only is not worth the time of the second compiler.
_SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class PlainStores(JavaProcess):
    """RocketMQ's DefaultMessageStore; what is asked is asked of the store that was opened last."""

    def __init__(self, version: str, folder: Path) -> None:
        """Raises JavaMissing where it cannot run. What is said in files stands in `folder`."""
        self._lines = folder / f"{version}.lines"
        super().__init__("RunPlainStores", version, compiled_with=COMPILED_WITH, options=_SHORT_RUN)

    def open(self, settings: dict[str, str], role: str = "SLAVE") -> tuple[int, int]:
        """Open a store by settings of MessageStoreConfig, and let it dispatch its log: where that begins and ends.

        A slave only has what is there.
        """
        words = (f"{name}={value}" for name, value in settings.items())
        answer = self._ask("\t".join(("open", role, *words)))
        return answer["minOffset"], answer["maxOffset"]

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Minimum and maximum offset of every queue."""
        return queue_ranges(self._ask("queues"))

    def dump(self) -> Dump:
        answer = self._ask(f"dump\t{self._lines}")
        return got_messages(self._lines, answer)

    def by_keys(self, keys: Iterable[tuple[str, str]]) -> list[set[int]]:
        """For each topic and key, the physical offsets of the messages that the index has."""
        return [set(offsets) for offsets in self._ask_lines("keys", keys)["offsets"]]

    def by_times(self, times: Iterable[tuple[str, int, int]]) -> list[int]:
        """For each topic, queue id and time in milliseconds, the offset in the queue that is found."""
        offsets: list[int] = self._ask_lines("times", times)["offsets"]
        return offsets

    def put(self, count: int, topic: str, queues: int) -> None:
        """Put that many messages, one queue after the other."""
        answer = self._ask(f"put\t{count}\t{topic}\t{queues}")
        assert answer["statuses"] == {"PUT_OK": count}, answer

    def close_store(self) -> None:
        """An orderly end of the store."""
        assert self._ask("close") == {"closed": True}

    def _ask_lines(self, command: str, lines: Iterable[tuple[object, ...]]) -> dict[str, Any]:
        self._lines.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
        return self._ask(f"{command}\t{self._lines}")

    def _ask(self, command: str) -> dict[str, Any]:
        answer = self.ask(command, _PATIENCE)
        assert "error" not in answer, answer
        return answer
