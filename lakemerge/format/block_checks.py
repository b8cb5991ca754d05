"""Checks of the contents of a log domain and a block index.

Any other content is damage: each function raises :class:`ValueError`, :class:`IndexError` or :class:`TypeError`, which
callers report with the name of the domain.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.delta import DomainMetadata
from lakemerge.format.keys import Partition
from lakemerge.format.values import INT32_LIMIT

__all__ = ["body_of", "check_index", "check_inline", "columns_at", "list_of", "parsed_partition", "partition_of"]

_TOO_LARGE = 2**48
"""Rows and bytes of a block are below this, so the sum over a million blocks fits an INT64."""


def body_of(domain: DomainMetadata) -> dict[str, Any]:
    """The JSON object that is the domain."""
    body = orjson.loads(domain.configuration)
    if not isinstance(body, dict):
        raise TypeError(f"{body!r} is not an object")
    return body


def list_of(value: object) -> list[list[Any]]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, not {value!r}")
    return value


def partition_of(values: object) -> Partition:
    partition: tuple[Any, ...] = tuple(list_of(values))
    if any(not isinstance(value, str | None) for value in partition):
        raise TypeError(f"partition values are strings or null, not {partition!r}")
    return partition


def parsed_partition(text: str) -> Partition:
    """A partition from the JSON of a block index."""
    return partition_of(orjson.loads(text))


def columns_at(places: object, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a file that has some of the commit's, by their places among them, which are ascending."""
    if not isinstance(places, list) or any(type(place) is not int for place in places):
        raise TypeError(f"the columns of a file are places, not {places!r}")
    if places != sorted(set(places)) or (places and places[0] < 0):
        raise ValueError(f"the columns of a file are ascending places, not {places!r}")
    return tuple(columns[place] for place in places)


def check_inline(blocks: list[list[Any]], buckets: int) -> None:
    """Check the numbers and sizes of blocks that a commit lists inline.

    :param buckets: the commit's bucket count.
    """
    for block in blocks:
        if any(type(number) is not int or not 0 <= number < INT32_LIMIT for number in block[:5]):
            raise ValueError("a block's numbers must be whole, not negative, and those of an INT32")
        if any(type(number) is not int or not 0 <= number < _TOO_LARGE for number in block[5:7]):
            raise ValueError(f"a block's sizes must be whole, not negative, and below {_TOO_LARGE}")
        if block[4] >= buckets:
            raise ValueError(f"a block's bucket must be one of {buckets}")


def check_index(blocks: pa.Table, buckets: int, *, nullable: Collection[str]) -> None:
    """Check the columns that are read from a block index. Those of ``nullable`` may be null."""
    limits = {"bucket": buckets, "rows": _TOO_LARGE, "data_bytes": _TOO_LARGE}
    for field in blocks.schema:
        column = blocks.column(field.name)
        if column.null_count and field.name not in nullable:
            raise ValueError(f"a block's {field.name} must not be null")
        if pa.types.is_integer(field.type) and len(column):
            bounds = pc.min_max(column)
            if bounds["min"].as_py() < 0 or bounds["max"].as_py() >= limits.get(field.name, 2**63):
                raise ValueError(f"a block's {field.name} must not be negative, nor {bounds['max']}")
