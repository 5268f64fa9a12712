"""Stores that Java wrote: our store opens them without loss, appends, and writes the same bytes itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE
from pyspark_dledger.log.recovery.recovery_preview import preview
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.support.golden import ALL, Golden, unpack
from tests.support.sparse_copy import copy_tree
from tests.support.stores import content, data_files, entries, findings, index_files, log_of, opened

RAW = [golden for golden in ALL if golden.is_raw]
COMPATIBLE = [golden for golden in RAW if not golden.version.startswith("0.4")]
NEWEST = [golden for golden in RAW if golden.version.startswith("0.4")]
# Neither truncated nor expired.
WHOLE = [golden for golden in COMPATIBLE if golden.case not in ("raw-expired", "raw-truncated-tail")]


def every(goldens: list[Golden]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("golden", goldens, ids=str)


@pytest.fixture
def store(golden: Golden, tmp_path: Path) -> Iterator[MmapFileStore]:
    """A store on a golden, not started."""
    folder = unpack(golden.case, tmp_path)
    store = MmapFileStore(
        StoreConfig(folder, self_id=golden.node or "n0", data_dirs=tuple(sorted(folder.glob("path[0-9]"))))
    )
    yield store
    store.shutdown()


def digests(store: MmapFileStore) -> list[tuple[int, int, int, int, str]]:
    return [
        (entry.index, entry.term, entry.pos, len(entry.body), hashlib.sha256(entry.body).hexdigest())
        for entry in entries(store)
    ]


@every(COMPATIBLE)
def test_opens_as_java_does_and_appends(store: MmapFileStore, golden: Golden) -> None:
    java, head = golden.expected(), golden.expected().head
    store.startup()
    assert (store.ledger_begin_index, store.ledger_end_index) == (head["beginIndex"], head["endIndex"])
    assert (store.ledger_end_term, store.committed_index) == (head["endTerm"], head["committedIndex"])
    assert (store.end_pos, store.curr_term) == (head["writePos"], head["currTerm"])
    assert store.vote_leader == (head["voteLeader"] or None)
    there = [(e["index"], e["term"], e["pos"], e["bodyLen"], e["bodySha256"]) for e in java.entries]
    assert digests(store) == there
    store.save_term(store.curr_term + 1, store.config.self_id)
    last = store.append_as_leader([b"new"] * 50).last_index
    store.shutdown()
    assert findings(store) == []
    store.startup()
    assert (store.ledger_end_index, store.get(last).body) == (last, b"new")
    assert digests(store)[: len(there)] == there
    assert read_by_log(store) == digests(store)


def read_by_log(store: MmapFileStore) -> list[tuple[int, int, int, int, str]]:
    """The entries as `open_log` reads them."""
    return [
        (row["index"], row["term"], row["pos"], row["bodySize"], hashlib.sha256(row["body"]).hexdigest())
        for batch in log_of(store).scan(["index", "term", "pos", "bodySize", "body"])
        for row in batch.to_pylist()
    ]


@every(COMPATIBLE)
def test_no_more_is_lost_than_in_java(store: MmapFileStore) -> None:
    java = preview(log_of(store), "0.3.1.2")
    store.startup()
    assert java.outcome == "opens"
    assert (store.ledger_begin_index, store.ledger_end_index) == (java.begin_index, java.end_index)


@every(NEWEST)
def test_stores_of_the_newest_version_are_rejected(store: MmapFileStore) -> None:
    with pytest.raises(StoreError, match="0\\.4\\.0"):
        store.startup()


@every(WHOLE)
def test_same_entries_are_the_same_bytes(store: MmapFileStore, tmp_path: Path) -> None:
    """Data and index files are equal byte for byte: of a leader with single entries or batches, except its checksums,
    and of a follower.
    """
    java = store
    java.startup()
    sizes = {"data_file_size": java._files.data.file_size, "index_file_size": java._files.index.file_size}
    batched, single, follower = (opened(tmp_path / name, **sizes) for name in ("batched", "single", "follower"))
    index, end = 0, java.ledger_end_index
    while index <= end:
        term, last = java.term_at(index), min(index + 99, end)
        while java.term_at(last) != term:
            last -= 1
        bodies = [java.get(number).body for number in range(index, last + 1)]
        batched.append_as_leader(bodies, term)
        for body in bodies:
            single.append_as_leader([body], term)
        index = last + 1
    index = 0
    while index <= end:
        index = follower.append_as_follower(java.read(index, 5000).data, java.ledger_end_term) + 1
    wanted = used_bytes(java)
    for written in (batched, single, follower):
        written.shutdown()
        for file in data_files(written) if written is not follower else ():
            clear_checksums(file)
        assert used_bytes(written) == wanted


def clear_checksums(file: Path) -> None:
    """Java writes no checksums."""
    data, at = bytearray(file.read_bytes()), 0
    while data[at : at + 4] == b"\0\0\0\1":
        data[at + 40 : at + 44] = bytes(4)
        at += int.from_bytes(data[at + 4 : at + 8], "big")
    file.write_bytes(data)


def used_bytes(store: MmapFileStore) -> dict[str, bytes]:
    """Data and index files by name, without the empty ones after the end."""
    found = {f"data/{name}": data for name, data in content(data_files(store)).items()}
    found |= {f"index/{name}": data for name, data in content(index_files(store)).items()}
    return {name: data for name, data in found.items() if data.strip(b"\0")}


def test_stale_entries_after_the_end_do_not_come_back(tmp_path: Path) -> None:
    """raw-truncated-tail: after the end of n1 is an older entry with the right pos and the next index."""
    golden = Golden("raw-truncated-tail", "n1")
    folder = unpack(golden.case, tmp_path)
    store = MmapFileStore(StoreConfig(folder, self_id="n1"))
    store.startup()
    end = store.ledger_end_index
    assert end == golden.expected().head["endIndex"]
    last = data_files(store)[-1]
    assert not last.read_bytes()[store.end_pos % last.stat().st_size :].strip(b"\0")
    store.shutdown()


@every([golden for golden in COMPATIBLE if golden.case == "raw-single"])
@pytest.mark.parametrize("which", ["all", "first", "middle", "last"])
def test_missing_index_files_are_rebuilt(store: MmapFileStore, golden: Golden, which: str) -> None:
    files = index_files(store)
    before = content(files)
    chosen = {"all": files, "first": files[:1], "middle": files[2:3], "last": files[-1:]}[which]
    for file in chosen:
        file.unlink()
    store.startup()
    assert len(digests(store)) == len(golden.expected().entries)
    units = (golden.expected().head["endIndex"] + 1) * INDEX_UNIT_SIZE
    after = content(index_files(store))
    assert b"".join(after.values())[:units] == b"".join(before.values())[:units]


def test_a_copy_of_a_running_store_opens(tmp_path: Path) -> None:
    """As a backup of the folder while the store is being written."""
    store = MmapFileStore(StoreConfig(tmp_path / "store", data_file_size=4096, index_file_size=3200))
    store.startup()
    store.append_as_leader([b"x" * 100] * 100)
    copy_tree(tmp_path / "store", tmp_path / "copy")
    copy = MmapFileStore(StoreConfig(tmp_path / "copy"))
    copy.startup()
    assert entries(copy) == entries(store)
    for each in (copy, store):
        each.shutdown()
