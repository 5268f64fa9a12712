"""``make cluster-chaos``: a stream has each acknowledged message of a real cluster once, in spite of kills.

Rounds kill the master, the driver of the stream, or both, while producers write. A seed repeats the faults and their
order, not their exact times.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.interop.failing_brokers import DLEDGER_MODE, KINDS, FailingBrokers, check_rows, failing_brokers
from tests.interop.java_broker import VERSION, Sent
from tests.support.driven_stream import DrivenStream
from tests.support.seeds import Kit, Result

TOPIC = "Orders"
THREADS, PAUSE_MS = 2, 10
# Acknowledged between two faults.
MESSAGES = 200
COLUMNS = ["broker", "problem", "tags", "queueId", "queueOffset", "body", "commitLogOffset", "offsetMsgId"]


def check(seed: int, folder: Path, options: argparse.Namespace) -> Result:
    chance, result = random.Random(seed), Result()
    with failing_brokers(options.kind, folder, options.version) as brokers:
        brokers.clients.send_first(TOPIC)
        program = Path(__file__).with_name("loop.py" if options.without_spark else "driver.py")
        # Queues of brokers in DLedger mode are inconsistent after a failover, which is an error else.
        is_consistent = options.kind != DLEDGER_MODE
        settings = {"topic": TOPIC, "failOnDataLoss": str(is_consistent).lower()}
        stream = DrivenStream(program, folder, {"nameServer": brokers.address, **settings})
        try:
            sent = _run(brokers, stream, chance, options.rounds, result)
        finally:
            stream.kill()
        found = stream.read_rows(COLUMNS)
        missing, consumed = check_rows(found, sent, brokers.clients.consume(TOPIC), is_consistent=is_consistent)
    result.counts["acknowledged, and left out of a queue by the broker"] += missing
    result.counts["of them, in the queue of the last master"] += consumed
    result.counts["messages"] += len(found)
    result.counts["acknowledged"] += len(sent)
    result.counts["drivers"] += stream.started
    result.counts["drivers that ended by themselves"] += stream.ended
    return result


def _run(
    brokers: FailingBrokers, stream: DrivenStream, chance: random.Random, rounds: int, result: Result
) -> list[Sent]:
    """Rounds of faults: each begins when the rows of the last one are there. Returns the acknowledged messages."""
    faults: list[list[Callable[[], None]]] = [[brokers.kill_master, stream.kill], [brokers.kill_master], [stream.kill]]
    brokers.clients.start_load(TOPIC, THREADS, PAUSE_MS)
    stream.heal()
    for number in range(rounds):
        _await_rows(brokers, stream)
        for fault in faults[0] if number == 0 else chance.choice(faults):
            fault()
            result.counts[f"faults: {fault.__qualname__}"] += 1
            time.sleep(chance.choice((0.0, 0.3, 1.0, 3.0)))
        stream.heal()
        brokers.restart()
        brokers.clients.wait_for(MESSAGES)
        result.counts["rounds"] += 1
        print(f"round {number + 1} of {rounds}: {brokers.clients.acknowledged()} acknowledged", flush=True)
    sent = brokers.clients.end_load()
    _await_rows(brokers, stream)
    return sent


def _await_rows(brokers: FailingBrokers, stream: DrivenStream) -> None:
    """Wait for the rows of all offsets. More messages can be acknowledged, if the broker gave an offset twice."""
    end = sum(brokers.clients.max_offsets(TOPIC).values())
    assert stream.await_rows(end, stream.heal), "rows are missing, see driver.log"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--version", default=VERSION, help="of RocketMQ")
    parser.add_argument("--without-spark", action="store_true", help="a loop of our own drives the stream: many rounds")


KIT = Kit("tests.cluster_chaos", check, __doc__, 1, add_options, processes=1, seed=random.randrange(10**9))

if __name__ == "__main__":
    sys.exit(KIT.main())
