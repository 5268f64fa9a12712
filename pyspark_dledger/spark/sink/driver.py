"""What a PySpark worker on the driver's machine can find out about its driver: the process, and its address for tasks.

Spark gives such a worker no configuration. The worker is a child of the driver's JVM, whose command line has it.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import subprocess
from itertools import pairwise
from pathlib import Path

_PROC = Path("/proc")
_MAX_ANCESTORS = 16
# Nothing is sent: connecting a UDP socket only chooses an interface. 192.0.2.0/24 is for documentation (RFC 5737).
_ANY_HOST = ("192.0.2.1", 9)
_LOOPBACK = "127.0.0.1"


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


def host_for_tasks() -> str:
    """Return loopback for a local master, else ``spark.driver.host`` or its default."""
    conf = spark_conf(driver_pid())
    if is_local(conf.get("spark.master", "local[*]")):
        return _LOOPBACK
    return conf.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or own_address()


def is_local(master: str) -> bool:
    """Return whether tasks run in the driver's JVM."""
    return master.startswith("local") and not master.startswith("local-cluster")


def spark_conf(pid: int) -> dict[str, str]:
    """Return the Spark configuration of process `pid`: its properties file, overridden by its command line."""
    arguments = _arguments(pid)
    flags = list(pairwise(arguments))
    files = [Path(value) for name, value in flags if name == "--properties-file"]
    conf = _properties(files[-1] if files else Path(os.environ.get("SPARK_CONF_DIR", "")) / "spark-defaults.conf")
    # In cluster mode the driver's JVM has its configuration as system properties.
    given = [argument[2:] for argument in arguments if argument.startswith("-Dspark.")]
    given += [value for name, value in flags if name == "--conf"]
    given += [f"spark.master={value}" for name, value in flags if name == "--master"]
    for name, _, value in (setting.partition("=") for setting in given if "=" in setting):
        conf[name] = value
    return conf


def _properties(file: Path) -> dict[str, str]:
    """Return the ``name value`` or ``name=value`` lines of a file; none if it cannot be read."""
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
            return _LOOPBACK
        host: str = probe.getsockname()[0]
        return host
