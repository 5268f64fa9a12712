"""Fetches the application's summary from another member: what this member's log alone does not tell.

A log begins late after a disk was replaced, or after entries expired while the member was down. Until the application
has the summary, the member follows and votes, but does not lead. Every member that has the state can send it: all have
dispatched the same committed entries. Java members have none.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.raft.core.application_caller import ApplicationCaller
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import Response, SummaryRequest, SummaryResponse

_PROBLEM = "summary"
_PREPARING_MS = 100
_PAUSE_MS = 1000
# Members that have just connected need no report.
_REPORT_AFTER_MS = 5000
# A peer that sends fewer bytes a second than these, after a while, is not asked further.
_MIN_RATE = 64 * 1024
_SLOW_MS = 60_000
# After the last part, the application has so long to take the summary over.
_INSTALL_MS = 5000
_REASONS: dict[int, str] = {
    ResponseCode.INDEX_OUT_OF_RANGE: "lacks it, too",
    ResponseCode.UNSUPPORTED: "does not serve messages",
}


class _SentRequest(NamedTuple):
    attempt: int
    peer: str


class SummaryCopy:
    """Requests the parts of one peer's summary in order, one at a time; after a failure those of the next peer's."""

    def __init__(self, member: Member, application: ApplicationCaller) -> None:
        self._member = member
        self._application = application
        self._attempt = 0
        self._peer = ""
        self._snapshot = self._offset = 0
        self._is_waiting = False
        self._began_at = 0
        self._next_at = 0
        self._needed_since: int | None = None
        # Why each peer did not send it.
        self._reasons: dict[str, str] = {}

    # Sending

    def handle(self, request: SummaryRequest, token: object) -> None:
        member = self._member
        found = self._application.summary(request.begin_index, request.snapshot, request.offset)
        response = SummaryResponse(group=member.group, leader_id=member.leader_id, term=member.term)
        response.snapshot, response.offset, response.size, response.data = found
        member.reply(token, response)

    # Fetching

    def tick(self) -> None:
        member = self._member
        if not member.needs_summary():
            if self._needed_since is not None:
                self._needed_since = None
                self._begin("")
                self._reasons.clear()
                member.resolve_problem(_PROBLEM)
            return
        if self._needed_since is None:
            self._needed_since = member.now
        if self._is_waiting or member.now < self._next_at:
            return
        if not self._peer:
            self._begin(self._next_peer())
        if not self._peer:
            self._end_round(member.now - self._needed_since)
            return
        request = SummaryRequest(
            group=member.group,
            remote_id=self._peer,
            local_id=member.self_id,
            begin_index=member.store.ledger_begin_index,
            snapshot=self._snapshot,
            offset=self._offset,
        )
        self._is_waiting = True
        member.send(self._peer, request, self._on_response, _SentRequest(self._attempt, self._peer))

    def _begin(self, peer: str) -> None:
        self._attempt += 1
        self._peer, self._snapshot, self._offset, self._is_waiting = peer, 0, 0, False

    def _next_peer(self) -> str:
        """The leader, or the next member that was not asked since the last report; "" if all were asked."""
        member = self._member
        candidates = [peer for peer in (member.leader_id, *member.others) if peer in member.binary_peers]
        return next((peer for peer in candidates if peer is not None and peer not in self._reasons), "")

    def _end_round(self, needed_ms: int) -> None:
        """All were asked: report why none sent it, and begin over after a pause."""
        member = self._member
        if needed_ms >= _REPORT_AFTER_MS:
            reasons = [f"{peer} {self._reasons.get(peer, 'is no connected member of ours')}" for peer in member.others]
            member.report_problem(
                "this member lacks the queue offsets and identities of expired messages, so it does not lead: "
                f"{', '.join(reasons) or 'there is no other member'}. If no member has them, restart one with "
                "--accept-lost-state",
                _PROBLEM,
            )
        self._reasons.clear()
        self._next_at = member.now + _PAUSE_MS

    def _on_response(self, sent: _SentRequest, response: Response | None) -> None:
        if sent.attempt != self._attempt:
            return
        self._is_waiting = False
        if isinstance(response, SummaryResponse) and response.code == ResponseCode.SUCCESS:
            self._take(response)
        elif response is not None and response.code == ResponseCode.LEADER_NOT_READY:
            self._next_at = self._member.now + _PREPARING_MS
        else:
            self._fail("does not respond" if response is None else _reason(response.code))

    def _take(self, response: SummaryResponse) -> None:
        part = SummaryPart(response.snapshot, response.offset, response.size, response.data)
        is_next = part.offset == self._offset and (not self._offset or part.snapshot == self._snapshot)
        if not is_next or not part.data or part.end > part.size or not self._application.take_summary(part):
            self._fail("sent a summary that cannot be used")
            return
        if not self._offset:
            self._began_at = self._member.now
        self._snapshot, self._offset = part.snapshot, part.end
        if part.end == part.size:
            self._begin("")
            self._next_at = self._member.now + _INSTALL_MS
        elif self._is_slow:
            self._fail("sends its summary too slowly")
        else:
            self.tick()

    @property
    def _is_slow(self) -> bool:
        passed = self._member.now - self._began_at
        return passed > _SLOW_MS and 1000 * self._offset < passed * _MIN_RATE

    def _fail(self, reason: str) -> None:
        self._reasons[self._peer] = reason
        self._begin("")


def _reason(code: int) -> str:
    return _REASONS.get(code, f"responds with code {code}")
