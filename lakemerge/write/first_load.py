"""First loads: the records of an empty table's first write go through the kernel, and into base files.

The records of a frame that is in memory go there at once. Those of any other frame are packed into log files first, and
these are merged (:func:`load_file_slice`). That costs another writing and reading of all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.delta import AddFile
from lakemerge.format.keys import BucketId
from lakemerge.handle import Handle
from lakemerge.layout.placement import place_rows
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import MergedRange, MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.schema.nested import settled
from lakemerge.write.base_file import BaseWriteSpec, ordinals_needed, write_base_files
from lakemerge.write.pack import PackSpec, joined
from mergers import Frame, fold
from mergers.contract import Ints, Kinds
from mergers.kernel import tombstone_schema
from mergers.keys import key_columns, sort_order
from mergers.portions import gather, plain_bytes, together

__all__ = ["HeldRecords", "hold", "load_file_slice", "load_held", "read_ahead"]


@dataclass(frozen=True, slots=True)
class HeldRecords:
    """A frame's records in memory, by bucket."""

    batches: Sequence[pa.RecordBatch]
    kinds: Sequence[Kinds | None]
    rows: int
    """How many there are."""
    order: Ints
    """The records' numbers by bucket, in arrival order within a bucket."""
    starts: Ints
    """Where the buckets begin in ``order``; the last number is the number of records."""
    buckets: Sequence[BucketId]

    def of(self, number: int) -> tuple[pa.Table, Kinds | None]:
        """The records of one bucket."""
        wanted = self.order[self.starts[number] : self.starts[number + 1]]
        ends = np.cumsum([batch.num_rows for batch in self.batches])
        cuts = np.searchsorted(wanted, np.concatenate([[0], ends]))
        parts: list[pa.RecordBatch] = []
        kinds: list[Kinds | None] = []
        for batch, own, first, start, end in zip(
            self.batches, self.kinds, [0, *ends[:-1].tolist()], cuts[:-1].tolist(), cuts[1:].tolist(), strict=True
        ):
            if start < end:
                at = wanted[start:end] - first
                parts.append(batch.take(pa.array(at)))
                kinds.append(None if own is None else own[at])
        return joined(parts, kinds)


def read_ahead(
    given: Iterable[pa.RecordBatch], spec: PackSpec, *, is_held: bool
) -> tuple[Sequence[pa.RecordBatch] | None, Iterator[pa.RecordBatch]]:
    """The batches of a frame in a list, and the same to iterate. The list is ``None`` if there are more than may be
    held: a frame that is not an Arrow table in memory has to fit into the write budget, and the records of a bucket
    into the budget of a merge.

    :param is_held: whether the batches are in memory anyway.
    """
    plan = spec.frame
    copied = any(kind != field.type for kind, field in zip(plan.types, plan.schema, strict=True))
    limit = spec.buckets * _most(spec) if is_held and not copied else spec.settings.write_budget_bytes
    batches: list[pa.RecordBatch] = []
    size = 0
    left = iter(given)
    for batch in left:
        batches.append(batch)
        size += plain_bytes(batch)
        if size > limit:
            return None, chain(batches, left)
    return batches, iter(batches)


def _most(spec: PackSpec) -> int:
    """The most bytes of records that a bucket may have: a merge holds them, and they become one file."""
    return min(spec.settings.merge_budget_bytes, 2 * spec.settings.target_file_bytes)


def hold(batches: Sequence[pa.RecordBatch], spec: PackSpec) -> HeldRecords | None:
    """The records of all batches of a frame, by bucket. ``None`` if there are none, or if a bucket has more than
    a merge may hold.

    Raises the errors of :meth:`lakemerge.write.frame.FramePlan.convert`, and :class:`lakemerge.FrameError` for values
    that no partition can have.
    """
    config, size = spec.config, sum(plain_bytes(batch) for batch in batches)
    records: list[pa.RecordBatch] = []
    kinds: list[Kinds | None] = []
    first_row = 0
    for batch in batches:
        converted, own = spec.frame.convert(batch, spec.merger, first_row=first_row)
        first_row += batch.num_rows
        records.append(converted)
        kinds.append(own)
    if not first_row:
        return None
    names = list(dict.fromkeys([*config.key, *config.partition_by]))
    keys = together(pa.Table.from_batches([batch.select(names) for batch in records]))
    placed = place_rows(keys, config, spec.buckets)
    order = placed.by_bucket()
    starts = np.append(np.flatnonzero(np.diff(placed.slots[order], prepend=-1)), len(order))
    if int(np.diff(starts).max()) * (size / first_row) > _most(spec):
        return None
    ids = [placed.bucket(slot) for slot in placed.slots[order[starts[:-1]]].tolist()]
    return HeldRecords(records, kinds, first_row, order, starts, ids)


def load_held(held: HeldRecords, spec: PackSpec, begin_version: int, first_ordinal: int) -> list[AddFile]:
    """Write the base files of a first load: one for each bucket of which anything is stored. Their ordinals count from
    ``first_ordinal`` on, in the order of the buckets. The records of an overwrite are sets, with each key once: they
    are the rows."""
    base = _base_files_of(spec, begin_version)
    with thread_pool(spec.settings.threads) as pool:
        load = partial(_load_bucket, held, spec, base, first_ordinal)
        loaded = list(pool.map(load, range(len(held.buckets))))
    return [add for adds in loaded for add in adds]


def _base_files_of(spec: PackSpec, begin_version: int) -> BaseWriteSpec:
    """How the base files of a first load are written."""
    return BaseWriteSpec(
        store=spec.store,
        config=spec.config,
        settings=spec.settings,
        name=spec.name,
        merged_through=begin_version,
        buckets=spec.buckets,
    )


def _load_bucket(
    held: HeldRecords, spec: PackSpec, base: BaseWriteSpec, first_ordinal: int, number: int
) -> list[AddFile]:
    rows, kinds = held.of(number)
    shape = spec.config.shape
    none = tombstone_schema(shape).empty_table()
    if spec.frame.states:
        merged = MergedRange(gather(rows, sort_order(key_columns(rows, shape.key))), none)
    else:
        folded = fold(
            spec.merger,
            shape,
            base=pa.schema([field.with_nullable(True) for field in shape.schema]).empty_table(),
            tombstones=none,
            frames=[Frame(rows, kinds, base.merged_through + 1)],
            columns=shape.schema.names,
        )
        merged = MergedRange(settled(folded.rows), folded.tombstones)
    if not merged.rows.num_rows and not merged.tombstones.num_rows:
        return []
    own = [first_ordinal + number]
    return write_base_files([merged], base, held.buckets[number], lower=None, ordinals=own, now_ms=Handle.now_ms())


def load_file_slice(spec: PackSpec, begin_version: int, file_slice: FileSlice, first_ordinal: int) -> list[AddFile]:
    """Merge one file slice of a first load into base files."""
    merge = MergeSpec(spec.store, spec.config, spec.merger, spec.settings)
    base = _base_files_of(spec, begin_version)
    count = ordinals_needed(file_slice.stored_bytes, spec.settings)
    with ParquetFiles(spec.store) as files:
        ranges = merge_file_slice(merge, file_slice, columns=spec.config.schema.names, sort=True, files=files)
        return write_base_files(
            ranges,
            base,
            file_slice.bucket_id,
            lower=None,
            ordinals=range(first_ordinal, first_ordinal + count),
            now_ms=Handle.now_ms(),
        )
