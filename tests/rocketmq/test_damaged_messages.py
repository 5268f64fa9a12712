"""A node whose log has a damaged message neither serves it nor pushes it to another member, and says so."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

import pytest

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.log import open_log
from pyspark_dledger.raft.client import connect
from tests.support.damage import write_at
from tests.support.groups import eventually
from tests.support.message_nodes import MessageNodes, message_nodes, puts, rows

DAMAGED = 9


def write_and_damage(folder: Path) -> None:
    """Three members with 30 messages; that of n0 has a wrong byte in entry 9, and n2 has lost its log."""
    with message_nodes(folder, 3) as group, connect(group="g", peers=group.peers) as client:
        group.ready_leader()
        client.put_messages(puts(rows(30, size=200)))
        eventually(lambda: all(client.status(node).end_index >= 29 for node in group.ids))
    log = open_log(folder / "n0")
    (row,) = [
        row for batch in log.scan(["index", "pos", "body"]) for row in batch.to_pylist() if row["index"] == DAMAGED
    ]
    path = Path(log.ledger_segments[0].path)
    offset = path.read_bytes().index(row["body"], row["pos"])
    write_at(path, offset + 50, b"?")
    shutil.rmtree(folder / "n2" / "dledger-n2" / "data")
    shutil.rmtree(folder / "n2" / "dledger-n2" / "index")
    (folder / "n2" / "dledger-n2" / "checkpoint").unlink(missing_ok=True)
    shutil.rmtree(folder / "n2" / "consumequeue", ignore_errors=True)


def problems(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(str(vars(each)["fields"]) for each in caplog.records if each.message == "problem")


@pytest.mark.slow
def test_a_damaged_message_is_neither_pushed_nor_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    write_and_damage(tmp_path)
    group = MessageNodes(tmp_path, 3)
    try:
        assert group.start("n0", "n2").leader() == "n0"
        with connect(group="g", peers=group.peers, timeout_ms=2000, max_retries=2) as client:
            eventually(lambda: client.status("n2").end_index == DAMAGED - 1)
            assert client.get(DAMAGED - 1).body
            with pytest.raises(DLedgerError, match="DISK_ERROR"):
                client.get(DAMAGED)
            assert client.status("n2").end_index == DAMAGED - 1
        eventually(lambda: re.search("entries for n2 cannot be read: .* index 9 to match its", problems(caplog)))
    finally:
        group.close()
