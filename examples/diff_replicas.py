"""Compare the replicas of a group: where they differ, which can be elected, and what the others would lose.

``python examples/diff_replicas.py [REPLICA REPLICA ...]``: without paths it compares bundled replicas. They are of
RocketMQ 4.9.8, and one of them was cut off from the others while it was the leader. Needs no Spark. ``dledger diff``
prints the same on the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bundled import unpacked

import pyspark_dledger as dl
from pyspark_dledger.log.diff.comparison import compare


def show(paths: list[str]) -> None:
    """Compare the replicas at `paths` and print the result."""
    log = dl.open_log(paths[0], replicas=paths[1:])
    found = compare(log)
    print("node    first    last    term  committed     lag")
    for node in found.standings:
        ends = f"{node.begin_index:9}{node.end_index:8}{node.end_term:8}"
        print(f"{node.node:4}{ends}{node.committed_index!s:>11}{node.lag_entries!s:>8}")
    print(f"committed up to {found.committed_index}, proven by {found.committed_from}")
    if found.is_same:
        print("all replicas have the same entries")
    if found.first_divergence is not None:
        terms = ", ".join(f"{node} has term {term}" for node, term in found.first_divergence.terms.items())
        print(f"they differ from index {found.first_divergence.index} on: {terms}")
    for candidate in found.candidates:
        losses = ", ".join(f"{loss.node} loses {loss.first_index} to {loss.last_index}" for loss in candidate.losses)
        print(f"if {candidate.node} is elected: {losses or 'no replica loses anything'}")
    show_messages(log, found.first_divergence.index if found.first_divergence else None)


def show_messages(log: dl.Log, index: int | None) -> None:
    """Print the message at an index of each replica that has one."""
    if index is None:
        return
    for replica in (log, *log.replicas):
        for batch in replica.scan(
            ["term", "topic", "queueOffset", "keys"], startingOffsets=index, endingOffsets=index + 1
        ):
            print(f"index {index} on {replica.state.node}: {batch.to_pylist()[0]}")


def main(arguments: list[str]) -> None:
    """Compare the given replicas, or the bundled ones."""
    if len(arguments) == 1:
        sys.exit("usage: python examples/diff_replicas.py [REPLICA REPLICA ...]")
    if arguments:
        show(arguments)
        return
    with unpacked("mq-498-three-diverged") as folder:
        show([str(path) for path in sorted(Path(folder).iterdir())])


if __name__ == "__main__":
    main(sys.argv[1:])
