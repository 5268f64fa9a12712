"""Compare the replicas of a group: where they part, who holds what, who could be elected, and what that would cost.

``python examples/diff_replicas.py [REPLICA REPLICA ...]``: without paths those of a group of RocketMQ 4.9.8 whose
leader was cut off while it took messages. Needs no Spark; ``dledger diff`` prints the same on the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bundled import unpacked

import pyspark_dledger as dl
from pyspark_dledger.log.diff.comparison import compare


def show(paths: list[str]) -> None:
    """Print what a comparison of the replicas at `paths` comes to."""
    log = dl.open_log(paths[0], replicas=paths[1:])
    found = compare(log)
    print("node    first    last    term  committed  behind")
    for node in found.standings:
        ends = f"{node.begin_index:9}{node.end_index:8}{node.end_term:8}"
        print(f"{node.node:4}{ends}{node.committed_index!s:>11}{node.lag_entries!s:>8}")
    print(f"committed up to {found.committed_index}, proven by {found.committed_from}")
    if found.is_same:
        print("all replicas hold the same entries")
    if found.first_divergence is not None:
        terms = ", ".join(f"{node} has term {term}" for node, term in found.first_divergence.terms.items())
        print(f"they part at index {found.first_divergence.index}: {terms}")
    for candidate in found.candidates:
        losses = ", ".join(f"{loss.node} loses {loss.first_index} to {loss.last_index}" for loss in candidate.losses)
        print(f"if {candidate.node} is elected: {losses or 'no replica loses anything'}")
    show_messages(log, found.first_divergence.index if found.first_divergence else None)


def show_messages(log: dl.Log, index: int | None) -> None:
    """Print the message at an index on each replica that has one there."""
    if index is None:
        return
    for replica in (log, *log.replicas):
        for batch in replica.scan(
            ["term", "topic", "queueOffset", "keys"], startingOffsets=index, endingOffsets=index + 1
        ):
            print(f"index {index} on {replica.state.node}: {batch.to_pylist()[0]}")


def main(arguments: list[str]) -> None:
    """Compare the replicas that were named, or the bundled ones."""
    if len(arguments) == 1:
        sys.exit("usage: python examples/diff_replicas.py [REPLICA REPLICA ...]")
    if arguments:
        show(arguments)
        return
    with unpacked("mq-498-three-diverged") as folder:
        show([str(path) for path in sorted(Path(folder).iterdir())])


if __name__ == "__main__":
    main(sys.argv[1:])
