"""Full runs of merge sources on Spark.

Executors evaluate rules and combine clusters on whole Arrow batches, with the same functions as runs without Spark. So
values and merged entities have one meaning. The driver holds ids and values, finds the clusters, and tells executors
which rows belong together. It never holds rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType

from lakemerge.merge_source.clusters import Clusters
from lakemerge.merge_source.combine import STABLE, DatasetRows, OutputShape, combine
from lakemerge.merge_source.emission import REMEMBERED, Emission, judge
from lakemerge.merge_source.entity_states import Fresh, Known, held_lists, held_of, ints, strings
from lakemerge.merge_source.ids import composite_ids, ids_of
from lakemerge.merge_source.incremental_run import fresh_of_rows, narrow_columns
from lakemerge.merge_source.inputs import Input, Shape
from lakemerge.merge_source.member_rows import BATCH_MEMBERS, Chunks
from lakemerge.merge_source.nested_arrays import Ints, contiguous, run_starts
from lakemerge.merge_source.output_ids import OldClusters
from lakemerge.merge_source.publish import KIND, conformed, prepare_output, removals, retired_rows, with_kind
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import APPLICATION, HOLDING
from lakemerge.schema.schema import safe_cast, to_ddl
from lakemerge.spark.names import quoted
from lakemerge.spark.transport.jobs import limited, parallelism
from lakemerge.spark.transport.local import local_frame
from lakemerge.spark.transport.transit import send
from lakemerge.table.table import LakeTable

TASK_MEMBERS = 1 << 18
"""About how many members one task combines."""

__all__ = ["SparkEmitter", "entities_on_spark"]

_ENTITIES = pa.schema(
    [
        ("id", pa.string()),
        ("deleted", pa.bool_()),
        ("dropped", pa.bool_()),
        ("held", pa.list_(pa.field("element", HOLDING))),
    ]
)
_JUDGED = pa.schema(
    [
        ("_lm_cluster", pa.int64()),
        ("_lm_hash", pa.int64()),
        ("_lm_changed", pa.bool_()),
        ("_lm_rewritten", pa.bool_()),
        ("_lm_deleted", pa.bool_()),
        ("_lm_singles", REMEMBERED.field("singles").type),
    ]
)
"""Columns that executors return for clusters, in addition to those of the output."""


def entities_on_spark(spark: SparkSession, inputs: Sequence[Input], rules: Rules) -> Fresh:
    """The entities of the datasets, with the values that they hold. Ids and values come to the driver."""
    return Fresh.together([_entities_of(spark, one, rules) for one in inputs])


def _entities_of(spark: SparkSession, one: Input, rules: Rules) -> Fresh:
    shape, offset = one.shape, one.offset
    if shape is None:
        return Fresh.together([])
    names = narrow_columns(offset, shape, rules)
    sent, received = send(_frame_of(spark, one, names), names)
    schema = pa.schema([shape.schema.field(name).with_nullable(True) for name in names])

    def evaluate(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = pa.Table.from_batches([safe_cast(received.received(batch), schema)])
            fresh = fresh_of_rows(offset, shape, rules, rows)
            flags = [pa.array(fresh.deleted), pa.array(fresh.dropped)]
            columns = [fresh.ids, *flags, held_lists(fresh.held, len(fresh))]
            yield pa.RecordBatch.from_arrays(columns, schema=_ENTITIES)

    found = sent.mapInArrow(limited(evaluate), to_ddl(_ENTITIES)).toArrow()
    return _fresh_of(found, offset)


def _fresh_of(found: pa.Table, offset: int) -> Fresh:
    count = found.num_rows
    none = np.zeros(count, dtype=np.int64)
    ids = strings(found, "id").cast(pa.string())
    held = contiguous(found.column("held")).cast(_ENTITIES.field("held").type)
    deleted, dropped = (
        contiguous(found.column(name)).to_numpy(zero_copy_only=False) for name in ("deleted", "dropped")
    )
    not_gone = np.zeros(count, dtype=np.bool_)
    return Fresh(none + offset, ids, deleted, not_gone, dropped, pa.nulls(count, pa.string()), none, held_of(held))


class SparkEmitter:
    """Combines clusters in tasks; each task has some of the clusters. Rows that changed wait in Spark's storage."""

    def __init__(
        self,
        spark: SparkSession,
        inputs: Sequence[Input],
        shape: OutputShape,
        known: Known,
        chunks: Chunks,
        identity: str,
        target: pa.Schema,
    ) -> None:
        self._spark = spark
        self._inputs = inputs
        self._shape = shape
        self._known = known
        self._chunks = chunks
        self._identity = identity
        self._target = target
        self._frame: DataFrame | None = None
        self.rows = 0

    def emit(self, clusters: Clusters, old: OldClusters, *, run: int, number: int) -> Emission:
        """See :class:`lakemerge.merge_source.emission.Emitter`. Numbers have a gap for each cluster that is not
        emitted."""
        if not len(clusters):
            return Emission(REMEMBERED.empty_table(), number, 0, 0)
        record = old.records.take(pc.index_in(clusters.output_ids, value_set=old.output_ids))
        members = self._with_rows(self._members(clusters, record), clusters.members)
        # Partitioned by hash: to partition by range, Spark would run the join twice, once to find the ranges.
        tasks = max(parallelism(self._spark), -(-len(clusters.datasets) // TASK_MEMBERS))
        combined = members.repartition(tasks, "cluster").sortWithinPartitions("place")
        schema = pa.schema([*self._target, *_JUDGED])
        work = _Combining(self._shape, [one.shape for one in self._inputs], self._identity, self._target, number)
        self._frame = combined.mapInArrow(limited(work.run), to_ddl(schema)).persist(StorageLevel.MEMORY_AND_DISK)
        told = self._frame.select(*_JUDGED.names).toArrow().sort_by("_lm_cluster")
        return self._emission(told, record, run=run, number=number)

    def write(self, output: LakeTable, target: pa.Schema, retired: pa.Table, removed: pa.Array, number: int) -> None:
        prepare_output(output, target)
        told = with_kind(conformed(retired_rows(retired), target), "+U")
        frame = local_frame(self._spark, pa.concat_tables([told, removals(removed, target)]))
        if self._frame is not None:
            kind = functions.lit("+U").alias(KIND)
            changed = self._frame.where("_lm_rewritten").select(*map(quoted, target.names), kind)
            frame = changed.unionByName(frame)
        output.upsert(frame, merge_schema=True, kind_column=KIND, txn=(APPLICATION, number))

    def close(self) -> None:
        if self._frame is not None:
            self._frame.unpersist()

    def _emission(self, told: pa.Table, record: pa.Table, *, run: int, number: int) -> Emission:
        changed, rewritten = strings(told, "_lm_changed"), strings(told, "_lm_rewritten")
        self.rows = pc.sum(rewritten).as_py() or 0
        fresh = pa.array(number + np.arange(told.num_rows, dtype=np.int64))
        remembered = [
            strings(told, "_lm_hash"),
            pc.if_else(changed, fresh, strings(record, "updated")),
            pc.if_else(rewritten, pa.scalar(run, pa.int64()), strings(record, "run")),
            strings(told, "_lm_singles").cast(REMEMBERED.field("singles").type),
        ]
        dead = pc.sum(pc.and_(changed, strings(told, "_lm_deleted"))).as_py() or 0
        return Emission(
            pa.table(remembered, schema=REMEMBERED), number + told.num_rows, pc.sum(changed).as_py() or 0, dead
        )

    def _members(self, clusters: Clusters, record: pa.Table) -> pa.Table:
        """A row for each member: its cluster and place, and for the first member the cluster's last output."""
        count = len(clusters.datasets)
        first = np.zeros(count, dtype=np.bool_)
        first[clusters.offsets[:-1]] = True
        at = pa.array(clusters.of_members, mask=~first)
        told = {name: strings(record, name).take(at) for name in ("hash", "written", "updated")}
        if clusters.split_into is not None:
            told |= {"name": clusters.output_ids.take(at), "split_into": clusters.split_into.take(at)}
        return pa.table(
            {
                "cluster": pa.array(clusters.of_members),
                "place": pa.array(np.arange(count, dtype=np.int64)),
                "dataset": pa.array(clusters.datasets.astype(np.int32)),
                "id": clusters.ids,
                "deleted": pa.array(clusters.deleted[clusters.of_members]),
                **told,
            }
        )

    def _with_rows(self, members: pa.Table, places: Ints) -> DataFrame:
        """The members with their rows. The rows of each dataset are in a column of their own.

        :param places: the places of the members among the known entities.
        """
        gone = self._known.gone[places]
        parts = [
            self._rows_of(one, shape, members.filter(pa.array((ints(members, "dataset") == one.offset) & ~gone)))
            for one in self._inputs
            if (shape := one.shape) is not None
        ]
        parts += self._gone(members, places, np.flatnonzero(gone))
        return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)

    def _rows_of(self, one: Input, shape: Shape, members: pa.Table) -> DataFrame:
        frame = _frame_of(self._spark, one, list(dict.fromkeys([*shape.id_columns, *shape.kept])))
        rows = frame.select(_id_text(shape).alias("id"), _as_struct(shape.kept).alias(f"d{one.offset}"))
        return local_frame(self._spark, members).join(rows, "id")

    def _gone(self, members: pa.Table, places: Ints, gone: Ints) -> list[DataFrame]:
        """Members that were deleted, with their kept rows."""
        left = np.zeros(members.num_rows, dtype=np.bool_)
        left[gone] = True
        frames = []
        shapes = [one.shape for one in self._inputs]
        for part in self._chunks.parts(self._known, places[gone], gone, shapes):
            left[part.places] = False
            named = part.rows.rename_columns([f"c{number}" for number in range(part.rows.num_columns)])
            struct = named.append_column("c", pa.nulls(named.num_rows, pa.int32())).to_struct_array()
            table = members.take(pa.array(part.places)).append_column(f"d{part.dataset}", struct)
            frames.append(local_frame(self._spark, table))
        if left.any():
            frames.append(local_frame(self._spark, members.filter(pa.array(left))))
        return frames


class _Combining:
    """Combines the clusters of a task. The members of a cluster come one after the other. Picklable."""

    def __init__(
        self, shape: OutputShape, shapes: Sequence[Shape | None], identity: str, target: pa.Schema, number: int
    ) -> None:
        self._shape = shape
        self._shapes = shapes
        self._identity = identity
        self._target = target
        self._number = number

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.Table] = []
        rows = 0
        for batch in batches:
            held.append(pa.Table.from_batches([batch]))
            rows += batch.num_rows
            if rows > BATCH_MEMBERS:
                whole = pa.concat_tables(held).combine_chunks()
                # The last cluster may continue in the next batch.
                cut = int(run_starts(ints(whole, "cluster"))[-1])
                if cut:
                    yield from self._combined(whole.slice(0, cut))
                held, rows = [whole.slice(cut)], whole.num_rows - cut
        if rows:
            yield from self._combined(pa.concat_tables(held))

    def _combined(self, members: pa.Table) -> Iterator[pa.RecordBatch]:
        members = members.combine_chunks()
        starts = run_starts(ints(members, "cluster"))
        datasets, ids = ints(members, "dataset"), strings(members, "id").cast(pa.string())
        offsets = np.append(starts, members.num_rows)
        firsts = members.take(pa.array(starts))
        names = ids.take(pa.array(starts)) if self._identity == "first" else composite_ids(offsets, datasets, ids)
        lists = None
        if self._shape.stable:
            names = strings(firsts, "name").cast(pa.string())
            lists = strings(firsts, "split_into").cast(STABLE.field("$split_into").type)
        deleted = strings(firsts, "deleted").to_numpy(zero_copy_only=False)
        clusters = Clusters(offsets, np.arange(len(ids)), datasets, ids, deleted, names, lists)
        combined = combine(clusters, list(self._parts(members, datasets)), self._shape)
        judged = judge(combined, strings(firsts, "hash"), strings(firsts, "written"))
        fresh = pc.add(firsts.column("cluster"), self._number)
        numbers = pc.if_else(pa.array(judged.changed), contiguous(fresh), strings(firsts, "updated"))
        output = conformed(combined.rows.append_column("_updated", numbers), self._target)
        told = [
            strings(firsts, "cluster"),
            pa.array(combined.hashes),
            pa.array(judged.changed),
            pa.array(judged.rewritten),
            pa.array(deleted),
            combined.singles,
        ]
        for field, column in zip(_JUDGED, told, strict=True):
            output = output.append_column(field, column)
        yield from output.combine_chunks().to_batches()

    def _parts(self, members: pa.Table, datasets: Ints) -> Iterator[DatasetRows]:
        for offset, shape in enumerate(self._shapes):
            if shape is None or f"d{offset}" not in members.column_names:
                continue
            structs = strings(members, f"d{offset}")
            places = np.flatnonzero((datasets == offset) & structs.is_valid().to_numpy(zero_copy_only=False))
            chosen = structs.take(pa.array(places))
            columns = [chosen.field(f"c{number}") for number in range(len(shape.kept))]
            schema = pa.schema([shape.schema.field(name).with_nullable(True) for name in shape.kept])
            batch = pa.RecordBatch.from_arrays(columns, names=shape.kept)
            yield DatasetRows(offset, places, pa.Table.from_batches([safe_cast(batch, schema)]))


def _frame_of(spark: SparkSession, one: Input, columns: Sequence[str]) -> DataFrame:
    """The named columns of a dataset. This process reads a plain Delta table itself."""
    if isinstance(one.table, LakeTable):
        return LakeTable(one.table.opened.handle, one.table.opened.view.snapshot, pinned=True, spark=spark).to_df(
            columns=columns
        )
    if one.shape is None:
        raise AssertionError("a dataset that is not there is not read")
    schema = pa.schema([one.shape.schema.field(name).with_nullable(True) for name in columns])
    tables = [table.select(list(columns)) for table in one.scan(columns)]
    return local_frame(spark, pa.concat_tables([schema.empty_table(), *tables]))


def _as_struct(names: Sequence[str]) -> Column:
    """The columns as a struct, under names that need no quotes. A null field is added: a struct may not be empty."""
    renamed = [functions.col(quoted(name)).alias(f"c{number}") for number, name in enumerate(names)]
    return functions.struct(*renamed, functions.lit(None).cast("int").alias("c"))


def _id_text(shape: Shape) -> Column:
    """The id, equal to that of :func:`lakemerge.merge_source.ids.ids_of`."""
    kinds = [shape.schema.field(name).type for name in shape.id_columns]
    columns = [functions.col(quoted(name)) for name in shape.id_columns]
    if len(kinds) == 1 and (pa.types.is_string(kinds[0]) or pa.types.is_integer(kinds[0])):
        return columns[0].cast("string")
    schema = pa.schema([pa.field(f"k{number}", kind) for number, kind in enumerate(kinds)])

    def texts(*keys: pa.Array) -> pa.Array:
        batch = safe_cast(pa.RecordBatch.from_arrays(list(keys), names=schema.names), schema)
        return ids_of(pa.Table.from_batches([batch]), schema.names)

    made: Column = cast("Any", arrow_udf)(texts, StringType())(*columns)
    return made
