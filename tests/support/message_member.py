"""A store and its message service without a group."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.rocketmq.service.message_service import MessageService, MessageSettings
from pyspark_dledger.store import MmapFileStore, StoreConfig
from tests.support.groups import eventually
from tests.support.message_nodes import HOST_BYTES, SMALL_QUEUES, puts, rows

FILES = {"data_file_size": 1 << 14, "index_file_size": 32 * 1024}
Location = tuple[int, int, int]


class Member:
    """A store and its message service without a group: the test is the node."""

    def __init__(self, root: Path, settings: MessageSettings = SMALL_QUEUES) -> None:
        self.root = root
        self.folder = root / "dledger-n0"
        self.store = MmapFileStore(StoreConfig(root, **FILES))
        self.service = MessageService.open(root, "n0", HOST_BYTES, settings=settings)
        self.store.startup()
        self.service.started(self.store)

    def close(self) -> None:
        self.service.stopped()
        self.store.shutdown()
        self.service.close()

    def lead(self) -> None:
        self.service.role_changed(True, 1)

    def put(self, bodies: Bodies) -> list[Location]:
        """Append and commit messages; returns index, pos and queueOffset of each."""
        eventually(lambda: self.service.is_ready)
        admitted = self.service.admit(bodies, 1)
        new = admitted.bodies
        located = self.service.appended(admitted, None if new is None else self.store.append_as_leader(new, 1))
        self.commit()
        return list(struct.iter_unpack(">qqq", located))

    def commit(self) -> None:
        self.store.flush()
        self.store.update_committed_index(1, self.store.ledger_end_index)
        self.service.committed(self.store.committed_index)
        eventually(lambda: self.service._dispatched.complete_index == self.store.committed_index or self.needs_summary)

    @property
    def needs_summary(self) -> bool:
        return self.service.needs_summary

    def fill(self, job: str = "traffic") -> None:
        """Fill several files with other messages."""
        self.put(puts(rows(60, size=1000), job=job))

    def expire(self) -> None:
        assert self.store.delete_expired(time.time() + 9, force=True) > 0


@contextmanager
def member(root: Path, settings: MessageSettings = SMALL_QUEUES) -> Iterator[Member]:
    found = Member(root, settings)
    try:
        yield found
    finally:
        found.close()


def quiet(first: int = 0, count: int = 40) -> Bodies:
    return puts(rows(count, first, topic="Quiet"), queues=1, job=f"quiet{first}")
