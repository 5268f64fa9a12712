"""Writes the tables of README.md and docs/ from the code: ``make docs``."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from pyspark_dledger.cli.stores.diff_text import MEMBER_KEYS, VERDICT_KEYS
from pyspark_dledger.cluster.options import CLUSTER_OPTIONS
from pyspark_dledger.cluster.replay.replay_options import REPLAY_OPTIONS
from pyspark_dledger.common.options import Option
from pyspark_dledger.format import layout
from pyspark_dledger.format.columns import ALL_COLUMNS, Column
from pyspark_dledger.format.layout import LAYOUTS, ROCKETMQ_LAYOUTS
from pyspark_dledger.log.diff.diff_table import VERDICTS
from pyspark_dledger.log.io.state_files import CHECKPOINT_LAYOUT as STORE_CHECKPOINT
from pyspark_dledger.log.options import OF_GROUPS, OF_STREAMS, OPTIONS
from pyspark_dledger.log.tables.table import TableColumn
from pyspark_dledger.log.verify.findings import CATALOGUE, SEVERITIES, Code
from pyspark_dledger.raft.messages import REQUESTS, RequestCode
from pyspark_dledger.raft.node.metrics.catalogue import GROUPS, Metric
from pyspark_dledger.raft.node.settings import SETTINGS
from pyspark_dledger.raft.wire import binary_layout
from pyspark_dledger.rocketmq.export.forms import EXPORT_OPTIONS, FORMS, LAKES
from pyspark_dledger.rocketmq.lives import pops, timers, trace, transactions
from pyspark_dledger.rocketmq.tables import TABLES as READ_TABLES
from pyspark_dledger.rocketmq.tables.audit_table import AUDIT_CODES
from pyspark_dledger.spark.cluster.cluster_write_options import CLUSTER_WRITE_OPTIONS
from pyspark_dledger.spark.sink.write_options import WRITE_OPTIONS
from tools import cli_docs, real_bytes

ROOT = Path(__file__).resolve().parent.parent
SPARK_NAMES = {
    "int64": "long",
    "int32": "int",
    "bool": "boolean",
    "timestamp[us, tz=UTC]": "timestamp",
    "map<string, string>": "map<string,string>",
    "map<string, int64>": "map<string,long>",
    "list<item: string>": "array<string>",
    "list<item: int32>": "array<int>",
    "list<item: int64>": "array<long>",
}

# Kinds of values that a page explains once, or that the meaning names.
PLAIN_VALUES = (
    *("a size", "a whole number", "an integer", "a text", "some text", "a path", "a ratio", "true", "a comma list"),
    *("a JSON list", "earliest", "HOST:PORT", "a regular", "ISO 8601", "quorum"),
)
# A text of at least as many characters is written once.
SHORT = 20
# Columns whose values have a table of their own, by the name of their table.
VALUES = {
    "audit": ("code", AUDIT_CODES),
    "diff": ("verdict", VERDICTS),
    "transactions": ("state", transactions.STATES),
    "timers": ("kind", timers.KINDS),
    "pop": ("state", pops.STATES),
    "trace": ("event", trace.EVENTS),
}

WIRE_TYPES = {"B": "u8", "H": "u16", "I": "u32", "i": "i32", "q": "i64"}


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def options() -> str:
    """The options of a read, but for those of streams."""
    return _options(option for option in OPTIONS if option.scope != OF_STREAMS)


def cluster_options() -> str:
    """The options that only a read of a cluster has."""
    return _options(CLUSTER_OPTIONS)


def cluster_write_options() -> str:
    """The options that only a write to a cluster has; those of the account are in the table of reads."""
    return _options(option for option in CLUSTER_WRITE_OPTIONS if option not in CLUSTER_OPTIONS)


def stream_options() -> str:
    """The options that only a stream has."""
    return _options(option for option in OPTIONS if option.scope == OF_STREAMS)


def replay_options() -> str:
    """The options that only a replay has."""
    return _options(REPLAY_OPTIONS)


def export_options() -> str:
    """The options that only an export has."""
    return _options(option for option in EXPORT_OPTIONS if not _is_of_lakes(option))


def lake_options() -> str:
    """The options that only an export to a table has."""
    return _options(filter(_is_of_lakes, EXPORT_OPTIONS))


def _is_of_lakes(option: Option) -> bool:
    return set(option.scope) <= set(LAKES)


def export_forms() -> str:
    """What a log is exported to."""
    return table(("form", "what it gives"), ((f"`{form}`", meaning) for form, meaning in FORMS.items()))


def write_options() -> str:
    """The options of a write, but for those that a read of a group has, too."""
    of_groups = {option.name for option in OPTIONS if option.scope == OF_GROUPS}
    return _options(option for option in WRITE_OPTIONS if option.name not in of_groups)


def _options(found: Iterable[Option]) -> str:
    rows = []
    for option in found:
        default = option.default or ""
        values = _values(option.parser.accepts, f"{default} {option.doc}")
        rows.append((f"`{option.name}`", f"`{default}`" if default else "", f"{option.doc}{values}"))
    return table(("option", "default", "meaning"), rows)


def _values(accepts: str, shown: str) -> str:
    """The values that an option accepts, in parentheses; nothing where they are plain or `shown` names them all."""
    if accepts.startswith(PLAIN_VALUES) or all(value in shown for value in re.split(", | or ", accepts)):
        return ""
    return f" ({accepts})"


def columns() -> str:
    """The columns of the log table."""
    return _columns(ALL_COLUMNS)


def _columns(found: Iterable[Column | TableColumn]) -> str:
    """Names, each with its type; neighbours of one meaning share a row, and their type where it is the same."""
    rows = []
    for doc, columns in groupby(found, key=lambda column: column.doc):
        typed = groupby(columns, key=lambda column: str(column.type))
        names = (f"{', '.join(f'`{c.name}`' for c in same)} {SPARK_NAMES.get(kind, kind)}" for kind, same in typed)
        rows.append((", ".join(names).replace("<", r"\<"), doc))
    return table(("column", "meaning"), rows)


def tables() -> str:
    """The tables other than the log with their columns; shared columns once."""
    shown = {name: [each._replace(attribute=None) for each in read.columns] for name, read in READ_TABLES.items()}
    count = Counter(column for found in shown.values() for column in found)
    shared = [column for column, tables in count.items() if tables > 1]
    parts = ["## Common columns", _columns(shared)]
    for read in READ_TABLES.values():
        parts.append(f"## `{read.name}`: {read.doc}")
        if names := [f"`{column.name}`" for column in shown[read.name] if column in shared]:
            parts.append(f"Common: {', '.join(names)}.")
        parts.append(_columns(column for column in shown[read.name] if column not in shared))
        if read.name in VALUES:
            column, meanings = VALUES[read.name]
            parts.append(table((column, "meaning"), ((f"`{value}`", text) for value, text in meanings.items())))
    return "\n\n".join(parts)


def findings() -> str:
    """What can be wrong with a store, the worst first."""
    parts = []
    for severity in reversed(SEVERITIES):
        found = [code for code in CATALOGUE if code.severity == severity]
        rows = ((f"`{code.code}`", _text(code), _java_does(code)) for code in found)
        parts.append(f"## Severity `{severity}`\n\n{table(('code', 'meaning', 'what Java does'), rows)}")
    return "\n\n".join(parts)


def _text(code: Code) -> str:
    """What a finding means, without the remedy that the page gives once for all."""
    return code.text.removesuffix(" Compare replicas.").replace("<", r"\<")


def _java_does(code: Code) -> str:
    """What Java does about a finding; a long text is given once."""
    first = next(other for other in CATALOGUE if other.java_does == code.java_does)
    is_short = len(code.java_does) < SHORT
    return code.java_does.replace("<", r"\<") if first is code or is_short else f"As `{first.code}`."


def layouts() -> str:
    """Every fixed layout, one a row: each field with its first byte and its length."""
    named = {**LAYOUTS, **ROCKETMQ_LAYOUTS, "StoreCheckpoint, of a page of 4096 bytes": STORE_CHECKPOINT}
    rows = (
        (name, ", ".join(f"`{field.name}` {field.offset}+{field.length}" for field in fields))
        for name, fields in named.items()
    )
    return table(("layout", "fields: first byte + length"), rows)


def sys_flags() -> str:
    """The bits of a message's sysFlag."""
    compressions = [(number << layout.FLAG_COMPRESSION_SHIFT, name) for number, name in layout.COMPRESSIONS.items()]
    rows = [
        (layout.FLAG_COMPRESSED, "compressed body; zlib unless set below"),
        (layout.FLAG_MULTI_TAGS, "several tags"),
        *((flag, f"transaction: {name}") for name, flag in layout.TRANSACTION_FLAGS.items() if flag),
        (layout.FLAG_BORN_HOST_V6, "bornHost is IPv6"),
        (layout.FLAG_STORE_HOST_V6, "storeHost is IPv6"),
        (layout.FLAG_NEED_UNWRAP, "inner batch, to unwrap"),
        (layout.FLAG_INNER_BATCH, "inner batch"),
        *((flag, f"compressed by {name}") for flag, name in compressions if flag),
    ]
    return "\n".join(f"- `0x{flag:x}`: {meaning}" for flag, meaning in rows)


def verbs() -> str:
    """What `dledger` can be asked, and with which arguments."""
    return cli_docs.verbs()


def verdict() -> str:
    """The keys of the verdict of `dledger diff --json`."""
    lines = [("- ", *each) for each in VERDICT_KEYS.items()] + [("  - ", *each) for each in MEMBER_KEYS.items()]
    return "\n".join(f"{start}{', '.join(f'`{name}`' for name in names)}: {text}" for start, names, text in lines)


def wire_header() -> str:
    """The header that every binary frame begins with."""
    return _wire_fields(binary_layout.COMMON, 0)


def wire_messages() -> str:
    """The binary messages with fields, texts or a body of their own."""
    rows = []
    for request in sorted(REQUESTS.values(), key=lambda kind: kind.request_code):
        for kind in (request, request.response):
            shown = []
            for meaning, found in groupby(binary_layout.own_numbers(kind), key=lambda field: field.meaning):
                typed = ", ".join(f"`{field.name}` {WIRE_TYPES[field.format]}" for field in found)
                shown.append(f"{typed}{meaning and f' ({meaning})'}")
            texts = ", ".join(f"`{name}`" for name in binary_layout.own_texts(kind))
            row = ("; ".join(shown), texts, binary_layout.body_of(kind))
            if any(row):
                code = RequestCode(kind.request_code)
                rows.append((f"{code.name} {code}{'' if kind is request else ' response'}", *row))
    return table(("message", "fields", "texts", "body"), rows)


def _wire_fields(fields: Iterable[binary_layout.WireField], offset: int) -> str:
    rows = []
    for field in fields:
        rows.append((field.name, str(offset), WIRE_TYPES[field.format], field.meaning))
        offset += struct.calcsize(f">{field.format}")
    return table(("field", "offset", "type", "meaning"), rows)


def settings() -> str:
    """The settings of a node. Only values that name, default and meaning do not show are listed."""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, (_, option) in SETTINGS.items():
        default = f"`{option.default}`" if option.default else ""
        accepts = option.parser.accepts
        values = "" if accepts.startswith(PLAIN_VALUES) else f" ({accepts})"
        rows.setdefault((default, f"{option.doc}{values}"), []).append(f"`{name}`")
    return table(("setting", "default", "meaning"), ((", ".join(names), *row) for row, names in rows.items()))


def metrics() -> str:
    """The metrics of a node with their labels; their help texts say more."""
    rows = ((about, ", ".join(map(_metric, found))) for about, found in GROUPS.items())
    return table(("about", "metrics"), rows)


def _metric(metric: Metric) -> str:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    return f"`{metric.name}{labels}`"


TABLES = {
    "settings": settings,
    "metrics": metrics,
    "options": options,
    "stream-options": stream_options,
    "cluster-options": cluster_options,
    "cluster-write-options": cluster_write_options,
    "write-options": write_options,
    "export-forms": export_forms,
    "export-options": export_options,
    "replay-options": replay_options,
    "lake-options": lake_options,
    "columns": columns,
    "tables": tables,
    "findings": findings,
    "layouts": layouts,
    "wire-header": wire_header,
    "wire-messages": wire_messages,
    "sys-flags": sys_flags,
    "verbs": verbs,
    "verdict": verdict,
    "real-entry": real_bytes.entry,
    "real-index-unit": real_bytes.index_unit,
    "real-queue-unit": real_bytes.queue_unit,
    "real-index-file": real_bytes.index_file,
    "real-state-files": real_bytes.state_files,
}
FILES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))


def rendered(text: str) -> str:
    """`text` with each block from ``<!-- NAME -->`` to ``<!-- /NAME -->`` filled again."""
    for name, make in TABLES.items():
        head, tail = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if head in text:
            before, _, rest = text.partition(head)
            text = f"{before}{head}{make()}\n{tail}{rest.partition(tail)[2]}"
    return text


if __name__ == "__main__":
    for file in FILES:
        file.write_text(rendered(file.read_text()))
