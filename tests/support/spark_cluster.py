"""A Spark standalone cluster on loopback: processes for a master, workers and drivers.

Workers have neither the driver's environment variables nor its PATH, and a Python without the package. Drivers send
them their own, as an archive.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from tests.support import spark_archive
from tests.support.groups import HOST, eventually, free_ports
from tests.support.packed_python import make_environment, pack

ROOT = Path(__file__).resolve().parent.parent.parent
_SPARK_HOME = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
# All of them share one machine.
_DAEMON_MEMORY, _EXECUTOR_MEMORY = "256m", "512m"
# A Java process that lives for seconds would spend most of them compiling.
SHORT_LIVED = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class SparkCluster:
    """A master and workers of one core each. ``folder`` has their logs and the executors' work folders."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self._spark = spark_archive.environment()
        self._java = [str(Path(java).parent) for java in filter(None, [shutil.which("java")])]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.driver_folder = folder / "driver"
        self._archive = folder / "environment.tar.gz"
        pack(make_environment(self.driver_folder), self._archive)
        self._port, self._ui_port, *ports = free_ports(2 + workers)
        at = ("--host", HOST, "--port", str(self._port), "--webui-port", str(self._ui_port))
        self._start("master", _MASTER, *at)
        for number, port in enumerate(ports):
            name = f"worker{number}"
            self._start(name, _WORKER, *self._worker_flags(name, port), self.url)

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self._port}"

    def ready(self, workers: int) -> SparkCluster:
        """Wait until so many workers are registered."""
        eventually(lambda: self._alive_workers() == workers, 180)
        return self

    def driver(self, script: Path, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Start a driver: a Python program that uses `SparkSession.builder.getOrCreate()`.

        `settings` are Spark's, with ``_`` for ``.`` in names.
        """
        flags = {name.replace("_", "."): value for name, value in settings.items()}
        flags = {**self._driver_settings(), **flags}
        submit = " ".join(f"--conf {name}={value}" for name, value in flags.items())
        submit = f"--master {self.url} --archives {self._archive}#environment {submit} pyspark-shell"
        # One path for the driver and the executors, in the folder where each of them runs.
        python = "environment/bin/python"
        return subprocess.Popen(
            [python, str(script), *arguments],
            cwd=self.driver_folder,
            env={**self._environment(), "PYSPARK_SUBMIT_ARGS": submit, "PYSPARK_PYTHON": python},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executors and their Python workers."""
        kill_tree(self._processes.pop(f"worker{number}"))

    def close(self) -> None:
        for process in reversed(list(self._processes.values())):
            kill_tree(process)

    def _worker_flags(self, name: str, port: int) -> tuple[str, ...]:
        work = str(self.folder / name)
        at = ("--host", HOST, "--port", str(port), "--webui-port", "0")
        return (*at, "--cores", "1", "--memory", _EXECUTOR_MEMORY, "--work-dir", work)

    def _start(self, name: str, *command: str) -> None:
        line = [str(_SPARK_HOME / "bin" / "spark-class"), *command]
        home = self.folder / name
        home.mkdir()
        variables = {**self._environment(), "HOME": str(home)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                line, env=variables, cwd=home, stdout=log, stderr=log, start_new_session=True
            )

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.pathsep.join(("/usr/bin", "/bin", *self._java)),
            **SHORT_LIVED,
            **self._spark,
            "SPARK_DAEMON_JAVA_OPTS": self._spark["SPARK_SUBMIT_OPTS"],
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
            "SPARK_LOCAL_IP": HOST,
        }

    def _driver_settings(self) -> dict[str, str]:
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.memory": _EXECUTOR_MEMORY,
            "spark.executor.memory": _EXECUTOR_MEMORY,
            "spark.executor.cores": "1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }

    def _alive_workers(self) -> int:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
        with urllib.request.urlopen(f"http://{HOST}:{self._ui_port}/json/", timeout=5) as response:
            return response.read().decode().count('"ALIVE"') - 1  # the master is alive, too


def python_path() -> str:
    """For a program that imports the tests: the checkout, and what the tests' own Python has."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def kill_tree(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill a process that this one started, and all its descendants."""
    tree = [process.pid]
    with suppress(psutil.NoSuchProcess):
        tree += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(20)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Start a cluster, and kill it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = SparkCluster(folder, workers)
    try:
        yield cluster.ready(workers)
    finally:
        cluster.close()
