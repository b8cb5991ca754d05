"""Records that are Python mappings, as rows of a frame: what JSON and Avro have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from lakemerge.errors import SchemaError
from lakemerge.ingest.casting import Problems
from lakemerge.ingest.formats.base import Frame
from lakemerge.ingest.logical import Day, Moment
from lakemerge.ingest.values import Literal, Misfits, column_of, json_text
from lakemerge.schema.limits import MAX_LEVELS, brought_name_problem, leaf_count
from lakemerge.schema.schema import to_arrow_schema

__all__ = ["MAX_VALUE_LEVELS", "nests_deeper", "no_room", "rows_of", "spread", "unknown_field", "wider", "within"]

MAX_VALUE_LEVELS = 200
"""How deep the value of a record may nest, also where it is kept as text. JSON writers go about 250 levels deep."""

_DIGITS: Final = 38


def rows_of(
    records: Sequence[Mapping[str, Any]], frame: Frame, *, again: Callable[[int], Mapping[str, Any]] | None = None
) -> tuple[pa.RecordBatch, Problems, Mapping[str, pa.DataType]]:
    """Records as rows of the frame. Fields match columns by name, whatever their case; a field that a record lacks
    is null. If the frame may grow, the third result holds the fields that it lacks; records that do not fit bring none.

    :param again: reads a record once more, with its numbers as they were written; ``None``: they are already so.
    """
    batch, misfits = _rows(records, frame)
    if misfits.inexact and again is not None:
        exact = [again(place) if place in misfits.inexact else record for place, record in enumerate(records)]
        batch, misfits = _rows(exact, frame)
    return batch, misfits.problems, {} if frame.room is None else _new(misfits, frame.room)


def spread(problems: Problems, places: Sequence[tuple[int, int]]) -> None:
    """If a row cannot be taken up, neither are the other rows of its record.

    :param places: for each row, the number of its record and the place in it, counted from the last: -1.
    """
    for row in list(problems):
        record = places[row][0]
        for other in (row - 1, row + 1):
            if 0 <= other < len(places) and places[other][0] == record:
                problems.setdefault(other, problems[row])


def _rows(records: Sequence[Mapping[str, Any]], frame: Frame) -> tuple[pa.RecordBatch, Misfits]:
    misfits = Misfits()
    columns: list[list[Any]] = [[] for _ in frame.schema]
    names = frame.schema.names
    exact = frozenset(names) - {frame.rescued}
    for place, record in enumerate(records):
        if record.keys() <= exact:
            for column, name in zip(columns, names, strict=True):
                column.append(record.get(name))
            continue
        row, rest = _matched(record, frame)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        if rest and not frame.ignores:
            misfits.unknown[place] = rest
    arrays = [
        column_of(values, field.type, misfits, name=field.name)
        for values, field in zip(columns, frame.schema, strict=True)
    ]
    if frame.rescued is not None:
        texts = [json_text(misfits.unknown[i]) if i in misfits.unknown else None for i in range(len(records))]
        arrays[names.index(frame.rescued)] = pa.array(texts, pa.string())
    else:
        for place, rest in misfits.unknown.items():
            name = next((name for name in rest if not frame.grows or "." in name), None)
            if name is not None:
                misfits.problems.setdefault(place, unknown_field(name))
    return pa.RecordBatch.from_arrays(arrays, schema=frame.schema), misfits


def _matched(record: Mapping[str, Any], frame: Frame) -> tuple[list[Any], dict[str, Any]]:
    """Values by column, and the fields without a column. A field with exactly a column's name goes before others."""
    row: list[Any] = [None] * len(frame.schema)
    rest: dict[str, Any] = {}
    names = frame.schema.names
    for name, value in record.items():
        place = frame.places.get(name.lower())
        if place is None:
            if value is not None:
                rest[name] = value
        elif name == names[place] or names[place] not in record:
            row[place] = value
    return row, rest


def _new(misfits: Misfits, room: int) -> dict[str, pa.DataType]:
    """The types of top-level fields that the frame lacks. A record whose fields no table can have, or that has more of
    them than there is room for, does not fit; the fields of other records are columns all the same."""
    found: dict[str, pa.DataType] = {}
    spelled: dict[str, str] = {}
    judged: dict[tuple[str, pa.DataType], str | None] = {}
    for place, rest in misfits.unknown.items():
        if place in misfits.problems:
            continue
        problem, own = _own_fields(rest, room, judged)
        if problem is not None:
            misfits.problems[place] = problem
            continue
        for given, kind in own.items():
            name = spelled.setdefault(given.lower(), given)
            found[name] = kind if name not in found else wider(found[name], kind)
    return found


def _own_fields(
    rest: Mapping[str, Any], room: int, judged: dict[tuple[str, pa.DataType], str | None]
) -> tuple[str | None, dict[str, pa.DataType]]:
    """Why the fields of a record cannot become columns, and their types."""
    own: dict[str, pa.DataType] = {}
    for name, value in rest.items():
        if nests_deeper(value, MAX_LEVELS):
            return f"field {name[:80]!r} nests more than {MAX_LEVELS} levels deep, which no column can", {}
        own[name] = _kind(value)
        if len(own) > room or leaf_count(pa.struct([(name, own[name])])) > room:
            return no_room(rest), {}
    if leaf_count(pa.struct(list(own.items()))) > room:
        return no_room(rest), {}
    for name, kind in own.items():
        if (name, kind) not in judged:
            judged[name, kind] = _column_problem(name, kind)
        if (problem := judged[name, kind]) is not None:
            return problem, {}
    return None, own


def _column_problem(name: str, kind: pa.DataType) -> str | None:
    if (problem := brought_name_problem(name)) is not None:
        return f"field {problem}"
    try:
        to_arrow_schema(pa.schema([(name, kind)]))
    except SchemaError as error:
        return f"field {name[:80]!r} cannot become a column: {error.message}"
    return None


def no_room(names: Iterable[str]) -> str:
    """Why a record with these fields, for which the table has no columns, is not taken up."""
    first, *others = names
    more = f" and {len(others)} more fields" if others else ""
    return (
        f"the table has no column {first[:80]!r}{more}, and a merge of schemas makes no more columns than "
        "Settings.max_columns: raise it, add the columns by table.alter, or keep such fields in a rescued column"
    )


def within(fields: Mapping[str, pa.DataType], room: int) -> dict[str, pa.DataType]:
    """The fields, in their order, for which a table has room."""
    kept: dict[str, pa.DataType] = {}
    for name, kind in fields.items():
        leaves = leaf_count(pa.struct([(name, kind)]))
        if leaves <= room:
            kept[name] = kind
            room -= leaves
    return kept


def nests_deeper(value: Any, levels: int) -> bool:
    """Whether mappings and lists are within one another for more than so many levels. Without recursion."""
    found = [value]
    for _ in range(levels):
        inner: list[Any] = []
        for part in found:
            if isinstance(part, Mapping):
                inner += part.values()
            elif isinstance(part, list):
                inner += part
        found = [part for part in inner if isinstance(part, Mapping | list)]
        if not found:
            return False
    return True


def wider(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column for values of both."""
    if kind == other:
        return kind
    return pa.float64() if {kind, other} == {pa.int64(), pa.float64()} else pa.string()


def _kind(value: Any) -> pa.DataType:
    """The column type for a value: of integers, floats, booleans, nested values, what a schema says to be a time, a day
    or a decimal, and strings for all others."""
    if isinstance(value, Moment):
        return pa.timestamp("us") if value.zone is False else pa.timestamp("us", "UTC")
    if isinstance(value, Day):
        return pa.date32()
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        scale = max(-exponent, 0) if isinstance(exponent, int) else _DIGITS + 1
        return pa.decimal128(_DIGITS, scale) if scale <= _DIGITS else pa.string()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -(2**63) <= value < 2**63 else pa.float64()
    if isinstance(value, float | Literal):
        return pa.float64()
    if isinstance(value, list) and value:
        kinds = {_kind(part) for part in value if part is not None}
        return pa.list_(kinds.pop()) if len(kinds) == 1 else pa.string()
    if isinstance(value, dict) and value:
        return pa.struct([(name, pa.string() if part is None else _kind(part)) for name, part in value.items()])
    return pa.string()


def unknown_field(name: str) -> str:
    return (
        f"the table has no column {name!r}: add it by table.alter or a merge of the schema, keep such fields in a "
        "rescued column, or name the columns to read"
    )
