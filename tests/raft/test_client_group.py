"""A client of real nodes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import GroupError, IndexRangeError
from pyspark_dledger.format.encode.entry_encoding import pack_bodies
from pyspark_dledger.raft.client import Appended, Client
from tests.support.certificates import make_tls
from tests.support.clients import NOT_APPENDED, batch_outcomes, bodies_of, outcome_of
from tests.support.groups import FASTER, eventually, nodes


def test_client_of_real_nodes(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as group, dl.connect("g", group.peers) as client:
        assert client.append(b"first") == (0, 0, client.get(0).term)
        result = client.append_batch(pack_bodies(bodies_of(5000, 500)))
        assert [appended.index for appended in result] == list(range(1, 5001))
        # Positions in files of 1 MiB; each file ends with a blank.
        for appended in list(result)[::499]:
            entry = client.get(appended.index)
            assert (entry.pos, entry.body) == (appended.pos, b"%d" % (appended.index - 1) + bytes(500))
        leader = client.metadata().leader_id
        assert leader == group.leader()
        follower = next(node_id for node_id in group.ids if node_id != leader)
        eventually(lambda: client.status(follower).committed_index == 5000)
        found = [entry for start in (0, 5000) for entry in client.read(start, follower).entries()]
        assert found[0].body == b"first" and found[-1].index == 5000
        client.transfer(follower)
        assert client.metadata().leader_id == follower
        assert client.append(b"last").index == 5001
        assert client.read(5001, leader, wait_ms=5000).count == 1
        assert client.read(5002, wait_ms=50).count == 0
        with pytest.raises(IndexRangeError):
            client.get(5002)


@pytest.mark.slow
def test_tls(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with nodes(tmp_path, 1, core_options={}, tls=tls) as group:
        with dl.connect("g", group.peers, tls=tls) as client:
            bodies = bodies_of(100, 50_000)
            client.append_batch(bodies)
            assert client.get(99).body == bodies[99]
        for wrong in (None, make_tls(other)):
            with (
                dl.connect("g", group.peers, tls=wrong, timeout_ms=300, max_retries=0) as client,
                pytest.raises(GroupError, match="no leader within") as caught,
            ):
                client.append(b"x")
            if wrong is None:
                assert "does that node expect TLS?" in str(caught.value)
    plain = tmp_path / "plain"
    plain.mkdir()
    with (
        nodes(plain, 1, core_options={}) as group,
        dl.connect("g", group.peers, tls=tls, timeout_ms=300, max_retries=0) as client,
        pytest.raises(GroupError, match=r"n0: 127.0.0.1:\d+: \w.* \(does that node expect TLS\?\)"),
    ):
        client.append(b"x")


@pytest.mark.slow
def test_outcomes_are_true_while_leaders_stop(tmp_path: Path) -> None:
    """Leaders stop under load: the log has all acknowledged entries once, and no rejected ones."""
    outcomes: dict[bytes, object] = {}
    with (
        nodes(tmp_path, 3, core_options=FASTER) as group,
        dl.connect("g", group.peers, timeout_ms=2000) as client,
    ):
        futures: dict[bytes, Future[Appended]] = {}
        is_over = threading.Event()

        def submit() -> None:
            while not is_over.is_set():
                body = b"s%d" % len(futures)
                futures[body] = client.submit(body)
                time.sleep(0.0005)

        def append_batches() -> None:
            for turn in range(1_000_000):
                if is_over.is_set():
                    return
                outcomes.update(
                    batch_outcomes(client, [b"b%d-%d" % (turn, number) + bytes(900) for number in range(50)])
                )

        threads = [threading.Thread(target=work) for work in (submit, append_batches)]
        for thread in threads:
            thread.start()
        group.replace_leaders(3)
        is_over.set()
        for thread in threads:
            thread.join(60)
        wait(futures.values(), 60)
        outcomes |= {body: outcome_of(future) for body, future in futures.items()}
        last = client.append(b"end").index
        log = log_of(client, last)
    data = [body for body in log if body is not None]
    assert len(set(data)) == len(data)
    known = {body: index for body, index in outcomes.items() if isinstance(index, int)}
    assert len(known) > 100 and all(log[index] == body for body, index in known.items())
    assert not {body for body, outcome in outcomes.items() if outcome is NOT_APPENDED} & set(log)


def log_of(client: Client, last: int) -> list[bytes | None]:
    """All bodies up to that index; None for entries of the group itself."""
    log: list[bytes | None] = []
    while len(log) <= last:
        log += [None if entry.channel else entry.body for entry in client.read(len(log), wait_ms=1000).entries()]
    return log
