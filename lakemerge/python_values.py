"""Rows as values of Python, for people and for JSON.

Arrow and SQL have values that Python's own types lack: days and times outside of the years 1 to 9999, calendar
intervals, and times with nanoseconds. They become text, as Spark shows them. All other values are what
``pyarrow.Table.to_pylist`` gives.
"""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = [
    "Spelled",
    "arrow_values",
    "decimal_text",
    "python_rows",
    "python_values",
    "told_apart",
    "with_text_decimals",
]

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_HOUR, _MINUTE = 3_600_000_000_000, 60_000_000_000


class Spelled(str):
    """The text of a day or time that Python lacks. It keeps the number, by which such values are ordered."""

    __slots__ = ("number",)
    number: int

    @staticmethod
    def of(text: str, number: int) -> Spelled:
        made = Spelled(text)
        made.number = number
        return made


def arrow_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The column that :func:`python_values` gave, or a part of it."""
    parts = [
        pa.array([value.number], pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
        if isinstance(value, Spelled)
        else pa.array([value], kind)
        for value in values
    ]
    return pa.concat_arrays(parts)


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dictionaries. Columns of one name are :func:`told_apart`."""
    names = told_apart(rows.schema.names)
    if not names:
        return [{} for _ in range(rows.num_rows)]
    columns = [python_values(column) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column."""
    if not _has_times(column.type):
        return list(column.to_pylist())
    if not _is_always_text(column.type):
        try:
            return list(column.to_pylist())
        except (ValueError, OverflowError):
            pass  # some value is one that Python lacks
    return [value for chunk in _chunks(column) for value in _values(chunk)]


def told_apart(names: Sequence[str]) -> list[str]:
    """The names, each once: a name that was there before gets a number."""
    taken, found = set(names), list[str]()
    for name in names:
        own, number = name, 0
        while own in found or (number and own in taken):
            number += 1
            own = f"{name}_{number}"
        found.append(own)
    return found


def decimal_text(number: decimal.Decimal) -> str:
    """A decimal with all of its digits and without an exponent, so that numbers that differ never look alike, and text
    that is read again is the same number everywhere."""
    return format(number, "f")


def with_text_decimals(value: object) -> object:
    """A value whose decimals, at any depth, are :func:`decimal_text`."""
    if isinstance(value, decimal.Decimal):
        return decimal_text(value)
    if isinstance(value, dict):
        return {key: with_text_decimals(part) for key, part in value.items()}
    if isinstance(value, list):
        return [with_text_decimals(part) for part in value]
    return tuple(map(with_text_decimals, value)) if isinstance(value, tuple) else value


def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_temporal(kind):
        return True
    if isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType):
        return _has_times(kind.value_type)
    return any(_has_times(kind.field(place).type) for place in range(kind.num_fields))


def _is_always_text(kind: pa.DataType) -> bool:
    """Whether ``to_pylist`` gives what is none of Python's own types."""
    if kind == pa.month_day_nano_interval() or (pa.types.is_timestamp(kind) and kind.unit == "ns"):
        return True
    if isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType):
        return _is_always_text(kind.value_type)
    return any(_is_always_text(kind.field(place).type) for place in range(kind.num_fields))


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _values(array: pa.Array) -> list[Any]:
    """One by one, where some are text."""
    kind = array.type
    if isinstance(kind, pa.DictionaryType):
        return _values(array.dictionary_decode())
    if isinstance(kind, pa.RunEndEncodedType):
        return _values(pa.compute.run_end_decode(array))
    if pa.types.is_struct(kind):
        names = told_apart([field.name for field in kind])
        parts = zip(*(_values(child) for child in array.flatten()), strict=True)
        return _where(array, (dict(zip(names, part, strict=True)) for part in parts))
    if pa.types.is_map(kind):
        first, last = (array.offsets[place].as_py() for place in (0, -1)) if len(array) else (0, 0)
        keys, items = (_values(child.slice(first, last - first)) for child in (array.keys, array.items))
        offsets = [offset.as_py() - first for offset in array.offsets] if len(array) else [0]
        pairs = list(zip(keys, items, strict=True))
        return _where(array, (pairs[low:high] for low, high in itertools.pairwise(offsets)))
    if hasattr(array, "value_lengths"):
        elements = iter(_values(array.flatten()))
        sizes = array.value_lengths().fill_null(0).to_pylist()
        return _where(array, ([next(elements) for _ in range(size)] for size in sizes))
    if pa.types.is_temporal(kind):
        return [None if not value.is_valid else _value(value) for value in array]
    return list(array.to_pylist())


def _where(array: pa.Array, values: Iterator[Any]) -> list[Any]:
    valid = array.is_valid().to_pylist()
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _value(scalar: pa.Scalar) -> object:
    kind = scalar.type
    if kind == pa.month_day_nano_interval():
        return _interval_text(*scalar.as_py())
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        if scalar.value % 1000:
            return _time_text(scalar.value, kind)
        scalar = scalar.cast(pa.timestamp("us", kind.tz))
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        if pa.types.is_date(kind):
            days = scalar.value if pa.types.is_date32(kind) else scalar.value // 86_400_000
            return Spelled.of(_signed(str(np.datetime64(days, "D"))), scalar.value)
        if not pa.types.is_timestamp(kind):
            return str(scalar)
        return Spelled.of(_time_text(scalar.value, kind), scalar.value)


def _time_text(value: int, kind: pa.DataType) -> str:
    """A time as Spark shows it, in UTC."""
    seconds, part = divmod(value, _UNITS[kind.unit])
    day, second = divmod(seconds, 86_400)
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    digits = len(str(_UNITS[kind.unit])) - 1
    fraction = f".{part:0{digits}}".rstrip("0") if part else ""
    return f"{_signed(str(np.datetime64(day, 'D')))} {clock}{fraction}"


def _signed(day: str) -> str:
    """Years have four digits at least, and those of more have a sign, as in ISO 8601."""
    year, rest = day.lstrip("-").split("-", 1)
    sign = "-" if day.startswith("-") else "+" if len(year) > len("9999") else ""
    return f"{sign}{year:0>4}-{rest}"


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    """Source: Spark's CalendarInterval.toString."""
    parts = [*_units(months, (12, "years"), (1, "months")), *_units(days, (1, "days"))]
    parts += _units(nanoseconds, (_HOUR, "hours"), (_MINUTE, "minutes"))
    rest = abs(nanoseconds) % _MINUTE
    if rest:
        exact = decimal.Decimal(rest if nanoseconds > 0 else -rest).scaleb(-9).normalize()
        parts.append(f"{exact:f} seconds")
    return " ".join(parts) or "0 seconds"


def _units(value: int, *units: tuple[int, str]) -> list[str]:
    """How many of each unit there are, the largest first. As in Java, a rest has the sign of the whole."""
    sign, rest = (-1, -value) if value < 0 else (1, value)
    parts = []
    for size, name in units:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{sign * count} {name}")
    return parts
