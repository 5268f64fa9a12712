"""Comparison of replicas: differences, missing entries, majorities, and possible leaders."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.log.copies import runs, segment_bytes
from pyspark_dledger.log.diff.comparison import Comparison, compare
from pyspark_dledger.log.diff.diff_table import VERDICTS, DiffRow
from pyspark_dledger.log.diff.digests import file_digests
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.tables import store_tables
from tests.support.damage import write_at
from tests.support.generate import Store, mq_message, raw, write_commitlog, write_dledger
from tests.support.golden import Golden
from tests.support.long_runs import examples

FILE = 4096
# Entries of 548 bytes: seven in a file.
BODY = 500

Write = Callable[..., list[Store]]


def payloads(terms: list[int], first: int = 0, group: str = "") -> list[Any]:
    """Bodies that depend on index and term, as on replicas of one group."""
    return [raw(f"{group}{first + n}/{term} ".encode().ljust(BODY, b"x")) for n, term in enumerate(terms)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a replica for each list of terms."""

    def make(*replicas: list[int], committed: int | list[int] = 0, **options: Any) -> list[Store]:
        known = committed if isinstance(committed, list) else [committed] * len(replicas)
        return [
            write_dledger(
                tmp_path / f"replica{n}", payloads(terms), node=f"n{n}", terms=terms, committed=known[n], **options
            )
            for n, terms in enumerate(replicas)
        ]

    return make


def opened(stores: list[Store] | list[Path], engine: str = "auto", **options: Any) -> Log:
    paths = [store.path if isinstance(store, Store) else store for store in stores]
    return open_log(paths[0], replicas=[str(path) for path in paths[1:]], engine=engine, **options)


def diff_rows(log: Log) -> list[DiffRow]:
    """The rows of the table about DLedger logs."""
    parts = pickle.loads(pickle.dumps(store_tables.DIFF.plan(log, log.options)))
    rows = (row for part in parts for row in store_tables.diff_rows(StoreView(*part)))
    return [row for row in rows if isinstance(row, DiffRow)]


Short = tuple[str, int, int, tuple[str, ...]]


def entry_rows(log: Log) -> list[Short]:
    """Verdict, first and last index and nodes of the rows about entries."""
    rows = list(diff_rows(log))
    assert tuple(rows) == compare(log).rows
    return [
        (row.verdict, row.first_index, row.last_index, row.nodes)
        for row in rows
        if row.verdict not in ("committed", "onMajority", "stale")
    ]


def prefix_rows(log: Log) -> list[Short]:
    """Verdict, first and last index and nodes of the rows about the group."""
    return [
        (row.verdict, row.first_index, row.last_index, row.nodes)
        for row in diff_rows(log)
        if row.verdict in ("committed", "onMajority")
    ]


def overwrite(store: Store, index: int, offset: int, data: bytes) -> int:
    """Overwrite bytes of an entry; returns the offset in its file."""
    row = next(row for row in store.rows if row["index"] == index)
    segment = next(segment for segment in store.segments if segment.name == row["segment"])
    place = row["pos"] - segment.base + offset
    write_at(segment.path, place, data)
    return place


def flip(store: Store, index: int, offset: int) -> int:
    row = next(row for row in store.rows if row["index"] == index)
    segment = next(segment for segment in store.segments if segment.name == row["segment"])
    value = Path(segment.path).read_bytes()[row["pos"] - segment.base + offset]
    return overwrite(store, index, offset, bytes([value ^ 1]))


# Goldens


def golden(case_folder: Callable[[str], Path], case: str, nodes: str, engine: str, **options: Any) -> Log:
    folder = case_folder(case)
    return opened([folder / Golden(case, node).folder for node in nodes.split()], engine, **options)


@pytest.mark.parametrize(("case", "changes"), [("raw-three", [300]), ("mq-53-three", [189])])
def test_healthy_replicas_are_the_same(
    case_folder: Callable[[str], Path], engine: str, case: str, changes: list[int]
) -> None:
    log = golden(case_folder, case, "n0 n1 n2", engine)
    nodes = ("n0", "n1", "n2")
    last = Golden(case, "n0").expected().dledger["endIndex"]
    starts = [0, *changes]
    ends = [*(change - 1 for change in changes), last]
    assert entry_rows(log) == [("same", start, end, nodes) for start, end in zip(starts, ends, strict=True)]
    assert [row.terms for row in diff_rows(log)][1:] == [dict.fromkeys(nodes, term) for term in (1, 2)]
    assert prefix_rows(log) == [("committed", 0, last, nodes)]
    comparison = compare(log)
    assert comparison.is_same and comparison.is_proven and comparison.first_divergence is None
    assert [standing.lag_entries for standing in comparison.standings] == [0, 0, 0]


def test_a_deposed_leaders_entries_are_diverged(case_folder: Callable[[str], Path], engine: str) -> None:
    java = Golden("raw-three-diverged", "n0").meta["java"]
    log = golden(case_folder, "raw-three-diverged", "n0 n1 n2", engine)
    begin, end = java["n1"]["committedIndex"] + 1, java["n0"]["endIndex"]
    assert entry_rows(log) == [
        ("same", 0, begin - 1, ("n0", "n1", "n2")),
        ("diverged", begin, end, ("n1",)),
        ("diverged", end + 1, java["n1"]["endIndex"], ("n1",)),
    ]
    rows = list(diff_rows(log))
    assert [row.terms for row in rows[2:]] == [{"n0": 2, "n1": 1, "n2": 2}, {"n1": 1}]
    assert rows[3].first_pos == next(
        entry["pos"] for entry in Golden("raw-three-diverged", "n1").expected().entries if entry["index"] == end + 1
    )
    assert prefix_rows(log) == [("committed", 0, java["n0"]["endIndex"], ("n0", "n2"))]

    comparison = compare(log)
    divergence = comparison.first_divergence
    assert divergence is not None and (divergence.index, divergence.verdict) == (300, "diverged")
    assert divergence.terms == {"n0": 2, "n1": 1, "n2": 2}
    n0, n1, n2 = comparison.standings
    assert (n1.alone.ranges, n1.alone.entries) == (((300, 359),), 60)
    assert n0.alone.entries == n2.alone.entries == 0
    assert (n1.lag_entries, n1.lag_bytes) == (25, java["n0"]["writePos"] - divergence.pos)
    assert (n1.end_index, n1.end_term, n1.committed_index) == (359, 1, 299)
    assert [candidate.node for candidate in comparison.candidates] == ["n0", "n2"]
    (loss,) = comparison.candidates[0].losses
    assert (loss.node, loss.first_index, loss.last_index, loss.entries) == ("n1", 300, 359, 60)
    assert (loss.on_majority, loss.committed) == (False, False)


def test_an_isolated_first_leader_lacks_the_entries_of_the_others(
    case_folder: Callable[[str], Path], engine: str
) -> None:
    log = golden(case_folder, "mq-498-three-diverged", "n0 n1 n2", engine)
    assert entry_rows(log) == [
        ("same", 0, 177, ("n0", "n1", "n2")),
        ("diverged", 178, 197, ("n2",)),
        ("diverged", 198, 347, ("n2",)),
    ]
    assert prefix_rows(log) == [("committed", 0, 347, ("n0", "n1"))]


def test_a_truncated_tail_is_stale(case_folder: Callable[[str], Path], engine: str) -> None:
    java = Golden("raw-truncated-tail", "n1").meta["java"]
    log = golden(case_folder, "raw-truncated-tail", "n0 n1", engine)
    assert entry_rows(log) == [("same", 0, 199, ("n0", "n1")), ("same", 200, 209, ("n0", "n1"))]
    (stale,) = (row for row in diff_rows(log) if row.verdict == "stale")
    # Five old entries of 548 bytes fit into the rest of the file.
    assert stale == DiffRow(210, 214, java["n1"]["writePos"], "stale", ("n1",), {"n1": 1})
    comparison = compare(log)
    assert comparison.standings[1].stale.ranges == ((210, 214),)
    assert comparison.is_same


def test_two_of_three_members_prove_only_their_own_committed_indexes(
    case_folder: Callable[[str], Path], engine: str
) -> None:
    comparison = compare(golden(case_folder, "raw-truncated-tail", "n0 n1", engine, groupSize=3))
    assert (comparison.majority_index, comparison.majority_nodes) == (209, ("n0", "n1"))
    assert comparison.majority_doubt == "expected all 3 members of the group, found 2 replicas"
    assert (comparison.committed_index, comparison.committed_from) == (209, "checkpoint of n0")


def test_positions_of_another_leader_are_not_a_difference(case_folder: Callable[[str], Path], engine: str) -> None:
    log = golden(case_folder, "raw-040-snapshot-keep", "n0 n1 n2", engine)
    assert entry_rows(log) == [("same", 552, 599, ("n0", "n1", "n2"))]
    comparison = compare(log)
    (note,) = comparison.notes
    assert note.startswith("n2 has entry 552 at 82649, n0 at 123311") and "0.4.0" in note
    assert comparison.is_same


def test_a_replica_without_entries_is_behind(case_folder: Callable[[str], Path], engine: str) -> None:
    log = golden(case_folder, "raw-040-snapshot-blank", "n0 n1 n2", engine)
    assert entry_rows(log) == [("behind", 521, 599, ("n2",))]
    standing = compare(log).standings[2]
    assert (standing.begin_index, standing.end_index, standing.lag_entries) == (-1, -1, 79)


# Bytes


@pytest.mark.parametrize(("offset", "byte"), [(48, 48), (548 - 1, 547)])
@pytest.mark.parametrize("node", [0, 2])
def test_a_flipped_bit_of_a_body_without_checksum_is_found(
    write: Write, engine: str, offset: int, byte: int, node: int
) -> None:
    stores = write([1] * 20, [1] * 20, [1] * 20)
    place = flip(stores[node], 9, offset)
    log = opened(stores, engine)
    assert entry_rows(log) == [
        ("same", 0, 8, ("n0", "n1", "n2")),
        ("otherBytes", 9, 9, (f"n{node}",)),
        ("same", 10, 19, ("n0", "n1", "n2")),
    ]
    divergence = compare(log).first_divergence
    assert divergence is not None and (divergence.index, divergence.byte) == (9, byte)
    assert divergence.places[f"n{node}"] == (str(stores[node].path / f"dledger-n{node}/data" / f"{FILE:020}"), place)


@pytest.mark.parametrize("offset", [3, 19, 35, 39, 43])
@pytest.mark.parametrize("node", [0, 2])
def test_a_flipped_bit_of_a_header_is_damage(write: Write, engine: str, offset: int, node: int) -> None:
    """Magic, term, channel, chainCrc and bodyCrc: index units, neighbours and checksums decide."""
    stores = write([1] * 20, [1] * 20)
    # Magic 1 becomes 2, a NOOP.
    place = overwrite(stores[node // 2], 9, 3, b"\2") if offset == 3 else flip(stores[node // 2], 9, offset)
    assert place
    for log in (opened(stores, engine), opened(stores[::-1], engine)):
        (row,) = [row for row in diff_rows(log) if row.verdict == "damaged"]
        intact = f"n{1 - node // 2}"
        assert (row.first_index, row.last_index, row.damaged, row.intact) == (9, 9, (f"n{node // 2}",), ())
        assert row.terms == {intact: 1}
        verdict = compare(log).verdict
        assert (verdict.lost, verdict.unclear_entries.ranges) == ("unknown", ((9, 9),))


def test_three_different_versions_name_all(write: Write, engine: str) -> None:
    stores = write([1] * 20, [1] * 20, [1] * 20)
    flip(stores[1], 9, 60)
    flip(stores[2], 9, 70)
    assert entry_rows(opened(stores, engine))[1] == ("otherBytes", 9, 9, ("n0", "n1", "n2"))
    comparison = compare(opened(stores, engine))
    assert [standing.unclear.ranges for standing in comparison.standings] == [((9, 9),)] * 3
    assert [standing.alone.ranges for standing in comparison.standings] == [()] * 3


def test_bodies_of_other_lengths_differ_at_their_size(tmp_path: Path, engine: str) -> None:
    stores = [
        write_dledger(tmp_path / "a", [raw(b"abc")] * 3, node="n0", check_pos=True),
        write_dledger(tmp_path / "b", [raw(b"abc"), raw(b"abc"), raw(b"abcd")], node="n1"),
    ]
    divergence = compare(opened(stores, engine)).first_divergence
    assert divergence is not None and (divergence.index, divergence.byte) == (2, 7)


# Entries that a replica lacks


def test_a_lost_file_is_damage(write: Write, engine: str) -> None:
    stores = write([1] * 20, [1] * 20, [1] * 20)
    Path(stores[1].segments[1].path).unlink()
    log = opened(stores, engine)
    assert entry_rows(log) == [
        ("same", 0, 6, ("n0", "n1", "n2")),
        ("damaged", 7, 13, ("n1",)),
        ("same", 14, 19, ("n0", "n1", "n2")),
    ]
    assert list(diff_rows(log))[2].terms == {"n0": 1, "n2": 1}
    damaged = compare(log).standings[1].damaged
    assert (damaged.ranges, damaged.entries, damaged.bytes) == (((7, 13),), 7, 7 * 548)


@pytest.mark.parametrize(("index", "offset"), [(9, 0), (9, 8), (9, 12), (9, 24), (9, 44), (7, 8), (8, 15), (1, 15)])
@pytest.mark.parametrize("with_index", [True, False])
def test_a_damaged_header_costs_its_entry(write: Write, engine: str, index: int, offset: int, with_index: bool) -> None:
    stores = write([1] * 20, [1] * 20, [1] * 20, with_index=with_index)
    flip(stores[2], index, offset)
    log = opened(stores, engine)
    expected = [
        ("same", 0, index - 1, ("n0", "n1", "n2")),
        ("damaged", index, index, ("n2",)),
        ("same", index + 1, 19, ("n0", "n1", "n2")),
    ]
    assert entry_rows(log) == expected


def test_damage_that_was_copied_is_damage_on_all(write: Write, engine: str) -> None:
    stores = write([1] * 20, [1] * 20)
    for store in stores:
        flip(store, 9, 15)
    assert entry_rows(opened(stores, engine)) == [
        ("same", 0, 8, ("n0", "n1")),
        ("damaged", 9, 9, ("n0", "n1")),
        ("same", 10, 19, ("n0", "n1")),
    ]


def test_a_damaged_beginning_is_not_expired(write: Write, engine: str) -> None:
    stores = write([1] * 20, [1] * 20, [1] * 20)
    for index in (0, 1):
        overwrite(stores[0], index, 0, b"\xee" * 48)
    assert entry_rows(opened(stores, engine)) == [
        ("damaged", 0, 1, ("n0",)),
        ("same", 2, 19, ("n0", "n1", "n2")),
    ]


def test_an_entry_that_is_damaged_everywhere_has_no_terms(write: Write, engine: str) -> None:
    stores = write([1] * 20, [1] * 20)
    for store in stores:
        overwrite(store, 9, 0, b"\xee" * 48)
    row = next(row for row in diff_rows(opened(stores, engine)) if row.verdict == "damaged")
    assert row == DiffRow(9, 9, None, "damaged", ("n0", "n1"), {}, ("n0", "n1"))


def test_a_replica_that_ends_before_the_others_is_behind(write: Write, engine: str) -> None:
    log = opened(write([1] * 20, [1] * 12, [1] * 20), engine)
    assert entry_rows(log) == [("same", 0, 11, ("n0", "n1", "n2")), ("behind", 12, 19, ("n1",))]
    assert prefix_rows(log) == [("committed", 0, 19, ("n0", "n2"))]
    comparison = compare(log)
    # The log has two blanks of 260 bytes, one of them after index 13.
    assert (comparison.standings[1].lag_entries, comparison.standings[1].lag_bytes) == (8, 8 * 548 + 260)
    assert comparison.candidates[0].losses == () and not comparison.is_same


def test_expired_entries_are_expired(tmp_path: Path, engine: str) -> None:
    stores = [
        write_dledger(tmp_path / "a", payloads([1] * 20), node="n0"),
        write_dledger(tmp_path / "b", payloads([1] * 13, 7), node="n1", base=FILE, first_index=7),
    ]
    log = opened(stores, engine)
    assert entry_rows(log) == [("expired", 0, 6, ("n1",)), ("same", 7, 19, ("n0", "n1"))]
    assert next(iter(diff_rows(log))) == DiffRow(0, 19, 0, "committed", ("n0", "n1"), {"n0": 1, "n1": 1})
    assert compare(log).standings[1].lag_entries == 0


def test_logs_without_a_common_index_compare(tmp_path: Path, engine: str) -> None:
    stores = [
        write_dledger(tmp_path / "a", payloads([1] * 7), node="n0"),
        write_dledger(tmp_path / "b", payloads([1] * 6, 14), node="n1", base=2 * FILE, first_index=14),
    ]
    assert entry_rows(opened(stores, engine)) == [
        ("expired", 0, 6, ("n1",)),
        ("behind", 7, 13, ("n0",)),
        ("behind", 14, 19, ("n0",)),
    ]
    assert compare(opened(stores, engine)).standings[0].lag_entries is None


def test_empty_logs_have_no_rows(tmp_path: Path, engine: str) -> None:
    stores = [write_dledger(tmp_path / name, [], node=f"n{n}") for n, name in enumerate("ab")]
    for n, store in enumerate(stores):
        (store.path / f"dledger-n{n}/data").mkdir(exist_ok=True)
    log = opened(stores, engine)
    assert list(diff_rows(log)) == []
    comparison = compare(log)
    assert comparison.candidates == () and (comparison.majority_index, comparison.committed_index) == (-1, -1)


# The group


def test_figure_8_of_raft_is_on_a_majority_but_not_proven(write: Write, engine: str) -> None:
    stores = write([1] * 5 + [2] * 3, [1] * 5 + [2] * 3, [1] * 5 + [3], committed=4)
    log = opened(stores, engine)
    assert prefix_rows(log) == [("committed", 0, 4, ("n0", "n1", "n2")), ("onMajority", 5, 7, ("n0", "n1"))]
    assert entry_rows(log) == [
        ("same", 0, 4, ("n0", "n1", "n2")),
        ("diverged", 5, 5, ("n0", "n1")),
        ("diverged", 6, 7, ("n0", "n1")),
    ]
    comparison = compare(log)
    assert comparison.majority_doubt == "n2 lacks it and ends with term 3" and not comparison.is_proven
    assert (comparison.foremost, comparison.majority_index, comparison.committed_index) == ("n2", 7, 4)
    elected, *others = comparison.candidates
    assert (elected.node, elected.voters) == ("n2", ("n0", "n1", "n2"))
    assert [(loss.node, loss.entries, loss.on_majority, loss.committed) for loss in elected.losses] == [
        ("n0", 3, True, False),
        ("n1", 3, True, False),
    ]
    # n0 and n1 vote for each other, and n2 truncates its log.
    assert [(one.node, one.voters) for one in others] == [("n0", ("n0", "n1")), ("n1", ("n0", "n1"))]
    assert [loss.node for loss in others[0].losses] == ["n2"]


def test_entries_of_a_lower_term_do_not_disprove_a_majority(write: Write, engine: str) -> None:
    log = opened(write([1] * 5 + [3] * 3, [1] * 5 + [3] * 3, [1] * 5 + [2] * 9), engine)
    assert prefix_rows(log) == [("committed", 0, 7, ("n0", "n1"))]
    assert compare(log).committed_from == "quorum"


def test_too_few_members_have_no_majority_index(write: Write, engine: str) -> None:
    log = opened(write([1] * 5, [1] * 5), engine, groupSize=5)
    comparison = compare(log)
    assert (comparison.majority_index, comparison.majority_nodes) == (-1, ())
    # The three missing members can vote for either.
    assert [candidate.node for candidate in comparison.candidates] == ["n0", "n1"]
    assert prefix_rows(log) == [("committed", 0, 0, ("n0", "n1"))]


def test_contradicting_committed_entries_are_a_row(write: Write, engine: str) -> None:
    stores = write([1, 1, 2, 2], [1, 1, 1, 1, 1], committed=[3, 2])
    log = opened(stores, engine, committedBound="checkpoint")
    with pytest.raises(StoreError, match="both say that it is committed"):
        list(log.scan())
    assert entry_rows(log) == [
        ("same", 0, 1, ("n0", "n1")),
        ("contradicts", 2, 2, ("n1",)),
        ("diverged", 3, 3, ("n1",)),
        ("diverged", 4, 4, ("n1",)),
    ]


def test_damaged_members_prove_and_contradict_nothing(write: Write, engine: str) -> None:
    """n1 lost the file in which the term changes, and its first entry."""
    stores = write(*[[1] * 60 + [2] * 60] * 2, committed=119)
    file = next(row["segment"] for row in stores[1].rows if row["term"] == 2)
    changed = next(Path(segment.path) for segment in stores[1].segments if segment.name == file)
    assert changed.name not in (stores[1].segments[0].name, stores[1].segments[-1].name)
    changed.unlink()
    write_at(stores[1].segments[0].path, 0, bytes(60))
    assert sum(batch.num_rows for batch in opened(stores, engine, committedBound="checkpoint").scan()) == 120


def test_all_entries_of_another_group_have_other_bytes(tmp_path: Path, engine: str) -> None:
    stores = [
        write_dledger(tmp_path / str(n), payloads([1] * 9, group=group), node=f"n{n}")
        for n, group in enumerate(["A", "B", "A"])
    ]
    log = opened(stores, engine)
    with pytest.raises(StoreError, match="another group"):
        list(log.scan())
    assert entry_rows(log) == [("otherBytes", 0, 8, ("n1",))]
    assert prefix_rows(log) == [("committed", 0, 8, ("n0", "n2"))]
    assert compare(log).notes[0] == (
        "n1 has no entry in common with n0, although their indexes overlap: of another group"
    )


def test_the_next_command_names_further_data_folders(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = write([1] * 99, [1] * 99, committed=98)
    (tmp_path / "more").mkdir()
    Path(stores[0].segments[0].path).rename(tmp_path / "more" / stores[0].segments[0].name)
    paths = [f"{stores[0].path},{tmp_path / 'more'}", str(stores[1].path)]
    assert main(["diff", *paths]) == 0
    assert f"\nnext: dledger check {' '.join(paths)}\n" in capsys.readouterr().out


def test_nodes_with_the_same_id_are_named_by_their_folders(tmp_path: Path) -> None:
    stores = [write_dledger(tmp_path / name, payloads([1] * 3), node="n0") for name in "ab"]
    (row,) = [row for row in diff_rows(opened(stores)) if row.verdict == "same"]
    assert row.nodes == ("a", "b")
    stores = [write_dledger(tmp_path / name / "n", payloads([1] * 3), node="n0") for name in "ab"]
    (row,) = [row for row in diff_rows(opened(stores)) if row.verdict == "same"]
    assert row.nodes == (str(tmp_path / "a/n"), str(tmp_path / "b/n"))


def test_a_comparison_needs_two_different_stores(write: Write) -> None:
    (store,) = write([1])
    with pytest.raises(OptionError, match="expected the other replicas, found none"):
        list(diff_rows(open_log(store.path)))
    with pytest.raises(OptionError, match="found this one twice"):
        list(diff_rows(open_log(store.path, replicas=[f"{store.path}/../replica0"])))


def test_every_verdict_is_documented() -> None:
    assert list(VERDICTS) == [
        *("same", "behind", "expired", "filler", "damaged", "unreadable", "otherBytes", "diverged", "contradicts"),
        *("committed", "onMajority", "stale"),
    ]


# Parts


def test_rows_cover_a_lost_file_and_a_changed_byte(write: Write, engine: str) -> None:
    stores = write([1] * 40 + [2] * 10, [1] * 45, [1] * 30)
    Path(stores[1].segments[2].path).unlink()
    flip(stores[2], 5, 100)
    rows = diff_rows(opened(stores, engine))
    assert sum(row.entries for row in rows if row.verdict not in ("committed", "onMajority")) == 50


def simple_verdicts(stores: list[Store], lacking: list[set[int]]) -> dict[int, tuple[frozenset[int], int]]:
    """For each index: the replicas that have it, and its number of versions."""
    found = {}
    for index in range(max((store.rows[-1]["index"] for store in stores if store.rows), default=-1) + 1):
        held = {
            n: (row["term"], row["body"])
            for n, store in enumerate(stores)
            for row in store.rows
            if row["index"] == index and index not in lacking[n]
        }
        found[index] = frozenset(held), len(set(held.values()))
    return found


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_rows_cover_every_index_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Replicas with a common beginning and different ends, and with destroyed headers."""
    root = tmp_path_factory.mktemp("diff")
    common = data.draw(st.integers(1, 12), "common")
    size = data.draw(st.sampled_from([1400, 4096, 65536]), "file size")
    stores, lacking = [], []
    for n in range(data.draw(st.integers(2, 4), "replicas")):
        terms = [1] * common + [data.draw(st.integers(1, 3), "term")] * data.draw(st.integers(0, 12), "tail")
        store = write_dledger(root / str(n), payloads(terms), node=f"n{n}", terms=terms, file_size=size)
        # The last entry stays intact: without it the log would end earlier.
        lost = data.draw(st.sets(st.integers(0, len(terms) - 2), max_size=3), "lost") if len(terms) > 1 else set()
        for index in lost:
            overwrite(store, index, 0, b"\xee" * 48)
        stores.append(store)
        lacking.append(lost)
    expected = simple_verdicts(stores, lacking)
    by_engine = []
    for engine, window in (("native", 2**18), ("native", 700), ("python", 300)):
        with patch.object(segment_bytes, "WINDOW", window), patch.object(runs, "WINDOW", window):
            by_engine.append(diff_rows(opened(stores, engine)))
    assert all(rows == by_engine[0] for rows in by_engine)
    rows = [row for row in by_engine[0] if row.verdict not in ("committed", "onMajority", "stale")]
    assert [index for row in rows for index in range(row.first_index, row.last_index + 1)] == list(
        range(rows[0].first_index, len(expected))
    )
    for row in rows:
        for index in range(row.first_index, row.last_index + 1):
            held, versions = expected[index]
            assert {int(node[1:]) for node in row.terms} == held
            if versions > 1:
                assert row.verdict in ("otherBytes", "diverged", "contradicts")
            else:
                assert (row.verdict == "same") == (len(held) == len(stores))
                assert row.verdict in ("same", "behind", "expired", "damaged", "diverged")
    shutil.rmtree(root)


# Digests


def md5(path: Path, end: int | None = None) -> str:
    return hashlib.md5(path.read_bytes()[:end]).hexdigest()


def test_the_last_files_are_digested(case_folder: Callable[[str], Path], engine: str) -> None:
    log = golden(case_folder, "mq-53-three", "n0 n1 n2", engine)
    assert len(file_digests([log, *log.replicas])) == 10
    digests = file_digests([log, *log.replicas], last=2)
    assert [(one.file, one.start, one.end, one.whole) for one in digests] == [
        (f"{393216:020}", 393216, 524288, True),
        (f"{393216:020}", 393216, 524288 - 13707, False),
        (f"{524288:020}", 524288, 655360, True),
        (f"{524288:020}", 524288, 604558, False),
    ]
    assert all(one.equal and set(one.md5) == {"n0", "n1", "n2"} for one in digests)
    file = case_folder("mq-53-three") / "n1/dledger-n1/data" / f"{393216:020}"
    assert digests[0].md5["n1"] == md5(file) and digests[1].md5["n1"] == md5(file, 131072 - 13707)


def test_old_files_are_compared_as_the_upgrade_guide_requires(tmp_path: Path, engine: str) -> None:
    stores = [
        write_commitlog(tmp_path / name, [mq_message("T", b"%d" % n * 100) for n in range(count)])
        for name, count in (("a", 40), ("b", 40), ("c", 37))
    ]
    last = Path(stores[1].segments[-1].path)
    write_at(last, FILE - 5, b"dirt")
    logs = [open_log(store.path, engine=engine) for store in stores]
    digests = file_digests(logs, last=3)
    a, b, c = "abc"
    assert [one.equal for one in digests if one.file != last.name] == [True] * 4
    whole, written = (one for one in digests if one.file == last.name)
    assert whole.whole and len(set(whole.md5.values())) == 3
    assert not written.whole and written.equal and written.end == stores[2].end
    assert (whole.md5[b], written.md5[c]) == (md5(last), md5(last, stores[2].end - written.start))
    assert whole.md5[a] != whole.md5[b]


def test_a_missing_or_short_file_has_no_digest(write: Write, engine: str) -> None:
    stores = write([1] * 20, [1] * 20)
    Path(stores[0].segments[2].path).unlink()
    os.truncate(stores[1].segments[1].path, 1000)
    log = opened(stores, engine)
    digests = {(one.file, one.whole): one for one in file_digests([log, *log.replicas])}
    lost = digests[f"{2 * FILE:020}", True]
    assert lost.md5["n0"] is None and lost.md5["n1"] is not None and not lost.equal
    assert digests[f"{FILE:020}", True].md5["n1"] is None


def test_nothing_is_written(case_folder: Callable[[str], Path]) -> None:
    """`case_folder` checks every file when the tests end."""
    comparison: Comparison = compare(golden(case_folder, "raw-three-diverged", "n2 n1 n0", "native"))
    assert comparison.rows[0].nodes == ("n2", "n0")
