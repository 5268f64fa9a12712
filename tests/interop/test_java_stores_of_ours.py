"""The Java DLedger opens stores that ours wrote, and ours those that Java wrote; each goes on where the other ended.

The suite takes a few courses; with DLEDGER_INTEROP=SECONDS random ones are taken for so long (DLEDGER_INTEROP_SEED
chooses them).
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

from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.interop import damages
from tests.interop.java_stores import Judge, judged
from tests.support import golden
from tests.support.golden import Golden
from tests.support.stores import entries, opened

Unpack = Callable[[str], Path]

SECONDS = float(os.environ.get("DLEDGER_INTEROP") or 0)
SEED = int(os.environ.get("DLEDGER_INTEROP_SEED") or 1)
VERSIONS = ("0.2.2", "0.2.7", "0.3.1.2", "0.3.2")
# What 0.4.0 wrote is its own dialect, which ours reads and does not write.
GOLDENS = [each for each in golden.ALL if each.is_raw and "040" not in each.case and each.case != "raw-multipath"]
SIZES = (4096, 32 * 50)


@pytest.fixture(scope="module")
def judges() -> Iterator[dict[str, Judge]]:
    with judged(VERSIONS) as found:
        yield found


def open_store(folder: Path, node: str = "n0", sizes: tuple[int, int] = SIZES) -> MmapFileStore:
    return opened(folder, self_id=node, data_file_size=sizes[0], index_file_size=sizes[1])


def digest(store: MmapFileStore) -> str:
    """As OpenStores.java has it."""
    found = hashlib.sha256()
    for entry in entries(store):
        found.update(struct.pack(">qqqi", entry.index, entry.term, entry.pos, len(entry.body)) + entry.body)
    return found.hexdigest()


def told(store: MmapFileStore) -> dict[str, Any]:
    """What Java has to say of the same store."""
    return {
        "outcome": "opens",
        "beginIndex": store.ledger_begin_index,
        "endIndex": store.ledger_end_index,
        # Java has 0 before the first entry, and says -1 to other members.
        "endTerm": store.ledger_end_term if store.ledger_end_index >= 0 else 0,
        "committedIndex": store.committed_index,
        "writePos": store.end_pos,
        "currTerm": store.curr_term,
        "voteLeader": store.vote_leader,
        "digest": digest(store),
    }


def java_says(judge: Judge, folder: Path, node: str, sizes: tuple[int, int], appends: int = 0) -> dict[str, Any]:
    return judge.open(folder, node, *sizes, appends=appends)


def copied(folder: Path, node: str, to: Path) -> Path:
    """A copy of ``folder/dledger-node`` in `to`; our lock is not held on it."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder / f"dledger-{node}", to / f"dledger-{node}")
    return to


def test_java_goes_on_in_a_store_of_ours_and_ours_again(judges: dict[str, Judge], tmp_path: Path) -> None:
    choice = random.Random(1)
    store = open_store(tmp_path)
    store.save_term(3, "n0")
    for term, count in ((1, 40), (1, 200), (3, 60)):
        store.append_as_leader([choice.randbytes(choice.randrange(1, 700)) for _ in range(count)], term)
    store.update_committed_index(3, 250)
    store.shutdown()
    for version, judge in judges.items():
        store = open_store(tmp_path)
        expected = told(store)
        store.shutdown()
        assert store.ledger_end_index - store.ledger_begin_index >= 299
        says = java_says(judge, tmp_path, "n0", SIZES, appends=30)
        after = {"endIndex", "endTerm", "committedIndex", "writePos"}
        assert {name: says[name] for name in says if name not in after} == {
            name: expected[name] for name in expected if name not in after
        }, version
        store = open_store(tmp_path)
        assert {name: says[name] for name in after} == {name: told(store)[name] for name in after}, version
        end = store.ledger_end_index
        assert end == expected["endIndex"] + 30
        assert store.get(end).body == b"java %d" % end
        store.append_as_leader([b"ours %d" % number for number in range(30)], 3)
        store.update_committed_index(3, store.ledger_end_index)
        store.shutdown()


@pytest.mark.parametrize("base", GOLDENS, ids=str)
def test_ours_goes_on_in_a_store_of_java(
    base: Golden, judges: dict[str, Judge], case_folder: Unpack, tmp_path: Path
) -> None:
    node, sizes = base.folder.removeprefix("dledger-"), damages.config(base.case)
    copied(case_folder(base.case), node, tmp_path / "java")
    copied(case_folder(base.case), node, tmp_path / "ours")
    before = java_says(judges["0.3.1.2"], tmp_path / "java", node, sizes)
    store = open_store(tmp_path / "ours", node, sizes)
    found = told(store)
    assert before == found
    store.save_term(found["currTerm"] + 1, None)
    store.append_as_leader([b"ours %d" % number * 20 for number in range(200)])
    store.update_committed_index(store.curr_term, store.ledger_end_index - 10)
    expected = told(store)
    store.shutdown()
    assert expected["endIndex"] == found["endIndex"] + 200
    for judge in judges.values():
        assert java_says(judge, tmp_path / "ours", node, sizes) == expected


def test_java_opens_what_a_kill_leaves(judges: dict[str, Judge], tmp_path: Path) -> None:
    """No flush, no checkpoint: what was appended is in the files for every other process."""
    store = open_store(tmp_path)
    store.save_term(1, "n0")
    for _ in range(20):
        store.append_as_leader([os.urandom(300) for _ in range(13)])
    expected = {**told(store), "committedIndex": -1}
    for version, judge in judges.items():
        says = java_says(judge, copied(tmp_path, "n0", tmp_path / version), "n0", SIZES)
        assert says == expected, version
    store.shutdown()


def test_java_opens_what_truncation_and_expiry_leave(judges: dict[str, Judge], tmp_path: Path) -> None:
    choice = random.Random(SEED)
    number = 0
    ends = time.monotonic() + SECONDS
    while number < 6 or time.monotonic() < ends:
        folder = tmp_path / str(number)
        version = choice.choice(VERSIONS)
        course = _random_course(choice, folder)
        store = open_store(folder)
        expected = told(store)
        store.shutdown()
        assert java_says(judges[version], folder, "n0", SIZES) == expected, f"{version} after {course}"
        shutil.rmtree(folder)
        number += 1


def _random_course(choice: random.Random, folder: Path) -> list[str]:
    """Do anything that a member of a group does to its store; what was done."""
    store = open_store(folder)
    course = []
    for _ in range(choice.randrange(1, 12)):
        step = choice.choice(("append", "append", "append", "truncate", "reset", "reopen", "commit", "term"))
        course.append(_do(step, choice, store))
        if step == "reopen":
            store.shutdown()
            store = open_store(folder)
    store.shutdown()
    return course


def _do(step: str, choice: random.Random, store: MmapFileStore) -> str:
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
