"""A node: one member of a group, made of a core, a store and asyncio connections."""

from pyspark_dledger.raft.node.node import Node
from pyspark_dledger.raft.node.node_config import NodeConfig

__all__ = ["Node", "NodeConfig"]
