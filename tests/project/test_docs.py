"""What README.md and docs/ show is what the code says and prints."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.groups import peers_text
from tools.docs import FILES, rendered

ROOT = Path(__file__).resolve().parent.parent.parent
_MARK = "\N{SECTION SIGN} "
# Commands that set up the checkout itself: the names in them are checked, and others run them.
_INSTALL = ("make ", "pip ")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def kind(self) -> str:
        """``python``, ``session`` (`$ ` commands with output), ``install``, ``setup`` or ``output``."""
        if self.language:
            return self.language
        if self.text.startswith("$ "):
            return "session"
        if self.text.startswith(_INSTALL):
            return "install"
        return "setup" if self.text.startswith(("tar ", "cp ")) else "output"


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [Block(language, text) for language, text in found]


def commands(page: str) -> list[str]:
    """Each `$ ` command of a page with the output below it."""
    sessions = (block.text for block in blocks(page) if block.kind == "session")
    return [shown for text in sessions for shown in re.findall(r"^\$ .*\n(?:(?!\$ ).*\n)*", text, re.MULTILINE)]


README = blocks("README.md")
SETUP = "".join(block.text for block in README if block.kind == "setup")
# Each Python block with the output below it.
EXAMPLES = [
    (block.text, following.text)
    for block, following in pairwise(README)
    if block.kind == "python" and following.kind == "output"
]
CLUSTER, SESSION, CLIENT_CODE = (block.text for block in blocks("docs/group.md"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_tables_are_those_of_the_code(file: Path) -> None:
    assert file.read_text() == rendered(file.read_text()), "run make docs"


def test_all_code_of_the_readme_is_executed() -> None:
    kinds = [block.kind for block in README]
    assert len(EXAMPLES) == kinds.count("python") == kinds.count("output") == 5
    assert set(kinds) == {"install", "setup", "python", "output", "session"}
    assert [shown.split()[2] for shown in commands("README.md")] == ["check", "diff", "verify", "export"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the setup commands of the README were run."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "tests").symlink_to(ROOT / "tests")
    subprocess.run(["bash", "-ec", SETUP], cwd=folder, capture_output=True, check=True)
    return folder


@pytest.fixture(scope="module")
def printed(folder: Path) -> list[str]:
    """The output of each Python example of the README. They run in order in one process, as a reader runs them."""
    code = "names = {'__name__': '__main__'}\n" + "".join(
        f"print({_MARK!r})\nexec({code!r}, names)\n" for code, _ in EXAMPLES
    )
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split(_MARK)[1:]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_print_what_the_readme_shows(number: int, printed: list[str]) -> None:
    assert printed[number].strip() == EXAMPLES[number][1].strip()


def test_the_incident_has_its_commands() -> None:
    verbs = ["check", "salvage", "salvage", "check", "diff", "lost", "find", "recovery", "verify", "audit", "report"]
    assert [shown.split()[2] for shown in commands("docs/incident.md")] == [*verbs, "export"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown",
    commands("README.md") + commands("docs/incident.md") + commands("docs/salvage.md"),
    ids=lambda shown: shown.split()[2],
)
def test_commands_print_what_is_shown(shown: str, folder: Path) -> None:
    check_printed(shown, folder)


def check_printed(shown: str, folder: Path) -> None:
    """A line `...` stands for any number of lines. Notes on standard error are not shown."""
    command, _, expected = shown.removeprefix("$ dledger ").partition("\n")
    # The path of this Python may have spaces.
    run = subprocess.run(
        ["bash", "-c", f'"$0" -m pyspark_dledger {command}', sys.executable],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stderr
    notes = [line for line in run.stderr.splitlines() if not line.startswith("dledger: wrote ")]
    assert notes == []
    pattern = re.escape(expected).replace(re.escape("...\n"), "(?:.*\n)*")
    assert re.fullmatch(pattern, run.stdout), run.stdout


def shell(command: str, folder: Path, **variables: str) -> str:
    """What a `dledger ...` or `kill ...` of docs/group.md prints, on either channel."""
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
    """The cluster of docs/group.md, on other ports: the folder, the first port, and the members' processes."""
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


@pytest.mark.slow
def test_the_group_is_as_its_page_shows(cluster: tuple[Path, int, list[str]]) -> None:
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


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md", "tests/README.md"])
def test_make_has_the_targets_that_are_named(file: str) -> None:
    named = set(re.findall(r"(?:^|`)(?:[A-Z_]+=\S+ )?make ([a-z-]+)", (ROOT / file).read_text(), re.MULTILINE))
    assert len(named) > 2
    assert named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_install_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "test", "lint", "help"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    # test_wheel.py runs them.
    installed = re.findall(r"^pip install (?:'pyspark_dledger\[(\w+)\]'|pyspark_dledger) ", text, re.MULTILINE)
    assert installed == ["spark", ""]
    assert re.search(r"^spark =\n", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
