"""Runs real RocketMQ brokers without DLedger: in controller mode with a controller, or a master with slaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.java_broker import QUICK_START, VERSION, JavaBroker, JavaClients, write_settings
from tests.interop.java_group import JavaProcess
from tests.support.groups import HOST, eventually, free_ports

DLEDGER, JRAFT = "DLedger", "jRaft"
# A master that is killed is replaced after two seconds instead of ten.
_QUICK: dict[str, object] = {
    "brokerHeartbeatInterval": 300,
    "controllerHeartBeatTimeoutMills": 2000,
    "checkSyncStateSetPeriod": 300,
    "syncControllerMetadataPeriod": 500,
    "haSendHeartbeatInterval": 300,
    "haHousekeepingInterval": 3000,
    "haMaxTimeSlaveNotCatchup": 2000,
    # Its 35 MiB file is not part of the log.
    "timerWheelEnable": False,
}


class Controller(JavaProcess):
    """A controller that stands alone, with one of the two implementations of its log."""

    def __init__(self, folder: Path, kernel: str, version: str) -> None:
        """Starts the controller. Skips the test without Java."""
        folder.mkdir()
        self.port, raft_port = free_ports(2)
        fields: dict[str, object] = {
            "controllerType": kernel,
            "controllerStorePath": folder / "store",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{HOST}:{self.port}",
            "controllerDLegerSelfId": "n0",
            "mappedFileSize": 1 << 20,
            "jRaftGroupId": "controllers",
            "jRaftServerId": f"{HOST}:{raft_port}",
            "jRaftInitConf": f"{HOST}:{raft_port}",
            "jRaftControllerRPCAddr": f"{HOST}:{self.port}",
            "bindAddress": HOST,
            "scanNotActiveBrokerInterval": 500,
            "scanInactiveMasterInterval": 500,
        }
        file = write_settings(folder / "controller.conf", fields)
        options = (*QUICK_START, f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}")
        super().__init__("RunController", version, str(file), compiled_with=VERSION, options=options)

    def is_leader(self) -> bool:
        return bool(self.ask("state")["isLeader"])


class BrokerSet:
    """The brokers of one set by their numbers, each with the settings that its store needs."""

    def __init__(
        self,
        folder: Path,
        settings: Sequence[Mapping[str, Any]],
        version: str = VERSION,
        kernel: str | None = DLEDGER,
        is_quick: bool = True,
    ) -> None:
        """Starts a name server, and a controller unless `kernel` is None. Skips the test without Java.

        Without `is_quick` the brokers have RocketMQ's own periods and timeouts.
        """
        folder.mkdir(exist_ok=True)
        self._settings, self._version = settings, version
        self._added: dict[str, object] = dict(_QUICK) if is_quick else {}
        self.brokers: dict[int, JavaBroker] = {}
        self.clients = JavaClients(folder)
        self.controller = Controller(folder / "controller", kernel, version) if kernel is not None else None
        if self.controller is not None:
            self._added["controllerAddr"] = f"{HOST}:{self.controller.port}"

    def start(self, *numbers: int) -> None:
        """Starts brokers, by default all, once the controller can answer them."""
        assert self.controller is None or eventually(self.controller.is_leader)
        for number in numbers or range(len(self._settings)):
            settings = {**self._settings[number], **self._added}
            root = Path(settings["storePathRootDir"])
            self.brokers[number] = JavaBroker(root, self.clients.port, settings, self._version)
        for broker in self.brokers.values():
            broker.wait_started()

    def kill(self, number: int) -> None:
        self.brokers.pop(number).kill()

    def master(self) -> int:
        """Waits for a master and returns its number."""

        def found() -> list[int]:
            return [number for number, broker in self.brokers.items() if broker.is_master()]

        return eventually(found, 90)[0]

    def wait_until_equal(self) -> None:
        """Waits until all brokers have the same log, and queues for all of it, and the master counts them."""

        def are_equal() -> bool:
            states = [broker.state() for broker in self.brokers.values()]
            counts = [state["inSync"] for state in states if state["brokerId"] == 0]
            is_settled = counts == [len(states)] and all(state["behind"] <= 0 for state in states)
            return is_settled and len({state["maxOffset"] for state in states}) == 1

        assert eventually(are_equal, 90)

    def stop(self) -> None:
        """Stops all brokers with a clean shutdown, the master last."""
        master = self.master()
        for number in sorted(self.brokers, key=lambda each: each == master):
            self.brokers.pop(number).stop()

    def close(self) -> None:
        for process in (*self.brokers.values(), self.controller, self.clients):
            if process is not None:
                process.close()


@contextmanager
def broker_set(folder: Path, settings: Sequence[Mapping[str, Any]], **options: Any) -> Iterator[BrokerSet]:
    """Runs a set of brokers and kills it at the end. Skips the test without Java."""
    found = BrokerSet(folder, settings, **options)
    try:
        yield found
    finally:
        found.close()
