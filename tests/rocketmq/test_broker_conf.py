"""A broker.conf as settings of a node, like RocketMQ's constructor of ``DLedgerCommitLog``."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from pyspark_dledger.cli.verbs.members import _message_settings
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.message import encode_host
from pyspark_dledger.raft.node import NodeConfig
from pyspark_dledger.raft.node.settings import NodeSettings, node_config
from pyspark_dledger.rocketmq.broker.broker_conf import BrokerConf, broker_id, read_broker_conf
from pyspark_dledger.store import StoreConfig
from tests.support.groups import Served, free_ports

MINIMAL = """
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30911
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
dLegerSelfId=n1
"""
MORE = """
storePathRootDir=/data/rmq
storePathCommitLog=/data/rmq/commitlog
storePathDLedgerCommitLog=/disk1,/disk2
readOnlyCommitLogStorePaths=/disk3
mappedFileSizeCommitLog=67108864
deleteWhen=04;16
fileReservedTime=48
cleanFileForciblyEnable=false
preferredLeaderIds=n0;n2
enableBatchPush=true
maxMessageSize=65536
diskMaxUsedSpaceRatio=88
brokerIP1=10.1.2.3
mappedFileSizeConsumeQueue=600010
maxHashSlotNum=50
maxIndexNum=200
messageIndexEnable=false
messageDelayLevel=1s 2m 3h
sendMessageThreadPoolNums=16
"""


def conf_of(tmp_path: Path, text: str) -> BrokerConf:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return read_broker_conf(path, lambda: Path("/home/of"))


def config_of(conf: BrokerConf) -> NodeConfig:
    settings = NodeSettings()
    for name, setting in conf.settings.items():
        settings.set(name, setting.text, setting.source)
    return node_config(settings)


def test_missing_settings_have_rocketmqs_defaults(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, MINIMAL)
    config = config_of(conf)
    assert (config.group, config.self_id, config.store) == ("RaftNode00", "n1", Path("/home/of/store"))
    assert config.peers == "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913"
    assert config.store_options == {
        "enable_disk_force_clean": True,
        "delete_when": "04",
        "file_reserved_hours": 73,
        "disk_space_ratio_to_check_expired": 0.75,
    }
    assert config.core_options == {"enable_batch_push": False}
    assert (conf.broker_id, conf.store_host, conf.max_message_size) == (2, None, 4 << 20)
    assert conf.dispatch.units_per_file == 300_000
    assert conf.dispatch.clean.file_reserved_hours == 72
    assert conf.ignored == ("brokerClusterName", "brokerName")


def test_all_settings_with_an_effect(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, MINIMAL + MORE)
    config = config_of(conf)
    assert config.store == Path("/data/rmq")
    assert config.store_options == {
        "enable_disk_force_clean": False,
        "data_dirs": (Path("/disk1"), Path("/disk2")),
        "read_only_data_dirs": (Path("/disk3"),),
        "data_file_size": 64 << 20,
        "delete_when": "04;16",
        "file_reserved_hours": 49,
        "disk_space_ratio_to_check_expired": 0.88,
    }
    assert config.core_options == {"preferred_leader_ids": ("n0", "n2"), "enable_batch_push": True}
    assert conf.store_host == encode_host("10.1.2.3", 30911)
    assert conf.max_message_size == 65536
    dispatch = conf.dispatch
    # RocketMQ rounds a queue's file up to whole units.
    assert (dispatch.units_per_file, dispatch.hash_slots, dispatch.index_units) == (30001, 50, 200)
    assert (dispatch.has_index, dispatch.delays_ms) == (False, (1000, 120_000, 10_800_000))
    assert (dispatch.clean.delete_when, dispatch.clean.enable_disk_force_clean) == ("04;16", False)
    assert "sendMessageThreadPoolNums" in conf.ignored


def test_older_spellings(tmp_path: Path) -> None:
    text = MINIMAL + "mapedFileSizeCommitLog=1048576\npreferredLeaderId=n2\nmapedFileSizeConsumeQueue=2000\n"
    conf = conf_of(tmp_path, text)
    assert conf.settings["mappedFileSizeForEntryData"].text == "1048576"
    assert conf.settings["preferredLeaderIds"].text == "n2"
    assert conf.dispatch.units_per_file == 100


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("enableDLegerCommitLog=true", "enableDLegerCommitLog=false"), "line 5: enableDLegerCommitLog: expected true"),
        (("enableDLegerCommitLog=true", ""), "expected true, of a broker in DLedger mode, found nothing"),
        (("dLegerGroup=RaftNode00", ""), "expected dLegerGroup, dLegerSelfId and dLegerPeers, found no dLegerGroup"),
        (("dLegerSelfId=n1", ""), "found no dLegerSelfId"),
        (("dLegerSelfId=n1", "dLegerSelfId=node"), "line 8: dLegerSelfId: expected a letter and a number"),
        (("listenPort=30911", "listenPort=x"), "line 4: listenPort: expected a whole number, at least 1, found 'x'"),
        (("listenPort=30911", "fileReservedTime=1h"), "fileReservedTime: expected a whole number"),
        (("listenPort=30911", "cleanFileForciblyEnable=on"), "cleanFileForciblyEnable: expected true or false"),
        (("listenPort=30911", "brokerIP1=host.example"), "brokerIP1: expected an IP address"),
        (("listenPort=30911", "messageDelayLevel=1s 5"), "messageDelayLevel: expected times such as 1s 5s"),
        (("listenPort=30911", "mappedFileSizeConsumeQueue=0"), "mappedFileSizeConsumeQueue: expected a whole number"),
        (("listenPort=30911", "deleteWhen=25"), "line 4: deleteWhen: expected hours of the day"),
        (("listenPort=30911", "x=\\u12"), "expected key=value lines"),
    ],
)
def test_wrong_files_are_rejected_with_their_line(tmp_path: Path, change: tuple[str, str], text: str) -> None:
    assert change[0] in MINIMAL
    with pytest.raises(OptionError) as error:
        conf_of(tmp_path, MINIMAL.replace(*change))
    assert text in str(error.value)


def test_a_wrong_value_is_rejected_with_the_line_of_the_broker_conf(tmp_path: Path) -> None:
    conf = conf_of(tmp_path, MINIMAL + "mappedFileSizeCommitLog=1\n")
    with pytest.raises(OptionError, match="line 9: mappedFileSizeForEntryData: expected 56 to"):
        config_of(conf)


@pytest.mark.parametrize(("self_id", "expected"), [("n0", 1), ("n1", 2), ("x41", 42)])
def test_broker_ids(self_id: str, expected: int) -> None:
    assert broker_id(self_id) == expected


def test_dispatch_uses_the_stores_engine(tmp_path: Path) -> None:
    store = StoreConfig(tmp_path, engine="python")
    given = Namespace(producer_id_expiry_ms=None, accept_lost_state=False)
    for conf in (None, conf_of(tmp_path, MINIMAL)):
        settings = _message_settings(store, given, conf)
        assert (settings.engine, settings.dispatch.engine) == ("python", "python")


def test_serve_takes_a_broker_conf(tmp_path: Path) -> None:
    """Flags for store and port override the file."""
    (port,) = free_ports(1)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "enableDLegerCommitLog=true\ndLegerGroup=g\ndLegerSelfId=n0\ndLegerPeers=n0-127.0.0.1:1\n"
        f"storePathRootDir={tmp_path / 'elsewhere'}\nmappedFileSizeCommitLog=1048576\nmaxIndexNum=400\n"
        "maxHashSlotNum=100\nbrokerIP1=10.1.2.3\nnamesrvAddr=127.0.0.1:9876\n"
    )
    served = Served("n0", f"n0-127.0.0.1:{port}", tmp_path / "root", "--broker-conf", str(conf), "--log-format", "json")
    try:
        served.ready()
        assert served.terminate() == 0
        records = [json.loads(line) for line in served.errors().splitlines()]
        events = {row["event"]: row for row in records}
        assert events["broker-conf"]["passedOver"] == "namesrvAddr"
        assert events["messages"]["dividedCommitlogOffset"] == -1
        assert (tmp_path / "root" / "lock").exists()
        assert not (tmp_path / "elsewhere").exists()
    finally:
        served.close()


def test_messages_need_a_disk() -> None:
    line = [sys.executable, "-m", "pyspark_dledger", "serve", "--messages", "--group", "g", "--id", "n0"]
    line += ["--peers", "n0-127.0.0.1:1", "--set", "storeType=MEMORY"]
    run = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (
        2,
        "dledger: --messages needs a store on disk, found storeType=MEMORY: leave out one of them\n",
    )
