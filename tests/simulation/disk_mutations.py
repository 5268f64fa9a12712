"""Cores, stores and reads that break one rule of damage, disks, clocks or READ, which the simulation must detect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from pyspark_dledger.errors import DiskFullError
from pyspark_dledger.raft.messages import ReadRequest
from pyspark_dledger.raft.node.callers import Caller, LocalCaller
from pyspark_dledger.raft.node.committed_reads import CommittedReads
from pyspark_dledger.store.dledger_store import EntryRange
from tests.simulation.damage import DamagedEntry, flipped
from tests.simulation.disk import SimStore
from tests.simulation.mutations import Mutant
from tests.simulation.scenario import FLIPS, Scenario


def with_flips(scenario: Scenario) -> Scenario:
    """A scenario in which bits flip, and members need entries of others."""
    faults = (*FLIPS, "crash leader", "isolate")
    pause = max(200, scenario.faulty_time // 25)
    scenario = replace(scenario, nodes=3, spares=0, putters=0, is_appending=True, java_pairs=frozenset())
    return replace(scenario, faults=faults, fault_pause=pause)


def with_bad_disks(scenario: Scenario) -> Scenario:
    """A scenario in which disks get full or fail in fsyncs, between crashes."""
    faults = ("disk full in an append", "fsync fails", "fsync fails", "crash", "crash leader")
    pause = max(200, scenario.faulty_time // 30)
    return replace(scenario, nodes=3, is_sync=True, is_appending=True, faults=faults, fault_pause=pause)


class _Trusting(SimStore):
    def _problem(self, index: int) -> str | None:
        return None


class ServesDamagedEntries(Mutant):
    """A store that checks nothing when it reads."""

    first_seed = 7
    store_class = _Trusting
    caught_by = "entr"

    focus = staticmethod(with_flips)


class _BodiesOnly(SimStore):
    def flip_bit(self, random: Random, index: int) -> str | None:
        data = flipped(self._at(index).data, random.randrange(8 * 32, 8 * 40))
        self.damage[index] = DamagedEntry(data, self._unit(index))
        return "header"

    def _problem(self, index: int) -> str | None:
        found = self.damage.get(index)
        if found is None:
            return None
        seal = slice(32, 40)
        data = bytearray(found.data)
        data[seal] = self._at(index).data[seal]
        return found._replace(data=bytes(data)).problem(self._engine, index)


class MissesWrongChannels(Mutant):
    """A store that compares neither channel nor chainCrc of an entry."""

    first_seed = 3
    store_class = _BodiesOnly
    caught_by = "entry"

    focus = staticmethod(with_flips)


class LeadsWithDamage(Mutant):
    """Leads for ever although it cannot push a damaged entry."""

    first_seed = 11
    caught_by = "acknowledged within"

    def damage(self) -> None:
        self._repairs._check_leadership = lambda: None  # type: ignore[method-assign]

    focus = staticmethod(with_flips)


class _Hiding(SimStore):
    def cannot_remove(self) -> None:
        raise DiskFullError("the disk is full")


class RejectsWhatItWrote(Mutant):
    """A store that says "nothing was appended" although it could not remove what it wrote to a full disk."""

    first_seed = 14
    store_class = _Hiding
    # Another entry takes the index of the one that is left.
    caught_by = "differs from one before"

    focus = staticmethod(with_bad_disks)


class _Forgiving(SimStore):
    lost_from: int | None = None

    def flush_failed(self) -> None:
        self.lost_from = min(self.flushed_index + 1, self.lost_from if self.lost_from is not None else 1 << 60)

    def _kept(self, random: Random, durable: int, end: int) -> int:
        if self.lost_from is not None:
            durable = max(min(durable, self.lost_from - 1), self.ledger_begin_index - 1)
        return super()._kept(random, durable, end)


class BelievesFailedFlushes(Mutant):
    """A store that tries a failed fsync again, which then tells nothing of what was lost."""

    store_class = _Forgiving

    focus = staticmethod(with_bad_disks)


class ReadsByLease(Mutant):
    """Trusts a clock that can go back: no other member leads within a heartbeat after a majority responded."""

    caught_by = "committed read"

    def damage(self) -> None:
        beats, member = self._heartbeats, self._member
        confirm = beats.confirm_leadership

        def trust(clock: int) -> None:
            member.now = clock

        member.set_clock = trust  # type: ignore[method-assign]

        def by_lease(done: Callable[[bool], None]) -> None:
            age = member.now - beats._quorum_value("sent_at", member.now)
            if age < member.config.heart_beat_time_interval_ms:
                done(True)
            else:
                confirm(done)

        beats.confirm_leadership = by_lease  # type: ignore[method-assign]

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("clock back", "isolate leader")
        scenario = replace(scenario, nodes=3, spares=0, faults=faults, rates=(1000,) * 3, client_pause=50)
        return replace(scenario, fault_pause=max(200, scenario.faulty_time // 30))


class _Hasty(CommittedReads):
    def _committed_part(self, found: EntryRange) -> EntryRange:
        return found


class ReadsUncommittedEntries(Mutant):
    """READ returns entries after the committed index."""

    reads_class = _Hasty
    caught_by = "READ"


class _Stale(CommittedReads):
    def _respond(self, request: ReadRequest, caller: Caller | LocalCaller) -> None:
        store = self._store
        if not store.ledger_begin_index <= request.first_index <= store.committed_index:
            super()._respond(request, caller)
            return

        def done(found: EntryRange | Exception) -> None:
            caller.when_room(0, lambda: caller.respond(self._response(request, lambda _first, _size: found)))

        self._threads.read(request.first_index, request.max_bytes, done)


class ReadsTruncatedEntries(Mutant):
    """READ responds with what it read before it waited for memory."""

    reads_class = _Stale
    caught_by = "READ"
    first_seed = 9

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("isolate leader", "pause leader", "crash leader", "one way")
        return replace(scenario, nodes=3, spares=0, faults=faults, client_pause=20, fault_pause=400)


MUTANTS: tuple[type[Mutant], ...] = (
    ServesDamagedEntries,
    MissesWrongChannels,
    LeadsWithDamage,
    RejectsWhatItWrote,
    BelievesFailedFlushes,
    ReadsByLease,
    ReadsUncommittedEntries,
    ReadsTruncatedEntries,
)
