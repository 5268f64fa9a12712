"""What can be wrong with a store: ``findings.txt`` is the only home of codes, severities and texts.

What Java does is what its versions up to DLedger 0.3.2 did in the experiments of tests/goldens
(``corruption-java-behaviour.json``), and otherwise what their source says; 0.4.0 is named where it differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, NamedTuple, cast

Severity = Literal["info", "warning", "error"]

INFO: Severity = "info"
WARNING: Severity = "warning"
ERROR: Severity = "error"
SEVERITIES: tuple[Severity, ...] = (INFO, WARNING, ERROR)
"""From the least to the most severe. What a healthy store has is at most `INFO`."""


class Code(NamedTuple):
    """A kind of finding: what it means and what to do about it, and what Java does when it meets it."""

    code: str
    severity: Severity
    text: str
    java_does: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing; the fields are the columns of the table ``findings``, in its order.

    ``node`` is the id in ``dledger-<id>``, None for a plain CommitLog. ``file`` is relative to the store's root, as
    ``dledger-n0/data/00000000000000000000``; absolute where the file lies outside. ``offset`` is in bytes from the
    beginning of that file, as a hex editor wants it; None where it is about no single place. ``index`` is of the
    DLedger entry that it is about. ``pos`` is the position in the log that it is about, or that a unit points to;
    ``size`` are the bytes from there on that are damaged or missing. None where it is not about the log.
    """

    severity: Severity
    code: str
    node: str | None
    file: str
    offset: int | None
    index: int | None
    pos: int | None
    size: int | None
    expected: str | None
    found: str | None
    java_does: str

    def __str__(self) -> str:
        place = f" at byte {self.offset}" if self.offset is not None else ""
        index = f" (index {self.index})" if self.index is not None else ""
        values = (("expected", self.expected), ("found", self.found))
        what = ", ".join(f"{name} {value}" for name, value in values if value is not None)
        return f"{self.severity} {self.code}: {self.file}{place}{index}{f': {what}' if what else ''}"

    @property
    def count(self) -> int:
        """How many findings it stands for."""
        return 1


@dataclass(frozen=True)
class UnlistedFindings(Finding):
    """Stands for findings of its code and file that are not listed."""

    unlisted: int

    @property
    def count(self) -> int:
        return self.unlisted


def _catalogue() -> tuple[Code, ...]:
    codes = []
    for block in (files(__package__) / "findings.txt").read_text("utf-8").split("\n\n"):
        head, *lines = block.splitlines()
        if not head.startswith("#"):
            severity, code = head.split()
            text, _, java_does = " ".join(lines).partition(" Java: ")
            codes.append(Code(code, cast("Severity", severity), text, java_does))
    return tuple(codes)


CATALOGUE = _catalogue()
"""All kinds of findings, as in ``findings.txt``: severity and code, then the texts."""

AFTER_END = frozenset(("staleBytes", "trailingBytes", "indexUnitsBeyondEnd", "endBeyondLog"))
"""Findings about what is after the log's end, which a write in progress can look like."""

CODES = {code.code: code for code in CATALOGUE}


def worst(findings: list[Finding]) -> Severity | None:
    """The highest severity among findings; None without findings."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)
