"""The check of histories accepts what one log can explain, and detects each violation."""

from __future__ import annotations

import random

from tests.chaos.history import Append, Get, History, violations


def acknowledged(body: bytes, index: int, called: float, returned: float) -> Append:
    return Append(body, called, returned, "acknowledged", index)


def history(*operations: Append | Get) -> History:
    result = History()
    for operation in operations:
        result.add(operation)
    return result


LOG = [b"a", b"b"]
A, B = acknowledged(b"a", 0, 0, 2), acknowledged(b"b", 1, 1, 3)


def test_a_history_of_one_log_is_accepted() -> None:
    reads = (Get(1, 0.5, 0.6, None), Get(0, 1, 2, b"a"), Get(1, 4, 5, b"b"), Get(2, 4, 5, None))
    assert violations(history(A, B, *reads), LOG) == []


def test_an_acknowledged_append_that_is_lost_is_detected() -> None:
    assert "acknowledged at 1" in violations(history(A, B), [b"a"])[0]


def test_an_acknowledged_append_at_another_index_is_detected() -> None:
    assert violations(history(A, B), [b"b", b"a"])


def test_a_rejected_append_in_the_log_is_detected() -> None:
    assert "rejected" in violations(history(A, Append(b"b", 1, 2, "rejected")), LOG)[0]


def test_a_duplicate_append_is_detected() -> None:
    assert violations(history(A, Append(b"b", 1)), [b"a", b"b", b"b"])


def test_an_unknown_append_may_be_in_the_log_or_not() -> None:
    unknown = Append(b"b", 1, 4, "unknown")
    assert violations(history(A, unknown), LOG) == violations(history(A, unknown), [b"a"]) == []


def test_an_unknown_body_is_detected() -> None:
    assert "never appended" in violations(history(A), LOG)[0]


def test_entries_of_the_group_itself_are_read_without_a_body() -> None:
    before = acknowledged(b"b", 2, 1, 3)
    assert violations(history(A, before, Get(1, 4, 5, b"")), [b"a", None, b"b"]) == []
    assert "was read as b'x'" in violations(history(A, before, Get(1, 4, 5, b"x")), [b"a", None, b"b"])[0]


def test_an_append_acknowledged_before_another_call_is_before_it() -> None:
    first, second = acknowledged(b"a", 1, 0, 1), acknowledged(b"b", 0, 2, 3)
    assert violations(history(first, second), [b"b", b"a"])
    second.called = 0.5
    assert violations(history(first, second), [b"b", b"a"]) == []


def test_a_read_of_another_body_is_detected() -> None:
    assert violations(history(A, B, Get(1, 4, 5, b"c")), LOG)


def test_a_missing_entry_after_the_acknowledgement_is_detected() -> None:
    assert violations(history(A, B, Get(1, 3.5, 4, None)), LOG)


def test_a_missing_entry_after_a_read_of_a_later_entry_is_detected() -> None:
    unknown = Append(b"b", 1)
    assert violations(history(A, unknown, Get(1, 1.1, 1.2, b"b"), Get(0, 1.5, 1.6, None)), LOG)


def test_histories_of_a_simulated_log_are_accepted() -> None:
    """Random moments in overlapping calls: the check has to find an order."""
    rng = random.Random(7)
    for _ in range(50):
        moments = sorted(rng.random() for _ in range(30))
        result = History()
        log = [b"%d" % index for index in range(30)]
        for index, moment in enumerate(moments):
            result.add(acknowledged(log[index], index, moment - rng.random() / 10, moment + rng.random() / 10))
        for _ in range(60):
            index, moment = rng.randrange(30), rng.random()
            body = log[index] if moments[index] <= moment else None
            result.add(Get(index, moment - rng.random() / 10, moment + rng.random() / 10, body))
        assert violations(result, log) == []
