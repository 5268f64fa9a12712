"""A migration of three real brokers to controller mode, while applications run: how long these have to wait."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generate import new_folder
from benchmarks.measure import PeerMissing, Result, rounded
from benchmarks.peers import Process, java_command
from tests.interop.broker_set import DLEDGER, JRAFT, BrokerSet, broker_set
from tests.interop.java_broker import Cluster, cluster
from tests.interop.make_live_golden import Traffic
from tests.support.groups import HOST, eventually

COUNT, SIZE, QUEUES = 1_200_000, 1024, 8
BATCH, THREADS = 100, 2
RATE = 50
"""Messages a second of the applications, in addition."""

TOPIC, GROUP = "OrderTopic", "billing"
NODES, TARGETS = ("n0", "n1", "n2"), ("a", "b", "c")
# RocketMQ's defaults, instead of those of the tests.
_FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 20 * 300_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}


class Steps:
    """The seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float | None] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = rounded(time.perf_counter() - began)


def migration(version: str, kernel: str, name: str) -> Result:
    """The seconds from the stop of the producer until messages are sent and consumed again, with a check between."""
    steps, settings = Steps(), list[dict[str, Any]]()
    with new_folder(name) as folder, ExitStack() as stack:
        try:
            old = stack.enter_context(cluster(folder, len(NODES), _FILES))
        except pytest.skip.Exception as reason:
            raise PeerMissing(str(reason)) from None
        shop = stack.enter_context(closing(Traffic(old.clients.port, folder)))
        fill(old, shop)
        targets = [str(folder / name) for name in TARGETS]
        migrate = partial(dledger, "migrate", *(str(old.root(node)) for node in NODES), "--to", *targets)
        for name_of_run in ("copy", "copyAgain"):
            with steps.timed(name_of_run):
                assert not migrate()["stores"]
        (folder / "new").mkdir()
        options = {"version": version, "kernel": kernel, "is_quick": False}
        new = stack.enter_context(broker_set(folder / "new", settings, **options))
        new_shop = stack.enter_context(closing(Traffic(new.clients.port, folder / "new")))
        shop.ask("rate\t0")
        eventually(shop.is_settled, 60)
        shop.ask(f"leave\t{GROUP}", 60)
        before = old.clients.max_offsets("Bench")
        began = time.perf_counter()
        with steps.timed("stop"), ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(lambda node: old.brokers[node].stop(), NODES))
        with steps.timed("finish"):
            report = migrate()
        settings.extend({**store["brokerConf"], **_FILES} for store in report["stores"])
        with steps.timed("check"):
            dledger("check", *targets)
        continue_with(steps, new, new_shop)
        seconds = time.perf_counter() - began
        # More than sent: a producer sends again after a timeout.
        assert sum(before.values()) >= COUNT and new.clients.max_offsets("Bench") == before
        size = sum(file.stat().st_blocks for file in Path(targets[0]).glob("commitlog/*")) * 512
    detail = {"messages": report["stores"][0]["rows"], "logMiB": size >> 20, "secondsOf": steps.seconds}
    return Result(name, seconds, "s", detail=detail).with_most(60)


def fill(old: Cluster, shop: Traffic) -> None:
    """Sends the messages, and lets the applications begin."""
    old.clients.send_first(TOPIC)
    command = [*java_command("SendMessages", pom="client.xml"), f"{HOST}:{old.clients.port}", "Bench", str(QUEUES)]
    with closing(Process(command)) as producer:
        producer.ask(f"send {COUNT} {SIZE} {BATCH} {THREADS}")
    shop.ask(f"rate\t{RATE}")
    eventually(lambda: shop.ask("progress")["acknowledged"] > RATE, 120)
    shop.ask(f"consume\t{GROUP}\t0\t{TOPIC}", 60)
    eventually(lambda: shop.ask("progress")["consumed"] > RATE, 120)


def dledger(*words: str) -> dict[str, Any]:
    """The report of a run of the command line, which must have exit code 0."""
    command = [sys.executable, "-m", "pyspark_dledger", *words, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def continue_with(steps: Steps, new: BrokerSet, shop: Traffic) -> None:
    """Starts the new brokers, then the applications."""
    with steps.timed("start"):
        new.start()
        new.wait_until_equal()
    with steps.timed("firstConsumed"):
        shop.ask(f"consume\t{GROUP}\t0\t{TOPIC}", 60)
        with steps.timed("firstAcknowledged"):
            shop.ask(f"rate\t{RATE}")
            eventually(lambda: shop.ask("progress")["acknowledged"], 120)
        eventually(lambda: shop.ask("progress")["consumed"], 120)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "migrate": partial(migration, "5.3.3", DLEDGER),
    "migrate-5.5": partial(migration, "5.5.0", JRAFT),
}
