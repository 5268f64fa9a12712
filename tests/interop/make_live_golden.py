"""Makes the golden mq-53-live: three RocketMQ brokers run for minutes, and one is killed.

``python -m tests.interop.make_live_golden FOLDER`` writes its two files. Needs Maven, GNU tar and five minutes.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.interop.java_broker import SMALL_FILES, VERSION, Cluster, cluster
from tests.interop.java_group import JavaProcess
from tests.support.groups import eventually

CASE = "mq-53-live"
SEED = 7
NODES = ("n0", "n1", "n2")
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    # Its 35 MiB file is not part of the log.
    "timerWheelEnable": False,
}
KEPT = ("abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "dledger-*")


class Traffic(JavaProcess):
    """The applications of an example shop, see RunTraffic.java."""

    def __init__(self, names_port: int, folder: Path) -> None:
        options = (f"-Duser.home={folder}",)
        super().__init__("RunTraffic", VERSION, str(names_port), str(SEED), compiled_with=VERSION, options=options)

    def is_settled(self) -> bool:
        """Returns whether every message sent is acknowledged."""
        progress = self.ask("progress")
        return bool(progress["made"] == progress["acknowledged"])


class Scenario:
    """Runs the events of the golden one by one and records their times."""

    def __init__(self, brokers: Cluster, traffic: Traffic) -> None:
        self._brokers, self._traffic = brokers, traffic
        self.events: list[dict[str, Any]] = []

    def run_event(self, what: str, do: Callable[[], object], then_wait: float = 0) -> None:
        self.events.append({"time": _now(), "what": what})
        sys.stderr.write(f"{self.events[-1]['time']} {what}\n")
        do()
        time.sleep(then_wait)

    def rate(self, messages: int, seconds: float, what: str = "the producer makes messages") -> None:
        """Sends `messages` a second for `seconds`."""
        self.run_event(f"{what}: {messages} a second", lambda: self._traffic.ask(f"rate\t{messages}"), seconds)

    def consume(self, group: str, failing: int, *topics: str) -> None:
        words = "\t".join(("consume", group, str(failing), *topics))
        self.run_event(f"consumer group {group} starts: {', '.join(topics)}", lambda: self._traffic.ask(words, 60))

    def suspend(self, node: str, role: str, seconds: float) -> None:
        """Suspends the broker for `seconds`, like an overloaded machine, then resumes it."""
        broker = self._brokers.brokers[node]
        self.run_event(f"{node}, {role}, is held (SIGSTOP)", lambda: broker.send_signal(signal.SIGSTOP), seconds)
        self.run_event(f"{node} continues (SIGCONT)", lambda: broker.send_signal(signal.SIGCONT))

    def run(self) -> None:
        leader = self._brokers.master()
        self.rate(7, 20, "the first messages")
        self.consume("billing", 40, "OrderTopic", "PaymentTopic")
        self.consume("analytics", 0, "OrderTopic", "LogTopic")
        self.rate(7, 20)
        self.rate(35, 15, "a burst")
        self.rate(7, 15)
        follower = next(node for node in NODES if node != leader)
        self.suspend(follower, "a follower", 20)
        self.rate(8, 15)
        self.suspend(leader, "the leader", 2)
        self.rate(8, 15)
        self.rate(0, 14, "nobody produces")
        self.rate(9, 25)
        self.run_event(f"{leader}, the leader, is killed (SIGKILL)", lambda: self._brokers.kill(leader))
        new = self._brokers.master()
        self.run_event(f"{new} takes messages as the new leader", lambda: None, 12)
        self.run_event(f"{leader} is started again", lambda: self._brokers.start(leader), 10)
        self.rate(45, 10, "a burst")
        self.rate(7, 15)
        self.run_event("consumer group analytics leaves", lambda: self._traffic.ask("leave\tanalytics", 60))
        self.rate(7, 30)
        self.rate(0, 0, "the producer ends")
        eventually(self._traffic.is_settled, 60)
        self.run_event("consumer group billing leaves", lambda: self._traffic.ask("leave\tbilling", 60), 15)
        for node in sorted(self._brokers.brokers, key=lambda node: node == new):
            self.run_event(f"{node} is stopped", self._brokers.brokers[node].stop)


def make(target: Path) -> None:
    """Writes the archive and its meta file into `target`."""
    with tempfile.TemporaryDirectory(prefix="mq-live-") as temporary:
        folder = Path(temporary) / CASE
        folder.mkdir()
        with cluster(folder, len(NODES), SETTINGS) as brokers:
            traffic = Traffic(brokers.clients.port, folder)
            try:
                scenario = Scenario(brokers, traffic)
                scenario.run()
                again = traffic.ask("progress")["again"]
                traffic.ask(f"end\t{folder / 'acknowledged.tsv'}")
            finally:
                traffic.close()
        lines = sorted((folder / "acknowledged.tsv").read_text().splitlines())
        meta = _meta(scenario.events, lines, again)
        (target / f"{CASE}.meta.json").write_text(json.dumps(meta, indent=1) + "\n")
        kept = [path for node in NODES for path in _kept(folder / node)]
        (target / f"{CASE}.tar.gz").write_bytes(packed(folder.parent, kept))


def _meta(events: list[dict[str, Any]], lines: list[str], again: int) -> dict[str, Any]:
    """Returns the meta data of the golden; `lines` are the acknowledged messages."""
    return {
        "case": CASE,
        "what": "three brokers of Apache RocketMQ in DLedger mode, with name server, producer and consumers",
        "versions": {"rocketmq": VERSION, "dledger": "0.3.1.2"},
        "produced": f"python -m tests.interop.make_live_golden, seed {SEED}",
        "config": {**SMALL_FILES, **SETTINGS},
        "events": events,
        "acknowledged": {
            "messages": len(lines),
            "topics": dict(sorted(Counter(line.split("\t")[0] for line in lines).items())),
            "sentAgain": again,
            "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
            "sha256Of": "lines of topic, queueId, queueOffset, offsetMsgId, UNIQ_KEY between tabs, sorted",
        },
    }


def packed(base: Path, paths: list[Path]) -> bytes:
    """Packs files and folders below `base`. Holes stay holes."""
    kept = sorted(str(path.relative_to(base)) for path in paths)
    words = ("--sparse", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu")
    archive = subprocess.run(["tar", *words, "-C", base, "-c", *kept], stdout=subprocess.PIPE, check=True)
    return subprocess.run(["gzip", "-9n"], input=archive.stdout, stdout=subprocess.PIPE, check=True).stdout


def _kept(root: Path) -> list[Path]:
    return [path for pattern in KEPT for path in root.glob(pattern)]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
