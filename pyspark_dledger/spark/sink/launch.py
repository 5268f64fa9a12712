"""Start a sink process on the driver's machine, or find the one of a stream.

It writes only a store of a group of one.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.log.io.store_paths import node_folders
from pyspark_dledger.raft.peers import without_brackets
from pyspark_dledger.spark.sink.control import SinkAddress, SinkSettings, send_request
from pyspark_dledger.spark.sink.driver import LOOPBACK, driver_pid
from pyspark_dledger.spark.sink.registry import locked, read_sink, registry_file, write_sink
from pyspark_dledger.spark.sink.write_options import WriteOptions
from pyspark_dledger.store.files.node_files import load_current_term, load_members
from pyspark_dledger.store.recovery.load_files import check_version

_MODULE = "pyspark_dledger.spark.sink.sink_process"
# The shell exits at once, so nobody here has to wait for the process.
_DETACHED = 'exec 3<&0; "$0" -m "$1" <&3 3<&- &'
_NODE_PREFIX = "dledger-"
_NEW_NODE = "n0"
# What a broker has in its storePathRootDir in addition to the log.
_BROKER_FOLDERS = ("commitlog", "consumequeue")
# What a failed first write may leave, and what a new file system has.
_EMPTY_STORE = {"abort", "checkpoint", "config", "index", "lock", "lost+found"}
_INSTEAD = "write to the group, with the options group and peers"


def start_sink(options: WriteOptions, is_message: bool) -> SinkAddress:
    """Start the process of one job, with its store open. It outlives this process, and ends with the driver.

    Raises StoreError and OptionError if the store cannot be written.
    """
    return start(_settings(options, is_message))


def stream_sink(options: WriteOptions, is_message: bool) -> SinkAddress:
    """Return the process for streams of this driver to that path, started if it does not run."""
    settings = _settings(options, is_message)
    # One process for each driver, store and settings.
    file = registry_file(json.dumps(settings._replace(secret="")._asdict(), sort_keys=True))
    with locked(file):
        found = read_sink(file)
        if found is not None and is_alive(found):
            return found
        sink = start(settings._replace(registry_file=str(file)))
        write_sink(file, sink)
        return sink


def _settings(options: WriteOptions, is_message: bool) -> SinkSettings:
    assert options.path is not None
    store = find_store(options.path, options.self_id, is_message)
    return SinkSettings(
        root=str(store.root),
        self_id=store.self_id,
        host=without_brackets(options.listen or LOOPBACK),
        secret=secrets.token_hex(32),
        driver=driver_pid(),
        lease_ms=options.lease_ms,
        flush=options.flush,
        data_file_size=options.data_file_size,
        index_file_size=options.index_file_size,
        is_message=is_message,
        producer_id_expiry_ms=options.producer_id_expiry_ms,
        port=options.listen_port,
        tls=tuple(filter(None, (options.tls_cert, options.tls_key, options.tls_ca))),
    )


def start(settings: SinkSettings) -> SinkAddress:
    """Start the process in a session of its own: a signal to this process group does not end it."""
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    # NumPy's linear algebra is not used there; its threads would wait busily.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(  # noqa: S603  # this Python
        ["/bin/sh", "-c", _DETACHED, sys.executable, _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=environment,
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        # A process that has already ended writes no line.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(settings._asdict()).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
    process.wait()
    if not line:
        raise DLedgerError("the sink process ended as it started: see standard error")
    outcome = json.loads(line)
    if "error" in outcome:
        raise (OptionError if outcome.get("kind") == "OptionError" else StoreError)(outcome["error"])
    return SinkAddress(
        host=settings.host,
        port=outcome["port"],
        pid=outcome["pid"],
        secret=settings.secret,
        lease_ms=settings.lease_ms,
        tls=settings.tls,
        machine=socket.gethostname(),
    )


def is_alive(sink: SinkAddress) -> bool:
    """Return whether the process runs. Another process may have its port."""
    try:
        send_request(sink, "flush")
    except DLedgerError:
        return False
    return True


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
