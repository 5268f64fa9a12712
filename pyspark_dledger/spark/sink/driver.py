"""The driver as its PySpark worker and tasks know it: its process, and its session's master and host."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.raft.peers import without_brackets

_PROC = Path("/proc")
_MAX_ANCESTORS = 16
# Nothing is sent: connecting a UDP socket only chooses an interface. 192.0.2.0/24 is for documentation (RFC 5737).
_ANY_HOST = ("192.0.2.1", 9)
LOOPBACK = "127.0.0.1"


class TaskSession(NamedTuple):
    """What a task knows of its session: Spark sets its configuration as local properties of the task."""

    master: str
    driver_host: str

    @property
    def is_local(self) -> bool:
        """Whether tasks run in the driver's JVM."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")


ON_DRIVER = TaskSession("local", "")
"""For connections from the driver's machine itself."""


def session_of(local_property: Callable[[str], str | None]) -> TaskSession:
    """Return the session of a task; `local_property` is ``TaskContext.getLocalProperty``."""
    host = local_property("spark.driver.host") or ""
    return TaskSession(local_property("spark.master") or "", without_brackets(host))


def driver_pid() -> int:
    """Return the driver's JVM: the nearest ancestor of this process that runs Java; without one, its parent."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        parent, command = _parent_and_command(pid)
        if Path(command).name == "java":
            return pid
        if parent <= 1:
            break
        pid = parent
    return os.getppid()


def _parent_and_command(pid: int) -> tuple[int, str]:
    """Return the parent and the command of a process; 0 and an empty text if they are unknown."""
    if _PROC.joinpath("self").exists():
        try:
            stat = (_PROC / str(pid) / "stat").read_text()
        except OSError:
            return 0, ""
        name, _, rest = stat.partition(" (")[2].rpartition(") ")
        return int(rest.split()[1]), name
    found = _ps(pid, "ppid=,comm=").split(None, 1)
    return (int(found[0]), found[1]) if len(found) == 2 else (0, "")


def _ps(pid: int, columns: str) -> str:
    run = subprocess.run(  # noqa: S603  # a fixed command
        ["/bin/ps", "-o", columns, "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return run.stdout.strip()


def own_address() -> str:
    """Return the address of this machine's name, as Spark does; if that is loopback, the address of an interface."""
    try:
        found = socket.gethostbyname(socket.gethostname())
        if not ipaddress.ip_address(found).is_loopback:
            return found
    except OSError:
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_HOST)
        except OSError:
            return LOOPBACK
        host: str = probe.getsockname()[0]
        return host
