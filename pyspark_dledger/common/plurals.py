"""Numbers with their nouns, in messages for users."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: ``1 entry``, ``2 entries``; `many` is the plural if it is irregular or has a verb."""
    return f"{number} {plural(number, one, many)}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """The noun for a number."""
    if number == 1:
        return one
    return many or (f"{one[:-1]}ies" if one.endswith("y") and one[-2] not in "aeiou" else f"{one}s")


def enumerated(texts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; empty without any."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))
