"""Runs message stores of RocketMQ brokers without DLedger, one after the other in one Java process."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.interop.java_group import JavaProcess
from tests.interop.java_store import COMPILED_WITH, Dump, queue_ranges, read_dump

_PATIENCE = 60
# The second compiler costs more time than it saves in a run of seconds.
_SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class PlainStores(JavaProcess):
    """RocketMQ's DefaultMessageStore. Commands refer to the store opened last."""

    def __init__(self, version: str, folder: Path) -> None:
        """Starts the process; `folder` is for exchanged files. Skips the test without Java."""
        self._lines = folder / f"{version}.lines"
        super().__init__("RunPlainStores", version, compiled_with=COMPILED_WITH, options=_SHORT_RUN)

    def open(self, settings: dict[str, str], role: str = "SLAVE") -> tuple[int, int]:
        """Opens a store with `settings` of MessageStoreConfig and waits until it has dispatched its log.

        Returns the minimum and maximum offset of the log. A slave adds no messages.
        """
        words = (f"{name}={value}" for name, value in settings.items())
        answer = self._ask("\t".join(("open", role, *words)))
        return answer["minOffset"], answer["maxOffset"]

    def open_root(self, root: Path, settings: dict[str, str], role: str = "SLAVE") -> tuple[int, int]:
        """Opens the store in a root folder. The first file of its CommitLog says how large its files are."""
        commitlog = root / "commitlog"
        size = (commitlog / f"{0:020d}").stat().st_size
        paths = {"storePathRootDir": str(root), "storePathCommitLog": str(commitlog)}
        return self.open({**paths, **settings, "mappedFileSizeCommitLog": str(size)}, role)

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Returns the minimum and maximum offset of every queue."""
        return queue_ranges(self._ask("queues"))

    def dump(self) -> Dump:
        answer = self._ask(f"dump\t{self._lines}")
        return read_dump(self._lines, answer)

    def by_keys(self, keys: Iterable[tuple[str, str]]) -> list[set[int]]:
        """Returns the physical offsets that the index has for each topic and key."""
        return [set(offsets) for offsets in self._ask_lines("keys", keys)["offsets"]]

    def by_times(self, times: Iterable[tuple[str, int, int]]) -> list[int]:
        """Returns the queue offset found for each topic, queue id and time in milliseconds."""
        offsets: list[int] = self._ask_lines("times", times)["offsets"]
        return offsets

    def put(self, count: int, topic: str, queues: int) -> None:
        """Puts `count` messages, one queue after the other."""
        answer = self._ask(f"put\t{count}\t{topic}\t{queues}")
        assert answer["statuses"] == {"PUT_OK": count}, answer

    def lead(self, epoch: int) -> None:
        """In controller mode, the store becomes the master of an epoch."""
        assert self._ask(f"epoch\t{epoch}") == {"changed": True}

    def stay_master(self, epoch: int) -> None:
        """In controller mode, the master becomes that of a later epoch."""
        assert self._ask(f"again\t{epoch}") == {"changed": True}

    def follow(self, epoch: int, address: str) -> None:
        """In controller mode, the store becomes a slave of the master at an address, which leads an epoch."""
        assert self._ask(f"follow\t{epoch}\t{address}") == {"changed": True}

    def truncate(self, position: int) -> None:
        """Removes the log from a position on."""
        assert self._ask(f"truncate\t{position}") == {"changed": True}

    def max_offset(self) -> int:
        """Returns the end of the log."""
        return int(self._ask("state")["maxOffset"])

    def close_store(self) -> None:
        """Closes the store with a clean shutdown."""
        assert self._ask("close") == {"closed": True}

    def _ask_lines(self, command: str, lines: Iterable[tuple[object, ...]]) -> dict[str, Any]:
        self._lines.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
        return self._ask(f"{command}\t{self._lines}")

    def _ask(self, command: str) -> dict[str, Any]:
        try:
            answer = self.ask(command, _PATIENCE)
        except queue.Empty:
            self.kill()  # a late answer would be that of the next command
            raise
        assert "error" not in answer, answer
        return answer


ByVersion = Callable[[str], PlainStores]
"""Gives the process of a version."""
