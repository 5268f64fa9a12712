"""Peers, addresses, settings and the log of a node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_dledger.common.log_records import RateLimitedLog
from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.node import NodeConfig
from pyspark_dledger.raft.node.settings import node_config, read_settings
from pyspark_dledger.raft.peers import Address, format_peers, parse_peers


def test_peers_are_split_at_the_first_dash() -> None:
    peers = parse_peers("n0-10.0.0.1:20911;n1-my-host-1.example:20912; n2-[fe80::1]:20913;")
    expected = {
        "n0": Address("10.0.0.1", 20911),
        "n1": Address("my-host-1.example", 20912),
        "n2": Address("fe80::1", 20913),
    }
    assert peers == expected
    assert format_peers(peers) == "n0-10.0.0.1:20911;n1-my-host-1.example:20912;n2-[fe80::1]:20913"
    assert parse_peers(format_peers(peers)) == peers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "found ''"),
        ("n0", "found 'n0'"),
        ("-host:1", "found '-host:1'"),
        ("n0-host", "found 'host'"),
        ("n0-host:", "found 'host:'"),
        ("n0-host:0", "found 'host:0'"),
        ("n0-host:65536", "found 'host:65536'"),
        ("n0-host:1e3", "found 'host:1e3'"),
        ("n0-:20911", "found ':20911'"),
        ("n0-::1:20911", "in brackets"),
        ("n0-a:1;n0-b:2", "found n0 twice"),
        ("n0-a:1;n1-b:1;n2-a:1", "found a:1 twice"),
    ],
)
def test_malformed_peers_are_rejected(text: str, found: str) -> None:
    with pytest.raises(OptionError, match=re.escape(found)):
        parse_peers(text)


@pytest.mark.parametrize(
    ("own", "listen", "expected"),
    [
        ("127.0.0.1:20911", None, Address("127.0.0.1", 20911)),
        ("localhost:20911", None, Address("localhost", 20911)),
        ("[::1]:20911", None, Address("::1", 20911)),
        ("10.0.0.1:20911", "10.0.0.1", Address("10.0.0.1", 20911)),
        ("10.0.0.1:20911", "127.0.0.1:7", Address("127.0.0.1", 7)),
        ("10.0.0.1:20911", "::", Address("::", 20911)),
        ("10.0.0.1:20911", "[::]", Address("::", 20911)),
        ("10.0.0.1:20911", "[::]:7", Address("::", 7)),
    ],
)
def test_listen_address(own: str, listen: str | None, expected: Address) -> None:
    assert NodeConfig("g", "n0", f"n0-{own}", listen=listen).listen_address() == expected


@pytest.mark.parametrize("own", ["10.0.0.1:20911", "0.0.0.0:20911", "[::]:20911", "host.example:20911"])
def test_the_default_address_must_be_loopback(own: str) -> None:
    with pytest.raises(OptionError, match="allow that with listen"):
        NodeConfig("g", "n0", f"n0-{own}").listen_address()


def test_flush_is_sync_for_a_group_of_one() -> None:
    one, two = "n0-127.0.0.1:1", "n0-127.0.0.1:1;n1-127.0.0.1:2"
    assert NodeConfig("g", "n0", one).flush_mode() == "sync"
    assert NodeConfig("g", "n0", two).flush_mode() == "async"
    assert NodeConfig("g", "n0", two, flush="sync").flush_mode() == "sync"


def test_settings_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "n0.properties"
    path.write_text(
        "# as for Java\ngroup=g\nselfId = n0\npeers: n0-127.0.0.1:1;\\\n  n1-127.0.0.1:2\nstoreBaseDir=/data/a\n"
        "mappedFileSizeForEntryData=64m\nheartBeatTimeIntervalMs=500\npreferredLeaderIds=n0;n1\n"
        "dataStorePath=/a,/b\nflush=sync\nenableBatchPush=false\n"
    )
    config = node_config(read_settings(path))
    assert (config.group, config.self_id, config.flush) == ("g", "n0", "sync")
    assert config.peers == "n0-127.0.0.1:1;n1-127.0.0.1:2"
    assert config.store == Path("/data/a")
    assert config.store_options == {"data_file_size": 64 << 20, "data_dirs": (Path("/a"), Path("/b"))}
    core = {"heart_beat_time_interval_ms": 500, "preferred_leader_ids": ("n0", "n1"), "enable_batch_push": False}
    assert config.core_options == core


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"heartBeatTimeInterval": "1"},
            "unknown setting heartBeatTimeInterval: the nearest is heartBeatTimeIntervalMs",
        ),
        ({"entryCacheSize": "1"}, "config: unknown setting entryCacheSize: docs/node.md lists"),
        (
            {"heartBeatTimeIntervalMs": "soon"},
            "config: heartBeatTimeIntervalMs: expected an integer of at least 1, f",
        ),
        ({"heartBeatTimeIntervalMs": "0"}, "config: heartBeatTimeIntervalMs: expected an integer of at least 1, f"),
        ({"maxPendingRequestsNum": "0"}, "config: maxPendingRequestsNum: expected an integer of at least 1, found"),
        ({"maxConnections": "0"}, "config: maxConnections: expected an integer of at least 1, found '0'"),
        ({"maxWaitAckTimeMs": "0"}, "config: maxWaitAckTimeMs: expected an integer of at least 1, found '0'"),
        ({"deleteWhen": "25"}, "config: deleteWhen: expected hours of the day"),
        ({"mappedFileSizeForEntryData": "1"}, "config: mappedFileSizeForEntryData: expected 56 to"),
        ({"mappedFileSizeForEntryIndex": "33"}, "config: mappedFileSizeForEntryIndex: expected a multiple of 32"),
        ({"minVoteIntervalMs": "9000"}, "config: minVoteIntervalMs and maxVoteIntervalMs: expected a minimum below"),
        ({"preferredLeaderIds": "n0;n7"}, "config: preferredLeaderIds: expected members of n0, found n7"),
        ({"flush": "never"}, "expected sync or async, found 'never'"),
        ({"mappedFileSizeForEntryData": "1x"}, "expected a size in bytes"),
        ({"enableLeaderElector": "false"}, "expected true"),
        ({"group": ""}, "group missing: set group, selfId and peers"),
        ({"storeBaseDir": None}, "storeBaseDir missing"),
        ({"tlsCert": "/a"}, "expected tlsCert, tlsKey and tlsCa"),
    ],
)
def test_invalid_settings_are_rejected(change: dict[str, str | None], text: str) -> None:
    settings = {"group": "g", "selfId": "n0", "peers": "n0-127.0.0.1:1", "storeBaseDir": "/data", **change}
    with pytest.raises(OptionError, match=re.escape(text)):
        node_config({name: value for name, value in settings.items() if value is not None})


def test_a_repair_is_rejected_in_a_file(tmp_path: Path) -> None:
    """It would be repeated at every start."""
    path = tmp_path / "n0.properties"
    path.write_text("truncateAt=7\n")
    with pytest.raises(OptionError, match="found truncateAt: use the flag once"):
        read_settings(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("deleteWhen=99\n", "line 6: deleteWhen: expected hours"),
        ("maxHeartBeatLeak=x\n", "line 6: maxHeartBeatLeak: expected an integer of at least 1, found 'x'"),
        ("\nmaxHeartBeatLeek=3\n", "line 7: unknown setting maxHeartBeatLeek: the nearest is maxHeartBeatLeak"),
        ("maxVoteIntervalMs=1\n", "line 6: minVoteIntervalMs and maxVoteIntervalMs: expected a minimum"),
        ("group=h\n", "line 6: expected each setting once, found group in line 1, too"),
    ],
)
def test_errors_in_a_file_have_its_line(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "n0.properties"
    path.write_text(f"group=g\nselfId=n0\npeers=n0-127.0.0.1:1;\\\n n1-127.0.0.1:2\nstoreBaseDir=/data\n{text}")
    with pytest.raises(OptionError, match=re.escape(f"config {path} {found}")):
        node_config(read_settings(path))


def test_a_node_must_be_among_its_peers() -> None:
    with pytest.raises(OptionError, match="expected this node's id n7 among them, found n0, n1"):
        NodeConfig("g", "n7", "n0-127.0.0.1:1;n1-127.0.0.1:2").members()


def fields_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [record.__dict__["fields"] for record in caplog.records]


def test_at_most_twenty_records_a_second_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RateLimitedLog(lambda: now)
    with caplog.at_level("WARNING", "pyspark_dledger.node"):
        for number in range(50):
            log(30, "noise", found=f"n{number}")
        assert len(caplog.records) == 20
        now = 1.0
        log(30, "noise", found="n49")
    assert fields_of(caplog)[-1] == {"found": "n49", "leftOut": 1}


def test_a_record_that_repeats_is_logged_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = RateLimitedLog(lambda: now)
    with caplog.at_level("ERROR", "pyspark_dledger.node"):
        for term in range(50):
            log(40, "problem", found=f"term {term} cannot be saved")
            log(40, "problem", found=f"entries for n{term % 2} cannot be read")
        assert len(caplog.records) == 3
        caplog.clear()
        now = 10.0
        log(40, "problem", found="term 50 cannot be saved")
        assert fields_of(caplog) == [{"found": "term 50 cannot be saved", "leftOut": 49}]
        caplog.clear()
        for _ in range(24 * 3600 // 5):
            now += 5
            log(40, "problem", found="term 50 cannot be saved")
        assert 140 < len(caplog.records) < 160
        now += 3600
        log(40, "problem", found="term 51 cannot be saved")
        now += 10
        caplog.clear()
        log(40, "problem", found="term 51 cannot be saved")
        assert fields_of(caplog) == [{"found": "term 51 cannot be saved"}]


def test_connections_of_one_host_are_one_text_and_those_of_another_host_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = RateLimitedLog(lambda: 0.0)
    with caplog.at_level("WARNING", "pyspark_dledger.node"):
        for port in range(5000, 5010):
            log(30, "connection refused", address=f"10.0.0.1:{port}", reason="expected a member")
            log(30, "connection refused", address=f"10.0.0.2:{port}", reason="expected a member")
    assert [fields["address"] for fields in fields_of(caplog)] == ["10.0.0.1:5000", "10.0.0.2:5000"]
