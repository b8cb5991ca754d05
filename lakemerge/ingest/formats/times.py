"""How times are written in text files, where it is not as ISO 8601 has them: patterns of ``strptime``, and numbers that
count from 1970 on.

A pattern is read strictly: its text has to be there as a whole, and names of months and days are English. Whole columns
are taken apart by one regular expression, put together as ISO 8601, and cast by Arrow, which knows the calendar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.ingest.casting import Problems, cast_problems

__all__ = ["EPOCHS", "TimeFormat", "TimeFormats", "time_format_problem"]

EPOCHS: Final[Mapping[str, int]] = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0, "epoch_ns": -3}
"""Name of a count from 1970-01-01T00:00:00Z on -> by which power of ten it has more microseconds."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS: Final = "january|february|march|april|may|june|july|august|september|october|november|december"
_DAYS: Final = "monday|tuesday|wednesday|thursday|friday|saturday|sunday|mon|tue|wed|thu|fri|sat|sun"
_DATE: Final = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d{2})",
    "m": r"(?P<m>\d{1,2})",
    "d": r"(?P<d>\d{1,2})",
    "b": rf"(?P<b>(?i:{'|'.join(_MONTHS)}))",
    "B": rf"(?P<b>(?i:{_LONG_MONTHS}))",
    "a": rf"(?i:{_DAYS})",
    "A": rf"(?i:{_DAYS})",
    "%": "%",
}
_TIME: Final = {
    "H": r"(?P<H>\d{1,2})",
    "I": r"(?P<I>\d{1,2})",
    "p": r"(?P<p>(?i:am|pm))",
    "M": r"(?P<M>\d{1,2})",
    "S": r"(?P<S>\d{1,2})",
    "f": r"(?P<f>\d{1,6})",
    "z": r"(?P<z>Z|[+-]\d\d:?\d\d)",
}
_SHORT: Final = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "D": "%m/%d/%y", "R": "%H:%M"}
_NUMBER: Final = r"^(?P<sign>[+-]?)(?P<whole>\d{1,19})(?:\.(?P<part>\d*))?$"
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class TimeFormat:
    """How the values of one column are written. Picklable."""

    text: str

    @property
    def is_number(self) -> bool:
        """Whether values may be numbers of JSON."""
        return self.text in EPOCHS

    def read(self, texts: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, Problems]:
        """A column of strings as dates or times of the type; null where a text does not fit."""
        if self.is_number:
            array = self._counted(texts, wanted)
            problems: Problems = {}
        else:
            array, problems = cast_problems(self._iso(texts, wanted), wanted)
        lost = np.flatnonzero(pc.and_(texts.is_valid(), array.is_null()).to_numpy(zero_copy_only=False))
        for row in lost.tolist():
            problems[row] = f"{texts[row].as_py()!r} is not a time in the format {self.text!r}"
        return array, problems

    def _iso(self, texts: pa.Array, wanted: pa.DataType) -> pa.Array:
        found = pc.extract_regex(texts, pattern=_pattern(self.text))
        names = {part.name for part in found.type}
        parts = {name: pc.struct_field(found, name) for name in names}

        def two(name: str) -> Any:
            return pc.utf8_lpad(parts[name], 2, "0") if name in parts else "00"

        if "Y" in parts:
            year = parts["Y"]
        else:  # as POSIX has it: 69 to 99 are of the last century
            early = pc.less(parts["y"], "69")
            year = pc.binary_join_element_wise(pc.if_else(early, "20", "19"), parts["y"], "")
        month = two("m")
        if "b" in parts:
            short = pc.utf8_slice_codeunits(pc.utf8_lower(parts["b"]), 0, 3)
            month = pc.utf8_lpad(pc.cast(pc.add(pc.index_in(short, pa.array(_MONTHS)), 1), pa.string()), 2, "0")
        day = pc.binary_join_element_wise(year, month, two("d"), "-")
        if pa.types.is_date(wanted):
            return day
        hour = two("H")
        if "I" in parts:
            given = pc.cast(parts["I"], pa.int8())
            fits = pc.and_(pc.greater_equal(given, 1), pc.less_equal(given, 12))
            given = pc.if_else(fits, pc.if_else(pc.equal(given, 12), pa.scalar(0, pa.int8()), given), None)
            after = pc.equal(pc.utf8_lower(parts["p"]), "pm")
            given = pc.if_else(after, pc.add(given, pa.scalar(12, pa.int8())), given)
            hour = pc.utf8_lpad(pc.cast(given, pa.string()), 2, "0")
        second = two("S")
        if "f" in parts:
            second = pc.binary_join_element_wise(second, pc.utf8_rpad(parts["f"], 6, "0"), ".")
        clock = pc.binary_join_element_wise(hour, two("M"), second, ":")
        zone = parts.get("z", "" if wanted.tz is None else "Z")
        return pc.binary_join_element_wise(day, pc.binary_join_element_wise(clock, zone, ""), "T")

    def _counted(self, texts: pa.Array, wanted: pa.DataType) -> pa.Array:
        """Counts as times; null where they are no numbers, have parts of microseconds, or are beyond the year 9999."""
        found = pc.extract_regex(texts, pattern=_NUMBER)
        power = EPOCHS[self.text]
        part = pc.utf8_rtrim(pc.struct_field(found, "part"), "0")
        part = pc.if_else(pc.less_equal(pc.utf8_length(part), max(power, 0)), part, None)
        sign = pc.replace_substring(pc.struct_field(found, "sign"), "+", "")
        digits = pc.struct_field(found, "whole")
        if power > 0:
            digits = pc.binary_join_element_wise(digits, pc.utf8_rpad(part, power, "0"), "")
        digits = pc.utf8_ltrim(pc.if_else(part.is_valid(), digits, None), "0")
        # 18 digits are below 2^63 in any unit.
        digits = pc.if_else(pc.less_equal(pc.utf8_length(digits), 19 if power < 0 else 18), digits, None)
        digits = pc.if_else(pc.equal(digits, ""), "0", digits)
        counts = pc.cast(pc.binary_join_element_wise(sign, digits, ""), pa.decimal128(38, 0))
        if power < 0:
            micros = pc.cast(counts, pa.decimal128(38, 0))
            thousand = pa.scalar(1000, pa.int64())
            whole = _as_int64(micros)
            counts = pc.if_else(pc.equal(pc.multiply(pc.divide(whole, thousand), thousand), whole), whole, None)
            counts = pc.divide(counts, thousand)
        else:
            counts = _as_int64(counts)
        inside = pc.and_(pc.greater_equal(counts, _FIRST_US), pc.less_equal(counts, _LAST_US))
        return pc.if_else(inside, counts, None).cast(wanted)


@dataclass(frozen=True, slots=True)
class TimeFormats:
    """The formats of columns. Picklable."""

    dates: str | None = None
    """Of all columns of dates; ``None``: ISO 8601."""
    timestamps: str | None = None
    """Of all columns of times."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Lower-case name of a column, or dotted name of a field -> its own format."""

    @staticmethod
    def of(date_format: Any, timestamp_format: Any) -> TimeFormats:
        """Each is a format, or maps names of columns to formats."""
        columns = [given for given in (date_format, timestamp_format) if isinstance(given, Mapping)]
        return TimeFormats(
            None if isinstance(date_format, Mapping) else date_format,
            None if isinstance(timestamp_format, Mapping) else timestamp_format,
            {name.lower(): text for given in columns for name, text in given.items()},
        )

    def format_of(self, name: str, kind: pa.DataType) -> TimeFormat | None:
        """``None``: values of the column are as ISO 8601 has them, or are no times."""
        if pa.types.is_date(kind):
            text = self.columns.get(name.lower(), self.dates)
        elif pa.types.is_timestamp(kind):
            text = self.columns.get(name.lower(), self.timestamps)
        else:
            return None
        return None if text is None else TimeFormat(text)


def time_format_problem(text: Any, *, dates: bool) -> str | None:
    """Why a text is no format; ``None`` if it is one."""
    if not isinstance(text, str):
        return f"{text!r} is not text"
    if text in EPOCHS:
        return f"{text!r} counts times, and no dates" if dates else None
    spelled = _spelled(text)
    codes = re.findall(r"%(.?)", spelled, flags=re.DOTALL)
    known = _DATE.keys() | (set() if dates else _TIME.keys())
    strange = [f"%{code}" for code in codes if code not in known]
    if strange:
        those = ", ".join(f"%{code}" for code in sorted(known | _SHORT.keys()))
        also = "" if dates else f", or be {', '.join(EPOCHS)}"
        return f"{text!r} has {', '.join(strange)}; it may have {those}{also}"
    said = ["y" if code == "Y" else "m" if code in "bB" else code for code in codes if code not in "%aA"]
    if sorted(set(said)) != sorted(said):
        return f"{text!r} says something twice"
    if lacking := [name for name, code in (("year", "y"), ("month", "m"), ("day", "d")) if code not in said]:
        return f"{text!r} has no {' and no '.join(lacking)}"
    if ("I" in said) != ("p" in said) or ("I" in said and "H" in said):
        return f"{text!r} needs %I with %p, or %H"
    return None


def _spelled(text: str) -> str:
    return re.sub(r"%([FTDR])", lambda match: _SHORT[match[1]], text)


@lru_cache(maxsize=64)
def _pattern(text: str) -> str:
    parts = re.split(r"(%.)", _spelled(text), flags=re.DOTALL)
    known = _DATE | _TIME
    return "^" + "".join(known[part[1]] if part[:1] == "%" else re.escape(part) for part in parts) + "$"


def _as_int64(numbers: pa.Array) -> pa.Array:
    """Whole decimals as integers; null where they are too large."""
    most = pa.scalar(2**63 - 1, pa.int64()).cast(pa.decimal128(38, 0))
    fits = pc.less_equal(pc.abs(numbers), most)
    return pc.if_else(fits, numbers, None).cast(pa.int64())
