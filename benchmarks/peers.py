"""The peers of the native scan: Java DLedger and a plain C++ walk, each a process that runs rounds on demand."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.generate import BUILD, INDEX_FILE_UNITS, Store
from benchmarks.measure import PeerMissing
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE

HERE = Path(__file__).parent
OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")  # to unmap files on Java 17


class Process:
    """A process that prints a line when it is ready, then a JSON object for each line of standard input."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.ready = self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.communicate()

    def ask(self, command: str) -> dict[str, Any]:
        """Raises PeerMissing if the process has ended."""
        assert self._process.stdin
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise PeerMissing(f"{self._process.args!r} ended: {errors.strip()[-500:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Peer(Process):
    """A process that prints what it read, then times a round for each line."""

    @property
    def entries(self) -> int:
        return int(self.ready["entries"])

    def seconds(self, command: str = "") -> float:
        return float(self.ask(command)["seconds"])


def java(store: Store) -> Peer:
    """Java DLedger 0.3.1.2, sequential get(index) over the whole store, in one thread."""
    sizes = (str(store.segment_size), str(INDEX_FILE_UNITS * INDEX_UNIT_SIZE))
    memory = ("-Xms2g", "-Xmx2g", "-XX:+AlwaysPreTouch")
    return Peer([*java_command("SequentialGet", *memory), str(store.path), *sizes])


def message_decoder(segment: Path) -> Peer:
    """RocketMQ's decoder on one segment."""
    memory = ("-Xms2g", "-Xmx2g", "-XX:+AlwaysPreTouch")
    return Peer([*java_command("DecodeMessages", *memory, pom="rocketmq.xml"), str(segment)])


def java_command(program: str, *options: str, pom: str = "pom.xml") -> list[str]:
    """The command for a program of ``java/`` with the jars of a pom: DLedger 0.3.1.2, or RocketMQ's store.

    Raises PeerMissing where that cannot be.
    """
    _need("java", "javac", "mvn")
    build = BUILD / "java"
    jars = build / ("lib" if pom == "pom.xml" else f"lib-{Path(pom).stem}")
    if not jars.exists():
        partial = jars.with_name(f"{jars.name}.partial")
        target = f"-DoutputDirectory={partial.absolute()}"
        _run(
            *("mvn", "-q", "-B", "-f", str(HERE / "java" / pom), "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", target),
        )
        partial.rename(jars)
    _run("javac", "-cp", f"{jars}/*", "-d", f"{build}/classes", str(HERE / "java" / f"{program}.java"))
    opened = [word for package in OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
    return ["java", *options, *opened, "-cp", f"{jars}/*:{build}/classes", program]


def cpp_walk(segment: Path) -> Peer:
    """`walk.cpp` on one segment."""
    _need("g++")
    program = BUILD / "walk"
    _run("g++", "-std=c++17", "-O3", str(HERE / "walk.cpp"), "-o", str(program))
    return Peer([str(program), str(segment)])


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise PeerMissing(f"{program} is not installed")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerMissing(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
