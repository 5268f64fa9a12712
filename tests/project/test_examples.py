"""Each example runs without arguments and prints what the bundled stores contain."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_cluster import FakeServer

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
SHOWN = {
    "read_store.py",
    "tail_log.py",
    "write_log.py",
    "cluster.py",
    "rocketmq_cluster.py",
    "diff_replicas.py",
    "export_store.py",
    "serve_messages.py",
    "sql.sql",
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the repository, with the Python of the tests first on the PATH."""
    environment = {
        # As if the environment of the tests' Python were activated.
        **{name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"},
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def printed(*command: str) -> str:
    """What a command prints; it has to succeed."""
    done = run(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> str:
    return printed("python", f"examples/{name}")


@pytest.fixture(scope="module")
def spark_example() -> Callable[[str], str]:
    """Gives the output of an example with Spark; all of them run in one process, with one session."""
    names = ("read_store.py", "tail_log.py", "write_log.py")
    done = run("python", "-m", "tests.support.run_scripts", *(f"examples/{name}" for name in names))
    parts = re.split(r"^== examples/(.*): exit (\d)\n", done.stdout, flags=re.MULTILINE)
    found = {name: (output, code) for output, name, code in zip(parts[::3], parts[1::3], parts[2::3], strict=False)}
    assert list(found) == list(names), done.stderr

    def output(name: str) -> str:
        text, code = found[name]
        assert code == "0", done.stderr
        return text

    return output


def cells(output: str) -> list[list[str]]:
    """The rows of all tables that Spark printed."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in output.splitlines() if line[:1] == "|"]


def test_each_example_is_listed_and_tested() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sql"}} - {"bundled.py"}
    assert files == SHOWN
    listed = re.findall(r"^\| \[(\S+)\]\((\S+)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert {name for name, _ in listed} == SHOWN
    assert all(name == link for name, link in listed)


@pytest.mark.spark
@pytest.mark.slow
def test_read_store_counts_the_rows(spark_example: Callable[[str], str]) -> None:
    output = spark_example("read_store.py")
    assert "The old CommitLog ends at 342591, in file 00000000000000327680." in output
    assert "DLedger begins at 393216." in output
    rows = cells(output)
    assert ["OrderTopic", "419", "4"] in rows
    assert ["commitlog", "NULL", "543", "543", "NULL", "NULL", "0", "342591"] in rows
    assert ["dledger", "0", "539", "539", "0", "538", "393216", "937152"] in rows


@pytest.mark.spark
@pytest.mark.slow
def test_tail_log_continues_from_the_commitlog_into_dledger(spark_example: Callable[[str], str]) -> None:
    output = spark_example("tail_log.py")
    assert re.findall(r"micro-batch (\d+): (\d+) rows", output) == [("0", "500"), ("1", "500"), ("2", "82")]
    rows = cells(output)
    assert ["NULL", "0", "OrderTopic", "1", "0", "z"] in rows
    assert ["457", "878745", "PayTopic", "1", "100", "polygenelubricants"] in rows


@pytest.mark.spark
@pytest.mark.slow
def test_write_log_writes_each_message_once(spark_example: Callable[[str], str]) -> None:
    rows = [row for row in cells(spark_example("write_log.py")) if row[0] == "Orders"]
    assert [(row[1], row[2]) for row in rows] == [(str(queue), "true") for queue in range(4)]
    assert sum(int(row[3]) for row in rows) == 1000 + 3 * 100


@pytest.mark.spark
@pytest.mark.slow
def test_rocketmq_cluster_reads_what_it_writes() -> None:
    with FakeServer() as server:
        server.queues["Orders", 1] = []
        rows = cells(printed("python", "examples/rocketmq_cluster.py", server.address, "Orders"))
    assert [row[:2] + row[3:] for row in rows[1:]] == [["b", "0", "0"], ["b", "1", "0"]]
    assert sum(int(row[2]) for row in rows[1:]) == 1000


@pytest.mark.slow
def test_cluster_continues_without_its_leader() -> None:
    output = example("cluster.py")
    committed = re.findall(r"^'(\w+)' is committed: index (\d+), pos \d+, term (-?\d+)", output, re.MULTILINE)
    assert [text for text, _, _ in committed] == ["one", "two", "three"]
    (_, first, old_term), (_, second, _), (_, third, new_term) = committed
    assert int(first) < int(second) < int(third)
    assert int(new_term) > int(old_term)
    old, new = re.findall(r"^(n\d) is the leader", output, re.MULTILINE)
    assert old != new
    entries = re.findall(r"^index (\d+), term -?\d+: (\w+)$", output, re.MULTILINE)
    # The append without a response may be in the log, too.
    assert entries[-1] == (third, "three")
    assert {"three"} <= {text for _, text in entries} <= {"one", "two", "three"}
    stores = re.findall(r"^dledger-(n\d) on disk: entries 0 to (\d+)", output, re.MULTILINE)
    assert [node for node, _ in stores] == ["n0", "n1", "n2"]
    assert sum(int(end) >= int(third) for _, end in stores) >= 2, "a majority has what was acknowledged"


@pytest.mark.slow
def test_serve_messages_puts_a_message() -> None:
    assert re.fullmatch(r"PutMessageResult\(status='PUT_OK'.*logics_offset=0\).*\n", example("serve_messages.py"))


@pytest.mark.slow
def test_diff_replicas_names_what_an_election_costs() -> None:
    output = example("diff_replicas.py")
    assert re.search(r"^n2 +0 +197 +1 +177 +170$", output, re.MULTILINE)
    assert "committed up to 347, proven by quorum" in output
    assert "they differ from index 178 on: n0 has term 2, n1 has term 2, n2 has term 1" in output
    assert "if n0 is elected: n2 loses 178 to 197" in output
    keys = re.findall(r"^index 178 on (n\d): .*'keys': '([^']*)'", output, re.MULTILINE)
    assert keys == [("n0", "k-210 user-11 键7"), ("n1", "k-210 user-11 键7"), ("n2", "hot-key")]


@pytest.mark.slow
def test_export_store_exports_every_message() -> None:
    output = example("export_store.py")
    assert re.search(r"^CommitLog: 1082 messages in \d+ files, 0 left out$", output, re.MULTILINE)
    assert "broker.conf: enableDLegerCommitLog=false" in output
    assert "read back: 1082 messages\n" in output
    # Left out: a topic with a name of 255 bytes. A folder's name topic=... would be too long.
    assert re.search(r"^Parquet: 1079 rows in \d+ files, 3 left out$", output, re.MULTILINE)
    assert "the folder of the topic has a name of 261 bytes, at most 255 fit" in output
    assert "read back: 419 messages of OrderTopic" in output


@pytest.mark.parametrize("name", ["cluster.py", "diff_replicas.py", "export_store.py"])
def test_too_few_arguments_print_the_usage(name: str) -> None:
    done = run("python", f"examples/{name}", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"usage: python examples/{name} [")


@pytest.mark.spark
@pytest.mark.slow
def test_sql_reads_a_store_from_a_shell(case_folder: Callable[[str], Path]) -> None:
    if not (BIN / "spark-sql").exists():
        pytest.skip(f"{BIN} has no spark-sql: PySpark was installed elsewhere")
    command = re.search(r" spark-sql \\\n-- +(.*)", (EXAMPLES / "sql.sql").read_text())
    assert command is not None, "the file says how it is run"
    arguments = command[1].replace("/tmp/mq-53-upgrade", str(case_folder("mq-53-upgrade"))).split()
    small = ("--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2")
    lines = [line.split("\t") for line in printed("spark-sql", *small, *arguments).splitlines()]
    assert ["commitlog", "543", "0", "NULL", "543"] in lines
    assert ["dledger", "539", "393216", "538", "539"] in lines
    assert ["OrderTopic", "419", "4", "265669"] in lines
    assert ["source", "rows", "first_pos", "last_index", "committed"] in lines
    assert ["index", "topic", "queueId", "queueOffset", "storeTimestamp", "body"] in lines
    found = ["142", "LogTopic", "2", "26", "2026-11-21 03:08:33.819", "retry beta amount true null retr"]
    assert found in lines
    assert lines[-2:] == [["in_no_queue"], ["0"]]
