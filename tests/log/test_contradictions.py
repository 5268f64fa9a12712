"""Where a store's files say different things about damaged bytes, a finding says which said what."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from pyspark_dledger.format import layout
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.key_files import message_starts
from pyspark_dledger.log.verify.findings import Finding
from pyspark_dledger.log.verify.verify_store import verify
from tests.support.damage import write_at
from tests.support.log_writer import Written
from tests.support.stores import bodies, data_files, findings, opened
from tests.support.witnesses.damages import Damage
from tests.support.witnesses.originals import GENERATED, Original

HEADER = layout.ENTRY_HEADER_SIZE
# Places of fields in an index unit and in a ConsumeQueue unit.
UNIT_SIZE, UNIT_TERM, QUEUE_SIZE = 12, 24, 8


def made(kind: str, root: Path, seed: int = 1) -> Original:
    return GENERATED[kind](random.Random(f"{kind}/{seed}"), root)


def middle(original: Original) -> Written:
    return original.entries[len(original.entries) // 2]


def lose_header(damage: Damage, original: Original, entry: Written) -> None:
    file = max((file for file in original.data_files if int(file.name) <= entry.pos), key=lambda file: int(file.name))
    damage.write(file, entry.pos - int(file.name), bytes(HEADER))


def change_unit(damage: Damage, original: Original, entry: Written, field: int, value: bytes) -> None:
    """Change a field of an entry's index unit."""
    at = entry.index * layout.INDEX_UNIT_SIZE
    files = [file for file in original.index_files if file.parent.name == "index" and int(file.name) <= at]
    file = max(files, key=lambda file: int(file.name))
    damage.write(file, at - int(file.name) + field, value)


def change_queue(damage: Damage, original: Original, offset: int, size: int) -> str:
    """Change the size in the ConsumeQueue unit of the message at an offset; returns the queue."""
    for file in original.index_files:
        content = file.read_bytes() if file.parent.name != "index" else b""
        for at in range(0, len(content), layout.CONSUME_QUEUE_UNIT_SIZE):
            if int.from_bytes(content[at : at + 8], "big") == offset and any(content[at : at + 12]):
                damage.write(file, at + QUEUE_SIZE, size.to_bytes(4, "big"))
                return f"ConsumeQueue {file.parent.parent.name}/{file.parent.name}"
    raise AssertionError(offset)


def disagreements(original: Original, engine: str) -> list[Finding]:
    log = open_log(original.path, engine=engine)
    return [finding for finding in verify(log) if finding.code == "witnessesDisagree"]


def test_an_index_unit_and_a_queue_unit_disagree(tmp_path: Path, engine: str) -> None:
    original = made("messages", tmp_path)
    entry = middle(original)
    with Damage() as damage:
        lose_header(damage, original, entry)
        assert disagreements(original, engine) == []
        queue = change_queue(damage, original, entry.pos + HEADER, entry.size - HEADER + 7)
        (found,) = disagreements(original, engine)
    assert found.expected == f"index {entry.index}, term {entry.term}, {entry.size} bytes at {entry.pos} (index unit)"
    assert found.found == f"{entry.size + 7} bytes at {entry.pos} ({queue})"
    assert (found.severity, found.index) == ("warning", entry.index)
    assert found.offset is not None
    assert int(Path(found.file).name) + found.offset == entry.pos


def test_a_damaged_index_unit_does_not_count_against_a_queue(tmp_path: Path, engine: str) -> None:
    original = made("messages", tmp_path)
    entry = middle(original)
    with Damage() as damage:
        lose_header(damage, original, entry)
        change_unit(damage, original, entry, UNIT_SIZE, (entry.size + 9).to_bytes(4, "big"))
        (found,) = disagreements(original, engine)
    assert found.expected is not None
    assert found.expected.startswith(f"{entry.size} bytes at {entry.pos} (ConsumeQueue ")
    assert found.found is not None
    assert f"{entry.size + 9} bytes at {entry.pos} (index unit)" in found.found
    assert "neither" not in found.found


def test_an_index_unit_and_the_next_one_disagree(tmp_path: Path, engine: str) -> None:
    """Without queues only the neighbours of a damaged unit speak against it."""
    original = made("terms", tmp_path)
    entry = middle(original)
    with Damage() as damage:
        for lost in original.entries[entry.index : entry.index + 2]:
            lose_header(damage, original, lost)
        change_unit(damage, original, entry, UNIT_SIZE, (entry.size + 9).to_bytes(4, "big"))
        (found,) = disagreements(original, engine)
    texts = f"{found.expected}, {found.found}"
    assert f"{entry.size + 9} bytes at {entry.pos} (index unit)" in texts
    assert f"index {entry.index + 1}" in texts


def test_a_queue_unit_and_an_index_file_disagree(tmp_path: Path, engine: str) -> None:
    """An IndexFile says that another message begins in what a queue says is one."""
    original = made("commit_log", tmp_path)
    starts = set(message_starts(0, 2**40, tmp_path).tolist())
    pairs = [(one, other) for one, other in pairwise(original.entries) if one.pos + one.size == other.pos]
    entry, following = next(pair for pair in pairs if {pair[0].pos, pair[1].pos} <= starts)
    with Damage() as damage:
        lose_header(damage, original, entry)
        lose_header(damage, original, following)
        change_queue(damage, original, entry.pos, entry.size + 50)
        change_queue(damage, original, following.pos, 10)  # too small for a message: this unit says nothing
        (found,) = disagreements(original, engine)
    assert f"{entry.size + 50} bytes at {entry.pos} (ConsumeQueue" in f"{found.expected}, {found.found}"
    assert f"a message at {following.pos} (IndexFile)" in f"{found.expected}, {found.found}"


@pytest.mark.parametrize("kind", ["terms", "rewritten", "older_terms", "messages", "commit_log"])
@pytest.mark.parametrize("seed", range(3))
def test_damage_of_the_log_alone_is_no_contradiction(tmp_path: Path, kind: str, seed: int) -> None:
    """Units of truncated entries do not count."""
    original = made(kind, tmp_path, seed)
    with Damage() as damage:
        for entry in random.Random(seed).sample(original.entries, 5):
            lose_header(damage, original, entry)
        assert disagreements(original, "native") == []


@pytest.mark.parametrize("flipped", [1, 4, 8])
def test_a_wrong_index_of_the_last_entry_is_an_error_although_it_is_not_committed(tmp_path: Path, flipped: int) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 7))
    store.flush()
    store.save_term(0, None)
    store.update_committed_index(0, 2)
    store.shutdown()
    assert findings(store) == []
    write_at(data_files(store)[-1], 148 + 15, bytes([6 ^ flipped]))
    assert findings(store) == [("indexGap", "dledger-n0/data/00000000000000000748", f"{6 ^ flipped}")]
