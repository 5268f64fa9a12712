"""Known defects: paths, credentials and control characters that output shows, and files that everybody can read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from tests.security.small_store import write_store
from tests.support.message_nodes import MessageNodes

Run = Callable[..., str]
CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; what it prints."""

    def run_here(*arguments: object) -> str:
        capsys.readouterr()
        main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run_here


# Paths and credentials


@pytest.mark.parametrize("form", ["html", "json"])
def test_redacted_report_of_two_stores_has_no_path(tmp_path: Path, run: Run, form: str) -> None:
    stores = [write_store(tmp_path / "customer" / name, count) for name, count in (("first", 20), ("second", 15))]
    page = tmp_path / "page.html"
    text = run("report", *stores, "--redact", *(["--json"] if form == "json" else ["-o", page]))
    if form == "html":
        text = page.read_text()
    assert "redacted:" in text
    assert "customer" not in text, "the report has the folders of the stores"


def test_report_to_a_uri_prints_no_credentials(tmp_path: Path, run: Run) -> None:
    printed = run("report", write_store(tmp_path / "store"), "-o", "s3://USERKEY:USERSECRET@bucket/page.html")
    assert "USERSECRET" not in printed and "USERKEY" not in printed, printed


def test_new_store_is_for_its_user_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with closing(MessageNodes(tmp_path, 1)) as group:
            group.start()
    finally:
        os.umask(before)
    root = group.root("n0")
    open_to_others = [path for path in [root, *root.rglob("*")] if path.stat().st_mode & 0o077]
    assert not open_to_others, f"others can read {len(open_to_others)} files and folders"


# Control characters


@pytest.mark.parametrize(
    "arguments",
    [
        ["diff", "{store}", "{other}"],
        *(["rebuild", what, "{store}", "--dry-run"] for what in ("consumequeue", "index")),
    ],
    ids=["diff", "rebuild-consumequeue", "rebuild-index"],
)
def test_folder_name_controls_no_terminal(tmp_path: Path, run: Run, arguments: list[str]) -> None:
    store, other = write_store(tmp_path / "store\x1b[7m"), write_store(tmp_path / "other")
    printed = run(*(argument.format(store=store, other=other) for argument in arguments))
    assert "store" in printed
    assert not CONTROL.search(printed), f"printed: {printed!r}"


def test_page_has_no_control_characters(tmp_path: Path, run: Run) -> None:
    stores = [write_store(tmp_path / "store\x1b[7m"), write_store(tmp_path / "other")]
    page = tmp_path / "page.html"
    run("report", *stores, "-o", page)
    text = page.read_text()
    assert "store" in text
    assert not CONTROL.search(text), "the page has control characters"


def test_error_about_an_argument_has_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main(["dump", str(tmp_path), "--limit", "\x1b[31m"])
    printed = capsys.readouterr().err
    assert "--limit" in printed
    assert not CONTROL.search(printed), f"printed: {printed!r}"
