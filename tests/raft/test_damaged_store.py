"""A store with flipped bits, on a full disk, and with bytes that cannot be read."""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError, IndexRangeError, StoreError
from pyspark_dledger.raft.client.outcomes import Outcome, outcome_of
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.damage import write_at
from tests.support.groups import SMALL, Served, free_ports, nodes, peers_text
from tests.support.stores import abandoned, bodies, data_files, entries, opened

_PWRITE = os.pwrite


def _is_whole_or_refused(store: MmapFileStore, index: int, body: bytes) -> bool:
    """Whether an entry of term 0 is served as it was written, or reported as damaged."""
    try:
        entry = store.get(index)
    except IndexRangeError:
        return False
    except StoreError:
        return True
    return (entry.term, entry.body) == (0, body)


@pytest.mark.parametrize(("at", "bit"), [(3, 2), (15, 1), (23, 1)], ids=["magic", "index", "term"])
def test_flipped_header_bit_costs_no_acknowledged_entry(tmp_path: Path, at: int, bit: int) -> None:
    store = opened(tmp_path, flush="sync", **SMALL)
    written = bodies(0, 100)
    store.append_as_leader(written[:50], 0)
    pos = store.append_as_leader(written[50:], 0).pos
    assert store.flush() == 99
    store.update_committed_index(0, 99)
    (file,) = data_files(store)
    write_at(file, pos + at, bytes([file.read_bytes()[pos + at] ^ bit]))
    try:
        again = abandoned(store)
    except StoreError:
        return
    lost = [index for index, body in enumerate(written) if not _is_whole_or_refused(again, index, body)]
    again.shutdown()
    assert not lost, f"the store starts without the acknowledged entries {lost}"


def test_append_that_is_reported_as_not_done_is_not_in_the_log(tmp_path: Path) -> None:
    """Zeroing what was written fails as well, as on a file system that copies on write."""
    writes = count()

    def full(descriptor: int, data: Any, offset: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().parent.name != "data":
            return _PWRITE(descriptor, data, offset)
        if next(writes) > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _PWRITE(descriptor, bytes(data)[:1024], offset)

    refused = [b"A" * 300, b"B" * 300, b"C" * 900]
    with nodes(tmp_path, 1, flush="sync") as group, closing(group.caller("n0").hello()) as caller:
        caller.append(b"first")
        response = None
        caller.sock.settimeout(1)
        with mock.patch.object(os, "pwrite", full), suppress(ConnectionError, TimeoutError):
            response = caller.append(*refused)
    assert next(writes) > 1
    outcome = outcome_of(response)
    assert outcome is not Outcome.ACKNOWLEDGED
    store = opened(tmp_path, **SMALL)
    found = [entry.index for entry in entries(store) if entry.body in refused]
    store.shutdown()
    assert outcome is Outcome.UNKNOWN or not found, f"reported as {outcome.value!r}, found at {found} after a restart"


def test_unreadable_bytes_do_not_kill_the_node(tmp_path: Path) -> None:
    """A file that becomes shorter stands for a bad sector: a mapped read of either is a SIGBUS."""
    peers = peers_text(free_ports(1))
    node = Served("n0", peers, tmp_path, "--data-file-size", "64k")
    try:
        node.ready()
        with dl.connect("g", peers, timeout_ms=30_000, max_retries=0) as client:
            client.append_batch([b"z" * 1000] * 150)
            client.get(3)
            os.truncate(min((tmp_path / "dledger-n0" / "data").iterdir()), 4096)
            with suppress(DLedgerError):
                client.get(40)
        with suppress(subprocess.TimeoutExpired):
            node.process.wait(10)
        code = node.process.poll()
        assert code is None or code >= 0, f"the node ended with exit code {code}"
    finally:
        node.close()
