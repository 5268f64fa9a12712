"""Backups of members that serve messages: queues, identities and configuration fit the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.rocketmq.backup import backup, restore
from pyspark_dledger.rocketmq.backup import backup_job as job
from pyspark_dledger.rocketmq.backup.member_copy import read_manifest
from tests.support.message_member import Member, member, quiet
from tests.support.message_nodes import puts, rows


@pytest.fixture(autouse=True)
def _without_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members have no thread that writes checkpoints: queues prove what is committed."""
    monkeypatch.setattr(job, "_CHECKPOINT_SECONDS", 0.0)


def fill(one: Member) -> None:
    """Messages of a topic that expire, and others."""
    one.lead()
    one.put(quiet())
    one.fill()
    one.expire()
    one.put(puts(rows(10, 100), job="last"))


def test_a_running_member_is_backed_up_with_its_queues_and_identities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, target, copied = tmp_path / "member", tmp_path / "backup", job.LogCopy.run
    (root / "config").mkdir(parents=True)
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Quiet@g":{0:40}}}')
    with member(root) as one:
        fill(one)
        begin, end = one.store.ledger_begin_index, one.store.end_pos

        def run(self: Any) -> Any:
            one.put(puts(rows(30, 200), job="meanwhile"))
            return copied(self)

        monkeypatch.setattr(job.LogCopy, "run", run)
        report = backup(root, target)
        monkeypatch.setattr(job.LogCopy, "run", copied)
        last = report.last_index
    assert (report.first_index, report.lacks_state) == (begin, False) and begin >= 40
    manifest = read_manifest(target)
    assert manifest is not None and manifest.end == end
    units = 0
    for file in (target / manifest.state / "root" / "consumequeue").rglob("0" * 20):
        offsets = np.frombuffer(file.read_bytes(), np.dtype([("at", ">i8"), ("size", ">i4"), ("tags", ">i8")]))["at"]
        assert offsets.max() < end
        units += len(offsets)
    assert units >= 70
    restore(target, tmp_path / "again", "n0", new_group="again")
    assert (tmp_path / "again" / "config" / "consumerOffset.json").read_text().startswith('{"offsetTable"')
    with member(tmp_path / "again") as one:
        assert not one.needs_summary and one.store.ledger_end_index == last
        one.lead()
        # Duplicates are known, also of expired messages; what came after the backup is not.
        assert [(put[0], put[2]) for put in one.put(quiet())] == [(index, -1) for index in range(40)]
        assert [put[0] for put in one.put(puts(rows(10, 100), job="last"))] == list(range(last - 9, last + 1))
        assert [put[0] for put in one.put(puts(rows(30, 200), job="meanwhile"))] == list(range(last + 1, last + 31))
        assert [put[2] for put in one.put(quiet(100, 2))] == [40, 41]


def test_a_backup_says_that_it_lacks_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, target = tmp_path / "member", tmp_path / "backup"
    with member(root) as one:
        fill(one)
    (root / "dledger-n0" / "summary").unlink()
    assert main(["backup", str(root), "--to", str(target)]) == 1
    assert "note: the member lacks the state of expired messages" in capsys.readouterr().out
    assert main(["restore", str(target), "--to", str(tmp_path / "new"), "--id", "n0", "--new-group", "x"]) == 1
    with member(tmp_path / "new") as one:
        assert one.needs_summary


def test_what_the_command_line_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, target = tmp_path / "member", tmp_path / "backup"
    with member(root) as one:
        one.lead()
        one.put(quiet())
    assert main(["backup", str(root), "--to", str(target)]) == 0
    assert capsys.readouterr().out.startswith(
        f"backed up n0 to {target}: index 0 to 39, term 1; 1 file, 0 kept, {one.store.end_pos} bytes copied in "
    )
    assert main(["restore", str(target), "--to", str(tmp_path / "new"), "--id", "n1", "--term", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"restored n1 to {tmp_path / 'new'}: index 0 to 39; ")
    assert lines[1] == "it neither votes nor leads before it has an entry of term 7 or later"
    assert main(["restore", str(target), "--to", str(tmp_path / "other"), "--id", "n1"]) == 2
    assert "expected --group and --peers, --term, or --new-group" in capsys.readouterr().err
