"""A leader's view of the replication to one peer."""

from __future__ import annotations

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import PushRequest, PushResponse, PushType, Response
from pyspark_dledger.store.dledger_store import EntryRange

_FIRST_PAUSE_MS = (10, 100)
_PAUSE_MS = 500
# After this many rejected pushes in a row a problem is reported, and again after this time.
_MAX_REJECTIONS = 5
_REPORT_REJECTIONS_MS = 60_000


class PeerProgress:
    """What a peer has, and what was sent to it.

    ``state`` is COMPARE, TRUNCATE or APPEND. ``generation`` counts its changes: responses to requests of an earlier
    generation are stale. ``low`` is the highest index known to be equal, ``high`` the highest that can be equal.
    """

    __slots__ = (
        "acked_commit_index",
        "commit_sent_at",
        "failures",
        "generation",
        "has_committed",
        "high",
        "in_flight",
        "in_flight_bytes",
        "is_loading",
        "is_waiting",
        "last_sent_at",
        "loaded",
        "low",
        "match_index",
        "member",
        "next_index",
        "peer_end",
        "peer_id",
        "quota_left",
        "quota_until",
        "rejections",
        "responded_at",
        "resume_at",
        "sent_commit_index",
        "state",
        "truncate_index",
        "uses_batches",
        "waiting_since",
    )

    def __init__(self, member: Member, peer_id: str) -> None:
        self.member = member
        self.peer_id = peer_id
        self.uses_batches = member.config.enable_batch_push
        self.generation = 0
        self.quota_left = self.quota_until = 0
        self.begin()

    @property
    def is_binary(self) -> bool:
        return self.peer_id in self.member.binary_peers

    def begin(self) -> None:
        """A new leadership: the peer's log is unknown."""
        now = self.member.now
        self.match_index = -1
        self.sent_commit_index = -1
        # The highest commit index that the peer has taken over, as far as its log goes.
        self.acked_commit_index = -1
        self.commit_sent_at = self.last_sent_at = now
        self.failures = 0
        self.rejections = 0
        self.resume_at = now
        self.compare()

    def compare(self) -> None:
        """Restart with COMPARE."""
        self.generation += 1
        self.state = PushType.COMPARE
        self.is_waiting = False
        # Whether it had all that was committed when a request was sent, and an entry of this leader's term among that.
        self.has_committed = False
        self.waiting_since = self.responded_at = 0
        self.low, self.high = -1, -1
        self.next_index = self.truncate_index = self.peer_end = -1
        self.in_flight: dict[int, int] = {}
        self.in_flight_bytes = 0
        self.is_loading = False
        self.loaded: EntryRange | Exception | None = None

    def push_from(self, index: int) -> None:
        """Continue with APPEND from that entry."""
        self.generation += 1
        self.state, self.is_waiting, self.next_index = PushType.APPEND, False, index
        self.in_flight, self.in_flight_bytes = {}, 0
        self.is_loading, self.loaded = False, None

    def fail(self) -> None:
        """A request failed: compare again after a pause."""
        minimum, maximum = _FIRST_PAUSE_MS
        pause = _PAUSE_MS if self.failures else self.member.random.randrange(minimum, maximum)
        self.failures += 1
        self.resume_at = self.member.now + pause
        self.compare()

    def is_stale(self, generation: int) -> bool:
        """Whether the response to a request of that generation must be ignored."""
        return generation != self.generation or not self.member.is_leader

    def read(self, index: int, max_bytes: int) -> EntryRange | None:
        """Entries from that index on, at most `max_bytes` or one; None while another thread reads them."""
        loaded, self.loaded = self.loaded, None
        if isinstance(loaded, Exception):
            raise loaded
        if loaded is not None and loaded.first_index == index:
            return loaded
        if self.is_loading:
            return None
        member = self.member
        if member.store.is_recent(index):
            return member.store.read(index, max_bytes)
        self.is_loading = True
        member.load(index, max_bytes, self._on_loaded, self.generation)
        return None

    def _on_loaded(self, generation: int, result: EntryRange | Exception) -> None:
        if generation == self.generation:
            self.is_loading, self.loaded = False, result

    def request(self, kind: PushType, entries: EntryRange | None) -> PushRequest:
        member = self.member
        request = PushRequest(
            group=member.group,
            remote_id=self.peer_id,
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
        self.sent_commit_index = request.commit_index
        self.last_sent_at = member.now
        return request

    # Rejected pushes

    def rejected(self, index: int, response: Response | None) -> None:
        """A push was not accepted. Several rejections in a row are a problem."""
        if not isinstance(response, PushResponse) or response.code != ResponseCode.INCONSISTENT_STATE:
            return
        self.rejections += 1
        if self.rejections >= _MAX_REJECTIONS:
            self.member.report_problem(
                f"{self.peer_id} rejected entry {index} {self.rejections} times in a row (INCONSISTENT_STATE); its log "
                f"ends at {response.end_index}: look at the problems of {self.peer_id}; data file sizes must be equal "
                "at every member",
                self._problem_kind,
                _REPORT_REJECTIONS_MS,
            )

    def accepted(self) -> None:
        """A push was accepted after rejections."""
        if self.rejections:
            self.rejections = 0
            self.member.resolve_problem(self._problem_kind)

    @property
    def _problem_kind(self) -> str:
        return f"pushes to {self.peer_id}"
