"""The log of a live group: committed entries and their positions, from any member that responds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple, final

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, IndexRangeError, StoreError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.tail.tail import TailOffset
from pyspark_dledger.raft.client import Client, CommittedRange, MemberStatus
from pyspark_dledger.raft.client.members import CHECK_NODES
from pyspark_dledger.raft.client.outcomes import WRONG_MEMBER
from pyspark_dledger.raft.peers import parse_peers
from pyspark_dledger.spark.group.group_address import GroupAddress

log = logging.getLogger(__name__)

# Seconds. A member that did not respond is skipped for that long, while another one responds.
_SKIP_SECONDS = 10.0
_MIN_PAUSE, _MAX_PAUSE = 0.02, 0.5
# Seconds. Elections and restarts of members take less.
MAX_WAIT = 60.0
# Seconds, while no member has ever responded: its addresses are wrong, or no node runs.
MAX_FIRST_WAIT = 9.0
_TIMEOUT_MS = 3_000
# Asked in place of all Java members, after ours.
_JAVA = "the Java leader"


class NotCommittedError(IndexRangeError):
    """No member knows that the entry is committed. It may be, later."""


class GroupEntry(NamedTuple):
    """A committed entry: where it begins and ends in the log, in bytes, and the CRC-32 of all its bytes."""

    index: int  # type: ignore[assignment]  # shadows tuple.index
    term: int
    pos: int
    end: int
    crc: int

    @property
    def offset(self) -> TailOffset:
        return TailOffset(self.index, self.term, self.pos, self.crc)

    def __str__(self) -> str:
        return f"{self.offset} with CRC {self.crc}"


def group_entry(data: memoryview) -> GroupEntry:
    """Return the entry that begins with `data`, which has all of it."""
    header = decode_entry_header(bytes(data[:ENTRY_HEADER_SIZE]))
    return GroupEntry(header.index, header.term, header.pos, header.pos + header.size, crc32(data[: header.size]))


@final
class GroupLog:
    """For one thread; a context manager. Close it otherwise.

    The member that responded last is asked first. `first_member` is the number of the first to ask, so that tasks begin
    with different members. If no member of ours responds, Java members are read: from their leader, as far as their
    responses prove what is committed.
    """

    def __init__(self, address: GroupAddress, first_member: int = 0) -> None:
        members = list(parse_peers(address.peers))
        first = first_member % len(members)
        self.name = f"group {address.group}"
        self.size = len(members)
        self._members = members[first:] + members[:first]
        self._client: Client = address.connect(_TIMEOUT_MS)
        self._was_reached = False
        self._skipped_until: dict[str, float] = {}
        # The last error of each member that does not respond.
        self._errors: dict[str, GroupError] = {}
        self._java: set[str] = set()

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> GroupLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Committed entries.

    def read(self, first_index: int, max_bytes: int, max_commit_wait: float = MAX_WAIT) -> CommittedRange:
        """Return at least one committed entry from that index on, and about `max_bytes`, of any member.

        Raises IndexRangeError if all members that respond have expired it, NotCommittedError if it is not committed
        within `max_commit_wait` seconds, and GroupError if no member responds within `MAX_WAIT`, or `MAX_FIRST_WAIT`.
        """
        start = time.monotonic()
        pause = _MIN_PAUSE
        while True:
            found = self._read_of_any(first_index, max_bytes)
            if isinstance(found, CommittedRange):
                return found
            if isinstance(found, IndexRangeError) and not isinstance(found, NotCommittedError):
                raise found
            max_wait = max_commit_wait if isinstance(found, NotCommittedError) else self._max_wait
            if time.monotonic() - start >= max_wait:
                raise found
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def _read_of_any(self, first_index: int, max_bytes: int) -> CommittedRange | IndexRangeError | GroupError:
        """Return entries of the first member that has them, else the problem that matters most."""
        not_committed: NotCommittedError | None = None
        expired: IndexRangeError | None = None
        is_unreached = False
        for member in self._members_to_ask():
            try:
                found = self._read_from(member, first_index, max_bytes)
            except IndexRangeError as error:
                self._responded(member)
                expired = error
            except GroupError as error:
                self._failed(member, error)
                is_unreached = True
            else:
                self._responded(member)
                if found.count:
                    if member != _JAVA:
                        self._members.remove(member)
                        self._members.insert(0, member)
                    return found
                # It may get the entry later, even if another member has expired it.
                not_committed = NotCommittedError(
                    f"{self.name}: entry {first_index} is not committed, {member} knows that entries up to "
                    f"{found.committed_index} are: check the nodes, and start those that are down"
                )
        assert not_committed or expired or is_unreached
        return not_committed or expired or self._unreached()

    def _read_from(self, member: str, first_index: int, max_bytes: int) -> CommittedRange:
        if member == _JAVA:
            return self._client.read_java(first_index, max_bytes=max_bytes)
        return self._client.read(first_index, member, max_bytes=max_bytes)

    def entry(self, index: int) -> GroupEntry:
        """Return the committed entry of that index. Raises as `read` does."""
        return self._decoded(index, self.read(index, 1))

    def entry_and_committed(self, index: int) -> tuple[GroupEntry, int]:
        """Return the entry, and the highest index that the same member knows to be committed. Does not wait for it."""
        found = self.read(index, 1, 0.0)
        return self._decoded(index, found), found.committed_index

    def _decoded(self, index: int, found: CommittedRange) -> GroupEntry:
        data = memoryview(found.data)
        header = decode_entry_header(bytes(data[:ENTRY_HEADER_SIZE]))
        if header.index != index or len(data) < header.size:
            raise StoreError(
                f"{self.name}: expected entry {index}, found {len(data)} bytes that begin with entry {header.index}: "
                "run `dledger verify` on the store of that member"
            )
        return group_entry(data)

    def last_within(self, first: GroupEntry, last: GroupEntry, limit: int) -> GroupEntry:
        """Return the last entry so that those from `first` on take at most `limit` bytes of the log; at least `first`.

        Searches by interpolation, and by bisection every second time: that bounds the number of requests.
        """
        if last.end - first.pos <= limit:
            return last
        low, high, bisects = first, last, False
        while high.index - low.index > 1:
            middle = (low.index + high.index) // 2 if bisects else _interpolate(low, high, first.pos + limit)
            bisects = not bisects
            found = self.entry(middle)
            if found.end - first.pos <= limit:
                low = found
            else:
                high = found
        return low

    # Statuses.

    def statuses(self) -> dict[str, MemberStatus]:
        """Return the status of every member of ours that responds, else of the Java leader, by its id.

        Raises GroupError with the error of each if none does within `MAX_WAIT`, or `MAX_FIRST_WAIT`, and at once if all
        that respond are of another group.
        """
        start = time.monotonic()
        pause = _MIN_PAUSE
        while True:
            found: dict[str, MemberStatus] = {}
            for member in self._members_to_ask():
                if found and member == _JAVA:
                    break
                try:
                    is_java = member == _JAVA
                    found[member] = self._client.java_status() if is_java else self._client.status(member)
                    self._responded(member)
                except GroupError as error:
                    self._failed(member, error)
            if found:
                return found
            if time.monotonic() - start >= self._max_wait or self._has_only_strangers:
                raise self._unreached()
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    @property
    def _max_wait(self) -> float:
        """Seconds to wait for a member that responds."""
        return MAX_WAIT if self._was_reached else MAX_FIRST_WAIT

    # Which member to ask.

    def _members_to_ask(self) -> Iterator[str]:
        """Yield the members to ask, in order, Java's last: no skipped ones unless all are."""
        ours = [member for member in self._members if member not in self._java]
        asked = [member for member in ours if not self._is_skipped(member)]
        if not asked and (not self._java or self._is_skipped(_JAVA)):
            asked = ours
        yield from asked
        if self._java and (asked == ours or not self._is_skipped(_JAVA)):
            yield _JAVA

    def _is_skipped(self, member: str) -> bool:
        return self._skipped_until.get(member, 0.0) > time.monotonic()

    def _responded(self, member: str) -> None:
        self._was_reached = True
        self._skipped_until.pop(member, None)
        self._errors.pop(member, None)

    def _failed(self, member: str, error: GroupError) -> None:
        if error.code == ResponseCode.UNSUPPORTED and member != _JAVA:
            self._java.add(member)
            return
        if member not in self._skipped_until:
            log.info("%s: %s is skipped for %.0f s: %s", self.name, member, _SKIP_SECONDS, error)
        self._skipped_until[member] = time.monotonic() + _SKIP_SECONDS
        self._errors[member] = error

    def _unreached(self) -> GroupError:
        """Return the error if no member responds, with the error of each, or if a Java group has no proof."""
        unproven = self._errors.get(_JAVA)
        if unproven is not None and unproven.code == ResponseCode.LEADER_NOT_READY:
            return unproven
        problem, advice = f"no member responded within {self._max_wait:.0f} s", CHECK_NODES
        if self._has_only_strangers:
            problem = "all members that respond are of another group or have other ids"
            advice = "check the options group and peers"
        errors = self._errors.values()
        return GroupError(f"{self.name}: {problem}: {'; '.join(map(str, errors))}: {advice}", next(iter(errors)).code)

    @property
    def _has_only_strangers(self) -> bool:
        """Whether every member that responds is of another group, or has another id."""
        codes = {error.code for error in self._errors.values()} - {ResponseCode.NETWORK_ERROR}
        return bool(codes) and WRONG_MEMBER.issuperset(codes)


def begin_index(statuses: Mapping[str, MemberStatus]) -> int:
    """Return the lowest index that a member has; 0 in an empty log."""
    return max(min((status.begin_index for status in statuses.values() if status.end_index >= 0), default=0), 0)


def committed_index(statuses: Mapping[str, MemberStatus]) -> int:
    """Return the highest index that a member knows to be committed; -1 without one."""
    return max(status.committed_index for status in statuses.values())


def _interpolate(low: GroupEntry, high: GroupEntry, pos: int) -> int:
    """Return the index between two entries where `pos` is if all entries have the same size."""
    index = low.index + (pos - low.pos) * (high.index - low.index) // max(high.pos - low.pos, 1)
    return min(max(index, low.index + 1), high.index - 1)
