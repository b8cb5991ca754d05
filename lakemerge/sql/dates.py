"""Functions of dates and times in UTC, and the addition of intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakemerge.sql.calendar import Vector, days_of, months_later, year_month_day
from lakemerge.sql.vectors import from_vector, refuse, to_vector, valid

__all__ = [
    "CLOCK_UNITS",
    "DATE_FIELDS",
    "DATE_LEVELS",
    "LEVELS",
    "TIME_FIELDS",
    "Interval",
    "clock_field",
    "date_field",
    "days_before",
    "days_between",
    "days_later",
    "later",
    "seconds_since",
    "truncated_date",
    "truncated_time",
]

_SECOND = 1_000_000
_MINUTE, _HOUR = 60 * _SECOND, 3600 * _SECOND
_DAY = 24 * _HOUR
_MONDAY = 3
"""1970-01-01 is this many days after a Monday."""

CLOCK_UNITS = {"microsecond": 1, "millisecond": 1000, "second": _SECOND, "minute": _MINUTE, "hour": _HOUR}
"""The length of each unit in microseconds."""
DATE_FIELDS = frozenset({"year", "quarter", "month", "day", "dayofweek", "weekday", "dayofyear"})
TIME_FIELDS = {"hour": (_HOUR, 24), "minute": (_MINUTE, 60), "second": (_SECOND, 60)}
DATE_LEVELS = {
    "week": "week", "mon": "month", "month": "month", "mm": "month", "quarter": "quarter", "year": "year",
    "yyyy": "year", "yy": "year",
}  # fmt: skip
"""The levels of ``trunc``. Case does not matter. Spark gives null for other levels."""
LEVELS = {**DATE_LEVELS, **dict.fromkeys(("day", "dd"), "day"), **{unit: unit for unit in CLOCK_UNITS}}
"""The levels of ``date_trunc``."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number of months or of microseconds."""

    months: int
    micros: int
    of_days: bool
    """The interval is written in days or weeks. A date plus such an interval is a date. A date plus hours is a time."""

    def negated(self) -> Interval:
        return Interval(-self.months, -self.micros, self.of_days)


def date_field(dates: pa.Array, *, field: str) -> pa.Array:
    days = to_vector(dates).astype(np.int64)
    if field in ("dayofweek", "weekday"):
        values = (days + _MONDAY) % 7 if field == "weekday" else (days + _MONDAY + 1) % 7 + 1
    else:
        year, month, day = year_month_day(days)
        by_field = {"year": year, "month": month, "day": day, "quarter": (month + 2) // 3}
        values = by_field[field] if field in by_field else days - days_of(year, *_ones(year)) + 1
    return from_vector(values.astype(np.int32), valid(dates), pa.int32())


def clock_field(times: pa.Array, *, field: str) -> pa.Array:
    unit, most = TIME_FIELDS[field]
    return from_vector((to_vector(times) // unit % most).astype(np.int32), valid(times), pa.int32())


def truncated_date(dates: pa.Array, *, level: str) -> pa.Array:
    days = _truncated_days(to_vector(dates).astype(np.int64), level)
    return from_vector(days.astype(np.int32), valid(dates), dates.type)


def truncated_time(times: pa.Array, *, level: str) -> pa.Array:
    micros = to_vector(times)
    if level in CLOCK_UNITS:
        micros = micros - micros % CLOCK_UNITS[level]
    else:
        micros = _truncated_days(micros // _DAY, level) * _DAY
    return from_vector(micros, valid(times), times.type)


def days_later(dates: pa.Array, days: pa.Array) -> pa.Array:
    """``date_add``. After the last date Spark wraps around to the first, and so does this."""
    values = to_vector(dates) + to_vector(days).astype(np.int32)
    return from_vector(values, valid(dates, days), dates.type)


def days_before(dates: pa.Array, days: pa.Array) -> pa.Array:
    values = to_vector(dates) - to_vector(days).astype(np.int32)
    return from_vector(values, valid(dates, days), dates.type)


def days_between(end: pa.Array, start: pa.Array) -> pa.Array:
    return from_vector(to_vector(end) - to_vector(start), valid(end, start), pa.int32())


def seconds_since(times: pa.Array) -> pa.Array:
    """``unix_timestamp``: fractions of a second are cut off towards 1970."""
    micros = to_vector(times)
    return from_vector(np.where(micros < 0, -(-micros // _SECOND), micros // _SECOND), valid(times), pa.int64())


def later(values: pa.Array, *, interval: Interval) -> pa.Array:
    """Dates or times with an interval added. Months are added first. If the month is too short for the day, the result
    is the month's last day."""
    known = valid(values)
    ticks = to_vector(values).astype(np.int64)
    if pa.types.is_date(values.type):
        days = months_later(ticks, interval.months) + interval.micros // _DAY
        bad = (days != days.astype(np.int32)) & known
        refuse(bad, "{} with the interval is not a valid DATE", values)
        return from_vector(days.astype(np.int32), known, values.type)
    days, clock = np.divmod(ticks, _DAY)
    days = months_later(days, interval.months)
    more_days, more = divmod(interval.micros, _DAY)
    clock = clock + more
    days = days + more_days + clock // _DAY
    bad = (np.abs(days) > 2**63 // _DAY - 1) & known
    refuse(bad, "{} with the interval is not a valid " + ("TIMESTAMP" if values.type.tz else "TIMESTAMP_NTZ"), values)
    return from_vector(np.where(bad, 0, days) * _DAY + clock % _DAY, known, values.type)


def _truncated_days(days: Vector, level: str) -> Vector:
    if level == "day":
        return days
    if level == "week":
        return days - (days + _MONDAY) % 7
    year, month, _ = year_month_day(days)
    one, _ = _ones(year)
    if level == "year":
        return days_of(year, one, one)
    return days_of(year, month if level == "month" else (month - 1) // 3 * 3 + 1, one)


def _ones(like: Vector) -> tuple[Any, Any]:
    ones = np.ones_like(like)
    return ones, ones
