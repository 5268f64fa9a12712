"""What must hold after every step, checked incrementally, and counts of what happened."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.messages import AppendResponse, GetRequest, GetResponse, PutResponse, Role
from pyspark_dledger.store.dledger_store import Entry
from tests.simulation.ledger import FILLER, parse, positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.disk import SimStore
    from tests.simulation.ledger import Message
    from tests.simulation.world import SimNode

HEADER_SIZE = 48


class Violation(Exception):
    """Something that must hold does not; the text says what."""


class Committed(NamedTuple):
    """An entry as it was when it was first known to be committed, and by a leader of which term it was."""

    term: int
    pos: int
    data: bytes
    commit_term: int


class Known(NamedTuple):
    """The entry that an (index, term) names, and the term of the one before it where that was seen, else None."""

    data: bytes
    previous: int | None


class Judge:
    """Sees all nodes at once.

    Log matching is held by induction: an (index, term) always names the same bytes, and the same term before it. So an
    equal term at one index means equal logs up to it, and every other check compares one entry only.
    """

    def __init__(self) -> None:
        self.nodes: list[SimNode] = []
        self.counts: Counter[str] = Counter()
        self.known: dict[tuple[int, int], Known] = {}
        self.history: list[Committed] = []
        self.leaders: dict[int, str] = {}
        # Bodies that a client was told are in the log, and those that it was told are not.
        self.acknowledged: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.acknowledged_end = -1
        # Where the messages of puts stand that are committed, by their identities, and the next offset of each queue.
        self.messages: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.queue_ends: Counter[int] = Counter()
        self.told: dict[tuple[int, int], tuple[int, int, int]] = {}

    def count(self, what: str) -> None:
        self.counts[what] += 1

    # Calls of the stores.

    def appended(self, store: SimStore, entries: Sequence[tuple[int, int, bytes]], start: int) -> None:
        """Entries `entries[start:]` are new in that store: log matching."""
        index = store.ledger_end_index - (len(entries) - start) + 1
        for at in range(start, len(entries)):
            _, term, data = entries[at]
            previous = entries[at - 1][1] if at else (-1 if index == 0 else None)
            known = self.known.get((index, term))
            if known is None or known.previous is None:
                self.known[index, term] = Known(data, previous)
            if known is not None and known.data != data:
                raise Violation(f"log matching: {store.node_id} has another entry {index} of term {term} than before")
            if known is not None and previous is not None and known.previous not in (None, previous):
                raise Violation(
                    f"log matching: before entry {index} of term {term} {store.node_id} has one of term {previous}, "
                    f"another node one of term {known.previous}"
                )
            index += 1

    def truncating(self, store: SimStore, index: int) -> None:
        """No committed entry is ever cut from any log, whatever that node knows of its commitment."""
        self.count("truncations")
        if index <= store.committed_index:
            raise Violation(f"{store.node_id} truncates at {index}, its committed index is {store.committed_index}")
        begin = store.ledger_begin_index
        if index < len(self.history) and 0 <= begin <= index <= store.ledger_end_index:
            if store.term_at(index) == self.history[index].term:
                raise Violation(f"{store.node_id} truncates entry {index}, which is committed and the same as there")
            self.count("conflicting entries replaced by committed ones")

    def resetting(self, store: SimStore, index: int) -> None:
        self.count("resets")
        if 0 <= index <= store.committed_index:
            raise Violation(f"{store.node_id} resets to {index}, its committed index is {store.committed_index}")
        if store.ledger_begin_index >= 0:
            self.count("resets of a log with entries")

    def saving_term(self, store: SimStore, term: int, vote: str | None) -> None:
        if term < store.curr_term:
            raise Violation(f"{store.node_id} saves term {term} after {store.curr_term}")
        if term == store.curr_term and store.vote_leader not in (None, vote):
            raise Violation(f"{store.node_id} voted for {store.vote_leader} and then saves a vote for {vote} in {term}")

    def survived(self, before: SimStore, after: SimStore) -> None:
        lost = before.ledger_end_index - after.ledger_end_index
        if lost <= 0:
            return
        self.count("crashes that lost entries")
        # Nobody else can have seen what a group of one node loses.
        if len(self.nodes) == 1:
            for index in range(after.ledger_end_index + 1, before.ledger_end_index + 1):
                self.known.pop((index, before.term_at(index)), None)

    # After every step of a node.

    def check(self, node: SimNode) -> None:
        core, store = node.core, node.store
        assert core is not None
        committed, term = core.committed_index, core.term
        if term != node.seen_term or core.role is not node.seen_role:
            self._check_role(node, term, core.role)
        if committed == node.seen_committed:
            return
        if committed < node.seen_committed and store.resets == node.seen_resets:
            raise Violation(f"{node.id} takes its committed index back from {node.seen_committed} to {committed}")
        node.seen_committed, node.seen_resets = committed, store.resets
        if committed > store.ledger_end_index:
            raise Violation(f"{node.id} has committed {committed} and ends at {store.ledger_end_index}")
        if committed >= 0:
            self._check_committed(node, committed, term)

    def _check_role(self, node: SimNode, term: int, role: Role) -> None:
        if term < node.seen_term:
            raise Violation(f"{node.id} goes back from term {node.seen_term} to {term}")
        if role is Role.LEADER and (term != node.seen_term or node.seen_role is not Role.LEADER):
            self._check_leader(node, term)
        if node.seen_role is Role.LEADER and role is not Role.LEADER:
            self.count("leaders that stepped down")
        node.seen_term, node.seen_role = term, role

    def _check_leader(self, node: SimNode, term: int) -> None:
        self.count("elections won")
        other = self.leaders.setdefault(term, node.id)
        if other != node.id:
            raise Violation(f"one leader a term: {node.id} and {other} both lead term {term}")
        if node.store.curr_term != term or node.store.vote_leader != node.id:
            saved = f"{node.store.curr_term}, vote for {node.store.vote_leader}"
            raise Violation(f"{node.id} leads term {term} and has saved term {saved}")
        self._check_complete(node)

    def _check_complete(self, node: SimNode) -> None:
        """Leader completeness: by log matching, the last entry that was committed in an earlier term vouches for all.

        A candidate that was held up may win its term when later ones have committed more.
        """
        assert node.core is not None
        last = len(self.history) - 1
        while last >= 0 and self.history[last].commit_term >= node.core.term:
            last -= 1
        if last >= 0 and not self._holds(node.store, last, node.store.ledger_end_index):
            raise Violation(f"leader completeness: {node.id} leads without committed entry {last}")

    def _holds(self, store: SimStore, index: int, end: int) -> bool:
        """Whether a log that is taken to end at `end` has the committed entry, or had it before it expired."""
        begin = store.ledger_begin_index
        if begin < 0 or index > end:
            return False
        return index < begin or store.term_at(index) == self.history[index].term

    def _check_committed(self, node: SimNode, committed: int, term: int) -> None:
        store = node.store
        known = len(self.history)
        if committed < known:
            if not self._holds(store, committed, committed):
                raise Violation(f"{node.id} has committed another entry {committed} than the group")
            return
        if known and not self._holds(store, known - 1, committed):
            raise Violation(f"{node.id} commits {committed} without the committed entry {known - 1}")
        begin = store.ledger_begin_index
        if begin > known:
            raise Violation(f"{node.id} commits {committed}, begins at {begin}, and nobody committed {known}")
        for stored in store._entries[known - begin : committed - begin + 1]:
            self.history.append(Committed(stored.term, stored.pos, stored.data, term))
            if stored.data[HEADER_SIZE:] in self.refused:
                raise Violation(f"an append that was refused is committed as entry {len(self.history) - 1}")
            self._check_message(len(self.history) - 1, stored.pos, stored.data[HEADER_SIZE:])
        self._check_quorum(node, committed, term)
        for other in self.nodes:
            if other.core is not None and other.core.role is Role.LEADER and other.core.term > term:
                self._check_complete(other)

    def _check_message(self, index: int, pos: int, body: bytes) -> None:
        """A message is committed once, with the next offset of its queue."""
        if body == FILLER:
            self.count("fillers")
        message = parse(body)
        if message is None:
            return
        if message.identity in self.messages:
            first = self.messages[message.identity][0]
            raise Violation(f"message {message.identity} is committed twice, as entries {first} and {index}")
        if message.offset != self.queue_ends[message.queue]:
            raise Violation(
                f"entry {index} is committed with offset {message.offset} of queue {message.queue}, "
                f"which ends at {self.queue_ends[message.queue]}"
            )
        self.queue_ends[message.queue] += 1
        self.messages[message.identity] = index, pos, message.offset

    def _check_quorum(self, node: SimNode, index: int, term: int) -> None:
        """What is first known as committed is durable on a majority, and is safe from every later leader."""
        holders = [other.id for other in self.nodes if self._holds(other.store, index, other.store.durable_index)]
        if 2 * len(holders) <= len(self.nodes):
            raise Violation(f"{node.id} commits {index}, which only {', '.join(holders) or 'nobody'} has durably")
        if self.history[index].term != term:
            self.count("commits of older terms, held by all")
            if len(holders) < len(self.nodes):
                raise Violation(
                    f"{node.id} commits {index} of term {self.history[index].term} in term {term}, "
                    f"which not every member has but {', '.join(holders)}"
                )

    def check_told(self, node: SimNode) -> None:
        """Whoever drives the core was told of its role and of what is committed."""
        core = node.core
        if core is None:
            return
        if node.told_role != (core.role, core.term, core.leader_id):
            raise Violation(f"{node.id} is {core.role} of {core.term} under {core.leader_id}, told is {node.told_role}")
        if node.told_committed < core.committed_index:
            raise Violation(f"{node.id} has committed {core.committed_index}, told is {node.told_committed}")

    # What clients are told.

    def told_appended(self, bodies: Sequence[bytes], response: AppendResponse, acknowledged_end: int) -> None:
        """An append is acknowledged: it is committed, at the index and position that the answer says.

        It stands behind everything that was acknowledged before it was asked, `acknowledged_end` being the last.
        """
        self.count("appends acknowledged")
        if response.index <= acknowledged_end:
            raise Violation(f"entry {response.index} was asked for when {acknowledged_end} was acknowledged already")
        expected = _run_starts(response)
        for number, body in enumerate(bodies):
            index = response.index + number
            if index >= len(self.history):
                raise Violation(f"entry {index} is acknowledged and not committed")
            entry = self.history[index]
            if entry.data[HEADER_SIZE:] != body or entry.term != response.term:
                raise Violation(f"entry {index} of term {response.term} is acknowledged, and committed is another one")
            if index in expected and entry.pos != expected[index]:
                raise Violation(f"entry {index} is acknowledged at {expected[index]} and stands at {entry.pos}")
            if body in self.acknowledged:
                raise Violation(f"{body!r} is acknowledged twice, as {self.acknowledged[body]} and {index}")
            self.acknowledged[body] = index
        if response.count != len(bodies):
            raise Violation(f"{len(bodies)} bodies were appended and {response.count} acknowledged")
        self.acknowledged_end = max(self.acknowledged_end, response.index + len(bodies) - 1)

    def told_put(self, messages: Sequence[Message], response: PutResponse, acknowledged_end: int) -> None:
        """A put is acknowledged: all its messages are committed, where the answer says, and always said."""
        self.count("puts acknowledged")
        found = positions(bytes(response.positions))
        if len(found) != len(messages) or response.count != len(messages):
            raise Violation(f"{len(messages)} messages were put, and {response.count} acknowledged")
        for message, place in zip(messages, found, strict=True):
            if self.messages.get(message.identity) != place:
                raise Violation(
                    f"message {message.identity} is acknowledged at {place}, committed it is at "
                    f"{self.messages.get(message.identity)}"
                )
            if self.told.setdefault(message.identity, place) != place:
                raise Violation(f"message {message.identity} is said to be at {place} after {self.told}")
        if response.index < 0:
            self.count("puts of which all was there already")
        elif response.index <= acknowledged_end:
            raise Violation(f"entry {response.index} was asked for when {acknowledged_end} was acknowledged already")
        elif any(index < response.index for index, _, _ in found):
            self.count("puts of which some was there already")
        self.acknowledged_end = max(self.acknowledged_end, *(index for index, _, _ in found))

    def told_refused(self, bodies: Sequence[bytes], code: int) -> None:
        self.count(f"appends answered {code}")
        if code not in UNKNOWN_OUTCOMES:
            self.refused.update(bodies)

    def told_entry(self, request: GetRequest, response: GetResponse, acknowledged_end: int) -> None:
        """A read of what is committed; `acknowledged_end` was acknowledged to someone before it was asked."""
        self.count(f"committed reads answered {response.code}")
        index = request.begin_index
        if response.code == ResponseCode.SUCCESS:
            (found,) = response.entries
            if index >= len(self.history) or found != _entry(index, self.history[index]):
                raise Violation(f"entry {index} is read as committed, and it is not, or another one")
        elif response.code == ResponseCode.INDEX_OUT_OF_RANGE and index <= acknowledged_end:
            raise Violation(f"entry {index} is said not to be committed after {acknowledged_end} was acknowledged")

    # At the end.

    def check_alike(self) -> None:
        """All logs end alike, and all history is in them."""
        for node in self.nodes:
            end = node.store.ledger_end_index
            if end != len(self.history) - 1 or (end >= 0 and not self._holds(node.store, end, end)):
                raise Violation(f"{node.id} ends at {end} and the group has committed {len(self.history) - 1}")
            for at, stored in enumerate(node.store._entries, start=node.store.ledger_begin_index):
                if stored != tuple(_stored(self.history[at])):
                    raise Violation(f"{node.id} has other bytes in entry {at} than were committed")
        bodies = [entry.data[HEADER_SIZE:] for entry in self.history]
        if len(set(bodies)) + max(0, bodies.count(FILLER) - 1) != len(bodies):
            raise Violation("a body that was appended once is in the log twice")
        for body, index in self.acknowledged.items():
            if bodies[index] != body:
                raise Violation(f"entry {index} was acknowledged and is lost")
        if self.told.keys() != self.messages.keys():
            raise Violation(f"{len(self.told)} messages are acknowledged, and {len(self.messages)} are committed")


# An append that was answered so may be in the log.
UNKNOWN_OUTCOMES = (
    ResponseCode.TERM_CHANGED,
    ResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
    ResponseCode.INTERNAL_ERROR,
    ResponseCode.DISK_ERROR,
)


def _run_starts(response: AppendResponse) -> dict[int, int]:
    """The positions that an answer names: of its first entry and of each run's first."""
    return {response.index: response.pos} | {run.index: run.pos for run in response.runs}


def _entry(index: int, entry: Committed) -> Entry:
    return Entry(index, entry.term, entry.pos, 1, entry.data[HEADER_SIZE:])


def _stored(entry: Committed) -> tuple[int, int, bytes]:
    return entry.pos, entry.term, entry.data
