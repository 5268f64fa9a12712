"""The node: a core, a store and asyncio connections joined to one member of a group."""

from pyspark_dledger.raft.node.config import NodeConfig
from pyspark_dledger.raft.node.node import Node

__all__ = ["Node", "NodeConfig"]
