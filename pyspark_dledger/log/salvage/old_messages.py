"""Which messages of a CommitLog are of another history than the rest: its entries have no terms.

Two logs that have a message in common are the same up to it; what queues say of the messages after it decides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from pyspark_dledger.common.integers import INT64_MAX, MAX_TIMESTAMP, MIN_TIMESTAMP
from pyspark_dledger.format.layout import MIN_MESSAGE_SIZE
from pyspark_dledger.format.message import host_sizes, message_in
from pyspark_dledger.log.copies.message_units import MessageUnits
from pyspark_dledger.log.copies.runs import Run
from pyspark_dledger.log.salvage.lost_entries import PlaceOf, ReadSource

_MAX_MESSAGES = 100
"""Of a run, so many messages are looked up in queues."""
_MAX_RUNS = 100
"""Of so many runs, two logs are compared by their queues."""


def common_end(
    runs: Sequence[Run],
    leader: int,
    other: int,
    is_one: Callable[[Run], bool],
    diverged: int | None,
    file_size: int,
) -> int | None:
    """The position up to which two logs without terms are the same; None if they never contradict each other.

    Messages have no terms: after the last one that both have, either all bytes fit together, or the logs diverged.
    `is_one` says whether different bytes at one place are copies of one message. Their epochs say that they `diverged`.
    """
    after_shared = shared_end(runs, leader, other, is_one)
    own = [run for run in runs if run.start >= after_shared and other in run.sources and not run.is_suspect]
    contradiction = first_contradiction(runs, leader, other, after_shared, file_size)
    until = contradiction.start if contradiction is not None else INT64_MAX
    if diverged is not None and after_shared <= diverged <= until and any(run.start >= diverged for run in own):
        return diverged
    return max(after_shared, 0) if contradiction is not None else None


def shared_end(runs: Sequence[Run], one: int, other: int, is_one: Callable[[Run], bool]) -> int:
    """The end of the last message that both logs have; -1 without one."""
    both = {one, other}
    shared = (
        run.end
        for run in runs
        if both <= {*run.sources} and (any(both <= {*group} for group in run.variants) or is_one(run))
    )
    return max(shared, default=-1)


def first_contradiction(runs: Sequence[Run], leader: int, other: int, after: int, file_size: int) -> Run | None:
    """The first run of `other` from a position on that cannot be in one log with a run of the leader.

    They overlap, or no message fits between them.
    """
    intact = [run for run in runs if run.start >= after and not run.is_suspect]
    leaders = sorted((run for run in intact if leader in run.sources), key=lambda run: run.end)
    for run in intact:
        place = bisect_right(leaders, run.start, key=lambda each: each.end)
        around = leaders[max(place - 1, 0) : place + 1]
        if other in run.sources and not all(_fit(min(run, each), max(run, each), file_size) for each in around):
            return run
    return None


def _fit(before: Run, after: Run, file_size: int) -> bool:
    """Whether two runs of messages can be in one log: the rest of a file can be shorter than a message."""
    room = after.start - before.end
    return room == 0 or room >= MIN_MESSAGE_SIZE or (room > 0 and after.start % file_size == 0)


def are_contradicted(
    runs: Sequence[Run], one: int, other: int, after: int, read: ReadSource, units: Sequence[MessageUnits]
) -> bool:
    """Whether a replica's queue has another message of its log at the place of a message of the other replica.

    Of one log, the queue would have the first of the two. Runs from the position `after` on are compared.
    """
    intact = [run for run in runs if not run.is_suspect]
    later = [
        run
        for run in intact
        if run.start >= after and ({one, other} - {*run.sources}) and {one, other} & {*run.sources}
    ]
    for run in later[:_MAX_RUNS]:
        source, judge = (one, other) if one in run.sources else (other, one)
        own = [each for each in intact if judge in each.sources]
        for at, data in _messages(run, source, read):
            places = units[judge].places_of(data) - {at}
            if any(_has_same_place(data, place, own, read) for place in places):
                return True
    return False


def repeating(runs: Sequence[Run], read: ReadSource, place_of: PlaceOf, log_of: int | None) -> list[Run]:
    """The runs of old messages that are of another history, because they repeat queueOffsets of earlier messages.

    A truncation left them, or their log diverged: they are after a hole, one source has them, and no queue. What the
    chosen source `log_of` has follows its own messages.
    """
    found: list[Run] = []
    kept: list[Run] = []
    reached = 0
    for run in sorted(each for each in runs if not each.is_suspect):
        is_after_hole = len(run.sources) == 1 and bool(kept) and run.start > reached
        before = kept if log_of not in run.sources else [each for each in kept if log_of in each.sources]
        if is_after_hole and _repeats(run, before, read, place_of):
            found.append(run)
            continue
        kept.append(run)
        reached = max(reached, run.end)
    return found


HEAD_BYTES = 88
"""Of a message, up to its storeTimestamp and some more."""


def without_old_messages(
    runs: Sequence[Run], read: ReadSource, units: Sequence[MessageUnits], file_size: int
) -> tuple[list[Run], list[Run]]:
    """The runs without what a source has of a file that was put back, or is of another replica; and that.

    Where sources have different messages, those are old of which the source's own queues have another one at the place
    of most. So is the rest of that file. `units` are those of each source.
    """
    contested = _contested(runs, read)
    old = {
        source: _old_messages(source, runs, contested, read, units[source], file_size) for source in range(len(units))
    }
    found: list[Run] = []
    dropped: list[Run] = []
    for run in runs:
        others = {source for source in run.sources if run in old[source]}
        found += [run.of({*run.sources} - others)] if others < {*run.sources} else []
        dropped += [run.of(others)] if others else []
    return found, dropped


def _contested(runs: Sequence[Run], read: ReadSource) -> set[Run]:
    """The runs in whose place sources have different messages."""
    found = {run for run in runs if len(run.variants) > 1 and not is_one_message(read, run.sources, run)}
    reached: Run | None = None
    for run in sorted(each for each in runs if not each.is_suspect):
        found |= {reached, run} if reached is not None and run.start < reached.end else set()
        reached = run if reached is None or run.end > reached.end else reached
    return found


def _old_messages(
    source: int, runs: Sequence[Run], contested: set[Run], read: ReadSource, units: MessageUnits, file_size: int
) -> set[Run]:
    """The runs of a source that are of a file of another time or replica: from its first different message on."""
    own = sorted(run for run in runs if source in run.sources and not run.is_suspect)
    votes: dict[Run, int] = {}
    for run in own if not contested.isdisjoint(own) else ():
        votes[run] = sum(_vote(units, at, data) for at, data in _messages(run, source, read))
    old: set[Run] = set()
    for place, run in enumerate(own):
        if run in old or run not in contested or votes[run] <= 0:
            continue
        while place and own[place - 1] in contested and own[place - 1].end == own[place].start:
            place -= 1
        rest = [each for each in own[place:] if each.start // file_size == run.start // file_size]
        old |= {*rest} if sum(votes[each] for each in rest) > 0 else {run}
    return old


def _vote(units: MessageUnits, at: int, data: bytes) -> int:
    """1 for a message instead of which a queue has another one, -1 for one that it has, 0 where nothing tells.

    A message that its queue has at another offset is the source's own: only its queueOffset is damaged.
    """
    if units.is_other(at, data):
        return int(not units.has_position(at, data))
    return -int(units.place_of(at, data) == at)


def is_one_message(read: ReadSource, sources: Iterable[int], run: Run) -> bool:
    """Whether intact copies at one place are of one message: others differ in the CRC of the body, or in both times.

    A time that no clock has is damaged.
    """
    copies = [identity(read(number, run.start, run.start + HEAD_BYTES)) for number in sources]
    crcs, offsets, *times = ({*values} for values in zip(*copies, strict=True))
    known = [
        {each for each in values if MIN_TIMESTAMP <= int.from_bytes(each, "big", signed=True) <= MAX_TIMESTAMP}
        for values in times
    ]
    return len(crcs) == 1 and sum(len(values) <= 1 for values in (offsets, *known)) >= 2


def identity(head: bytes) -> tuple[bytes, ...]:
    """The fields bodyCRC, queueOffset, bornTimestamp and storeTimestamp of a message."""
    born_host, _ = host_sizes(int.from_bytes(head[36:40], "big"))
    return head[8:12], head[20:28], head[40:48], head[48 + born_host : 56 + born_host]


def _repeats(run: Run, before: Sequence[Run], read: ReadSource, place_of: PlaceOf) -> bool:
    """Whether messages of a run have places in queues that those `before` have, and none is in a queue."""
    is_repeated = False
    for at, data in _messages(run, run.sources[0], read) if before else ():
        place = place_of(at, data)
        if place == at:
            return False
        is_repeated = is_repeated or (place is not None and _has_same_place(data, place, before, read))
    return is_repeated


def _messages(run: Run, source: int, read: ReadSource) -> Iterator[tuple[int, bytes]]:
    """The first messages of a run, each with its position."""
    at = run.start
    for _ in range(_MAX_MESSAGES):
        size = int.from_bytes(read(source, at, at + 4), "big") if at < run.end else 0
        if not size:
            return
        yield at, read(source, at, min(at + size, run.end))
        at += size


def _has_same_place(data: bytes, place: int, before: Sequence[Run], read: ReadSource) -> bool:
    """Whether the log has a message at a position that has the queue and the queueOffset of a copy."""
    run = next((each for each in before if each.start <= place < each.end), None)
    size = int.from_bytes(read(run.sources[0], place, place + 4), "big") if run is not None else 0
    other = message_in(read(run.sources[0], place, min(place + size, run.end))) if run is not None else None
    one = message_in(data)
    keys = [(each.topic, each.queue_id, each.queue_offset) for each in (one, other) if each is not None]
    return len(keys) == 2 and keys[0] == keys[1]
