"""A leader's replication to the other members (``DLedgerEntryPusher``).

After log matching, entries are pushed, with many requests in flight. Responses are matched to their requests; stale
responses are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.leader.log_matching import LogMatching
from pyspark_dledger.raft.core.leader.peer_progress import PeerProgress
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import PushResponse, PushType, Response
from pyspark_dledger.store.dledger_store import EntryRange

# Java waits this long for responses to COMPARE and TRUNCATE.
_COMPARE_TIMEOUT_MS = 3000
_COMMIT_INTERVAL_MS = 1000
_COMMIT_GAP_MS = 10
_COMMIT_GAP_TO_JAVA_MS = 100
_QUOTA_WINDOW_MS = 1000


class _SentPush(NamedTuple):
    progress: PeerProgress
    generation: int
    last_index: int
    first_index: int
    size: int
    commit_index: int


class _SentCommit(NamedTuple):
    """A COMMIT, with the match index of the peer when it was sent."""

    progress: PeerProgress
    generation: int
    match_index: int
    commit_index: int


class Replication:
    """Pushes a leader's entries and its commit index to the peers."""

    def __init__(self, member: Member, commit_index: CommitIndex, peers: Sequence[PeerProgress]) -> None:
        self._member = member
        self._commit_index = commit_index
        self._peers = peers
        self._matching = LogMatching(member, commit_index)

    def match_index(self, peer_id: str) -> int:
        return next(progress.match_index for progress in self._peers if progress.peer_id == peer_id)

    def committed_index(self, peer_id: str) -> int:
        """Up to which entry a peer certainly knows that its entries are committed."""
        for progress in self._peers:
            if progress.peer_id == peer_id:
                return min(progress.match_index, progress.acked_commit_index)
        return -1

    def has_committed(self, peer_id: str) -> bool:
        """Whether a peer with a new disk has learned that it has joined (`Follower`), and can vote."""
        return any(progress.has_committed for progress in self._peers if progress.peer_id == peer_id)

    def role_changed(self) -> None:
        for progress in self._peers:
            progress.begin()

    # Timeouts

    def tick(self) -> None:
        """Handle requests without a response in time."""
        member = self._member
        if not member.is_leader:
            return
        for progress in self._peers:
            if progress.in_flight:
                if member.now - progress.responded_at >= member.config.max_push_time_out_ms:
                    self._push_again(progress)
            elif progress.is_waiting and member.now - progress.waiting_since >= self._timeout(progress):
                progress.fail()

    def _timeout(self, progress: PeerProgress) -> int:
        """The timeout of COMPARE, TRUNCATE and COMMIT; longer after failures, for a peer with a slow disk."""
        return _COMPARE_TIMEOUT_MS if progress.failures > 1 else self._member.config.max_push_time_out_ms

    def _push_again(self, progress: PeerProgress) -> None:
        """Pushes got no response: repeat them once, then compare."""
        if progress.failures:
            progress.fail()
        else:
            progress.failures = 1
            progress.push_from(progress.match_index + 1)

    # Sending

    def pump(self) -> None:
        """Send each peer the requests that are due."""
        if not self._member.is_leader:
            return
        for progress in self._peers:
            if self._member.now >= progress.resume_at:
                self._pump(progress)

    def _pump(self, progress: PeerProgress) -> None:
        try:
            if progress.state is PushType.APPEND:
                self._push(progress)
            elif not progress.is_waiting and not progress.is_loading:
                self._matching.send(progress)
        except IndexRangeError:
            # The entry has expired in the meantime.
            progress.fail()
        except DISK_FAILURES as error:
            self._member.report_problem(f"entries for {progress.peer_id} cannot be read: {error}")
            if isinstance(error, StoreError):
                is_truncate = progress.state is PushType.TRUNCATE
                self._member.on_damage({progress.truncate_index if is_truncate else progress.next_index: str(error)})
            progress.fail()

    def _push(self, progress: PeerProgress) -> None:
        member, config = self._member, self._member.config
        end = member.store.ledger_end_index
        while (
            progress.next_index <= end
            and progress.in_flight_bytes < config.max_in_flight_bytes
            and len(progress.in_flight) < config.max_in_flight_requests
        ):
            entries = progress.read(progress.next_index, self._max_push_bytes(progress))
            if entries is None:
                return
            if not self._has_quota(progress, entries):
                progress.loaded = entries
                return
            self._push_entries(progress, entries)
        if progress.next_index > end and not progress.in_flight:
            self._push_commit(progress)

    def _max_push_bytes(self, progress: PeerProgress) -> int:
        config = self._member.config
        if progress.is_binary:
            return config.max_push_bytes
        return config.max_batch_push_size if progress.uses_batches else 1

    def _push_entries(self, progress: PeerProgress, entries: EntryRange) -> None:
        member = self._member
        size = len(entries.data)
        request = progress.request(PushType.APPEND, entries)
        request.is_batch = progress.uses_batches
        if not progress.in_flight:
            progress.responded_at = member.now
        last, first, commit = entries.last_index, entries.first_index, request.commit_index
        sent = _SentPush(progress, progress.generation, last, first, size, commit)
        member.send(progress.peer_id, request, self._on_push_response, sent)
        progress.in_flight[entries.first_index] = size
        progress.in_flight_bytes += size
        progress.next_index = entries.last_index + 1
        progress.quota_left -= size

    def _has_quota(self, progress: PeerProgress, entries: EntryRange) -> bool:
        """Whether a peer that lags far has quota left (``checkQuotaAndWait``)."""
        member, config = self._member, self._member.config
        if config.peer_push_quota is None:
            return True
        lag = member.store.end_pos - entries.pos
        if lag < config.peer_push_throttle_point:
            return True
        if member.now >= progress.quota_until:
            progress.quota_until = member.now + _QUOTA_WINDOW_MS
            progress.quota_left = config.peer_push_quota
        return progress.quota_left > 0

    def _push_commit(self, progress: PeerProgress) -> None:
        """Send COMMIT to an idle peer: soon if the commit index is new, else from time to time."""
        member = self._member
        if progress.is_waiting:
            return
        is_new = member.store.committed_index > progress.sent_commit_index
        gap = _COMMIT_GAP_MS if progress.is_binary else _COMMIT_GAP_TO_JAVA_MS
        since = member.now - progress.commit_sent_at
        if not (is_new and since >= gap) and member.now - progress.last_sent_at < _COMMIT_INTERVAL_MS:
            return
        progress.is_waiting, progress.waiting_since, progress.commit_sent_at = True, member.now, member.now
        request = progress.request(PushType.COMMIT, None)
        sent = _SentCommit(progress, progress.generation, progress.match_index, request.commit_index)
        member.send(progress.peer_id, request, self._on_commit_response, sent)

    # Responses

    def _on_push_response(self, sent: _SentPush, response: Response | None) -> None:
        progress = sent.progress
        if progress.is_stale(sent.generation):
            return
        if response is None or response.code != ResponseCode.SUCCESS or response.term != self._member.term:
            if response is not None and response.code == ResponseCode.UNEXPECTED_ARGUMENT:
                # Up to 0.2.7, Java followers accept either batches or single entries, by their own enableBatchPush.
                progress.uses_batches = not progress.uses_batches
            progress.rejected(sent.first_index, response)
            progress.fail()
            return
        del progress.in_flight[sent.first_index]
        progress.in_flight_bytes -= sent.size
        progress.responded_at = self._member.now
        progress.failures = 0
        self._commit_acknowledged(progress, sent.commit_index, sent.last_index)
        if sent.last_index > progress.match_index:
            progress.match_index = sent.last_index
            if progress.rejections:
                progress.accepted()
            if sent.last_index > self._member.store.committed_index:
                self._commit_index.advance()

    def _commit_acknowledged(self, progress: PeerProgress, commit_index: int, match_index: int) -> None:
        progress.acked_commit_index = commit_index
        if match_index >= commit_index and self._commit_index.has_own(commit_index):
            progress.has_committed = True

    def _on_commit_response(self, sent: _SentCommit, response: Response | None) -> None:
        progress = sent.progress
        if progress.is_stale(sent.generation):
            return
        progress.is_waiting = False
        # After a restart, a peer may have lost entries, or may not know its match index.
        if (
            not isinstance(response, PushResponse)
            or response.code != ResponseCode.SUCCESS
            or response.end_index < sent.match_index
        ):
            progress.fail()
        else:
            self._commit_acknowledged(progress, sent.commit_index, sent.match_index)
