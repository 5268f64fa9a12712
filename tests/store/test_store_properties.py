"""The store on disk behaves like the one in memory, for random sequences of calls and restarts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.log import open_log
from pyspark_dledger.log.recovery.recovery_preview import preview
from pyspark_dledger.store.dledger_store import DLedgerStore
from pyspark_dledger.store.memory_store import MemoryStore
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.rules import entry_position
from tests.support.stores import abandoned, entries, findings, opened, reopened, where

FILE = 400
INDEX_FILE = 96
_IN_MEMORY = Path("/dev/shm")

some_bodies = st.lists(
    st.integers(0, FILE - 55).map(lambda size: (b"%d," % size * size)[:size]), min_size=1, max_size=6
)
indexes = st.integers(-2, 60)


def outcome(call: Callable[[DLedgerStore], Any], store: DLedgerStore) -> Any:
    """The result of a call, or the class and the text of its error."""
    try:
        found = call(store)
    except (DLedgerError, ValueError) as error:
        return type(error), str(error)
    return found._replace(data=bytes(found.data)) if hasattr(found, "data") else found


class Stores(RuleBasedStateMachine):
    """A store on disk and one in memory, which get the same calls."""

    engine = "native"
    mode = "async"

    def __init__(self) -> None:
        super().__init__()
        # In memory if possible: only results are compared, and syncing a disk would take most of the time.
        self.folder = Path(tempfile.mkdtemp(prefix="store-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
        self.disk: MmapFileStore = opened(
            self.folder, data_file_size=FILE, index_file_size=INDEX_FILE, engine=self.engine, flush=self.mode
        )
        self.memory = MemoryStore(data_file_size=FILE)
        self.was_committed = False

    def teardown(self) -> None:
        try:
            self.disk.shutdown()
            self.check_on_disk()
        finally:
            shutil.rmtree(self.folder)

    def check_on_disk(self) -> None:
        """Neither our reader nor Java finds anything wrong."""
        # After a reset a log can begin inside a file. Readers call the gap before it damaged.
        if self.memory.ledger_begin_index >= 0 and self.memory._entries[0].pos % FILE == 0:
            assert [found for found in findings(self.disk) if found[0] != "currtermBelowLog"] == []
            java = preview(open_log(self.disk.config.node_dir), "0.3.1.2")
            assert (java.outcome, java.lost) == ("opens", [])
            assert (java.begin_index, java.end_index) == where(self.memory)[:2]
            assert java.data_files_deleted == java.index_files_deleted == []

    def same(self, call: Callable[[DLedgerStore], Any]) -> Any:
        found, wanted = outcome(call, self.disk), outcome(call, self.memory)
        assert found == wanted, f"on disk {found}, in memory {wanted}"
        return found

    @rule(bodies=some_bodies, term=st.integers(-1, 3), packed=st.booleans())
    def append_as_leader(self, bodies: list[bytes], term: int, packed: bool) -> None:
        term = max(term, self.memory.ledger_end_term)
        given = get_engine(self.engine).pack_bodies(bodies) if packed else bodies
        self.same(lambda store: store.append_as_leader(given, term))

    @rule(
        bodies=some_bodies,
        terms=st.tuples(st.integers(0, 2), st.integers(-1, 2)),
        off=st.tuples(st.sampled_from([0, 0, 0, 1, -1]), st.sampled_from([0, 0, 0, 0, 1, FILE])),
        to_next_file=st.booleans(),
        cut=st.sampled_from([0, 0, 0, 0, 1, 50]),
    )
    def append_as_follower(
        self, bodies: list[bytes], terms: tuple[int, int], off: tuple[int, int], to_next_file: bool, cut: int
    ) -> None:
        end = self.memory.end_pos
        index = self.memory._next_index + off[0]
        term = max(self.memory.ledger_end_term + terms[0], 0)
        pos = entry_position(end, 48 + len(bodies[0]), FILE) + off[1]
        if to_next_file:
            pos = end - end % FILE + FILE
        data = b""
        for number, body in enumerate(bodies):
            if index + number >= 0:
                data += encode_entry(index + number, term, pos + len(data), body)
        data = data[: len(data) - cut]
        self.same(lambda store: store.append_as_follower(data, term + terms[1]))

    @rule(index=indexes)
    def get(self, index: int) -> None:
        self.same(lambda store: store.get(index))
        self.same(lambda store: store.term_at(index))

    @rule(index=indexes, size=st.integers(0, 1000))
    def read(self, index: int, size: int) -> None:
        self.same(lambda store: store.read(index, size))

    @rule(index=indexes)
    def truncate(self, index: int) -> None:
        self.same(lambda store: store.truncate(index))

    @rule(index=indexes, pos=st.integers(-1, 9 * FILE), bodies=some_bodies)
    def reset(self, index: int, pos: int, bodies: list[bytes]) -> None:
        if isinstance(self.same(lambda store: store.reset(index, pos)), tuple):
            return
        term = self.memory.curr_term
        data = encode_entry(index, term, pos, bodies[0][: FILE - 56 - pos % FILE])
        self.same(lambda store: store.append_as_follower(data, term))
        self.same(lambda store: store.flush())

    @rule(term=st.integers(-1, 9), index=indexes)
    def update_committed_index(self, term: int, index: int) -> None:
        self.same(lambda store: store.update_committed_index(term, index))
        self.was_committed |= self.memory.committed_index >= 0

    @rule(term=st.integers(-1, 9), leader=st.sampled_from([None, "n0", "n1"]))
    def save_term(self, term: int, leader: str | None) -> None:
        self.same(lambda store: store.save_term(term, leader))

    @rule()
    def flush(self) -> None:
        self.same(lambda store: store.flush())

    @rule()
    def write_checkpoint(self) -> None:
        self.disk.write_checkpoint()

    def can_start(self) -> bool:
        """A log that lost all entries after some were committed is rejected; one that was only reset may start."""
        is_new = self.memory.end_pos == 0 and not self.was_committed
        return self.memory.ledger_begin_index >= 0 or is_new

    @precondition(lambda self: self.can_start())
    @rule()
    def reopen(self) -> None:
        self.memory.shutdown()
        self.disk = reopened(self.disk)
        self.after_start()

    @precondition(lambda self: self.can_start())
    @rule()
    def kill(self) -> None:
        """No appended entry is lost; the committed index is the checkpoint's."""
        assert self.disk.committed_index <= self.memory.committed_index
        self.disk = abandoned(self.disk)
        assert self.disk.committed_index <= self.memory.committed_index
        self.memory.committed_index = self.disk.committed_index
        self.memory.flush()
        self.after_start()

    def after_start(self) -> None:
        """A term that was never saved is taken from the log."""
        if self.memory.ledger_end_term > self.memory.curr_term:
            self.memory.save_term(self.memory.ledger_end_term, "n0")

    @invariant()
    def all_is_the_same(self) -> None:
        self.same(where)
        self.same(lambda store: (store.flushed_index, store.curr_term, store.vote_leader))
        self.same(entries)


class StoresWithPython(Stores):
    engine = "python"


class StoresWithSync(Stores):
    mode = "sync"


quick = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestStores = Stores.TestCase
TestStores.settings = quick
TestStoresWithPython = StoresWithPython.TestCase
TestStoresWithPython.settings = settings(quick, max_examples=10)
TestStoresWithSync = StoresWithSync.TestCase
TestStoresWithSync.settings = settings(quick, max_examples=25)
