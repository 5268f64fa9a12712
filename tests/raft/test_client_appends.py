"""Appends of a client: results, order, and invalid bodies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.entry_encoding import pack_bodies
from pyspark_dledger.raft.client import Appended, request_units
from pyspark_dledger.raft.client.results import positions
from pyspark_dledger.store.dledger_store import EntryRun
from tests.support.clients import BOTH, batch_of, bodies_of, connected
from tests.support.fake_members import FakeMember
from tests.support.groups import HOST


@BOTH
def test_append_get_and_metadata(is_binary: bool) -> None:
    fake = FakeMember(is_binary=is_binary)
    with connected(fake) as client:
        assert client.append(b"one") == Appended(0, 0, 1)
        assert client.append(b"") == Appended(1, 51, 1)
        assert client.append(bytearray(b"two")) == client.submit(memoryview(b"three")).result()._replace(
            index=2, pos=99
        )
        assert client.get(2).body == b"two"
        with pytest.raises(IndexRangeError, match="index 9 is not in the log"):
            client.get(9)
        assert client.metadata() == ("g", "n0", {"n0": f"{HOST}:{fake.port}"})
    assert fake.log.bodies == [b"one", b"", b"two", b"three"]


@BOTH
def test_each_submit_has_its_own_result(is_binary: bool) -> None:
    fake = FakeMember(is_binary=is_binary)
    bodies = bodies_of(3000, 10)
    with connected(fake) as client:
        results = [future.result() for future in [client.submit(body) for body in bodies]]
    assert sorted(fake.log.bodies) == sorted(bodies)
    assert [fake.log.bodies[result.index] for result in results] == bodies
    assert all(fake.log.get(result.index).pos == result.pos for result in results[::100])
    if is_binary:
        assert fake.log.bodies == bodies
        assert len(fake.appends) < 1000  # several in one request
    else:
        assert len(fake.appends) == 3000


@BOTH
@pytest.mark.parametrize("form", [list, tuple, pack_bodies, iter])
def test_append_batch(is_binary: bool, form: Callable[[list[bytes]], Any]) -> None:
    fake = FakeMember(is_binary=is_binary)
    bodies = [b"x" * (number % 7) for number in range(200)]
    with connected(fake) as client:
        result = client.append_batch(form(bodies))
        assert client.append(b"end").index == 200
    assert fake.log.bodies == [*bodies, b"end"]
    assert len(result) == 200 and (result.first_index, result.last_index) == (0, 199)
    assert [appended.index for appended in result] == list(range(200))
    assert [appended.pos for appended in result] == [fake.log.get(index).pos for index in range(200)]


def test_large_batch_is_several_requests_in_order() -> None:
    fake = FakeMember()
    bodies = batch_of(12)
    with connected(fake) as client:
        assert len(client.append_batch(bodies)) == len(bodies)
        assert len(client.append_batch(pack_bodies(bodies))) == len(bodies)
    assert fake.log.bodies == bodies * 2
    assert {len(seen.bodies) for seen in fake.appends} == {2}
    assert [seen.is_restart for seen in fake.appends] == [True] + [False] * 23


def test_body_larger_than_a_unit_has_its_own_request() -> None:
    fake = FakeMember()
    bodies = [b"a", bytes(request_units.MAX_BODY_SIZE), b"b"]
    with connected(fake) as client:
        client.append_batch(bodies)
        client.append(bodies[1])
    assert fake.log.bodies == [*bodies, bodies[1]]


def test_invalid_bodies_are_rejected_before_anything_is_sent() -> None:
    fake = FakeMember()
    too_large = bytes(request_units.MAX_BODY_SIZE + 1)
    with connected(fake) as client:
        for wrong, error, text in [
            ([], ValueError, "expected at least one, found none"),
            ([b"", too_large], ValueError, "found 4194257 in body 1"),
            ([b"", "text"], TypeError, "found str"),
            (Bodies(2, b"\0\0\0\1\0\0\0\1x"), ValueError, "expected a block of 10 bytes for 2 lengths, found 9"),
            (Bodies(2, b"\0\0\0\1"), ValueError, "expected a block of"),
        ]:
            with pytest.raises(error, match=text):
                client.append_batch(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected at most 4194256 bytes, found 4194257"):
            client.submit(too_large)
        with pytest.raises(TypeError, match="found str"):
            client.append("text")  # type: ignore[arg-type]
    assert not fake.connections


def test_positions_continue_in_the_next_file() -> None:
    found = list(positions(5, 2, (EntryRun(5, 100), EntryRun(7, 1024)), [1, 2, 3, 4]))
    assert found == [(5, 100, 2), (6, 149, 2), (7, 1024, 2), (8, 1075, 2)]


def test_client_is_shared_by_threads() -> None:
    fake = FakeMember()
    results: list[int] = []

    def work(number: int) -> None:
        mine = [b"%d-%d" % (number, count) for count in range(300)]
        futures = [client.submit(body) for body in mine[:150]]
        indexes = [appended.index for appended in client.append_batch(mine[150:])]
        indexes = [future.result().index for future in futures] + indexes
        # The appends of one thread are in the order of its calls.
        assert indexes == sorted(indexes)
        assert [fake.log.bodies[index] for index in indexes] == mine
        results.extend(indexes)

    with connected(fake) as client:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results) == list(range(1800))


def test_packed_bodies_are_sent_without_a_copy() -> None:
    bodies = pack_bodies([b"x" * 1000] * 3000).parts
    parts = [part for _, part in request_units.split_batch(bodies, request_units.sizes_of(bodies))]
    assert len(parts) == 3
    assert all(view.obj is bodies.data.obj for part in parts for view in part[1:])
