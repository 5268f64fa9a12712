"""What README.md and docs/ show is what the code says and prints."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.groups import peers_text
from tools.docs import FILES, rendered

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
# A Python block, and the output that follows it.
_INCIDENT = README[README.index("## After an incident") : README.index("## Leaving DLedger mode")]
SETUP, *COMMANDS = re.findall(r"```\n(.*?)```", _INCIDENT, re.DOTALL)
_LEAVING = README[README.index("## Leaving DLedger mode") : README.index("## Without Spark")]
EXPORT = re.findall(r"```\n(\$ .*?)```", _LEAVING, re.DOTALL)[0]
_GROUP = README[README.index("## A replicated log in two minutes") : README.index("## Fast")]
CLUSTER, SESSION = re.findall(r"```\n(\$.*?)```", _GROUP, re.DOTALL)
CLIENT_CODE = re.findall(r"```python\n(.*?)```", _GROUP, re.DOTALL)[0]
_MARK = "\N{SECTION SIGN} "
# Each by the heading that it stands below.
EXAMPLES = {
    README[: found.start()].rpartition("\n## ")[2].partition("\n")[0]: found.groups()
    for found in re.finditer(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_tables_are_those_of_the_code(file: Path) -> None:
    assert file.read_text() == rendered(file.read_text()), "run make docs"


def test_the_readme_has_examples() -> None:
    assert {"Ten lines", "Write", "Tail", "Leaving DLedger mode", "Without Spark"} == set(EXAMPLES)


@pytest.fixture(scope="module")
def printed(case_folder: Callable[[str], Path]) -> dict[str, str]:
    """What the README's examples print, by heading: run by one Python, so that Spark starts once."""
    code = "\n".join(
        f"print({f'{_MARK}{heading}'!r})\nexec({code!r}, {{'__name__': '__main__'}})"
        for heading, (code, _) in EXAMPLES.items()
    )
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "examples" / "conf")}
    folder = case_folder("mq-53-upgrade").parent
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    parts = (part.partition("\n") for part in run.stdout.split(_MARK)[1:])
    return {heading: output for heading, _, output in parts}


@pytest.mark.parametrize("heading", EXAMPLES)
def test_examples_print_what_the_readme_shows(heading: str, printed: dict[str, str]) -> None:
    assert printed[heading].strip() == EXAMPLES[heading][1].strip()


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands that set up the README's incident were run."""
    folder = tmp_path_factory.mktemp("incident")
    (folder / "tests").symlink_to(ROOT / "tests")
    subprocess.run(["bash", "-ec", SETUP], cwd=folder, capture_output=True, check=True)
    return folder


def test_the_readme_has_an_incident() -> None:
    verbs = ["verify", "recovery", "diff", "dump", "audit", "find", "dump", "rebuild"]
    assert [shown.split()[2] for shown in COMMANDS] == verbs


@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: shown.split()[2])
def test_commands_print_what_the_readme_shows(shown: str, incident: Path) -> None:
    check_printed(shown, incident)


def test_the_export_is_as_the_readme_shows(case_folder: Callable[[str], Path]) -> None:
    check_printed(EXPORT, case_folder("mq-53-upgrade").parent)


def check_printed(shown: str, folder: Path) -> None:
    """A line `...` stands for any number of lines, and digests are of a key that is made anew for each run."""
    command, _, expected = shown.removeprefix("$ dledger ").partition("\n")
    # The path of this Python may have spaces.
    run = subprocess.run(
        ["bash", "-c", f'"$0" -m pyspark_dledger {command}', sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    pattern = re.escape(expected).replace(re.escape("...\n"), "(?:.*\n)*")
    pattern = re.sub(r"redacted:[0-9a-f]{16}", "redacted:[0-9a-f]{16}", pattern)
    assert re.fullmatch(pattern, run.stdout), run.stdout


def shell(command: str, folder: Path, **variables: str) -> str:
    """What a `dledger ...` or `kill ...` of the README prints, on either channel."""
    command = command.replace("dledger ", f"{shlex.quote(sys.executable)} -m pyspark_dledger ", 1)
    run = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return run.stdout


def as_pattern(shown: str, port: int) -> str:
    """Ports are this run's; who leads at first, and in which terms, is left to chance."""
    for number in range(3):
        shown = shown.replace(f":{20911 + number}", f":{port + number}").replace(
            f", {20911 + number})", f", {port + number})"
        )
    pattern = re.escape(shown).replace("\\ ", " ")
    pattern = re.sub(r"term=\d", r"term=\\d+", pattern)
    pattern = re.sub(r"process \d+", r"process (\\d+)", pattern)
    pattern = re.sub(r"leaderId  n\d", "leaderId  n[01]", pattern)
    return re.sub(r"(FOLLOWER|LEADER) +\d", r"(FOLLOWER|LEADER) +\\d+", pattern)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Path, int, list[str]]]:
    """The README's cluster in a folder, on other ports: the folder, the first port, and the members' processes."""
    port = next(port for port in range(20911, 32000, 10) if is_free(port))
    command, _, shown = CLUSTER.removeprefix("$ dledger ").partition("\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark_dledger", *shlex.split(command), "--base-port", str(port)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        printed = "".join(process.stdout.readline() for _ in shown.splitlines())
        match = re.fullmatch(as_pattern(shown, port), printed)
        assert match, printed
        yield tmp_path, port, [match[1], match[2], match[3]]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def is_free(port: int) -> bool:
    """Whether nobody listens on this port or the next two."""
    try:
        for number in range(3):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port + number))
    except OSError:
        return False
    return True


def test_the_replicated_log_is_as_the_readme_shows(cluster: tuple[Path, int, list[str]]) -> None:
    folder, port, processes = cluster
    peers = peers_text(range(port, port + 3))
    for part in SESSION.removeprefix("$ ").split("\n$ "):
        command, _, shown = part.partition("\n")
        if command.startswith("kill"):
            command = f"kill -9 {processes[2]}"
        if "dump" in command:
            # A checkpoint tells what is committed; one is written every 3 seconds.
            time.sleep(4)
        printed = shell(command, folder, PEERS=peers)
        assert re.fullmatch(as_pattern(shown.rstrip("\n"), port), printed.rstrip("\n")), f"$ {command}\n{printed}"
    code = CLIENT_CODE
    for number in range(3):
        code = code.replace(str(20911 + number), str(port + number))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "b'hello'"


def test_targets_of_the_readme_exist() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test", "bench", "exactly-once"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
