"""A client of a group: finds its leader and follows it, and never appends twice what it cannot know to be missing."""

from pyspark_dledger.raft.client.client import Client, connect
from pyspark_dledger.raft.client.results import (
    Appended,
    BatchResult,
    CommittedRange,
    MemberStatus,
    Metadata,
    PartialAppendError,
    Piece,
    Put,
    PutPiece,
    PutResult,
    Topics,
)

__all__ = [
    "Appended",
    "BatchResult",
    "Client",
    "CommittedRange",
    "MemberStatus",
    "Metadata",
    "PartialAppendError",
    "Piece",
    "Put",
    "PutPiece",
    "PutResult",
    "Topics",
    "connect",
]
