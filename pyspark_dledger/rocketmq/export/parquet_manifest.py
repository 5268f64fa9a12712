"""The manifest of a finished Parquet export: in the metadata of a Parquet file without rows.

Polars reads all files of a folder, so a finished export consists of Parquet files only. The file is in one of the
export's partitions: DuckDB finds partitions only where every file has one, and pandas fails where one more is null. An
export without rows gets its schema from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.durable import sync_file

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET_MANIFEST = "export.parquet"
"""The name of the file."""

_PARTITIONS = "topic=*/day=*"
_KEY = b"dledger.export"


def write_parquet_manifest(file: Path, schema: pa.Schema, manifest: Mapping[str, Any]) -> None:
    """Write the file and sync it. Raises OSError."""
    import pyarrow.parquet as pq  # other exports do not need it

    pq.write_table(schema.with_metadata({_KEY: json.dumps(manifest)}).empty_table(), file)
    sync_file(file)


def read_parquet_manifest(target: Path) -> dict[str, Any] | None:
    """The manifest of the finished Parquet export in `target`; None without one."""
    file = next(target.glob(f"{_PARTITIONS}/{PARQUET_MANIFEST}"), target / PARQUET_MANIFEST)
    if not file.exists():
        return None
    import pyarrow.parquet as pq  # other exports do not need it

    try:
        manifest = json.loads((pq.read_schema(file).metadata or {})[_KEY])
    except (OSError, KeyError, ValueError, RecursionError):  # ArrowInvalid is a ValueError
        return None
    return manifest if isinstance(manifest, dict) else None
