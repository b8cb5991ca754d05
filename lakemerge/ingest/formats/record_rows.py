"""Records that are Python mappings, as rows of a frame: what JSON and Avro have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lakemerge.errors import SchemaError
from lakemerge.ingest.casting import Problems
from lakemerge.ingest.formats.base import WindowSchema
from lakemerge.ingest.formats.times import TimeFormats
from lakemerge.ingest.logical import Day, Moment
from lakemerge.ingest.row_casting import Literal, Misfits, Place, column_of, json_text
from lakemerge.schema.limits import MAX_LEVELS, brought_name_problem, leaf_count
from lakemerge.schema.schema import to_arrow_schema
from lakemerge.write.carried import Sets
from mergers.type_names import type_name

__all__ = [
    "MAX_VALUE_LEVELS",
    "add_field",
    "joined_fields",
    "named_in",
    "nests_deeper",
    "no_room",
    "rows_of",
    "spread",
    "unknown_field",
    "wider",
    "within",
]

MAX_VALUE_LEVELS = 200
"""How deep the value of a record may nest, also where it is kept as text. JSON writers go about 250 levels deep."""

_DIGITS: Final = 38


def rows_of(
    records: Sequence[Mapping[str, Any]],
    frame: WindowSchema,
    *,
    again: Callable[[int], Mapping[str, Any]] | None = None,
    times: TimeFormats | None = None,
) -> tuple[pa.RecordBatch, Problems, Mapping[str, pa.DataType]]:
    """Records as rows of the frame. Fields match columns by name, whatever their case; a field that a record lacks
    is null. If the frame may grow, the third result holds the fields that it lacks; records that do not fit bring none.
    A field of a struct that a column lacks is there as a struct with it alone.

    :param again: reads a record once more, with its numbers as they were written; ``None``: they are already so.
    :param times: how times are written; ``None``: as ISO 8601.
    """
    times = times or TimeFormats()
    batch, misfits = _rows(records, frame, times)
    if misfits.inexact and again is not None:
        exact = [again(place) if place in misfits.inexact else record for place, record in enumerate(records)]
        batch, misfits = _rows(exact, frame, times)
    return batch, misfits.problems, {} if frame.room is None else _new(misfits, frame)


def named_in(records: Sequence[Mapping[str, Any]], frame: WindowSchema) -> Sets:
    """The columns of the frame that each record names, whatever their case."""
    known: dict[tuple[str, ...], int] = {}
    sets: dict[frozenset[str], int] = {}
    codes = np.empty(len(records), np.int64)
    names = frame.schema.names
    for place, record in enumerate(records):
        given = tuple(record)
        code = known.get(given)
        if code is None:
            found = (frame.places.get(name.lower()) for name in given)
            own = frozenset(names[number] for number in found if number is not None)
            code = known[given] = sets.setdefault(own, len(sets))
        codes[place] = code
    return Sets(codes, list(sets))


def spread(problems: Problems, places: Sequence[tuple[int, int]]) -> None:
    """If a row cannot be taken up, neither are the other rows of its record.

    :param places: for each row, the number of its record and the place in it, counted from the last: -1.
    """
    for row in list(problems):
        record = places[row][0]
        for other in (row - 1, row + 1):
            if 0 <= other < len(places) and places[other][0] == record:
                problems.setdefault(other, problems[row])


def _rows(
    records: Sequence[Mapping[str, Any]], frame: WindowSchema, times: TimeFormats
) -> tuple[pa.RecordBatch, Misfits]:
    misfits = Misfits(times=times)
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
    arrays = [_column(values, field, frame, misfits) for values, field in zip(columns, frame.schema, strict=True)]
    if frame.rescued is not None:
        texts: list[str | None] = [None] * len(records)
        for place in misfits.unknown.keys() | misfits.unfit.keys():
            rest = misfits.unknown.get(place, {}) | misfits.unfit.get(place, {})
            texts[place] = json_text({str(name): value for name, value in rest.items()})
            misfits.inexact.add(place)
        arrays[names.index(frame.rescued)] = pa.array(texts, pa.string())
    elif not frame.grows:
        for place, rest in misfits.unknown.items():
            misfits.problems.setdefault(place, unknown_field(next(iter(rest))))
    return pa.RecordBatch.from_arrays(arrays, schema=frame.schema), misfits


def _column(values: list[Any], field: pa.Field, frame: WindowSchema, misfits: Misfits) -> pa.Array:
    """A column of the frame. If values that do not fit are rescued, they are noted as unfit."""
    if field.name in frame.fresh and pa.types.is_string(field.type):
        # The column could hold them as text, and then for good.
        for place, value in enumerate(values):
            if isinstance(value, Mapping | list):
                misfits.problems.setdefault(place, _unlike(field.name, "nested values", "texts"))
    if frame.rescued is None or field.name in frame.strict:
        return column_of(values, field.type, misfits, name=field.name)
    own = Misfits(times=misfits.times)
    array = column_of(values, field.type, own, name=field.name)
    if own.problems:
        for place in own.problems:
            misfits.unfit.setdefault(place, {})[field.name] = values[place]
        kept = [None if place in own.problems else value for place, value in enumerate(values)]
        own = Misfits(inexact=own.inexact, times=misfits.times)
        array = column_of(kept, field.type, own, name=field.name)
    misfits.inexact |= own.inexact
    misfits.problems |= own.problems
    for place, rest in own.unknown.items():
        misfits.unknown.setdefault(place, {}).update(rest)
    return array


def _matched(record: Mapping[str, Any], frame: WindowSchema) -> tuple[list[Any], dict[str, Any]]:
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


def _new(misfits: Misfits, frame: WindowSchema) -> dict[str, pa.DataType]:
    """The types of fields that the frame lacks, by the column that they are in. A record whose fields no table can
    have, or that has more of them than there is room for, does not fit; the fields of other records are columns all
    the same."""
    found: dict[str, pa.DataType] = {}
    judged: dict[tuple[str, pa.DataType], str | None] = {}
    for place, rest in misfits.unknown.items():
        if place in misfits.problems:
            continue
        problem, own = _own_fields(rest, frame, judged)
        if problem is not None:
            misfits.problems[place] = problem
            continue
        for name, kind in own.items():
            add_field(found, name, kind)
    return found


def add_field(found: dict[str, pa.DataType], given: str, kind: pa.DataType) -> None:
    """Note a field and its type among others. The first spelling of its name counts."""
    name = next((name for name in found if name.lower() == given.lower()), given) if given not in found else given
    found[name] = kind if name not in found else wider(found[name], kind)


def joined_fields(parts: Iterable[Mapping[str, pa.DataType]]) -> dict[str, pa.DataType]:
    """Fields that several readers found, in their order."""
    found: dict[str, pa.DataType] = {}
    for part in parts:
        for name, kind in part.items():
            add_field(found, name, kind)
    return found


def _own_fields(
    rest: Mapping[str, Any], frame: WindowSchema, judged: dict[tuple[str, pa.DataType], str | None]
) -> tuple[str | None, dict[str, pa.DataType]]:
    """Why the fields of a record cannot become columns, and their types. A field that says no type has none yet."""
    own: dict[str, pa.DataType] = {}
    room = frame.room or 0
    for name, value in rest.items():
        if nests_deeper(value, MAX_LEVELS):
            return f"field {name[:80]!r} nests more than {MAX_LEVELS} levels deep, which no column can", {}
        try:
            kind = _kind(value)
        except _UnlikeError as error:
            return _unlike(name, *map(type_name, error.kinds)), {}
        if kind is None:
            continue
        if isinstance(name, Place):
            column = frame.schema.field(frame.places[name.parts[0].lower()])
            add_field(own, column.name, _within(name.parts[1:], kind, column.type))
        else:
            own[name] = kind
        if len(own) > room or leaf_count(pa.struct(list(own.items()))) > room:
            return no_room(rest), {}
    for name, kind in own.items():
        if (name, kind) not in judged:
            judged[name, kind] = _column_problem(name, kind)
        if (problem := judged[name, kind]) is not None:
            return problem, {}
    return None, own


def _within(parts: Sequence[str], kind: pa.DataType, outer: pa.DataType) -> pa.DataType:
    """The type of a column that has a field at a place, and nothing else."""
    if not parts:
        return kind
    name, *inner = parts
    if pa.types.is_list(outer):
        return pa.list_(_within(inner, kind, outer.value_type))
    if pa.types.is_map(outer):
        return pa.map_(outer.key_type, _within(inner, kind, outer.item_type))
    child = next((child for child in outer if child.name.lower() == name.lower()), None)
    if child is None:
        return pa.struct([(name, kind)])
    return pa.struct([(child.name, _within(inner, kind, child.type))])


def _unlike(name: str, kind: str, other: str) -> str:
    return (
        f"field {name[:80]!r} holds {kind} here and {other} elsewhere, and no column holds both: correct the records, "
        "add the column by table.alter (a STRING column takes any value), or keep such fields in a rescued column"
    )


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
    """The type of a column for values of both. If no type holds both, the first: then values of the other do not fit.

    Whole numbers and others are floats, unlike single values are texts; lists and structs join element by element and
    field by field.
    """
    try:
        return _join(kind, other)
    except _UnlikeError:
        return kind


class _UnlikeError(Exception):
    """No type holds the values of two types."""

    def __init__(self, *kinds: pa.DataType) -> None:
        super().__init__(*kinds)
        self.kinds = kinds


def _join(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    if kind == other:
        return kind
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = {child.name: child.type for child in kind}
        spelled = {name.lower(): name for name in fields}
        for child in other:
            name = spelled.setdefault(child.name.lower(), child.name)
            fields[name] = _join(fields[name], child.type) if name in fields else child.type
        return pa.struct(list(fields.items()))
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return pa.list_(_join(kind.value_type, other.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(other) and kind.key_type == other.key_type:
        return pa.map_(kind.key_type, _join(kind.item_type, other.item_type))
    if pa.types.is_nested(kind) or pa.types.is_nested(other):
        raise _UnlikeError(kind, other)
    if pa.types.is_decimal(kind) and pa.types.is_decimal(other):
        return pa.decimal128(_DIGITS, max(kind.scale, other.scale))
    return pa.float64() if {kind, other} == {pa.int64(), pa.float64()} else pa.string()


def _kind(value: Any) -> pa.DataType | None:
    """The column type for a value, also for what a schema says to be a time, a day or a decimal; ``None`` if it says
    none: null, and lists and objects without any value. Raises :class:`_UnlikeError`."""
    if value is None:
        return None
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
    if isinstance(value, Literal):
        return pa.int64() if value.lstrip("-").isdigit() and -(2**63) <= int(value[:25]) < 2**63 else pa.float64()
    if isinstance(value, int):
        return pa.int64() if -(2**63) <= value < 2**63 else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, list):
        found: pa.DataType | None = None
        for part in value:
            kind = _kind(part)
            found = found if kind is None else kind if found is None else _join(found, kind)
        return None if found is None else pa.list_(found)
    if isinstance(value, dict):
        kinds = [(name, kind) for name, part in value.items() if (kind := _kind(part)) is not None]
        return pa.struct(kinds) if kinds else None
    return pa.string()


def unknown_field(name: str) -> str:
    return (
        f"the table has no column {name!r}: add it by table.alter or a merge of the schema, keep such fields in a "
        "rescued column, or name the columns to read"
    )
