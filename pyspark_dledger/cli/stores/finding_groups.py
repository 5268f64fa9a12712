"""Groups findings for people: consecutive ones are one line, and those that follow from damage are listed there."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

from pyspark_dledger.cli.output.rows import cell, range_text
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE, INDEX_FILE_UNIT_SIZE, INDEX_UNIT_SIZE
from pyspark_dledger.log.verify.findings import Finding

# Damage of the log, and findings about what is there or points there. A file with a wrong name is no damage in itself.
_FILES = frozenset(("fileGap", "fileName"))
_CAUSES = _FILES | {"corruptBytes", "shortFile"}
_EFFECTS = frozenset(("consumeQueueUnit", "keyIndexUnit"))
# What shows that the log lost its end; the first one stands for all.
_END_CODES = (
    *("committedBeyondEnd", "confirmedBeyondEnd", "consumeQueueBeyondEnd", "keyIndexBeyondEnd"),
    "storeCheckpointBeyondEnd",
)
# Bytes from one finding to the next one about a neighbour.
_STEPS = {
    "consumeQueueUnit": CONSUME_QUEUE_UNIT_SIZE,
    "messageQueue": CONSUME_QUEUE_UNIT_SIZE,
    "keyIndexUnit": INDEX_FILE_UNIT_SIZE,
    "indexUnit": INDEX_UNIT_SIZE,
    "indexUnitMagic": INDEX_UNIT_SIZE,
}
# Fewer consecutive findings are lines of their own.
_MIN_GROUPED = 4
_MAX_LINES = 10
# More places of one file are one line.
_MAX_PLACES = 5


@dataclass
class Group:
    """Consecutive findings of one code in one file, and those that follow from them."""

    findings: list[Finding]
    effects: list[Finding] = field(default_factory=list)

    @property
    def extent(self) -> tuple[int, int]:
        """The damaged positions; empty if no finding has some."""
        ends = [(each.pos, each.pos + each.size) for each in self.findings if each.pos is not None and each.size]
        return (min(start for start, _ in ends), max(end for _, end in ends)) if ends else (0, 0)

    def lines(self) -> Iterator[str]:
        """The line about the findings, and one about what follows from them."""
        listed = [each for each in self.findings if each.offset is not None] or self.findings
        first, count = listed[0], _count(self.findings)
        if count < _MIN_GROUPED:
            yield from (f"{_location(each, each)}{_text(each)}" for each in self.findings)
        else:
            yield f"{_location(first, listed[-1])}: {count} findings, the first{_text(first)}"
        if self.effects:
            yield f"  because of it: {_effects_text(self.effects)}"


def grouped(found: Sequence[Finding]) -> tuple[dict[str, list[Group]], int]:
    """The groups of each code, and how many findings follow from damage of the log."""
    files = _runs([each for each in found if each.code in _FILES])
    rest = _without_effects([each for each in found if each.code not in _FILES], files, _CAUSES)
    damage = _runs([each for each in rest if each.code in _CAUSES])
    rest = _without_effects([each for each in rest if each.code not in _CAUSES], [*files, *damage], _EFFECTS)
    ends = sorted((each for each in rest if each.code in _END_CODES), key=lambda each: _END_CODES.index(each.code))
    end = [Group(ends[:1], ends[1:])] if ends else []
    groups = [*files, *damage, *end, *_runs([each for each in rest if each.code not in _END_CODES])]
    by_code: dict[str, list[Group]] = {}
    for (code, _), same in groupby(groups, key=lambda group: _code_and_file(group.findings[0])):
        by_code.setdefault(code, []).extend(_joined(list(same)))
    return by_code, sum(len(group.effects) for group in groups)


def _joined(places: list[Group]) -> list[Group]:
    """The places of one file; many of them as one group."""
    if len(places) <= _MAX_PLACES:
        return places
    return [Group([*chain(*(each.findings for each in places))], [*chain(*(each.effects for each in places))])]


def section_lines(groups: Sequence[Group]) -> Iterator[str]:
    """The lines of one code; of many groups only the first ones."""
    for group in groups[:_MAX_LINES]:
        yield from group.lines()
    rest = [each for group in groups[_MAX_LINES:] for each in group.findings]
    if rest:
        files = counted(len({each.file for each in rest}), "file")
        yield f"and {_count(rest)} more in {files}: --json lists all"


def _runs(found: Sequence[Finding]) -> list[Group]:
    groups: list[Group] = []
    # Sorted is stable: what is not listed stays last.
    for _, same in groupby(sorted(found, key=_code_and_file), key=_code_and_file):
        last: Finding | None = None
        for each in same:
            if last is not None and _continues(last, each):
                groups[-1].findings.append(each)
            else:
                groups.append(Group([each]))
            last = each
    return [part for group in groups for part in _parts(group)]


def _code_and_file(finding: Finding) -> tuple[str, str]:
    return finding.code, finding.file


def _parts(group: Group) -> list[Group]:
    """A short run as groups of one, so that each finding has its own effects."""
    return [group] if len(group.findings) >= _MIN_GROUPED else [Group([each]) for each in group.findings]


def _continues(last: Finding, finding: Finding) -> bool:
    """Whether a finding is about the unit, entry or bytes after those of the one before."""
    if last.offset is None or finding.offset is None:
        return False
    if last.index is not None and finding.index == last.index + 1:
        return True
    if finding.code in _STEPS:
        return finding.offset - last.offset <= _STEPS[finding.code]
    return last.pos is not None and finding.pos is not None and finding.pos <= last.pos + (last.size or 0)


def _without_effects(found: Sequence[Finding], causes: Sequence[Group], codes: Container[str]) -> list[Finding]:
    """The findings that do not follow from a cause; those of `codes` in its extent are added to it."""
    extents = sorted(((group.extent, group) for group in causes), key=lambda item: item[0])
    kept: list[Finding] = []
    files: dict[tuple[str, str], Group | None] = {}
    for each in found:
        cause = None
        if each.code in codes:
            key = each.code, each.file
            if each.pos is not None:
                place = bisect_right(extents, each.pos, key=lambda item: item[0][0]) - 1
                cause = extents[place][1] if place >= 0 and each.pos < extents[place][0][1] else None
                files[key] = cause if files.get(key, cause) == cause else None
            elif each.offset is None:
                cause = files.get(key)  # the number of those that are not listed
        kept.append(each) if cause is None else cause.effects.append(each)
    return kept


def _count(findings: Sequence[Finding]) -> int:
    return sum(each.count for each in findings)


def _effects_text(effects: Sequence[Finding]) -> str:
    counts: Counter[str] = Counter()
    for each in effects:
        counts[each.code] += each.count
    files = {code: len({each.file for each in effects if each.code == code}) for code in counts}
    parts = (f"{code} {count} in {counted(files[code], 'file')}" for code, count in counts.items())
    places = [each.pos for each in effects if each.pos is not None]
    where = f", at {range_text(min(places), max(places))}" if places else ""
    return f"{', '.join(parts)}{where}"


def _location(first: Finding, last: Finding) -> str:
    parts = [cell(first.file)]
    if first.offset is not None and last.offset is not None:
        parts.append(f" at byte {range_text(first.offset, last.offset)}")
    if first.index is not None and last.index is not None and first.index <= last.index:
        parts.append(f" (index {range_text(first.index, last.index)})")
    return "".join(parts)


def _text(finding: Finding) -> str:
    parts = [
        f"{name} {cell(value)}"
        for name, value in (("expected", finding.expected), ("found", finding.found))
        if value is not None
    ]
    return f": {', '.join(parts)}" if parts else ""
