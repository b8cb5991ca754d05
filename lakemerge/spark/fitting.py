"""Conditions, evaluated in the JVM, that the rows of a frame surely fit a table.

If a condition is true for a row, the kernel would take the row as it is (:mod:`lakemerge.frames`,
:mod:`lakemerge.schema.casts`). If it is false, nothing is known: the kernel has to look at the row, and names the value
that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lakemerge.schema.schema import type_ddl
from lakemerge.spark.names import quoted
from mergers.portions import VALUE_BYTES

__all__ = ["fitting", "small"]

_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_MANTISSA_BITS = {pa.float32(): 24, pa.float64(): 53}
_MOST_DIGITS = 38
_BIGINT_DIGITS = 19
_FIXED_BYTES = 17
"""The most bytes that a number, or what stands beside a value of any size, takes."""


def fitting(value: str, given: Any, wanted: Any, depth: int = 0) -> Iterator[str]:
    """Conditions on a value, as SQL. They are null or true if the value or a part of it is null.

    :param value: an SQL expression.
    :param given: its type. It must be castable to ``wanted``, and have the same fields in the same order.
    :param depth: how deeply the value is nested inside element functions.
    """
    if pa.types.is_string(given):
        yield f"is_valid_utf8({value})"
    elif pa.types.is_struct(given):
        for field, target in zip(given, wanted, strict=True):
            yield from fitting(f"{value}.{quoted(field.name)}", field.type, target.type, depth)
    elif pa.types.is_map(given):
        # Spark makes no map that has a key twice, but it can read such maps from files.
        yield f"size(array_distinct(map_keys({value}))) = size({value})"
        yield from _of_each(f"map_keys({value})", given.key_type, wanted.key_type, depth)
        yield from _of_each(f"map_values({value})", given.item_type, wanted.item_type, depth)
    elif pa.types.is_list(given):
        yield from _of_each(value, given.value_type, wanted.value_type, depth)
    elif given != wanted:
        yield from _equal(value, given, wanted)


def small(value: str, kind: Any) -> Iterator[str]:
    """The condition that a value has fewer bytes as Arrow data than a table takes, if values of its type may have more.

    :param value: an SQL expression.
    :param kind: its type.
    """
    if pa.types.is_nested(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield f"{_bytes(value, kind)} < {VALUE_BYTES}"


def _bytes(value: str, kind: Any, depth: int = 0) -> str:
    """At least as many bytes as the value has as Arrow data, as an SQL expression that is never null."""
    if pa.types.is_struct(kind):
        return " + ".join([f"{_FIXED_BYTES}L", *(_bytes(f"{value}.{quoted(f.name)}", f.type, depth) for f in kind)])
    if pa.types.is_map(kind):
        keys = _bytes(f"map_keys({value})", pa.list_(kind.key_type), depth)
        return f"{keys} + {_bytes(f'map_values({value})', pa.list_(kind.item_type), depth)}"
    if pa.types.is_list(kind):
        element, total = f"e{depth}", f"t{depth}"
        each = _bytes(element, kind.value_type, depth + 1)
        if element not in each:  # all elements have the same size
            return f"{_FIXED_BYTES}L + coalesce(size({value}), 0) * ({each})"
        return f"{_FIXED_BYTES}L + coalesce(aggregate({value}, 0L, ({total}, {element}) -> {total} + {each}), 0L)"
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return f"{_FIXED_BYTES}L + coalesce(octet_length({value}), 0)"
    return f"{_FIXED_BYTES}L"


def _of_each(values: str, given: Any, wanted: Any, depth: int) -> Iterator[str]:
    element = f"e{depth}"
    for condition in fitting(element, given, wanted, depth + 1):
        yield f"forall({values}, {element} -> ({condition}) IS NOT FALSE)"


def _equal(value: str, given: Any, wanted: Any) -> Iterator[str]:
    """The condition that a number has an equal one of another type."""
    if given in _INTEGER_BITS:
        yield from _within(value, _INTEGER_BITS[given], wanted)
    elif pa.types.is_floating(given) and wanted == pa.float32():
        yield f"CAST(CAST({value} AS FLOAT) AS DOUBLE) <=> {value}"
    elif pa.types.is_decimal(given):
        whole, scale = given.precision - given.scale, given.scale
        if whole > wanted.precision - wanted.scale or scale > wanted.scale:
            digits = max(whole, wanted.precision - wanted.scale) + max(scale, wanted.scale)
            # Spark rounds two decimals before it compares them, if together they have too many digits.
            exact = digits <= _MOST_DIGITS
            yield f"TRY_CAST({value} AS {type_ddl(wanted)}) <=> {value}" if exact else f"{value} IS NULL"


def _within(value: str, bits: int, wanted: Any) -> Iterator[str]:
    """The condition that an integer of so many bits is in the range that the type holds without gaps."""
    if wanted in _INTEGER_BITS:
        if _INTEGER_BITS[wanted] < bits:
            limit = 2 ** (_INTEGER_BITS[wanted] - 1)
            yield f"{value} BETWEEN {-limit} AND {limit - 1}"
    elif wanted in _MANTISSA_BITS:
        if _MANTISSA_BITS[wanted] < bits:
            limit = 2 ** _MANTISSA_BITS[wanted]
            yield f"{value} BETWEEN {-limit} AND {limit}"
    elif wanted.precision - wanted.scale < _BIGINT_DIGITS:
        limit = 10 ** (wanted.precision - wanted.scale) - 1
        yield f"{value} BETWEEN {-limit} AND {limit}"
