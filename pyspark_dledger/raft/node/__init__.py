"""The node: a core, a store and asyncio connections joined to one member of a group."""

from pyspark_dledger.raft.node.node import Node
from pyspark_dledger.raft.node.node_config import NodeConfig

__all__ = ["Node", "NodeConfig"]
