"""Each verb that reads stores, with one file of a log that cannot be read: it names the file and answers the rest."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.format import native_engine, python_engine
from pyspark_dledger.log.copies import segment_bytes
from tests.support import golden
from tests.support.damage import forbidden

OFFSET = 20_000
"""Bytes of a file that can still be read."""

GROUPS = {
    "DLedger": ("mq-53-three", ("n0", "n1", "n2"), "dledger-n1/data"),
    "plain": ("mq-plain", ("a", "b"), "commitlog"),
    "controller": ("mq-53-controller", ("b1", "b2", "b3"), "commitlog"),
}
OF_GROUP = {"diff": (), "lost": (), "find": (), "salvage": ("--plan",), "report": ("--json",)}
VERBS = (*OF_GROUP, "verify", "recovery", "state", "segments", "stats", "audit", "dump")


@pytest.fixture(scope="module")
def unpacked() -> Iterator[Callable[[str], list[Path]]]:
    """The members of a group; the second one has the file that cannot be read. Every user can enter their folders."""
    found: dict[str, list[Path]] = {}
    opened = tempfile.TemporaryDirectory()
    Path(opened.name).chmod(0o755)

    def group(kind: str) -> list[Path]:
        if kind not in found:
            case, names, _ = GROUPS[kind]
            folder = Path(opened.name) / kind
            folder.mkdir()
            store = golden.unpack(case, folder)
            if kind == "plain":
                for name in names:
                    shutil.copytree(store, folder / name)
                found[kind] = [folder / name for name in names]
            else:
                root = store if (store / names[0]).is_dir() else store.parent
                found[kind] = [root / name for name in names]
        return found[kind]

    with opened:
        yield group


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, str], int]:
    """The exit code of each verb on each kind of store while all files could be read."""
    return {}


def data_files(members: list[Path], kind: str) -> list[Path]:
    return sorted((members[1] / GROUPS[kind][2]).glob("0*"))


@contextmanager
def not_permitted(file: Path, _: pytest.MonkeyPatch) -> Iterator[str]:
    with forbidden(file):
        yield os.strerror(errno.EACCES)


@contextmanager
def folder_instead(file: Path, _: pytest.MonkeyPatch) -> Iterator[str]:
    aside = file.parent.parent / "aside"
    shutil.move(file, aside)
    file.mkdir()
    try:
        yield "not a file"
    finally:
        file.rmdir()
        shutil.move(aside, file)


@contextmanager
def failing(file: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The disk gives only the first bytes of the file. A mapping cannot be made to fail: the other engine reads it."""
    pread, bad = os.pread, file.stat().st_ino

    def fails(descriptor: int, size: int, offset: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad and offset + size > OFFSET:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, offset)

    def instead(name: str, native: Any) -> Any:
        def call(first: Any, *more: Any) -> Any:
            path = getattr(first, "segment", first).path
            return getattr(python_engine, name)(first, *more) if path == str(file) else native(first, *more)

        return call

    class FailingFile(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return fails(self.fileno(), size or 0, self.tell())

        def readinto(self, buffer: Any) -> int:
            data = self.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)

    with patch.context() as patched:
        patched.setattr(os, "pread", fails)
        patched.setattr(segment_bytes, "FileIO", FailingFile)
        for name in ("scan", "log_end", "split", "seek", "term_runs", "survey"):
            patched.setattr(native_engine, name, instead(name, getattr(native_engine, name)))
        yield os.strerror(errno.EIO)


WAYS: dict[str, Callable[..., Any]] = {"no permission": not_permitted, "a folder": folder_instead, "EIO": failing}
CASES = [
    ("DLedger", "no permission", "native"),
    ("DLedger", "a folder", "python"),
    ("DLedger", "EIO", "native"),
    ("plain", "EIO", "python"),
    ("controller", "no permission", "native"),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def arguments_of(verb: str, members: list[Path], engine: str) -> list[object]:
    options = ["-o", f"engine={engine}"] if verb not in ("report", "salvage") else ["--option", f"engine={engine}"]
    if verb not in OF_GROUP:
        return [verb, members[1], *options]
    what = ["no-such-key"] if verb == "find" else []
    return [verb, *members, *what, *OF_GROUP[verb], *options]


@pytest.mark.parametrize("verb", [pytest.param(verb, marks=[pytest.mark.slow] * (verb == "report")) for verb in VERBS])
@pytest.mark.parametrize(("kind", "way", "engine"), CASES)
def test_each_verb_names_the_file_and_answers(
    unpacked: Callable[[str], list[Path]],
    seen: dict[tuple[str, str], int],
    kind: str,
    way: str,
    engine: str,
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    members = unpacked(kind)
    files = data_files(members, kind)
    file = files[len(files) // 2]
    if (verb, kind) not in seen:
        # Another user may not be able to read Python's own files, so what is imported late is imported before.
        seen[verb, kind], _ = run(capsys, *arguments_of(verb, members, engine))
    assert seen[verb, kind] == 0 or verb == "find" or kind == "controller"
    with WAYS[way](file, monkeypatch) as reason:
        code, printed = run(capsys, *arguments_of(verb, members, engine))
    if verb == "state" and way == "EIO":
        return  # it does not read there
    # Another member has its entries, so a salvage loses nothing.
    assert code == (seen[verb, kind] if verb == "salvage" else 1), printed
    if code == 2:
        return  # two masters wrote: a salvage needs --log-of
    assert file.name in printed and reason in printed
    if verb in ("lost", "salvage"):
        assert "lost for good: nothing" in printed or "lost for good: cannot tell" in printed
    if verb == "diff":
        assert "lost for good: cannot tell" in printed and "damaged or missing" not in printed
        member = next(line for line in printed.splitlines() if line.startswith(members[1].name))
        assert "must not start as it is: cannot tell what it has in files that cannot be read" in member
