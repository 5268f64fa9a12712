"""The verbs append, get, metadata and transfer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.messages import Role, StatusRequest, StatusResponse, TransferRequest, TransferResponse
from tests.support.fake_members import ACK, DISCONNECTED, FakeMember, appended_but, fakes, reject
from tests.support.groups import HOST, eventually, free_ports, nodes

Verb = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Runs a verb with ``--json``. Returns the exit code, the rows, and standard error."""

    def run_here(*arguments: object) -> tuple[int, list[Any], str]:
        capsys.readouterr()
        code = main([*map(str, arguments), "--json"])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err

    return run_here


def test_verbs_of_a_group(run: Verb, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\r\ntwo\n\nfour")
    with nodes(tmp_path, 3) as group:
        group.leader()
        given = ("--group", "g", "--peers", group.peers)
        code, rows, _ = run("append", *given, "a", "é")
        term = rows[0]["term"]
        assert (code, rows) == (0, [{"index": 0, "pos": 0, "term": term}, {"index": 1, "pos": 49, "term": term}])
        assert [row["index"] for row in run("append", *given, "--file", lines)[1]] == [2]
        assert [row["index"] for row in run("append", *given, "b", "--file", lines, "--lines")[1]] == [3, 4, 5, 6, 7]
        code, rows, _ = run("get", *given, "--index", 1, "--body", "text")
        assert (code, rows) == (0, [{"index": 1, "term": term, "pos": 49, "magic": 1, "body": "é"}])
        assert run("get", *given, "--index", 2)[1][0]["body"] == "b25lDQp0d28KCmZvdXI="
        assert [run("get", *given, "--index", n, "--body", "text")[1][0]["body"] for n in (4, 6, 7)] == [
            "one",
            "",
            "four",
        ]
        assert "body" not in run("get", *given, "--index", 2, "--body", "none")[1][0]
        code, rows, err = run("get", *given, "--index", 8)
        assert (code, rows) == (1, []) and "index 8 is not in the log" in err
        code, [row], _ = run("metadata", *given)
        assert code == 0 and row["group"] == "g" and sorted(row["peers"]) == ["n0", "n1", "n2"]
        assert {member["role"] for member in row["members"]} == {"LEADER", "FOLLOWER"}
        assert {member["endIndex"] for member in row["members"]} == {7}
        target = next(node_id for node_id in group.ids if node_id != row["leaderId"])
        assert run("transfer", *given, "--to", target)[:2] == (0, [{"group": "g", "leaderId": target}])
        assert main(["get", *given, "--index", "0"]) == 0
        assert capsys.readouterr().out == f"index=0 term={term} pos=0 magic=1 body=a\n"
        assert main(["metadata", *given]) == 0
        assert "n0  127.0.0.1:" in capsys.readouterr().out


def test_failed_verbs(run: Verb) -> None:
    fake = FakeMember(script=deque([ACK, appended_but(502), reject(ResponseCode.DISK_FULL)]))
    fake.responses[TransferRequest] = lambda _: TransferResponse(code=ResponseCode.FALL_BEHIND_TOO_MUCH)
    fake.responses[StatusRequest] = lambda _: StatusResponse(term=1)
    with fakes(fake) as peers:
        given = ("--group", "g", "--peers", peers, "--max-retries", 0, "--timeout-ms", 500)
        assert run("append", *given, "x")[:2] == (0, [{"index": 0, "pos": 0, "term": 1}])
        code, rows, err = run("append", *given, "x")
        assert (code, rows) == (1, []) and "it may be in the log, now or later, or never" in err
        code, rows, err = run("append", *given, "x")
        assert (code, rows) == (2, []) and "DISK_FULL (415): make room on its disk" in err
        code, _, err = run("transfer", *given, "--to", "n1")
        assert code == 2 and "to transfer to, found 'n1'" in err
        fake.peers["n1"] = f"{HOST}:{free_ports(1)[0]}"
        code, _, err = run("transfer", *given, "--to", "n1")
        assert code == 2 and "FALL_BEHIND_TOO_MUCH (417)" in err
        code, [row], _ = run("metadata", *given)
        assert code == 0 and "cannot reach n1" in row["members"][1]["problem"]
        for arguments, text in [
            (("append", *given), "expected bodies to append, or --file, found neither"),
            (("append", *given, "--lines", "x"), "--lines needs --file"),
            (("append", *given, "--tls-ca", "x", "y"), "expected --tls-cert, --tls-key and --tls-ca together"),
            (("get", *given[:2], "--peers", "nonsense", "--index", 1), "expected ID-HOST:PORT"),
            (("append", *given, "--file", "/nonexistent"), "No such file"),
        ]:
            code, rows, err = run(*arguments)
            assert (code, rows) == (2, []) and text in err


def test_failed_batch_prints_acknowledged_entries(run: Verb, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"x" * 600_000 + b"\n" + b"y" * 600_000)
    fake = FakeMember(script=deque([ACK, DISCONNECTED]))
    with fakes(fake) as peers:
        code, rows, err = run("append", "--group", "g", "--peers", peers, "--file", lines, "--lines")
    assert (code, rows) == (1, [{"index": 0, "pos": 0, "term": 1}])
    assert "of 2 entries 1 were appended, 1 have an unknown outcome" in err


def test_unknown_transfer_exits_1(run: Verb) -> None:
    fake = FakeMember(peers={"n0": f"{HOST}:1", "n1": f"{HOST}:1"})
    fake.responses[TransferRequest] = lambda _: TransferResponse(code=ResponseCode.NETWORK_ERROR)
    fake.responses[StatusRequest] = lambda _: StatusResponse(term=1, role=Role.LEADER, problem="is stuck")
    with fakes(fake) as peers:
        given = ("--group", "g", "--peers", peers)
        code, rows, err = run("transfer", *given, "--to", "n1")
        assert (code, rows) == (1, []) and "look at the leader with metadata" in err
        assert run("metadata", *given)[1][0]["members"][0]["problem"] == "is stuck"


def command_line(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pyspark_dledger", *map(str, arguments)]


@pytest.mark.parametrize("is_full", [False, True], ids=["broken", "full"])
def test_append_reports_entries_that_were_not_printed(is_full: bool) -> None:
    fake = FakeMember()
    with fakes(fake) as peers:
        line = command_line("append", "--group", "g", "--peers", peers, "--file", "-", "--lines")
        read_end, write_end = os.pipe()
        os.close(read_end)
        if is_full:
            os.close(write_end)
        with open("/dev/full" if is_full else write_end, "wb") as output:
            result = subprocess.run(
                line, input=b"x\n" * 250_000, stdout=output, stderr=subprocess.PIPE, timeout=60, check=False
            )
    # It ends after the first 100,000, whose results were not printed.
    assert result.returncode == 1 and len(fake.log.bodies) == 100_000
    assert b": 100000 entries were appended, up to index 99999, and not all of them printed" in result.stderr


def test_interrupted_append_ends_at_once() -> None:
    fake = FakeMember(leader_id=None)
    with fakes(fake) as peers:
        line = command_line("append", "--group", "g", "--peers", peers, "--timeout-ms", "30000", "x")
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            eventually(lambda: fake.connections)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            sent_at = time.monotonic()
            printed, err = process.communicate(timeout=30)
    assert time.monotonic() - sent_at < 20
    assert (process.returncode, printed) == (130, b"")
    assert b"interrupted: 0 entries were appended; 1 more may be in the log" in err and b"Task" not in err
