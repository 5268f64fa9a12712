"""A member of a group as a state machine: requests, responses and time in; effects and store writes out."""

from pyspark_dledger.raft.core.core import Core
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.raft.core.effects import (
    Committed,
    Effect,
    Load,
    MembersChanged,
    PeerStatus,
    Reply,
    RoleChanged,
    Send,
    Status,
)

__all__ = [
    "Committed",
    "Core",
    "CoreConfig",
    "Effect",
    "Load",
    "MembersChanged",
    "PeerStatus",
    "Reply",
    "RoleChanged",
    "Send",
    "Status",
]
