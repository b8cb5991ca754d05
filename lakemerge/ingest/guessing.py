"""The types of a new table's columns, guessed from a data file that does not tell them.

A guess must lose nothing, because values that a table took cannot be given back. So a text becomes a number or a time
only if it is written as the number or the time is; zeros in front, more digits than a double keeps, and times of day
stay text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.near import did_you_mean
from lakemerge.errors import SchemaError
from lakemerge.ingest.casting import texts_fitted
from lakemerge.schema.ddl import TIMESTAMP, parse_ddl
from lakemerge.schema.schema import roomy_schema, with_inner_types
from mergers.type_names import type_name
from mergers.wording import argument

__all__ = ["Guess", "equal_keys", "guessed_texts", "settled", "with_types"]

_WHOLE: Final = r"^-?(0|[1-9][0-9]*)$"
_NUMBER: Final = r"^-?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_ZERO_IN_FRONT: Final = r"^[+-]?0[0-9]"
_OF_DIGITS: Final = r"^[+-]?[0-9]+(\.[0-9]*)?$"
_TRUTH: Final = r"(?i)^(true|false)$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?$"
)
_TIME_OF_DAY: Final = r"^[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?$"
_EXACT_DIGITS: Final = 15
"""A double keeps any decimal number of so many digits."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The columns for a file, and what a user may want to know of them."""

    schema: pa.Schema
    notes: Mapping[str, str] = field(default_factory=dict)
    """Column -> why it has its type, if that may surprise."""
    warnings: tuple[str, ...] = ()
    is_guessed: bool = True
    """``False`` if the file tells its types."""


def guessed_texts(texts: pa.Table) -> Guess:
    """The types for columns of texts."""
    found = {name: _guessed(texts.column(name)) for name in texts.column_names}
    notes = {name: why for name, (_, why) in found.items() if why}
    return Guess(pa.schema([(name, kind) for name, (kind, _) in found.items()]), notes)


def settled(schema: pa.Schema, *, is_guessed: bool) -> Guess:
    """The types for columns that have types of Arrow. What has no value, no element or no field becomes text.

    :param is_guessed: whether Arrow guessed the types. It guesses no zones, and texts without one are in UTC.
    """
    notes: dict[str, str] = {}
    fields: list[pa.Field] = []
    for column in schema:
        kind = _settled(column.type, moments=is_guessed)
        fields.append(pa.field(column.name, kind))
        if (why := _why(column.type)) is not None:
            notes[column.name] = why
    return Guess(roomy_schema(pa.schema(fields)), notes, (), is_guessed)


def with_types(guess: Guess, types: Mapping[str, str]) -> Guess:
    """The guess with the types that a user names, as DDL. Raises :class:`SchemaError`."""
    schema, notes = guess.schema, dict(guess.notes)
    known = {name.lower(): place for place, name in enumerate(schema.names)}
    for name, ddl in types.items():
        place = known.get(name.lower())
        if place is None:
            raise SchemaError(
                f"{argument('types')} names column {name!r}, which the file lacks; it has {', '.join(schema.names)}"
                + did_you_mean(name, schema.names)
            )
        schema = schema.set(place, parse_ddl(f"c {ddl}").field(0).with_name(schema.names[place]))
        notes.pop(schema.names[place], None)
    return replace(guess, schema=schema, notes=notes)


def equal_keys(texts: pa.Table, schema: pa.Schema) -> str | None:
    """What is to be said of keys that differ as texts and are equal in the types of the table; ``None`` if there are
    none.

    :param texts: the key columns as texts.
    """
    names = texts.column_names
    typed = pa.table(
        [_fitted(texts.column(name), schema.field(name).type) for name in names], [f"t{n}" for n in range(len(names))]
    )
    rows = pa.table([*texts.columns, *typed.columns], [*(f"s{n}" for n in range(len(names))), *typed.column_names])
    distinct = rows.group_by(rows.column_names, use_threads=False).aggregate([])
    counted = distinct.append_column("one", pa.repeat(1, distinct.num_rows))
    wanted = [("one", "sum"), *((f"s{n}", which) for which in ("min", "max") for n in range(len(names)))]
    again = counted.group_by(typed.column_names, use_threads=False).aggregate(wanted)
    again = again.filter(pc.greater(again.column("one_sum"), 1))
    if not again.num_rows:
        return None
    first = again.slice(0, 1).to_pylist()[0]
    low, high = (", ".join(repr(first[f"s{n}_{which}"]) for n in range(len(names))) for which in ("min", "max"))
    count = int(pc.sum(again.column("one_sum")).as_py()) - again.num_rows
    kinds = ", ".join(f"{name} {type_name(schema.field(name).type)}" for name in names)
    return (
        f"{count:,} keys of the file become equal to others in the types of the key ({kinds}), such as {low} and "
        f"{high}: of such keys one row stays. Keep them apart as text ({argument('types', f'{names[0]}=STRING')})"
    )


def _guessed(texts: pa.ChunkedArray) -> tuple[pa.DataType, str]:
    given = pc.unique(texts).drop_null()
    if not len(given):
        return pa.string(), "no value"
    trimmed = pc.utf8_trim_whitespace(given)
    if _all(trimmed, _WHOLE):
        fits = _casts(trimmed, pa.int64())
        return (pa.int64(), "") if fits else (pa.string(), "some numbers are beyond BIGINT")
    if _all(trimmed, _NUMBER) and not pc.any(pc.equal(trimmed, "")).as_py():
        return _guessed_number(trimmed)
    if _all(given, _TRUTH):
        return pa.bool_(), ""
    if _all(given, _DATE) and _casts(given, pa.date32()):
        return pa.date32(), ""
    if _all(given, f"{_DATE}|{_TIME}") and not texts_fitted(given, TIMESTAMP)[1]:
        return TIMESTAMP, ""
    if _all(trimmed, _OF_DIGITS) and _any(trimmed, _ZERO_IN_FRONT):
        return pa.string(), "some values have zeros in front"
    return pa.string(), "times of day" if _all(given, _TIME_OF_DAY) else ""


def _guessed_number(texts: pa.Array) -> tuple[pa.DataType, str]:
    digits = pc.replace_substring_regex(pc.replace_substring_regex(texts, "[eE].*$", ""), "[-.]", "")
    longest = pc.max(pc.utf8_length(pc.utf8_trim(digits, "0"))).as_py()
    if longest > _EXACT_DIGITS:
        return pa.string(), "some numbers have more digits than a DOUBLE keeps"
    if not pc.all(pc.is_finite(texts.cast(pa.float64()))).as_py():
        return pa.string(), "some numbers are beyond DOUBLE"
    return pa.float64(), ""


def _all(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern)).as_py())


def _any(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())


def _casts(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _fitted(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """The texts in a type; null where one does not fit."""
    whole = texts.combine_chunks()
    trimmed = whole if pa.types.is_string(kind) else pc.utf8_trim_whitespace(whole)
    return texts_fitted(trimmed, kind)[0]


def _settled(kind: pa.DataType, *, moments: bool) -> pa.DataType:
    if pa.types.is_null(kind) or pa.types.is_time(kind) or (pa.types.is_struct(kind) and not kind.num_fields):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if moments else kind
    return with_inner_types(kind, partial(_settled, moments=moments))


def _why(kind: pa.DataType) -> str | None:
    if pa.types.is_null(kind):
        return "no value"
    if _holds(kind, pa.types.is_time):
        return "times of day"
    if pa.types.is_nested(kind) and _holds(kind, pa.types.is_null):
        return "parts of it have no value, and are text"
    return None


def _holds(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    inner: Sequence[pa.Field] = [kind.field(place) for place in range(kind.num_fields)]
    return is_kind(kind) or any(_holds(part.type, is_kind) for part in inner)
