"""The witness of a store's segments: its index files and its ConsumeQueues, read when damage is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_dledger.log.witness.evidence import Evidence

if TYPE_CHECKING:
    from pyspark_dledger.format.known_entries import KnownEntries
    from pyspark_dledger.format.spec import Segment
    from pyspark_dledger.log.io.store_paths import StorePaths


@dataclass(frozen=True)
class StoreWitness:
    """A `spec.Witness`: where the files are that know entries of a store.

    ``node_dir`` is a node's folder with its index and checkpoint, ``root`` the folder with consumequeue.
    """

    node_dir: str | None
    root: str | None

    def known_entries(self, segment: Segment) -> KnownEntries:
        """See `spec.Witness`. A file that cannot be read is no witness; a remote one raises StoreError."""
        from pyspark_dledger.log.witness.known_entries import find_known_entries  # imports numpy, slow to load

        return find_known_entries(segment, self.node_dir, self.root)

    def evidence(self, segment: Segment) -> Evidence:
        """What the index proves about the end of the log in a DLedger segment."""
        from pyspark_dledger.log.witness.known_entries import find_evidence

        return find_evidence(segment, self.node_dir)


def witness_of(paths: StorePaths) -> StoreWitness | None:
    """The witness of the store at `paths`, or None if it has only log files. Nothing is read."""
    if paths.node_dir is None and paths.root is None:
        return None
    return StoreWitness(*(None if folder is None else str(folder) for folder in (paths.node_dir, paths.root)))
