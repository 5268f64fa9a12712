"""The tree of a pyarrow expression, read from its pickled form: a record batch whose metadata is the tree.

The metadata has repeated keys, which only the C data interface gives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
# ArrowSchema of the C data interface: format, name, metadata, ...
_METADATA = 2


class Field(NamedTuple):
    """A column."""

    name: str


class Literal(NamedTuple):
    """A constant."""

    value: pa.Scalar


class Call(NamedTuple):
    """A call of a compute function; ``options`` is a struct with its options, if it has any."""

    function: str
    arguments: tuple[Node, ...]
    options: pa.Scalar | None


Node = Field | Literal | Call


def tree_of(expression: pc.Expression) -> Node:
    """The tree of an expression. Raises ValueError for one of another form, such as with a nested field."""
    batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
    items = _metadata(batch.schema)
    return _node(next(items), items, batch)


def columns_of(node: Node) -> Iterator[str]:
    """The columns of an expression."""
    match node:
        case Field(name):
            yield name
        case Call(_, arguments, _):
            for argument in arguments:
                yield from columns_of(argument)


def _node(item: tuple[str, str], items: Iterator[tuple[str, str]], batch: pa.RecordBatch) -> Node:
    key, value = item
    if key == "field_ref":
        return Field(value)
    if key == "literal":
        return Literal(batch.column(int(value))[0])
    if key != "call":
        raise ValueError(f"expected a field, a literal or a call, found {key}")
    arguments: list[Node] = []
    options = None
    for key, argument in items:
        if key == "end":
            return Call(value, tuple(arguments), options)
        if key == "options":
            options = batch.column(int(argument))[0]
        else:
            arguments.append(_node((key, argument), items, batch))
    raise ValueError(f"expected the end of {value}, found none")


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """The metadata of a schema, with repeated keys: numbers of 32 bits before texts."""
    capsule = schema.__arrow_c_schema__()
    address = ctypes.cast(_pointer_of(capsule, b"arrow_schema"), ctypes.POINTER(ctypes.c_void_p))[_METADATA]
    if not address:
        raise ValueError("expected an expression, found none")
    texts: list[str] = []
    count, at = ctypes.c_int32.from_address(address).value, address + 4
    for _ in range(2 * count):
        size = ctypes.c_int32.from_address(at).value
        texts.append(ctypes.string_at(at + 4, size).decode())
        at += 4 + size
    return iter(list(zip(texts[::2], texts[1::2], strict=True)))
