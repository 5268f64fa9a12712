"""Compares what `diff`, `lost` and the plan of a salvage say of a group: what is lost for good, what is unclear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.format.layout import MIN_BLANK_SIZE
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.log.diff.commit_log.comparison import compare_commit_logs
from pyspark_dledger.log.diff.comparison import compare
from pyspark_dledger.log.diff.ranges import Ranges
from pyspark_dledger.log.salvage.plan import SalvagePlan
from pyspark_dledger.rocketmq.lost.group_losses import lost_in_group
from pyspark_dledger.rocketmq.lost.restorable import restorable
from pyspark_dledger.rocketmq.salvage import SalvageRequest, plan

_MAX_NUMBERS = 1_000_000


class Story(NamedTuple):
    """Indexes of entries, or positions of old messages' bytes: lost for good, and without an answer."""

    lost: set[int]
    unclear: set[int]


def story_differences(members: Sequence[str | Path]) -> Iterator[str]:
    """Where the three differ about a group."""
    first, *others = map(str, members)
    log = open_log(first, replicas=others)
    found = plan(SalvageRequest.of([first, *others]))
    stories = _of_plan(found), _of_diff(log), _of_lost(log)
    for name in Story._fields:
        wanted, *rest = (_without_blanks(getattr(story, name), found) for story in stories)
        for verb, values in zip(("diff", "lost"), rest, strict=True):
            # Of some bytes of a CommitLog that messages had, no unit knows the messages.
            missing = wanted - values if _is_of_dledger(log) or verb == "diff" or not values else set()
            if missing:
                yield f"{verb}: not {name}: {_shown(missing)}"
            if more := values - wanted:
                yield f"{verb}: {name}, but not in the plan: {_shown(more)}"


def _without_blanks(numbers: set[int], found: SalvagePlan) -> set[int]:
    """Positions without the blank at the end of a file; all indexes."""
    (log,) = found.logs
    return {each for each in numbers if log.source == DLEDGER or -each % log.file_size > MIN_BLANK_SIZE}


def _of_plan(found: SalvagePlan) -> Story:
    (log,) = found.logs
    if log.source == COMMITLOG:
        unclear = _numbers((each.pos, each.pos + each.size - 1) for each in log.undecided)
        end = [(log.end, log.lost_until - 1)] if log.lost_until is not None else []
        lost = _numbers([*((each.pos, each.pos + each.size - 1) for each in log.lost), *end])
        return Story(lost - unclear, unclear)
    unclear = {each.index for each in log.undecided}
    lost = {each.index for each in log.lost} - unclear
    if log.lost_after is not None:
        lost |= _numbers([(log.last_index + 1, log.lost_after)])
    return Story(lost, unclear | _numbers((each.first_index, each.last_index) for each in found.unconfirmed))


def _of_diff(log: Log) -> Story:
    if not _is_of_dledger(log):
        old = compare_commit_logs(log)
        assert old is not None
        return Story(_all(old.verdict.lost), _all(old.verdict.unclear))
    verdict = compare(log).verdict
    lost = _all(verdict.lost_entries) | _all(verdict.filled_entries)
    lost |= _numbers([verdict.lost_end] if verdict.lost_end is not None else [])
    return Story(lost - _all(restorable([log, *log.replicas], verdict)), _all(verdict.unclear_entries))


def _of_lost(log: Log) -> Story:
    found = lost_in_group(log)
    source = DLEDGER if _is_of_dledger(log) else COMMITLOG
    lost = [each for each in found.messages if each.source == source and each.is_for_good]
    if source == COMMITLOG:
        sized = _numbers((each.pos, each.end - 1) for each in lost)
        return Story(sized, _all(found.unclear_positions))
    return Story({each.index for each in lost if each.index is not None}, _all(found.unclear))


def _is_of_dledger(log: Log) -> bool:
    return any(each.ledger_segments for each in (log, *log.replicas))


def _all(ranges: Ranges) -> set[int]:
    return _numbers(ranges.ranges)


def _numbers(ranges: Iterable[tuple[int, int]]) -> set[int]:
    # A damaged checkpoint can promise any number of entries.
    return {number for first, last in ranges for number in range(first, min(last, first + _MAX_NUMBERS) + 1)}


def _shown(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:5])) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
