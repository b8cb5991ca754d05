"""Combines clusters, finds those to output anew, and keeps their rows until the state is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.merge_source.clusters import Clusters
from lakemerge.merge_source.combine import Combined, DatasetRows, OutputShape, combine
from lakemerge.merge_source.content_hash import hash_values
from lakemerge.merge_source.entity_states import Places, strings
from lakemerge.merge_source.member_rows import MemberRows
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous
from lakemerge.merge_source.output_ids import OldClusters
from lakemerge.merge_source.publish import BATCH_ROWS, publish, retired_rows
from lakemerge.merge_source.spool import Spool
from lakemerge.merge_source.state import ENTITY
from lakemerge.table.table import LakeTable

__all__ = ["REMEMBERED", "Emission", "Emitter", "Judged", "LocalEmitter", "judge"]

REMEMBERED = pa.schema([ENTITY.field(name) for name in ("hash", "updated", "run", "singles")])
"""What the state remembers about a cluster's output, other than its id."""


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Emission:
    """The result for clusters."""

    remembered: pa.Table
    """A row for each cluster, in their order, with the columns of :data:`REMEMBERED`."""
    next_number: int
    """The number of the next emitted entity."""
    changed: int
    """How many clusters are emitted."""
    deleted: int
    """How many of these are deleted entities."""


class Emitter(Protocol):
    """Combines clusters here or on Spark."""

    @property
    def rows(self) -> int:
        """How many rows wait to be written."""

    def emit(self, clusters: Clusters, old: OldClusters, *, run: int, number: int) -> Emission:
        """Combine the clusters, in order, and keep the rows of those that changed.

        :param number: the number of the first emitted entity.
        """

    def write(self, output: LakeTable, target: pa.Schema, retired: pa.Table, removed: pa.Array, number: int) -> None:
        """Write the rows that wait, and the rows of retired ids, and delete those of removed ids, under the run's
        number."""

    def close(self) -> None:
        """Drop the rows that wait, whether or not they were written."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Which clusters changed, compared with their last output."""

    changed: Bools
    """Their content differs: they are emitted."""
    rewritten: Bools
    """Their content or their members differ: they are written."""


def judge(combined: Combined, last_hash: pa.Array, last_members: pa.Array) -> Judged:
    """Compare combined clusters with their last output.

    :param last_hash: the hashes of the last output under the same ids; null where there was none.
    :param last_members: hashes of the members at that time.
    """
    members = hash_values(contiguous(combined.rows.column("_members"))).view(np.int64)
    changed = _differ(last_hash, combined.hashes)
    return Judged(changed, changed | _differ(last_members, members))


def _differ(last: pa.Array, now: Ints) -> Bools:
    same = pc.fill_null(pc.equal(last, pa.array(now)), False)
    return ~same.to_numpy(zero_copy_only=False)


def _ahead(work: Callable[..., _Result], items: Iterable[tuple[object, ...]], threads: int) -> Iterator[_Result]:
    """Work on items by several threads, a few items ahead. The results are in order."""
    with thread_pool(threads) as pool:
        waiting: deque[Future[_Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, *item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass(slots=True)
class LocalEmitter:
    """Combines in this process, some clusters at a time. Rows that changed wait in a spool."""

    shape: OutputShape
    spool: Spool
    threads: int
    """How many batches of clusters are combined at the same time."""
    rows_of: Callable[[Clusters], MemberRows]

    @property
    def rows(self) -> int:
        return self.spool.rows

    def emit(self, clusters: Clusters, old: OldClusters, *, run: int, number: int) -> Emission:
        changed = deleted = 0
        parts = [REMEMBERED.empty_table()]
        places = Places(old.output_ids)

        def judged_of(part: Clusters, rows: Sequence[DatasetRows]) -> tuple[Clusters, Combined, pa.Table, Judged]:
            combined = combine(part, rows, self.shape)
            at = places.of(part.output_ids)
            record = old.records.take(pa.array(at, mask=at < 0))
            return part, combined, record, judge(combined, strings(record, "hash"), strings(record, "written"))

        batches = ((part, rows) for _, part, rows in self.rows_of(clusters).batches())
        for part, combined, record, judged in _ahead(judged_of, batches, self.threads):
            fresh = np.cumsum(judged.changed) - 1 + number + changed
            numbers = pc.if_else(pa.array(judged.changed), pa.array(fresh), strings(record, "updated"))
            runs = pc.if_else(pa.array(judged.rewritten), pa.scalar(run, pa.int64()), strings(record, "run"))
            if judged.rewritten.any():
                whole = combined.rows.append_column("_updated", numbers)
                self.spool.add(0, whole.filter(pa.array(judged.rewritten)))
            parts.append(pa.table([pa.array(combined.hashes), numbers, runs, combined.singles], schema=REMEMBERED))
            changed += int(judged.changed.sum())
            deleted += int((part.deleted & judged.changed).sum())
        return Emission(pa.concat_tables(parts), number + changed, changed, deleted)

    def write(self, output: LakeTable, target: pa.Schema, retired: pa.Table, removed: pa.Array, number: int) -> None:
        def tables() -> Iterator[pa.Table]:
            if retired.num_rows:
                yield retired_rows(retired)
            yield from self.spool.tables(0)

        # Rows that need no other types are not copied: their tables are maps of the spool.
        types = {field.name.lower(): field.type for field in target}
        mapped = all(types[field.name.lower()] == field.type for field in self.shape.schema)
        publish(output, target, tables(), number, removed=removed, held=mapped or self.rows <= BATCH_ROWS)

    def close(self) -> None:
        """Does nothing: the run closes its spool."""
