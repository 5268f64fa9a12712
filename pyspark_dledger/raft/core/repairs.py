"""Damaged entries of this member's log: reported, and replaced by intact copies of other members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import ReadRequest, ReadResponse, Response, Role

_KIND = "damaged"
_ASK_EVERY_MS = 1000
_REPORT_AGAIN_MS = 60_000
# Entries that are asked for at a time, and remembered: the next pass of the scrubber finds the others.
_MAX_ASKED = 4
_MAX_DAMAGED = 10_000
# A leader that cannot push a damaged entry for so long leaves the leadership to others. Without a failed push for the
# second time, no member needs the entry.
_STEP_DOWN_MS = 10_000
_CALM_MS = 5000


class _Asked(NamedTuple):
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    peer_id: str


class Repairs:
    """Asks members of this package, one after the other, for the entries that are damaged here.

    A copy is taken if it is the same entry (index, term, position and size of the index unit) and matches its checksum.
    Java members are not asked: they check nothing before they respond. A leader steps down if a member needs a damaged
    entry and no copy comes: one that is not committed is given by no member, only by another leader.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._damaged: dict[int, str] = {}
        self._turn = 0
        self._ask_at = 0
        self._blocked_since = self._blocked_at = member.now - _CALM_MS
        self._blocked_epoch = 0
        member.on_damage = self._blocked

    def __len__(self) -> int:
        """The number of damaged entries."""
        return len(self._damaged)

    def found(self, damaged: Mapping[int, str]) -> None:
        """Take over damaged entries: their indexes, and what is wrong with them."""
        for index, text in damaged.items():
            if len(self._damaged) < _MAX_DAMAGED:
                self._member.found_damaged += index not in self._damaged
                self._damaged[index] = text

    def _blocked(self, damaged: Mapping[int, str]) -> None:
        """Take over damaged entries that a push or a follower needs now."""
        self.found(damaged)
        now, epoch = self._member.now, self._member.leadership_epoch
        if now - self._blocked_at >= _CALM_MS or epoch != self._blocked_epoch:
            self._blocked_since, self._blocked_epoch = now, epoch
        self._blocked_at = now

    def _check_leadership(self) -> None:
        """Step down if pushes have been blocked for too long."""
        member = self._member
        is_blocked = member.now - self._blocked_at < _CALM_MS and self._blocked_epoch == member.leadership_epoch
        if not member.is_leader or not is_blocked or member.now - self._blocked_since < _STEP_DOWN_MS:
            return
        member.report_problem("a damaged entry cannot be pushed, and no member gives a copy: this leader steps down")
        member.disk.has_damage(member.now)
        member.become(Role.CANDIDATE, None)

    def tick(self) -> None:
        member = self._member
        self._check_leadership()
        if not self._damaged or member.now < self._ask_at:
            return
        self._ask_at = member.now + _ASK_EVERY_MS
        begin, end = member.store.ledger_begin_index, member.store.ledger_end_index
        self._damaged = {index: text for index, text in self._damaged.items() if 0 <= begin <= index <= end}
        if not self._damaged:
            member.resolve_problem(_KIND)
            return
        first = min(self._damaged)
        member.report_problem(
            f"damaged entries: {len(self._damaged)}, the first is {first} ({self._damaged[first]}): neither served "
            "nor pushed until another member gives a copy",
            _KIND,
            _REPORT_AGAIN_MS,
        )
        peers = [peer_id for peer_id in member.others if peer_id in member.binary_peers]
        if not peers:
            return
        peer_id = peers[self._turn % len(peers)]
        self._turn += 1
        for index in sorted(self._damaged)[:_MAX_ASKED]:
            request = ReadRequest(group=member.group, remote_id=peer_id, first_index=index, max_bytes=1)
            member.send(peer_id, request, self._on_response, _Asked(index, peer_id))

    def _on_response(self, asked: _Asked, response: Response | None) -> None:
        member, index = self._member, asked.index
        if index not in self._damaged or not isinstance(response, ReadResponse):
            return
        if response.code != ResponseCode.SUCCESS or response.count != 1 or response.first_index != index:
            return
        try:
            member.store.repair(index, response.data)
        except (ValueError, *DISK_FAILURES) as error:
            text = f"entry {index} is not repaired with the copy of {asked.peer_id}: {error}"
            member.report(text, f"{_KIND} {index}", _REPORT_AGAIN_MS)
            return
        del self._damaged[index]
        member.report_repair(index, asked.peer_id)
        if not self._damaged:
            member.resolve_problem(_KIND)
