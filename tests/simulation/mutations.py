"""Cores that are broken on purpose: each lacks one rule, which the simulation must detect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import Admitted, RejectedError
from pyspark_dledger.raft.core import Core, CoreConfig
from pyspark_dledger.raft.messages import (
    AppendRequest,
    PushRequest,
    PushType,
    PutRequest,
    Role,
    VoteRequest,
    VoteResult,
)
from tests.simulation.ledger import Ledger, Message, Tables, parse, unpack
from tests.simulation.run import Outcome, run_scenario
from tests.simulation.scenario import Scenario, make


class Mutant(Core):
    """`damage` removes a rule from a new core; `focus` changes a scenario so that this shows more often.

    ``caught_by``: a part of the violation's text, where another judge could catch it by chance. ``first_seed``: where
    to begin, for one that few seeds catch.
    """

    caught_by = ""
    first_seed = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.damage()

    def damage(self) -> None:
        """Nothing, for a mutant with another class of its store or of READ."""

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        return scenario


class CommitsOlderTerms(Mutant):
    """A majority is enough for entries of older terms (Raft's figure 8)."""

    def damage(self) -> None:
        self._commit_index._is_own = lambda _: True  # type: ignore[method-assign, assignment]


class VotesTwice(Mutant):
    """Forgets its vote."""

    def damage(self) -> None:
        give = self._election._give_vote

        def forgetful(candidate: str) -> bool:
            self._member.vote = None
            return give(candidate)

        judge = self._election._judge

        def generous(request: VoteRequest) -> VoteResult:
            found = judge(request)
            return VoteResult.ACCEPT if found is VoteResult.REJECT_ALREADY_VOTED else found

        self._election._give_vote = forgetful  # type: ignore[method-assign]
        self._election._judge = generous  # type: ignore[method-assign]


class ForgetsVotesOnDisk(Mutant):
    """Keeps its vote in memory only."""

    def damage(self) -> None:
        member = self._member
        save = member.save_term

        def save_without_vote(term: int, vote: str | None) -> bool:
            done = save(term, None) if term > member.term else True
            member.term, member.vote = term, vote
            return done

        member.save_term = save_without_vote  # type: ignore[method-assign]


class IgnoresLogsInVotes(Mutant):
    """Votes for candidates with any log."""

    def damage(self) -> None:
        self._election._judge_log = lambda _: None  # type: ignore[method-assign]


class KeepsItsTermAfterACrash(Mutant):
    """Leads a term again although it may have lost entries of it."""

    first_seed = 9

    def damage(self) -> None:
        self._election._may_have_led = False


class AcknowledgesBeforeTheDisk(Mutant):
    """Acknowledges pushed entries that are not durable."""

    def damage(self) -> None:
        follower, member = self._follower, self._member
        follower._reply = lambda _, token, response: member.reply(token, response)  # type: ignore[method-assign, assignment]


class CountsItselfBeforeTheDisk(Mutant):
    """Counts its own copy for a commit although it is not durable."""

    def damage(self) -> None:
        store = self._member.store

        class Hasty(type(self._member)):  # type: ignore[misc]
            durable_index = property(lambda _: store.ledger_end_index)

        self._member.__class__ = Hasty


class BelievesLateFlushes(Mutant):
    """Counts entries as flushed that were flushed before a truncation."""

    def damage(self) -> None:
        class Late(type(self._member)):  # type: ignore[misc]
            durable_index = property(lambda member: min(member._persisted, member.store.ledger_end_index))

            def truncate(self, index: int) -> None:
                self.store.truncate(index)

        self._member.__class__ = Late


class KeepsConflicts(Mutant):
    """Never truncates after a common entry, and acknowledges entries although it has others with these indexes."""

    def damage(self) -> None:
        follower, store = self._follower, self._member.store
        overwrite, truncate = follower._overwrite, follower._truncate

        def lazy(request: PushRequest) -> int:
            return request.last_index if request.last_index <= store.ledger_end_index else overwrite(request)

        def gentle(request: PushRequest) -> int:
            if request.first_index > store.ledger_end_index or request.first_index < store.ledger_begin_index:
                return truncate(request)
            follower._match_index = max(follower._match_index, request.first_index)
            return request.first_index

        follower._overwrite = lazy  # type: ignore[method-assign]
        follower._actions[PushType.TRUNCATE] = gentle


class RejectsWhatItAppended(Mutant):
    """Rejects an append that is in its log."""

    def damage(self) -> None:
        appends, member = self._appends, self._member
        handle = appends.handle

        def confused(request: AppendRequest, token: object) -> None:
            if appends.count != 1 or isinstance(request, PutRequest):
                handle(request, token)
                return
            member.store.append_as_leader(request.bodies, member.term)
            raise RejectedError(ResponseCode.LEADER_PENDING_FULL)

        appends.handle = confused  # type: ignore[method-assign]


class AppendsWithoutComparing(Mutant):
    """Pushes after its own end at once, and accepts every push that continues its log."""

    def damage(self) -> None:
        follower, replication, store = self._follower, self._replication, self._member.store
        append = follower._append

        def trusting(request: PushRequest) -> int:
            follower._match_index = max(follower._match_index, store.ledger_end_index)
            return append(request)

        changed = self._member.on_role

        def skip_compare() -> None:
            changed()
            for progress in replication._peers:
                progress.push_from(store.ledger_end_index + 1)

        follower._actions[PushType.APPEND] = trusting
        self._member.on_role = skip_compare


class CommitsWhatIsNotCompared(Mutant):
    """Believes the leader's commit index up to its own end (Java)."""

    def damage(self) -> None:
        member = self._member

        def believing(index: int) -> None:
            member.commit(min(index, member.store.ledger_end_index))

        self._follower._commit = believing  # type: ignore[method-assign]


class TruncatesForLateRequests(Mutant):
    """Truncates after a common entry even if the request is late (Java)."""

    first_seed = 22

    def damage(self) -> None:
        follower = self._follower
        truncate = follower._truncate

        def obedient(request: PushRequest) -> int:
            follower._match_index = -1
            return truncate(request)

        follower._actions[PushType.TRUNCATE] = obedient

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        network = replace(scenario.network, is_ordered=False, max_delay=100, duplication=0.3)
        return replace(scenario, nodes=3, network=network, faults=(*scenario.faults, "crash leader", "isolate leader"))


class ReadsWithoutAQuorum(Mutant):
    """Reports an absent entry without confirming its leadership."""

    def damage(self) -> None:
        self._heartbeats.confirm_leadership = lambda done: done(True)  # type: ignore[method-assign]

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("pause leader", "isolate leader")
        return replace(scenario, nodes=3, faults=faults, rates=(700, 1000, 1300), client_pause=50)


class ReadsTooEarly(Mutant):
    """Reports an absent entry before it knows what earlier leaders committed."""

    def damage(self) -> None:
        class Ready(type(self._commit_index)):  # type: ignore[misc]
            is_known = True

        self._commit_index.__class__ = Ready


class AcknowledgesAtOnce(Mutant):
    """Acknowledges an append before a quorum has it."""

    def damage(self) -> None:
        appends = self._appends
        append = appends._append

        def hasty(request, token):  # type: ignore[no-untyped-def]
            append(request, token)
            appends._respond(appends._pending[-1], ResponseCode.SUCCESS)

        appends._append = hasty  # type: ignore[method-assign]


class LeadsWithoutAMajority(Mutant):
    """Wins an election with one vote less than a majority."""

    def damage(self) -> None:
        self._member.quorum = max(1, self._member.quorum - 1)


def hostile(scenario: Scenario) -> Scenario:
    """A scenario with hostile peers, and time for them between few other faults."""
    return replace(scenario, nodes=3, faults=("strangers", "forgers", "isolate leader"), putters=0, is_appending=True)


class TakesStrangers(Mutant):
    """Accepts requests of members from any address."""

    first_seed = 18
    takes_strangers = True

    focus = staticmethod(hostile)


class ResetsAtOnce(Mutant):
    """Resets its log without asking the leader whether the entries have expired."""

    def damage(self) -> None:
        self._follower._check_reset = lambda _: None  # type: ignore[method-assign]

    focus = staticmethod(hostile)


class AdoptsAnyTerm(Mutant):
    """A message may raise the term by any amount."""

    def damage(self) -> None:
        member = self._member

        def adopt(term: int) -> bool:
            done = member.save_term(term, None)
            if done:
                member.become(Role.CANDIDATE, None)
            return done

        member.adopt = adopt  # type: ignore[method-assign]

    focus = staticmethod(hostile)


class MakesItsOwnClusterId(Mutant):
    """A leader makes a cluster id without asking all others for theirs."""

    def damage(self) -> None:
        agreement, member = self._cluster_id, self._member

        def hasty() -> None:
            if member.is_leader and not member.store.cluster_id:
                agreement._save(f"{member.random.getrandbits(64):x}")

        agreement.tick = hasty  # type: ignore[method-assign]

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("crash leader", "isolate leader", "pause leader", "split")
        return replace(scenario, nodes=3, faults=faults, java_pairs=frozenset(), fault_pause=200)


class TakesAnyMembers(Mutant):
    """Starts with other members than those of its store, and accepts members with other lists."""

    ignores_hellos = True

    def __init__(self, config: CoreConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(replace(config, changes_members=True), *args, **kwargs)

    @classmethod
    def focus(cls, scenario: Scenario) -> Scenario:
        faults = ("wrong peers", "isolate leader", "split")
        return replace(scenario, nodes=5, faults=faults, fault_pause=400, java_pairs=frozenset())


class PushesRaiseTerms(Mutant):
    """Follows the sender of a push of a larger term at once."""

    first_seed = 12

    def damage(self) -> None:
        follower, member = self._follower, self._member
        judge = follower._leader_error

        def trusting(request: PushRequest) -> ResponseCode | None:
            if member.term < request.term < member.term + 2**24 and request.leader_id in member.others:
                member.adopt(request.term)
            return judge(request)

        follower._leader_error = trusting  # type: ignore[method-assign]

    focus = staticmethod(hostile)


def with_puts(scenario: Scenario) -> Scenario:
    """A scenario with many puts and leader changes."""
    faults = ("crash leader", "isolate leader", "pause leader", "disk full")
    return replace(scenario, nodes=3, putters=2, faults=faults, is_appending=False)


class AcknowledgesDuplicatesAtOnce(Mutant):
    """Acknowledges a put of duplicates before they are committed."""

    def damage(self) -> None:
        application = self._application
        admit = application.admit

        def hasty(request: PutRequest) -> Admitted:
            return admit(request)._replace(min_commit_index=-1)

        application.admit = hasty  # type: ignore[method-assign]

    focus = staticmethod(with_puts)


class _Forgetful(Ledger):
    def rebuilt(self) -> Tables:
        return self.committed_tables.copy()


class ForgetsTheTail(Mutant):
    """A new leader's application knows only committed messages."""

    application_class = _Forgetful

    focus = staticmethod(with_puts)


class _Stale(Ledger):
    old: Tables | None = None

    def rebuilt(self) -> Tables:
        self.old = self.old or super().rebuilt()
        return self.old


class KeepsOldTables(Mutant):
    """A leader that leads again continues with the tables of its first leadership."""

    application_class = _Stale

    focus = staticmethod(with_puts)


class _Counting(Ledger):
    def numbered(self, messages: Sequence[Message]) -> Admitted:
        assert self.tables is not None
        found = super().numbered(messages)
        for body in unpack(found.bodies) if found.bodies else ():
            message = parse(body)
            assert message is not None
            self.tables.ends[message.queue] = message.offset + 1
        return found


class CountsRejectedPuts(Mutant):
    """An application that assigns offsets before the messages are appended."""

    application_class = _Counting

    focus = staticmethod(with_puts)


def with_lost_disks(scenario: Scenario) -> Scenario:
    """A scenario in which logs begin late, and members without the earlier entries become leaders."""
    faults = ("expire", "replace disk", "replace disk", "transfer")
    pause = max(200, scenario.faulty_time // 25)
    return replace(with_puts(scenario), faults=faults, fault_pause=pause, java_pairs=frozenset(), is_sync=False)


class SlowSummary(Ledger):
    """Sends the state of expired messages in many small parts."""

    part_size = 10


class LeadsWithoutSummary(Mutant):
    """Leads although its application lacks state of expired entries (Java)."""

    application_class = SlowSummary

    def damage(self) -> None:
        class Eager(type(self._member)):  # type: ignore[misc]
            can_campaign = True

        self._member.__class__ = Eager

    focus = staticmethod(with_lost_disks)


def with_restored_disks(scenario: Scenario) -> Scenario:
    """A scenario in which members begin again with old backups while others fail."""
    faults = ("restore", "restore", "restore", "crash leader", "isolate leader", "power cut")
    pause = max(200, scenario.faulty_time // 30)
    scenario = replace(scenario, nodes=3, putters=0, is_appending=True, java_pairs=frozenset())
    return replace(scenario, faults=faults, fault_pause=pause)


class VotesAfterRestore(Mutant):
    """Votes and campaigns at once after a restore from a backup."""

    def damage(self) -> None:
        class Eager(type(self._member)):  # type: ignore[misc]
            can_vote = True

        self._member.__class__ = Eager

    focus = staticmethod(with_restored_disks)


class _Boasting(Ledger):
    needs_summary = False  # type: ignore[assignment]


class SendsIncompleteSummaries(Mutant):
    """An application that takes the tables of its own log for complete."""

    application_class = _Boasting

    focus = staticmethod(with_lost_disks)


def run_mutant(mutant: type[Mutant], seed: int) -> Outcome:
    return run_scenario(mutant.focus(make(seed)), mutant)


MUTANTS: tuple[type[Mutant], ...] = tuple(Mutant.__subclasses__())
