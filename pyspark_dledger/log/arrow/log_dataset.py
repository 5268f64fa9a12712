"""The log as a pyarrow dataset: DuckDB and Polars ask it for the columns and the rows that a query needs.

The expression of a query is pushed down into the scan, as far as the scan evaluates it exactly as Arrow. The tree of an
expression comes from its pickled form: a record batch whose metadata is the tree. The metadata has repeated keys, which
only the C data interface gives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log.arrow.parallel import OpenReader
from pyspark_dledger.log.conditions import (
    ALL_ROWS,
    Lookup,
    compared_column,
    comparison,
    exclusion,
    intersect,
    lookup_of_conditions,
    membership,
    presence,
)

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


_SIGNS = {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Pushed(NamedTuple):
    """What a scan does of an expression: it passes all rows that meet it, with ``is_exact`` no others.

    ``columns`` are those of the expression. A plan can use the ``lookup``.
    """

    columns: tuple[str, ...]
    filters: Filters
    lookup: Lookup | None
    is_exact: bool


def pushed_of(expression: pc.Expression) -> Pushed | None:
    """What a scan can do of `expression`; None if its columns cannot be told."""
    try:
        tree = tree_of(expression)
    except (ValueError, NotImplementedError):  # ArrowInvalid is a ValueError
        return None
    filters, is_exact = ALL_ROWS, True
    looked_up: list[Filters] = []
    for node in _conjuncts(tree):
        found, other = _condition(node, str), _condition(node, compared_column)
        is_exact = is_exact and found is not None
        filters = filters if found is None else intersect(filters, found)
        looked_up += [] if other is None else [other]
    columns = tuple(dict.fromkeys(columns_of(tree)))
    return Pushed(columns, filters, lookup_of_conditions(looked_up), is_exact)


def _conjuncts(node: Node) -> Iterator[Node]:
    """Conditions that together are `node`, where a row passes only if it is true."""
    match node:
        case Call("and" | "and_kleene", (first, second)):
            yield from _conjuncts(first)
            yield from _conjuncts(second)
        case Call(
            "if_else", (Call("is_valid", (Field(name),)), Call("is_in", (Field(other),)) as among, Literal(value))
        ) if name == other and not value.as_py() and _value_set(among) is not None:
            yield among  # DuckDB's form; no null is among values without null
        case _:
            yield node


def _condition(node: Node, named: Callable[[str], str]) -> Filters | None:
    """Filters that pass exactly the rows for which `node` is true, or None."""
    match node:
        case Field(name):
            return _committed(named(name), True)
        case Call("invert", (Field(name),)):
            return _committed(named(name), False)
        case Call("is_valid", (Field(name),)):
            return presence(named(name))
        case Call("equal", (Field(name), Literal(value)) | (Literal(value), Field(name))):
            return membership(named(name), [_value(value)])
        case Call("not_equal", (Field(name), Literal(value)) | (Literal(value), Field(name))):
            return exclusion(named(name), [_value(value)])
        case Call("is_in", (Field(name),)):
            values = _value_set(node)
            return None if values is None else membership(named(name), list(map(_value, values)))
        case Call(function, (Field(name), Literal(value))) if function in _SIGNS:
            return comparison(named(name), _SIGNS[function], _value(value))
        case Call(function, (Literal(value), Field(name))) if function in _SIGNS:
            return comparison(named(name), _TURNED[_SIGNS[function]], _value(value))
    return None


def _committed(column: str, value: bool) -> Filters | None:
    return membership(column, [value]) if column == "committed" else None


def _value_set(node: Call) -> pa.Array | None:
    """The values of an ``is_in``; None with null among them, which is equal to null."""
    values = None if node.options is None else node.options["value_set"].values
    return None if values is None or values.null_count else values


def _value(scalar: pa.Scalar) -> object:
    """A constant as conditions take it; for a time that microseconds do not give, one that none takes."""
    if pa.types.is_timestamp(scalar.type) and scalar.type.tz is not None:
        try:
            return scalar.cast(TIMESTAMP).as_py()
        except (ValueError, OverflowError):
            return scalar
    return scalar.as_py()


_FORMAT = ds.IpcFileFormat()
# The path in the error of who opens it.
_NO_FILE = "a log has no files of a dataset: call to_table() or scanner() first"


class LogDataset(ds.FileSystemDataset):
    """Rows of a store. Each scan reads them again, with the columns and, with `pushes_filters`, rows of the scan only.

    A scan raises what `Log.scan` does. Its other calls are those of `pyarrow.dataset.Dataset`, except those that need
    files. `pyarrow.dataset.dataset([...])` cannot join it to others, and `Scanner.from_dataset` cannot read it.
    """

    def __init__(self, schema: pa.Schema, open_reader: OpenReader, *, pushes_filters: bool = True) -> None:
        # Without a C++ dataset, pyarrow would crash where it takes one.
        files = LocalFileSystem()
        super().__init__([_FORMAT.make_fragment(_NO_FILE, files)], schema, _FORMAT, files)
        self._schema, self._open_reader, self._pushes_filters = schema, open_reader, pushes_filters

    @property
    def schema(self) -> pa.Schema:
        """The columns, also of a log without rows."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name
        **options: Any,
    ) -> ds.Scanner:
        """A scanner of `columns` (names, or expressions by name) for rows that meet `filter`.

        `options` are those of `pyarrow.dataset.Scanner`. Raises KeyError for an unknown column.
        """
        chosen = list(self._schema.names) if columns is None else columns
        pushed = None if filter is None or not self._pushes_filters else pushed_of(filter)
        rest = None if pushed is not None and pushed.is_exact else filter
        expressions = [] if rest is None else [rest]
        if isinstance(chosen, Mapping):
            expressions += chosen.values()
        needed = self._needed([] if isinstance(chosen, Mapping) else chosen, expressions)
        conditions = () if pushed is None else (pushed.filters, pushed.lookup)
        reader = self._open_reader(needed, *conditions)
        chosen = dict(chosen) if isinstance(chosen, Mapping) else list(chosen)
        return ds.Scanner.from_batches(reader, columns=chosen, filter=rest, **options)

    def count_rows(self, **options: Any) -> int:
        """How many rows a scan with these options has."""
        count: int = self.scanner(**{"columns": [], **options}).count_rows()
        return count

    def _needed(self, names: Iterable[str], expressions: Iterable[pc.Expression]) -> tuple[str, ...]:
        """The columns to read for columns and expressions. Raises KeyError for an unknown one."""
        found = dict.fromkeys(names)
        for expression in expressions:
            pushed = pushed_of(expression)
            found.update(dict.fromkeys(self._schema.names if pushed is None else pushed.columns))
        for name in found:
            self._schema.field(name)
        return tuple(found) or (self._schema.names[0],)

    # pyarrow would use the C++ dataset for these.

    def _unsupported(self, *_: Any, **_options: Any) -> NoReturn:
        raise NotImplementedError(_NO_FILE)

    get_fragments = replace_schema = filter = sort_by = join = join_asof = __reduce__ = _unsupported
    partition_expression = files = property(_unsupported)
