"""Simulates power losses under a store: of the unsynced blocks of the disk, any subset is lost.

``make power`` runs it. What a disk loses: `tests.support.power_disk`. Acknowledged entries must be there with
their bytes, and every entry must be one that was appended. Processes are killed too, which loses nothing that was
written. With ``--flush async`` only the entries of the last checkpoint count as acknowledged.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from unittest import mock

from pyspark_dledger.errors import DiskFullError, StoreError
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.store.files import node_files
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.power_disk import Disk, connected
from tests.support.seeds import Kit, Result

_LIVES = 4
_MAX_BYTES = 20_000


class Known:
    """The appended and the acknowledged entries."""

    def __init__(self) -> None:
        self.appended: dict[tuple[int, int], bytes] = {}  # by index and term
        self.log: dict[int, int] = {}  # the term of each index of the log
        self.acknowledged: set[int] = set()
        self.before_reset: tuple[dict[int, int], set[int]] | None = None

    def truncate(self, index: int) -> None:
        self.acknowledged = {held for held in self.acknowledged if held < index}

    def copy(self) -> Known:
        other = Known()
        other.appended, other.log = self.appended, dict(self.log)
        other.acknowledged, other.before_reset = set(self.acknowledged), self.before_reset
        return other

    def check(self, store: MmapFileStore) -> None:
        """Check a store that was opened after the power loss."""
        there = {}
        for index in range(store.ledger_begin_index, store.ledger_end_index + 1) if store.ledger_end_index >= 0 else ():
            entry = store.get(index)
            assert self.appended.get((index, entry.term)) == entry.body, f"nobody appended entry {index}: {entry}"
            there[index] = entry.term
        held = [(self.log, self.acknowledged), *([self.before_reset] if self.before_reset is not None else [])]
        if self.before_reset is not None and not self.acknowledged:
            del held[0]  # until an entry of the new log is acknowledged, the old log must be there, or the new one
            if set(there) and min(there) > max(self.before_reset[0], default=-1):
                held = [(there, set())]
        assert any(all(there.get(index) == log[index] for index in acked) for log, acked in held), (
            f"acknowledged were {[sorted(acked)[-3:] for _, acked in held]}, found {sorted(there)[-3:]}"
        )
        self.log, self.before_reset = there, None
        self.acknowledged = set(there)  # recovery flushes all entries that it keeps


class Life:
    """One process: it opens the store, works, and ends by a power loss or a kill."""

    def __init__(
        self, folder: Path, target: Path, disk: Disk, known: Known, term: int, draw: random.Random, flush: str
    ) -> None:
        self._folder, self._target, self._disk, self._known = folder, target, disk, known
        self._term = term
        self._draw = draw
        self._left = draw.choice((draw.randrange(12), draw.randrange(200)))
        self._flushed_pos = 0
        self.after: Known | None = None  # what was known at the power loss
        self._store = MmapFileStore(
            StoreConfig(folder, data_file_size=draw_size(folder), index_file_size=6400, flush=flush)
        )

    def run(self) -> None:
        self._disk.on_event = self._event
        try:
            with connected(lambda _: self._disk):
                self._store.startup()
                self._known.check(self._store)
                for _ in range(self._draw.randrange(1, 25)):
                    if self.after is not None:
                        return
                    self._work()
        finally:
            self._disk.on_event = lambda: None
            self._disk.room = None
            self._abandon()

    def lose_power(self) -> None:
        """Lose the power at the end of the run, unless it was lost before."""
        if self.after is None:
            self._left = 0
            self._event()

    def _event(self) -> None:
        self._left -= 1
        if self._left < 0 and self.after is None:
            self.after = self._known.copy()
            self._disk.after_loss(self._target)

    def _abandon(self) -> None:
        store = self._store
        store._files.close()
        store._lock.release()
        store._is_started = False

    def _work(self) -> None:
        names = ["append"] * 4 + ["follow"] * 2 + ["flush"] * 4
        names += ["truncate", "commit", "check_point", "fail", "reset" if self._draw.random() < 0.3 else "append"]
        getattr(self, f"_{self._draw.choice(names)}")()

    def _bodies(self) -> list[bytes]:
        """Random bodies; many contain blocks of zeros, or nothing else."""
        draw, found = self._draw, []
        for _ in range(draw.choice((1, 3, draw.randrange(1, 40)))):
            body = bytearray(draw.randbytes(draw.choice((0, 1, 10, 100, 1000, draw.randrange(6000)))))
            if draw.random() < 0.1:
                start = draw.randrange(len(body) + 1)
                end = draw.choice((len(body), draw.randrange(start, len(body) + 1)))
                body[start:end] = bytes(end - start)
            if sum(map(len, found)) + len(body) < _MAX_BYTES:
                found.append(bytes(body))
        self._flush_far()
        return found

    def _flush_far(self) -> None:
        """Flush before a fourth unflushed file: recovery rejects damage before the last three files."""
        if (
            self._store.end_pos // self._store._files.data.file_size
            > self._flushed_pos // self._store._files.data.file_size
        ):
            self._flush()

    def _note(self, bodies: list[bytes]) -> None:
        first = self._store.ledger_end_index + 1 if self._store.ledger_end_index >= 0 else self._store._next_index
        for index, body in enumerate(bodies, first):
            self._known.appended[index, self._term] = body
            self._known.log[index] = self._term

    def _append(self) -> None:
        bodies = self._bodies()
        self._note(bodies)
        self._store.append_as_leader(bodies, self._term)
        self._read()

    def _follow(self) -> None:
        """Append entries of one file, as from a leader."""
        store, engine = self._store, get_engine("auto")
        bodies, pos, size = self._bodies(), store.end_pos, store._files.data.file_size
        packed = engine.pack_bodies(bodies)
        encoded = engine.encode_entries(packed, 0, store._next_index, self._term, pos, size - pos % size)
        if encoded.count == 0:
            pos += size - pos % size
            if store.ledger_end_index < 0:
                return
            encoded = engine.encode_entries(packed, 0, store._next_index, self._term, pos, size)
        self._note(bodies[: encoded.count])
        store.append_as_follower(encoded.data, self._term)
        self._read()

    def _fail(self) -> None:
        """Append until the disk is full; its indexes and its term are not used again."""
        bodies = self._bodies()
        before = dict(self._known.log)
        self._note(bodies)
        self._disk.room = self._draw.randrange(1, 9000)
        with suppress(DiskFullError):
            self._store.append_as_leader(bodies, self._term)
            before = self._known.log
        self._disk.room = None
        self._known.log = before
        self._term += 1

    def _read(self) -> None:
        """Read an entry: appended entries are readable at once."""
        store = self._store
        index = self._draw.randrange(store.ledger_begin_index, store.ledger_end_index + 1)
        entry = store.get(index)
        assert (entry.term, entry.body) == (self._known.log[index], self._known.appended[index, entry.term])
        assert store.term_at(index) == entry.term

    def _flush(self) -> None:
        was_reset = self._store._files.is_reset
        flushed = self._store.flush()
        self._flushed_pos = self._store.end_pos
        assert flushed == self._store.ledger_end_index
        # The end of a reset writes a checkpoint.
        if self._store.config.flush == "sync" or (was_reset and not self._store._files.is_reset):
            self._acknowledge(flushed)

    def _acknowledge(self, flushed: int) -> None:
        if flushed >= 0:
            self._known.before_reset = None
            self._known.acknowledged.update(index for index in self._known.log if index <= flushed)

    def _commit(self) -> None:
        self._store.update_committed_index(self._term, self._draw.randrange(self._store.flushed_index + 2))

    def _check_point(self) -> None:
        self._store.write_checkpoint()
        if not self._store._files.is_reset:
            self._acknowledge(self._store.flushed_index)

    def _truncate(self) -> None:
        store = self._store
        least = max(store.committed_index + 1, store.ledger_begin_index)
        if 0 <= least <= store.ledger_end_index:
            index = self._draw.randrange(least, store.ledger_end_index + 1)
            self._known.truncate(index)
            store.truncate(index)
            self._known.log = {held: term for held, term in self._known.log.items() if held < index}
            self._term += 1

    def _reset(self) -> None:
        store, size = self._store, self._store._files.data.file_size
        if store.ledger_end_index >= 0 and store._reader.locate(store.ledger_begin_index).pos % size:
            return  # only the index knows the begin of such a log, and a reset deletes the index
        if self._known.before_reset is None:
            self._known.before_reset = (dict(self._known.log), set(self._known.acknowledged))
        index = store._next_index + self._draw.randrange(1, 500)
        pos = store.end_pos - store.end_pos % size + size * self._draw.randrange(1, 3)
        self._known.acknowledged = set()
        store.reset(index, pos + self._draw.choice((0, 0, self._draw.randrange(size // 2))))
        self._known.log = {}
        self._term += 1


def draw_size(folder: Path) -> int:
    """A data file size that is not always a whole number of sectors."""
    return 24 * 1024 + (100 if folder.parent.name.endswith("0") else 0)


def one_run(seed: int, base: Path, flush: str = "sync") -> int:
    """A few lives of one store. Returns the number of power losses that were checked."""
    draw = random.Random(seed)
    block = draw.choice((512, 4096, 4096))
    known, losses = Known(), 0
    folder = base / f"run{seed}" / "0"
    folder.mkdir(parents=True)
    boot_file = base / f"run{seed}" / "boot"
    boot_file.write_text("0")
    disk = Disk(folder, block, draw)
    for number in range(1, _LIVES + 1):  # nothing checks the store after the last life
        target = folder.parent / str(number)
        life = Life(folder, target, disk, known, 100 * number, draw, flush)
        try:
            with mock.patch.object(node_files, "_BOOT_ID", boot_file):
                life.run()
        except StoreError:
            # If the first blocks of a log are lost, only an operator can decide that nothing was acknowledged.
            assert not known.acknowledged, "a store with acknowledged entries was rejected"
            assert known.before_reset is None or not known.before_reset[1], "a store that was reset was rejected"
            break
        if life.after is None and draw.random() < 0.3:
            continue  # killed: the next life continues in the same folder
        life.lose_power()
        assert life.after is not None
        boot_file.write_text(f"{number}")
        known, folder, losses = life.after, target, losses + (number < _LIVES)
        disk = Disk(folder, block, draw)
    shutil.rmtree(base / f"run{seed}")
    return losses


def check(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    return Result(counts=Counter({"power losses": one_run(seed, folder, options.flush)}))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")


KIT = Kit("tests.support.power", check, __doc__, 1000, add_options)

if __name__ == "__main__":
    sys.exit(KIT.main())
