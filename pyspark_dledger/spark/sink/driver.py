"""What a worker of PySpark on the driver's machine can tell of its driver: the process, and where executors reach it.

A worker that plans is told nothing of Spark's configuration. It is a child of the driver's JVM, whose command line has
what the session was started with.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import subprocess
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

_PROC = Path("/proc")
_MOST_ANCESTORS = 16
# Never sent to: connecting a UDP socket only chooses the interface. 192.0.2.0/24 is for documentation (RFC 5737).
_ANY_HOST = ("192.0.2.1", 9)
_LOOPBACK = "127.0.0.1"


def driver_pid() -> int:
    """The driver's JVM: the nearest ancestor of this process that is a Java; without one, its parent."""
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        parent, command = _parent_and_command(pid)
        if Path(command).name == "java":
            return pid
        if parent <= 1:
            break
        pid = parent
    return os.getppid()


def host_for_tasks() -> str:
    """Loopback under a local master, else ``spark.driver.host``, or what Spark takes where that is not set."""
    conf = spark_conf(driver_pid())
    if is_local(conf.get("spark.master", "local[*]")):
        return _LOOPBACK
    return conf.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or own_address()


def is_local(master: str) -> bool:
    """Whether tasks run in the driver itself."""
    return master.startswith("local") and not master.startswith("local-cluster")


def spark_conf(pid: int) -> dict[str, str]:
    """What Spark's submitting class in process `pid` was told on its command line, over the defaults' file."""
    arguments = _arguments(pid)
    conf: dict[str, str] = {}
    file = Path(os.environ.get("SPARK_CONF_DIR", "")) / "spark-defaults.conf"
    given = list(pairwise(arguments))
    for name, value in given:
        if name == "--properties-file":
            file = Path(value)
    conf.update(_properties(file))
    for argument in arguments:
        # A JVM of a cluster's driver has its configuration as system properties.
        if argument.startswith("-Dspark.") and "=" in argument:
            name, _, value = argument[2:].partition("=")
            conf[name] = value
    for name, value in given:
        if name == "--conf" and "=" in value:
            key, _, text = value.partition("=")
            conf[key] = text
    for name, value in given:
        if name == "--master":
            conf["spark.master"] = value
    return conf


def _properties(file: Path) -> Mapping[str, str]:
    """``name value`` or ``name=value`` lines; none where there is no such file."""
    found = {}
    try:
        lines = file.read_text().splitlines() if file.is_file() else []
    except (OSError, UnicodeDecodeError):
        return {}
    for line in lines:
        name, *value = line.strip().replace("=", " ", 1).split(None, 1)[:2] or [""]
        if name and not name.startswith("#") and value:
            found[name] = value[0].strip()
    return found


def _parent_and_command(pid: int) -> tuple[int, str]:
    """The parent of a process, and what it runs; 0 and nothing where that cannot be told."""
    if _PROC.joinpath("self").exists():
        try:
            stat = (_PROC / str(pid) / "stat").read_text()
        except OSError:
            return 0, ""
        name, _, rest = stat.partition(" (")[2].rpartition(") ")
        return int(rest.split()[1]), name
    found = _ps(pid, "ppid=,comm=").split(None, 1)
    return (int(found[0]), found[1]) if len(found) == 2 else (0, "")


def _arguments(pid: int) -> list[str]:
    if _PROC.joinpath("self").exists():
        try:
            return (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            return []
    try:
        return shlex.split(_ps(pid, "args="))
    except ValueError:
        return []


def _ps(pid: int, columns: str) -> str:
    run = subprocess.run(  # noqa: S603  # a fixed command
        ["/bin/ps", "-o", columns, "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return run.stdout.strip()


def own_address() -> str:
    """The address of this machine's name, as Spark takes it, unless that is loopback; then that of its interface."""
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
            return _LOOPBACK
        host: str = probe.getsockname()[0]
        return host
