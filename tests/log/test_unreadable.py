"""What cannot be read is never clean: each file of a broker's store in turn cannot be read."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import DLedgerError, StoreError, UnreadableError
from pyspark_dledger.log import open_log
from pyspark_dledger.log.verify.findings import INFO
from pyspark_dledger.rocketmq.tables import read_table
from tests.support import golden
from tests.support.damage import forbidden, write_at
from tests.support.long_runs import some

# Made for the golden by renaming; a broker has no such file.
_NOT_OF_A_STORE = "abort.bak"


@pytest.fixture(params=["mq-53-single", "mq-oldest", "mq-498-upgrade-killed", "raw-040-snapshot-keep"])
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def unpacked() -> Iterator[Callable[[str], Path]]:
    """Unpacks a golden where every user can read it; pytest's folders are for their owner only."""
    # Another user may not be able to read Python's own files, so what is imported late is imported before.
    pc.equal(pa.array(["a"]), "a")
    "a".encode("utf-16-be")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield lambda case: root_of(golden.unpack(case, Path(folder)))


def root_of(folder: Path) -> Path:
    """The storePathRootDir, or the first node of a group."""
    if (folder / "consumequeue").exists():
        return folder
    return next(folder / name for name in ("n0", "dledger-n0") if (folder / name).exists())


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != _NOT_OF_A_STORE)


@contextmanager
def replaced(file: Path, make: Callable[[Path], None]) -> Iterator[None]:
    """The file, moved away, with something else in its place."""
    with tempfile.TemporaryDirectory() as aside:
        shutil.move(file, Path(aside) / "file")
        make(file)
        try:
            yield
        finally:
            file.unlink() if file.is_symlink() else file.rmdir()
            shutil.move(Path(aside) / "file", file)


def dangling(file: Path) -> Iterator[None]:
    return replaced(file, lambda path: path.symlink_to("nowhere"))


def folder_instead(file: Path) -> Iterator[None]:
    return replaced(file, Path.mkdir)


WAYS = {"no permission": forbidden, "a broken link": dangling, "a folder": folder_instead}


def is_clean(path: Path) -> bool:
    try:
        return all(finding.severity == INFO for finding in dl.open_log(path).findings())
    except StoreError:
        return False


@pytest.mark.slow
def test_a_store_with_an_unreadable_file_is_never_clean(unpacked: Callable[[str], Path], case: str) -> None:
    """A file is unreadable in one way. Files of one kind are adjacent, so a kind has all ways."""
    root = unpacked(case)
    is_clean(root)
    clean = []
    for file, way in some(list(zip(files_of(root), cycle(WAYS))), 24):
        with WAYS[way](file):
            # The data of a snapshot is its state machine's, and may be a folder.
            may_be_folder = way == "a folder" and file.parts[-3:-2] == ("snapshot",) and file.name == "data"
            if is_clean(root) and not may_be_folder:
                clean.append(str(file.relative_to(root)))
    assert clean == []


@pytest.mark.slow
def test_a_store_with_an_unreadable_folder_is_never_clean(unpacked: Callable[[str], Path], case: str) -> None:
    root = unpacked(case)
    is_clean(root)
    clean = []
    for folder in some(sorted(path for path in root.rglob("*") if path.is_dir()), 18):
        with forbidden(folder):
            if is_clean(root):
                clean.append(str(folder.relative_to(root)))
    assert clean == []


def test_the_finding_names_the_file_once(unpacked: Callable[[str], Path]) -> None:
    root = unpacked("mq-53-single")
    for name in ("consumequeue/PayTopic/1/00000000000000002000", "dledger-n0/index/00000000000000000000"):
        with forbidden(root / name):
            found = [finding for finding in dl.open_log(root).findings() if finding.severity != INFO]
        assert [(finding.code, finding.file, finding.found) for finding in found] == [
            ("unreadableFile", name, "Permission denied")
        ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table", ["consumeQueue", "audit", "consumers"])
def test_tables_of_queues_name_what_they_cannot_read(unpacked: Callable[[str], Path], table: str, way: str) -> None:
    root = unpacked("mq-53-single")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"PayTopic@billing":{0:5}}}')
    for file in (root / "consumequeue" / "PayTopic").rglob("0*2000"):
        with WAYS[way](file), pytest.raises(UnreadableError, match=file.name):
            list(read_table(open_log(root), table))


@pytest.mark.parametrize("way", WAYS)
def test_the_tables_of_indexes_name_what_they_cannot_read(unpacked: Callable[[str], Path], way: str) -> None:
    root = unpacked("mq-53-single")
    keys = next(path for path in (root / "index").iterdir() if path.is_file())
    with WAYS[way](keys), pytest.raises(UnreadableError, match=keys.name):
        list(read_table(open_log(root), "indexFile"))
    units = next((root / "dledger-n0" / "index").iterdir())
    with forbidden(units), pytest.raises(UnreadableError, match=units.name):
        list(read_table(open_log(root), "indexUnits"))


def exit_code(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.mark.parametrize("verb", ["verify", "state", "segments", "recovery", "stats"])
def test_no_verb_says_all_is_well(
    unpacked: Callable[[str], Path], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each verb, with a file that it reads."""
    root = unpacked("mq-53-single")
    assert exit_code(verb, root) == 0
    read = {
        "verify": "consumequeue/PayTopic/0/00000000000000000000",
        "state": "dledger-n0/checkpoint",
        "segments": "dledger-n0/data/00000000000000000000",
        "recovery": "dledger-n0/checkpoint",
        "stats": "dledger-n0/data/00000000000000000000",
    }
    with forbidden(root / read[verb]):
        assert exit_code(verb, root) != 0
    printed = capsys.readouterr()
    assert "Permission denied" in printed.out + printed.err


DATA, LAST = "dledger-n0/data/00000000000000262144", "dledger-n0/data/00000000000000524288"
UNITS = "dledger-n0/index/00000000000000000000"
QUEUE = "consumequeue/PayTopic/0/00000000000000000000"


@pytest.mark.parametrize("verb", ["recovery", "audit"])
@pytest.mark.parametrize("name", [DATA, LAST, UNITS, QUEUE, "dledger-n0/checkpoint"])
def test_recovery_and_audit_answer_what_they_can(
    unpacked: Callable[[str], Path], verb: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They name what they cannot read, and nobody is blamed for it."""
    root = unpacked("mq-53-single")
    assert exit_code(verb, root) == exit_code(verb, root, "--json") == 0
    is_read = verb == "recovery" or name != UNITS
    capsys.readouterr()
    with forbidden(root / name):
        assert exit_code(verb, root) == (1 if is_read else 0)
        text = capsys.readouterr().out
        assert exit_code(verb, root, "--json") == (1 if is_read else 0)
        printed = capsys.readouterr()
    question = "what a start does" if verb == "recovery" else "if log and ConsumeQueue agree"
    assert (f"cannot tell {question}: 1 file cannot be read\n  {root / name}: Permission denied" in text) == is_read
    assert (f"{root / name}: Permission denied" in printed.out + printed.err) == is_read
    assert not any(json.loads(line).get("code") for line in printed.out.splitlines())


def test_an_audit_judges_the_queues_that_it_can_read(
    unpacked: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = unpacked("mq-53-single")
    write_at(root / "consumequeue/OrderTopic/0/00000000000000000000", 8, bytes(4))
    assert exit_code("audit", root) == 1
    before = capsys.readouterr().out.splitlines()
    with forbidden(root / QUEUE):
        assert exit_code("audit", root) == 1
    assert capsys.readouterr().out.splitlines()[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize("name", ["commitlog/00000000000000000000", "commitlog/00000000000000393216", "checkpoint"])
def test_a_recovery_of_a_plain_store_says_that_it_cannot_tell(
    unpacked: Callable[[str], Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = unpacked("mq-plain")
    assert exit_code("recovery", root) == 0
    with forbidden(root / name):
        assert exit_code("recovery", root) == 1
        assert f"cannot tell what a start does: 1 file cannot be read\n  {root / name}" in capsys.readouterr().out
        assert exit_code("recovery", root, "--json") == 1


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("00000000000000000000", 0, 206), ("00000000000000131072", 207, 420), ("00000000000000524288", 548, 610)],
)
def test_diff_compares_what_it_can_read(
    unpacked: Callable[[str], Path], engine: str, name: str, first: int, last: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unreadable file of a log is unknown: not equal, not lost, and its member must not start."""
    roots = [unpacked("mq-53-three").parent / node for node in ("n0", "n1", "n2")]
    verb = ["diff", *roots, "-o", f"engine={engine}"]
    assert exit_code(*verb) == exit_code(*verb, "--json") == 0
    file = roots[1] / "dledger-n1" / "data" / name
    capsys.readouterr()
    with forbidden(file):
        assert exit_code(*verb) == 1
        lines = capsys.readouterr().out.splitlines()
        assert exit_code(*verb, "--json") == 1
        printed = capsys.readouterr()
    assert lines[0] == "lost for good: cannot tell if a log was longer: files of n1 cannot be read"
    text = "n1 must not start as it is: cannot tell what it has in files that cannot be read: "
    assert next(line for line in lines if line.startswith("n1 ")).startswith(f"{text}{file}: Permission denied")
    assert f"next: dledger verify {roots[1]} --least warning" in lines
    assert any(line.startswith("  it lists the files that cannot be read") for line in lines)
    rows = [json.loads(line) for line in printed.out.splitlines()]
    unread = [row for row in rows if row["verdict"] == "unreadable"]
    assert (unread[0]["firstIndex"], unread[-1]["lastIndex"]) == (first, last)
    assert all((row["nodes"], row["intact"], row["damaged"]) == (["n1"], ["n0", "n2"], []) for row in unread)
    assert {row["verdict"] for row in rows} <= {"group", "committed", "onMajority", "same", "unreadable"}
    assert str(file) in printed.err


def test_what_only_an_unreadable_file_can_have_is_not_lost(
    unpacked: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The other members have lost it, and no healthy one is named."""
    roots = [unpacked("mq-53-three").parent / node for node in ("n0", "n1", "n2")]
    name = "00000000000000131072"
    for root in (roots[0], roots[2]):
        write_at(root / f"dledger-{root.name}" / "data" / name, 0, bytes(100 * 1024))
    assert exit_code("diff", *roots) == 1
    assert capsys.readouterr().out.startswith("lost for good: nothing\n")
    with forbidden(roots[1] / "dledger-n1" / "data" / name):
        assert exit_code("diff", *roots) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lost for good: cannot tell for ")
    assert all(" must not start as it is" in line for line in lines[1:4])
    assert "intact on" not in "".join(lines[1:4])


@pytest.mark.parametrize("engine", ["native", "python"])
def test_diff_names_a_member_without_its_first_file(
    unpacked: Callable[[str], Path], engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It looks like expiry. A copy is made of a member that has the file."""
    roots = [unpacked("mq-53-three").parent / node for node in ("n0", "n1", "n2")]
    (roots[0] / "dledger-n0" / "data" / f"{0:020}").unlink()
    write_at(roots[2] / "dledger-n2" / "data" / "00000000000000131072", 200, bytes(100))
    assert exit_code("diff", *roots, "-o", f"engine={engine}") == 1
    lines = capsys.readouterr().out.splitlines()
    text = "its log begins at 207, and another one at 0: cannot tell if its first files expired or are lost"
    assert [line.split()[0] for line in lines if text in line] == ["n0"]
    step = next(line for line in lines if line.startswith("next: dledger salvage "))
    assert exit_code(*shlex.split(step)[2:]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if " dledger " in line and line.split()[2] == "0"]
    assert row.startswith("copy ")


@pytest.mark.slow
def test_a_report_is_written_and_names_what_cannot_be_read(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    root = unpacked("mq-53-single")
    for name in ("consumequeue/PayTopic/0/00000000000000000000", "checkpoint", "dledger-n0/checkpoint"):
        with replaced(root / name, Path.mkdir):
            page = tmp_path / f"{name.replace('/', '-')}.html"
            assert exit_code("report", root, "-o", page) == 1
            assert "unreadableFile" in page.read_text()


@pytest.mark.parametrize("way", ["a broken link", "a folder"])
def test_no_verb_takes_a_broken_segment_for_none(unpacked: Callable[[str], Path], way: str) -> None:
    """In the middle it is a gap. At an end, the log would look shorter."""
    root = unpacked("mq-53-single")
    for file in (root / "dledger-n0" / "data").iterdir():
        with WAYS[way](file):
            verbs = ("verify", "state", "stats", "recovery", "lost", "dump", "segments")
            codes = {verb: exit_code(verb, root) for verb in verbs}
            assert 0 not in codes.values(), (file.name, codes)


def test_a_read_that_fails_in_the_middle_is_a_finding(
    unpacked: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk cannot give one page of a file, which opens."""
    root = unpacked("mq-53-single")
    pread = os.pread
    for name in ("consumequeue/PayTopic/0/00000000000000000000", "dledger-n0/index/00000000000000000000"):
        bad = (root / name).stat().st_ino

        def fails(descriptor: int, size: int, offset: int, bad: int = bad) -> bytes:
            if os.fstat(descriptor).st_ino == bad and offset + size > 64 and offset < 4096 and size > 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(descriptor, size, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", fails)
            found = {(finding.code, finding.file) for finding in dl.open_log(root).findings()}
        assert ("unreadableFile", name) in found


def test_an_error_of_a_task_keeps_its_fields() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(UnreadableError("/f", "Input/output error", 20)))
    assert (error.path, error.reason, error.offset) == ("/f", "Input/output error", 20)
    assert isinstance(error, DLedgerError)
