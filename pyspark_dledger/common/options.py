"""Declaring options: a field of a dataclass is an option if `option` made it.

Name, default, parser and documentation are written there once. Spark, the command line, settings files and the docs
tables read them with `options_of`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pyspark_dledger.common.fields import camel_case
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.uris import without_secrets
from pyspark_dledger.errors import OptionError

_KEY = "option"
# Names less similar than this are not suggested.
_SIMILARITY = 0.5
_MAX_SHOWN = 200

_INTEGER = re.compile(r"[+-]?[0-9]+")
_SIZE = re.compile(r"([0-9]+) ?([kmgt]?)i?b?", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]+) ?(ms|s|m|h|d)", re.IGNORECASE)
_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Parser(NamedTuple):
    """What an option accepts, in words; the function that parses a value or raises ValueError; how a value is shown."""

    accepts: str
    parse: Callable[[object], Any]
    show: Callable[[Any], str] = str


class Option(NamedTuple):
    """One option. ``field`` is its name in the dataclass; ``default`` is as a user writes it, None without one.

    ``scope`` names where it has an effect, such as ``batch`` and ``stream``; empty: everywhere.
    """

    name: str
    field: str
    default: str | None
    parser: Parser
    doc: str
    scope: tuple[str, ...] = ()


def option(
    default: object,
    parser: Parser,
    doc: str,
    *,
    name: str | None = None,
    scope: tuple[str, ...] = (),
    shown: str | None = None,
) -> Any:
    """A dataclass field that is an option; without a default if that is ``dataclasses.MISSING``.

    ``name`` is by default the field's name in camel case, ``shown`` the documented default.
    """
    return dataclasses.field(default=default, metadata={_KEY: (name, parser, doc, scope, shown)})


def options_of(cls: type) -> tuple[Option, ...]:
    """The options of a dataclass, in the order of its fields."""
    return tuple(_option_of(field) for field in dataclasses.fields(cls) if _KEY in field.metadata)


def _option_of(field: dataclasses.Field[Any]) -> Option:
    name, parser, doc, scope, shown = field.metadata[_KEY]
    if shown is None and field.default not in (dataclasses.MISSING, None, ()):
        shown = parser.show(field.default)
    return Option(name or camel_case(field.name), field.name, shown, parser, doc, scope)


def parse_values(options: Mapping[str, Any], find: Callable[[str], Option]) -> dict[str, Any]:
    """Parsed values by field; None means "not set". Raises OptionError also for one given in two spellings."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        found = find(name)
        if value is None:
            continue
        if found.field in values:
            raise OptionError(f"option {found.name} is given twice, in different case: give it once")
        values[found.field] = parse_value(found, value)
    return values


def parse_value(option: Option, value: object) -> Any:
    """Parse one value. Raises OptionError with what was expected and found."""
    try:
        return option.parser.parse(value.strip() if isinstance(value, str) else value)
    except OptionError:
        raise
    except ValueError:
        found = without_secrets(repr(value))
        found = found if len(found) <= _MAX_SHOWN else f"{found[:_MAX_SHOWN]}..."
        raise OptionError(f"option {option.name}: expected {option.parser.accepts}, found {found}") from None


def by_key(options: Iterable[Option]) -> dict[str, Option]:
    """Options by their names in lower case: names ignore case."""
    return {option.name.lower(): option for option in options}


def similar(name: str, candidates: Iterable[str], likeness: float) -> str | None:
    """The candidate most similar to `name`, ignoring case; None below `likeness`, from 0 to 1 (equal)."""
    spelling = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=likeness)
    return spelling[found[0]] if found else None


def nearest(name: str, candidates: Iterable[str], of: str = "") -> str:
    """``the nearest is NAME``, or all names where none is near; ``of`` says what they are names of."""
    names = list(candidates)
    near = similar(name, names, _SIMILARITY)
    return f"the nearest{of} is {near}" if near is not None else f"those{of} are {', '.join(names)}"


# Parsers


def parse_integer(value: object) -> int:
    """An integer, or its text; raises ValueError for anything else."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, (str, bool)):
        raise ValueError
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError from None


def checked(number: int, low: int, high: int) -> int:
    """`number`; raises ValueError outside ``[low, high]``."""
    if not low <= number <= high:
        raise ValueError
    return number


def integer_from(low: int, high: int) -> Parser:
    accepts = f"an integer from {low} to {high}" if high < INT64_MAX else f"an integer of at least {low}"
    return Parser(accepts, lambda value: checked(parse_integer(value), low, high))


def parse_size(value: object) -> int:
    """A size in bytes, written as 65536, 64k, 128m or 1g; raises ValueError for anything else."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    number = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else parse_integer(value)
    return checked(number, 1, INT64_MAX)


def show_size(value: int) -> str:
    """A size as `parse_size` reads it, in the largest unit that divides it."""
    unit = max((unit for unit, size in _SIZE_UNITS.items() if value % size == 0), key=_SIZE_UNITS.__getitem__)
    return f"{value // _SIZE_UNITS[unit]}{unit}"


def size_up_to(high: int, shown: str | None = None) -> Parser:
    limit = f" from 1 to {shown}" if shown else ""
    return Parser(
        f"a size in bytes{limit}, such as 65536, 64k, 128m or 1g",
        lambda value: checked(parse_size(value), 1, high),
        show_size,
    )


def _parse_duration(value: object) -> int:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    number = int(match[1]) * _DURATION_UNITS[match[2].lower()] if match else parse_integer(value)
    return checked(number, 0, INT64_MAX)


def choice(values: tuple[str, ...]) -> Parser:
    spelling = {value.lower(): value for value in values}

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in spelling:
            raise ValueError
        return spelling[value.lower()]

    return Parser(one_of(values), parse)


def one_of(values: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return f"{', '.join(values[:-1])} or {values[-1]}" if len(values) > 1 else values[0]


def parse_boolean(value: object) -> bool:
    """True or false, or their text in any case; raises ValueError for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError


def parse_text(value: object) -> str:
    """A text that is not empty; raises ValueError for anything else."""
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def items_of(value: object) -> list[object]:
    """The items of a list, a JSON list, a comma list or a single value."""
    if isinstance(value, str):
        if value.startswith("["):
            return list(parse_json(value, list))
        return [item.strip() for item in value.split(",")]
    return list(value) if isinstance(value, Iterable) else [value]


def parse_json(text: str, kind: type) -> Any:
    """A JSON text of that type; raises ValueError for anything else."""
    value = json.loads(text)  # its JSONDecodeError is a ValueError
    if not isinstance(value, kind):
        raise ValueError
    return value


def distinct(items: list[Any]) -> tuple[Any, ...]:
    """The items without duplicates; raises ValueError for none."""
    if not items:
        raise ValueError
    return tuple(dict.fromkeys(items))


def _parse_ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError
    return float(value)


SIZE = size_up_to(INT64_MAX)
DURATION = Parser("a duration such as 500ms, 30s, 15m, 1h or 1d, or milliseconds", _parse_duration)
COUNT = integer_from(1, INT64_MAX)
INTEGER = Parser("an integer", parse_integer)
RATIO = Parser("a ratio", _parse_ratio)
BOOLEAN = Parser("true or false", parse_boolean, lambda value: str(value).lower())
TEXT = Parser("some text", parse_text)
NAMES = Parser(
    "a comma list or a JSON list of strings", lambda value: distinct([parse_text(item) for item in items_of(value)])
)
