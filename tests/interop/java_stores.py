"""Opens stores with any version of the real Java DLedger, in processes that it may end itself."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build" / "interop"
VERSIONS = ("0.1", "0.2.2", "0.2.7", "0.3.1.2", "0.3.2", "0.4.0")
ROCKETMQ_VERSIONS = ("4.9.8", "5.1.4", "5.2.0", "5.3.3")
_POMS = {
    **dict.fromkeys(("OpenStores", "RunServer", "RunClient", "EchoMessages", "WireFrames"), ("pom.xml", "dledger")),
    **dict.fromkeys(
        ("LoadBroker", "LoadPlainStores", "RunStore", "RunPlainStores", "EncodeMessages"), ("broker.xml", "rocketmq")
    ),
    **dict.fromkeys(
        (
            "RunBroker",
            "RunClients",
            "RunConfig",
            "RunController",
            "RunLives",
            "RunTraffic",
            "WriteControllerLog",
            "WriteRecords",
        ),
        ("cluster.xml", "cluster"),
    ),
}
_SUITE_VERSIONS = {
    "dledger": VERSIONS,
    "rocketmq": ("4.9.8", "5.1.4", "5.3.3", "5.4.0", "5.5.0"),
    "cluster": ("4.9.7", "5.3.3"),
}
_ALL_VERSIONS = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pyspark-dledger</groupId>
  <artifactId>interop-versions</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <modules>{}</modules>
</project>
"""
_OPENED = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/jdk.internal.ref")  # to unmap files on Java 17
JAVA = (
    *("java", "-Xmx512m"),
    *(word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")),
)


def prepare(program: str, version: str, compiled_with: str) -> str:
    """Returns the class path of a Java program, fetched once from Maven Central. Skips the test without Java."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"no Java to compare with: {tool} is not installed")
    with _one_at_a_time():
        class_path = f"{_jars(program, version)}/*"
        classes = BUILD / "classes"
        sources = [HERE / f"{name}.java" for name, pom in _POMS.items() if pom == _POMS[program]]
        compiled = classes / f"{program}.class"
        changed = max(source.stat().st_mtime for source in sources)
        if not compiled.exists() or compiled.stat().st_mtime < changed:
            jars = f"{_jars(program, compiled_with)}/*"
            _run("javac", "-cp", jars, "-sourcepath", str(HERE), "-d", str(classes), *map(str, sources))
    return f"{class_path}{os.pathsep}{classes}"


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Workers of the suite wait for what another one fetches or compiles."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _jars(program: str, version: str) -> Path:
    pom, name = _POMS[program]
    if not _folder(name, version).exists():
        missing = [each for each in _SUITE_VERSIONS[name] if not _folder(name, each).exists()]
        _fetch(pom, name, missing if version in missing else [version])
    return _folder(name, version)


def _folder(name: str, version: str) -> Path:
    return BUILD / f"{name}-{version}"


def _fetch(pom: str, name: str, versions: list[str]) -> None:
    """Fetches the jars of these versions. One Maven for all takes less than half of the time."""
    text = (HERE / pom).read_text()
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        for version in versions:
            module = Path(folder) / version
            module.mkdir()
            # Each module has its own artifact, which is the first one named.
            own = text.replace("</artifactId>", f"-{version}</artifactId>", 1)
            (module / "pom.xml").write_text(own.replace(f"${{{name}.version}}", version))
        modules = "".join(f"<module>{version}</module>" for version in versions)
        (Path(folder) / "pom.xml").write_text(_ALL_VERSIONS.format(modules))
        _run(
            *("mvn", "-q", "-B", "-f", f"{folder}/pom.xml", "dependency:copy-dependencies"),
            *("-DincludeScope=runtime", "-DoutputDirectory=jars"),
        )
        for version in versions:
            (Path(folder) / version / "jars").rename(_folder(name, version))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no Java to compare with: {command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")


class StoreOpener:
    """Opens stores with one version of DLedger, in one process until it ends itself."""

    def __init__(self, version: str) -> None:
        self._class_path = prepare("OpenStores", version, "0.3.1.2")
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def open(
        self,
        folder: Path,
        node: str,
        data_file_size: int,
        index_file_size: int,
        data_dirs: tuple[Path, ...] = (),
        patience: float = 60,
        appends: int | None = None,
    ) -> dict[str, Any]:
        """Opens the store ``folder/dledger-node``, which Java may change. The result always has ``outcome``.

        The outcome is ``hangs`` after `patience` seconds without an answer. With `appends`, Java also reads every entry
        (``digest``), then appends and commits that many entries with bodies "java INDEX".
        """
        process = self._process = self._process or self._start()
        assert process.stdin
        fields = (str(folder), node, str(data_file_size), str(index_file_size), ",".join(map(str, data_dirs)))
        fields += () if appends is None else (str(appends),)
        process.stdin.write("\t".join(fields) + "\n")
        process.stdin.flush()
        try:
            line = self._answers.get(timeout=patience)
        except queue.Empty:
            process.kill()
            self.close()
            return {"outcome": "hangs"}
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code = process.wait()
        self.close()
        return {"outcome": "exits", "exitCode": code}

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*JAVA, "-cp", self._class_path, "OpenStores"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answers = queue.Queue()
        assert process.stdout
        threading.Thread(target=pass_on, args=(process.stdout, self._answers), daemon=True).start()
        return process


def pass_on(lines: IO[str], answers: queue.Queue[str]) -> None:
    """Puts every answer line into the queue, and an empty line when `lines` end or are closed."""
    with suppress(ValueError):
        for line in lines:
            if line.startswith("{"):
                answers.put(line)
    answers.put("")


@contextmanager
def store_openers(versions: Iterable[str]) -> Iterator[dict[str, StoreOpener]]:
    """Yields an opener for each version. Skips the test without Java."""
    openers = {version: StoreOpener(version) for version in versions}
    try:
        yield openers
    finally:
        for opener in openers.values():
            opener.close()


class BrokerLoader:
    """Loads broker stores with one version of RocketMQ, each in its own process."""

    def __init__(self, version: str) -> None:
        self._class_path = prepare("LoadBroker", version, "5.3.3")

    def load(self, root: Path, node: str, settings: dict[str, str]) -> dict[str, Any]:
        """Calls load() on a root, which it may change. Returns whether it succeeded and the maximum queue offsets."""
        names = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
        command = [*JAVA, "-cp", self._class_path, "LoadBroker", str(root), node, *(settings[name] for name in names)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return json.loads(answers[-1]) if answers else {"loaded": False, "queues": {}}
