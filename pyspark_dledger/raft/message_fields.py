"""How the fields of messages are sent: what a field of a dataclass says of itself, for both dialects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from enum import Enum
from typing import Any, NamedTuple


class Wire(NamedTuple):
    """How a field is sent: as a number, as a text, or in the body of a binary frame.

    ``format`` is the `struct` format of its number, which is the count of a field in the body. ``in_json``: Java has
    it, too.
    """

    format: str = ""
    meaning: str = ""
    name: str = ""
    body: str = ""
    to_count: Callable[[Any], int] | None = None
    is_text: bool = False
    in_json: bool = True


def number(form: str, meaning: str = "", default: Any = -1, in_json: bool = True) -> Any:
    """A number, in `struct` format `form`. With None as default, a flag before it says whether there is one."""
    return field(default=default, metadata={"wire": Wire(form, meaning, in_json=in_json)})


def one_of(default: Enum) -> Any:
    """An enum, as the place of its value."""
    meaning = ", ".join(f"{number} {each.name}" for number, each in enumerate(type(default)))
    return number("B", meaning, default)


def text(default: str | None = None, in_json: bool = True) -> Any:
    """A text of the header, which may be null."""
    return field(default=default, metadata={"wire": Wire(is_text=True, in_json=in_json)})


def counted(form: str, name: str, body: str, make: Callable[[], Any], count: Callable[[Any], int] = len) -> Any:
    """A field of the body whose count, in format `form` and named `name`, is a number of the header."""
    return field(default_factory=make, metadata={"wire": Wire(form, name=name, body=body, to_count=count)})


def in_body(default: Any, body: str = "") -> Any:
    """A field of the body."""
    return field(default=default, metadata={"wire": Wire(body=body, in_json=False)})


def wire_fields(kind: type[Any]) -> dict[str, Wire]:
    """How the message's own fields are sent, by their names, in the order of the wire."""
    return {each.name: each.metadata["wire"] for each in fields(kind) if "wire" in each.metadata}
