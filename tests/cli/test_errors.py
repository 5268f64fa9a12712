"""Errors are one line, and starting loads little."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from pyspark_dledger import __version__, _native
from pyspark_dledger.cli.main import main
from tests.support.command_line import Ran, process
from tests.support.generate import Store
from tests.support.sparse_copy import copy_tree


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "no/such/store"],
        ["dump", "{store}", "-o", "topik=a"],
        ["dump", "{store}", "-o", "topic"],
        ["dump", "{store}", "-o", "topic=a", "--topic", "b"],
        ["dump", "{store}", "--columns", "indx"],
        ["dump", "{store}", "--redact", "--keep", "topc"],
        ["dump", "{store}", "--keep", "topic"],
        ["dump", "{store}", "--from", "yesterday"],
        ["dump", "{store}", "--table", "sgments"],
        ["segments", "no/such/store"],
        ["segments", "{store}", "-o", "table=state"],
        ["state", "no/such/store"],
        ["stats", "no/such/store"],
        ["verify", "no/such/store"],
        ["recovery", "{store}", "--java", "1.0"],
        ["recovery", "{store}", "--rocketmq", "3.2.6"],
        ["diff", "{store}"],
        ["diff", "{store}", "no/such/store"],
        ["audit", "no/such/store"],
        ["consumers", "{store}"],
        ["find", "{store}", "--by", "index", "abc"],
        ["find", "{store}", "--by", "offsetMsgId", "abc"],
        ["find", "{store}", "--by", "time", "abc"],
        ["follow", "no/such/store"],
    ],
    ids=" ".join,
)
def test_an_error_is_one_line_and_exit_code_2(store: Store, arguments: list[str], run: Callable[..., Ran]) -> None:
    done = run(*(argument.format(store=store.path) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dledger: ")
    assert done.err.count("\n") == 1


GROUP = ("--group", "g", "--peers", "n0-127.0.0.1:1")
SERVED = ("serve", "--group", "g", "--id", "n0", "--store", "{folder}/new")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["dump", "{store}", "--from", "5", "--to", "3"], "--from (index 5) is after --to (index 3): swap them"),
        (
            ["dump", "{store}", "--from", "2026-07-22", "--to", "2026-07-21"],
            "--from (2026-07-22 00:00:00+00:00) is after",
        ),
        (
            ["dump", "{store}", "--from", "lastest"],
            "--from: expected an index, pos=N, earliest, latest, or a store time",
        ),
        (["dump", "{store}", "--to", "2026-13-01"], "--to: expected an index, pos=N"),
        (["dump", "{store}", "--queue-id", "x"], "--queue-id: expected"),
        (["dump", "{store}", "--table", "sgments"], "--table: unknown table sgments"),
        (["dump", "{store}", "--table", "state", "--topic", "a"], "--topic has no effect on table state"),
        (["dump", "{store}", "--columns", "indx"], "--columns: unknown column indx"),
        (["dump", "{store}", "--redact", "--keep", "topc"], "--keep: unknown column topc"),
        (["dump", "{store}", "-o", "topic=a", "--topic", "b"], "option topic and --topic are both given: give one"),
        (["dump", "{store}", "-o", "topic=a", "-o", "Topic=b"], "option Topic is given twice"),
        (["dump", "{store}", "-o", "queueId=x"], "option queueId: expected"),
        (["dump", "{store}", "y", "-o", "replicas=x"], "option replicas and further paths are both given"),
        (["find", "{store}", "--tags", "", "1"], "--tags: expected"),
        (["export", "{store}", "{folder}/a", "--to", "csv"], "--to: expected a form to export to, found csv"),
        (["export", "{store}", "{folder}/a", "--to", "jsonl", "--preserve-offsets"], "--preserve-offsets is only for"),
        (
            ["rebuild", "index", "{store}", "--hash-slots", "x"],
            "--hash-slots: expected an integer from 1 to 2147483647, found 'x'",
        ),
        (
            ["rebuild", "index", "{store}", "--units-per-file", "5"],
            "--units-per-file has no effect on a rebuild of index",
        ),
        (["metadata", "--group", "g", "--peers", "nonsense"], "--peers: expected ID-HOST:PORT"),
        (["metadata", "--group", "g", "--peers", "n0-h:1,n1-h:2"], "--peers: expected ; between members"),
        (["metadata", *GROUP, "--timeout-ms", "0"], "--timeout-ms: expected at least 1, found 0"),
        (["metadata", *GROUP, "--tls-cert", "a", "--tls-key", "b", "--tls-ca", "c"], "--tls-cert: expected a PEM file"),
        ([*SERVED, "--peers", "nonsense"], "--peers: expected ID-HOST:PORT"),
        ([*SERVED, "--peers", "n1-127.0.0.1:1"], "--peers: expected this node's id n0"),
        ([*SERVED, *GROUP[2:], "--data-file-size", "1x"], "--data-file-size: expected a size"),
        ([*SERVED, *GROUP[2:], "--index-file-size", "33"], "--index-file-size: expected a multiple of 32"),
        ([*SERVED, *GROUP[2:], "--set", "flush=x"], "--set: flush: expected sync or async"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_names_the_flag_or_the_option_that_was_given(
    store: Store, tmp_path: Path, arguments: list[str], text: str, run: Callable[..., Ran]
) -> None:
    done = run(*(argument.format(store=store.path, folder=tmp_path) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"dledger: {text}"), done.err


def test_diff_of_one_store_says_what_to_add(store: Store, run: Callable[..., Ran]) -> None:
    for path in (store.path, store.path / "dledger-n0"):
        done = run("diff", path)
        assert done.code == 2
        assert (
            "only one store to compare: give its replicas as further paths (dledger diff STORE STORE ...)" in done.err
        )


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        ("dmp", "no verb 'dmp'; nearest: dump; dledger --help lists them"),
        ("Verify", "no verb 'Verify'; nearest: verify; dledger --help lists them"),
        ("xyz", "no verb 'xyz'; dledger --help lists them"),
    ],
)
def test_an_unknown_verb_names_the_nearest_one(verb: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--json"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"dledger: {text}\n"


@pytest.mark.parametrize("arguments", [[], ["nosuchverb"], ["dump"], ["dump", "x", "--limit", "-1"], ["find", "x"]])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--help" in error


def test_an_error_of_the_system_is_one_line(
    store: Store, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error", "/disk/file")

    monkeypatch.setattr("pyspark_dledger.cli.verbs.tables.run_state", fails)
    assert run("state", store.path).err == "dledger: /disk/file: Input/output error\n"


def test_findings_before_an_error_are_printed(store: Store, run: Callable[..., Ran]) -> None:
    done = run("verify", store.path, "no/such/store")
    assert done.code == 2
    assert f"{store.path}: error 0" in done.out


LISTED = (
    *(
        "check",
        "state",
        "verify",
        "diff",
        "recovery",
        "lost",
        "audit",
        "consumers",
        "find",
        "dump",
        "segments",
        "stats",
    ),
    "follow",
)


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    listed = re.findall(r"^  (\w+)", printed, re.MULTILINE)
    assert tuple(name for name in listed if name in LISTED) == LISTED
    assert re.findall(r"^([a-z ]+):$", printed, re.MULTILINE) == ["look", "repair", "move", "run a group", "options"]
    for verb in LISTED:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert "exit codes: 0 clean; " in shown
        assert ("; 1 " in shown) == (verb != "follow")
        assert ("nothing found" in shown) == (verb == "find")


# Loading these takes longer than reading a small store.
SLOW_TO_LOAD = {"pyspark", "py4j", "pandas", "numpy.ma", "pyarrow.compute", "pyarrow.dataset", "asyncio", "ssl"}
# The parts of the package that a verb does not need. Each verb runs after those before it, in one process.
UNUSED = {
    "state": {"pyarrow", "pyspark_dledger.log.verify", "pyspark_dledger.rocketmq"},
    "recovery": {"pyarrow", "pyspark_dledger.rocketmq"},
    "dump": {"pyspark_dledger.log.diff", "pyspark_dledger.log.verify", "pyspark_dledger.rocketmq"},
    "verify": {"pyspark_dledger.log.diff", "pyspark_dledger.rocketmq"},
    "consumers": {"pyspark_dledger.log.diff", "pyspark_dledger.rocketmq.tables.audit_table"},
}


def test_verbs_load_only_what_they_need(broker: Store, tmp_path: Path) -> None:
    path = broker.path
    others = [verb for verb in LISTED if verb not in (*UNUSED, "check", "diff", "find", "follow")]
    lines = [[verb, str(path)] for verb in (*UNUSED, *others)]
    lines += [["find", str(path), what] for what in ("3", "U3", "k3", "2023-11-14", "7F00000100002A9F0000000000000030")]
    lines += [
        ["diff", str(path), str(copy_tree(path, tmp_path / "copy"))],
        ["dump", str(path), "--table", "consumeQueue"],
    ]
    code = (
        "import sys\n"
        "from pyspark_dledger.cli.main import main\n"
        f"unused = [*{UNUSED!r}.values()]\n"
        f"for line in {lines!r}:\n"
        "    sys.argv[1:] = line\n"
        "    assert main() in (0, 1), line\n"
        f"    found = ({SLOW_TO_LOAD!r} | (unused.pop(0) if unused else set())) & set(sys.modules)\n"
        "    assert not found, (line, found)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pyspark_dledger.cli.main import main\n"
        "try:\n    main(['dump', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'numpy', 'pyarrow', 'rich', 'asyncio', 'pyspark'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_versions_are_those_that_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()) == {
        "pyspark_dledger": __version__,
        "engine": "native",
        "Python": platform.python_version(),
        "Arrow": pa.__version__,
        "Spark": pyspark.__version__,
        "platform": platform.platform(),
    }


def test_versions_name_a_missing_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_dledger.format.native_engine", None)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert "\nengine          python (the native engine is not built (" in capsys.readouterr().out


def test_the_module_is_the_command() -> None:
    child = process("--help")
    assert child.communicate()[0].startswith("usage: dledger")
    assert child.returncode == 0


def test_an_old_native_module_is_one_line(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def old(*_: object) -> int:
        value: int = _native.no_such_function
        return value

    monkeypatch.setattr("pyspark_dledger.cli.verbs.tables.run_state", old)
    assert main(["state", str(store.path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "older than the Python sources" in error and "make setup" in error
