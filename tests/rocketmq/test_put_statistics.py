"""Put statistics in a node's log."""

from __future__ import annotations

import pytest

from pyspark_dledger.rocketmq.service.put_handler import PutStatistics


class Clock:
    """A clock in seconds, advanced by tests."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_figures_are_logged_for_each_minute_with_puts(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    statistics = PutStatistics(clock)
    caplog.set_level("INFO", "pyspark_dledger.node")
    statistics.add(messages=10, size=1000, duplicates=2, topic="A", milliseconds=5.0)
    clock.now += 30
    statistics.add(messages=20, size=5000, duplicates=0, topic="A", milliseconds=80.0)
    statistics.add_rejected("topics")
    assert not caplog.records
    clock.now += 30
    statistics.log_if_due()
    clock.now += 60
    statistics.log_if_due()
    (record,) = caplog.records
    fields = record.__dict__["fields"]
    assert record.getMessage() == "puts"
    assert fields == {
        "seconds": 60.0,
        "puts": 2,
        "messages": 30,
        "messagesPerSecond": 0.5,
        "bytes": 6000,
        "averageBytes": 200,
        "duplicates": 2,
        "refused": 1,
        "slowestMs": 80.0,
        "times": "0-10ms:1 50-100ms:1",
    }


@pytest.mark.parametrize(("milliseconds", "is_slow"), [(500.0, False), (501.0, True)])
def test_a_slow_put_is_logged(caplog: pytest.LogCaptureFixture, milliseconds: float, is_slow: bool) -> None:
    PutStatistics(Clock()).add(messages=3, size=100, duplicates=0, topic="A", milliseconds=milliseconds)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", "slow put")] * is_slow
