"""Checks rules after every step, incrementally, and counts events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.codec import MEMBERS, NOOP, control_kind_at
from pyspark_dledger.raft.core.member import MAX_TERM_RISE
from pyspark_dledger.raft.member_list import MemberList, list_in
from pyspark_dledger.raft.messages import AppendResponse, GetRequest, GetResponse, PutResponse, Role
from pyspark_dledger.store.dledger_store import Entry
from tests.simulation.ledger import FILLER, parse, positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.disk import SimStore
    from tests.simulation.ledger import Message
    from tests.simulation.node import SimNode

HEADER_SIZE = 48


class Violation(Exception):
    """A violated rule."""


class Committed(NamedTuple):
    """An entry when it was first committed, and the term of the leader that committed it."""

    term: int
    pos: int
    data: bytes
    commit_term: int


class SeenEntry(NamedTuple):
    """The bytes of the entry of an (index, term), and the term of the previous entry, None if not seen."""

    data: bytes
    previous: int | None


class Checker:
    """Sees all nodes at once.

    Log matching is checked by induction: an (index, term) always has the same bytes and previous term. So equal
    terms at one index mean equal logs up to it, and all other checks compare only one entry.
    """

    def __init__(self) -> None:
        self.nodes: list[SimNode] = []
        # The voters at the begin, and the lists of members that were appended, by index and term.
        self.voters: Sequence[str] = ()
        self.lists: dict[tuple[int, int], MemberList] = {}
        self.counts: Counter[str] = Counter()
        self.seen: dict[tuple[int, int], SeenEntry] = {}
        self.history: list[Committed] = []
        self.leaders: dict[int, str] = {}
        # Acknowledged bodies, and bodies that were reported as not appended.
        self.acknowledged: dict[bytes, int] = {}
        self.rejected: set[bytes] = set()
        self.acknowledged_end = -1
        # Index, position and offset of committed messages by identity, and the next offset of each queue.
        self.messages: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.queue_ends: Counter[int] = Counter()
        self.put_results: dict[tuple[int, int], tuple[int, int, int]] = {}

    def count(self, what: str) -> None:
        self.counts[what] += 1

    # Called by the stores

    def appended(self, store: SimStore, entries: Sequence[tuple[int, int, bytes]], start: int) -> None:
        """Check log matching for new entries `entries[start:]` of a store."""
        index = store.ledger_end_index - (len(entries) - start) + 1
        for at in range(start, len(entries)):
            _, term, data = entries[at]
            previous = entries[at - 1][1] if at else (-1 if index == 0 else None)
            known = self.seen.get((index, term))
            if known is None or known.previous is None:
                self.seen[index, term] = SeenEntry(data, previous)
            if known is not None and known.data != data:
                raise Violation(
                    f"log matching: {store.node_id} has an entry {index} of term {term} that differs from one before"
                )
            if known is not None and previous is not None and known.previous not in (None, previous):
                raise Violation(
                    f"log matching: before entry {index} of term {term} {store.node_id} has one of term {previous}, "
                    f"another node one of term {known.previous}"
                )
            if control_kind_at(data) == MEMBERS:
                self.lists[index, term] = list_in(index, term, data[HEADER_SIZE:])
            index += 1

    def truncating(self, store: SimStore, index: int) -> None:
        """No committed entry is ever truncated, even if the node does not know that it is committed."""
        self.count("truncations")
        if index <= store.committed_index:
            raise Violation(f"{store.node_id} truncates at {index}, its committed index is {store.committed_index}")
        begin = store.ledger_begin_index
        if index < len(self.history) and 0 <= begin <= index <= store.ledger_end_index:
            if store._at(index).term == self.history[index].term:
                raise Violation(f"{store.node_id} truncates entry {index}, which is committed")
            self.count("conflicting entries replaced by committed ones")

    def resetting(self, store: SimStore, index: int) -> None:
        self.count("resets")
        if self.nodes and store.ledger_begin_index >= 0 and index > len(self.history):
            raise Violation(f"{store.node_id} resets to {index}, and the group has committed {len(self.history) - 1}")
        if 0 <= index <= store.committed_index:
            raise Violation(f"{store.node_id} resets to {index}, its committed index is {store.committed_index}")
        if store.ledger_begin_index >= 0:
            self.count("resets of a log with entries")

    def repairing(self, node_id: str, index: int, data: bytes, written: bytes) -> None:
        self.count("damaged entries repaired")
        if data != written:
            raise Violation(f"{node_id} repairs entry {index} with other bytes than it had")

    def saving_term(self, store: SimStore, term: int, vote: str | None) -> None:
        if self.nodes and term > store.curr_term + MAX_TERM_RISE:
            raise Violation(f"{store.node_id} saves term {term} after {store.curr_term}")
        if term < store.curr_term:
            raise Violation(f"{store.node_id} saves term {term} after {store.curr_term}")
        if term == store.curr_term and store.vote_leader not in (None, vote):
            raise Violation(f"{store.node_id} voted for {store.vote_leader} and then saves a vote for {vote} in {term}")
        if vote == store.node_id and store.ledger_end_index >= 0:  # nobody with entries votes for one without
            self.check_voter(store)

    def check_voter(self, store: SimStore) -> None:
        """A member with a new disk votes with what it acknowledged with the old one; one of two need not join."""
        for node in self.nodes:
            had = node.had_committed
            must_join = node.joins or len(node.peers) > 2
            if node.store is not store or not must_join or had < 0:
                continue
            # While a log is empty after a reset, votes are by the log before it.
            log = store if store.ledger_end_index >= 0 or store.before_reset is None else store.before_reset
            if not self._has(log, had, log.ledger_end_index):
                raise Violation(f"{node.id} votes without the committed entry {had}, which it had on another disk")

    def saving_cluster_id(self, store: SimStore, cluster_id: str) -> None:
        self.count("cluster ids saved")
        known = {node.store.cluster_id for node in self.last_members()} - {""}
        if known - {cluster_id}:
            raise Violation(f"{store.node_id} saves cluster id {cluster_id} after {', '.join(known)}")

    def survived(self, before: SimStore, after: SimStore) -> None:
        lost = before.ledger_end_index - after.ledger_end_index
        if lost <= 0:
            return
        self.count("crashes that lost entries")
        # In a group of one, no other node has seen the lost entries.
        if len(self.nodes) == 1:
            for index in range(after.ledger_end_index + 1, before.ledger_end_index + 1):
                self.seen.pop((index, before._at(index).term), None)

    # The members

    def members_of(self, store: SimStore) -> MemberList:
        """The latest list of a log. Lists that expired there were committed."""
        begin, end = store.ledger_begin_index, store.ledger_end_index
        found = [
            each
            for (index, term), each in self.lists.items()
            if begin >= 0
            and index <= end
            and (self._was_committed(index, term) if index < begin else store._at(index).term == term)
        ]
        return max(found, key=lambda each: each.index, default=self._first_list)

    @property
    def _first_list(self) -> MemberList:
        return MemberList(-1, -1, dict.fromkeys(self.voters, ""))

    def _was_committed(self, index: int, term: int) -> bool:
        return index < len(self.history) and self.history[index].term == term

    def last_list(self) -> MemberList:
        """The latest committed list."""
        found = [each for (index, term), each in self.lists.items() if self._was_committed(index, term)]
        return max(found, key=lambda each: each.index, default=self._first_list)

    def last_members(self) -> list[SimNode]:
        """The nodes of the latest committed list."""
        ids = self.last_list().addresses
        return [node for node in self.nodes if node.id in ids]

    # Called after every step of a node

    def check(self, node: SimNode) -> None:
        core, store = node.core, node.store
        assert core is not None
        committed, term = core.committed_index, core.term
        if term != node.seen_term or core.role is not node.seen_role:
            self._check_role(node, term, core.role)
        if committed == node.seen_committed:
            return
        if committed < node.seen_committed and store.resets == node.seen_resets:
            raise Violation(f"{node.id} lowers its committed index from {node.seen_committed} to {committed}")
        node.seen_committed, node.seen_resets = committed, store.resets
        if committed > store.ledger_end_index:
            raise Violation(f"{node.id} has committed {committed} and ends at {store.ledger_end_index}")
        if committed >= 0:
            self._check_committed(node, committed, term)

    def _check_role(self, node: SimNode, term: int, role: Role) -> None:
        if term < node.seen_term:
            raise Violation(f"{node.id} lowers its term from {node.seen_term} to {term}")
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
        """Leader completeness: by log matching, the last entry committed in an earlier term is enough.

        A delayed candidate may win its term when later leaders have committed more.
        """
        assert node.core is not None
        last = len(self.history) - 1
        while last >= 0 and self.history[last].commit_term >= node.core.term:
            last -= 1
        if last >= 0 and not self._has(node.store, last, node.store.ledger_end_index):
            raise Violation(f"leader completeness: {node.id} leads without committed entry {last}")

    def has_committed(self, store: SimStore, index: int) -> bool:
        """Whether a log has the committed entry."""
        return self._has(store, index, store.ledger_end_index)

    def _has(self, store: SimStore, index: int, end: int) -> bool:
        """Whether a log that ends at `end` has the committed entry, or had it before it expired."""
        begin = store.ledger_begin_index
        if begin < 0 or index > end:
            return False
        return index < begin or store._at(index).term == self.history[index].term

    def _check_committed(self, node: SimNode, committed: int, term: int) -> None:
        store = node.store
        known = len(self.history)
        if committed < known:
            if not self._has(store, committed, committed):
                raise Violation(f"{node.id} has committed another entry {committed} than the group")
            return
        if known and not self._has(store, known - 1, committed):
            raise Violation(f"{node.id} commits {committed} without the committed entry {known - 1}")
        begin = store.ledger_begin_index
        if begin > known:
            raise Violation(f"{node.id} commits {committed}, begins at {begin}, and nobody committed {known}")
        for stored in store._entries[known - begin : committed - begin + 1]:
            self.history.append(Committed(stored.term, stored.pos, stored.data, term))
            if stored.data[HEADER_SIZE:] in self.rejected:
                raise Violation(f"an append that was rejected is committed as entry {len(self.history) - 1}")
            if control_kind_at(stored.data) == NOOP:
                self.count("NOOPs committed")
            elif control_kind_at(stored.data) == MEMBERS:
                self._count_change(len(self.history) - 1)
            else:
                self._check_message(len(self.history) - 1, stored.pos, stored.data[HEADER_SIZE:])
        self._check_quorum(node, committed, term)
        for other in self.nodes:
            if other.core is not None and other.core.role is Role.LEADER and other.core.term > term:
                self._check_complete(other)

    def _count_change(self, index: int) -> None:
        found = self.lists[index, self.history[index].term]
        self.count("learners added" if found.learners else "replacements begun" if found.leaving else "voters changed")

    def _check_message(self, index: int, pos: int, body: bytes) -> None:
        """A message is committed only once, with the next offset of its queue."""
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
        """A new committed entry is durable on a majority, and no later leader can lack it.

        A restored member may have acknowledged it before; it elects no leader until it has the entry.
        """
        voters = self.members_of(node.store).voters
        nodes = [other for other in self.nodes if other.id in voters]
        holders = [
            other.id
            for other in nodes
            if not other.can_vote or self._has(other.store, index, other.store.durable_index)
        ]
        if 2 * len(holders) <= len(nodes):
            raise Violation(f"{node.id} commits {index}, which is durable only on {', '.join(holders) or 'no member'}")
        if self.history[index].term != term:
            self.count("commits of older terms, on all members")
            if len(holders) < len(nodes):
                raise Violation(
                    f"{node.id} commits {index} of term {self.history[index].term} in term {term}, "
                    f"which only {', '.join(holders)} have"
                )

    def check_reported(self, node: SimNode) -> None:
        """The effects of the core have reported its role and its committed index."""
        core = node.core
        if core is None:
            return
        if node.reported_role != (core.role, core.term, core.leader_id):
            raise Violation(
                f"{node.id} is {core.role} of {core.term} led by {core.leader_id}, but reported {node.reported_role}"
            )
        if node.reported_committed < core.committed_index:
            raise Violation(f"{node.id} has committed {core.committed_index}, but reported {node.reported_committed}")

    # Responses to clients

    def check_append_response(self, bodies: Sequence[bytes], response: AppendResponse, acknowledged_end: int) -> None:
        """An acknowledged append is committed, at the index and position of the response.

        It is after all entries that were acknowledged before its request, up to `acknowledged_end`.
        """
        self.count("appends acknowledged")
        if response.index <= acknowledged_end:
            raise Violation(f"entry {response.index} was requested after {acknowledged_end} was acknowledged")
        expected = _run_starts(response)
        for number, body in enumerate(bodies):
            index = response.index + number
            if index >= len(self.history):
                raise Violation(f"entry {index} is acknowledged and not committed")
            entry = self.history[index]
            if entry.data[HEADER_SIZE:] != body or entry.term != response.term:
                raise Violation(f"entry {index} of term {response.term} is acknowledged, but another one is committed")
            if index in expected and entry.pos != expected[index]:
                raise Violation(f"entry {index} is acknowledged at position {expected[index]} but is at {entry.pos}")
            if body in self.acknowledged:
                raise Violation(f"{body!r} is acknowledged twice, as {self.acknowledged[body]} and {index}")
            self.acknowledged[body] = index
        if response.count != len(bodies):
            raise Violation(f"{len(bodies)} bodies were appended and {response.count} acknowledged")
        self.acknowledged_end = max(self.acknowledged_end, response.index + len(bodies) - 1)

    def check_put_response(self, messages: Sequence[Message], response: PutResponse, acknowledged_end: int) -> None:
        """All messages of an acknowledged put are committed, at the positions of this and earlier responses."""
        self.count("puts acknowledged")
        found = positions(bytes(response.positions))
        if len(found) != len(messages) or response.count != len(messages):
            raise Violation(f"{len(messages)} messages were put, and {response.count} acknowledged")
        for message, position in zip(messages, found, strict=True):
            if self.messages.get(message.identity) != position:
                raise Violation(
                    f"message {message.identity} is acknowledged at {position}, but committed at "
                    f"{self.messages.get(message.identity)}"
                )
            if self.put_results.setdefault(message.identity, position) != position:
                raise Violation(f"message {message.identity} is acknowledged at {position} after {self.put_results}")
        if response.index < 0:
            self.count("puts of duplicates only")
        elif response.index <= acknowledged_end:
            raise Violation(f"entry {response.index} was requested after {acknowledged_end} was acknowledged")
        elif any(index < response.index for index, _, _ in found):
            self.count("puts with some duplicates")
        self.acknowledged_end = max(self.acknowledged_end, *(index for index, _, _ in found))

    def count_failed_append(self, bodies: Sequence[bytes], code: int) -> None:
        self.count(f"append responses {code}")
        if code not in UNKNOWN_OUTCOMES:
            self.rejected.update(bodies)

    def check_read_response(self, request: GetRequest, response: GetResponse, acknowledged_end: int) -> None:
        """A read of a committed entry; `acknowledged_end` was acknowledged before the request."""
        self.count(f"committed read responses {response.code}")
        index = request.begin_index
        if response.code == ResponseCode.SUCCESS:
            (found,) = response.entries
            if index >= len(self.history) or found != _entry(index, self.history[index]):
                raise Violation(f"entry {index} is read as committed, but another one or none is committed")
        elif response.code == ResponseCode.INDEX_OUT_OF_RANGE and index <= acknowledged_end:
            raise Violation(f"entry {index} is missing in a committed read after {acknowledged_end} was acknowledged")

    def check_java_response(self, request: GetRequest, response: GetResponse) -> None:
        """A leader's entry, committed or not, with its bytes."""
        for found in response.entries:
            seen = self.seen.get((found.index, found.term))
            if found.index != request.begin_index or seen is None or seen.data[HEADER_SIZE:] != found.body:
                raise Violation(f"entry {request.begin_index} is read as {found}, which nobody appended")

    # At the end

    def check_terms(self, is_hostile: bool) -> None:
        """Correct members never send a term that is too far above another's."""
        for node in self.nodes:
            if not is_hostile and node.store.curr_term > MAX_TERM_RISE:
                raise Violation(f"{node.id} is in term {node.store.curr_term} without a hostile peer")

    def check_identical_logs(self) -> None:
        """All logs end with the last committed entry and have all committed entries."""
        for node in self.last_members():
            end = node.store.ledger_end_index
            if end != len(self.history) - 1 or (end >= 0 and not self._has(node.store, end, end)):
                raise Violation(f"{node.id} ends at {end} and the group has committed {len(self.history) - 1}")
            for at, stored in enumerate(node.store._entries, start=node.store.ledger_begin_index):
                if stored != tuple(_stored(self.history[at])):
                    raise Violation(f"entry {at} of {node.id} differs from the committed one")
        bodies = [entry.data[HEADER_SIZE:] for entry in self.history]
        data = [body for entry, body in zip(self.history, bodies, strict=True) if not control_kind_at(entry.data)]
        if len(set(data)) + max(0, data.count(FILLER) - 1) != len(data):
            raise Violation("a body that was appended once is in the log twice")
        for body, index in self.acknowledged.items():
            if bodies[index] != body:
                raise Violation(f"entry {index} was acknowledged but is lost")
        if self.put_results.keys() != self.messages.keys():
            raise Violation(
                f"{len(self.put_results)} messages are acknowledged, and {len(self.messages)} are committed"
            )


# Appends with these responses may be in the log.
UNKNOWN_OUTCOMES = (
    ResponseCode.TERM_CHANGED,
    ResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
    ResponseCode.INTERNAL_ERROR,
    ResponseCode.DISK_ERROR,
)


def _run_starts(response: AppendResponse) -> dict[int, int]:
    """The positions in a response: of its first entry and of the first of each run."""
    return {response.index: response.pos} | {run.index: run.pos for run in response.runs}


def _entry(index: int, entry: Committed) -> Entry:
    return Entry(index, entry.term, entry.pos, 1, entry.data[HEADER_SIZE:], control_kind_at(entry.data))


def _stored(entry: Committed) -> tuple[int, int, bytes]:
    return entry.pos, entry.term, entry.data
