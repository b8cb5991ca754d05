"""Casts Python values from JSON and Avro to columns of the table. JSON comes here if Arrow's reader refuses it.

These fit: for a column of integers, whole numbers; texts of such numbers; ``true`` and ``false``; ISO 8601 dates and
times; for a binary column, base64 (as Spark reads JSON); for a string column, any value, as its number or JSON text.
Fields of structs match by name, whatever their case.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from lakemerge.ingest.casting import Problems, texts_fitted
from lakemerge.ingest.formats.times import TimeFormat, TimeFormats
from lakemerge.ingest.logical import Clock, Day, Moment, Span
from mergers.type_names import type_name

__all__ = ["Literal", "Misfits", "Place", "column_of", "exactly", "json_text"]

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NAMED_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST: Final = {16: 65520.0, 32: float(2**128 - 2**103), 64: math.inf}
"""Width of a float -> the least number that is too large for it, also when it is rounded."""
_OWN: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_INEXACT: Final = (float, dict, list)
"""Types that are or may hold a float."""
_MOST_DIGITS: Final = 40
_BOOLEANS: Final = {"true": True, "false": False}


class Literal(str):
    """A number as it is written in the file. Several such texts may be the same float."""

    __slots__ = ()


class Place(str):
    """The dotted name of a field within a column, with the parts it is of. A column may have a dot in its name."""

    __slots__ = ("parts",)
    parts: tuple[str, ...]

    @staticmethod
    def of(outer: str, part: str) -> Place:
        place = Place(f"{outer}.{part}")
        place.parts = (*(outer.parts if isinstance(outer, Place) else (outer,)), part)
        return place


@dataclass(slots=True)
class Misfits:
    """The values that did not fit a column."""

    problems: Problems = field(default_factory=dict)
    """Row -> why a value does not fit. The value is then null."""
    inexact: set[int] = field(default_factory=set)
    """Rows with a float where the text of the number counts. :func:`exactly` has to read them again."""
    unknown: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Row -> fields that the table lacks: those of structs as :class:`Place`."""
    unfit: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Row -> values that did not fit their column, where they are rescued and so are no problems."""
    times: TimeFormats = field(default_factory=TimeFormats)
    """How times are written in what is read."""


def exactly(text: bytes) -> Any:
    """JSON whose numbers are :class:`Literal`, except short whole ones, and whose NaN and infinities are texts. Raises
    ``ValueError``."""
    return json.loads(text, parse_float=Literal, parse_int=_whole, parse_constant=str)


def _whole(text: str) -> int | Literal:
    return Literal(text) if len(text) > 18 or text == "-0" else int(text)


def json_text(value: object) -> str:
    """A value as JSON, with numbers as they were written."""
    if isinstance(value, Literal):
        return str(value)
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS | _OWN).decode()
    except (TypeError, ValueError):
        return json.dumps(value, default=repr, ensure_ascii=False, separators=(",", ":"))


def column_of(values: Sequence[Any], kind: pa.DataType, misfits: Misfits, *, name: str = "") -> pa.Array:
    """Values as a column of the type. A value that does not fit is null, and noted in ``misfits``.

    :param name: the column's name, for the dotted names of fields.
    """
    return _column(values, range(len(values)), kind, misfits, name)


def _column(values: Sequence[Any], owners: Sequence[int], kind: pa.DataType, misfits: Misfits, name: str) -> pa.Array:
    """``owners``: for each value, the number of its row."""
    if pa.types.is_struct(kind):
        return _structs(values, owners, kind, misfits, name)
    if pa.types.is_list(kind):
        return _lists(values, owners, kind, misfits, name)
    if pa.types.is_map(kind):
        return _maps(values, owners, kind, misfits, name)
    written = misfits.times.format_of(name, kind)
    convert = _converter(kind) if written is None else _text_of_time(written)
    is_text = pa.types.is_string(kind)
    floating = _INEXACT if is_text else (float,)
    needs_text = not (pa.types.is_floating(kind) or pa.types.is_boolean(kind))
    found: list[Any] = []
    for owner, value in zip(owners, values, strict=True):
        if value is None:
            found.append(None)
            continue
        if needs_text and (type(value) in floating or (is_text and value == 0 and type(value) is int)):
            misfits.inexact.add(owner)  # also for -0
        try:
            found.append(convert(value))
        except (ValueError, TypeError, ArithmeticError):
            found.append(None)
            misfits.problems.setdefault(owner, _misfit(name, value, kind))
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return pa.array(found, kind)
    return _times(found, owners, kind, misfits, name, written)


def _text_of_time(written: TimeFormat) -> Callable[[Any], str]:
    """A function for the text of a time, which may be a number if the format counts."""

    def text(value: Any) -> str:
        if isinstance(value, str):
            return str(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return repr(value) if is_number and written.is_number else _refuse(value)

    return text


def _times(
    found: Sequence[Any],
    owners: Sequence[int],
    kind: pa.DataType,
    misfits: Misfits,
    name: str,
    written: TimeFormat | None,
) -> pa.Array:
    """Times, from texts or from numbers: microseconds, or days, since 1970."""
    texts = pa.array([value if isinstance(value, str) else None for value in found], pa.string())
    array, problems = texts_fitted(texts, kind) if written is None else written.read(texts, kind)
    for place, reason in problems.items():
        misfits.problems.setdefault(owners[place], f"column {name!r}: {reason}")
    numbers = [value if isinstance(value, int) else None for value in found]
    if any(value is not None for value in numbers):
        whole = pa.array(numbers, pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
        array = pa.compute.coalesce(array, whole.cast(kind))
    return array


def _structs(
    values: Sequence[Any], owners: Sequence[int], kind: pa.StructType, misfits: Misfits, name: str
) -> pa.Array:
    names = {child.name.lower(): place for place, child in enumerate(kind)}
    children: list[list[Any]] = [[] for _ in kind]
    nulls = np.zeros(len(values), np.bool_)
    for place, (owner, value) in enumerate(zip(owners, values, strict=True)):
        row: list[Any] = [None] * len(names)
        nulls[place] = not isinstance(value, Mapping)
        if isinstance(value, Mapping):
            for given, part in value.items():
                found = names.get(given.lower())
                if found is None:
                    misfits.unknown.setdefault(owner, {})[Place.of(name, given)] = part
                else:
                    row[found] = part
        elif value is not None:
            misfits.problems.setdefault(owner, _misfit(name, value, kind))
        for column, part in zip(children, row, strict=True):
            column.append(part)
    arrays = [
        _column(column, owners, child.type, misfits, Place.of(name, child.name))
        for column, child in zip(children, kind, strict=True)
    ]
    fields = [child.with_nullable(True) for child in kind]
    array = pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(nulls))
    for child, part in zip(kind, arrays, strict=True):
        if not child.nullable and part.null_count:
            for place in np.flatnonzero(part.is_null().to_numpy(zero_copy_only=False) & ~nulls).tolist():
                misfits.problems.setdefault(owners[place], f"field {name}.{child.name} is null, and it is NOT NULL")
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=arrays)


def _lists(values: Sequence[Any], owners: Sequence[int], kind: pa.ListType, misfits: Misfits, name: str) -> pa.Array:
    items: list[Any] = []
    item_owners: list[int] = []
    offsets: list[int | None] = []
    for owner, value in zip(owners, values, strict=True):
        offsets.append(len(items) if isinstance(value, list | tuple) else None)
        if isinstance(value, list | tuple):
            items.extend(value)
            item_owners.extend([owner] * len(value))
        elif value is not None:
            misfits.problems.setdefault(owner, _misfit(name, value, kind))
    inner = _column(items, item_owners, kind.value_type, misfits, Place.of(name, "element"))
    if not kind.value_field.nullable:
        _no_nulls(inner, item_owners, f"an element of {name}", misfits)
    return pa.ListArray.from_arrays(pa.array([*offsets, len(items)], pa.int32()), inner, type=kind)


def _maps(values: Sequence[Any], owners: Sequence[int], kind: pa.MapType, misfits: Misfits, name: str) -> pa.Array:
    keys: list[Any] = []
    items: list[Any] = []
    item_owners: list[int] = []
    offsets: list[int | None] = []
    for owner, value in zip(owners, values, strict=True):
        offsets.append(len(keys) if isinstance(value, Mapping) else None)
        if isinstance(value, Mapping):
            keys.extend(value.keys())
            items.extend(value.values())
            item_owners.extend([owner] * len(value))
        elif value is not None:
            misfits.problems.setdefault(owner, _misfit(name, value, kind))
    key_array = _column(keys, item_owners, kind.key_type, misfits, Place.of(name, "key"))
    item_array = _column(items, item_owners, kind.item_type, misfits, Place.of(name, "value"))
    if key_array.null_count:  # reported already; a map has no null keys
        key_array = pa.array([part if part is not None else _filler(kind.key_type) for part in key_array.to_pylist()])
        key_array = key_array.cast(kind.key_type)
    if not kind.item_field.nullable:
        _no_nulls(item_array, item_owners, f"a value of {name}", misfits)
    starts = pa.array([*offsets, len(keys)], pa.int32())
    return pa.MapArray.from_arrays(starts, key_array, item_array, type=kind)


def _misfit(name: str, value: Any, kind: pa.DataType) -> str:
    return f"column {name!r}: {_short(value)} does not fit {type_name(kind)}"


def _filler(kind: pa.DataType) -> Any:
    return "" if pa.types.is_string(kind) else 0


def _no_nulls(array: pa.Array, owners: Sequence[int], what: str, misfits: Misfits) -> None:
    if array.null_count:
        for place in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            misfits.problems.setdefault(owners[place], f"{what} is null, and it is NOT NULL")


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return lambda value: _within(_integer(value), most)
    if pa.types.is_floating(kind):
        return partial(_float, most=_MOST[kind.bit_width])
    if pa.types.is_decimal(kind):
        return lambda value: _decimal(value, kind.precision, kind.scale)
    if pa.types.is_string(kind):
        return _text
    if pa.types.is_binary(kind):
        return _binary
    return lambda value: _moment(value, kind)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _BOOLEANS[value.lower()] if value.lower() in _BOOLEANS else _refuse(value)
    return _refuse(value)


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, float | Decimal) and value == value.__floor__():
        return int(value)
    if isinstance(value, Moment | Day | Clock):
        return value.number
    if isinstance(value, Literal):
        number = Decimal(value)
        # A number of many digits is written as a short text such as 1e999999.
        small = number.adjusted() < _MOST_DIGITS
        return int(number) if small and number == number.to_integral_value() else _refuse(value)
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    return _refuse(value)


def _within(value: int, most: int) -> int:
    return value if -most <= value < most else _refuse(value)


def _float(value: Any, *, most: float) -> float:
    """A float, of at most this size: a number beyond it would become infinite without an error."""
    if isinstance(value, bool):
        return _refuse(value)
    if isinstance(value, str):
        text = value.strip()
        if text in _NAMED_NUMBERS:
            return _NAMED_NUMBERS[text]
        number = float(text) if _NUMBER.fullmatch(text) else _refuse(value)
    elif isinstance(value, int | float | Decimal):
        number = float(value)
        if isinstance(value, float) and math.isinf(value):
            return number
    else:
        return _refuse(value)
    return number if math.isnan(number) or abs(number) < most else _refuse(value)


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return _refuse(value)
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        return _refuse(value)
    number = Decimal(repr(value) if isinstance(value, float) else value)
    if number == 0:
        return Decimal(0)
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or number.adjusted() >= precision - scale:
        return _refuse(value)
    zeros = len(digits) - len(bytes(digits).rstrip(b"\0"))
    return number if exponent + zeros >= -scale else _refuse(value)


def _text(value: Any) -> str:
    """A value as a text of itself: what JSON has as a text is one here, without quotes."""
    if isinstance(value, str):
        value.encode()  # raises a ValueError for half a surrogate pair
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Moment | Day | Clock | Span | uuid.UUID):
        return str(value)
    return json_text(value)


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, uuid.UUID):
        return value.bytes
    if not isinstance(value, str):
        return _refuse(value)
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(value) from error


def _moment(value: Any, kind: pa.DataType) -> str | int:
    """A time: its text, or its number of microseconds or days since 1970."""
    if isinstance(value, Moment) and pa.types.is_timestamp(kind):
        fits = value.zone is None or value.zone == (kind.tz is not None)
        return value.micros() if fits else _refuse(value)
    if isinstance(value, Day) and pa.types.is_date(kind):
        return _within(value.number, 2**31)
    return value if isinstance(value, str) else _refuse(value)


def _refuse(value: object) -> Any:
    raise ValueError(value)


def _plain(value: object) -> object:
    if isinstance(value, Literal):
        return orjson.Fragment(value.encode())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _short(value: object) -> str:
    text = json_text(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
