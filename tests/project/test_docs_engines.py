"""The examples of docs/engines.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.rocketmq.export import export
from tests.support.generate import mq_message, write_dledger

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_dledger(tmp_path / "store", [mq_message("OrderTopic", b"body")] * 5).path
    export(store, tmp_path / "log", "parquet")
    text = (ROOT / "docs" / "engines.md").read_text()
    text = text.replace("/data/rocketmq/store", str(store)).replace("/backup/log", str(tmp_path / "log"))
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "docs/engines.md", "exec"), {})
        assert "OrderTopic" in capsys.readouterr().out
    query = re.search(r'\$ dledger sql \S+ "(.*)"', text)
    assert query is not None
    assert main(["sql", str(store), query[1]]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["OrderTopic", "5"]
