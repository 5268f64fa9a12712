"""Real brokers whose master is killed while producers write: one that starts again, or a group that elects another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.broker_set import DLEDGER, BrokerSet, broker_set
from tests.interop.java_broker import SMALL_FILES, VERSION, Cluster, Consumed, Sent, cluster
from tests.support.groups import HOST

PLAIN, DLEDGER_MODE, CONTROLLER_MODE = "plain", "dledger", "controller"
KINDS = (PLAIN, DLEDGER_MODE, CONTROLLER_MODE)
_REPLICAS = 3
# A majority has what is acknowledged.
_CONTROLLED: dict[str, object] = {"enableControllerMode": True, "allAckInSyncStateSet": True, "minInSyncReplicas": 2}


class FailingBrokers:
    """A name server with a set of brokers, and a producer."""

    def __init__(self, brokers: Cluster | BrokerSet) -> None:
        self._brokers: Any = brokers
        self.clients = brokers.clients
        self.address = f"{HOST}:{brokers.clients.port}"
        self._killed: list[str | int] = []

    def kill_master(self) -> None:
        master = self._brokers.master()
        self._brokers.kill(master)
        self._killed.append(master)

    def restart(self) -> None:
        """Starts the brokers that were killed, and waits for a master."""
        while self._killed:
            self._brokers.start(self._killed.pop())
        for broker in self._brokers.brokers.values():
            broker.wait_started()
        self._brokers.master()


@contextmanager
def failing_brokers(kind: str, folder: Path, version: str = VERSION) -> Iterator[FailingBrokers]:
    """Runs brokers of one kind and kills them at the end. Skips the test without Java."""
    if kind == DLEDGER_MODE:
        with cluster(folder, _REPLICAS, version=version) as group:
            group.master()
            yield FailingBrokers(group)
        return
    roots = [folder / name for name in ("a", "b", "c")[: 1 if kind == PLAIN else _REPLICAS]]
    settings = [
        {**SMALL_FILES, **(_CONTROLLED if kind == CONTROLLER_MODE else {}), "storePathRootDir": root} for root in roots
    ]
    kernel = DLEDGER if kind == CONTROLLER_MODE else None
    with broker_set(folder, settings, version=version, kernel=kernel) as brokers:
        brokers.start()
        brokers.master()
        yield FailingBrokers(brokers)


def check_rows(
    found: list[dict[str, Any]], sent: list[Sent], consumed: list[Consumed], *, is_consistent: bool = True
) -> tuple[int, int]:
    """The rows are the messages that a consumer gets, each once.

    Returns how many acknowledged messages have no row, and how many of them a consumer gets now. Both are 0
    if queues are consistent. In DLedger mode, brokers may count on from another offset after a failover, so that a
    queue gets gaps, or its messages are left out; the queues of replicas are different then.
    """
    assert len({row["commitLogOffset"] for row in found}) == len(found)
    assert all((row["problem"], row["broker"], row["tags"]) == (None, "broker", "tag") for row in found)
    if is_consistent:
        got = Counter((row["queueId"], row["queueOffset"], row["commitLogOffset"]) for row in found)
        assert got == Counter((each.queue_id, each.queue_offset, each.physical_offset) for each in consumed)
    bodies = {row["offsetMsgId"]: row["body"] for row in found}
    assert all(bodies.get(each.offset_msg_id, body) == body for each in sent if (body := b"%d" % each.number))
    missing = [each for each in sent if each.offset_msg_id not in bodies]
    assert not (missing and is_consistent)
    places = {(each.queue_id, each.queue_offset, each.text) for each in consumed}
    return len(missing), sum((each.queue_id, each.queue_offset, str(each.number)) in places for each in missing)
