"""Java DLedger opens our stores and we open its stores; each appends after the other.

The suite runs a few courses. DLEDGER_INTEROP=SECONDS runs random ones that long (DLEDGER_INTEROP_SEED is the seed).
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.format.state_files import parse_properties_file
from pyspark_dledger.rocketmq.backup import backup, restore
from pyspark_dledger.store.files.node_files import load_boot
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.interop import damages
from tests.interop.java_stores import StoreOpener, store_openers
from tests.support import golden
from tests.support.golden import Golden
from tests.support.long_runs import SECONDS, SEED
from tests.support.sparse_copy import copy_tree
from tests.support.stores import entries, opened

Unpack = Callable[[str], Path]

VERSIONS = ("0.2.2", "0.2.7", "0.3.1.2", "0.3.2")
# 0.4.0 has its own format, which our store reads and does not write.
GOLDENS = [each for each in golden.ALL if each.is_raw and "040" not in each.case and each.case != "raw-multipath"]
SIZES = (4096, 32 * 50)


@pytest.fixture(scope="module")
def openers() -> Iterator[dict[str, StoreOpener]]:
    with store_openers(VERSIONS) as found:
        yield found


def open_store(folder: Path, node: str = "n0", sizes: tuple[int, int] = SIZES) -> MmapFileStore:
    return opened(folder, self_id=node, data_file_size=sizes[0], index_file_size=sizes[1])


def digest(store: MmapFileStore) -> str:
    """Returns the digest that OpenStores.java computes."""
    found = hashlib.sha256()
    for entry in entries(store):
        found.update(struct.pack(">qqqi", entry.index, entry.term, entry.pos, len(entry.body)) + entry.body)
    return found.hexdigest()


def expected_answer(store: MmapFileStore) -> dict[str, Any]:
    """Returns the answer expected from Java for the same store."""
    return {
        "outcome": "opens",
        "beginIndex": store.ledger_begin_index,
        "endIndex": store.ledger_end_index,
        # Java's value before the first entry is 0; it sends -1 to other members.
        "endTerm": store.ledger_end_term if store.ledger_end_index >= 0 else 0,
        "committedIndex": store.committed_index,
        "writePos": store.end_pos,
        "currTerm": store.curr_term,
        "voteLeader": store.vote_leader,
        "digest": digest(store),
    }


def open_with_java(
    opener: StoreOpener, folder: Path, node: str, sizes: tuple[int, int], appends: int = 0
) -> dict[str, Any]:
    return opener.open(folder, node, *sizes, appends=appends)


def copy_to(folder: Path, node: str, to: Path) -> Path:
    """Copies ``folder/dledger-node`` to `to`, where our lock does not apply."""
    shutil.rmtree(to, ignore_errors=True)
    copy_tree(folder / f"dledger-{node}", to / f"dledger-{node}")
    return to


def test_java_and_our_store_append_in_turn(openers: dict[str, StoreOpener], tmp_path: Path) -> None:
    choice = random.Random(1)
    store = open_store(tmp_path)
    store.save_term(3, "n0")
    for term, count in ((1, 40), (1, 200), (3, 60)):
        store.append_as_leader([choice.randbytes(choice.randrange(1, 700)) for _ in range(count)], term)
    store.update_committed_index(3, 250)
    store.shutdown()
    for version, opener in openers.items():
        store = open_store(tmp_path)
        expected = expected_answer(store)
        store.shutdown()
        assert store.ledger_end_index - store.ledger_begin_index >= 299
        assert load_boot(store.config.node_dir).flush == "async"
        answer = open_with_java(opener, tmp_path, "n0", SIZES, appends=30)
        assert load_boot(store.config.node_dir).flush == ""
        # Java writes no checksum, so its values cannot contradict one of ours.
        assert "crc" not in parse_properties_file((store.config.node_dir / "checkpoint").read_bytes())
        after = {"endIndex", "endTerm", "committedIndex", "writePos"}
        assert {name: answer[name] for name in answer if name not in after} == {
            name: expected[name] for name in expected if name not in after
        }, version
        store = open_store(tmp_path)
        assert {name: answer[name] for name in after} == {name: expected_answer(store)[name] for name in after}, version
        end = store.ledger_end_index
        assert end == expected["endIndex"] + 30
        assert store.get(end).body == b"java %d" % end
        store.append_as_leader([b"ours %d" % number for number in range(30)], 3)
        store.update_committed_index(3, store.ledger_end_index)
        store.shutdown()


@pytest.mark.parametrize("base", GOLDENS, ids=str)
def test_our_store_appends_to_a_java_store(
    base: Golden, openers: dict[str, StoreOpener], case_folder: Unpack, tmp_path: Path
) -> None:
    node, sizes = base.folder.removeprefix("dledger-"), damages.file_sizes(base.case)
    copy_to(case_folder(base.case), node, tmp_path / "java")
    copy_to(case_folder(base.case), node, tmp_path / "ours")
    before = open_with_java(openers["0.3.1.2"], tmp_path / "java", node, sizes)
    store = open_store(tmp_path / "ours", node, sizes)
    found = expected_answer(store)
    assert before == found
    store.save_term(found["currTerm"] + 1, None)
    store.append_as_leader([b"ours %d" % number * 20 for number in range(200)])
    store.update_committed_index(store.curr_term, store.ledger_end_index - 10)
    expected = expected_answer(store)
    store.shutdown()
    assert expected["endIndex"] == found["endIndex"] + 200
    for opener in openers.values():
        assert open_with_java(opener, tmp_path / "ours", node, sizes) == expected


def test_java_opens_a_restored_store(openers: dict[str, StoreOpener], tmp_path: Path) -> None:
    """With an expired front, and a last file that ends in its middle."""
    store = open_store(tmp_path / "a")
    store.append_as_leader([os.urandom(200) for _ in range(90)], 1)
    store.append_as_leader([os.urandom(300) for _ in range(50)], 3)
    store.flush()
    store.update_committed_index(3, 130)
    assert store.delete_expired(0, force=True)
    store.shutdown()
    backup(tmp_path / "a", tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "c", "n1", term=9)
    store = open_store(tmp_path / "c", "n1")
    expected = expected_answer(store)
    store.shutdown()
    assert (expected["endIndex"], expected["committedIndex"], expected["currTerm"]) == (130, 130, 9)
    for opener in openers.values():
        assert open_with_java(opener, tmp_path / "c", "n1", SIZES) == expected


def test_java_opens_our_store_after_a_kill(openers: dict[str, StoreOpener], tmp_path: Path) -> None:
    """Without flush and checkpoint, appended entries are in the files for every other process."""
    store = open_store(tmp_path)
    store.save_term(1, "n0")
    for _ in range(20):
        store.append_as_leader([os.urandom(300) for _ in range(13)])
    expected = {**expected_answer(store), "committedIndex": -1}
    for version, opener in openers.items():
        answer = open_with_java(opener, copy_to(tmp_path, "n0", tmp_path / version), "n0", SIZES)
        assert answer == expected, version
    store.shutdown()


def test_java_opens_our_store_after_truncation_and_expiry(openers: dict[str, StoreOpener], tmp_path: Path) -> None:
    choice = random.Random(SEED)
    number = 0
    ends = time.monotonic() + SECONDS
    while number < 6 or time.monotonic() < ends:
        folder = tmp_path / str(number)
        version = choice.choice(VERSIONS)
        course = _random_course(choice, folder)
        store = open_store(folder)
        expected = expected_answer(store)
        store.shutdown()
        assert open_with_java(openers[version], folder, "n0", SIZES) == expected, f"{version} after {course}"
        shutil.rmtree(folder)
        number += 1


def _random_course(choice: random.Random, folder: Path) -> list[str]:
    """Runs random operations of a group member on its store. Returns them as text."""
    store = open_store(folder)
    course = []
    for _ in range(choice.randrange(1, 12)):
        step = choice.choice(("append", "append", "append", "truncate", "reset", "reopen", "commit", "term"))
        course.append(_run_step(step, choice, store))
        if step == "reopen":
            store.shutdown()
            store = open_store(folder)
    store.shutdown()
    return course


def _run_step(step: str, choice: random.Random, store: MmapFileStore) -> str:
    begin, end, committed = store.ledger_begin_index, store.ledger_end_index, store.committed_index
    if step == "append":
        sizes = [choice.choice((0, 1, 9, 100, 700, 4040)) for _ in range(choice.randrange(1, 40))]
        store.append_as_leader([choice.randbytes(size) for size in sizes])
        return f"append {sizes}"
    if step == "term":
        store.save_term(store.curr_term + 1, choice.choice((None, "n0", "n1")))
    elif step == "truncate" and end > max(committed, begin):
        index = choice.randrange(max(committed, begin) + 1, end + 1)
        store.truncate(index)
        return f"truncate {index}"
    elif step == "reset":
        index, file = end + choice.randrange(1, 200), choice.randrange(2, 9)
        store.reset(index, file * SIZES[0])
        store.append_as_leader([b"first after reset"])
        return f"reset {index} {file * SIZES[0]}"
    elif step == "commit" and end >= 0:
        store.update_committed_index(store.curr_term, choice.randrange(begin, end + 1))
    return step
