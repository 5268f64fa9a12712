"""Compares what replicas have lost: what is lost on one can be intact on another."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, MIN_MESSAGE_SIZE
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.io.files import OnUnreadable
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.lost.damaged_ranges import DamagedRange, Progress, damaged_ranges, end_range
from pyspark_dledger.rocketmq.lost.lost_messages import LostMessage, lost_messages

_INTACT, _DAMAGED, _ABSENT = range(3)


@dataclass(frozen=True)
class _Replica:
    name: str
    log: StoreView
    ranges: list[DamagedRange]

    @cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self.ranges]

    @cached_property
    def _gaps(self) -> list[tuple[int, int]]:
        """The first and last index of each damaged place of the DLedger part."""
        of_ledger = (each for each in self.ranges if each.source == DLEDGER)
        return [_indexes_of(each) for each in of_ledger]

    def state_of(self, lost: LostMessage) -> int:
        """Whether the replica has a message, lost it too, or never had it or let it expire."""
        if lost.source == DLEDGER and lost.index is not None:
            return self._state_of_index(lost.index, lost.term)
        end = max(lost.end, lost.pos + 1)
        place = bisect_right(self._starts, end - 1) - 1
        if place >= 0 and self.ranges[place].end > lost.pos:
            return _DAMAGED
        return _INTACT if self.log.min_offset <= lost.pos and end <= self.log.max_offset else _ABSENT

    def _state_of_index(self, index: int, term: int | None) -> int:
        log = self.log
        place = bisect_right(self._gaps, (index, INT64_MAX)) - 1
        if place >= 0 and index <= self._gaps[place][1]:
            return _DAMAGED
        if not log.ledger_segments or not log.begin_index <= index <= log.end.last_index:
            return _ABSENT
        # Without index files an entry is searched, which takes long; its term is then not compared.
        pos = log.indexed(index) if term is not None else None
        segment = segment_at(log.ledger_segments, pos) if pos is not None else None
        header = entry_at(segment, pos) if segment is not None and pos is not None else None
        return _INTACT if header is None or header.term == term else _ABSENT


def _indexes_of(place: DamagedRange) -> tuple[int, int]:
    if place.row is not None:
        return place.row["index"], place.row["index"]
    last = place.after.index - 1 if place.after.index is not None else INT64_MAX
    return (place.before.index + 1 if place.before.index is not None else last), last


def lost_in_group(
    logs: Sequence[StoreView], on_unreadable: OnUnreadable, progress: Progress | None = None
) -> list[LostMessage]:
    """What replicas of one log have lost, with ``lost_on`` and ``intact_on``, in the order of the log.

    What is intact on none of them is lost for good. Raises StoreError.
    """
    replicas = []
    for number, (name, log) in enumerate(zip(_names(logs), logs, strict=True)):
        replicas.append(_Replica(name, log, damaged_ranges(log, progress=_part_of(progress, number, len(logs)))))
    found: dict[tuple[object, ...], LostMessage] = {}
    for replica in replicas:
        for lost in _lost_on(replica, on_unreadable):
            key = (lost.source, lost.index) if lost.index is not None else (lost.source, None, lost.pos, lost.size)
            found[key] = _joined(found[key], lost) if key in found else lost
    known = [lost for lost in found.values() if lost.entries == 1]
    rest = [piece for lost in found.values() if lost.entries != 1 for piece in _unknown(lost, known, len(logs) > 1)]
    placed = (_placed(lost, replicas) for lost in [*known, *rest])
    return sorted((lost for lost in placed if lost.lost_on), key=lambda lost: (lost.pos, lost.size or 0))


def _lost_on(replica: _Replica, on_unreadable: OnUnreadable) -> list[LostMessage]:
    log = replica.log
    found = lost_messages(log, [*replica.ranges, end_range(log, replica.ranges)], on_unreadable)
    # A broker that is running has appended meanwhile.
    end = log.refreshed().max_offset
    return [replace(lost, lost_on=(replica.name,)) for lost in found if not log.max_offset <= lost.pos < end]


def _names(logs: Sequence[StoreView]) -> list[str]:
    """The id of each node; paths where ids are missing or not unique."""
    nodes = [log.paths.node for log in logs]
    are_unique = None not in nodes and max(Counter(nodes).values()) == 1
    return [str(node) for node in nodes] if are_unique else [log.path for log in logs]


def _part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    if progress is None:
        return None
    whole: Callable[[int, int], None] = progress
    return lambda done, total: whole(number * total + done, count * total)


def _joined(first: LostMessage, second: LostMessage) -> LostMessage:
    """What two replicas know of one message."""
    known = {name: value for name, value in vars(second).items() if getattr(first, name) is None}
    return replace(
        first,
        **known,
        key_hashes=tuple(sorted({*first.key_hashes, *second.key_hashes})),
        witnesses=tuple(dict.fromkeys(first.witnesses + second.witnesses)),
        lost_on=tuple(dict.fromkeys(first.lost_on + second.lost_on)),
    )


def _unknown(lost: LostMessage, known: list[LostMessage], has_replicas: bool) -> Iterator[LostMessage]:
    """The bytes of which no replica knows the messages."""
    if not has_replicas or lost.size is None:
        yield lost
        return
    at, minimum = lost.pos, ENTRY_HEADER_SIZE if lost.source == DLEDGER else MIN_MESSAGE_SIZE
    inside = sorted((each.pos, each.end) for each in known if lost.pos <= each.pos < lost.end)
    entries = lost.entries - len(inside) if lost.entries is not None else None
    if entries is not None and entries <= 0:
        return
    for start, end in [*inside, (lost.end, lost.end)]:
        if start - at >= minimum:
            is_whole = (at, start) == (lost.pos, lost.end)
            yield lost if is_whole else replace(lost, pos=at, size=start - at, entries=entries)
        at = max(at, end)


def _placed(lost: LostMessage, replicas: list[_Replica]) -> LostMessage:
    states = {replica.name: replica.state_of(lost) for replica in replicas}
    damaged = [name for name, state in states.items() if state == _DAMAGED or name in lost.lost_on]
    intact = [name for name, state in states.items() if state == _INTACT and name not in damaged]
    return replace(lost, lost_on=tuple(damaged), intact_on=tuple(intact))
