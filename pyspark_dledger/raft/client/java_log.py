"""The log of a group of Java members, as far as their responses prove it to be committed.

Java's leader returns every entry that it has, and no response has a committed index. But a member compares logs before
terms when it rejects a vote (0.2.0 to 0.4.0). So requests of a term before all others, which change nothing, show how
far its log reaches. Raft (5.4.2) proves an entry to be committed if

- it is of the leader's term, and a majority in that term has it; or
- all members are in the leader's term, none has a later entry's term, and a majority has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, final

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.raft.client.member_connection import LostError, MemberConnection
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.client.outcomes import LEADER_MOVED, rejected_error
from pyspark_dledger.raft.client.results import CommittedRange, MemberStatus
from pyspark_dledger.raft.messages import GetRequest, GetResponse, Role, VoteRequest, VoteResponse, VoteResult
from pyspark_dledger.store.dledger_store import Entry

# Terms and indexes before those of any log. In 0.1 a member can be in term -1.
_BEFORE_ALL = -3
# Requests for entries that are under way at the same time.
_MAX_GETS = 64
# Seconds for which a member that did not respond is not asked again.
_SKIP_SECONDS = 10.0
# Seconds for which a proof is not searched again: a stream asks very often.
_PROOF_SECONDS = 0.1
_HAS_LATER_TERM = VoteResult.REJECT_EXPIRED_LEDGER_TERM
_HAS_LATER_INDEX = VoteResult.REJECT_SMALL_LEDGER_END_INDEX


class _Leader(NamedTuple):
    """The leader's current term, and the term and index of its last entry; -1 without one."""

    member_id: str
    term: int
    end_term: int
    end_index: int


@final
class JavaLog:
    """Used only by the thread of the members' event loop. A proof stays valid, so the committed index only grows."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._ids: list[str] = []
        self._is_checked = False
        self._committed = -1
        # Leaders from this term on have what is proven; -1: nothing was proven yet.
        self._proof_term = -1
        self._proved: _Leader | None = None
        self._proved_at = 0.0
        self._begin = 0
        self._skipped_until: dict[str, float] = {}

    async def status(self) -> MemberStatus:
        """The state of the leader, with the committed index that is proven.

        Raises OptionError for a group whose responses prove nothing, and GroupError if there is no proof at present.
        """
        try:
            connection = await self._leader()
            leader = await self._prove(connection.member_id)
            begin = await self._begin_index(connection)
        except (LostError, TimeoutError) as error:
            raise self._lost_error(error) from None
        return MemberStatus(
            *(leader.member_id, Role.LEADER, leader.term, leader.member_id),
            *(begin, leader.end_index, leader.end_term, self._committed),
        )

    async def read(self, first_index: int, max_bytes: int) -> CommittedRange:
        """Proven entries from that index on: one at least, if it is proven. Raises IndexRangeError if it expired."""
        try:
            connection = await self._leader()
            if first_index > self._committed:
                await self._prove(connection.member_id)
            data, count = await self._entries(connection, first_index, max_bytes)
        except (LostError, TimeoutError) as error:
            raise self._lost_error(error) from None
        return CommittedRange(first_index, count, self._begin, self._committed, data)

    # Proofs.

    async def _leader(self) -> MemberConnection:
        """A leader that has all that was proven. Raises GroupError for one of an older term."""
        connection = await self._members.leader()
        leader_id = connection.member_id
        if not self._is_checked:
            self._ids = list((await self._members.metadata(leader_id)).peers)
            await self._check_group(leader_id)
            self._is_checked = True
        if (await self._vote(leader_id, _BEFORE_ALL, _BEFORE_ALL)).term < self._proof_term:
            self._members.forget_leader(leader_id)
            text = f"group {self._members.group}: {leader_id} leads in an old term: check its connection to the others"
            raise GroupError(text, ResponseCode.NOT_LEADER)
        return connection

    async def _check_group(self, leader_id: str) -> None:
        problem = "it has one member, which no other can ask for its vote"
        if len(self._ids) > 1:
            if (await self._vote(leader_id, _BEFORE_ALL, _BEFORE_ALL)).vote_result is _HAS_LATER_TERM:
                return
            problem = "its responses to votes do not show the ends of logs, as those of DLedger 0.1"
        raise OptionError(
            f"group {self._members.group}: nothing proves what its Java members have committed ({problem}): tail the "
            "store of one of them by its path, with load(path)"
        )

    async def _prove(self, leader_id: str) -> _Leader:
        """Find how far the log is committed. Raises GroupError if nothing is proven, now or before."""
        loop, proved = asyncio.get_running_loop(), self._proved
        if proved is not None and proved.member_id == leader_id and loop.time() - self._proved_at < _PROOF_SECONDS:
            return proved
        leader = await self._leader_end(leader_id)
        others = [member_id for member_id in self._ids if member_id != leader_id]
        ends = await asyncio.gather(*(self._end_of(member_id, leader) for member_id in others))
        indexes = sorted([leader.end_index, *(-1 if end is None else end for end in ends)], reverse=True)
        proven = indexes[len(self._ids) // 2]
        # Without entries of its own term, the leader proves nothing unless all are in that term.
        has_proof = leader.end_term == leader.term or None not in ends
        # A majority elected it: if its log is empty, nothing is committed.
        if (has_proof and proven >= 0) or leader.end_index < 0:
            self._proof_term = max(self._proof_term, leader.term)
            self._committed = max(self._committed, proven)
        if self._proof_term < 0:
            missing = ", ".join(member_id for member_id, end in zip(others, ends, strict=True) if end is None)
            raise GroupError(
                f"group {self._members.group}: nothing proves yet what is committed: {leader_id} leads in term "
                f"{leader.term}, its last entry is of term {leader.end_term}, and {missing or 'a majority'} did not "
                "confirm it: append an entry, or start all members",
                ResponseCode.LEADER_NOT_READY,
            )
        self._proved, self._proved_at = leader, loop.time()
        return leader

    async def _leader_end(self, leader_id: str) -> _Leader:
        term = (await self._vote(leader_id, _BEFORE_ALL, _BEFORE_ALL)).term

        async def ends_by(end_term: int) -> bool:
            return (await self._vote(leader_id, end_term, INT64_MAX)).vote_result is not _HAS_LATER_TERM

        # Mostly its last entry is of its term, or of the one before.
        end_term = term if not await ends_by(term - 1) else await _first(_BEFORE_ALL, term - 1, ends_by)
        leader = _Leader(leader_id, term, end_term, INT64_MAX)
        return leader._replace(end_index=await self._last_index(leader_id, leader, max(self._committed, 0)))

    async def _end_of(self, member_id: str, leader: _Leader) -> int | None:
        """The index up to which a member has the leader's log; -1 if it has nothing that is unproven.

        None if it does not respond, is in another term than the leader, or has an entry of a later term.
        """
        loop = asyncio.get_running_loop()
        if self._skipped_until.get(member_id, 0.0) > loop.time():
            return None
        try:
            response = await self._vote(member_id, leader.end_term, INT64_MAX)
            if response.term != leader.term or response.vote_result is _HAS_LATER_TERM:
                return None
            return await self._last_index(member_id, leader, self._committed + 1)
        except (LostError, TimeoutError, GroupError):
            self._skipped_until[member_id] = loop.time() + _SKIP_SECONDS
            return None

    async def _last_index(self, member_id: str, leader: _Leader, low: int) -> int:
        """The last index of a member's log, up to the leader's end; -1 if that is below `low`, or not of its term."""

        async def ends_before(index: int) -> bool:
            response = await self._vote(member_id, leader.end_term, index - 1)
            return response.vote_result is not _HAS_LATER_INDEX or response.term != leader.term

        if leader.end_index < low or await ends_before(low):
            return -1
        if leader.end_index < INT64_MAX and not await ends_before(leader.end_index):
            return leader.end_index
        step = 1
        while not await ends_before(low + step):
            low, step = low + step, 2 * step
            if low > INT64_MAX // 4:
                raise self._impossible(member_id, f"a log of more than {low} entries")
        return await _first(low, low + step, ends_before) - 1

    async def _vote(self, member_id: str, end_term: int, end_index: int) -> VoteResponse:
        """The response to a candidate whose log ends there, in a term in which no member votes."""
        candidate = next(each for each in self._ids if each != member_id)
        request = VoteRequest(
            group=self._members.group,
            remote_id=member_id,
            local_id=candidate,
            leader_id=candidate,
            term=_BEFORE_ALL,
            ledger_end_index=end_index,
            ledger_end_term=end_term,
        )
        connection = await self._members.connection(member_id)
        response = await connection.request(request, self._members.timeout)
        if not isinstance(response, VoteResponse) or response.code != ResponseCode.SUCCESS:
            raise rejected_error(self._members.group, "a request for the end of its log", member_id, response)
        return response

    # Entries.

    async def _entries(self, connection: MemberConnection, first: int, max_bytes: int) -> tuple[bytes, int]:
        """The bytes of proven entries without a gap, and their number; one entry, or about `max_bytes`."""
        data, index, gets = bytearray(), first, 1
        end = 0
        while index <= self._committed and len(data) < max_bytes:
            last = min(self._committed, index + gets - 1)
            found = await asyncio.gather(*(self._entry(connection, each) for each in range(index, last + 1)))
            for entry in found:
                if entry is None and not data:
                    text = f"group {self._members.group}: index {first} has expired at {connection.member_id}"
                    raise IndexRangeError(text)
                if entry is None or (data and entry.pos != end):
                    return bytes(data), index - first
                encoded = encode_entry(entry.index, entry.term, entry.pos, entry.body, magic=entry.magic)
                data += encoded
                end, index = entry.pos + len(encoded), index + 1
            mean = len(data) // (index - first)
            gets = min(max((max_bytes - len(data)) // mean, 1), _MAX_GETS)
        return bytes(data), index - first

    async def _begin_index(self, connection: MemberConnection) -> int:
        """The first index of the leader's log: searched again if it has expired."""

        async def is_there(index: int) -> bool:
            return await self._entry(connection, index) is not None

        if self._committed >= 0 and not await is_there(self._begin):
            self._begin = await _first(self._begin, self._committed, is_there)
        return self._begin

    async def _entry(self, connection: MemberConnection, index: int) -> Entry | None:
        """An entry of the leader; None if it has none of that index. Raises GroupError if it leads no more."""
        group, member_id = self._members.group, connection.member_id
        request = GetRequest(group=group, remote_id=member_id, begin_index=index)
        response = await connection.request(request, self._members.timeout)
        if isinstance(response, GetResponse) and response.code == ResponseCode.SUCCESS and response.entries:
            entry = response.entries[0]
            if entry.index != index or not 0 <= entry.pos <= INT64_MAX // 2:
                raise self._impossible(member_id, f"index {entry.index} at {entry.pos} for index {index}")
            return entry
        if response.code == ResponseCode.INDEX_OUT_OF_RANGE:
            return None
        if response.code in LEADER_MOVED:
            self._members.forget_leader(member_id)
        raise rejected_error(group, f"a request to get index {index}", member_id, response)

    def _impossible(self, member_id: str, found: str) -> GroupError:
        text = f"group {self._members.group}: expected responses of a Java member, found {found} from {member_id}"
        return GroupError(text, ResponseCode.UNEXPECTED_ARGUMENT)

    def _lost_error(self, error: Exception) -> GroupError:
        text = f"group {self._members.group}: no response of its Java leader: {error}"
        return GroupError(text, ResponseCode.NETWORK_ERROR)


async def _first(low: int, high: int, is_reached: Callable[[int], Awaitable[bool]]) -> int:
    """The first number above `low` for which `is_reached` is true, at most `high`; it stays true from there on."""
    while high - low > 1:
        middle = (low + high) // 2
        if await is_reached(middle):
            high = middle
        else:
            low = middle
    return high
