"""The log as a pyarrow dataset: DuckDB and Polars ask it for the columns and the rows that a query needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from pyspark_dledger.log.arrow.parallel import OpenReader
from pyspark_dledger.log.arrow.pushdown import pushed_of

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
