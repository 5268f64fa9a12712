"""A live group as a log to read: committed entries and where they stand, from whichever of its members answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, final

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError, StoreError
from pyspark_dledger.format.checksum import crc32
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.client import Client, CommittedRange, MemberStatus
from pyspark_dledger.raft.client.outcomes import STRANGERS
from pyspark_dledger.raft.peers import parse_peers
from pyspark_dledger.spark.group_address import GroupAddress

log = logging.getLogger(__name__)

# Seconds. A member that did not answer is not asked for that long, as long as another one does.
_REST = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# How long an entry that is known to be committed is waited for, while leaders change and members restart.
PATIENCE = 60.0
_TIMEOUT_MS = 3_000
# Of two guesses at least one halves what is left, whatever the sizes of the entries are.
_GUESSES_PER_HALVING = 2


class NotCommittedError(IndexRangeError):
    """An entry that no member knows to be committed yet; the log may still come to have it."""


class PlacedEntry(NamedTuple):
    """A committed entry and where it stands, in bytes; ``crc`` is the CRC-32 of all its bytes."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    pos: int
    size: int
    crc: int
    data: bytes

    @property
    def end(self) -> int:
        """The position right behind it."""
        return self.pos + self.size


@final
class GroupLog:
    """To be used by one thread, as a context manager or with `close`.

    The member that answered last is asked first; ``first_member`` says with which of them to begin, so that many tasks
    do not all ask the same. Members of Java are never read from: their protocol tells no committed index.
    """

    def __init__(self, address: GroupAddress, first_member: int = 0) -> None:
        members = list(parse_peers(address.peers))
        first = first_member % len(members)
        self.group = address.group
        self._members = members[first:] + members[:first]
        self._client: Client = address.connect(_TIMEOUT_MS)
        self._rests_until: dict[str, float] = {}
        self._java: dict[str, GroupError] = {}

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> GroupLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Committed entries.

    def read(self, first_index: int, max_bytes: int, commit_patience: float = PATIENCE) -> CommittedRange:
        """At least one committed entry from that index on, about `max_bytes` of them, of any member that has it.

        Raises IndexRangeError where every member that answers has expired it, NotCommittedError where none has it
        committed within `commit_patience` seconds, and GroupError where none answers within `PATIENCE`.
        """
        begun = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            found = self._read_of_any(first_index, max_bytes)
            if isinstance(found, CommittedRange):
                return found
            if isinstance(found, IndexRangeError) and not isinstance(found, NotCommittedError):
                raise found
            patience = commit_patience if isinstance(found, NotCommittedError) else PATIENCE
            if time.monotonic() - begun >= patience:
                raise found
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _read_of_any(self, first_index: int, max_bytes: int) -> CommittedRange | IndexRangeError | GroupError:
        """What the first member has that has the entry; else why none has it, as it matters most."""
        behind: NotCommittedError | None = None
        expired: IndexRangeError | None = None
        unreached: GroupError | None = None
        for member in self._to_ask():
            try:
                found = self._client.read(first_index, member, max_bytes=max_bytes)
            except IndexRangeError as error:
                expired = error
            except GroupError as error:
                unreached = self._failed(member, error)
            else:
                if found.count:
                    self._answered(member)
                    return found
                # It may get the entry yet, even if another one has expired it meanwhile.
                behind = self._behind(first_index, found.committed_index)
        problem = behind or expired or unreached
        assert problem is not None
        return problem

    def _behind(self, index: int, committed: int) -> NotCommittedError:
        return NotCommittedError(
            f"group {self.group}: expected entry {index} to be committed, found no member that answers and knows of "
            f"more than {committed}: look at its nodes, and start those that are down"
        )

    def entry(self, index: int, commit_patience: float = PATIENCE) -> PlacedEntry:
        """The committed entry of that index; raises as `read` does."""
        return self._placed(index, self.read(index, 1, commit_patience))

    def entry_and_committed(self, index: int) -> tuple[PlacedEntry, int]:
        """The same at once, and the highest committed index that the member knows which gave it."""
        found = self.read(index, 1, 0.0)
        return self._placed(index, found), found.committed_index

    def _placed(self, index: int, found: CommittedRange) -> PlacedEntry:
        data = bytes(memoryview(found.data))
        header = decode_entry_header(data[:ENTRY_HEADER_SIZE])
        if header.index != index or len(data) < header.size:
            raise StoreError(
                f"group {self.group}: expected entry {index}, found {len(data)} bytes that begin with entry "
                f"{header.index}: run `dledger verify` on the store of that member"
            )
        data = data[: header.size]
        return PlacedEntry(index, header.term, header.pos, header.size, crc32(data), data)

    def last_within(self, first: PlacedEntry, last: PlacedEntry, limit: int) -> PlacedEntry:
        """The last entry up to which those from `first` on take at most `limit` bytes of the log; at least `first`."""
        if last.end - first.pos <= limit:
            return last
        low, high, guesses = first, last, 0
        while high.index - low.index > 1:
            guesses += 1
            middle = (low.index + high.index) // 2
            if guesses % _GUESSES_PER_HALVING:
                middle = _guess(low, high, first.pos + limit)
            found = self.entry(middle)
            if found.end - first.pos <= limit:
                low = found
            else:
                high = found
        return low

    # How the members stand.

    def statuses(self) -> dict[str, MemberStatus]:
        """How every member of ours stands that answers, by its id.

        Raises GroupError where none does in `PATIENCE`, and at once where all that answer are of another group.
        """
        deadline = time.monotonic() + PATIENCE
        pause = _FIRST_PAUSE
        while True:
            found: dict[str, MemberStatus] = {}
            problems: list[GroupError] = []
            for member in self._to_ask():
                try:
                    found[member] = self._client.status(member)
                    self._rests_until.pop(member, None)
                except GroupError as error:
                    problems.append(self._failed(member, error))
            if found:
                return found
            if time.monotonic() >= deadline or _are_strangers(problems):
                raise self._unanswered(problems)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _unanswered(self, problems: Sequence[GroupError]) -> GroupError:
        what = "of the group" if _are_strangers(problems) else f"that answers within {PATIENCE:.0f} s"
        texts = "; ".join(map(str, problems))
        code = problems[-1].code if problems else ResponseCode.NETWORK_ERROR
        return GroupError(f"group {self.group}: expected a member {what}, found none ({texts})", code)

    @property
    def size(self) -> int:
        """How many members the group has, as far as they were named."""
        return len(self._members)

    # Which member to ask.

    def _to_ask(self) -> list[str]:
        """The members worth asking, the one that answered last first; all that are not Java's, if all of them rest."""
        ours = [member for member in self._members if member not in self._java]
        if not ours:
            raise OptionError(
                f"group {self.group}: expected a node of pyspark_dledger among its peers, found only those of Java, "
                "whose protocol tells no committed index: tail the store of one of them by its path, with load(path)"
            )
        now = time.monotonic()
        return [member for member in ours if self._rests_until.get(member, 0.0) <= now] or ours

    def _answered(self, member: str) -> None:
        self._rests_until.pop(member, None)
        if self._members[0] != member:
            self._members.remove(member)
            self._members.insert(0, member)

    def _failed(self, member: str, error: GroupError) -> GroupError:
        if error.code == ResponseCode.UNSUPPORTED:
            self._java[member] = error
        elif self._rests_until.get(member) is None:
            log.info("group %s: %s is not asked for %.0f s: %s", self.group, member, _REST, error)
        self._rests_until[member] = time.monotonic() + _REST
        return error


def _are_strangers(problems: Sequence[GroupError]) -> bool:
    """Whether every member that answers says that it is of another group, or has another id."""
    answered = [problem.code for problem in problems if problem.code != ResponseCode.NETWORK_ERROR]
    return bool(answered) and STRANGERS.issuperset(answered)


def begin_of(statuses: Mapping[str, MemberStatus]) -> int:
    """The lowest index that a member has; 0 in an empty log."""
    return max(min((status.begin_index for status in statuses.values() if status.end_index >= 0), default=0), 0)


def _guess(low: PlacedEntry, high: PlacedEntry, pos: int) -> int:
    """The index between two entries where `pos` lies if all between them have the same size."""
    guess = low.index + (pos - low.pos) * (high.index - low.index) // max(high.pos - low.pos, 1)
    return min(max(guess, low.index + 1), high.index - 1)
