"""Stores and the command line for the tests of verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from tests.support.command_line import Ran
from tests.support.damage import write_at
from tests.support.generate import Store, mq_message, raw, write_consume_queue, write_dledger


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command in this process."""

    def run_here(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run_here


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_dledger(tmp_path, [mq_message("Orders", b"body"), raw(b"raw body")] * 5, committed=6)


@pytest.fixture
def damaged(store: Store) -> Store:
    write_at(store.segments[0].path, store.rows[3]["pos"], b"\xff\xee")
    return store


@pytest.fixture
def broker(tmp_path: Path) -> Store:
    """A broker's root with ConsumeQueue and config, with a group that lags and has lost nothing."""
    payloads = [
        mq_message("Orders", b"body %d" % i, queue_offset=i, properties=[("KEYS", f"k{i} all"), ("UNIQ_KEY", f"U{i}")],
                   store_timestamp=1700000000000 + 1000 * i)
        for i in range(8)
    ]  # fmt: skip
    store = write_dledger(tmp_path / "root", payloads, file_size=600)
    write_consume_queue(tmp_path / "root", store.rows)
    config = tmp_path / "root" / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text('{"offsetTable":{"Orders@billing":{0:5}}}')
    return store
