"""Runs a real RocketMQ name server, brokers in DLedger mode, a producer and a consumer on the loopback address."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.interop.java_group import JavaProcess
from tests.support.groups import HOST, eventually, free_ports, peers_text

VERSION = "5.3.3"
OLDEST_VERSION = "4.9.7"
"""Maven Central has the store of 4.9.8, but not its broker."""
GROUP = "g"
PAUSE = 0.5
"""Seconds between two attempts to reach a broker. Its name server hears from it at most once a second."""
QUICK_START = (
    *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
"""Options of a JVM that runs for seconds only: most of their CPU time is that of loading classes."""
SMALL_FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 2000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    # The thread that writes its 35 MiB file uses a third of a core.
    "timerWheelEnable": False,
}


class Sent(NamedTuple):
    """A message that a broker acknowledged."""

    number: int
    queue_id: int
    queue_offset: int
    offset_msg_id: str


class Consumed(NamedTuple):
    """A message as the consumer received it."""

    text: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    crc: int
    """The CRC-32 of the body."""


class JavaBroker(JavaProcess):
    """A broker with its store in `root`."""

    def __init__(
        self,
        root: Path,
        names_port: int,
        settings: dict[str, object],
        version: str = VERSION,
        options: Iterable[str] = QUICK_START,
    ) -> None:
        """Starts the broker. `settings` go into its configuration file. Skips the test without Java."""
        root.mkdir(parents=True, exist_ok=True)
        fields = {
            "brokerName": "broker",
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": _broker_port(),
            "namesrvAddr": f"{HOST}:{names_port}",
            "storePathRootDir": root,
            "storePathCommitLog": root / "commitlog",
            **settings,
        }
        file = write_settings(root.parent / f"{root.name}.conf", fields)
        # Versions 4 do not start without one.
        logging = root.parent / "conf" / "logback_broker.xml"
        logging.parent.mkdir(exist_ok=True)
        logging.write_text("<configuration/>")
        options = (*options, f"-Drocketmq.home.dir={root.parent}", f"-Duser.home={root.parent}")
        super().__init__("RunBroker", version, str(file), compiled_with=VERSION, options=options)

    def state(self) -> dict[str, Any]:
        return self.ask("state")

    def is_master(self) -> bool:
        """Returns whether the broker is the master."""
        state = self.state()
        return state["brokerId"] == 0 and state["brokerRole"] != "SLAVE"

    def stop(self) -> None:
        """Stops the broker with a clean shutdown."""
        assert self.ask("stop", 60) == {"stopped": True}
        self.wait()


class JavaClients(JavaProcess):
    """A name server with a producer and a consumer."""

    def __init__(self, folder: Path) -> None:
        """Starts the processes. Skips the test without Java."""
        self.port = free_ports(1)[0]
        self._file = folder / "clients.tsv"
        options = (*QUICK_START, f"-Duser.home={folder}")
        super().__init__("RunClients", VERSION, str(self.port), compiled_with=VERSION, options=options)

    def send_first(self, topic: str) -> None:
        """Sends one message, retrying until a broker accepts it. The topic exists after that."""
        assert self._ask_broker(f"send\t{topic}") == {"status": "SEND_OK"}

    def start_load(self, topic: str, threads: int, pause_ms: int = 0) -> None:
        """Starts `threads` that send messages until `end_load`, with pauses. Bodies are the numbers from 0."""
        assert self.ask(f"load\t{topic}\t{threads}\t{pause_ms}") == {}

    def wait_for(self, more: int, seconds: float = 180) -> None:
        """Waits until `more` further messages are acknowledged."""
        wanted = self.acknowledged() + more
        eventually(lambda: self.acknowledged() >= wanted, seconds)

    def acknowledged(self) -> int:
        return int(self.ask("progress")["acknowledged"])

    def end_load(self) -> list[Sent]:
        """Ends the load and returns the acknowledged messages. The broker may or may not have the others."""
        answer = self.ask(f"end\t{self._file}")
        sent = [Sent(int(number), int(queue), int(at), msg_id) for number, queue, at, msg_id in self._lines()]
        assert len(sent) == answer["acknowledged"]
        return sent

    def max_offsets(self, topic: str) -> dict[int, int]:
        """Returns the maximum offset of each queue, as the broker reports it to consumers."""
        answer = self._ask_broker(f"max\t{topic}")
        return {int(queue): offset for queue, offset in answer.items()}

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Returns the offset of each queue at which a consumer group continues."""
        answer = self._ask_broker(f"committed\t{group}\t{topic}")
        return {int(queue): offset for queue, offset in answer.items()}

    def consume(self, topic: str) -> list[Consumed]:
        """Returns every message of the topic that consumers can get."""
        self._ask_broker(f"consume\t{topic}\t{self._file}")
        return [Consumed(text, *map(int, numbers)) for text, *numbers in self._lines()]

    def _ask_broker(self, command: str) -> dict[str, Any]:
        """Asks until a broker is known and answers."""

        def answered() -> dict[str, Any]:
            answer = self.ask(command, 120)
            if "error" in answer:
                time.sleep(PAUSE)
                raise AssertionError(answer["error"])
            return answer

        return eventually(lambda: (answered(),), 180)[0]

    def _lines(self) -> Iterator[list[str]]:
        for line in self._file.read_text().rstrip("\n").split("\n"):
            yield line.split("\t")


class Cluster:
    """A name server and the brokers of one DLedger group. The store of broker `node` is ``folder/node``."""

    def __init__(
        self, folder: Path, count: int = 1, settings: dict[str, object] | None = None, version: str = VERSION
    ) -> None:
        self._folder, self._settings, self._version = folder, {**SMALL_FILES, **(settings or {})}, version
        ports = dict(zip((f"n{number}" for number in range(count)), free_ports(count), strict=True))
        self._peers = peers_text(ports)
        self.brokers: dict[str, JavaBroker] = {}
        self.clients = JavaClients(folder)
        for node in ports:
            self.start(node)

    def root(self, node: str = "n0") -> Path:
        return self._folder / node

    def start(self, node: str = "n0") -> None:
        root, port = self.root(node), self.clients.port
        dledger = {
            "enableDLegerCommitLog": True,
            "dLegerGroup": GROUP,
            "dLegerPeers": self._peers,
            "dLegerSelfId": node,
        }
        self.brokers[node] = JavaBroker(root, port, {**dledger, **self._settings}, self._version)

    def kill(self, node: str = "n0") -> None:
        self.brokers.pop(node).kill()

    def master(self, seconds: float = 120) -> str:
        """Waits for a master and returns its id."""
        return eventually(
            lambda: next((node for node, broker in self.brokers.items() if broker.is_master()), ""), seconds
        )

    def close(self) -> None:
        for process in (*self.brokers.values(), self.clients):
            process.close()


@contextmanager
def cluster(
    folder: Path, count: int = 1, settings: dict[str, object] | None = None, version: str = VERSION
) -> Iterator[Cluster]:
    """Runs a cluster and kills it at the end. Skips the test without Java."""
    found = Cluster(folder, count, settings, version)
    try:
        yield found
    finally:
        found.close()


def write_settings(file: Path, fields: dict[str, object]) -> Path:
    """Writes a configuration file of RocketMQ. Returns its path."""
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()}
    file.write_text("".join(f"{name}={value}\n" for name, value in texts.items()))
    return file


def _broker_port() -> int:
    """Returns a free port. Port - 2 (for clients) and port + 1 (for slaves) are free, too."""
    while True:
        # Steps of 4: ports of two concurrent searches do not overlap.
        port = random.randrange(20_002, 32_000, 4)
        with suppress(OSError):
            for each in (port - 2, port, port + 1):
                socket.create_server((HOST, each)).close()
            return port
