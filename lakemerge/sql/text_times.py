"""Casts of text to dates and times, by Spark's rules, and back to text.

The session's zone is UTC here. Each function returns the values, and where a value cannot be cast.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.sql.civil import Vector, days_of, month_days, year_month_day
from lakemerge.sql.nodes import RowError
from lakemerge.sql.text_numbers import BLANKS
from lakemerge.sql.times import parse_zone
from lakemerge.sql.vectors import Mask, from_vector, to_vector, truths, valid

__all__ = ["from_date", "from_time", "to_date", "to_time"]

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_YEAR_MONTH = r"-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
_DATE = rf"(?s)\A(?P<sign>[+-]?)(?P<year>[0-9]{{4,7}})(?:{_YEAR_MONTH}(?:[ T].*)?)?)?\z"
_CLOCK = (
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})"
    r"(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]*))?(?P<zone>[^0-9.:].*)?)?)?"
)
_TIME = rf"\A(?P<sign>[+-]?)(?P<year>[0-9]{{4,6}})(?:{_YEAR_MONTH}(?:[ T]{_CLOCK})?)?)?\z"
_CLOCK_ALONE = r"\AT?[0-9]{1,2}:[0-9]{1,2}|\AT[0-9]{1,2}\z"
_OFFSET = (
    r"\A *(?:UTC|GMT|UT)?(?P<sign>[+-])"
    r"(?:(?P<h>[0-9]{1,2})(?::(?P<m>[0-9]{1,2}))?|(?P<hl>[0-9]{1,2}):(?P<ml>[0-9]{2}):(?P<sl>[0-9]{2})"
    r"|(?P<hs>[0-9]{2})(?P<ms>[0-9]{2})(?P<ss>[0-9]{2})?)\z"
)
_UTC = ("Z", "UTC", "GMT", "UT")
_FAR = 18 * 3600
"""Offsets are at most 18 hours."""


def to_date(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """``yyyy[-m[-d[ ...]]]``."""
    parts = _fields(pc.extract_regex(pc.ascii_trim(texts, characters=BLANKS), _DATE))
    days, known = _days(parts)
    return from_vector(days.astype(np.int32), known, kind), valid(texts) & ~known


def to_time(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """``yyyy[-m[-d[ h[:m[:s[.f][zone]]]]]]``. Digits behind the microseconds are ignored. TIMESTAMP_NTZ also ignores
    the zone."""
    trimmed = pc.ascii_trim(texts, characters=BLANKS)
    if kind.tz is not None:
        _refuse_without_date(trimmed)
    found = pc.extract_regex(trimmed, _TIME)
    parts = _fields(found)
    days, known = _days(parts)
    hour, minute, second = (_number(parts[name], "0") for name in ("hour", "minute", "second"))
    known &= (hour < 24) & (minute < 60) & (second < 60)
    micros = _number(pc.utf8_rpad(pc.utf8_slice_codeunits(parts["fraction"], 0, 6), 6, "0"), "0")
    clock = ((hour * 60 + minute) * 60 + second) * _SECOND + micros
    offsets, real = _offsets(parts["zone"], known, days, clock)
    known &= real & (np.abs(days) < 2**63 // _DAY)
    instants = np.where(known, days, 0) * _DAY + clock
    if kind.tz is not None:
        instants = instants - offsets * _SECOND
    return from_vector(instants, known, kind), valid(texts) & ~known


def from_date(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """``yyyy-MM-dd``. Years after 9999 have a plus sign."""
    return _date_text(to_vector(values), valid(values)), np.zeros(len(values), dtype=np.bool_)


def from_time(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """``yyyy-MM-dd HH:mm:ss[.ffffff]`` without zeros at the end."""
    known = valid(values)
    days, micros = np.divmod(to_vector(values), _DAY)
    seconds, rest = np.divmod(micros, _SECOND)
    clock = pc.binary_join_element_wise(
        *(_padded(part, 2) for part in (seconds // 3600, seconds // 60 % 60, seconds % 60)), ":"
    )
    fraction = pc.utf8_rtrim(pc.binary_join_element_wise(".", _padded(rest, 6), ""), "0.")
    text = pc.binary_join_element_wise(_date_text(days, known), " ", clock, fraction, "")
    return text, np.zeros(len(values), dtype=np.bool_)


def _fields(parts: pa.StructArray) -> Mapping[str, pa.Array]:
    """The groups of a match by name. A group that did not match is empty. The empty name has whether the text
    matched."""
    found = {parts.type.field(i).name: parts.field(i) for i in range(parts.type.num_fields)}
    return {**found, "": parts.is_valid()}


def _number(texts: pa.Array, missing: str) -> Vector:
    """The numbers for texts of digits. An empty text is the number ``missing``."""
    return pc.if_else(pc.equal(texts, ""), missing, texts).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _days(parts: Mapping[str, pa.Array]) -> tuple[Vector, Mask]:
    """The days since 1970-01-01, and whether year, month and day are a date of the calendar."""
    year, month, day = _number(parts["year"], "0"), _number(parts["month"], "1"), _number(parts["day"], "1")
    year = np.where(truths(pc.equal(parts["sign"], "-")), -year, year)
    real = truths(parts[""]) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= month_days(year, month))
    return np.where(real, days_of(year, np.where(real, month, 1), day), 0), real


def _offsets(zones: pa.Array, known: Mask, days: Vector, clock: Vector) -> tuple[Vector, Mask]:
    """How many seconds each zone is ahead of UTC, and where the zone is valid. Raises :class:`RowError` for a name of a
    zone that is not known here. Java knows some names that Python does not."""
    named = known & ~truths(pc.equal(zones, ""))
    if not named.any():
        return np.zeros(len(zones), dtype=np.int64), known
    found = _fields(pc.extract_regex(zones, _OFFSET))
    hour, minute, second = (sum(_number(found[f"{unit}{way}"], "0") for way in ways) for unit, ways in _WAYS)
    offsets = (hour * 60 + minute) * 60 + second
    real = (offsets <= _FAR) & (minute < 60) & (second < 60)
    offsets = np.where(truths(pc.equal(found["sign"], "-")), -offsets, offsets)
    fixed = truths(found[""]) | truths(pc.is_in(pc.utf8_trim(zones, " "), pa.array(_UTC)))
    regional = named & ~fixed & truths(pc.match_substring_regex(zones, r"\A *[A-Za-z]"))
    for row in np.flatnonzero(regional).tolist():
        offsets[row] = _offset_in(zones[row].as_py().strip(), int(days[row]), int(clock[row]))
    return offsets, (real & fixed) | regional | ~named


_WAYS = (("h", ("", "l", "s")), ("m", ("", "l", "s")), ("s", ("l", "s")))


def _offset_in(text: str, days: int, micros: int) -> int:
    zone = parse_zone(text)
    try:
        local = dt.datetime(1970, 1, 1) + dt.timedelta(days=days, microseconds=micros)  # noqa: DTZ001
        offset = None if zone is None else zone.utcoffset(local)
    except OverflowError:
        offset = None
    if offset is None:
        raise RowError(f"the time zone {text!r} is not known here: write an offset, such as +01:00")
    return int(offset.total_seconds())


def _refuse_without_date(texts: pa.Array) -> None:
    alone = pc.match_substring_regex(texts, _CLOCK_ALONE)
    if pc.any(alone).as_py():
        text = texts.filter(alone)[0].as_py()
        raise RowError(f"{text!r} is a time of today to Spark; a filter needs the date")


def _date_text(days: Vector, known: Mask) -> pa.Array:
    year, month, day = year_month_day(days)
    sign = pa.array(np.where(year < 0, "-", np.where(year > 9999, "+", "")), pa.string())
    years = pc.binary_join_element_wise(sign, _padded(np.abs(year), 4), "")
    text = pc.binary_join_element_wise(years, _padded(month, 2), _padded(day, 2), "-")
    return pc.if_else(pa.array(known), text, pa.scalar(None, pa.string()))


def _padded(values: Vector, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(values, pa.int64()).cast(pa.string()), width, "0")
