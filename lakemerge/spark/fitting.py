"""Whether the rows of a frame surely fit a table, asked in the JVM.

A condition that is true of a row says that the kernel would take it as it is (:mod:`lakemerge.frames`,
:mod:`lakemerge.casts`). One that is false says nothing: the kernel looks at the row, and names what it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lakemerge.spark.jobs import quoted

__all__ = ["fitting"]


def fitting(value: str, given: Any, depth: int = 0) -> Iterator[str]:
    """Conditions on a value, as SQL; null where the value is null, or a part of it.

    :param value: an expression.
    :param given: its type.
    :param depth: how many functions of elements the value is inside of.
    """
    if pa.types.is_string(given):
        yield f"is_valid_utf8({value})"
    elif pa.types.is_struct(given):
        for field in given:
            yield from fitting(f"{value}.{quoted(field.name)}", field.type, depth)
    elif pa.types.is_map(given):
        # Spark makes no map that has a key twice, but reads such from files.
        yield f"size(array_distinct(map_keys({value}))) = size({value})"
        yield from _of_each(f"map_keys({value})", given.key_type, depth)
        yield from _of_each(f"map_values({value})", given.item_type, depth)
    elif pa.types.is_list(given):
        yield from _of_each(value, given.value_type, depth)


def _of_each(values: str, given: Any, depth: int) -> Iterator[str]:
    element = f"e{depth}"
    for condition in fitting(element, given, depth + 1):
        yield f"forall({values}, {element} -> ({condition}) IS NOT FALSE)"
