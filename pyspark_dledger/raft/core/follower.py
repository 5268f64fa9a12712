"""A follower's handling of its leader's pushes (``EntryHandler``).

Stricter than Java: a follower tracks its match index, up to which its log equals the leader's. It appends only after
it, commits only up to it, and truncates only above it. It never truncates committed entries, and a push never raises
its term: heartbeats do. Under ``is_sync`` it acknowledges only durable entries.

A log is reset only if the leader says, on this member's own connection to it, that the earlier entries have expired: a
push can be forged, such a response cannot.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DiskFullError, InconsistentError, IndexRangeError, StoreError
from pyspark_dledger.format.encode.encoded import Buffer, RejectedError
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.core.pushed_entries import PushedEntry, are_equal, only_entry, split
from pyspark_dledger.raft.member_list import read_told
from pyspark_dledger.raft.messages import (
    GetRequest,
    GetResponse,
    PushRequest,
    PushResponse,
    PushType,
    Response,
    Role,
)
from pyspark_dledger.store.dledger_store import EntryRange, OtherEntryError

# The kind of problems that keep this member from accepting its leader's entries.
_BLOCKED = "follower"


class _DelayedReply(NamedTuple):
    """A response that is sent when the log is durable up to an index."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    token: object
    response: PushResponse


class _Reset(NamedTuple):
    """A reset of the log that a leader wants; ``index`` is that of the new first entry."""

    leader_id: str | None
    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls


class _WaitingError(Exception):
    """A push that is handled again when the leader has responded."""


class Follower:
    """Handles pushes of the leader of the current term."""

    def __init__(self, member: Member) -> None:
        self._member = member
        # One leader writes one term in order, so a log with an entry of the term has all earlier ones.
        has_own = member.store.ledger_end_term == member.term
        self._match_index = member.store.ledger_end_index if has_own else -1
        self._match_term = member.term
        # The leader's committed index in its latest push.
        self._leader_committed = -1
        # A member that joins has done so when it has the entries up to this index on its disk; -1: not known yet.
        self._joins_at = -1
        self._delayed: deque[_DelayedReply] = deque()
        # The end of the log at the last push that could not be accepted.
        self._blocked_at: int | None = None
        # The push that waits for a leader's word about a reset, and the reset that a leader has confirmed.
        self._waiting: tuple[PushRequest, object] | None = None
        self._confirmed_reset: _Reset | None = None
        self._actions = {
            PushType.APPEND: self._append,
            PushType.COMPARE: self._compare,
            PushType.TRUNCATE: self._truncate,
            PushType.COMMIT: self._commit_only,
        }

    def role_changed(self) -> None:
        member = self._member
        if member.term == self._match_term:
            return
        for delayed in self._delayed:
            delayed.response.code, delayed.response.term = ResponseCode.EXPIRED_TERM, member.term
            member.reply(delayed.token, delayed.response)
        self._delayed.clear()
        self._match_index, self._match_term = -1, member.term
        self._leader_committed = self._joins_at = -1

    @property
    def lag(self) -> int:
        """The number of entries that the leader of this term has committed, as far as known, and this log lacks."""
        return max(0, self._leader_committed - self._member.store.ledger_end_index)

    # Requests

    def handle(self, request: PushRequest, token: object) -> None:
        code = self._leader_error(request)
        if code is not None:
            self._member.reply(token, self._response(request, code))
            return
        self._leader_committed = request.commit_index
        try:
            durable_index = self._accept(request)
            self._commit(request.commit_index)
        except _WaitingError:
            self._waiting = request, token
        except RejectedError as rejected:
            self._member.reply(token, self._response(request, rejected.code))
        except (InconsistentError, ValueError) as error:
            self._report_blocked(f"{request.type.name} of leader {request.leader_id} cannot be accepted: {error}")
            # Leaders of 0.4.0 send entries in another way; Java responds to them with the same code.
            code = ResponseCode.INCONSISTENT_STATE if request.count else ResponseCode.UNEXPECTED_ARGUMENT
            self._member.reply(token, self._response(request, code))
        except DISK_FAILURES as error:
            self._member.reply(token, self._response(request, self._disk_error(error)))
        else:
            self._check_unblocked()
            self._reply(durable_index, token, self._response(request, ResponseCode.SUCCESS))
        self._member.members.refresh()

    def _accept(self, request: PushRequest) -> int:
        """Do what a push says. A member that may have lost its disk joins with its first entries."""
        members, store = self._member.members, self._member.store
        writes = request.type in (PushType.APPEND, PushType.TRUNCATE)
        joins = writes and members.may_have_lost_disk(request.leader_id, request.term)
        if joins:
            members.set_joining(True)
        try:
            return self._actions[request.type](request)
        except DISK_FAILURES:
            raise  # an entry that was not written completely can be in the log after a restart
        except Exception:
            if joins and store.ledger_end_index < 0:
                members.set_joining(False)
            raise

    def _report_blocked(self, text: str) -> None:
        """A push could not be accepted, and most likely later ones cannot either."""
        self._blocked_at = self._member.store.ledger_end_index
        self._member.report_problem(text, _BLOCKED)

    def _check_unblocked(self) -> None:
        """A push was accepted. The problem is over if the log is longer than when it occurred."""
        if self._blocked_at is not None and self._member.store.ledger_end_index > self._blocked_at:
            self._blocked_at = None
            self._member.resolve_problem(_BLOCKED)

    def _leader_error(self, request: PushRequest) -> ResponseCode | None:
        """Why the sender is not this member's leader, else None."""
        member, leader = self._member, request.leader_id
        if leader == member.leader_id and request.term == member.term and member.role is Role.FOLLOWER:
            return None
        code = member.leader_error(leader, request.term)
        if code is not None:
            return code
        if request.term > member.term:
            return ResponseCode.TERM_NOT_READY
        if member.leader_id is not None:
            return ResponseCode.INCONSISTENT_LEADER
        # Only an elected leader pushes; its heartbeat may come later.
        member.become(Role.FOLLOWER, leader)
        return None

    def _disk_error(self, error: Exception) -> ResponseCode:
        """The code for a disk failure. Java leaders retry a follower only after INCONSISTENT_STATE."""
        member = self._member
        is_full = isinstance(error, DiskFullError)
        if is_full:
            member.disk.had_no_room(member.now)
        else:
            self._report_blocked(f"entries of leader {member.leader_id} cannot be accepted: {error}")
        if member.leader_id not in member.binary_peers:
            return ResponseCode.INCONSISTENT_STATE
        return ResponseCode.DISK_FULL if is_full else ResponseCode.DISK_ERROR

    # Responses

    def _response(self, request: PushRequest, code: ResponseCode) -> PushResponse:
        member, store = self._member, self._member.store
        is_commit = request.type is PushType.COMMIT
        return PushResponse(
            group=request.group,
            code=code,
            term=member.term,
            index=None if is_commit else request.first_index,
            count=0 if is_commit else request.count,
            begin_index=store.ledger_begin_index,
            end_index=store.ledger_end_index,
        )

    def _reply(self, durable_index: int, token: object, response: PushResponse) -> None:
        """Respond, in order, when the log is durable up to that index, and this member has joined if it is about to.

        The response tells the leader that it can vote.
        """
        member = self._member
        if member.members.is_joining:
            durable_index = max(durable_index, self._joins_at)
        if not self._delayed and durable_index <= self._durable_index:
            member.reply(token, response)
        else:
            self._delayed.append(_DelayedReply(durable_index, token, response))

    @property
    def _durable_index(self) -> int:
        """The last index that responses may be for: of a member that is about to join, the last one on its disk."""
        member = self._member
        is_about_to_join = member.members.is_joining and self._joins_at >= 0
        return min(member.durable_index, member.store.flushed_index) if is_about_to_join else member.durable_index

    def persisted(self) -> None:
        # Before the responses.
        if self._member.members.is_joining:
            self._check_joined(self._leader_committed)
        delayed = self._delayed
        if not delayed:
            return
        durable = self._durable_index
        while delayed and delayed[0].index <= durable:
            done = delayed.popleft()
            self._member.reply(done.token, done.response)

    def _commit(self, index: int) -> None:
        self._member.commit(min(index, self._match_index, self._member.store.ledger_end_index))
        if self._member.members.is_joining:
            self._check_joined(index)

    def _check_joined(self, index: int) -> None:
        """Join with all that the leader has committed, of which the last is of its own term: none before is missing.

        They must be durable: a member that has joined votes, also after it lost what was not. Raises StoreError.
        """
        member, store, committed = self._member, self._member.store, self._member.store.committed_index
        if self._joins_at < 0 and max(index, 0) <= committed and store.term_at(committed) == member.term:
            self._joins_at = committed
            if not member.is_sync:
                store.flush_soon()
        if 0 <= self._joins_at <= min(member.durable_index, store.flushed_index):
            # With its earlier disk it may have voted for this leader: it votes for no other one of this term.
            if member.vote is None and not member.save_term(member.term, member.leader_id):
                return
            member.members.joined()
            member.resolve_problem("joining")

    def _commit_only(self, request: PushRequest) -> int:
        """COMMIT needs no durable index. Rejected if the leader must compare first."""
        if request.commit_index > self._match_index:
            self._commit(request.commit_index)
            raise RejectedError
        return -1

    # COMPARE

    def _compare(self, request: PushRequest) -> int:
        """Accept an entry that the log has. Returns the index that must be durable."""
        entry = only_entry(request.data)
        if not self._has(entry, request.data):
            self._check_conflict(entry.index)
            raise RejectedError
        self._match_index = max(self._match_index, entry.index)
        return entry.index

    def _has(self, entry: PushedEntry, data: Buffer) -> bool:
        store = self._member.store
        if not 0 <= store.ledger_begin_index <= entry.index <= store.ledger_end_index:
            return False
        stored = self._stored(entry, data, 1)
        return stored is not None and are_equal(memoryview(data)[entry.start : entry.stop], stored.data)

    def _stored(self, entry: PushedEntry, data: Buffer, max_bytes: int) -> EntryRange | None:
        """Entries of this log from that one on. If that is damaged and not committed, the leader's copy replaces it.

        Committed ones are replaced by copies that this member asks for. None: that one is damaged and not
        the leader's.
        """
        member, index = self._member, entry.index
        try:
            return member.store.read(index, max_bytes)
        except IndexRangeError:
            raise
        except StoreError as damage:
            if index <= member.store.committed_index:
                member.on_damage({index: str(damage)})
                raise
            try:
                member.store.repair(index, memoryview(data)[entry.start : entry.stop])
            except OtherEntryError:
                return None
            except ValueError:
                raise damage from None
        member.found_damaged += 1
        member.report_repair(index, member.leader_id)
        return member.store.read(index, max_bytes)

    def _check_conflict(self, index: int) -> None:
        """Reject and report a leader that contradicts its own earlier pushes, or committed entries."""
        member, store = self._member, self._member.store
        fixed = max(self._match_index, store.committed_index)
        if store.ledger_begin_index <= index <= min(fixed, store.ledger_end_index):
            member.report_problem(
                f"entry {index} of leader {member.leader_id} in term {member.term} differs from the one here, where "
                f"the committed index is {store.committed_index}: nothing was truncated, compare both stores with "
                "'dledger diff'"
            )
            raise RejectedError

    # TRUNCATE

    def _truncate(self, request: PushRequest) -> int:
        """Remove the entries after a common entry, or make that entry the last one."""
        entry = only_entry(request.data)
        member, store = self._member, self._member.store
        if self._has(entry, request.data):
            keep = max(entry.index, self._match_index, store.committed_index)
            if keep < store.ledger_end_index:
                member.truncate(keep + 1)
        else:
            self._check_conflict(entry.index)
            if entry.index <= max(self._match_index, store.committed_index):
                raise RejectedError
            self._replace(entry, request)
        self._match_index = max(self._match_index, entry.index)
        return entry.index

    def _replace(self, entry: PushedEntry, request: PushRequest) -> None:
        """Overwrite from this entry on, or begin a new log with it if the entries before it may differ."""
        member, store = self._member, self._member.store
        if self._has_same_predecessor(entry):
            if entry.index <= store.ledger_end_index:
                member.truncate(entry.index)
        else:
            told = None if request.members is None else read_told(request.members)
            if told is not None and told.members.index >= entry.index:
                raise ValueError(f"expected the list of members before entry {entry.index}, found {request.members}")
            if told is not None and member.leader_id is not None:
                member.members.led_from(member.leader_id, told.sender)
            self._check_reset(entry.index)
            text = self._gap_text(entry.index)
            member.reset(entry.index, entry.pos, None if told is None else told.members)
            self._match_index = -1
            if text:
                member.report_problem(text)
        store.append_as_follower(request.data, request.term)

    def _check_reset(self, index: int) -> None:
        """Ask the leader, if it has not confirmed yet that all entries before `index` have expired there."""
        member, begin = self._member, self._member.store.ledger_begin_index
        wanted = _Reset(member.leader_id, index)
        if not 0 <= begin < index or self._confirmed_reset == wanted:
            return
        if self._waiting is not None or member.leader_id is None:
            raise RejectedError
        request = GetRequest(
            group=member.group, remote_id=member.leader_id, local_id=member.self_id, begin_index=index - 1
        )
        member.send(member.leader_id, request, self._on_reset_response, wanted)
        raise _WaitingError

    def _on_reset_response(self, asked: _Reset, response: Response | None) -> None:
        assert self._waiting is not None
        request, token = self._waiting
        self._waiting = None
        if isinstance(response, GetResponse) and response.code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            self._confirmed_reset = asked
            self.handle(request, token)
            return
        if response is not None:
            self._member.report_problem(
                f"a TRUNCATE of leader {asked.leader_id} would remove all entries before {asked.index}, but entry "
                f"{asked.index - 1} has not expired there (code {int(response.code)}): nothing was removed"
            )
        self._member.reply(token, self._response(request, ResponseCode.INCONSISTENT_STATE))

    def _gap_text(self, index: int) -> str:
        """The entries that this member never gets if its log begins at that index; "" if there are none."""
        _, end = self._member.log_end
        if index <= end + 1:
            return ""
        return (
            f"entries {end + 1} to {index - 1} have expired at leader {self._member.leader_id}: this log restarts at "
            f"{index}"
        )

    def _has_same_predecessor(self, entry: PushedEntry) -> bool:
        """Whether all entries here before this one are the leader's too."""
        store = self._member.store
        begin, before = store.ledger_begin_index, entry.index - 1
        if begin < 0 or not begin <= before <= store.ledger_end_index:
            return False
        # Entries of one term were written by one leader in order.
        return before <= max(self._match_index, store.committed_index) or store.term_at(before) == entry.term

    # APPEND

    def _append(self, request: PushRequest) -> int:
        store = self._member.store
        first = request.first_index
        if first > self._match_index + 1:
            raise RejectedError
        if first == store.ledger_end_index + 1:
            last = self._write(request.data, request.term)
        else:
            last = self._overwrite(request)
        self._match_index = max(self._match_index, last)
        if last != request.last_index:
            raise RejectedError(ResponseCode.UNEXPECTED_ARGUMENT)
        return last

    def _write(self, data: Buffer, term: int) -> int:
        """Append entries. One push of a Java leader can have entries of several files."""
        store = self._member.store
        try:
            return store.append_as_follower(data, term)
        except InconsistentError:
            starts = _file_starts(split(data))
            if len(starts) == 1:
                raise
        view = memoryview(data)
        for start, stop in zip(starts, (*starts[1:], len(view)), strict=True):
            self._match_index = store.append_as_follower(view[start:stop], term)
        return self._match_index

    def _overwrite(self, request: PushRequest) -> int:
        """Append new entries and overwrite different ones. Returns the last index."""
        store = self._member.store
        entries = split(request.data)
        begin, end = store.ledger_begin_index, store.ledger_end_index
        if entries[0].index != request.first_index or begin < 0 or begin > self._match_index + 1:
            raise RejectedError
        view = memoryview(request.data)
        common = self._count_common(entries, view)
        if common < len(entries):
            entry = entries[common]
            self._check_conflict(entry.index)
            if entry.index <= end:
                self._member.truncate(entry.index)
            self._write(view[entry.start :], request.term)
        return entries[-1].index

    def _count_common(self, entries: list[PushedEntry], view: memoryview) -> int:
        """The number of first entries that the log has; those before its begin count as common."""
        store = self._member.store
        at = max(store.ledger_begin_index - entries[0].index, 0)
        while at < len(entries) and entries[at].index <= store.ledger_end_index:
            start = entries[at].start
            stored = self._stored(entries[at], view, len(view) - start)
            if stored is None:
                return at
            count = min(stored.last_index - stored.first_index + 1, len(entries) - at)
            # Usually all are equal: one comparison instead of one per entry.
            if bytes(stored.data) != bytes(view[start : entries[at + count - 1].stop]):
                for entry in entries[at : at + count]:
                    if not self._has(entry, view):
                        return entry.index - entries[0].index
            at += count
        return min(at, len(entries))


def _file_starts(entries: list[PushedEntry]) -> list[int]:
    """The offsets in the data where each file's entries begin: where positions are not contiguous."""
    starts = [0]
    for before, entry in pairwise(entries):
        if entry.pos != before.pos + before.stop - before.start:
            starts.append(entry.start)
    return starts
