"""Real stores that break one rule of disks, which the simulation with power losses must detect."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from pyspark_dledger.format import state_files
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE
from pyspark_dledger.store.files import node_files
from pyspark_dledger.store.recovery import recover
from pyspark_dledger.store.recovery.log_walk import LogWalk
from tests.simulation import membership_mutations
from tests.simulation.mutations import Mutant
from tests.simulation.power_store import PowerStore
from tests.simulation.scenario import Scenario, make_on_disk


def _on_disk(scenario: Scenario, is_sync: bool, *faults: str) -> Scenario:
    scenario = make_on_disk(scenario.seed)
    return replace(scenario, is_sync=is_sync, faults=faults, fault_pause=max(200, scenario.faulty_time // 20))


class _Hasty(PowerStore):
    def flush(self) -> int:
        self.flushed_index = self.ledger_end_index
        return self.flushed_index


class AcknowledgesBeforeFsync(Mutant):
    """A store that calls entries durable without an fsync."""

    store_class = _Hasty
    caught_by = "starts without the entries"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return _on_disk(scenario, True, "power cut", "power losses")


class _EarlyUnits(PowerStore):
    def startup(self, services: bool = False) -> None:
        super().startup(services)
        files = self._files

        def write_units(first: int, units: bytes | bytearray, _: bool) -> None:
            files.index.write(first * INDEX_UNIT_SIZE, units)

        files.write_units = write_units  # type: ignore[method-assign]


class WritesUnitsBeforeEntries(Mutant):
    """A store that writes index units before their entries are durable, and takes them as proof."""

    store_class = _EarlyUnits
    caught_by = "start"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return _on_disk(replace(scenario, body_size=300), True, "power cut", "power losses")


class _Trusting(PowerStore):
    def startup(self, services: bool = False) -> None:
        with mock.patch.object(LogWalk, "_torn_end", lambda _, end: end):
            super().startup(services)


class TrustsEntriesAfterPowerLoss(Mutant):
    """A store with flush=async that checks no entry after the last checkpoint."""

    store_class = _Trusting
    caught_by = "starts with"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return replace(_on_disk(scenario, False, "power cut", "power cut of leader"), body_size=2000)


class _Forgiving(PowerStore):
    def startup(self, services: bool = False) -> None:
        with mock.patch.object(recover, "_write_again"):
            super().startup(services)


class BelievesMemoryAfterFailedFsync(Mutant):
    """A store that takes what is in the system's memory for durable, after an fsync failed in an earlier process."""

    store_class = _Forgiving
    caught_by = "start"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return _on_disk(scenario, True, "fsync fails", "fsync fails", "power cut", "power losses")


class _Overwriting(PowerStore):
    def _save_term(self, term: int, vote_leader: str | None) -> None:
        data = state_files.encode_state_file({"voteLeader": vote_leader or "", "currTerm": term})
        (self.config.node_dir / "currterm").write_bytes(data)
        self.curr_term, self.vote_leader = term, vote_leader


class KeepsVotesInMemory(Mutant):
    """A store that does not sync the file of its vote."""

    store_class = _Overwriting
    caught_by = "start"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return _on_disk(scenario, True, "power losses", "power cut of leader")


def _without_check(data: bytes) -> dict[str, str]:
    return {key: value for key, value in state_files.parse_properties_file(data).items() if key != "crc"}


class _Credulous(PowerStore):
    state_files = ("currterm",)

    def startup(self, services: bool = False) -> None:
        with (
            mock.patch.object(state_files, "parse_state_file", _without_check),
            mock.patch.object(node_files, "parse_state_file", _without_check),
        ):
            super().startup(services)


class IgnoresChecksums(Mutant):
    """A store that reads state files without their checksum."""

    store_class = _Credulous
    caught_by = "starts with term"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return _on_disk(scenario, scenario.seed % 2 == 0, "flip a bit of state", "transfer")


class _Unchecked(PowerStore):
    def startup(self, services: bool = False) -> None:
        self.read_check = lambda *_: None  # type: ignore[method-assign, assignment]
        super().startup(services)


class ServesFlippedBodies(Mutant):
    """A store that reads bodies without their checksums."""

    store_class = _Unchecked
    caught_by = "entr"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return _on_disk(scenario, scenario.seed % 2 == 0, "flip bits", "flip bits at rest", "crash", "crash leader")


class _CutsDamage(PowerStore):
    def startup(self, services: bool = False) -> None:
        with (
            mock.patch.object(recover.Recovery, "_check_end"),
            mock.patch.object(LogWalk, "_end_without_header", return_value=None),
        ):
            super().startup(services)


class TakesDamageForATornEnd(Mutant):
    """A store that ends its log before a damaged entry when it starts."""

    store_class = _CutsDamage
    caught_by = "starts without the entries"

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return _on_disk(scenario, scenario.seed % 2 == 0, "flip bits at rest", "transfer")


class JoinsBeforeTheDisk(membership_mutations.JoinsBeforeTheDisk):
    """With flush=async, a member with a new disk votes as soon as it has all entries, which a power loss takes."""

    first_seed = 73

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        changed = _on_disk(scenario, False, "replace disk", "power cut", "power cut", "power cut")
        return replace(changed, fsync=(5000,) * 3)


MUTANTS: tuple[type[Mutant], ...] = (
    AcknowledgesBeforeFsync,
    WritesUnitsBeforeEntries,
    TrustsEntriesAfterPowerLoss,
    BelievesMemoryAfterFailedFsync,
    KeepsVotesInMemory,
    IgnoresChecksums,
    ServesFlippedBodies,
    TakesDamageForATornEnd,
    JoinsBeforeTheDisk,
)
