"""Writes the tables of README.md and docs/format.md from the code: ``make docs``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark_dledger.format.columns import ALL_COLUMNS
from pyspark_dledger.format.layout import LAYOUTS, ROCKETMQ_LAYOUTS, Field
from pyspark_dledger.log.options import OPTIONS
from pyspark_dledger.log.verify.findings import CATALOGUE
from pyspark_dledger.rocketmq.tables import TABLES as READ_TABLES

ROOT = Path(__file__).resolve().parent.parent
SPARK_NAMES = {
    "int64": "long",
    "int32": "int",
    "bool": "boolean",
    "timestamp[us, tz=UTC]": "timestamp",
    "map<string, string>": "map<string,string>",
    "map<string, int64>": "map<string,long>",
    "list<item: string>": "array<string>",
}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def options() -> str:
    """The options of a read."""
    rows = ((f"`{o.name}`", f"`{o.default}`" if o.default else "", o.parser.accepts, o.doc) for o in OPTIONS)
    return table(("option", "default", "takes", "meaning"), rows)


def columns() -> str:
    """The columns of the log table."""
    rows = ((f"`{c.name}`", SPARK_NAMES.get(str(c.type), str(c.type)), c.doc) for c in ALL_COLUMNS)
    return table(("column", "type", "meaning"), rows)


def tables() -> str:
    """The tables beside the log's, and their columns."""
    parts = []
    for read in READ_TABLES.values():
        rows = ((f"`{c.name}`", SPARK_NAMES.get(str(c.type), str(c.type)), c.doc) for c in read.columns)
        parts.append(f"## `{read.name}`: {read.doc}\n\n{table(('column', 'type', 'meaning'), rows)}")
    return "\n\n".join(parts)


def findings() -> str:
    """What can be wrong with a store."""
    rows = ((f"`{code.code}`", code.severity, code.text, code.java_does) for code in CATALOGUE)
    return table(("code", "severity", "meaning", "what Java does"), rows)


def layouts() -> str:
    """Every fixed layout of the log, field by field."""
    return _layouts(LAYOUTS)


def rocketmq_layouts() -> str:
    """Those of RocketMQ's files beside it."""
    return _layouts(ROCKETMQ_LAYOUTS)


def _layouts(named: Mapping[str, Iterable[Field]]) -> str:
    parts = []
    for name, fields in named.items():
        rows = ((field.name, str(field.offset), str(field.length)) for field in fields)
        parts.append(f"### {name}\n\n{table(('field', 'offset', 'bytes'), rows)}")
    return "\n\n".join(parts)


TABLES = {
    "options": options,
    "columns": columns,
    "tables": tables,
    "findings": findings,
    "layouts": layouts,
    "rocketmq-layouts": rocketmq_layouts,
}
FILES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def rendered(text: str) -> str:
    """`text` with each ``<!-- NAME -->`` to ``<!-- /NAME -->`` filled anew."""
    for name, make in TABLES.items():
        head, tail = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if head in text:
            before, _, rest = text.partition(head)
            text = f"{before}{head}{make()}\n{tail}{rest.partition(tail)[2]}"
    return text


if __name__ == "__main__":
    for file in FILES:
        file.write_text(rendered(file.read_text()))
