"""Finds the highest entry that a peer's log has in common with the leader's, and truncates the peer's log after it.

The common entry is found by binary search with COMPARE: all entries before a common entry are common too.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.leader.peer_progress import PeerProgress
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import PushResponse, PushType, Response


class _SentEntry(NamedTuple):
    progress: PeerProgress
    generation: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls


class LogMatching:
    """Sends COMPARE and TRUNCATE until a peer's log can be appended to."""

    def __init__(self, member: Member, commit_index: CommitIndex) -> None:
        self._member = member
        self._commit_index = commit_index

    def send(self, progress: PeerProgress) -> None:
        """Send the next COMPARE, or the TRUNCATE that follows."""
        member = self._member
        if progress.state is PushType.TRUNCATE:
            index, on_response = progress.truncate_index, self._on_truncate_response
        else:
            if progress.high < 0:
                progress.high = member.store.ledger_end_index
                progress.low = -1
                progress.next_index = progress.high
            if progress.high < 0:
                return
            index, on_response = progress.next_index, self._on_compare_response
        entries = progress.read(index, 1)
        if entries is None:
            return
        request = progress.request(progress.state, entries)
        if progress.state is PushType.TRUNCATE:
            if index < member.store.ledger_begin_index:
                raise IndexRangeError(f"entry {index} has expired")
            request.members = member.members.shown(member.members.before(index))
        progress.is_waiting, progress.waiting_since = True, member.now
        member.send(progress.peer_id, request, on_response, _SentEntry(progress, progress.generation, index))

    def _on_compare_response(self, sent: _SentEntry, response: Response | None) -> None:
        progress = sent.progress
        if progress.is_stale(sent.generation):
            return
        progress.is_waiting = False
        if not isinstance(response, PushResponse) or response.term != self._member.term:
            progress.fail()
        elif response.code == ResponseCode.SUCCESS:
            progress.low, progress.peer_end = sent.index, response.end_index
            self._compare_next(progress, response, is_first_guess=False)
        elif response.code == ResponseCode.INCONSISTENT_STATE:
            progress.peer_end = response.end_index
            # An entry that has expired at the peer in the meantime tells nothing about later ones.
            has_expired = sent.index < response.begin_index
            progress.high = min(progress.high if has_expired else sent.index - 1, response.end_index)
            self._compare_next(progress, response, is_first_guess=response.end_index < sent.index)
        else:
            progress.fail()

    def _compare_next(self, progress: PeerProgress, response: PushResponse, *, is_first_guess: bool) -> None:
        """Halve the range between the highest index known to be equal and the highest that can be."""
        own_begin = self._member.store.ledger_begin_index
        lowest = max(progress.low + 1, own_begin, response.begin_index)
        if progress.high >= lowest:
            # A peer whose log ends before this one usually has all entries up to its end.
            progress.next_index = progress.high if is_first_guess else (lowest + progress.high + 1) // 2
        elif progress.low >= 0:
            self._found_common(progress, progress.low)
        else:
            # Entries before the begin of the peer's log have expired there. Java truncates its whole log.
            index = max(own_begin, response.begin_index) if progress.is_binary else own_begin
            progress.state, progress.truncate_index = PushType.TRUNCATE, index

    def _found_common(self, progress: PeerProgress, index: int) -> None:
        """The logs are equal up to `index`."""
        progress.match_index = index
        if progress.peer_end > index:
            progress.state, progress.truncate_index = PushType.TRUNCATE, index
        else:
            self._push_after(progress, index)
        self._commit_index.advance()

    def _on_truncate_response(self, sent: _SentEntry, response: Response | None) -> None:
        progress = sent.progress
        if progress.is_stale(sent.generation):
            return
        progress.is_waiting = False
        if response is None or response.code != ResponseCode.SUCCESS or response.term != self._member.term:
            progress.rejected(sent.index, response)
            progress.fail()
            return
        progress.match_index = sent.index
        self._push_after(progress, sent.index)
        self._commit_index.advance()

    def _push_after(self, progress: PeerProgress, index: int) -> None:
        progress.push_from(index + 1)
        if progress.next_index > self._member.store.ledger_end_index:
            progress.failures = 0
            progress.accepted()
