"""Where a write to a path goes, and which paths a group of one must not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.spark.sink.launch import SinkStore, find_store
from pyspark_dledger.store.files.node_files import write_current_term, write_members
from tests.support.sinks import Sinks, sinks

__all__ = ["sinks"]


def made(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_store_of_a_new_path_and_of_an_existing_log(tmp_path: Path) -> None:
    assert find_store(str(tmp_path / "new"), None, False) == SinkStore(tmp_path / "new", "n0")
    assert find_store(str(tmp_path / "new"), "n7", False) == SinkStore(tmp_path / "new", "n7")
    root = made(tmp_path, "dledger-n3/data")
    assert find_store(str(root), None, False) == SinkStore(root, "n3")
    assert find_store(str(root / "dledger-n3"), None, False) == SinkStore(root, "n3")
    assert find_store(str(root / "dledger-n3"), "n3", False) == SinkStore(root, "n3")
    (tmp_path / "link").symlink_to(root / "dledger-n3")
    assert find_store(str(tmp_path / "link"), None, False) == SinkStore(root, "n3")


def test_path_of_a_failed_first_write_can_be_written(sinks: Sinks) -> None:
    with pytest.raises(OptionError, match="index_file_size: expected"):
        sinks.start(is_message=True, index_file_size=33)
    assert [path.name for path in sinks.root.iterdir() if path.name.startswith("dledger-")] == []
    assert any(sinks.root.iterdir())
    for is_message in (True, False):
        assert find_store(str(sinks.root), None, is_message) == SinkStore(sinks.root, "n0")


@pytest.mark.parametrize(
    ("names", "self_id", "is_message", "problem"),
    [
        (("dledger-n0", "dledger-n1"), None, True, "found n0, n1: they are members of a group; write to the group"),
        (("dledger-n0", "dledger-n1"), "n0", True, "found n0, n1: they are members of a group"),
        (("dledger-n3",), "n0", True, "expected node n0 .selfId., found n3"),
        (("dledger-n0/snapshot",), None, True, "found a snapshot folder, which only 0.4.0 has"),
        (("photos",), None, True, "expected a store, or an empty or new folder, found photos"),
        (("commitlog",), None, False, "raw entries cannot be written, found commitlog/"),
        (("dledger-n0", "consumequeue"), None, False, "raw entries cannot be written, found consumequeue/"),
    ],
)
def test_path_that_a_group_of_one_must_not_write(
    tmp_path: Path, names: tuple[str, ...], self_id: str | None, is_message: bool, problem: str
) -> None:
    with pytest.raises(StoreError, match=problem):
        find_store(str(made(tmp_path, *names)), self_id, is_message)


def test_vote_shows_a_member_of_a_larger_group(tmp_path: Path) -> None:
    node = made(tmp_path, "dledger-n0/data") / "dledger-n0"
    write_current_term(node, 3, "n0")
    assert find_store(str(tmp_path), None, False).self_id == "n0"
    write_current_term(node, 4, "n2")
    with pytest.raises(StoreError, match="found that n0 voted for n2: it is a member of a larger group"):
        find_store(str(tmp_path), None, False)


def test_members_file_shows_a_member_of_a_larger_group(tmp_path: Path) -> None:
    """A leader voted for itself, as a group of one does."""
    root = made(tmp_path, "dledger-n0/data")
    write_members(root / "dledger-n0", ["n0"])
    assert find_store(str(root), None, False) == SinkStore(root, "n0")
    write_members(root / "dledger-n0", ["n0", "n1", "n2"])
    with pytest.raises(StoreError, match="found that n0 is a member of the group n0, n1, n2, whose log"):
        find_store(str(root), None, False)


def test_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="expected a folder, found a file"):
        find_store(str(tmp_path / "file"), None, False)
