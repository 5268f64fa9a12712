"""What verbs say of a group, as claims about entries."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from tests.consistency.verbs import Ran, Row, Verdict, diff, listed_ends, listed_numbers, own_name, run
from tests.consistency.worlds import LEDGER, Entry, Replica, World

BEYOND = "beyond"
"""Stands for everything after the last entry that the group ever had."""
MAX_SHOWN = 4

Number = int | str


class Contradiction(NamedTuple):
    """What contradicts what: a rule, the verbs, and where."""

    rule: str
    verbs: str
    detail: str


class Claim(NamedTuple):
    """What a verb says of a replica's copies of entries."""

    verb: str
    replica: str
    state: str
    numbers: frozenset[Number]


INTACT, DAMAGED, UNCLEAR = "intact", "damaged", "unclear"

# Errors of `verify` that do not stop a start: of indexes that Java rebuilds and of settings. What is wrong with queues,
# consumers notice; only a queue file of another size stops a start.
ELSEWHERE = ("config", "keyIndex", "indexFile", "indexUnit", "checkpoint")
QUEUES = ("consumeQueue", "messageNotInQueue", "messagesNotDispatched", "messageQueue", "queueOffset")
STOPS_START = "consumeQueueFileSize"
_OF_ENTRIES = {
    *("corruptBytes", "bodyCrc", "messageStructure", "messageOffset", "messageCrc", "propertyCrc"),
}


@dataclass
class Group:
    """A world of which some replicas are given, in some order; and what each verb says of them."""

    world: World
    given: list[Replica]
    folder: Path
    log_of: str | None = None
    problems: list[Contradiction] = field(default_factory=list)

    @cached_property
    def stores(self) -> list[str]:
        return [each.name for each in self.given]

    @cached_property
    def truth(self) -> dict[str, set[Entry]]:
        """The intact entries of each replica."""
        return {each.name: each.intact() for each in self.given}

    def replica(self, name: str) -> Replica | None:
        return next((each for each in self.given if each.name == name), None)

    @cached_property
    def last(self) -> int:
        """The last number of an entry of any replica."""
        entries = [each for replica in self.world.replicas for each in replica.entries] + self.world.main
        if self.world.kind == LEDGER:
            return max(each.number for each in entries)
        return max(each.end for each in entries) + 8

    def project(self, ranges: Iterable[Sequence[int]], entries: Iterable[Entry] | None = None) -> set[Number]:
        """The entries in ranges of indexes, or of positions, each with its last one."""
        found: set[Number] = set()
        for first, last in ranges:
            if last > self.last:
                found.add(BEYOND)
            if self.world.kind == LEDGER:
                found |= set(range(first, min(last, self.last) + 1))
            else:
                known = self.world.main if entries is None else entries
                found |= {each.number for each in known if each.pos <= last and each.end > first}
        if self.world.kind != LEDGER and entries is None:
            # What shows that a log was longer does not always show which messages it had, or of which history.
            last_intact, end = self.last_intact
            found = {each for each in found if isinstance(each, int) and each <= last_intact}
            # In fewer bytes after the last intact message, there was none.
            found |= {BEYOND} if any(last - end >= MIN_MESSAGE_SIZE - 1 for _, last in ranges) else set()
        return found

    @cached_property
    def last_intact(self) -> tuple[int, int]:
        """The number of the last entry that a given replica has intact, and where it ends."""
        return max(((each.number, each.end) for entries in self.truth.values() for each in entries), default=(-1, 0))

    def project_row(self, row: Row, entries: Iterable[Entry] | None = None) -> set[Number]:
        """The entries of a row of a plan or of `lost`."""
        if self.world.kind == LEDGER:
            first = row["firstIndex"] if "firstIndex" in row else row["index"]
            if first is None:  # a row of `lost` for bytes, of which only the position is known
                known = [each for each in self.world.main if entries is None] + list(entries or ())
                end = row["pos"] + (row["size"] or 1)
                return {each.number for each in known if each.pos < end and each.end > row["pos"]}
            return self.project([(first, row.get("lastIndex", first + (row.get("entries") or 1) - 1))])
        return self.project([(row["pos"], row["pos"] + (row["size"] or 1) - 1)], entries)

    @cached_property
    def verdict(self) -> Verdict | None:
        return diff(self.folder, self.stores, self.world.kind)

    @cached_property
    def is_main_planned(self) -> bool:
        """Whether the plan is of the log that `diff` takes for the group's: another one lost other entries."""
        if not self.log_of or self.verdict is None:
            return True
        words = shlex.split(self.verdict.group["next"] or "")
        named = words[words.index("--log-of") + 1] if "--log-of" in words else ""
        return own_name(named, self.stores) == Path(self.log_of).name

    @cached_property
    def lost(self) -> Ran:
        return run(self.folder, "lost", *self.stores)

    @cached_property
    def plan(self) -> Ran:
        chosen = ("--log-of", self.log_of) if self.log_of else ()
        return run(self.folder, "salvage", *self.stores, "--plan", *chosen)

    @cached_property
    def checked(self) -> Ran:
        return run(self.folder, "check", *self.stores)

    @cached_property
    def verified(self) -> dict[str, Ran]:
        return {name: run(self.folder, "verify", name) for name in self.stores}

    @cached_property
    def audited(self) -> dict[str, Ran]:
        return {name: run(self.folder, "audit", name) for name in self.stores}

    @cached_property
    def alone(self) -> dict[str, Ran]:
        return {name: run(self.folder, "lost", name) for name in self.stores}

    def say(self, rule: str, verbs: str, detail: str) -> None:
        self.problems.append(Contradiction(rule, verbs, detail))


def shown(numbers: Iterable[Number]) -> str:
    ordered = sorted(numbers, key=lambda each: (isinstance(each, str), each))
    more = f" and {len(ordered) - MAX_SHOWN} more" if len(ordered) > MAX_SHOWN else ""
    return ", ".join(map(str, ordered[:MAX_SHOWN])) + more


class Losses(NamedTuple):
    """Entries that a verb calls lost for good, and those that it cannot tell of."""

    lost: set[Number]
    unclear: set[Number]


def losses(group: Group) -> dict[str, Losses]:
    """What each verb calls lost for good or unclear."""
    found = {}
    if group.verdict is not None:
        found["diff"] = _of_diff(group, group.verdict)
    found["lost"] = _of_lost(group)
    if group.plan.code != 2 and group.is_main_planned:
        found["plan"] = losses_of_plan(group)
    return found


def _of_diff(group: Group, verdict: Verdict) -> Losses:
    row = verdict.group
    lost = group.project(row["lostEntries"]["ranges"])
    lost |= group.project(row.get("filledEntries", {"ranges": []})["ranges"])
    lost |= group.project([row["lostEnd"]] if row.get("lostEnd") else [])
    lost |= {BEYOND} if row.get("lostEnds") else set()
    lost -= group.project(row.get("restorable", {"ranges": []})["ranges"])
    return Losses(lost, group.project(row["unclearEntries"]["ranges"]))


def _of_lost(group: Group) -> Losses:
    lost: set[Number] = set()
    for row in rows_of_kind(group, group.lost):
        if not (row["intactOn"] or row["unclearOn"] or row["restorableFrom"]) and row["committed"] is not False:
            found = group.project_row(row)
            if group.world.kind == LEDGER and row["index"] is None and not any(group.truth.values()):
                # Nothing tells which entries were in these bytes, so the row claims no more than `diff` does, if that
                # has other stores to compare.
                found &= _of_diff(group, group.verdict).lost if group.verdict is not None else set()
            lost |= found
    unclear: set[Number] = set()
    for note in group.lost.notes:
        unclear |= group.project(listed_numbers(note))
        lost |= group.project(listed_ends(note))
    return Losses(lost, unclear)


def rows_of_kind(group: Group, ran: Ran) -> list[Row]:
    """The rows about the log. A message of unknown size ends at most where the next one was written."""
    found = [row for row in ran.rows if row.get("source") == group.world.kind]
    written = {entry.pos for replica in group.given for entry in replica.entries}
    for row in found:
        if row["size"] is None:
            starts = (pos for pos in {*written, *(each["pos"] for each in found)} if pos > row["pos"])
            row["size"] = min(starts, default=row["pos"] + MIN_MESSAGE_SIZE) - row["pos"]
    return found


def losses_of_plan(group: Group) -> Losses:
    lost: set[Number] = set()
    unclear: set[Number] = set()
    for row in rows_of_kind(group, group.plan):
        if row["action"] == "filler":
            lost |= group.project_row(row)
        if row["action"] == "undecided" or row["why"] == "unconfirmed":
            unclear |= group.project_row(row)
    lost |= group.project(listed_ends(group.plan.err))
    return Losses(lost, unclear)


def claims(group: Group) -> Iterator[Claim]:
    """What the verbs say of single copies."""
    yield from _claims_of_diff(group)
    for verb, ran in (("lost", group.lost), *((f"lost {name} alone", ran) for name, ran in group.alone.items())):
        for row in rows_of_kind(group, ran):
            states = [(DAMAGED, row["lostOn"]), (INTACT, row["intactOn"]), (UNCLEAR, row["unclearOn"])]
            for state, names in states:
                for name in names:
                    yield from _claim(
                        group, verb, name, state, lambda entries, row=row: group.project_row(row, entries)
                    )
    for row in rows_of_kind(group, group.plan) if group.plan.code != 2 else ():
        if row["action"] in ("copy", "repair"):
            state = (
                INTACT
                if row["action"] == "copy" and row["why"] not in ("unconfirmed", "majority", "taken")
                else UNCLEAR
            )
            for name in row["sources"]:
                yield from _claim(group, "plan", name, state, lambda entries, row=row: group.project_row(row, entries))
        if row["action"] == "filler":
            for name in row["problems"]:
                # It names damage in the filler's place: a diverged log can have the entry with its index elsewhere.
                yield from _claim(group, "plan", name, DAMAGED, lambda entries, row=row: _within(row, entries))
    for name, ran in group.verified.items():
        replica = group.replica(name)
        assert replica is not None
        spans = [(row["pos"], row["size"]) for row in ran.rows if row["code"] in _OF_ENTRIES and row["pos"] is not None]
        numbers = {
            each.number
            for each in replica.entries
            for pos, size in spans
            if pos < each.end and each.pos < pos + (size or 1)
        }
        yield Claim("verify", name, DAMAGED, frozenset(numbers))


def _within(row: Row, entries: Iterable[Entry]) -> set[Number]:
    """The entries that overlap the positions of a row."""
    return {each.number for each in entries if each.pos < row["pos"] + row["size"] and each.end > row["pos"]}


def _claims_of_diff(group: Group) -> Iterator[Claim]:
    if group.verdict is None:
        return
    for member in group.verdict.members:
        for key, state in (("damaged", DAMAGED), ("unclear", UNCLEAR)):
            ranges = member[key]["ranges"]
            yield from _claim(
                group,
                "diff verdict",
                member["node"],
                state,
                lambda entries, ranges=ranges: group.project(ranges, entries),
            )
    first, last = ("firstIndex", "lastIndex") if group.world.kind == LEDGER else ("firstPos", "lastPos")
    for row in group.verdict.rows:
        if row.get(first) is None or row.get(last) is None:
            continue
        for key, state in (("damaged", DAMAGED), ("intact", INTACT)):
            for name in row[key]:
                yield from _claim(
                    group,
                    "diff rows",
                    name,
                    state,
                    lambda entries, row=row: group.project([(row[first], row[last])], entries),
                )


def _claim(
    group: Group, verb: str, name: str, state: str, numbers: Callable[[Iterable[Entry]], set[Number]]
) -> Iterator[Claim]:
    replica = group.replica(own_name(name, group.stores))
    if replica is None:
        group.say("names", verb, f"no replica {name}")
        return
    own = {each.number for each in replica.entries}
    found = {each for each in numbers(replica.entries) if each in own}
    if found:
        yield Claim(verb, replica.name, state, frozenset(found))


def on_disk(replica: Replica, entry: Entry) -> bytes:
    """The bytes of a replica where it has an entry, or would have it; fewer if a file ends before."""
    files = {int(path.name): path for path in replica.files()}
    base = max((each for each in files if each <= entry.pos), default=None)
    return files[base].read_bytes()[entry.pos - base : entry.end - base] if base is not None else b""


def surely_damaged(replica: Replica) -> set[Number]:
    """The entries of a replica whose damage every check shows: bytes are not there, or magic or size are wrong."""
    found: set[Number] = set()
    for entry in replica.entries:
        data = on_disk(replica, entry)
        if len(data) < len(entry.data) or data[:8] != entry.data[:8]:
            found.add(entry.number)
    return found


def of_others(group: Group, replica: Replica) -> set[Number]:
    """The entries of a replica instead of which it has intact ones of another history, from a file that was put back.

    Those are at the same place, or have the same index: the log can be that of the other replica.
    """
    own = {*replica.entries}
    known = {entry for each in group.world.replicas for entry in (*each.entries, *each.before)} - own
    found = replica.intact(known)
    at = {each.number for each in own if any(one.pos < each.end and each.pos < one.end for one in found)}
    return at | ({each.number for each in own} & {each.number for each in found})


def since_put_back(group: Group, replica: Replica) -> set[Number]:
    """The entries from the first one on of which a file that was put back has another: no verb knows which is old."""
    put_back = [each for each in replica.damages if each.startswith("old_file")]
    others: set[Number] = set()
    if any("/index/" in each for each in put_back):
        index = DLedgerIndex(replica.log_folder.parent / "index")
        units = ((each, index.unit(int(each.number))) for each in replica.entries)
        others |= {
            each.number
            for each, unit in units
            if unit is not None and (unit.pos, unit.size) != (each.pos, each.end - each.pos)
        }
    if any("/data/" in each or "commitlog/" in each for each in put_back):
        own = {*replica.entries}
        for history in ({*log} for one in group.world.replicas for log in (one.entries, one.before)):
            others |= {each.number for each in own - history} if replica.intact(history - own) else set()
    return {each.number for each in replica.entries if others and each.number >= min(others)}
