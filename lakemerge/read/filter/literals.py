"""Literals of SQL filters: their values, and how they compare with columns of each type.

A literal is compared exactly. If a column's type cannot hold it (2.5 against an integer, noon
against a date), :func:`fit` says between which values it lies. So no column is ever cast.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import re
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from lakemerge.errors import FilterError
from lakemerge.sql.times import parse_date, parse_timestamp
from mergers.type_names import type_name

__all__ = ["EXACT", "Fit", "Place", "Value", "cast_may_fail", "fit"]

Value = bool | int | float | Decimal | str | bytes | dt.datetime | dt.date
"""A date-time without a zone is an instant in the filter's zone, or a TIMESTAMP_NTZ. The column's type decides."""

EXACT = Context(prec=1100, traps=[InvalidOperation])
"""Decimal arithmetic wide enough for every finite double, so that nothing is rounded on the way."""

_LONG_DIGITS, _MAX_DIGITS = 20, 38
"""Digits of Spark's decimals: of the decimal that an integer counts as, and the most that there can be."""


class Place(enum.Enum):
    """Where a literal lies among the values of a column's type."""

    AT = "at"
    """The literal is equal to the value."""
    ABOVE = "above"
    """Between the value and the next higher one."""
    OVER = "over"
    """Above every value."""
    UNDER = "under"
    """Below every value."""


@dataclass(frozen=True, slots=True)
class Fit:
    place: Place
    value: Any = None
    """The value of the column's type, for ``AT`` and ``ABOVE``."""


def fit(value: Value, kind: pa.DataType, column: str, zone: dt.tzinfo | None) -> Fit:
    """Place ``value`` among the values of the Arrow type ``kind``.

    Text counts as the number, boolean, date or time that it spells, as in Spark. NaN is above
    every number.

    :param zone: the zone of times without one. ``None`` if it is not known.
    :raises lakemerge.FilterError: the two cannot be compared at all, or not without the zone.
    """
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    if isinstance(value, dt.datetime) and not zoned and zone is not dt.UTC:
        # Spark takes the column's values, too, for times in the session's zone. Where clocks are
        # put forward and back, their order is then not that of the values.
        raise FilterError(f"{column} is {type_name(kind)} and is compared with a TIMESTAMP in UTC only", column=column)
    if isinstance(value, str) and not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        value = _spelled(value, kind, column)
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if number and pa.types.is_floating(kind):
        return Fit(Place.AT, float(value))  # type: ignore[arg-type]
    if number and pa.types.is_integer(kind):
        highest = 2 ** (kind.bit_width - 1) - 1
        return _fit_number(value, 0, -highest - 1, highest, int)  # type: ignore[arg-type]
    if number and pa.types.is_decimal(kind):
        highest = 10**kind.precision - 1
        return _fit_number(value, kind.scale, -highest, highest, Decimal)  # type: ignore[arg-type]
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return Fit(Place.AT, value)
    if pa.types.is_string(kind) and isinstance(value, str):
        return Fit(Place.AT, value)
    if pa.types.is_binary(kind) and isinstance(value, str | bytes):
        return Fit(Place.AT, value.encode() if isinstance(value, str) else value)
    if pa.types.is_date(kind) and isinstance(value, dt.date):
        return _fit_date(value)
    if pa.types.is_timestamp(kind) and isinstance(value, dt.date):
        return _fit_timestamp(value, kind, column, zone)
    remedy = f": quote it, '{value!s}'" if pa.types.is_string(kind) else ""
    raise FilterError(f"{column} is {type_name(kind)} and cannot be compared with {value!r}{remedy}", column=column)


def cast_may_fail(value: Value, kind: pa.DataType) -> bool:
    """Whether Spark, to compare a column with the literal, might cast the column to a type that cannot hold every
    value of it. (:func:`fit` never does.) ``True`` where that is not certain."""
    if pa.types.is_integer(kind):
        return not isinstance(value, int | float)
    if pa.types.is_decimal(kind):
        if not isinstance(value, int | Decimal):
            return not isinstance(value, float)
        _, digits, exponent = Decimal(value).as_tuple()
        scale = max(0, -int(exponent))
        whole = max(_LONG_DIGITS, len(digits) - scale)
        return max(kind.precision - kind.scale, whole) + max(kind.scale, scale) > _MAX_DIGITS
    if pa.types.is_date(kind):
        return isinstance(value, dt.datetime)
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return False


def _spelled(text: str, kind: pa.DataType, column: str) -> Value:
    value: Value | None = None
    word = text.strip()
    if pa.types.is_date(kind):
        value = parse_date(word)
    elif pa.types.is_timestamp(kind):
        value = parse_timestamp(word)
    elif pa.types.is_boolean(kind):
        value = {"true": True, "false": False}.get(word.lower())
    elif pa.types.is_integer(kind) and re.fullmatch(r"[+-]?\d+", word, re.ASCII):
        value = int(word)
    elif pa.types.is_decimal(kind) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)", word, re.ASCII):
        value = Decimal(word)
    elif pa.types.is_floating(kind):
        try:
            value = float(word)
        except ValueError:
            value = None
    if value is None:
        raise FilterError(
            f"column {column!r} is {type_name(kind)}, and {text!r} is not such a value: compare it with a value of its "
            "type",
            column=column,
        )
    return value


def _fit_number(value: float | Decimal, scale: int, lowest: int, highest: int, build: type) -> Fit:
    """Place a number among ``k / 10**scale`` for integers ``lowest <= k <= highest``."""
    if isinstance(value, float) and not math.isfinite(value):
        return Fit(Place.UNDER if value < 0 else Place.OVER)
    scaled = EXACT.scaleb(Decimal(value), scale)
    floor = scaled.to_integral_value(ROUND_FLOOR)
    if floor < lowest:
        return Fit(Place.UNDER)
    if scaled > highest:
        # What lies just above the highest value is above every value.
        return Fit(Place.OVER)
    return Fit(Place.AT if floor == scaled else Place.ABOVE, build(EXACT.scaleb(floor, -scale)))


def _fit_date(value: dt.date) -> Fit:
    if not isinstance(value, dt.datetime):
        return Fit(Place.AT, value)
    instant = value.astimezone(dt.UTC) if value.tzinfo else value
    midnight = instant.time() == dt.time()
    return Fit(Place.AT if midnight else Place.ABOVE, instant.date())


def _fit_timestamp(value: dt.date, kind: pa.DataType, column: str, zone: dt.tzinfo | None) -> Fit:
    if not isinstance(value, dt.datetime):
        value = dt.datetime.combine(value, dt.time())
    if kind.tz is not None:
        if value.tzinfo is None and zone is None:
            raise FilterError(f"{value.isoformat()!r} has no time zone, and that of the session is not known")
        try:
            # Within one zone Python would compare wall-clock times.
            return Fit(Place.AT, value.replace(tzinfo=value.tzinfo or zone).astimezone(dt.UTC))
        except OverflowError:
            raise FilterError(f"{column}: {value.isoformat()!r} is outside the years 1 to 9999 in UTC") from None
    if value.tzinfo is not None:
        raise FilterError(f"{column} has no time zone: leave the zone out of {value.isoformat()!r}", column=column)
    return Fit(Place.AT, value)
