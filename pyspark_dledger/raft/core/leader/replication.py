"""A leader's log on its way to the other members, and what is committed by it (``DLedgerEntryPusher``).

Each peer is first compared with: the highest common entry is searched by halving, for a common entry makes all before
it common. Then what the peer has beyond is truncated, and entries are pushed, many requests at a time. Answers count by
the request that they answer, never by what they say, and only while nothing went wrong since it was sent.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.raft.core.leader.appends import Appends
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import PushRequest, PushResponse, PushType, Response
from pyspark_dledger.store.dledger_store import EntryRange

# Java waits this long for answers to COMPARE and TRUNCATE.
_COMPARE_TIME_OUT_MS = 3000
_FIRST_PAUSE_MS = (10, 100)
_PAUSE_MS = 500
_COMMIT_EVERY_MS = 1000
_COMMIT_GAP_MS = 10
_COMMIT_GAP_TO_JAVA_MS = 100
_QUOTA_WINDOW_MS = 1000
# A peer that refuses so many pushes in a row makes no progress; that is told no more often than so.
_MOST_REFUSED = 5
_TELL_REFUSED_MS = 60_000


class PeerProgress:
    """How far a peer is, and what is on its way to it."""

    __slots__ = (
        "asked_at",
        "batches",
        "commit_at",
        "commit_sent",
        "failures",
        "generation",
        "heard_at",
        "high",
        "in_flight",
        "in_flight_bytes",
        "is_asked",
        "low",
        "match_index",
        "next_index",
        "peer_end",
        "peer_id",
        "pushed_at",
        "quota_left",
        "quota_until",
        "refused",
        "resume_at",
        "state",
        "truncate_index",
    )

    def __init__(self, peer_id: str, batches: bool) -> None:
        self.peer_id = peer_id
        self.batches = batches
        self.generation = 0
        self.match_index = -1
        self.quota_left = self.quota_until = 0
        self.begin(0)

    def begin(self, now: int) -> None:
        """A new leadership: nothing is known of the peer."""
        self.match_index = -1
        self.commit_sent = -1
        self.commit_at = self.pushed_at = now
        self.failures = 0
        self.refused = 0
        self.resume_at = now
        self.compare()

    def compare(self) -> None:
        """Start anew with COMPARE; whatever is still on its way counts no more."""
        self.generation += 1
        self.state = PushType.COMPARE
        self.is_asked = False
        self.asked_at = self.heard_at = 0
        self.low, self.high = -1, -1
        self.next_index = self.truncate_index = self.peer_end = -1
        self.in_flight: dict[int, int] = {}
        self.in_flight_bytes = 0

    def push_from(self, index: int) -> None:
        """Go on with APPEND from that entry; whatever is still on its way counts no more."""
        self.generation += 1
        self.state, self.is_asked, self.next_index = PushType.APPEND, False, index
        self.in_flight, self.in_flight_bytes = {}, 0


class _Asked(NamedTuple):
    """A COMPARE, TRUNCATE or COMMIT: of what entry, and what the peer had when it was sent."""

    progress: PeerProgress
    generation: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls


class _Pushed(NamedTuple):
    progress: PeerProgress
    generation: int
    last_index: int
    first_index: int
    size: int


class Replication:
    """Pushes a leader's entries and finds what a quorum has."""

    def __init__(self, member: Member, appends: Appends) -> None:
        self._member = member
        self._appends = appends
        self._peers = {peer: PeerProgress(peer, member.config.enable_batch_push) for peer in member.others}
        self._all = tuple(self._peers.values())
        self._own_from = 0
        member.role_listeners.append(self._role_changed)

    def match_index(self, peer_id: str) -> int:
        return self._peers[peer_id].match_index

    def _role_changed(self) -> None:
        member = self._member
        if member.is_leader:
            store = member.store
            end = store.ledger_end_index
            self._own_from = end if end >= 0 and store.ledger_end_term == member.term else end + 1
        for progress in self._all:
            progress.begin(member.now)
        if member.is_leader and not self._all:
            self.advance()

    @property
    def knows_commits(self) -> bool:
        """Whether all that former leaders committed is known to be: an own entry is committed, or the whole log."""
        store = self._member.store
        committed = store.committed_index
        return committed >= self._own_from or committed == store.ledger_end_index

    # Commit

    def advance(self) -> None:
        """Commit what a quorum has, in the leader's own term, or what every member has."""
        member = self._member
        if not member.is_leader:
            return
        matches = [progress.match_index for progress in self._all]
        matches.append(member.durable_index)
        matches.sort(reverse=True)
        committed = member.store.committed_index
        index = matches[member.quorum - 1]
        if index <= committed:
            return
        if not self._is_own(index):
            index = matches[-1]
            if index <= committed:
                return
        if member.commit(index):
            self._appends.committed(member.store.committed_index)

    def _is_own(self, index: int) -> bool:
        return index >= self._own_from or self._member.store.term_at(index) == self._member.term

    # Time

    def tick(self) -> None:
        """Give up on what was not answered in time."""
        member = self._member
        if not member.is_leader:
            return
        for progress in self._all:
            if progress.in_flight:
                if member.now - progress.heard_at >= member.config.max_push_time_out_ms:
                    self._push_again(progress)
            elif progress.is_asked and member.now - progress.asked_at >= self._patience(progress):
                self._fail(progress)

    def _patience(self, progress: PeerProgress) -> int:
        """How long to wait for a comparison: longer after it failed, for a peer with a slow disk must get through."""
        return _COMPARE_TIME_OUT_MS if progress.failures > 1 else self._member.config.max_push_time_out_ms

    def _push_again(self, progress: PeerProgress) -> None:
        """Pushes were not answered: once, the same again; if that fails too, compare."""
        if progress.failures:
            self._fail(progress)
        else:
            progress.failures = 1
            progress.push_from(progress.match_index + 1)

    def _fail(self, progress: PeerProgress) -> None:
        """Something went wrong with that peer: compare again, after a pause."""
        member = self._member
        least, most = _FIRST_PAUSE_MS
        pause = _PAUSE_MS if progress.failures else member.random.randrange(least, most)
        progress.failures += 1
        progress.resume_at = member.now + pause
        progress.compare()

    # Sending

    def pump(self) -> None:
        """Send every peer what it may be sent now."""
        if not self._member.is_leader:
            return
        for progress in self._all:
            if self._member.now >= progress.resume_at:
                self._pump(progress)

    def _pump(self, progress: PeerProgress) -> None:
        try:
            if progress.state is PushType.APPEND:
                self._push(progress)
            elif not progress.is_asked:
                self._ask(progress)
        except IndexRangeError:
            # Expired meanwhile.
            self._fail(progress)
        except DISK_FAILURES as error:
            self._member.problem(f"entries for {progress.peer_id} cannot be read: {error}")
            self._fail(progress)

    def _request(self, progress: PeerProgress, kind: PushType, entries: EntryRange | None) -> PushRequest:
        member = self._member
        request = PushRequest(
            group=member.group,
            remote_id=progress.peer_id,
            local_id=member.self_id,
            leader_id=member.self_id,
            term=member.term,
            type=kind,
            commit_index=member.store.committed_index,
        )
        if entries is not None:
            request.first_index = entries.first_index
            request.count = entries.last_index - entries.first_index + 1
            request.data = entries.data
        progress.commit_sent = request.commit_index
        progress.pushed_at = member.now
        return request

    def _push(self, progress: PeerProgress) -> None:
        member, config = self._member, self._member.config
        end = member.store.ledger_end_index
        while (
            progress.next_index <= end
            and progress.in_flight_bytes < config.max_in_flight_bytes
            and len(progress.in_flight) < config.max_in_flight_requests
            and self._may_send(progress)
        ):
            self._push_next(progress, member.store.read(progress.next_index, self._push_limit(progress)))
        if progress.next_index > end and not progress.in_flight:
            self._push_commit(progress)

    def _push_limit(self, progress: PeerProgress) -> int:
        config = self._member.config
        if progress.peer_id in self._member.ours:
            return config.max_push_bytes
        return config.max_batch_push_size if progress.batches else 1

    def _push_next(self, progress: PeerProgress, entries: EntryRange) -> None:
        member = self._member
        size = len(entries.data)
        request = self._request(progress, PushType.APPEND, entries)
        request.is_batch = progress.batches
        if not progress.in_flight:
            progress.heard_at = member.now
        pushed = _Pushed(progress, progress.generation, entries.last_index, entries.first_index, size)
        member.send(progress.peer_id, request, self._push_answered, pushed)
        progress.in_flight[entries.first_index] = size
        progress.in_flight_bytes += size
        progress.next_index = entries.last_index + 1
        progress.quota_left -= size

    def _may_send(self, progress: PeerProgress) -> bool:
        """Whether the quota of a peer that is far behind leaves room (``checkQuotaAndWait``)."""
        member, config = self._member, self._member.config
        if config.peer_push_quota is None:
            return True
        behind = member.store.end_pos - member.store.read(progress.next_index, 1).pos
        if behind < config.peer_push_throttle_point:
            return True
        if member.now >= progress.quota_until:
            progress.quota_until = member.now + _QUOTA_WINDOW_MS
            progress.quota_left = config.peer_push_quota
        return progress.quota_left > 0

    def _push_commit(self, progress: PeerProgress) -> None:
        """Tell an idle peer what is committed: soon where that is new, else now and then."""
        member = self._member
        if progress.is_asked:
            return
        is_new = member.store.committed_index > progress.commit_sent
        gap = _COMMIT_GAP_MS if progress.peer_id in member.ours else _COMMIT_GAP_TO_JAVA_MS
        since = member.now - progress.commit_at
        if not (is_new and since >= gap) and member.now - progress.pushed_at < _COMMIT_EVERY_MS:
            return
        progress.is_asked, progress.asked_at, progress.commit_at = True, member.now, member.now
        request = self._request(progress, PushType.COMMIT, None)
        asked = _Asked(progress, progress.generation, progress.match_index)
        member.send(progress.peer_id, request, self._commit_answered, asked)

    def _ask(self, progress: PeerProgress) -> None:
        """Send the next COMPARE, or the TRUNCATE that it led to."""
        member = self._member
        if progress.state is PushType.TRUNCATE:
            index, answered = progress.truncate_index, self._truncate_answered
        else:
            if progress.high < 0:
                progress.high = member.store.ledger_end_index
                progress.low = -1
                progress.next_index = progress.high
            if progress.high < 0:
                return
            index, answered = progress.next_index, self._compare_answered
        request = self._request(progress, progress.state, member.store.read(index, 1))
        progress.is_asked, progress.asked_at = True, member.now
        member.send(progress.peer_id, request, answered, _Asked(progress, progress.generation, index))

    # Answers

    def _is_stale(self, progress: PeerProgress, generation: int) -> bool:
        return generation != progress.generation or not self._member.is_leader

    def _push_answered(self, pushed: _Pushed, answer: Response | None) -> None:
        progress = pushed.progress
        if self._is_stale(progress, pushed.generation):
            return
        if answer is None or answer.code != ResponseCode.SUCCESS or answer.term != self._member.term:
            if answer is not None and answer.code == ResponseCode.UNEXPECTED_ARGUMENT:
                # Up to 0.2.7, Java followers take either batches or single entries, by their own enableBatchPush.
                progress.batches = not progress.batches
            self._note_refused(progress, pushed.first_index, answer)
            self._fail(progress)
            return
        del progress.in_flight[pushed.first_index]
        progress.in_flight_bytes -= pushed.size
        progress.heard_at = self._member.now
        progress.failures = 0
        if pushed.last_index > progress.match_index:
            progress.match_index = pushed.last_index
            if progress.refused:
                self._takes_again(progress)
            if pushed.last_index > self._member.store.committed_index:
                self.advance()

    def _commit_answered(self, asked: _Asked, answer: Response | None) -> None:
        progress = asked.progress
        if self._is_stale(progress, asked.generation):
            return
        progress.is_asked = False
        # A peer that restarted may have lost what it had, or does not know how far its log is ours.
        if (
            not isinstance(answer, PushResponse)
            or answer.code != ResponseCode.SUCCESS
            or answer.end_index < asked.index
        ):
            self._fail(progress)

    def _compare_answered(self, asked: _Asked, answer: Response | None) -> None:
        progress = asked.progress
        if self._is_stale(progress, asked.generation):
            return
        progress.is_asked = False
        if not isinstance(answer, PushResponse) or answer.term != self._member.term:
            self._fail(progress)
        elif answer.code == ResponseCode.SUCCESS:
            progress.low, progress.peer_end = asked.index, answer.end_index
            self._compare_next(progress, answer, is_first_guess=False)
        elif answer.code == ResponseCode.INCONSISTENT_STATE:
            progress.peer_end = answer.end_index
            progress.high = min(asked.index - 1, answer.end_index)
            self._compare_next(progress, answer, is_first_guess=answer.end_index < asked.index)
        else:
            self._fail(progress)

    def _compare_next(self, progress: PeerProgress, answer: PushResponse, *, is_first_guess: bool) -> None:
        """Halve what is left between the highest common entry known and the lowest that differs."""
        own_begin = self._member.store.ledger_begin_index
        least = max(progress.low + 1, own_begin, answer.begin_index)
        if progress.high >= least:
            # A peer that ends before this log most often has all of it up to there.
            progress.next_index = progress.high if is_first_guess else (least + progress.high + 1) // 2
        elif progress.low >= 0:
            self._found(progress, progress.low)
        else:
            progress.state, progress.truncate_index = PushType.TRUNCATE, own_begin

    def _found(self, progress: PeerProgress, common: int) -> None:
        """The log up to `common` is the peer's too."""
        progress.match_index = common
        if progress.peer_end > common:
            progress.state, progress.truncate_index = PushType.TRUNCATE, common
        else:
            progress.push_from(common + 1)
            self._settled(progress)
        self.advance()

    def _truncate_answered(self, asked: _Asked, answer: Response | None) -> None:
        progress = asked.progress
        if self._is_stale(progress, asked.generation):
            return
        progress.is_asked = False
        if answer is None or answer.code != ResponseCode.SUCCESS or answer.term != self._member.term:
            self._note_refused(progress, asked.index, answer)
            self._fail(progress)
            return
        progress.match_index = asked.index
        progress.push_from(asked.index + 1)
        self._settled(progress)
        self.advance()

    def _settled(self, progress: PeerProgress) -> None:
        if progress.next_index > self._member.store.ledger_end_index:
            progress.failures = 0
            self._takes_again(progress)

    # Peers that make no progress

    def _note_refused(self, progress: PeerProgress, index: int, answer: Response | None) -> None:
        """A push was not taken; that a peer refuses one after the other is a problem."""
        if not isinstance(answer, PushResponse) or answer.code != ResponseCode.INCONSISTENT_STATE:
            return
        progress.refused += 1
        if progress.refused >= _MOST_REFUSED:
            self._member.problem(
                f"expected {progress.peer_id} to take entry {index}, found it refused {progress.refused} times in a "
                f"row (INCONSISTENT_STATE), where its log ends at {answer.end_index}: look at what {progress.peer_id} "
                "reports; data file sizes must be equal at every member",
                _kind(progress),
                _TELL_REFUSED_MS,
            )

    def _takes_again(self, progress: PeerProgress) -> None:
        if progress.refused:
            progress.refused = 0
            self._member.solved(_kind(progress))


def _kind(progress: PeerProgress) -> str:
    """Of what kind the problem is that a peer refuses pushes."""
    return f"pushes to {progress.peer_id}"
