"""Makes the golden controller-53: the log of a controller, and what RocketMQ's own reader says of it.

``python -m tests.interop.make_controller_golden FOLDER`` writes its two files. Needs Maven and GNU tar.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path

from tests.interop.java_group import JavaProcess
from tests.interop.make_live_golden import packed
from tests.support.groups import free_ports

CASE = "controller-53"
VERSION = "5.3.3"
SUCCESS = 0
_COMMANDS = """
open
apply broker-a 1 10.0.0.1:10911
register broker-a 1 10.0.0.1:10911
apply broker-a 2 10.0.0.2:10911
apply broker-a 3 10.0.0.3:10911
register broker-a 2 10.0.0.2:10911
elect broker-a 1
alter broker-a 1 1 1 1 2
alter broker-a 1 1 2 1 2 3
apply broker-b 1 10.0.1.1:10911
elect broker-b 1
dead 1
elect broker-a -1
register broker-a 3 10.0.0.33:10911
close
open
dead 1 2 3
elect broker-a -1
dead
elect broker-a -1
dead 3
clean broker-a 3
clean broker-b
close
"""


def make(target: Path) -> None:
    """Writes the archive of the store, and a line for each of its entries."""
    with tempfile.TemporaryDirectory(prefix="controller-") as temporary:
        folder = Path(temporary) / CASE
        java = JavaProcess("WriteControllerLog", VERSION, str(folder), str(free_ports(1)[0]), compiled_with=VERSION)
        try:
            answers = [java.ask(command, 60) for command in _COMMANDS.split("\n") if command]
            (target / f"{CASE}.tar.gz").write_bytes(packed(folder.parent, [folder / "dledger-n0"]))
            entries = java.ask("dump")["entries"]
        finally:
            java.close()
        sys.stderr.write(f"{answers}\n")
        with gzip.GzipFile(target / f"{CASE}.java.jsonl.gz", "wb", mtime=0) as file:
            file.write("".join(json.dumps(entry) + "\n" for entry in entries).encode())


if __name__ == "__main__":
    make(Path(sys.argv[1]))
