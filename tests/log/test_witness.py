"""What a store's other files know about a damaged segment: units of truncated entries and damaged units never count."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyspark_dledger.format import codec, layout
from pyspark_dledger.format.spec import DLEDGER, Filters, KnownEntries, ScanRequest, Segment
from pyspark_dledger.format.store_file import LocalFile
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.key_files import message_starts
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.plan import plan_read
from pyspark_dledger.log.verify.verify_store import verify
from pyspark_dledger.log.witness import headers, index_units, known_entries
from pyspark_dledger.log.witness.store_witness import StoreWitness
from tests.support import golden
from tests.support.log_writer import DLedgerWriter
from tests.support.long_runs import mostly_slow
from tests.support.witnesses import originals
from tests.support.witnesses.damages import Damage
from tests.support.witnesses.originals import GENERATED, Original
from tests.support.witnesses.runs import CLASSES, Stores

UNIT = layout.INDEX_UNIT_SIZE


def made(kind: str, root: Path, seed: int = 0) -> Original:
    return GENERATED[kind](random.Random(f"{kind}/{seed}"), root)


def known(original: Original) -> dict[int, tuple[int, bool]]:
    """End and wholeness of each known entry of all segments, by position."""
    found = {}
    for segment in open_log(original.path, **original.options).segments:
        assert segment.witness is not None
        pos, end, is_whole = (column.tolist() for column in segment.witness.known_entries(segment))
        assert all(one <= other for one, other in zip(end, pos[1:], strict=False))
        if end and end[-1] == segment.end:
            # What follows the log's end.
            pos, end, is_whole = pos[:-1], end[:-1], is_whole[:-1]
        found |= dict(zip(pos, zip(end, is_whole, strict=True), strict=True))
    return found


def ends(original: Original) -> dict[int, tuple[int, bool]]:
    return {entry.pos: (entry.pos + entry.size, True) for entry in original.entries}


def file_of(original: Original, pos: int) -> Path:
    return max((file for file in original.data_files if int(file.name) <= pos), key=lambda file: int(file.name))


def zero_header(damage: Damage, original: Original, pos: int) -> None:
    file = file_of(original, pos)
    damage.write(file, pos - int(file.name), bytes(layout.ENTRY_HEADER_SIZE))


@pytest.mark.parametrize("kind", GENERATED)
@pytest.mark.parametrize("seed", mostly_slow(range(5), 2, suite=3))
def test_every_entry_of_the_log_is_known_and_no_other(tmp_path: Path, kind: str, seed: int) -> None:
    original = made(kind, tmp_path, seed)
    assert known(original) == ends(original)


@pytest.mark.parametrize("store", golden.ALL, ids=str)
def test_goldens_are_known(store: golden.Golden, case_folder: Callable[[str], Path]) -> None:
    folder = case_folder(store.case).parent
    original = originals.unpacked(store, folder)
    found = known(original)
    outside = {entry.pos for entry in original.entries} - found.keys()
    # Transactions and messages that were not dispatched have no units; an old part can have lost its queues.
    assert not outside or not store.is_raw
    assert {pos: end for pos, end in ends(original).items() if pos in found} == found


@pytest.mark.parametrize("kind", ["terms", "rewritten", "version_040", "messages", "commit_log"])
def test_a_lost_header_is_known_and_not_whole(tmp_path: Path, kind: str) -> None:
    original = made(kind, tmp_path)
    lost = random.Random(1).sample(original.entries, 5)
    with Damage() as damage:
        for entry in lost:
            zero_header(damage, original, entry.pos)
        found = known(original)
    expected = ends(original) | {entry.pos: (entry.pos + entry.size, False) for entry in lost}
    assert found == expected


@pytest.mark.parametrize("seed", mostly_slow(range(20), 5, suite=8))
def test_stale_entries_are_unknown_even_if_the_last_new_ones_are_lost(tmp_path: Path, seed: int) -> None:
    original = made("rewritten", tmp_path, seed)
    last_term = original.entries[-1].term
    with Damage() as damage:
        for entry in original.entries:
            if entry.term == last_term:
                zero_header(damage, original, entry.pos)
        found = known(original)
        assert {pos: end for pos, (end, _) in found.items()} == {pos: end for pos, (end, _) in ends(original).items()}


def hostile_units(original: Original, seed: int) -> list[bytes]:
    """Index files with bytes that an attacker chose."""
    rng = random.Random(seed)
    entry = rng.choice(original.entries)
    extremes = (-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1, entry.pos, entry.pos + 1)
    unit = [
        codec.encode_index_unit(
            codec.IndexUnit(1, rng.choice(extremes), rng.choice((-1, 0, 47, 48, 2**31 - 1)), index, rng.choice((1, 9)))
        )
        for index in range(200)
    ]
    return [b"".join(unit), rng.randbytes(6400), b"\xff" * 6400, b"", unit[0][:31], bytes(33)]


@pytest.mark.parametrize("number", range(6))
def test_hostile_index_files_are_no_witness(tmp_path: Path, number: int) -> None:
    original = made("terms", tmp_path)
    (folder,) = original.index_folders
    for file in original.index_files:
        file.unlink()
    content = hostile_units(original, number)[number]
    (folder / layout.segment_name(0)).write_bytes(content)
    (folder / layout.segment_name(33)).write_bytes(content)
    (folder / layout.segment_name(10**19)).write_bytes(content)
    (folder / layout.segment_name(6400)).mkdir()
    found = known(original)
    assert not any(is_whole for _, is_whole in found.values())
    rows = [row for batch in open_log(original.path).scan(["pos"]) for row in batch.to_pylist()]
    assert [row["pos"] for row in rows] == [entry.pos for entry in original.entries]


@pytest.mark.parametrize("field", ["pos", "size", "index", "term"])
def test_a_damaged_unit_is_judged_by_its_neighbours(tmp_path: Path, field: str) -> None:
    original = made("terms", tmp_path)
    entry = original.entries[len(original.entries) // 2]
    file = max(file for file in original.index_files if int(file.name) <= entry.index * UNIT)
    offset = {"pos": 4, "size": 12, "index": 16, "term": 24}[field]
    with Damage() as damage:
        damage.write(file, entry.index * UNIT - int(file.name) + offset + 1, b"\x01")
        found = known(original)
        others = {pos: end for pos, end in ends(original).items() if pos != entry.pos}
        assert {pos: end for pos, end in found.items() if pos != entry.pos} == others
        assert found.get(entry.pos, (entry.pos + entry.size, True)) == (entry.pos + entry.size, True)
        zero_header(damage, original, entry.pos)
        assert {pos: end for pos, end in known(original).items() if pos != entry.pos} == others


def test_units_of_a_segment_are_found_in_a_large_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a binary search: few units are read."""
    monkeypatch.setattr(index_units, "_PROBE", 8)
    monkeypatch.setattr(index_units, "_CHUNK", 16)
    original = made("terms", tmp_path, 2)
    assert known(original) == ends(original)
    index = index_units.IndexUnits(original.index_folders[0])
    read = []
    real = index_units._intact
    monkeypatch.setattr(index_units, "_intact", lambda block: read.append(len(block.units)) or real(block))
    segment = open_log(original.path).segments[1]
    inside = [entry for entry in original.entries if segment.base <= entry.pos < segment.end]
    assert set(index.of(segment, segment.base).inside.pos.tolist()) == {entry.pos for entry in inside}
    assert sum(read) < len(inside) + 150


@pytest.mark.parametrize("kind", ["messages", "commit_log", "upgraded"])
def test_index_files_know_where_messages_begin(tmp_path: Path, kind: str) -> None:
    """Without queues and index, a message ends where the next one begins."""
    original = made(kind, tmp_path)
    starts = set(message_starts(0, 2**40, tmp_path).tolist())
    own = layout.ENTRY_HEADER_SIZE
    keyed = [e for e in original.entries if (e.pos + own if e.index >= 0 else e.pos) in starts]
    assert len(keyed) > len(original.entries) * 0.9
    lost = keyed[20::40]
    with Damage() as damage:
        for folder in original.index_folders:
            damage.move_away(folder)
        for entry in lost:
            file = file_of(original, entry.pos)
            damage.write(file, entry.pos - int(file.name), bytes(own + 60))
        found = known(original)
    assert found == {e.pos: (e.pos + e.size, e not in lost) for e in keyed}


# Wiring


def test_witnesses_are_plain_values_and_reach_the_tasks(tmp_path: Path) -> None:
    original = made("messages", tmp_path)
    log = open_log(original.path)
    again = log.refreshed()
    assert log.segments == again.segments
    partitions = plan_read(log, ("pos",), ReadOptions(), Filters())
    copies = pickle.loads(pickle.dumps(partitions))
    assert copies == partitions
    for partition in copies:
        for part in partition.ranges:
            assert isinstance(part, ScanRequest)
            assert part.segment.witness == StoreWitness(str(tmp_path / "dledger-n0"), str(tmp_path))
            hash(part.segment)


# Bytes after the log's end that are not zeros, and a blank without entries after it.
NOT_CLEAN = {"raw-truncated-tail.n1", "raw-rewritten-tail.n1", "raw-040-snapshot-blank.n2"}


@pytest.mark.parametrize("store", [store for store in golden.ALL if str(store) not in NOT_CLEAN], ids=str)
def test_undamaged_stores_ask_no_witness(
    store: golden.Golden, case_folder: Callable[[str], Path], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = originals.unpacked(store, case_folder(store.case).parent)
    calls: list[Segment] = []

    def count(segment: Segment, *_: object) -> KnownEntries:
        calls.append(segment)
        raise AssertionError

    monkeypatch.setattr(known_entries, "look_up", count)
    log = open_log(original.path, engine=engine, **original.options)
    rows = sum(batch.num_rows for batch in log.scan(["pos"]))
    assert rows == len(original.entries)
    assert not calls


# Any damage


@pytest.mark.parametrize("kind", CLASSES)
def test_intact_entries_are_read_and_no_others(tmp_path: Path, kind: str) -> None:
    """See `make witnesses`, which tries many more."""
    stores = Stores(tmp_path)
    verdicts = {seed: stores.verdict(kind, "intact", seed) for seed in range(6)}
    assert not {seed: verdict for seed, verdict in verdicts.items() if not verdict.is_right}


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(kind, mode) for kind in CLASSES for mode in ("damaged", "missing")]
    + [(kind, "keys") for kind in ("messages", "commit_log", "upgraded", "mq")],
)
@pytest.mark.parametrize("seed", mostly_slow(range(3), 1, suite=1))
def test_engines_and_splits_agree_on_stores_with_a_damaged_index(
    tmp_path: Path, kind: str, mode: str, seed: int
) -> None:
    assert Stores(tmp_path).verdict(kind, mode, seed).disagreements == []


@pytest.mark.parametrize(
    "name",
    [
        "commit_log/missing/10002",  # messages in the body of a lost one, less than a message after the gap
        "commit_log/missing/10063",  # a damaged header with its own position follows the messages in a body
        "bodies/missing/10026",  # the entries in the last body of a file are too many for the next file
        "bodies/missing/10055",  # the entries in a body lead to no other, the log's next ones do
        "version_040/missing/10007",  # pages that were swapped
        "rewritten/missing/10028",  # the damaged header has the later term
        "rewritten/missing/30097",  # the checkpoint's end is in the gap before stale entries
        "rewritten/damaged/30207",  # an index page is lost: entries after the last unit are no stale ones
        "older_terms/missing/30005",  # the bytes before stale entries of a later term are no damaged header
        "older_terms/missing/30067",  # stale entries of a later term are more than the log's last ones
        "older_terms/damaged/30099",  # a damaged header after the checkpoint's end
        "bodies/missing/70345",  # entries in the last body end where the log ends
        "older_terms/missing/70012",  # a later term has an index after the log's next entry
        "older_terms/intact/90097",  # the last entries of a file are after the checkpoint's end, and their headers lost
        "older_terms/damaged/100160",  # index units of truncated entries that the log's entries contradict
        "older_terms/damaged/30151",  # a stale entry begins where the header of the log's next entry would be
        "older_terms/damaged/200048",  # stale entries follow one with the log's next index at another position
        "older_terms/damaged/200316",  # an entry of the log is in the place of the first stale ones
        "older_terms/missing/200257",  # the checkpoint's end was in a file that a truncation deleted
        "older_terms/missing/200134",  # entries of one term on both sides of a gap at the checkpoint's end
        "older_terms/missing/200281",  # the bytes after the last entry are of a moved sector
        "rewritten/damaged/200225",  # a flipped bit raised the first term of an election
        "rewritten/damaged/200485",  # a way through entries in bodies passes the log's next ones
        "bodies/missing/200344",  # a single damaged entry is in the log's chain
        "terms/missing/200066",  # the first of two entries in the last file has a wrong index
        "version_040/missing/200010",  # most entries of a file were moved
        "version_040/intact/60246",  # pages that were swapped, at the begin of a file
        "commit_log/damaged/200086",  # a unit with zeros instead of an offset
    ],
)
def test_bytes_and_state_decide_without_index_units(tmp_path: Path, name: str) -> None:
    kind, mode, seed = name.split("/")
    assert Stores(tmp_path).verdict(kind, mode, int(seed)).is_right


def test_known_entries_are_arrays_of_the_types_that_the_native_engine_reads(tmp_path: Path) -> None:
    original = made("messages", tmp_path)
    for segment in open_log(original.path).segments:
        assert segment.witness is not None
        found = segment.witness.known_entries(segment)
        assert [column.dtype for column in found] == [np.dtype(np.int64), np.dtype(np.int64), np.dtype(np.bool_)]
        assert all(column.flags.c_contiguous for column in found)


# The end of the log


@pytest.mark.parametrize("number", range(0, 273, 7))
def test_any_lost_header_of_a_rewritten_store_costs_one_entry(tmp_path: Path, engine: str, number: int) -> None:
    """After the end of n1 are whole old entries, the first with an index a few above the end."""
    store = next(store for store in golden.ALL if str(store) == "raw-rewritten-tail.n1")
    original = originals.unpacked(store, tmp_path)
    lost = original.entries[number]
    with Damage() as damage:
        zero_header(damage, original, lost.pos)
        rows = [
            row for batch in open_log(original.path, engine=engine).scan(["kind", "pos"]) for row in batch.to_pylist()
        ]
    assert [row["pos"] for row in rows] == [entry.pos for entry in original.entries]
    assert [row["pos"] for row in rows if row["kind"] == "corrupt"] == [lost.pos]


@pytest.mark.parametrize("committed", [False, True])
def test_a_lost_last_entry_is_a_row_if_it_was_committed(tmp_path: Path, engine: str, committed: bool) -> None:
    """An entry that was not committed can be torn: Java truncates it."""
    original = made("terms", tmp_path)
    last = original.entries[-1]
    index = last.index if committed else last.index - 2
    (tmp_path / "dledger-n0" / "checkpoint").write_text(f"committedIndex={index}\nendIndex={last.index}\n")
    with Damage() as damage:
        zero_header(damage, original, last.pos)
        log = open_log(original.path, engine=engine)
        rows = [row for batch in log.scan(["kind", "pos", "size"]) for row in batch.to_pylist()]
        assert log.state.end_index == last.index - 1
        lost = [(row["pos"], row["size"]) for row in rows if row["kind"] == "corrupt"]
        assert lost == ([(last.pos, last.size)] if committed else [])


def test_entries_that_were_moved_are_not_of_the_log(tmp_path: Path, engine: str) -> None:
    """In a 0.4.0 store a header may have any position: only the index shows that its entry was moved."""
    log = DLedgerWriter(65536, 64)
    for _ in range(40):
        log.append(lambda _: b"x" * 500, 1)
    log.save(tmp_path / "dledger-n0")
    (tmp_path / "dledger-n0" / "snapshot").mkdir()
    original = originals.original_of("moved", tmp_path, log.entries)
    (file,) = original.data_files
    content = file.read_bytes()
    with Damage() as damage:
        damage.write(file, 4096, content[12288:16384])
        damage.write(file, 12288, content[4096:8192])
        intact = damage.intact(original)
        rows = [row for batch in open_log(tmp_path, engine=engine).scan(["kind", "pos"]) for row in batch.to_pylist()]
    found = {row["pos"] for row in rows if row["kind"] != "corrupt"}
    # Of an entry with an intact header only the body can be wrong.
    assert intact <= found <= {entry.pos for entry in original.entries}


def test_a_message_with_a_damaged_structure_is_not_whole(tmp_path: Path) -> None:
    original = made("commit_log", tmp_path)
    message = original.entries[5]
    file = file_of(original, message.pos)
    with Damage() as damage:
        damage.write(file, message.pos - int(file.name) + 84, b"\x7f")  # in the length of its body
        assert known(original)[message.pos] == (message.pos + message.size, False)


@pytest.mark.parametrize("seed", mostly_slow(range(8), 3, suite=4))
def test_entries_of_a_later_term_can_be_stale(tmp_path: Path, engine: str, seed: int) -> None:
    """A leader of term 4 has entries of term 2, which overwrite those of term 3 that only this member had."""
    original = made("older_terms", tmp_path, seed)
    log = open_log(original.path, engine=engine)
    assert log.state.end_index == original.entries[-1].index
    assert [row["pos"] for batch in log.scan(["pos"]) for row in batch.to_pylist()] == [e.pos for e in original.entries]
    # A part of an old entry looks like a torn append.
    assert {finding.code for finding in verify(log) if finding.severity != "info"} <= {"trailingBytes"}


# Cost


def stale_tail(root: Path) -> DLedgerWriter:
    """A log with old bytes after its end, as Java leaves them."""
    log = DLedgerWriter(65536, 1024)
    for term, count, size in ((1, 100, 50), (2, 20, 90)):
        for _ in range(count):
            log.append(lambda _, size=size: b"x" * size, term)  # type: ignore[misc]
    log.truncate(105)
    log.append(lambda _: b"new", 3)
    log.save(root / "dledger-n0", committed=104)
    return log


def test_a_poll_of_an_unchanged_stale_tail_asks_no_witness(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stale_tail(tmp_path)
    log = open_log(tmp_path, engine=engine)
    assert log.state.end_index == 105
    asked: list[int] = []
    real = known_entries.look_up
    monkeypatch.setattr(known_entries, "look_up", lambda *given: asked.append(given[1]) or real(*given))
    for _ in range(3):
        log = log.refreshed()
        assert log.state.end_index == 105
    assert not asked
    last = writer.append(lambda _: b"newer", 3)
    writer.save(tmp_path / "dledger-n0", committed=105)
    log = log.refreshed()
    assert log.state.end_index == last.index
    # Only the units from the last known entry on are read.
    assert asked == [writer.entries[-2].pos]


def test_a_witness_reads_once_for_all_calls_of_a_view(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = made("terms", tmp_path)
    lost = original.entries[len(original.entries) // 2]
    asked: list[str] = []
    real = known_entries.look_up
    monkeypatch.setattr(known_entries, "look_up", lambda *given: asked.append(given[0].path) or real(*given))
    with Damage() as damage:
        zero_header(damage, original, lost.pos)
        log = open_log(original.path, engine=engine)
        for _ in range(3):
            rows = [row for batch in log.scan(["kind", "pos"]) for row in batch.to_pylist()]
            assert [row["pos"] for row in rows if row["kind"] == "corrupt"] == [lost.pos]
        assert asked.count(str(file_of(original, lost.pos))) == 1
    again = open_log(original.path, engine=engine)
    assert all(row["kind"] != "corrupt" for batch in again.scan(["kind"]) for row in batch.to_pylist())


def test_headers_are_the_same_without_the_native_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "00000000000000004096"
    file.write_bytes(random.Random(1).randbytes(9000))
    segment = Segment.local(str(file), file.name, 4096, 8192, DLEDGER)
    ends = [4096 + 8192 - 48, 4096 + 8192 - 47, 2**62]
    pos = np.array([5000, 4096, 4095, 0, *range(12000, 4200, -7), *ends], np.int64)
    expected = headers.read_headers(segment, pos, headers.HEADER_DTYPE)
    missing = replace(segment, file=LocalFile(str(tmp_path / "missing")))
    assert not headers.read_headers(missing, pos, headers.HEADER_DTYPE)["size"].any()
    monkeypatch.setattr(headers, "_gather", None)
    assert headers.read_headers(segment, pos, headers.HEADER_DTYPE).tolist() == expected.tolist()
    assert [int(row["size"] != 0) for row in expected[[0, 1, 2, 3, -3, -2, -1]]] == [1, 1, 0, 0, 1, 0, 0]
