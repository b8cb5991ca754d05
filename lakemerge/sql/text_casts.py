"""Casts from text to numbers, booleans, dates and times, by Spark's rules, and from decimals, dates and times to text.

Each function returns the values, and where a value cannot be cast. The session's zone is UTC here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.sql.calendar import Vector, days_of, month_days, year_month_day
from lakemerge.sql.decimals import Integers, beyond, from_unscaled, halves_up, to_unscaled
from lakemerge.sql.nodes import RowError
from lakemerge.sql.times import parse_zone
from lakemerge.sql.vectors import Mask, from_vector, to_vector, truths, valid

__all__ = [
    "BLANKS",
    "from_date",
    "from_decimal",
    "from_time",
    "to_boolean",
    "to_date",
    "to_decimal",
    "to_float",
    "to_integer",
    "to_time",
]

_BELOW_SPACE = "".join(map(chr, range(0x21)))
BLANKS = _BELOW_SPACE + "\x7f"
"""Casts ignore the blank and control characters at both ends of a text. (Casts to floats and decimals keep DEL.)"""

_SHORT = 18
"""This many digits always fit into int64."""
_MAX_DIGITS = 38
_INTEGER = r"\A(?P<sign>[+-]?)0*(?P<digits>[0-9]+)\z"
_DECIMAL = r"\A(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?\z"
_FLOAT = r"\A[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?\z"
_HEXADECIMAL = r"\A[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[dDfF]?\z"
_WORDS = {
    "nan": "nan", "inf": "inf", "+inf": "inf", "-inf": "-inf",
    "infinity": "inf", "+infinity": "inf", "-infinity": "-inf",
}  # fmt: skip
_SIGNED_NAN = ("+NaN", "-NaN")
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")

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


def to_integer(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The text has only digits, with or without a sign."""
    parts = pc.extract_regex(pc.ascii_trim(texts, characters=BLANKS), _INTEGER)
    known = valid(parts)
    values = _integers(parts.field("sign"), parts.field("digits"), known)
    limits = np.iinfo(kind.to_pandas_dtype())
    bad = valid(texts) & ~(known & ((values >= limits.min) & (values <= limits.max)).astype(np.bool_))
    return from_vector(np.where(bad, 0, values).astype(limits.dtype), known, kind), bad


def to_float(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The text is a double or a float by Java's rules: also ``1.``, ``.5``, ``1e5``, ``1.5d``, ``0x1p3``,
    ``Infinity``."""
    trimmed = pc.ascii_trim(texts, characters=_BELOW_SPACE)
    plain = pc.match_substring_regex(trimmed, _FLOAT)
    digits = pc.replace_substring_regex(trimmed, r"\A\+|[dDfF]\z", "")
    values = pc.if_else(plain, digits, pa.scalar(None, pa.string())).cast(kind)
    bad = valid(texts) & ~truths(plain)
    if bad.any():
        spelled = [_word(text) for text in trimmed.filter(pa.array(bad)).to_pylist()]
        others = pa.array(spelled, pa.float64()).cast(kind, safe=False)
        values = pc.replace_with_mask(values, pa.array(bad), others)
        bad[bad] = ~valid(others)
    return values, bad


def to_decimal(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The text may have an exponent. Halves are rounded away from zero."""
    trimmed = pc.ascii_trim(texts, characters=_BELOW_SPACE)
    parts = pc.extract_regex(trimmed, _DECIMAL)
    some = pc.match_substring_regex(trimmed, "[0-9]")
    odd = valid(texts) & ~(valid(parts) & truths(some))
    if odd.any():
        plain = [_plainly(text) for text in trimmed.filter(pa.array(odd)).to_pylist()]
        trimmed = pc.replace_with_mask(trimmed, pa.array(odd), pa.array(plain, pa.string()))
        parts = pc.extract_regex(trimmed, _DECIMAL)
    whole, known = parts.field("whole"), valid(parts)
    long = known & (pc.binary_length(whole).to_numpy(zero_copy_only=False) > _MAX_DIGITS)
    known &= ~long
    # Rounding depends on nothing but the first digit that is left out.
    fraction = pc.utf8_rpad(pc.utf8_slice_codeunits(parts.field("part"), 0, kind.scale + 1), kind.scale + 1, "0")
    values = halves_up(_integers(parts.field("sign"), pc.binary_join_element_wise(whole, fraction, ""), known), 10)
    bad = valid(texts) & (~known | beyond(values, known, kind.precision))
    return from_unscaled(np.where(bad, 0, values), known, kind), bad


def to_boolean(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    words = pc.ascii_lower(pc.ascii_trim(texts, characters=BLANKS))
    true, false = (truths(pc.is_in(words, pa.array(found))) for found in (_TRUE, _FALSE))
    return from_vector(true, true | false, kind), valid(texts) & ~(true | false)


def from_decimal(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Decimals as text with all digits and no exponent."""
    digits, scale, known = to_unscaled(values), values.type.scale, valid(values)
    size = np.abs(digits)
    sign = pa.array(np.where((digits < 0).astype(np.bool_), "-", ""), kind)
    text = pc.binary_join_element_wise(sign, _digits(size // 10**scale, known), "")
    if scale:
        fraction = pc.utf8_lpad(_digits(size % 10**scale, known), scale, "0")
        text = pc.binary_join_element_wise(text, fraction, ".")
    return text, np.zeros(len(values), dtype=np.bool_)


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


def _digits(values: Integers, known: Mask) -> pa.Array:
    return from_unscaled(values, known, pa.decimal128(_MAX_DIGITS, 0)).cast(pa.string())


def _integers(signs: pa.Array, digits: pa.Array, known: Mask) -> Integers:
    """The integers for texts of digits, with their signs. Zero where ``known`` is false."""
    short = known & (pc.binary_length(digits).to_numpy(zero_copy_only=False) <= _SHORT)
    values: npt.NDArray[np.object_] | npt.NDArray[np.int64]
    values = pc.if_else(pa.array(short), digits, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)
    long = known & ~short
    if long.any():
        values = values.astype(object)
        values[long] = [int(text) for text in digits.filter(pa.array(long)).to_pylist()]
    return np.where(truths(pc.equal(signs, "-")), -values, values)


def _word(text: str) -> float | None:
    """The value of a float that is not written in decimal digits."""
    word = _WORDS.get(text.lower(), "nan" if text in _SIGNED_NAN else None)
    if word is not None:
        return float(word)
    if not pc.match_substring_regex(pa.array([text]), _HEXADECIMAL)[0].as_py():
        return None
    try:
        return float.fromhex(text.rstrip("dDfF"))
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


def _plainly(text: str) -> str | None:
    """A decimal with an exponent, or in another alphabet's digits, as plain digits. ``None`` if it is not a decimal or
    too large."""
    if "_" in text or text != text.strip():
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    _, digits, exponent = value.as_tuple()
    if not value.is_finite() or abs(int(exponent)) >= 2**31:
        return None
    if len(digits) + int(exponent) > _MAX_DIGITS:
        return None
    if len(digits) + int(exponent) < -_MAX_DIGITS - 1:
        return "0"
    return f"{value:f}"


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
