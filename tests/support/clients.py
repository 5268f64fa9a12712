"""Clients of scripted members, and the outcomes of their appends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from pyspark_dledger.raft.client import Appended, Client, PartialAppendError, request_units
from tests.support.fake_members import FakeMember, fakes

NOT_LEADER, PENDING_FULL = ResponseCode.NOT_LEADER, ResponseCode.LEADER_PENDING_FULL
BOTH = pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "java"])


@contextmanager
def connected(*members: FakeMember, **options: Any) -> Iterator[Client]:
    """A client of scripted members."""
    with fakes(*members) as peers, dl.connect("g", peers, **{"timeout_ms": 1000, **options}) as client:
        yield client


def bodies_of(count: int, size: int = 0) -> list[bytes]:
    """The numbers as texts, each with that many zero bytes."""
    return [b"%d" % number + bytes(size) for number in range(count)]


def batch_of(requests: int) -> list[bytes]:
    """Bodies that are sent in that many requests, two in each."""
    return bodies_of(2 * requests, request_units.UNIT_BYTES // 2 - 100)


UNKNOWN, NOT_APPENDED = "unknown", "not appended"


def outcome_of(future: Future[Appended]) -> object:
    error = future.exception()
    if error is None:
        return future.result().index
    assert isinstance(error, (GroupError, UnknownOutcomeError))
    return outcome_of_error(error)


def batch_outcomes(client: Client, bodies: list[bytes]) -> dict[bytes, object]:
    found: dict[bytes, object] = dict.fromkeys(bodies, NOT_APPENDED)
    try:
        acknowledged = client.append_batch(bodies)
        unknown: tuple[range, ...] = ()
        not_appended: tuple[range, ...] = ()
    except PartialAppendError as error:
        acknowledged, unknown, not_appended = error.acknowledged, error.unknown, error.not_appended
    except (GroupError, UnknownOutcomeError) as error:
        return dict.fromkeys(bodies, outcome_of_error(error))
    found |= {bodies[number]: UNKNOWN for numbers in unknown for number in numbers}
    rest = iter(acknowledged)
    others = {number for numbers in (*unknown, *not_appended) for number in numbers}
    found |= {body: next(rest).index for number, body in enumerate(bodies) if number not in others}
    assert next(rest, None) is None
    return found


def outcome_of_error(error: GroupError | UnknownOutcomeError) -> object:
    return UNKNOWN if isinstance(error, UnknownOutcomeError) else NOT_APPENDED
