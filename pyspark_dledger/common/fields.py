"""Dataclasses as rows: the names of their fields as columns, options and JSON spell them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any


def camel_case(field: str) -> str:
    """``max_batch_rows`` as ``maxBatchRows``."""
    return re.sub("_(.)", lambda match: match[1].upper(), field)


def fields_row(item: Any) -> dict[str, Any]:
    """The fields of a dataclass by the names of columns; what is in them stays as it is, but dataclasses are dicts."""
    return {camel_case(name): value for name, value in dataclasses.asdict(item).items()}


def json_of(item: Any) -> Any:
    """A dataclass and its contents, by the names of columns."""
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {camel_case(each.name): json_of(getattr(item, each.name)) for each in dataclasses.fields(item)}
    if isinstance(item, (list, tuple)):
        return [json_of(each) for each in item]
    return {key: json_of(value) for key, value in item.items()} if isinstance(item, dict) else item
