"""Sentences about a comparison of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.output.rows import cell
from pyspark_dledger.log import Log

if TYPE_CHECKING:
    from pyspark_dledger.log.diff.comparison import Comparison

_MAX_EXPLAINED = 5


def cut_logs(log: Log) -> Iterator[str]:
    """The replicas whose checkpoint has a higher committed index than their log."""
    for member in (log, *log.replicas):
        known = member.checkpoint_committed_index
        if known > member.end.last_index and not member.unread.has_end:
            yield (
                f"note: {member.path}: the checkpoint says that {known} is committed, but the log ends at "
                f"{member.end.last_index}: its end is lost"
            )


def sentences(found: Comparison) -> Iterator[str]:
    """The results of a comparison."""
    first = found.first_divergence
    if first is None:
        yield "no divergence: where replicas have the same index intact, it is the same entry"
    else:
        terms = ", ".join(f"{node} term {term}" for node, term in first.terms.items())
        byte = f", from byte {first.byte} of the entry on" if first.byte is not None else ""
        yield f"first divergence ({first.verdict}) at index {first.index}, pos {first.pos}: {terms}{byte}"
        for node, (file, offset) in first.places.items():
            yield f"  {node}: {cell('/'.join(Path(file).parts[-2:]))} at byte {offset}"
    explained = [row for row in found.rows if row.first_difference is not None]
    for row in explained[:_MAX_EXPLAINED]:
        yield f"  index {row.first_index} differs from byte {row.first_byte} on, {cell(row.first_difference)}"
    if len(explained) > _MAX_EXPLAINED:
        yield f"  and {len(explained) - _MAX_EXPLAINED} more ranges: --json prints all"
    if found.committed_index is None:
        yield "committed: nothing is proven"
    else:
        yield f"committed: up to {found.committed_index}, proven by {found.committed_from}"
    if found.majority_index >= 0 and not found.is_proven:
        nodes = ", ".join(found.majority_nodes)
        doubt = f": {found.majority_doubt}" if found.majority_doubt else ""
        yield f"on a majority, not proven committed: up to {found.majority_index} ({nodes}){doubt}"
    for text in found.notes:
        yield f"note: {text}"
