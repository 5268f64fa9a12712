"""The real `MmapFileStore` on simulated disks that lose power (`tests.support.power_disk`), under the real core.

A node loses power at any write or sync inside an operation: the disk is copied as it is after that, and the operation
continues in the old folder, where nobody sees it. The next process of the node starts with the copy.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_entry_header, encode_index_unit
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from pyspark_dledger.store.dledger_store import AppendedEntries
from pyspark_dledger.store.files import node_files
from pyspark_dledger.store.files.node_files import write_current_term
from pyspark_dledger.store.memory_store import _Stored
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.scrub import ScrubService, unit_in
from pyspark_dledger.store.store_config import StoreConfig
from tests.chaos.damage import flip_entry, units
from tests.simulation.checker import Violation
from tests.simulation.ledger import unpack
from tests.support.power_disk import Disk, connected

if TYPE_CHECKING:
    from tests.simulation.checker import Checker

INDEX_FILE_SIZE = 6400
_MEMORY = Path("/dev/shm")


class Disks:
    """The disks of all nodes, in a temporary folder. A context: within it, writes go to these disks."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed ^ 0xD15C)
        self.block = self.random.choice((512, 4096, 4096))
        self.base = Path(tempfile.mkdtemp(prefix="power-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self._disks: dict[str, Disk] = {}
        self._folders = 0
        self._connected: AbstractContextManager[None] = connected(self._find)

    def __enter__(self) -> None:
        self._connected.__enter__()

    def __exit__(self, *error: object) -> None:
        self._connected.__exit__(None, None, None)
        shutil.rmtree(self.base)

    def new_folder(self) -> Path:
        self._folders += 1
        return self.base / f"{self._folders}"

    def of(self, folder: Path) -> Disk:
        return self._disks.get(folder.name) or self.add(folder)

    def add(self, folder: Path) -> Disk:
        """A new disk, with what a folder has."""
        folder.mkdir(exist_ok=True)
        disk = self._disks[folder.name] = Disk(folder, self.block, self.random)
        return disk

    def _find(self, path: Path) -> Disk | None:
        return self._disks.get(path.relative_to(self.base).parts[0]) if path.is_relative_to(self.base) else None


class Kept(NamedTuple):
    """What a process of a node leaves behind.

    The terms of entries by index: ``log`` of those that must be there, ``durable`` of those that a power loss keeps,
    ``before_reset`` of the log that may be there instead, as long as no entry from index ``reset_to`` on is durable.
    ``unsure`` are bodies of failed appends, by index and term.
    """

    log: dict[int, int]
    durable: dict[int, int]
    before_reset: dict[int, int] | None
    reset_to: int
    unsure: dict[tuple[int, int], bytes]
    term: int
    vote: str | None

    def problem(self, found: dict[int, int]) -> str | None:
        """What a log lacks."""
        old = self.before_reset
        if old is not None:
            is_new = bool(found) and min(found) == self.reset_to
            is_old = old.items() <= found.items()
            return (
                None if is_new or is_old else f"without the log before a reset to {self.reset_to}, and with no new one"
            )
        lost = [index for index, term in self.log.items() if found.get(index) != term]
        return f"without the entries {lost[0]} to {lost[-1]}, which were on its disk" if lost else None


class _Entries(Sequence[_Stored]):
    """The entries of a log, read when they are needed."""

    def __init__(self, store: PowerStore) -> None:
        self._store = store

    def __len__(self) -> int:
        store = self._store
        return store.ledger_end_index - store.ledger_begin_index + 1 if store.ledger_begin_index >= 0 else 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        numbers = range(len(self))[key]
        at = self._store._at
        begin = self._store.ledger_begin_index
        return [at(begin + number) for number in numbers] if isinstance(key, slice) else at(begin + numbers)


class PowerStore(MmapFileStore):
    """One process's store; `survive` returns that of the next one. It has what `SimStore` has for the simulation."""

    flushes_in_background = True
    needs_flush_soon = False
    has_damaged_unit = False
    state_files = ("checkpoint", "currterm", "members", "cluster", "boot", "reset")

    def __init__(self, node_id: str, is_sync: bool, data_file_size: int, checker: Checker, disks: Disks) -> None:
        self.node_id, self.is_sync, self.checker, self.disks = node_id, is_sync, checker, disks
        self._data_file_size = data_file_size
        self._use(disks.new_folder(), Kept({}, {}, None, -1, {}, 0, None))

    def _use(self, folder: Path, kept: Kept) -> None:
        """Be the store of a new process."""
        self.folder, self.disk, self.kept = folder, self.disks.of(folder), kept
        flush = "sync" if self.is_sync else "async"
        sizes = {"data_file_size": self._data_file_size, "index_file_size": INDEX_FILE_SIZE}
        super().__init__(StoreConfig(folder, self_id=self.node_id, flush=flush, **sizes))
        # The terms of the entries, by index.
        self.log: dict[int, int] = {}
        self._show(kept.log)
        self.curr_term, self.vote_leader = kept.term, kept.vote
        self.before_reset: dict[int, int] | None = None
        self.reset_to = -1
        self.unsure = dict(kept.unsure)
        self.resets = 0
        self.started_end = -1
        self.is_flushing = False
        self.is_flush_failing = False
        # Whether this member may lack what it acknowledged, so that others must not need its vote.
        self.waits_for_others = False
        # Writes and syncs until the power is lost, 0: never; and the folder with what the disk has then.
        self.power_cut_in = 0
        self.after_loss: Path | None = None
        # The state file with a flipped bit.
        self.flipped: Path | None = None
        # Entries whose bits flipped, in their body, header or index unit, as they were written.
        self.flips: dict[int, bytes] = {}
        self.repaired: set[int] = set()

    def _show(self, log: dict[int, int]) -> None:
        """Look to the judges like a store with these entries, until it is started."""
        self.log = dict(log)
        if log:
            self._begin, self._next_index, self._end_term = min(log), max(log) + 1, log[max(log)]
            self.flushed_index = max(log)

    # Power

    @property
    def has_lost_power(self) -> bool:
        return self.after_loss is not None

    def cut_power(self, random: Random, operation: str | None = None) -> None:
        """Lose power at one of the next writes or syncs."""
        self.power_cut_in = random.choice((1, random.randrange(1, 12), random.randrange(1, 60)))

    def lose_power(self) -> None:
        self.power_cut_in = 1
        self._event()

    def _event(self) -> None:
        if self.power_cut_in and not self.has_lost_power:
            self.power_cut_in -= 1
            if not self.power_cut_in:
                self.checker.count("power losses" if self._is_started else "power losses in a start")
                kept = self._present(self.flushed_index) if self._is_started else self.kept
                self.kept = kept._replace(log=kept.durable)
                self.after_loss = self.disks.new_folder()
                self.disk.after_loss(self.after_loss)

    def _present(self, last: int) -> Kept:
        """What is there up to index `last`."""
        log = {index: term for index, term in self.log.items() if index <= last}
        durable = {index: term for index, term in log.items() if index <= self.flushed_index}
        reset = self.before_reset, self.reset_to
        return Kept(log, durable, *reset, dict(self.unsure), self.curr_term, self.vote_leader)

    def fill(self, random: Random) -> None:
        """The disk gets full within the next append."""
        if self._is_started:
            self.disk.room = random.randrange(1, 3000)

    def mend(self) -> None:
        self.power_cut_in, self.disk.room, self.is_flush_failing = 0, None, False

    def flip_bit_of_state(self, random: Random) -> str | None:
        """Flip a bit of a small file with a checksum, of a stopped node. Returns what was done."""
        files = [self.config.node_dir / name for name in self.state_files]
        files = [file for file in files if file.exists() and file.read_bytes().startswith(b"crc=")]
        if not files or self.flipped is not None:
            return None
        self.flipped = random.choice(files)
        data = bytearray(self.flipped.read_bytes())
        bit = random.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        self.flipped.write_bytes(data)
        self.disk = self.disks.add(self.folder)
        return f"bit {bit} of {self.flipped.name} flips"

    def flip_bit(self, random: Random, index: int) -> str | None:
        """Flip a bit of an entry that is on the disk with its index unit. Returns of what of it."""
        data, node_dir = self.checker.seen[index, self.log[index]].data, self.config.node_dir
        unit = next((unit for unit in units(node_dir) if unit.fields == unit_in(data)), None)
        what = random.choice(("body", "header", "unit"))
        if unit is None or flip_entry(self.node_id, node_dir, what, unit, random) is None:
            return None
        self.flips[index] = data
        return what

    @property
    def damage(self) -> set[int]:
        """The entries of the log with flipped bits."""
        return {index for index, data in self.flips.items() if self._is_damaged(index, data)}

    def _is_damaged(self, index: int, data: bytes) -> bool:
        unit = unit_in(data)
        assert unit is not None
        if self.log.get(index) != unit.term:
            return False
        is_pending = self._is_started and self._files.pending.find(index) is not None
        found = self._on_disk("index", INDEX_FILE_SIZE, index * INDEX_UNIT_SIZE, INDEX_UNIT_SIZE)
        is_intact = is_pending or found == encode_index_unit(unit)
        return not is_intact or self._on_disk("data", self._data_file_size, unit.pos, unit.size) != data

    def _on_disk(self, folder: str, file_size: int, pos: int, size: int) -> bytes:
        """The bytes of a data or index file; b"" without the file."""
        path = self.config.node_dir / folder / f"{pos - pos % file_size:020d}"
        if not path.exists():
            return b""
        with path.open("rb") as file:
            return os.pread(file.fileno(), size, pos % file_size)

    def find_damage(self) -> dict[int, str]:
        """Let the scrubber read the whole log. Returns what it finds and cannot repair."""
        found: dict[int, str] = {}
        scrubber = ScrubService(self._scrub_bounds, self.scrub, found.update, self.rebuild_unit, 1 << 60)
        scrubber._pass()
        return found

    # Starting and stopping

    def startup(self, services: bool = False) -> None:
        self.disk.on_event = self._event
        # Each disk is that of another machine, which was restarted when the power was lost.
        boot_file = self.disks.base / f"{self.folder.name}.boot"
        boot_file.write_text(self.folder.name)
        try:
            with mock.patch.object(node_files, "_BOOT_ID", boot_file):
                super().startup()
        except StoreError as error:
            if not self.has_lost_power:
                self._judge_refusal(str(error))
                raise
            return
        if not self.has_lost_power:
            try:
                self._judge_start()
            except StoreError as error:
                raise Violation(f"{self.node_id} starts with an entry that it cannot read: {error}") from None
            self.flipped, self.waits_for_others = None, False
            self.started_end = self.ledger_end_index

    def _judge_refusal(self, error: str) -> None:
        """A start is refused only for a damaged file, or if nothing that the node acknowledged can be lost."""
        if self.flipped is not None:
            self.checker.count("starts with a damaged state file refused")
            if not error.startswith(f"{self.flipped}: expected") or not re.search(
                "replace this member|one above", error
            ):
                raise Violation(f"{self.node_id} refuses to start, and says not what to do: {error}")
        elif self.damage:
            self.checker.count("starts with damage refused")
            if not re.search("copy the folder .*from another member|delete the files in index/", error):
                raise Violation(f"{self.node_id} refuses to start, and says not what to do: {error}")
        elif self.kept.log or self.kept.before_reset:
            raise Violation(f"{self.node_id} refuses to start: {error}")
        else:
            self.checker.count("starts without acknowledged entries refused")

    def _judge_start(self) -> None:
        """All that the node acknowledged is there, and nothing that nobody appended."""
        kept, begin, found, new = self.kept, self.ledger_begin_index, {}, 0
        for index, entry in enumerate(_Entries(self), begin):
            known = self.checker.seen.get((index, entry.term))
            if known is None and kept.unsure.get((index, entry.term)) == entry.data[ENTRY_HEADER_SIZE:]:
                new += 1
            elif known is None or known.data != entry.data:
                raise Violation(f"{self.node_id} starts with entry {index} of term {entry.term}, which nobody appended")
            found[index] = entry.term
        self.log = found
        self._note(new)
        if (problem := kept.problem(found)) is not None:
            raise Violation(f"{self.node_id} starts {problem}")
        is_older = self.curr_term == kept.term and kept.vote not in (None, self.vote_leader)
        if self.curr_term < kept.term or is_older:
            now = f"term {self.curr_term} and a vote for {self.vote_leader}"
            raise Violation(f"{self.node_id} starts with {now}, after {kept.term} and {kept.vote}")
        if self.committed_index >= len(self.checker.history):
            raise Violation(f"{self.node_id} starts with the committed index {self.committed_index}")

    def close(self) -> None:
        """A clean shutdown."""
        self.shutdown()
        if not self.has_lost_power:
            self.kept = self._present(self.ledger_end_index)

    def survive(self, random: Random) -> PowerStore:
        """The store as the next process finds it: after a power loss, or else after the end of the process."""
        after = copy(self)
        if self._is_started and not self.has_lost_power:
            self.kept = self._present(self.ledger_end_index)
        self._files.close()
        self._lock.release()
        self._is_started = False
        self.disk.room = None
        # An append can fail after the power was lost in it.
        self.kept = self.kept._replace(unsure=dict(self.unsure))
        if self.after_loss is None:
            after._use(self.folder, self.kept)
            after.waits_for_others = self.waits_for_others
        else:
            self.checker.count(
                f"power losses that lost {'some' if len(self.kept.log) < len(self.log) else 'no'} entries"
            )
            after._use(self.after_loss, self.kept)
            if not self.is_sync:
                # Its lost copies counted when entries were committed: it comes back when the others do not need it.
                after._show(self.log)
                after.waits_for_others = True
            shutil.rmtree(self.folder)
        after.flipped, after.flips = self.flipped, self.flips
        return after

    def take_term(self, old: PowerStore) -> None:
        """Get the term and the vote of a disk that is replaced, or a new term if that is damaged."""
        term, vote = old.curr_term, old.vote_leader
        if old.flipped is not None and old.flipped.name == "currterm":
            term, vote = max(node.store.curr_term for node in self.checker.nodes) + 1, None
        self.config.node_dir.mkdir()
        write_current_term(self.config.node_dir, term, vote)
        self.disk = self.disks.add(self.folder)
        self.kept = self.kept._replace(term=term, vote=vote)
        self.curr_term, self.vote_leader = term, vote

    # What the judges see

    @property
    def durable_index(self) -> int:
        """The last index that survives what is promised: a power loss, or the end of the process."""
        return self.flushed_index if self.is_sync else self.ledger_end_index

    @property
    def _entries(self) -> _Entries:
        return _Entries(self)

    def _at(self, index: int) -> _Stored:
        if not self._is_started:
            return _Stored(-1, self.log[index], b"")
        # The judges see the bytes as they are, or were before bits flipped.
        written = self.flips.get(index)
        check = None if written is None else self._engine.find_wrong_body
        try:
            found = self._reader.read(index, 1, self.ledger_end_index, self.end_pos, self._recent, check)
            data = bytes(found.data)
        except StoreError:
            if written is None:
                raise
            data = written
        header = decode_entry_header(data)
        return _Stored(header.pos, header.term, data)

    def is_damaged(self, index: int) -> bool:
        return index in self.flips

    # Called by the core

    def append_as_leader(
        self, bodies: Bodies | Sequence[Buffer], term: int | None = None, control: int = 0
    ) -> AppendedEntries:
        try:
            done = super().append_as_leader(bodies, term, control)
        except StoreError:
            self.checker.count("partial appends on a full disk")
            if (self.failure is not None or self.has_lost_power) and isinstance(bodies, Bodies):
                for number, body in enumerate(unpack(bodies)):
                    self.unsure[self._next_index + number, self.curr_term if term is None else term] = body
            raise
        finally:
            self.disk.room = None
        self._note(done.last_index - done.first_index + 1)
        return done

    def append_as_follower(self, data: Buffer, leader_term: int) -> int:
        before = self._next_index
        try:
            last = super().append_as_follower(data, leader_term)
        finally:
            self.disk.room = None
        self._note(last - before + 1)
        return last

    def _note(self, count: int) -> None:
        """Tell the judges of the last entries, which are new."""
        end = self.ledger_end_index
        first = end - count + 1
        entries = (
            [self._at(index) for index in range(max(first - 1, self.ledger_begin_index), end + 1)] if count else []
        )
        for index, entry in enumerate(entries[-count:], first):
            self.log[index] = entry.term
        self.checker.appended(self, entries, len(entries) - count)

    def truncate(self, index: int) -> None:
        self.checker.truncating(self, index)
        self.log = {known: term for known, term in self.log.items() if known < index}
        self.started_end = min(self.started_end, index - 1)
        super().truncate(index)

    def reset(self, index: int, pos: int) -> None:
        self.checker.resetting(self, index)
        old = self.before_reset
        if old is None:
            old = {known: term for known, term in self.log.items() if known <= self.flushed_index}
        # Later entries are other ones than the leader's.
        self.before_reset = {known: term for known, term in old.items() if known < index}
        self.log, self.reset_to, self.started_end = {}, index, -1
        self.resets += 1
        super().reset(index, pos)

    def repair(self, index: int, data: Buffer) -> None:
        written = self._at(index).data
        super().repair(index, data)
        self.checker.repairing(self.node_id, index, bytes(data), written)

    def save_term(self, term: int, vote_leader: str | None) -> None:
        self.checker.saving_term(self, term, vote_leader)
        super().save_term(term, vote_leader)

    def save_cluster_id(self, cluster_id: str) -> None:
        self.checker.saving_cluster_id(self, cluster_id)
        super().save_cluster_id(cluster_id)

    # Called by the world

    def begin_flush(self) -> bool:
        """Start a flush. False if one runs already or there is nothing new."""
        if self.is_flushing or not self.needs_flush or self.failure is not None:
            return False
        self.is_flushing = True
        return True

    def end_flush(self) -> int:
        self.is_flushing = False
        self.disk.is_failing, self.is_flush_failing = self.is_flush_failing, False
        try:
            self.flush()
        except StoreError:
            self.checker.count("fsyncs that failed")
            raise
        finally:
            self.disk.is_failing = False
        if self.flushed_index >= 0:
            self.before_reset = None
        return self.flushed_index

    def expire(self, index: int) -> int:
        """Delete files with entries below that index only. Returns how many entries."""
        if not self._is_started:
            return 0
        self.expiry_hook = lambda *_: index
        begin = self.ledger_begin_index
        self.delete_expired(0, force=True)
        count = self.ledger_begin_index - begin
        for expired in range(begin, begin + count):
            del self.log[expired]
        return count
