"""Damaged state files of a node: their store does not start, and says why."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.engine import ENGINES
from pyspark_dledger.store.files.node_files import Reset, load_reset, write_properties, write_reset
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.store.test_store_files import lines
from tests.support.stores import bodies, opened

STATE_FILES = ("checkpoint", "currterm", "members", "cluster", "boot", "restored")


def written(base_dir: Path, engine: str = "auto") -> MmapFileStore:
    """A closed store with all state files."""
    store = opened(base_dir, engine=engine)
    store.save_term(7, "n1")
    store.save_cluster_id("0123456789abcdef")
    store.save_member_ids(("n0", "n1"), '{"joining": true}')
    write_properties(store.config.node_dir / "restored", {"term": 3})
    store.append_as_leader(bodies(0, 8), 7)
    store.flush()
    store.update_committed_index(7, 5)
    store.shutdown()
    return store


def state(store: MmapFileStore) -> tuple[object, ...]:
    return (
        *(store.curr_term, store.vote_leader, store.cluster_id, store.member_ids, store.member_state),
        *(store.restored_term, store.committed_index, store.ledger_end_index),
    )


def started(base_dir: Path, engine: str) -> tuple[MmapFileStore | None, str]:
    """The store, or why it does not start."""
    try:
        return opened(base_dir, engine=engine), ""
    except StoreError as error:
        return None, str(error)


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", STATE_FILES)
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, name: str, engine: str) -> None:
    store = written(tmp_path, engine)
    file = store.config.node_dir / name
    data = file.read_bytes()
    refused = 0
    for bit in random.Random(len(data)).sample(range(8 * len(data)), 12):
        flip(file, bit)
        again, error = started(tmp_path, engine)
        if again is None:
            assert str(file) in error
            refused += 1
        else:
            assert state(again) == (7, "n1", "0123456789abcdef", ("n0", "n1"), '{"joining": true}', 3, 5, 7)
            again.shutdown()
        file.write_bytes(data)
    assert refused > 4


@pytest.mark.parametrize("name", STATE_FILES)
def test_a_wrong_checksum_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    file = written(tmp_path).config.node_dir / name
    flip(file, 8 * (len(file.read_bytes()) - 2))
    with pytest.raises(
        StoreError,
        match=rf"{name}: expected lines with crc [0-9a-f]{{8}}, found [0-9a-f]{{8}}: .* as if its disk was lost, or "
        "correct the lines and remove that of crc",
    ):
        opened(tmp_path)
    file.write_text("".join(f"{line}\n" for line in lines(tmp_path, name)))
    opened(tmp_path).shutdown()


def test_a_damaged_reset_is_refused(tmp_path: Path) -> None:
    write_reset(tmp_path, Reset(70, 4096, is_durable=True))
    assert load_reset(tmp_path) == Reset(70, 4096, is_durable=True)
    file = tmp_path / "reset"
    file.write_bytes(file.read_bytes().replace(b"70", b"71"))
    with pytest.raises(StoreError, match="reset: expected lines with crc"):
        load_reset(tmp_path)


def test_an_older_vote_does_not_replace_a_damaged_one(tmp_path: Path) -> None:
    file = written(tmp_path).config.node_dir / "currterm"
    file.with_name("currterm.bak").write_text("voteLeader=n0\ncurrTerm=6\n")
    file.write_bytes(b"")
    with pytest.raises(StoreError, match=r"currterm.bak can have an older vote.*one above the highest term"):
        opened(tmp_path)
