"""The door of a flow: whatever a frame is made of, the flow sees its columns in the table's types.

Frames have many types for the same values: texts of pandas, polars and Arrow, times in other units and zones, integers
of every width, columns of nulls. An upsert takes all of them. A flow judges conditions, compares rows with those of the
table and copies columns before it upserts, so it casts them first, by the same rules and with the same errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakemerge._internal.near import did_you_mean
from lakemerge.errors import FrameError, SchemaError
from lakemerge.flows.settings import START, FlowSettings
from lakemerge.frames import as_reader, check_sound
from lakemerge.schema.schema import castable, roomy_schema, safe_cast
from lakemerge.table.table import LakeTable
from lakemerge.write.frame import check_map_keys
from mergers.type_names import type_name
from mergers.wording import in_python

__all__ = ["cast_rows", "entered", "entry_schema", "whole_frame"]


def whole_frame(frame: object) -> pa.Table:
    """A frame that is not Spark's, in its own types. Raises :class:`FrameError`."""
    return as_reader(frame).read_all()


def entered(rows: pa.Table, table: LakeTable, settings: FlowSettings) -> pa.Table:
    """The rows with each column in the type that :func:`entry_schema` gives it. Raises :class:`FrameError`."""
    return cast_rows(rows, entry_schema(rows.schema, table, settings))


def entry_schema(given: pa.Schema, table: LakeTable, settings: FlowSettings) -> pa.Schema:
    """The columns of a source in the types in which the flow reads them: the table's. Columns that the table does not
    get, such as that of operations, have types of tables, too, if there are such.

    :raises FrameError: a column is new to the table, or its values cannot have the table's type; all are listed.
    """
    chosen = set(settings.columns(given.names))
    there = {field.name.lower(): field.type for field in table.schema}
    if settings.scd_type == 2:
        there.setdefault(settings.sequence_by[0].lower(), table.schema.field(START).type)
    fields: list[pa.Field] = []
    problems: list[str] = []
    for field in given:
        wanted = there.get(field.name.lower())
        if wanted is not None and castable(field.type, wanted):
            fields.append(pa.field(field.name, wanted))
            continue
        fields.append(pa.field(field.name, _own_type(field)))
        if field.name not in chosen:
            continue
        if wanted is None:
            known = [name for name in table.schema.names if name.lower() not in map(str.lower, given.names)]
            problems.append(
                f"the table has no column {field.name!r}: leave it out of the source, or add it to the table"
                + in_python(" (table.alter(add_columns=...))")
                + did_you_mean(field.name, known)
            )
        else:
            problems.append(
                f"column {field.name!r} is {type_name(field.type)}, the table's is {type_name(wanted)}: cast it first"
            )
    if problems:
        raise FrameError("the source does not fit the table: " + "; ".join(problems), problems=tuple(problems))
    return pa.schema(fields)


def cast_rows(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The rows with each column in the type that it has in ``wanted``, which has the same columns. Raises
    :class:`FrameError` for values that do not fit, and for what an upsert refuses in columns of any type."""
    kept = [field.name for field in wanted if rows.schema.field(field.name).type == field.type]
    changed = pa.schema([field for field in wanted if field.name not in kept])
    batches, first = [], 0
    for batch in rows.to_batches():
        check_sound(batch, first)
        cast = safe_cast(batch.select(changed.names), changed, first)
        check_map_keys(cast, first)
        batches.append(pa.RecordBatch.from_arrays(_in_order(wanted.names, batch, cast), schema=wanted))
        first += batch.num_rows
    return pa.Table.from_batches(batches, schema=wanted)


def _in_order(names: Sequence[str], *batches: pa.RecordBatch) -> list[pa.Array]:
    arrays = {name: batch.column(name) for batch in batches for name in batch.schema.names}
    return [arrays[name] for name in names]


def _own_type(field: pa.Field) -> pa.DataType:
    """The type of a column that the table lacks: one that holds its values, and that conditions can be judged on."""
    if pa.types.is_null(field.type):
        return pa.string()
    try:
        return roomy_schema(pa.schema([pa.field("column", field.type)])).field(0).type
    except SchemaError:
        return field.type
