"""Finds replicas that are copies of others, as a folder that was copied before a salvage: they have no own vote.

Healthy replicas have equal bytes, too. But no two of them have the id of one node, files of the same times, or, where
nothing gives an id, the same corrupt bytes.
Replicas whose bytes differ anywhere are two, even if their files have the same times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from pyspark_dledger.log.copies.indexed_copies import IndexedPart
from pyspark_dledger.log.copies.runs import Evidence, Run, SegmentPart
from pyspark_dledger.log.copies.segment_bytes import is_torn
from pyspark_dledger.log.io.entry_reads import segment_at
from pyspark_dledger.log.replicas import local_files
from pyspark_dledger.log.store_view import StoreView

_SECOND = 10**9
_MAX_COMPARED = 64 * 1024
_File = tuple[str, int, int]
Part = SegmentPart | IndexedPart


def duplicates(stores: Sequence[StoreView], order: Sequence[int], evidence: Sequence[Evidence]) -> dict[int, int]:
    """For the number of each replica that is a copy of another one, that one, which is before it in the `order`."""
    files = [_files(store) for store in stores]
    pairs = list(combinations(order, 2))
    pairs = [(one, two) for one, two in pairs if _have_equal_bytes(stores, evidence, one, two)]
    nodes = [store.paths.node for store in stores]
    same = [
        (one, two) for one, two in pairs if _is_one_node(nodes, one, two) or _have_same_times(files[one], files[two])
    ]
    others = [(one, two) for one, two in pairs if None in (nodes[one], nodes[two])]
    alike = [(one, two) for one, two in others if _lost_alike(stores, evidence, one, two)]
    found = _firsts([*same, *alike])
    # What is alike on every replica may have been written so.
    return found if len(found) + 1 < len(stores) else _firsts(same)


def _firsts(pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for one, two in pairs:
        if one not in found and two not in found:
            found[two] = one
    return found


def _files(store: StoreView) -> list[_File]:
    """Name, size and time of each local file of the log; a time in whole seconds may have been set."""
    return [(segment.name, state.st_size, state.st_mtime_ns) for segment, state in local_files(store.segments)]


def _is_one_node(nodes: Sequence[str | None], one: int, two: int) -> bool:
    """Whether two folders have the id of one node, which a group has once."""
    return nodes[one] is not None and nodes[one] == nodes[two]


def _have_same_times(one: list[_File], two: list[_File]) -> bool:
    return one == two and any(time % _SECOND for _, _, time in one)


def _have_equal_bytes(stores: Sequence[StoreView], evidence: Sequence[Evidence], one: int, two: int) -> bool:
    """Whether two replicas have the same intact bytes, and damage at the same places."""
    differing = (
        (part.source, run)
        for part in evidence
        for run in part.runs
        if any((one in group) != (two in group) for group in run.variants)
    )
    # Copies of which all are torn are no variants of each other.
    if any(not (run.is_suspect and _are_alike(stores, source, run, one, two)) for source, run in differing):
        return False
    return _damages(evidence, one) == _damages(evidence, two)


def _are_alike(stores: Sequence[StoreView], source: str, run: Run, one: int, two: int) -> bool:
    first, second = (_read(stores[number], source, run.start, run.end) for number in (one, two))
    return first == second


def _damages(evidence: Sequence[Evidence], number: int) -> list[tuple[str, int, int]]:
    """Source, start and end of each damage of a replica."""
    return [(part.source, each.start, each.end) for part in evidence for each in part.damages if each.source == number]


def _lost_alike(stores: Sequence[StoreView], evidence: Sequence[Evidence], one: int, two: int) -> bool:
    """Whether replicas that are damaged at the same places have the same bytes in one that is no lost write."""
    for source, start, end in _damages(evidence, one):
        data = [_read(stores[number], source, start, min(end, start + _MAX_COMPARED)) for number in (one, two)]
        if data[0] and data[0] == data[1] and not is_torn(start, data[0]):
            return True
    return False


def _read(store: StoreView, source: str, start: int, end: int) -> bytes:
    segment = segment_at([segment for segment in store.segments if segment.source == source], start)
    return segment.read(start, end - start) if segment is not None else b""


def without_copies(parts: Iterable[Part], found: Mapping[int, int]) -> Iterator[Part]:
    """The parts without the copies of other replicas."""
    for part in parts:
        kept = replace(part, copies=tuple(copy for copy in part.copies if copy.source not in found))
        if isinstance(kept, SegmentPart):
            folders = tuple(each for each in kept.index_folders if each[0] not in found)
            kept = replace(kept, index_folders=folders)
        if kept.copies:
            yield kept


def with_damages(evidence: Evidence, found: Mapping[int, int]) -> Evidence:
    """The evidence with the damages of copies, which are those of the other replica."""
    copied = (
        damage._replace(source=copy)
        for copy, first in found.items()
        for damage in evidence.damages
        if damage.source == first
    )
    return replace(evidence, damages=(*evidence.damages, *copied))
