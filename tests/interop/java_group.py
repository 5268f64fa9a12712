"""Runs members and clients of the Java DLedger, each in a process that can be killed."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.interop.java_stores import BUILD, JAVA, pass_on, prepare

# Elections take half a second; both implementations allow it.
QUICK = {"heartBeatTimeIntervalMs": 150, "maxHeartBeatLeak": 3, "minVoteIntervalMs": 60, "maxVoteIntervalMs": 250}
SMALL_FILES = {"mappedFileSizeForEntryData": 1 << 20, "mappedFileSizeForEntryIndex": 32 * 4096}
# The loggers of 0.2.2 and of its remoting library write to the home folder.
_QUIET = (
    f"-XX:ErrorFile={BUILD}/hs_err_%p.log",
    f"-Duser.home={BUILD}",
    "-Dlog4j.configuration=none",
    "-Drocketmq.client.logUseSlf4j=true",
)


class JavaProcess:
    """A Java program that answers each line of standard input with a JSON object."""

    def __init__(
        self,
        program: str,
        version: str,
        *args: str,
        compiled_with: str = "0.3.1.2",
        java: Iterable[str] = JAVA,
        options: Iterable[str] = (),
    ) -> None:
        """Starts the program with JVM `options` after the command `java`. Skips the test without Java."""
        class_path = prepare(program, version, compiled_with)
        self._process = subprocess.Popen(
            [*java, *_QUIET, *options, "-cp", class_path, program, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        assert self._process.stdout
        threading.Thread(target=pass_on, args=(self._process.stdout, self._answers), daemon=True).start()
        self._is_started = False

    def ask(self, command: str, patience: float = 120) -> dict[str, Any]:
        """Returns the answer. Raises ConnectionError if the process has ended, queue.Empty after `patience` seconds."""
        self.wait_started()
        assert self._process.stdin
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except OSError as reason:
            raise ConnectionError(f"the process ended with {self._process.wait()}") from reason
        return self._answer(patience)

    def wait_started(self) -> None:
        if not self._is_started:
            assert self._answer(120) == {"started": True}
            self._is_started = True

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the process: it flushes and prints nothing."""
        self.send_signal(signal.SIGKILL)
        self._process.wait()
        self._close()

    def close(self) -> None:
        if not self.has_ended:
            self.kill()

    def wait(self) -> int:
        code = self._process.wait(30)
        self._close()
        return code

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream
            try:
                stream.close()
            except OSError:
                continue

    def _answer(self, patience: float) -> dict[str, Any]:
        line = self._answers.get(timeout=patience)
        if not line:
            raise ConnectionError(f"the process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class JavaNode(JavaProcess):
    """A member of a group with its store in ``folder/dledger-ID``. `settings` are those of DLedgerConfig."""

    def __init__(
        self, version: str, group: str, node: str, peers: str, folder: Path, settings: dict[str, object]
    ) -> None:
        fields = {"group": group, "selfId": node, "peers": peers, "storeBaseDir": folder, **settings}
        words = (f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items())
        super().__init__("RunServer", version, *words)

    def state(self) -> dict[str, Any]:
        return self.ask("state")

    def digest(self, first: int, last: int) -> str:
        return str(self.ask(f"digest {first} {last}")["digest"])

    def append(self, count: int, size: int, in_flight: int = 100) -> dict[str, Any]:
        return self.ask(f"append {count} {size} {in_flight}", 120)

    def transfer(self, node: str) -> dict[str, Any]:
        """Asks it to transfer leadership to `node`. Returns ``code``, or ``error`` if Java throws."""
        return self.ask(f"transfer {node}")

    def stop(self) -> None:
        """Stops the member with a clean shutdown."""
        assert self.ask("stop") == {"stopped": True}
        self.wait()


class JavaClient(JavaProcess):
    """Java's DLedgerClient."""

    def __init__(self, version: str, group: str, peers: str) -> None:
        super().__init__("RunClient", version, group, peers)
