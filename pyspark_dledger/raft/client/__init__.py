"""A client of a group. It finds the leader, and never repeats an append with an unknown outcome."""

from pyspark_dledger.raft.client.client import Client, connect
from pyspark_dledger.raft.client.results import (
    Appended,
    AppendedRange,
    BatchResult,
    CommittedRange,
    GroupMembers,
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
    "GroupMembers",
    "MemberStatus",
    "Metadata",
    "PartialAppendError",
    "Put",
    "PutRange",
    "PutResult",
    "Topics",
    "connect",
]
