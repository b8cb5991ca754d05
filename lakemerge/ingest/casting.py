"""Columns of files cast to the table's types. A value that does not fit is reported by row, and never changed.

Arrow casts whole columns. Where it refuses one, the rows at fault are found by halving the column.

Texts are read as Arrow reads them: whole numbers, decimals, ``true`` and ``false``, ISO 8601 dates and times. A time
without a zone is UTC where the column is a moment (TIMESTAMP); one with a zone is refused where it is a wall clock
(TIMESTAMP_NTZ). Fractions of microseconds are refused unless they are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FrameError
from lakemerge.schema.casts import castable, safe_cast
from lakemerge.schema.soundness import check_sound
from lakemerge.sql.text_casts import from_decimal
from mergers.type_names import type_name

__all__ = [
    "EITHER",
    "Problems",
    "cast_marking",
    "cast_problems",
    "fits",
    "fitted",
    "is_infinite",
    "texts_fitted",
    "unsound",
]

Problems: TypeAlias = dict[int, str]
"""Row number -> why its value does not fit."""

EITHER: Final = pa.timestamp("us", "either")
"""The type that a file tells of times that may be both, moments and wall clocks, since their format does not say it.
No values are of it: readers give them as the table's column has them. A new column for them is a TIMESTAMP."""

_WITH_ZONE = r"[T ]\d\d.*(?:[Zz]|[+-]\d\d(?::?\d\d)?)$"
_DATE = r"^\d{4}-\d\d-\d\d$"
_ZEROS = r"(\.\d{6})0+"
_INFINITE = r"(?i)^\s*[+-]?inf(inity)?\s*$"


def fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a file's type may fit a column of the table. :func:`fitted` says which of them do."""
    if kind == EITHER and pa.types.is_timestamp(wanted):
        return True
    if castable(kind, wanted):
        return True
    if isinstance(kind, pa.DictionaryType):
        return fits(kind.value_type, wanted)
    if isinstance(kind, pa.BaseExtensionType):
        return (_is_uuid(kind) and pa.types.is_string(wanted)) or fits(kind.storage_type, wanted)
    if pa.types.is_time(kind) and pa.types.is_string(wanted):
        return True
    if _is_text(kind):
        return not pa.types.is_nested(wanted)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    to_number = pa.types.is_integer(wanted) or pa.types.is_floating(wanted) or pa.types.is_decimal(wanted)
    return bool((number and to_number) or ((number or pa.types.is_boolean(kind)) and pa.types.is_string(wanted)))


def fitted(array: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, Problems]:
    """A column as the table's type; null where a value does not fit. :func:`fits` must be true for the types."""
    if array.type == wanted:
        return array, {}
    if castable(array.type, wanted):
        return _marked(array, wanted, lambda part: _safely(part, wanted))
    if isinstance(array.type, pa.DictionaryType):
        return fitted(array.dictionary_decode(), wanted)
    if isinstance(array.type, pa.BaseExtensionType):
        if _is_uuid(array.type) and pa.types.is_string(wanted):
            texts = pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
            return texts, {}
        return fitted(array.storage, wanted)
    if _is_text(array.type):
        return texts_fitted(array.cast(pa.string()), wanted)
    if pa.types.is_floating(array.type) and pa.types.is_decimal(wanted):
        # Arrow's own cast rounds.
        return texts_fitted(array.cast(pa.string()), wanted)
    if pa.types.is_decimal(array.type) and pa.types.is_string(wanted):
        return from_decimal(array, wanted)[0], {}  # Arrow's own cast writes small numbers with an exponent
    return cast_marking(array, wanted)


def texts_fitted(texts: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, Problems]:
    """A column of strings as the table's type; null where a text does not fit."""
    if wanted == pa.string():
        return texts, {}
    if pa.types.is_timestamp(wanted):
        return _marked(_moments(texts, wanted), wanted, lambda part: part.cast(wanted), shown=texts)
    if pa.types.is_floating(wanted):
        return finite(*_marked(texts, wanted, lambda part: part.cast(wanted)), texts)
    return _marked(texts, wanted, lambda part: part.cast(wanted))


def is_infinite(column: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a column of floats holds an infinite one."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_inf(column)).as_py())


def finite(array: pa.Array, problems: Problems, given: pa.Array) -> tuple[pa.Array, Problems]:
    """Floats without those that became infinite on the way, for which Arrow has no error.

    :param given: what they were made of: texts, or numbers.
    """
    infinite = np.isinf(array.to_numpy(zero_copy_only=False))
    if not infinite.any():
        return array, problems
    if _is_text(given.type):
        named = pc.match_substring_regex(given, _INFINITE)
    elif pa.types.is_floating(given.type):
        named = pc.is_inf(given)
    else:
        named = pa.array(np.zeros(len(given), np.bool_))
    bad = infinite & ~pc.fill_null(named, False).to_numpy(zero_copy_only=False)
    told = {row: f"{_short(given[row])} does not fit {type_name(array.type)}" for row in np.flatnonzero(bad).tolist()}
    return pc.if_else(pa.array(bad), pa.scalar(None, array.type), array), problems | told


def unsound(array: pa.Array) -> Problems:
    """Rows of a column whose text is not UTF-8, or whose values break Arrow's format otherwise."""
    problems: Problems = {}

    def halves(part: pa.Array, first: int) -> None:
        try:
            check_sound(part)
        except pa.ArrowInvalid as error:
            if len(part) == 1:
                problems[first] = "it holds text that is not UTF-8" if "UTF8" in str(error) else str(error)
                return
            middle = len(part) // 2
            halves(part.slice(0, middle), first)
            halves(part.slice(middle), first + middle)

    halves(array, 0)
    return problems


def cast_marking(array: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, Problems]:
    """A column cast by Arrow's safe cast; null where a value does not fit."""
    found = _marked(array, wanted, lambda part: part.cast(wanted, safe=True))
    return finite(*found, array) if pa.types.is_floating(wanted) else found


def cast_problems(texts: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, Problems]:
    """Texts cast as they are; null where one does not fit."""
    return _marked(texts, wanted, lambda part: part.cast(wanted))


def _moments(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Texts of times as Arrow reads them for a column of the type."""
    texts = pc.replace_substring_regex(texts, _ZEROS, r"\1")
    if wanted.tz is None:
        return texts
    has_zone = pc.match_substring_regex(texts, _WITH_ZONE)
    is_date = pc.match_substring_regex(texts, _DATE)
    ends = pc.if_else(has_zone, "", pc.if_else(is_date, "T00:00:00Z", "Z"))
    return pc.binary_join_element_wise(texts, ends, "")


def _marked(
    array: pa.Array, wanted: pa.DataType, cast: Callable[[pa.Array], pa.Array], *, shown: pa.Array | None = None
) -> tuple[pa.Array, Problems]:
    problems: Problems = {}
    values = array if shown is None else shown

    def halves(part: pa.Array, first: int) -> pa.Array:
        try:
            return cast(part)
        except (pa.ArrowInvalid, FrameError):
            if len(part) > 1:
                middle = len(part) // 2
                parts = [halves(part.slice(0, middle), first), halves(part.slice(middle), first + middle)]
                return pa.concat_arrays(parts)
            problems[first] = f"{_short(values[first])} does not fit {type_name(wanted)}"
            return pa.nulls(1, wanted)

    return halves(array, 0), problems


def _safely(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    batch = pa.RecordBatch.from_arrays([array], names=["value"])
    return safe_cast(batch, pa.schema([pa.field("value", wanted)])).column(0)


def _is_uuid(kind: pa.DataType) -> bool:
    return bool(getattr(kind, "extension_name", None) == "arrow.uuid")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _short(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError):  # a time that Python has no value for
        return "a value"
    return text if len(text) <= 80 else f"{text[:77]}..."
