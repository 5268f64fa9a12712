"""Makes the golden mq-53-lives: a broker whose messages were prepared, delayed, timed, retried, dead and popped.

``python -m tests.interop.make_lives_golden FOLDER`` writes its two files. Needs Maven, GNU tar and a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.interop.java_broker import VERSION
from tests.interop.java_stores import JAVA, prepare
from tests.interop.make_live_golden import packed
from tests.support.groups import free_ports

CASE = "mq-53-lives"
WAIT_MS = 22_000
SETTINGS: dict[str, Any] = {
    "brokerName": "broker",
    "brokerClusterName": "shop",
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "mappedFileSizeTimerLog": 4096,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "messageDelayLevel": "1s 1s 1s 1s 2h",
    "transactionCheckInterval": 2000,
    "transactionTimeOut": 1000,
    "transactionCheckMax": 8,
    "transactionOpBatchInterval": 100,
    "enableLmq": "true",
    "enableMultiDispatch": "true",
}
KEPT = ("checkpoint", "commitlog", "config", "consumequeue", "index", "timerlog", "timerwheel")


def make(target: Path) -> None:
    """Writes the archive and its meta file into `target`."""
    with tempfile.TemporaryDirectory(prefix="mq-lives-") as temporary:
        root = Path(temporary) / CASE
        said = run_lives(root, VERSION, SETTINGS, WAIT_MS)
        meta = {"case": CASE, "versions": {"rocketmq": VERSION}, "config": SETTINGS, "javaSaid": said}
        (target / f"{CASE}.meta.json").write_text(json.dumps(meta, indent=1) + "\n")
        kept = [path for each in KEPT for path in root.glob(each)]
        (target / f"{CASE}.tar.gz").write_bytes(packed(root.parent, kept))


def run_lives(root: Path, version: str, settings: dict[str, Any], wait_ms: int) -> dict[str, Any]:
    """Runs a broker of a version on a new `root` until its clients are done. Returns what they say."""
    names, port, replication = free_ports(3)
    home = root.parent
    fields = {
        **settings,
        "namesrvAddr": f"127.0.0.1:{names}",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": port,
        "haListenPort": replication,
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
    }
    conf = home / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in fields.items()))
    class_path = prepare("RunLives", version, VERSION)
    options = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", class_path, "RunLives")
    command = [*JAVA, *options, str(names), str(conf), str(port), str(wait_ms)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found


if __name__ == "__main__":
    make(Path(sys.argv[1]))
