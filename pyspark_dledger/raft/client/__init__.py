"""A client of a group: finds its leader and follows it, and never appends twice what it cannot know to be missing."""

from pyspark_dledger.raft.client.client import Client, connect
from pyspark_dledger.raft.client.results import (
    Appended,
    AppendedRange,
    BatchResult,
    CommittedRange,
    MemberStatus,
    Metadata,
    PartialAppendError,
    Put,
    PutRange,
    PutResult,
    Topics,
)

__all__ = [
    "Appended",
    "AppendedRange",
    "BatchResult",
    "Client",
    "CommittedRange",
    "MemberStatus",
    "Metadata",
    "PartialAppendError",
    "Put",
    "PutRange",
    "PutResult",
    "Topics",
    "connect",
]
