"""``CAST`` and ``TRY_CAST``, and the casts that Spark inserts by itself.

A value that the target type cannot hold is an error in ``CAST`` and null in ``TRY_CAST``. Floats are not cast to text,
because versions of Java spell them in different ways.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql import text_casts
from lakemerge.sql.decimals import Integers, beyond, from_unscaled, rescaled, to_unscaled
from lakemerge.sql.nodes import Constant, Node, call
from lakemerge.sql.types import STRING, is_text
from lakemerge.sql.vectors import Mask, from_vector, nulled, refuse, to_vector, valid
from mergers.type_names import type_name

__all__ = ["as_text", "cast"]

Cast = tuple[pa.Array, Mask]
"""The values, and where the target type cannot hold the source's value."""

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_DOUBLE_DIGITS = 15
"""An integer of up to this many digits is exact as a double, and so is the power of ten that divides it."""


def cast(node: Node, kind: pa.DataType, text: str | None = None, *, lenient: bool = False) -> Node:
    """``CAST(node AS kind)``; with ``lenient``, ``TRY_CAST``. Raises :class:`FilterError` for types that do not fit."""
    text = node.text if text is None else text
    if node.kind == kind:
        return node
    if pa.types.is_null(node.kind):
        return Constant(None, kind, text)
    kernel = _KERNELS.get((_class(node.kind), _class(kind)))
    if kernel is None:
        why = ", which Java's versions spell in different ways" if pa.types.is_floating(node.kind) else ""
        raise FilterError(f"{node.text} is {type_name(node.kind)}{why}; a filter does not cast it to {type_name(kind)}")
    run = partial(_converted, kernel=kernel, kind=kind, lenient=lenient)
    return call(run, [node], kind, text, fails=not lenient and _fails(node.kind, kind))


def as_text(node: Node) -> Node:
    """The node as a string: the cast that Spark inserts if a function needs text."""
    return cast(node, STRING)


def _class(kind: pa.DataType) -> str:
    for found, test in _CLASSES.items():
        if test(kind):
            return found
    return "other"


def _is_instant(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _is_local(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is None


_CLASSES: dict[str, Callable[[pa.DataType], bool]] = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "boolean": pa.types.is_boolean,
    "text": is_text,
    "date": pa.types.is_date,
    "instant": _is_instant,
    "local": _is_local,
}


def _fails(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_integer(source) and pa.types.is_integer(target):
        return target.bit_width < source.bit_width
    if pa.types.is_boolean(source):
        return pa.types.is_decimal(target)
    return is_text(source) or _class(target) not in ("float", "text", "boolean")


def _converted(
    array: pa.Array, *, kernel: Callable[[pa.Array, pa.DataType], Cast], kind: pa.DataType, lenient: bool
) -> pa.Array:
    values, bad = kernel(array, kind)
    if lenient:
        return nulled(values, bad)
    refuse(bad, "{} is not a valid " + type_name(kind) + "; TRY_CAST gives NULL there", array)
    return values


def _all_good(array: pa.Array) -> Cast:
    return array, np.zeros(len(array), dtype=np.bool_)


def _plain(array: pa.Array, kind: pa.DataType) -> Cast:
    return _all_good(pc.cast(array, kind, safe=False))


def _integer_to_integer(array: pa.Array, kind: pa.DataType) -> Cast:
    values = to_vector(array)
    limits = np.iinfo(kind.to_pandas_dtype())
    bad = (values < limits.min) | (values > limits.max)
    return from_vector(values.astype(limits.dtype), valid(array), kind), bad


def _float_to_integer(array: pa.Array, kind: pa.DataType) -> Cast:
    values = to_vector(array).astype(np.float64)
    limits = np.iinfo(kind.to_pandas_dtype())
    with np.errstate(invalid="ignore"):
        bad = ~((np.floor(values) <= float(limits.max)) & (np.ceil(values) >= float(limits.min)))
        whole = np.where(bad, 0.0, np.trunc(values))
        top = whole >= float(limits.max)  # 2**63 too: as a double, the highest BIGINT is the same number
        whole = np.where(top, 0.0, whole).astype(limits.dtype)
    return from_vector(np.where(top, limits.max, whole), valid(array), kind), bad


def _decimal_to_integer(array: pa.Array, kind: pa.DataType) -> Cast:
    values = _whole(to_unscaled(array), array.type.scale)
    limits = np.iinfo(kind.to_pandas_dtype())
    bad = ((values < limits.min) | (values > limits.max)).astype(np.bool_)
    return from_vector(np.where(bad, 0, values).astype(limits.dtype), valid(array), kind), bad


def _whole(values: Integers, scale: int) -> Integers:
    """Digits behind the point are cut off."""
    size = np.abs(values) // 10**scale
    return np.where((values < 0).astype(np.bool_), -size, size)


def _to_decimal(values: Integers, digits: int, scale: int, known: Mask, kind: pa.DataType) -> Cast:
    found = rescaled(values, digits, scale, kind.scale)
    bad = beyond(found, known, kind.precision)
    return from_unscaled(np.where(bad, 0, found), known, kind), bad


def _integer_to_decimal(array: pa.Array, kind: pa.DataType) -> Cast:
    return _to_decimal(to_unscaled(array), 19, 0, valid(array), kind)


def _decimal_to_decimal(array: pa.Array, kind: pa.DataType) -> Cast:
    return _to_decimal(to_unscaled(array), array.type.precision, array.type.scale, valid(array), kind)


def _float_to_decimal(array: pa.Array, kind: pa.DataType) -> Cast:
    """The decimal with the float's shortest digits. NaN and the infinities become null."""
    array = array.cast(pa.float64())
    finite = pc.if_else(pc.is_finite(array), array, pa.scalar(None, pa.float64()))
    return text_casts.to_decimal(finite.cast(STRING), kind)


def _decimal_to_float(array: pa.Array, kind: pa.DataType) -> Cast:
    if array.type.precision <= _DOUBLE_DIGITS and pa.types.is_float64(kind):
        return _all_good(from_vector(to_unscaled(array) / 10.0**array.type.scale, valid(array), kind))
    return _all_good(array.cast(STRING).cast(kind))  # Arrow's own cast does not round to the nearest


def _number_to_boolean(array: pa.Array, kind: pa.DataType) -> Cast:
    values = to_unscaled(array) if pa.types.is_decimal(array.type) else to_vector(array)
    return _all_good(from_vector((values != 0).astype(np.bool_), valid(array), kind))


def _boolean_to_decimal(array: pa.Array, kind: pa.DataType) -> Cast:
    return _integer_to_decimal(array.cast(pa.int8()), kind)


def _integer_to_instant(array: pa.Array, kind: pa.DataType) -> Cast:
    """The number counts seconds. Numbers beyond the range of times become the first or the last time."""
    limit = np.iinfo(np.int64)
    values = to_vector(array).astype(np.int64)
    micros = np.clip(values, -(2**63 // _SECOND), 2**63 // _SECOND) * _SECOND
    micros = np.where(values > limit.max // _SECOND, limit.max, micros)
    micros = np.where(values < -(limit.max // _SECOND), limit.min, micros)
    return _all_good(from_vector(micros, valid(array), kind))


def _float_to_instant(array: pa.Array, kind: pa.DataType) -> Cast:
    with np.errstate(over="ignore", invalid="ignore"):
        micros = to_vector(array).astype(np.float64) * _SECOND
    values, bad = _float_to_integer(pa.array(micros), pa.int64())
    return from_vector(to_vector(values), valid(array), kind), bad


def _date_to_time(array: pa.Array, kind: pa.DataType) -> Cast:
    days = to_vector(array).astype(np.int64)
    bad = np.abs(days) > 2**63 // _DAY - 1
    return from_vector(np.where(bad, 0, days) * _DAY, valid(array), kind), bad


def _time_to_date(array: pa.Array, kind: pa.DataType) -> Cast:
    return _all_good(from_vector((to_vector(array) // _DAY).astype(np.int32), valid(array), kind))


def _same_clock(array: pa.Array, kind: pa.DataType) -> Cast:
    """Between times with a zone and times without one. The zone is UTC."""
    return _all_good(array.view(pa.int64()).view(kind))


def _instant_to_integer(array: pa.Array, kind: pa.DataType) -> Cast:
    seconds = from_vector(to_vector(array) // _SECOND, valid(array), pa.int64())
    return _integer_to_integer(seconds, kind)


def _instant_to_float(array: pa.Array, kind: pa.DataType) -> Cast:
    seconds = from_vector(to_vector(array) / float(_SECOND), valid(array), pa.float64())
    return _plain(seconds, kind)


def _instant_to_decimal(array: pa.Array, kind: pa.DataType) -> Cast:
    return _to_decimal(to_vector(array), 19, 6, valid(array), kind)


_KERNELS: dict[tuple[str, str], Callable[[pa.Array, pa.DataType], Cast]] = {
    ("integer", "integer"): _integer_to_integer,
    ("integer", "float"): _plain,
    ("integer", "decimal"): _integer_to_decimal,
    ("integer", "boolean"): _number_to_boolean,
    ("integer", "text"): _plain,
    ("integer", "instant"): _integer_to_instant,
    ("float", "integer"): _float_to_integer,
    ("float", "float"): _plain,
    ("float", "decimal"): _float_to_decimal,
    ("float", "boolean"): _number_to_boolean,
    ("float", "instant"): _float_to_instant,
    ("decimal", "integer"): _decimal_to_integer,
    ("decimal", "float"): _decimal_to_float,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "boolean"): _number_to_boolean,
    ("decimal", "text"): text_casts.from_decimal,
    ("boolean", "integer"): _plain,
    ("boolean", "float"): _plain,
    ("boolean", "decimal"): _boolean_to_decimal,
    ("boolean", "text"): _plain,
    ("text", "integer"): text_casts.to_integer,
    ("text", "float"): text_casts.to_float,
    ("text", "decimal"): text_casts.to_decimal,
    ("text", "boolean"): text_casts.to_boolean,
    ("text", "date"): text_casts.to_date,
    ("text", "instant"): text_casts.to_time,
    ("text", "local"): text_casts.to_time,
    ("date", "instant"): _date_to_time,
    ("date", "local"): _date_to_time,
    ("date", "text"): text_casts.from_date,
    ("instant", "date"): _time_to_date,
    ("instant", "local"): _same_clock,
    ("instant", "text"): text_casts.from_time,
    ("instant", "integer"): _instant_to_integer,
    ("instant", "float"): _instant_to_float,
    ("instant", "decimal"): _instant_to_decimal,
    ("local", "date"): _time_to_date,
    ("local", "instant"): _same_clock,
    ("local", "text"): text_casts.from_time,
}
