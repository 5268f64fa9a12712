"""Cores that break one rule of membership changes, which the simulation must detect."""

from __future__ import annotations

from dataclasses import replace

from pyspark_dledger.errors import StoreError
from tests.simulation.mutations import Mutant, SlowSummary
from tests.simulation.scenario import Scenario


def with_changes(scenario: Scenario) -> Scenario:
    """A scenario with many changes of members, between elections."""
    faults = ("isolate leader", "split", "crash leader", *("change members",) * 4)
    pause = max(150, scenario.faulty_time // 40)
    return replace(scenario, nodes=3, spares=2, faults=faults, fault_pause=pause, java_pairs=frozenset())


class ChangesTwiceAtOnce(Mutant):
    """Begins a change before the list before is committed."""

    first_seed = 77

    def damage(self) -> None:
        class Hasty(type(self._member.members)):  # type: ignore[misc]
            is_committed = True

        self._member.members.__class__ = Hasty

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return replace(with_changes(scenario), nodes=4, faults=("change on two sides", "change members"))


class ChangesWithoutAnOwnEntry(Mutant):
    """Begins a change before an entry of the leader's own term is committed."""

    first_seed = 11
    caught_by = "committed"

    def damage(self) -> None:
        self._commit_index.has_own = lambda _=None: True  # type: ignore[method-assign]

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return replace(with_changes(scenario), nodes=4, faults=("change on two sides", "change members"))


class CountsLearners(Mutant):
    """Counts the copies of learners for a commit."""

    def damage(self) -> None:
        member = self._member

        changed = member.on_members

        def count_all() -> None:
            member.voters = frozenset(member.others)
            changed()

        member.on_members = count_all
        count_all()

    focus = staticmethod(with_changes)


class ChangesAtTheCommit(Mutant):
    """A list takes effect when its entry is committed."""

    first_seed = 3

    def damage(self) -> None:
        members = self._member.members
        members._latest = lambda: members.committed  # type: ignore[method-assign]
        committed = self._member.on_commit

        def take_over(index: int) -> None:
            committed(index)
            members._take_over()

        self._member.on_commit = take_over

    focus = staticmethod(with_changes)


class KeepsTruncatedLists(Mutant):
    """A list stays in effect when its entry is truncated."""

    first_seed = 14

    def damage(self) -> None:
        self._member.members.truncated = lambda: None  # type: ignore[method-assign]

    focus = staticmethod(with_changes)


class CountsByTheListBefore(Mutant):
    """Counts votes and copies by the list before if the file of members cannot be written."""

    first_seed = 10

    def damage(self) -> None:
        members = self._member.members
        count = members.on_change

        def save_first() -> None:
            try:
                members._save()
            except StoreError:
                return
            count()

        members.on_change = save_first

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("members file fails",) * 4 + ("change members",) * 4 + ("isolate leader", "split")
        return replace(with_changes(scenario), faults=faults)


class CampaignsInATermThatHadALeader(Mutant):
    """Campaigns in the term whose leader changed the members."""

    first_seed = 31

    def damage(self) -> None:
        class Old(type(self._member.members)):  # type: ignore[misc]
            current = property(
                lambda members: members._current._replace(term=-1),
                lambda members, found: setattr(members, "_current", found),
            )

        members = self._member.members
        found = members.__dict__.pop("current")
        members.__class__ = Old
        members.current = found

    focus = staticmethod(with_changes)


class VotesWithAnEmptyDisk(Mutant):
    """Votes before it has what it acknowledged with an earlier disk."""

    caught_by = "which it had on another disk"

    def damage(self) -> None:
        class Careless(type(self._member)):  # type: ignore[misc]
            can_vote = property(lambda member: member.store.ledger_end_term >= member.store.restored_term)

        self._member.__class__ = Careless

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("replace disk", "replace disk", "crash leader", "isolate", "long outage", "change members")
        changed = with_changes(scenario)
        return replace(changed, faults=faults, is_sync=False, putters=max(1, scenario.putters))


class TakesALostDiskForANewGroup(Mutant):
    """With an empty disk it votes for members with entries, and does not join, unless it was told to."""

    caught_by = "which it had on another disk"

    def damage(self) -> None:
        self._member.members.may_have_lost_disk = lambda *_: False

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return replace(VotesWithAnEmptyDisk.focus(scenario), spares=0)


class JoinsBeforeTheDisk(Mutant):
    """Votes as soon as it has all entries, which a crash can take back."""

    first_seed = 61
    caught_by = "which it had on another disk"

    def damage(self) -> None:
        follower, member = self._follower, self._member

        def join(index: int) -> None:
            committed = member.store.committed_index
            if max(index, 0) <= committed and member.store.term_at(committed) == member.term:
                member.members.joined()

        follower._check_joined = join  # type: ignore[method-assign]

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("replace disk", "replace disk", "fsync fails", "crash", "crash leader")
        changed = replace(scenario, nodes=2, spares=0, java_pairs=frozenset(), faults=faults, is_sync=True)
        return replace(changed, fault_pause=max(150, scenario.faulty_time // 40), fsync=(100,) * 2)


class RefusesByPastLists(Mutant):
    """Refuses others by a list that the log brought, although its present leader may not be in it."""

    caught_by = "within"
    first_seed = 359

    @property
    def knows_members(self) -> bool:
        return True

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return replace(with_changes(scenario), faults=("sleep through changes", "change members"))


class ForgetsTheListBeforeAReset(Mutant):
    """Takes no list over when its log is reset: it knows none before the new begin."""

    first_seed = 134

    def damage(self) -> None:
        members = self._member.members
        resetting = members.resetting
        members.resetting = lambda index, _: resetting(index, None)  # type: ignore[method-assign]

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("expire", "expire", "long outage", "crash leader", *("change members",) * 3)
        return replace(with_changes(scenario), nodes=4, faults=faults)


class TakesTheStateAway(Mutant):
    """A leader removes itself although no other member has the state of expired messages."""

    caught_by = "no member has the state"
    application_class = SlowSummary

    def damage(self) -> None:
        self._changes._is_state_kept = lambda _: True  # type: ignore[method-assign]

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("expire", "expire", *("change members",) * 4)
        return replace(with_changes(scenario), nodes=2, faults=faults, putters=max(1, scenario.putters))


MUTANTS: tuple[type[Mutant], ...] = (
    ChangesTwiceAtOnce,
    ChangesWithoutAnOwnEntry,
    CountsLearners,
    ChangesAtTheCommit,
    KeepsTruncatedLists,
    CountsByTheListBefore,
    CampaignsInATermThatHadALeader,
    VotesWithAnEmptyDisk,
    TakesALostDiskForANewGroup,
    JoinsBeforeTheDisk,
    RefusesByPastLists,
    ForgetsTheListBeforeAReset,
    TakesTheStateAway,
)
