"""The members of this member's group: those that it was started with, until an entry of the log changes them.

A list takes effect when its entry is appended, and ends if that is truncated (Raft dissertation, chapter 4). Lists are
saved before their entries, so the file has all lists of the log. A list of the file counts only if the log has its
entry, or had it before it expired. It stays in the file until the log has another entry there: an entry whose append
failed can be in the log after a restart. Until the file is without it, the log keeps the entry that shows that it does
not count. A leader that resets the log sends the list before its new begin.

A member with an empty disk cannot tell a new group from a lost disk. So it votes only for members without entries, and
joins with its first entries, as if it was told to. The group is new if one that it voted for leads.

A list that another member tells counts for no vote and no commit. It names members to connect to, and says whether this
one was removed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pyspark_dledger.errors import IndexRangeError, OptionError, StoreError
from pyspark_dledger.format.codec import MEMBERS
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.raft.member_list import MARK, MemberList, list_in, list_of
from pyspark_dledger.store.dledger_store import DLedgerStore

_SCAN_BYTES = 4 << 20


class Membership:
    """The list that counts, and which other members take control entries. Changes are saved.

    ``is_joining``: this member has an empty disk, and may have acknowledged entries with another one. It neither votes
    nor leads until it has all entries that were committed then. One of two need not join, because the other one has
    all that is committed. Raises OptionError if the store has another list and none of the log, and StoreError.
    """

    def __init__(self, config: CoreConfig, store: DLedgerStore, addresses: Mapping[str, str]) -> None:
        self._store = store
        self._self_id, self._group = config.self_id, config.group
        saved = _parsed(store.member_state)
        self._controls = {each for each in saved.get("controls", ()) if isinstance(each, str)}
        # Members whose connections showed that they do not take control entries.
        self._other_versions: set[str] = set()
        # The list of a store that never had an entry may be wrong: others count for one that joins.
        is_unused = not store.member_ids or (store.ledger_end_index < 0 and not saved.keys() & {"tookPart", "joining"})
        is_new = config.joins and is_unused
        self.is_joining = not config.changes_members and (bool(saved.get("joining")) or is_new)
        # Where the log began after its last reset, and the list before that, if an entry made it.
        self._reset_at = int(saved.get("resetAt", 0))
        self._before_reset = list(map(list_of, saved.get("beforeReset", ())))
        # The lists that the file shall have, and those that it has.
        self._saved = sorted(map(list_of, saved.get("lists", ())), key=lambda each: each.index)
        self._of_file = self._saved
        # Members whose hello this one has accepted, and a later committed list of one.
        self._met: set[str] = set()
        self._told: MemberList | None = None
        # Whether the member that told it rejected this one. A leader tells its learner a list from before it was added.
        self._is_told_by_rejection = False
        # The address of a leader that no known list has.
        self._leader: dict[str, str] = {}
        self._is_dirty = False
        # Whether the file is older than this.
        self._is_unsaved = False
        self.on_change: Callable[[], None] = lambda: None
        stored = tuple(saved.get("first", store.member_ids))
        # With others than its store has, `joins` only makes them known: votes count by the list of the store.
        first = stored if config.joins and stored and not is_new else sorted(config.peers)
        self._given = {peer_id: addresses.get(peer_id, "") for peer_id in first}
        # Whether this member took part in the group with this disk, and for whom it voted until then: the terms of the
        # first vote, when that one had no entries, and of the last one.
        # With `changes_members` an operator says that the group may go on with this disk.
        is_exempt = config.changes_members or len(self._given) <= 2
        self._took_part = bool(saved.get("tookPart")) or store.ledger_begin_index >= 0 or is_exempt
        self._votes: dict[str, list[int]] = dict(saved.get("votes", {}))
        if self.is_joining and len(self._given) == 1:
            raise OptionError(f"peers: expected members of the group that {self._self_id} joins, found none")
        self._first = self._started_with()
        # Whether the log has an old list, so that a leader has to append this member's.
        self.is_forced = bool(saved.get("forced"))
        if saved.get("newGroup"):
            # A restored log may have lists of the old group.
            self.is_forced = bool(_lists_of_log(store))
        elif config.changes_members:
            self.is_forced = self.is_forced or bool(self._saved or self._before_reset)
            self._saved = []
            self._before_reset.clear()
        elif "lists" not in saved and store.ledger_end_index >= 0:
            self._saved = _lists_of_log(store)
        self._lists = self._of_log()
        self.current = self._latest()
        self._check(config, stored, saved.get("group"))
        self._save()

    def _started_with(self) -> MemberList:
        voters = dict(self._given)
        learners = {self._self_id: voters.pop(self._self_id)} if self.is_joining else {}
        return MemberList(-1, -1, voters, learners)

    def _check(self, config: CoreConfig, stored: tuple[str, ...], group: str | None) -> None:
        # A group of one has no others that could contradict its log.
        if group not in (None, config.group) and len(self._store.member_ids) > 1 and not config.changes_members:
            raise OptionError(
                f"group: expected {group}, whose member this store is of, found {config.group}: use that group, or "
                "another store; to give the group another name, stop all members and start each with --change-members "
                "once"
            )
        members = tuple(sorted(config.peers))
        if self.current.index >= 0 or stored in ((), members) or config.changes_members or config.joins:
            return
        raise OptionError(
            f"peers: expected the members {', '.join(stored)} of this store's group, found {', '.join(members)}: use "
            "the group's peers; if it got other members while this one was down, add --join; else stop all members and "
            "start each with --change-members once"
        )

    # State

    @property
    def is_by_log(self) -> bool:
        """Whether an entry of the log made the list."""
        return self.current.index >= 0

    @property
    def may_be_new(self) -> bool:
        """Whether this member has no entries, and cannot tell whether the group is new or its disk was lost."""
        return not (self._took_part or self.is_joining) and self._store.ledger_end_index < 0

    def may_have_lost_disk(self, leader_id: str | None, term: int) -> bool:
        """Whether this member may have had entries that a member lacks which has some by that leader and term."""
        if not self.may_be_new:
            return False
        first, last = self._votes.get(leader_id or "", (0, -1))
        return not first <= term <= last

    @property
    def is_static(self) -> bool:
        """Whether the list is the one that it was started with, and no later one is known."""
        return not self.is_by_log and not self.is_joining and self._told is None

    def may_lead(self, member_id: str) -> bool:
        """Whether that member is in the list, or may be in a later one, which this member does not know yet."""
        is_known = member_id in self.current.addresses or member_id in self._met
        return is_known or not self.is_static

    @property
    def _committed_index(self) -> int:
        """The last entry that is known to be committed. After a restart the store's index can be below its begin."""
        return max(self._store.committed_index, self._store.ledger_begin_index - 1)

    @property
    def is_committed(self) -> bool:
        return self.current.index <= self._committed_index

    @property
    def committed(self) -> MemberList:
        """The latest committed list."""
        index = self._committed_index
        return next((each for each in reversed(self._lists) if each.index <= index), self._first)

    @property
    def removed_by(self) -> MemberList | None:
        """The committed list by which the group removed this member. One that joins was never in."""
        is_told = self._told is not None and (self._is_told_by_rejection or self._self_id in self._told.addresses)
        found = self._told if is_told else self.current if self.is_by_log and self.is_committed else None
        return None if found is None or self.is_joining or self._self_id in found.addresses else found

    @property
    def is_leaving(self) -> bool:
        """Whether a list without this voter may not be committed.

        Until it is, only this member's log may be long enough to lead (Raft dissertation, 4.2.2).
        """
        is_listed = self._self_id in self.current.addresses
        return self._self_id in self.committed.voters and not is_listed and self.removed_by is None

    def before(self, index: int) -> MemberList:
        """The list before that entry of the log."""
        return next((each for each in reversed(self._lists) if each.index < index), self._first)

    def shown(self, found: MemberList) -> str:
        """A list for others, with what this member knows to be committed."""
        return found.told(self._committed_index, self.current.addresses.get(self._self_id, ""))

    @property
    def told_by_log(self) -> str:
        """The latest committed list of the log, for other members; "" if they may have been started with others."""
        return self.shown(self.committed) if self.committed.index >= 0 else ""

    def had(self, member_id: str) -> bool:
        """Whether a list that this member knows has that member. Lists whose entries expired are forgotten."""
        return any(member_id in each.addresses for each in (self._first, *self._lists))

    @property
    def others(self) -> tuple[str, ...]:
        """All members except this one."""
        return tuple(member_id for member_id in self.current.addresses if member_id != self._self_id)

    @property
    def not_taking_controls(self) -> list[str]:
        """The other voters that may not take control entries: Java's, or unknown ones."""
        voters = self.current.voters
        return [each for each in voters if each != self._self_id and not self.takes_controls(each)]

    def takes_controls(self, member_id: str) -> bool:
        """Whether that member takes control entries: it said so, or a list of the log made it a voter.

        Its connection can say that it does not by now.
        """
        is_by_list = self.is_by_log and member_id in self.current.voters and member_id not in self._other_versions
        return is_by_list or member_id in self._controls

    @property
    def known_addresses(self) -> dict[str, str]:
        """The members to connect to, if their address is known."""
        told = {} if self._told is None else self._told.addresses
        found = {**self._leader, **told, **self.current.addresses}
        return {key: address for key, address in found.items() if address}

    @property
    def has_failed_lists(self) -> bool:
        """Whether the file may have lists that the log does not have."""
        return self._store.keeps_from < sys.maxsize

    @property
    def commit_may_wait(self) -> bool:
        """Whether the next entry or commit may change the file."""
        return self.is_joining or self.may_be_new or self.has_failed_lists or self._is_unsaved

    # Changes

    def connected(self, peer_id: str, takes_controls: bool) -> None:
        """A peer said hello. Raises StoreError."""
        self._other_versions = self._other_versions - {peer_id} if takes_controls else {*self._other_versions, peer_id}
        if takes_controls != (peer_id in self._controls):
            self._controls = {*self._controls, peer_id} if takes_controls else self._controls - {peer_id}
            self._save()

    def appending(self, index: int, term: int, body: bytes) -> None:
        """Save a list before its entry is written. It counts from the next `refresh` on."""
        try:
            found = list_in(index, term, body)
        except ValueError as error:
            raise StoreError(str(error)) from None
        self._is_dirty = True
        # The log can have another one there, whose append failed.
        self._saved = [*(each for each in self._saved if each.index <= index and each != found), found]
        self._save()

    def voting(self, candidate: str, term: int, end_index: int) -> None:
        """Save that this member votes for a candidate, whose log ends with that entry. Raises StoreError."""
        if self.may_be_new:
            first, _ = self._votes.get(candidate, (term, term))
            self._votes[candidate] = [term if end_index < 0 else first, term]
            self._save()

    def following(self, leader_id: str, term: int) -> None:
        """That member leads, or this one. It began without entries if this member voted for it, so the group is new."""
        is_elected = leader_id == self._self_id or self._votes.get(leader_id, (-1, -1))[1] == term
        if self.may_be_new and is_elected:
            self._took_part = True
            self._votes.clear()
            self._save_later()

    def set_joining(self, is_joining: bool) -> None:
        """Save that this member joins with its first entries, or that it got none. Raises StoreError."""
        before, self.is_joining = self.is_joining, is_joining
        try:
            self._save()
        except StoreError:
            self.is_joining = before
            raise
        self._first = self._started_with()
        self.current = self._latest()
        self.on_change()

    def joined(self) -> None:
        """An entry of the present leader's term is committed here, so all that were committed before are here."""
        self.is_joining, self._took_part = False, True
        self._first = self._started_with()
        self._take_over()

    def truncated(self) -> None:
        """Entries were removed, or may have been."""
        self._is_dirty = True

    def resetting(self, index: int, before: MemberList | None) -> None:
        """The log will begin with that index. ``before`` is its leader's list before that; None if it has no lists.

        Until the log begins there, the lists of the present log count.
        """
        self._reset_at = index
        self._before_reset = [before] if before is not None and before.index >= 0 else []
        self._save()
        self._is_dirty = True

    def refresh(self) -> None:
        """Take over the lists whose entries the log has. Call it after the log has changed."""
        if not self._is_dirty:
            return
        self._is_dirty = False
        self._lists, end = self._of_log(), self._store.ledger_end_index
        self._saved = [*self._lists, *(each for each in self._saved if each.index > end)]
        self._take_over()

    def met(self, member_id: str) -> None:
        """A member said a hello that this one accepts."""
        self._met.add(member_id)

    def led_from(self, leader_id: str, address: str) -> None:
        """The leader's address by its own words, which counts only if no list that this member knows has the leader."""
        if address and leader_id not in self.known_addresses:
            self._leader = {leader_id: address}
            self.on_change()

    def heard(self, found: MemberList, *, is_rejection: bool) -> None:
        """The latest committed list of another member, which rejects this one or not."""
        before = self._told, self._is_told_by_rejection
        self._told, self._is_told_by_rejection = found, is_rejection
        self._forget_told()
        if (self._told, self._is_told_by_rejection) != before:
            self.on_change()

    def _forget_told(self) -> None:
        """A list that is not later than that of the log tells nothing."""
        current = self.current
        if self._told is not None and (self._told.term, self._told.index) <= (current.term, current.index):
            self._told = None

    def advanced(self) -> None:
        """More entries are committed here. Lists whose appends failed end when their index is that of another entry."""
        if self._is_unsaved or self._store.keeps_from <= self._store.committed_index:
            self._is_dirty = True
            self.refresh()
        # Its leader's entries are committed, so this member is in the group: forget who said that it is not.
        if self._told is not None and self._self_id not in self._told.addresses:
            self._told = None
            self.on_change()

    def _take_over(self) -> None:
        """Use the latest list, then save what changed. The file may stay older, so a disk that fails stops nothing."""
        before, self.current = self.current, self._latest()
        self._forget_told()
        if self.current != before:
            self.is_forced = self.is_forced and not self.is_by_log
            self.on_change()
        self._save_later()

    def _save_later(self) -> None:
        """Save now, or with the next change if the disk fails."""
        try:
            self._save()
        except StoreError:
            self._is_unsaved = True

    def _latest(self) -> MemberList:
        return self._lists[-1] if self._lists else self._first

    def _of_log(self) -> list[MemberList]:
        """The lists whose entries the log has, and the latest one before its begin."""
        begin, end = self._store.ledger_begin_index, self._store.ledger_end_index
        first = begin if begin >= 0 else self._reset_at
        saved = self._saved
        if first >= self._reset_at:
            # Earlier lists of this member may have been rolled back in the group.
            saved = [*self._before_reset, *(each for each in saved if each.index >= self._reset_at)]
        expired = [each for each in saved if each.index < first]
        present = [each for each in saved if 0 <= begin <= each.index <= end]
        return expired[-1:] + list(filter(self._is_entry, present))

    def _is_entry(self, found: MemberList) -> bool:
        """Whether the entry of that index is the list. A leader can append another one after a failed append."""
        try:
            if self._store.term_at(found.index) != found.term:
                return False
            entry = self._store.get(found.index)
        except StoreError:
            return True  # the entry is damaged; as far as known its index and term are the list's
        return entry.channel == MEMBERS and list_in(found.index, entry.term, entry.body) == found

    def _save(self) -> None:
        state: dict[str, Any] = {"group": self._group, "controls": sorted(self._controls)}
        state["first"] = sorted(self._first.addresses)
        state["lists"] = [each.values() for each in self._saved]
        if self._reset_at:
            state["resetAt"] = self._reset_at
            state["beforeReset"] = [each.values() for each in self._before_reset]
        if self.is_joining:
            state["joining"] = True
        if self._took_part:
            state["tookPart"] = True
        elif self._votes:
            state["votes"] = self._votes
        if self.is_forced:
            state["forced"] = True
        ids, text = tuple(sorted(self.current.addresses)), json.dumps(state, separators=(",", ":"))
        try:
            if (ids, text) != (self._store.member_ids, self._store.member_state):
                self._store.save_member_ids(ids, text)
            self._of_file = self._saved
            self._is_unsaved = False
        finally:
            self._keep_entries()

    def _keep_entries(self) -> None:
        """Keep the entries that show that a list of the file does not count."""
        failed = [each.index for each in (*self._of_file, *self._saved) if each not in self._lists]
        self._store.keeps_from = min(failed, default=sys.maxsize)


def _parsed(state: str) -> dict[str, Any]:
    if not state:
        return {}
    try:
        found = json.loads(state)
        return {**found, "lists": [list_of(each).values() for each in found["lists"]]} if "lists" in found else found
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"members: expected the members of this store's group, found {error}") from None


def _lists_of_log(store: DLedgerStore) -> list[MemberList]:
    """The lists of a log whose file of members is missing: all entries are read once."""
    lists: list[MemberList] = []
    index = store.ledger_begin_index
    while index <= store.ledger_end_index:
        try:
            found = store.read(index, _SCAN_BYTES)
        except IndexRangeError:
            break
        except StoreError:
            index += 1  # a damaged entry
            continue
        if MARK in bytes(found.data):
            for each in range(index, found.last_index + 1):
                entry = store.get(each)
                if entry.channel == MEMBERS:
                    lists.append(list_in(each, entry.term, entry.body))
        index = found.last_index + 1
    return lists
