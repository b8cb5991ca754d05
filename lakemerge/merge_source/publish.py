"""Writes to the output the rows that the state has for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import SchemaError
from lakemerge.merge_source.clusters import Clusters
from lakemerge.merge_source.combine import STABLE, OutputShape, combine
from lakemerge.merge_source.entity_states import Fresh, assemble, strings
from lakemerge.merge_source.inputs import Input
from lakemerge.merge_source.member_rows import Chunks, SoughtRows
from lakemerge.merge_source.nested_arrays import contiguous
from lakemerge.merge_source.output_ids import OldClusters
from lakemerge.merge_source.state import APPLICATION, State
from lakemerge.merge_source.types import common_type
from lakemerge.schema.casts import safe_cast
from lakemerge.schema.evolution import loosened
from lakemerge.schema.schema import needs_timestamp_ntz
from lakemerge.schema.widening import is_wider
from lakemerge.table.table import LakeTable
from mergers.type_names import type_name

__all__ = [
    "BATCH_ROWS",
    "KIND",
    "conformed",
    "output_number",
    "prepare_output",
    "publish",
    "removals",
    "retired_rows",
    "target_schema",
    "unpublished_removals",
    "unpublished_rows",
    "with_kind",
]

KIND = "_lm_kind"
BATCH_ROWS = 1 << 16
"""How many rows are brought into the output's types at a time."""


def output_number(output: LakeTable) -> int:
    """The number of the last run whose rows the output has."""
    done = output.opened.view.snapshot.txns.get(APPLICATION)
    return 0 if done is None else done.version


def target_schema(output: pa.Schema, shape: OutputShape) -> pa.Schema:
    """The output's columns once it holds such rows.

    Raises :class:`SchemaError` if the table cannot get these columns. Nothing was changed then.
    """
    fields = {field.name.lower(): field for field in output}
    problems = []
    # A source may have been created with ids that are not stable.
    for field in (*(STABLE if shape.stable else ()), *shape.fields):
        known = fields.get(field.name.lower())
        if known is None:
            fields[field.name.lower()] = field
            continue
        common = common_type(loosened(known.type), field.type)
        if common is None or not _can_become(loosened(known.type), common):
            problems.append(f"{known.name!r} is {type_name(known.type)} there and would be {type_name(field.type)}")
        else:
            fields[field.name.lower()] = known.with_type(common)
    target = pa.schema(list(fields.values()))
    if needs_timestamp_ntz(target) and not needs_timestamp_ntz(output):
        problems.append("a TIMESTAMP_NTZ column cannot be added to a table that has none")
    if problems:
        raise SchemaError(
            "the output cannot hold the merged entities: " + "; ".join(problems) + ". Create the source at a new path",
            problems=tuple(problems),
        )
    return target


def publish(
    output: LakeTable, target: pa.Schema, tables: Iterator[pa.Table], number: int, *, removed: pa.Array, held: bool
) -> None:
    """Write whole rows, once for the run's number. Types get wider before; new columns come in the same commit.

    :param removed: the ids of rows to delete.
    :param held: whether all rows may be held at a time. A first write is then faster, and has as many buckets as it
        needs.
    """
    prepare_output(output, target)
    rows = (conformed(table, target) for table in tables)
    if not len(removed):
        batches = (batch for table in rows for batch in table.to_batches(max_chunksize=BATCH_ROWS))
        reader = pa.RecordBatchReader.from_batches(target, batches)
        output.upsert(reader.read_all() if held else reader, merge_schema=True, txn=(APPLICATION, number))
        return
    both = chain((with_kind(table, "+U") for table in rows), [removals(removed, target)])
    batches = (batch for table in both for batch in table.to_batches(max_chunksize=BATCH_ROWS))
    reader = pa.RecordBatchReader.from_batches(target.append(pa.field(KIND, pa.string())), batches)
    output.upsert(reader.read_all() if held else reader, merge_schema=True, kind_column=KIND, txn=(APPLICATION, number))


def with_kind(rows: pa.Table, kind: str) -> pa.Table:
    """Rows with a column that says what to do with them."""
    kinds = pa.array([kind]).take(pa.array(np.zeros(rows.num_rows, dtype=np.int64)))
    return rows.append_column(pa.field(KIND, pa.string()), kinds)


def removals(removed: pa.Array, target: pa.Schema) -> pa.Table:
    """Rows that delete those with the given ids."""
    return with_kind(conformed(pa.table({"_id": removed}), target), "-D")


def prepare_output(output: LakeTable, target: pa.Schema) -> None:
    """Give the output the wider types that the rows need. New columns come with the rows."""
    wider = {path: kind for field in output.schema for path, kind in _widened(field, target.field(field.name).type)}
    if wider:
        output.alter(widen=wider)


def unpublished_rows(state: State, inputs: Sequence[Input], shape: OutputShape, *, after: int) -> Iterator[pa.Table]:
    """The rows of runs after the given number, as the state has them.

    :param inputs: the datasets at the versions that the state has taken up.
    """
    retired = state.retired()
    retired = retired.filter(retired.column("_updated").is_valid())
    if retired.num_rows:
        yield retired_rows(retired)
    newer = [table.filter(pc.greater(table.column("run"), after)) for table in state.all_entities()]
    leading = pa.concat_tables([state.entities(np.empty(0, np.int64), pa.array([], pa.string())), *newer])
    old = OldClusters.of(leading)
    members = state.entities(old.datasets, old.ids)
    known = assemble(members, Fresh.together([]))
    places = known.places_of(old.datasets, old.ids)
    dead = known.deleted[places[old.offsets[:-1]]]
    lists = strings(old.records, "split_into")
    clusters = Clusters(old.offsets, places, old.datasets, old.ids, dead, old.output_ids, lists)
    numbers = strings(old.records, "updated")
    for start, part, parts in SoughtRows(inputs, known, clusters, Chunks(state)).batches():
        yield combine(part, parts, shape).rows.append_column("_updated", numbers.slice(start, len(part)))


def unpublished_removals(state: State) -> pa.Array:
    """The ids that the last emitting run took out of the output."""
    retired = state.retired()
    return strings(retired.filter(retired.column("_updated").is_null()), "_id")


def retired_rows(retired: pa.Table) -> pa.Table:
    """Retired ids as rows."""
    yes = pa.array(np.ones(retired.num_rows, dtype=np.bool_))
    return retired.append_column("_deleted", yes)


def conformed(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Rows with all columns of the output, in their types. A column that they lack is null: rows are written whole."""
    given = {name.lower(): contiguous(column) for name, column in zip(rows.column_names, rows.columns, strict=True)}
    columns = [given.get(field.name.lower(), pa.nulls(rows.num_rows, field.type)) for field in target]
    batch = pa.RecordBatch.from_arrays(columns, names=target.names)
    return pa.Table.from_batches([safe_cast(batch, target)])


def _can_become(before: pa.DataType, after: pa.DataType) -> bool:
    """Whether wider types and new fields can turn a column of one type into the other."""
    if before == after or is_wider(before, after):
        return True
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        types = {field.name: field.type for field in after}
        return all(field.name in types and _can_become(field.type, types[field.name]) for field in before)
    if pa.types.is_list(before) and pa.types.is_list(after):
        return _can_become(before.value_type, after.value_type)
    if pa.types.is_map(before) and pa.types.is_map(after):
        return before.key_type == after.key_type and _can_become(before.item_type, after.item_type)
    return False


def _widened(field: pa.Field, after: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The paths of columns and fields that get a wider type, and that type."""
    yield from _widened_below(_quoted(field.name), field.type, after)


def _widened_below(path: str, before: pa.DataType, after: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(before):
        types = {field.name: field.type for field in after}
        for field in before:
            yield from _widened_below(f"{path}.{_quoted(field.name)}", field.type, types[field.name])
    elif pa.types.is_list(before):
        yield from _widened_below(f"{path}.element", before.value_type, after.value_type)
    elif pa.types.is_map(before):
        yield from _widened_below(f"{path}.value", before.item_type, after.item_type)
    elif before != after:
        yield path, after


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
