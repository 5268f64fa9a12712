"""How a store handles damage: it truncates a torn tail, rejects other damage, and repairs it on request."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from pyspark_dledger.errors import IndexRangeError, StoreError
from pyspark_dledger.format.codec import NOOP, IndexUnit, encode_entry, encode_index_unit
from pyspark_dledger.store.files.node_files import write_members
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from pyspark_dledger.store.store_config import StoreConfig
from tests.interop import damages
from tests.interop.damages import Damage
from tests.support.damage import write_at
from tests.support.golden import fingerprint, unpack
from tests.support.sparse_copy import copy_tree
from tests.support.stores import (
    FILE,
    abandoned,
    bodies,
    content,
    data_files,
    entries,
    findings,
    index_files,
    leaders_entry,
    opened,
)

RECORDED = damages.recorded()
# Damage that no truncation can repair.
ONLY_A_COPY_HELPS = {"last-file-cut", "middle-file-too-long", "delete-middle-data-file"}
REJECTED = ONLY_A_COPY_HELPS | {
    *("magic-last-file-first-entry", "size-last-file-middle-entry", "index-last-entry", "swap-middle-files"),
    *("bodylen-last-file-middle-entry", "term-up-last-file-middle-entry", "index-second-last-file-middle-entry"),
    *("pos-second-last-file-first-entry", "blank-magic-second-last-file", "magic-third-last-file-first-entry"),
    *("magic-third-last-file-middle-entry", "magic-first-file-first-entry", "zero-first-page-last-file"),
    *("delete-last-data-file", "checkpoint-committed-above-end"),
}
COMMITTED = 2999


@pytest.fixture(scope="module")
def raw_single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("raw-single", tmp_path_factory.mktemp("raw-single")) / "dledger-n0"


@pytest.fixture
def damaged(case: Damage, raw_single: Path, tmp_path: Path) -> MmapFileStore:
    """A store on a damaged copy, not started."""
    node = damages.copy_store(raw_single, tmp_path)
    damages.apply(list(case.operations), node)
    return MmapFileStore(StoreConfig(node.parent, self_id=node.name.removeprefix("dledger-")))


def store_files(store: MmapFileStore) -> dict[str, tuple[int, int, int]]:
    node = store.config.node_dir
    return {name: found for name, found in fingerprint(node).items() if name.startswith(("data/", "index/"))}


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case.name)
def test_recorded_damage_opens_or_is_rejected_and_loses_nothing(damaged: MmapFileStore, case: Damage) -> None:
    before = store_files(damaged)
    if case.name in REJECTED:
        with pytest.raises(StoreError, match=r"expected .* found .*: (copy|give up)"):
            damaged.startup()
        assert store_files(damaged) == before
        return
    damaged.startup()
    assert damaged.ledger_end_index >= COMMITTED
    damaged.append_as_leader([b"more"])
    assert damaged.get(damaged.ledger_end_index).body == b"more"
    damaged.shutdown()


@pytest.mark.parametrize(
    "case", [case for case in RECORDED if case.name in REJECTED - ONLY_A_COPY_HELPS], ids=lambda case: case.name
)
def test_the_repair_named_in_an_error_keeps_the_tail_in_a_file(damaged: MmapFileStore) -> None:
    with pytest.raises(StoreError) as rejected:
        damaged.startup()
    named = re.search(r"--truncate-at (\d+)", str(rejected.value))
    assert named is not None
    before = b"".join(content(data_files(damaged)).values())
    config = StoreConfig(damaged.config.base_dir, self_id=damaged.config.self_id, truncate_at=int(named[1]))
    store = MmapFileStore(config)
    store.startup()
    assert (store.ledger_end_index, store.committed_index) == (int(named[1]) - 1,) * 2
    (side,) = store.config.node_dir.glob("cut-*.bin")
    assert side.name == f"cut-{store.end_pos}-0.bin"
    kept = before[: store.end_pos] + side.read_bytes()
    assert kept.ljust(len(before), b"\0") == before
    store.append_as_leader([b"more"] * 100)
    store.shutdown()
    assert findings(store) == []
    with pytest.raises(StoreError, match="expected damage for --truncate-at"):
        store.startup()


def test_repair_before_the_damage(raw_single: Path, tmp_path: Path) -> None:
    """An operator may truncate before the damage, for example where another member ends."""
    node = damages.copy_store(raw_single, tmp_path)
    damages.apply(next(case for case in RECORDED if case.name == "zero-first-page-last-file").operations, node)
    store = MmapFileStore(StoreConfig(node.parent, self_id=node.name.removeprefix("dledger-"), truncate_at=1000))
    store.startup()
    assert (store.ledger_end_index, store.committed_index) == (999, 999)
    store.shutdown()


@pytest.mark.parametrize("index", [2993, 5000])
def test_repair_cannot_be_after_the_damage(raw_single: Path, tmp_path: Path, index: int) -> None:
    node = damages.copy_store(raw_single, tmp_path)
    damages.apply(next(case for case in RECORDED if case.name == "zero-first-page-last-file").operations, node)
    store = MmapFileStore(StoreConfig(node.parent, self_id=node.name.removeprefix("dledger-"), truncate_at=index))
    with pytest.raises(StoreError, match=f"from 0 to 2992 for --truncate-at, found {index}"):
        store.startup()


def test_repair_needs_damage(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12))
    store.shutdown()
    with pytest.raises(
        StoreError, match="expected damage for --truncate-at 5 to repair, found none up to the end at 11"
    ):
        opened(tmp_path, truncate_at=5)
    assert opened(tmp_path).ledger_end_index == 11


def test_lost_data_of_a_committed_log_can_be_given_up(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12))
    store.update_committed_index(0, 11)
    store.shutdown()
    for file in data_files(store):
        file.unlink()
    with pytest.raises(StoreError, match=r"up to the committed index 11, found none.*--truncate-at 0"):
        opened(tmp_path)
    again = opened(tmp_path, truncate_at=0)
    assert again.ledger_end_index == -1
    again.shutdown()
    opened(tmp_path).shutdown()


# Above the committed index


def test_invalid_tail_that_no_unit_proves_is_truncated(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 21))
    store.update_committed_index(0, 20)
    store.flush()
    store.write_checkpoint()
    store.append_as_leader(bodies(21, 12))
    write_at(data_files(store)[4], 2 * 148, b"damage")  # index 22
    with pytest.raises(StoreError, match=r"expected the entry of index 22, found .*, and the index unit "):
        abandoned(store)
    write_at(index_files(store)[2], 2 * 32, bytes(32))
    again = abandoned(store)
    assert (again.ledger_end_index, again.committed_index, len(data_files(again))) == (21, 20, 5)
    (side,) = again.config.node_dir.glob("cut-*.bin")
    assert leaders_entry(23, 0, 4 * FILE + 3 * 148, bodies(23, 1)[0]) in side.read_bytes()
    again.append_as_leader(bodies(22, 9))
    again.shutdown()
    assert findings(again) == []


def test_unreadable_checkpoint_matters_only_for_a_truncation(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 33))
    store.shutdown()
    (tmp_path / "dledger-n0" / "checkpoint").write_text("committedIndex=many\n")
    again = opened(tmp_path)
    assert again.ledger_end_index == 32
    again.shutdown()
    (tmp_path / "dledger-n0" / "checkpoint").write_text("committedIndex=many\n")
    write_at(data_files(store)[4], 2 * 148, b"damage")
    with pytest.raises(StoreError, match="the committed index is unknown"):
        opened(tmp_path)


def test_damage_before_the_tail_is_rejected_even_if_nothing_is_known_to_be_committed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 33))
    store.shutdown()
    write_at(data_files(store)[1], 0, b"damage")
    with pytest.raises(StoreError, match="expected the entry of index 5, found "):
        opened(tmp_path)


# Torn tails


@pytest.fixture
def base(tmp_path: Path) -> MmapFileStore:
    """A killed store of seven entries, flushed and committed."""
    store = opened(tmp_path / "base", data_file_size=64 * 1024)
    store.append_as_leader(bodies(0, 7))
    store.update_committed_index(0, 6)
    store.flush()
    store.write_checkpoint()
    return store


def batch(first: int, count: int) -> list[bytes]:
    """Bodies of 0 to 5000 bytes without zeros."""
    draw = random.Random(first)
    return [(b"%d," % number) * draw.randrange(1000) for number in range(first, first + count)]


@pytest.mark.parametrize("units", [0, 5, 29])
@pytest.mark.parametrize("sectors", [0, 1, 2, 8, 30, 60, 90, 127])
def test_a_killed_write_leaves_whole_entries(base: MmapFileStore, tmp_path: Path, sectors: int, units: int) -> None:
    """The first sectors of a batch are written; index units are written after all data."""
    given = batch(7, 29)
    copy_tree(base.config.base_dir, tmp_path / "copy")
    base.append_as_leader(given)
    start, wrote = 7 * 148, content(data_files(base))
    store = StoreConfig(tmp_path / "copy")
    for name, data in wrote.items():
        end = max(start, start - start % 512 + 512 * sectors) if units == 0 else base.end_pos
        file = store.node_dir / "data" / name
        file.write_bytes(data[: max(end - int(name), 0)].ljust(len(data), b"\0"))
    index = b"".join(content(index_files(base)).values())
    folder = store.node_dir / "index"
    for number in range(-(-(7 + units) // 10)):
        data = index[320 * number : min(320 * (number + 1), 32 * (7 + units))]
        (folder / f"{320 * number:020}").write_bytes(data.ljust(320, b"\0"))
    again = opened(tmp_path / "copy")
    found = [entry.body for entry in entries(again)]
    assert found == (bodies(0, 7) + given)[: len(found)]
    assert len(found) >= 7
    if units:
        assert len(found) == 7 + len(given)
    again.append_as_leader(bodies(50, 50))
    again.shutdown()
    assert findings(again) == []


def test_sectors_lost_with_the_power_leave_whole_entries(base: MmapFileStore, tmp_path: Path) -> None:
    """Any unflushed sectors may be missing; entries are there completely or not at all."""
    given = batch(7, 29)
    base.append_as_leader(given)
    start, wrote = 7 * 148, content(data_files(base))
    shutil.rmtree(base.config.node_dir / "index")
    draw = random.Random(5)
    for attempt in range(60):
        copy = tmp_path / f"copy{attempt}"
        copy_tree(base.config.base_dir, copy)
        lost = draw.sample(range(start // 512 + 1, base.end_pos // 512 + 1), draw.choice((1, 2, 20)))
        for name, data in wrote.items():
            damaged = bytearray(data)
            for sector in lost:
                at = sector * 512 - int(name)
                if 0 <= at < len(data):
                    damaged[at : at + 512] = bytes(512)
            (copy / "dledger-n0" / "data" / name).write_bytes(damaged)
        again = opened(copy)
        found = [entry.body for entry in entries(again)]
        assert found == (bodies(0, 7) + given)[: len(found)]
        assert len(found) >= 7
        again.shutdown()


def test_zeros_in_a_body_are_kept_if_the_entry_has_its_index_unit(base: MmapFileStore) -> None:
    base.append_as_leader([bytes(5000), b"a", bytes(3)])
    again = abandoned(base)
    assert [entry.body for entry in entries(again)][7:] == [bytes(5000), b"a", bytes(3)]
    again.shutdown()


def test_zeros_in_a_durable_body_are_kept_without_an_index(base: MmapFileStore) -> None:
    """An operator deleted the index. Entries that the checkpoint calls durable cannot be torn."""
    base.append_as_leader([bytes(5000), b"a", bytes(3)])
    base.shutdown()
    shutil.rmtree(base.config.node_dir / "index")
    again = opened(base.config.base_dir)
    assert [entry.body for entry in entries(again)][7:] == [bytes(5000), b"a", bytes(3)]
    again.shutdown()


def test_entry_of_zeros_without_unit_and_checkpoint_is_truncated(base: MmapFileStore) -> None:
    """Unless its checksum proves the zeros."""
    base.append_as_leader([bytes(600)])
    pos, entries_of_java = base.end_pos, b""
    for index, body in enumerate((b"whole", bytes(600), b"later"), start=8):
        entries_of_java += encode_entry(index, 0, pos + len(entries_of_java), body)
    base.append_as_follower(entries_of_java, 0)
    shutil.rmtree(base.config.node_dir / "index")
    again = abandoned(base)
    assert [entry.body for entry in entries(again)][7:] == [bytes(600), b"whole"]
    again.shutdown()


def test_blank_without_a_next_file(tmp_path: Path) -> None:
    """Killed between writing the blank and creating the next file."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 4))
    write_at(data_files(store)[0], 4 * 148, b"\xff\xff\xff\xff" + (FILE - 4 * 148).to_bytes(4, "big"))
    again = abandoned(store)
    assert (again.ledger_end_index, again.end_pos) == (3, 4 * 148)
    again.append_as_leader(bodies(4, 9))
    again.shutdown()
    assert findings(again) == []


# The index


@pytest.mark.parametrize("damage", ["zeros", "noise", "short", "foreign size", "gone"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_damaged_index_is_rebuilt_from_the_data(tmp_path: Path, number: int, damage: str) -> None:
    store = opened(tmp_path, data_file_size=4096)
    store.append_as_leader(bodies(0, 38))
    store.update_committed_index(0, 37)
    store.shutdown()
    files = index_files(store)
    before = content(files)
    if damage == "gone":
        files[number].unlink()
    else:
        changed = {"zeros": bytes(320), "noise": b"\1" * 320, "short": bytes(100), "foreign size": bytes(640)}
        files[number].write_bytes(changed[damage])
    again = opened(tmp_path)
    assert [entry.body for entry in entries(again)] == bodies(0, 38)
    again.shutdown()
    assert content(index_files(again)) == before


def test_units_lost_far_before_the_end_are_rebuilt(tmp_path: Path) -> None:
    """A power loss can take blocks of the index of many files, unless a checkpoint says that they are durable."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 38))
    store.flush()
    before, file = content(index_files(store)), index_files(store)[0]
    write_at(file, 7 * 32, bytes(64))
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 38)
    again.shutdown()
    assert content(index_files(again)) == before


def test_damage_far_before_the_end_is_rejected_even_if_units_were_lost(tmp_path: Path) -> None:
    """Only a torn tail is truncated; an operator has to give up earlier entries."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 38))
    store.flush()
    write_at(index_files(store)[0], 7 * 32, bytes(64))
    write_at(data_files(store)[2], 148, b"damage")  # index 11
    with pytest.raises(StoreError, match="expected the entry of index 11"):
        abandoned(store)
    assert opened(tmp_path, truncate_at=11).ledger_end_index == 10


def test_units_after_the_end_are_removed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 33))
    store.flush()
    for file in data_files(store)[4:]:
        file.unlink()
    again = abandoned(store)
    assert again.ledger_end_index == 19
    again.shutdown()
    assert findings(again) == []
    assert [int(file.name) for file in index_files(again)] in ([0, 320], [0, 320, 640])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data/00000000000000000007", "multiple of 748"),
        ("data/00000000000000007480", "expected 0+2244 after 0+1496"),
    ],
)
def test_files_that_do_not_belong_to_the_log(tmp_path: Path, name: str, text: str) -> None:
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 12))
    store.shutdown()
    (store.config.node_dir / name).write_bytes(bytes(FILE))
    with pytest.raises(StoreError, match=text):
        opened(tmp_path)


# Headers and index units


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("at", [3, 7, 15, 22, 23, 31, 47], ids=lambda at: f"byte {at}")
@pytest.mark.parametrize("index", [0, 3, 4, 20, 22], ids=lambda index: f"entry {index}")
def test_flipped_bit_of_a_header_is_no_torn_tail(tmp_path: Path, index: int, at: int, flush: str) -> None:
    """The store does not start, or has every entry; nothing is known to be committed."""
    store = opened(tmp_path, flush=flush)
    store.append_as_leader(bodies(0, 23), 1)
    store.flush()
    before = store_files(store)
    file, offset = data_files(store)[index // 5], index % 5 * 148 + at
    write_at(file, offset, bytes([file.read_bytes()[offset] ^ 4]))
    refusal = ""
    try:
        again = abandoned(store)
    except StoreError as error:
        refusal = str(error)
    if refusal:
        assert f"--truncate-at {index}" in refusal
        changed = store_files(store)
        assert {name for name in before if before[name] != changed[name]} <= {f"data/{file.name}"}
        return
    # Damage before the last files is found when it is read, or a flipped term cannot be right.
    assert again.ledger_end_index == 22
    assert again.ledger_end_term == 1
    again.shutdown()


def test_members_that_may_have_the_entry_are_named(tmp_path: Path) -> None:
    store = opened(tmp_path, flush="sync")
    write_members(store.config.node_dir, ["n0", "n1", "n2"])
    store.append_as_leader(bodies(0, 23))
    store.flush()
    write_at(data_files(store)[4], 148, b"\0\0\0\7")
    with pytest.raises(
        StoreError, match=r"\(dledger-n1 or dledger-n2: 'dledger metadata' shows .* endIndex 21 or more"
    ):
        abandoned(store)


def test_damaged_term_of_a_unit_is_corrected_if_it_cannot_be_right(tmp_path: Path) -> None:
    """Terms never fall; where both terms are possible, the store does not start."""
    store = opened(tmp_path)
    store.append_as_leader(bodies(0, 23), 1)
    store.flush()
    before = content(index_files(store))
    write_at(index_files(store)[1], 2 * 32 + 30, b"\1")
    abandoned(store).shutdown()
    assert content(index_files(store)) == before
    write_at(index_files(store)[2], 2 * 32 + 30, b"\1")
    with pytest.raises(StoreError, match=r"index 22, found .* term=1 .* index unit .* term=257"):
        abandoned(store)


# After a restart of the machine, with flush=async


def java_entries(first: int, count: int, pos: int) -> bytes:
    return b"".join(encode_entry(first + n, 0, pos + 148 * n, bodies(first + n, 1)[0]) for n in range(count))


@pytest.mark.parametrize(("is_rebooted", "last"), [(False, 18), (True, 14)])
def test_entries_after_the_durable_point_need_checksums_after_a_restart(
    tmp_path: Path, is_rebooted: bool, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 to 4 were durable at the checkpoint. Java led when 0 to 4 and 15 to 18 were written, and wrote no checksums."""
    store = opened(tmp_path, data_file_size=64 * 1024)
    store.append_as_follower(java_entries(0, 5, 0), 0)
    store.flush()
    store.write_checkpoint()
    store.append_as_leader(bodies(5, 10))
    store.append_as_follower(java_entries(15, 4, 15 * 148), 0)
    if is_rebooted:
        monkeypatch.setattr("pyspark_dledger.store.files.node_files._BOOT_ID", tmp_path / "boot")
        (tmp_path / "boot").write_text("another\n")
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, last + 1)
    assert len(list(again.config.node_dir.glob("cut-*.bin"))) == is_rebooted
    # What a start found is durable.
    monkeypatch.undo()
    assert abandoned(again).ledger_end_index == last


@pytest.mark.parametrize(("flush", "is_rebooted", "last"), [("sync", True, 8), ("async", False, 8), ("async", True, 4)])
def test_wrong_body_after_the_durable_point(
    tmp_path: Path, flush: str, is_rebooted: bool, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry with its unit was complete, but not with flush=async and a restart of the machine: damaged, it stays."""
    store = opened(tmp_path, data_file_size=64 * 1024, flush=flush)
    store.append_as_leader(bodies(0, 9))
    store.flush()
    write_at(data_files(store)[0], 5 * 148 + 60, bytes(40))
    if is_rebooted:
        monkeypatch.setattr("pyspark_dledger.store.files.node_files._BOOT_ID", tmp_path / "boot")
        (tmp_path / "boot").write_text("another\n")
    again = abandoned(store)
    assert again.ledger_end_index == last
    if last == 8:
        with pytest.raises(StoreError, match="expected the body of index 5 to match its checksum"):
            again.get(5)
    again.shutdown()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_the_only_entry_is_damaged_and_has_its_unit(tmp_path: Path, flush: str) -> None:
    store = opened(tmp_path, flush=flush)
    store.append_as_leader(bodies(0, 1))
    store.flush()
    write_at(data_files(store)[0], 12, b"\1")
    with pytest.raises(StoreError, match=r"expected the entry of index 0.*and its index unit"):
        abandoned(store)


def test_an_index_unit_with_a_position_outside_of_the_log_is_damage_that_a_copy_repairs(tmp_path: Path) -> None:
    store = opened(tmp_path, data_file_size=64 * 1024)
    store.append_as_leader(bodies(0, 9))
    store = abandoned(store)
    copy = bytes(store.read(5, 1).data)
    (index_file,) = (store.config.node_dir / "index").iterdir()
    write_at(index_file, 5 * 32 + 6, b"\1")
    with pytest.raises(StoreError, match="the index unit of 5 is damaged") as raised:
        store.read(5, 1)
    assert not isinstance(raised.value, IndexRangeError)
    store.repair(5, copy)
    assert store.read(5, 1).data == copy


@pytest.mark.parametrize("lost_from", range(32, 40))
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_the_end_of_a_header_that_a_power_loss_took_is_no_entry(
    tmp_path: Path, flush: str, lost_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that says nothing has no body, which would tell."""
    store = opened(tmp_path, data_file_size=64 * 1024, flush=flush)
    store.append_as_leader([bytes([1] * (512 - 48 - lost_from))])
    store.flush()
    store.write_checkpoint()
    store.append_as_leader([b""], control=NOOP)
    write_at(data_files(store)[0], 512, bytes(48 - lost_from))
    monkeypatch.setattr("pyspark_dledger.store.files.node_files._BOOT_ID", tmp_path / "boot")
    (tmp_path / "boot").write_text("another\n")
    again = abandoned(store)
    assert again.ledger_end_index == 0
    again.shutdown()


@pytest.mark.parametrize(("flush", "blank"), [("async", bytes(8)), ("async", b"\1"), ("sync", bytes(8))])
def test_missing_blank_after_the_durable_point(tmp_path: Path, flush: str, blank: bytes) -> None:
    """With flush=async a power loss can take the end of a file, and not the next file."""
    store = opened(tmp_path, flush=flush)
    store.append_as_leader(bodies(0, 9))
    store.flush()
    write_at(data_files(store)[0], 5 * 148, blank)
    if flush == "sync" or any(blank):
        with pytest.raises(StoreError, match="expected the entry of index 5"):
            abandoned(store)
        return
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 5)
    assert len(list(again.config.node_dir.glob("cut-*.bin"))) == 1
    again.shutdown()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_unit_of_an_append_that_was_undone_before_a_blank(tmp_path: Path, flush: str) -> None:
    """Entry 4 did not fit the file, and a power loss took the next file, but not the unit of an earlier entry 4."""
    store = opened(tmp_path, flush=flush)
    store.append_as_leader(bodies(0, 4))
    store.append_as_leader(bodies(4, 1, size=200))
    store.flush()
    write_at(data_files(store)[1], 0, bytes(248))
    write_at(index_files(store)[0], 4 * 32, encode_index_unit(IndexUnit(1, 4 * 148, 148, 4, 0)))
    if flush == "sync":
        with pytest.raises(StoreError, match="expected the entry of index 4, found a blank that no file continues"):
            abandoned(store)
        return
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 4)
    again.shutdown()


def test_units_prove_no_entries_that_an_async_node_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator changes to flush=sync after a power loss that took a part of a Java leader's entry."""
    store = opened(tmp_path, data_file_size=64 * 1024, flush="async")
    store.append_as_follower(java_entries(0, 20, 0), 0)
    store.write_checkpoint()
    write_at(data_files(store)[0], 10 * 148 + 60, bytes(40))
    monkeypatch.setattr("pyspark_dledger.store.files.node_files._BOOT_ID", tmp_path / "boot")
    (tmp_path / "boot").write_text("another\n")
    again = abandoned(store, flush="sync")
    assert again.ledger_end_index == -1
    # Entries of a node with flush=sync that have their units stay, whatever the next node's mode is.
    again.append_as_follower(java_entries(0, 20, 0), 0)
    again.flush()
    (tmp_path / "boot").write_text("a third\n")
    assert abandoned(again, flush="async").ledger_end_index == 19


# After a Java node has run on the store


def java_writes(store: MmapFileStore, name: str = "checkpoint") -> None:
    """Replace a file as Java's ``IOUtils.string2File`` does."""
    file = store.config.node_dir / name
    file.with_name(f"{name}.bak").write_bytes(file.read_bytes())
    file.unlink()
    file.write_text("committedIndex=-1\nendIndex=4\n" if name == "checkpoint" else "voteLeader=n1\ncurrTerm=7\n")


@pytest.mark.parametrize("name", ["checkpoint", "currterm"])
def test_units_prove_no_entries_that_a_java_node_wrote(tmp_path: Path, name: str) -> None:
    """A power loss took bytes of an entry whose unit a Java node wrote before them, after a node with flush=sync."""
    store = opened(tmp_path, data_file_size=64 * 1024, flush="sync")
    store.save_term(7, "n1")
    store.append_as_leader(bodies(0, 9))
    store.flush()
    java_writes(store, name)
    write_at(data_files(store)[0], 5 * 148 + 60, bytes(40))
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 5)
    # From here on the units are those of a node with flush=sync again.
    assert not list(again.config.node_dir.glob("*.bak"))
    again.append_as_leader(bodies(5, 4), 7)
    again.flush()
    write_at(data_files(again)[0], 5 * 148 + 60, bytes(40))
    third = abandoned(again)
    assert third.ledger_end_index == 8
    third.shutdown()


def test_checkpoint_of_a_java_node_vouches_for_no_entries(tmp_path: Path) -> None:
    """It names entries that a power loss can take."""
    store = opened(tmp_path, data_file_size=64 * 1024, flush="sync")
    store.append_as_leader(bodies(0, 4))
    store.shutdown()
    java_writes(store)
    again = opened(tmp_path, data_file_size=64 * 1024, flush="sync")
    assert again.ledger_end_index == 3
    again.shutdown()
