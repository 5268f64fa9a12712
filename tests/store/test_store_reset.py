"""Power losses and kills during a reset with flush=async. ``make power`` draws more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.store.files import mapped_files
from pyspark_dledger.store.mmap_file_store import MmapFileStore
from tests.support.damage import write_at
from tests.support.stores import FILE, abandoned, bodies, data_files, entries, leaders_entry, opened

(NEW_BODY,) = bodies(100, 1)


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the id of the machine's run."""
    file = tmp_path / "boot"
    file.write_text("one\n")
    monkeypatch.setattr("pyspark_dledger.store.files.node_files._BOOT_ID", file)
    return file


def resetting(folder: Path, *, has_checksum: bool) -> MmapFileStore:
    """A store of ten entries that was reset, and then got entry 100, which is not durable yet."""
    store = opened(folder, flush="async")
    store.append_as_leader(bodies(0, 10))
    store.flush()
    store.write_checkpoint()
    store.reset(100, 20 * FILE)
    make = leaders_entry if has_checksum else encode_entry
    store.append_as_follower(make(100, 0, 20 * FILE, NEW_BODY), 0)
    return store


def check_new_log(store: MmapFileStore) -> None:
    assert (store.ledger_begin_index, store.get(100).body, len(data_files(store))) == (100, NEW_BODY, 1)
    assert not (store.config.node_dir / "reset").exists()
    store.shutdown()


def test_an_empty_log_that_begins_there_already_is_not_reset(tmp_path: Path) -> None:
    """As of each new follower: with a reset, a restart would have a log to undo, and a backup would be refused."""
    store = opened(tmp_path, flush="async")
    store.reset(0, 0)
    store.append_as_follower(leaders_entry(0, 0, 0, NEW_BODY), 0)
    assert not (store.config.node_dir / "reset").exists()
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == [NEW_BODY]
    again.shutdown()


@pytest.mark.parametrize("has_checksum", [True, False])
def test_power_loss_before_the_first_entry_is_durable_undoes_a_reset(
    tmp_path: Path, boot: Path, has_checksum: bool
) -> None:
    """Header and index unit reached the disk, the body did not."""
    store = resetting(tmp_path, has_checksum=has_checksum)
    write_at(data_files(store)[-1], 48, bytes(100))
    boot.write_text("two\n")
    again = abandoned(store)
    assert [entry.body for entry in entries(again)] == bodies(0, 10)
    assert not (again.config.node_dir / "reset").exists()
    again.shutdown()


@pytest.mark.parametrize(("is_power_loss", "has_checksum"), [(False, False), (False, True), (True, True)])
def test_complete_first_entry_finishes_a_reset(
    tmp_path: Path, boot: Path, is_power_loss: bool, has_checksum: bool
) -> None:
    store = resetting(tmp_path, has_checksum=has_checksum)
    if is_power_loss:
        boot.write_text("two\n")
    check_new_log(abandoned(store))


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_power_loss_while_the_old_log_is_deleted_keeps_the_new_one(
    tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    """Only the file `reset` proves that the first entry is durable: it has no checksum."""
    store = resetting(tmp_path, has_checksum=False)

    def lost(files: list[mapped_files.MappedFile]) -> None:
        for file in files[:deleted]:
            file.path.unlink()
        raise OSError("no power")

    monkeypatch.setattr(store._files.data, "delete", lost)
    with pytest.raises(StoreError, match="no power"):
        store.flush()
    boot.write_text("two\n")
    check_new_log(abandoned(store))
