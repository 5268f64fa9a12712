"""Where an embedded sink writes: which node's store under a path, and whether a group of one may write it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.store_paths import node_folders
from pyspark_dledger.store.files.node_files import load_current_term, load_members
from pyspark_dledger.store.recovery.load_files import check_version

_NODE_PREFIX = "dledger-"
_NEW_NODE = "n0"
# What a broker has in its storePathRootDir beside the log.
_OF_BROKERS = ("commitlog", "consumequeue")
# And what a first write may leave that ended before there was a log; a file system has the last at its own root.
_NOTHING_YET = {"abort", "checkpoint", "config", "index", "lock", "lost+found"}
_INSTEAD = "write to its group, with the options group and peers"


class SinkStore(NamedTuple):
    """The store ``root/dledger-<self_id>``; paths are absolute and have no links in them."""

    root: Path
    self_id: str


def place_of(path: str, self_id: str | None, is_message: bool) -> SinkStore:
    """The store at `path`, a root or a node's folder, or the one to be made there. Nothing is made yet.

    Raises StoreError where no group of one may write: several nodes, a member of a larger group, as far as a node
    of ours has noted it or its vote tells, a store of DLedger 0.4.0, raw entries beside a broker's files; and for what
    is no place for a store.
    """
    given = Path(os.path.realpath(path))
    if os.path.lexists(given) and not given.is_dir():
        raise StoreError(f"{path}: expected a folder to write a log in, found a file: name a folder")
    root, node = given, self_id
    if given.name.startswith(_NODE_PREFIX):
        root, node = given.parent, given.name.removeprefix(_NODE_PREFIX)
        if self_id not in (None, node):
            raise StoreError(f"{path}: expected the node {self_id} (selfId), found {node}: leave one of them out")
    names = sorted(os.listdir(root)) if root.is_dir() else []
    nodes = node_folders(root, names)
    _check_nodes(path, nodes, node)
    if not nodes and not _NOTHING_YET.issuperset(names) and not any(name in names for name in _OF_BROKERS):
        raise StoreError(
            f"{path}: expected a store, or an empty or new folder, found {', '.join(names[:8])}: name another folder"
        )
    if not is_message and (found := [name for name in _OF_BROKERS if name in names]):
        raise StoreError(
            f"{path}: expected a log of raw entries, found {found[0]}/, which stands beside messages, and raw "
            "entries would confuse: "
            "write messages (writeAs=message), or name another folder"
        )
    place = SinkStore(root, node or next(iter(nodes), _NEW_NODE))
    if place.self_id in nodes:
        _check_store(path, nodes[place.self_id], place.self_id)
    return place


def _check_nodes(path: str, nodes: dict[str, Path], node: str | None) -> None:
    if len(nodes) > 1:
        raise StoreError(
            f"{path}: expected the store of one node, found {', '.join(nodes)}: they are members of a group; {_INSTEAD}"
        )
    if nodes and node not in (None, *nodes):
        raise StoreError(f"{path}: expected the node {node} (selfId), found {next(iter(nodes))}: leave selfId out")


def _check_store(path: str, node_dir: Path, self_id: str) -> None:
    check_version(node_dir)
    if len(members := load_members(node_dir)) > 1:
        raise StoreError(
            f"{path}: expected a store of a group of one, found that {self_id} is a member of that of "
            f"{', '.join(members)}, which would be contradicted; {_INSTEAD}"
        )
    voted = load_current_term(node_dir).vote_leader
    if voted not in (None, "", self_id):
        raise StoreError(
            f"{path}: expected a store of a group of one, found that {self_id} voted for {voted}: it is a member of a "
            f"larger group, which would be contradicted; {_INSTEAD}"
        )
