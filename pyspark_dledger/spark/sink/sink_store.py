"""Which node's store a write to a path goes to, and whether a group of one may write it."""

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
# What a broker has in its storePathRootDir in addition to the log.
_BROKER_FOLDERS = ("commitlog", "consumequeue")
# What a failed first write may leave, and what a new file system has.
_EMPTY_STORE = {"abort", "checkpoint", "config", "index", "lock", "lost+found"}
_INSTEAD = "write to the group, with the options group and peers"


class SinkStore(NamedTuple):
    """The store ``root/dledger-<self_id>``. The root is absolute and has no links."""

    root: Path
    self_id: str


def find_store(path: str, self_id: str | None, is_message: bool) -> SinkStore:
    """Return the store at `path`, a root or a node's folder. It may not exist yet.

    Raises StoreError if a group of one must not write there: several nodes, a member of a larger group (known by its
    members file or its vote), a store of DLedger 0.4.0, raw entries next to a broker's files, or other files.
    """
    given = Path(os.path.realpath(path))
    if os.path.lexists(given) and not given.is_dir():
        raise StoreError(f"{path}: expected a folder, found a file: name a folder to write a log in")
    root, node = given, self_id
    if given.name.startswith(_NODE_PREFIX):
        root, node = given.parent, given.name.removeprefix(_NODE_PREFIX)
        if self_id not in (None, node):
            raise StoreError(f"{path}: expected node {self_id} (selfId), found {node}: leave one of them out")
    names = sorted(os.listdir(root)) if root.is_dir() else []
    nodes = node_folders(root, names)
    _check_nodes(path, nodes, node)
    broker_folders = [name for name in _BROKER_FOLDERS if name in names]
    if not nodes and not _EMPTY_STORE.issuperset(names) and not broker_folders:
        raise StoreError(
            f"{path}: expected a store, or an empty or new folder, found {', '.join(names[:8])}: name another folder"
        )
    if not is_message and broker_folders:
        raise StoreError(
            f"{path}: raw entries cannot be written, found {broker_folders[0]}/ of a broker: write messages "
            "(writeAs=message), or name another folder"
        )
    store = SinkStore(root, node or next(iter(nodes), _NEW_NODE))
    if store.self_id in nodes:
        _check_group_of_one(path, nodes[store.self_id], store.self_id)
    return store


def _check_nodes(path: str, nodes: dict[str, Path], node: str | None) -> None:
    if len(nodes) > 1:
        raise StoreError(
            f"{path}: expected the store of one node, found {', '.join(nodes)}: they are members of a group; {_INSTEAD}"
        )
    if nodes and node not in (None, *nodes):
        raise StoreError(f"{path}: expected node {node} (selfId), found {next(iter(nodes))}: leave selfId out")


def _check_group_of_one(path: str, node_dir: Path, self_id: str) -> None:
    check_version(node_dir)
    if len(members := load_members(node_dir)) > 1:
        raise StoreError(
            f"{path}: expected a group of one, found that {self_id} is a member of the group {', '.join(members)}, "
            f"whose log a write here would contradict: {_INSTEAD}"
        )
    voted = load_current_term(node_dir).vote_leader
    if voted not in (None, "", self_id):
        raise StoreError(
            f"{path}: expected a group of one, found that {self_id} voted for {voted}: it is a member of a larger "
            f"group, whose log a write here would contradict: {_INSTEAD}"
        )
