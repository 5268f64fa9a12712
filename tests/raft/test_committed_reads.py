"""READ in a member: what it returns when the log changes while it waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pyspark_dledger.raft.messages import ReadRequest, ReadResponse
from pyspark_dledger.raft.node.committed_reads import CommittedReads
from pyspark_dledger.store.dledger_store import EntryRange
from pyspark_dledger.store.memory_store import MemoryStore


class OnDisk(MemoryStore):
    """A store whose entries are read in another thread."""

    def is_recent(self, index: int) -> bool:
        return False


class Waiting:
    """The threads and the caller of a READ: both call later, when the test says so."""

    inbound = None

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.works: list[Callable[[], None]] = []
        self.responses: list[ReadResponse] = []

    def read(self, first: int, max_bytes: int, done: Callable[[EntryRange], None]) -> None:
        done(self.store.read(first, max_bytes))

    def when_room(self, size: int, work: Callable[[], None]) -> None:
        self.works.append(work)

    def respond(self, response: ReadResponse) -> None:
        self.responses.append(response)


def test_entries_that_were_replaced_while_it_waited_for_memory_are_not_returned() -> None:
    store = OnDisk()
    store.append_as_leader([b"0000", b"0001", b"of a former leader"], 1)
    store.update_committed_index(1, 1)
    waiting: Any = Waiting(store)
    reads = CommittedReads(store, waiting, "g", "n0", cast("Any", None))
    reads.read(ReadRequest(group="g", remote_id="n0", first_index=1, max_bytes=1000), waiting)
    store.truncate(2)
    store.append_as_leader([b"committed"], 2)
    store.update_committed_index(2, 2)
    while waiting.works:
        waiting.works.pop()()
    (response,) = waiting.responses
    assert (response.first_index, response.count) == (1, 2)
    assert bytes(response.data) == bytes(store.read(1, 1000).data)
