"""A dry run finds every difference between queues or index and the log, and a rebuild repairs it."""

from __future__ import annotations

import os
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.key_files import index_files, read_header
from pyspark_dledger.log.verify.findings import INFO
from pyspark_dledger.rocketmq.rebuild import compare, rebuild
from tests.support.damage import write_at
from tests.support.dispatching import audit, files_of, index_units, units
from tests.support.long_runs import examples
from tests.support.rebuilds import SMALL, WHATS, index_bytes, store_of
from tests.support.sparse_copy import copy_tree

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_differences_are_listed_by_queue(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    shutil.rmtree(root / "consumequeue" / "Pays")
    copy_tree(root / "consumequeue" / "Orders" / "0", root / "consumequeue" / "Ghost" / "0")
    file = root / "consumequeue" / "Orders" / "1" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[40:60] = bytes(20)
    data[68:72] = b"\1\2\3\4"
    file.write_bytes(data)
    before = files_of(root, *WHATS)
    rows = {(row.topic, row.queue_id): row for row in compare(root, "consumequeue").differences if not row.is_equal}
    assert set(rows) == {("Pays", 0), ("Ghost", 0), ("Orders", 1)}
    assert (rows["Pays", 0].missing, rows["Pays", 0].found) == (len(_dispatched(root, "Pays", 0)), "nothing written")
    ghost, orders = rows["Ghost", 0], rows["Orders", 1]
    assert (ghost.extra, ghost.equal, ghost.queue_offset, ghost.expected) == (len(units(root, "Ghost")), 0, 0, "none")
    assert (orders.missing, orders.different, orders.queue_offset) == (1, 1, 2)
    assert files_of(root, *WHATS) == before
    assert not list(root.glob("*.rebuilding"))


def _dispatched(root: Path, topic: str, queue_id: int) -> list[dict[str, Any]]:
    batches = open_log(str(root)).scan(columns=["transaction"], topic=topic, queueId=queue_id)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [row for row in rows if row["transaction"] in ("none", "commit")]


def test_differences_are_listed_by_index_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root, 120)
    first, second, third, *_ = index_files(root)
    header = read_header(second)
    assert header is not None
    third.unlink()
    at = 40 + 7 * 4 + 20 * 5
    data = bytearray(second.read_bytes())
    hash_before, offset_before = struct.unpack_from(">iq", data, at)
    struct.pack_into(">iq", data, at, hash_before + 7, offset_before)  # in the same slot
    second.write_bytes(data)
    found = compare(root, "index")
    rows = {row.file: row for row in found.differences if not row.is_equal}
    row = rows[second.name]
    assert (row.extra, row.unlinked, row.commit_log_offset) == (1, 0, offset_before)
    # The next files may have other keys of some messages of the missing file.
    assert sum(each.missing for each in rows.values()) == 1 + 19
    assert rows[None].missing >= 15
    data[40 : 40 + 28] = bytes(28)
    second.write_bytes(data)
    rows = {row.file: row for row in compare(root, "index").differences}
    assert rows[second.name].unlinked + (rows[second.name].problem is not None) > 0
    assert not rows[second.name].is_equal
    assert rows[first.name].is_equal


def test_a_wrong_number_of_units_in_an_index_header_takes_no_memory(tmp_path: Path) -> None:
    """Memory is limited by the size of the file."""
    root = tmp_path / "root"
    store_of(root)
    first = index_files(root)[0]
    write_at(first, 36, struct.pack(">i", 30_000_000))
    tracemalloc.start()
    try:
        (row,) = [row for row in compare(root, "index").differences if not row.is_equal]
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert row.file == first.name


def test_the_size_of_a_queue_file_that_no_broker_can_map_is_ignored(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store_of(root)
    before = files_of(root, "consumequeue")
    ghost = root / "consumequeue" / "Ghost" / "0"
    ghost.mkdir(parents=True)
    for number in range(40):
        file = ghost / f"{number << 40:020d}"
        file.touch()
        os.truncate(file, 1 << 40)
    rebuild(root, "consumequeue")
    assert files_of(root, "consumequeue") == before


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small intact store."""
    root = tmp_path_factory.mktemp("sound") / "root"
    store_of(root, 40)
    return root


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_any_damage_of_queues_is_found_and_repaired(
    sound: Path, folder: Callable[[], Path], data: st.DataObject
) -> None:
    root = folder() / "root"
    copy_tree(sound, root)
    good = files_of(root, "consumequeue")
    for _ in range(data.draw(st.integers(0, 3))):
        change_something(root / "consumequeue", data)
    found = compare(root, "consumequeue", files=SMALL)
    assert found.is_equal == (files_of(root, "consumequeue") == good)
    # All verbs that check queues say so.
    assert found.is_equal == (audit(root) == []) == all(each.severity == INFO for each in open_log(root).findings())
    rebuild(root, "consumequeue", files=SMALL)
    assert files_of(root, "consumequeue") == good
    assert compare(root, "consumequeue", files=SMALL).is_equal


def change_something(folder: Path, data: st.DataObject) -> None:
    """Change bytes of a file, truncate it, or remove it."""
    path = data.draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    content = path.read_bytes()
    at = data.draw(st.integers(0, max(len(content) - 1, 0)))
    change = data.draw(st.binary(min_size=1, max_size=40))
    kinds = {"change": content[:at] + change + content[at + len(change) :], "truncate": content[:at], "remove": None}
    changed = kinds[data.draw(st.sampled_from(sorted(kinds)))]
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_any_damage_of_the_index_is_found_and_repaired(
    sound: Path, folder: Callable[[], Path], data: st.DataObject
) -> None:
    root = folder() / "root"
    copy_tree(sound, root)
    good = index_bytes(root)
    for _ in range(data.draw(st.integers(0, 2))):
        change_something(root / "index", data)
    found = compare(root, "index")
    if index_bytes(root) == good:
        assert found.is_equal
    keys = {(key, offset) for key, offset in _keys_on_disk(root) if found.is_equal}
    assert not found.is_equal or keys == set(index_units(sound))
    rebuild(root, "index", files=SMALL)
    assert index_bytes(root) == good


def _keys_on_disk(root: Path) -> list[tuple[int, int]]:
    """Hash and offset of every unit that the headers count."""
    units = []
    for path in index_files(root):
        header, content = read_header(path), path.read_bytes()[40 + 7 * 4 :]
        count = header.index_count if header is not None else 0
        units += [
            struct.unpack_from(">iq", content, 20 * number) for number in range(1, min(count, len(content) // 20))
        ]
    return units
