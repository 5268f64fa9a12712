"""Sentences are for people: no module looks for words in a problem, a note, a reason or an error.

Facts have codes (`format/facts.py`, `log/verify/findings.py`). A reworded sentence must not change what a verb decides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.syntax import syntax_tree

PACKAGE = Path(__file__).parents[2] / "pyspark_dledger"
# Names of values that are sentences.
_SENTENCE = re.compile(
    r"(?:.*_)?(?:problems?|notes?|reasons?|sentences?|messages?|texts?|errors?|expected|found|why|causes?|answers?)"
)
_METHODS = frozenset(("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"))
_PATTERNS = frozenset(
    ("match", "search", "fullmatch", "sub", "findall", "finditer", "match_substring", "match_substring_regex")
)

# These texts are no sentences of this package, or nothing is decided by them.
ALLOWED = {
    "cli/arguments.py": "names of options in an error become flags",
    "cli/output/redact.py": "checksums, by the catalogue's own sentences, are removed from what leaves the machine",
    "cli/report/drawing.py": "a figure's labels",
    "cli/report/facts.py": "paths and topics are removed from what leaves the machine",
    "cli/report/time_figures.py": "a time",
    "cli/stores/open_stores.py": "arguments",
    "cli/stores/statistics.py": "a host and a port",
    "cli/verbs/members.py": "settings",
    "cli/verbs/find.py": "arguments",
    "cli/verbs/salvage.py": "arguments",
    "cli/verbs/sql.py": "DuckDB's errors contain a traceback",
    "common/fastjson.py": "JSON",
    "common/uris.py": "URIs",
    "format/encode/put_rows.py": "properties",
    "format/json_text.py": "JSON",
    "format/message.py": "an identity",
    "format/scan/bodies.py": "zlib's errors begin with its number",
    "format/state_files.py": "a file of properties",
    "log/io/rocks_database.py": "a temporary folder in what RocksDB reports becomes that of the user",
    "log/recovery/java_files.py": "a number as Java parses it",
    "log/verify/report.py": "the two halves of a finding's text",
    "log/verify/segment_checks.py": "a finding has the path of its own",
    "raft/core/membership.py": "names of members",
    "raft/node/node_config.py": "addresses",
    "raft/node/settings.py": "an error gets the name of the setting",
    "raft/peers.py": "addresses",
    "raft/wire/json_values.py": "JSON",
    "rocketmq/broker/broker_conf.py": "settings",
    "rocketmq/dispatch/log_part.py": "a property of messages",
    "rocketmq/export/forms.py": "options",
    "rocketmq/recovery/broker_start.py": "a number as Java parses it",
}


def _name(node: ast.expr) -> str:
    """The last name of an expression: that of a variable, of an attribute, or of what is turned into text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and _name(node.func) == "str" and node.args:
        return _name(node.args[0])
    if isinstance(node, ast.Subscript):
        constant = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return constant if isinstance(constant, str) else _name(node.value)
    return ""


def _is_sentence(node: ast.expr) -> bool:
    return _SENTENCE.fullmatch(_name(node)) is not None


def readers(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that look for words in a sentence, as far as names show it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if (node.func.attr in _METHODS and _is_sentence(node.func.value)) or (
                node.func.attr in _PATTERNS and any(map(_is_sentence, node.args))
            ):
                yield node
        elif isinstance(node, ast.Compare) and any(isinstance(each, (ast.In, ast.NotIn)) for each in node.ops):
            is_word = isinstance(node.left, ast.JoinedStr) or (
                isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
            )
            if is_word and _is_sentence(node.comparators[0]):
                yield node


MODULES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


def _readers(module: str) -> list[str]:
    tree = syntax_tree(MODULES[module])
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in readers(tree)]


def test_no_module_reads_a_sentence() -> None:
    assert {module: found for module in MODULES if module not in ALLOWED and (found := _readers(module))} == {}


def test_no_module_is_allowed_without_need() -> None:
    assert [module for module in ALLOWED if module not in MODULES or not _readers(module)] == []


def test_readers_are_found() -> None:
    tree = ast.parse("""
note.startswith("currterm"), row["problem"].endswith("x"), str(error).partition(": ")
re.search("x", problem.text), _UNREAD.fullmatch(reason), pc.match_substring_regex(problems, harmless)
"x" in notes, "problem" in columns, name.startswith("x"), found.startswith, texts[0]
""")
    assert len(list(readers(tree))) == 7
