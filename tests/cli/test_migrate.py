"""``dledger migrate`` says what it has done, what would be lost, and what to do next."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from tests.support.damage import flip
from tests.support.sparse_copy import copy_tree

Unpack = Callable[[str], Path]
# Holds the lock of a broker until its standard input ends.
HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_a_finished_migration_lists_settings_and_steps(
    case_folder: Unpack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = case_folder("mq-53-live")
    arguments = ["migrate", str(group), "--to", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main([*arguments, "--for", "slaves"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("migrated from ")
    assert lines[2].endswith("messages in each store; the CommitLogs are equal")
    assert "  enableDLegerCommitLog=false" in lines
    assert [line.split(": ")[1].split(" storePathCommitLog")[0] for line in lines if line.startswith("  of ")] == [
        f"storePathRootDir={tmp_path / name}" for name in "ab"
    ]
    assert f"  1. check the stores, also while they are moved: dledger check {tmp_path / 'a'} {tmp_path / 'b'}" in lines


def test_json_is_the_report(case_folder: Unpack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(case_folder("mq-53-live") / "n0")
    assert main(["migrate", source, "--to", str(tmp_path / "a"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["source"], report["mode"], report["inUse"]) == (source, "controller", [])
    assert report["stores"][0]["brokerConf"]["minInSyncReplicas"] == "1"


def test_a_loss_is_told_before_anything_is_written(
    case_folder: Unpack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_tree(case_folder("mq-53-live") / "n0", tmp_path / "n0")
    flip(sorted((root / "dledger-n0/data").iterdir())[1], 30_000)
    assert main(["migrate", str(root), "--to", str(tmp_path / "a")]) == 1
    found = capsys.readouterr()
    assert "no replica has all of the log intact: nothing was written" in found.err
    assert f"next: dledger salvage {root} --plan" in found.out
    assert not (tmp_path / "a").exists()


def test_while_a_broker_runs_the_committed_log_is_copied(
    case_folder: Unpack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_tree(case_folder("mq-53-live") / "n0", tmp_path / "n0")
    arguments = ["migrate", str(root), "--to", str(tmp_path / "a")]
    command = [sys.executable, "-c", HOLD_LOCK, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout
        broker.stdout.readline()
        assert main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("copied what is committed from ")
        assert lines[-2:] == [
            "in use: n0",
            "next: stop the producers, then all brokers of the group, and run the same command again",
        ]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("migrated from ")
