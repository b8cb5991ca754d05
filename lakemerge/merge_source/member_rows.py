"""The rows of clusters' members: looked up if few are wanted, read in one pass if all are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import FullRunNeededError
from lakemerge.merge_source.clusters import Clusters
from lakemerge.merge_source.combine import DatasetRows
from lakemerge.merge_source.entity_states import Known
from lakemerge.merge_source.ids import ids_of
from lakemerge.merge_source.inputs import Input, Shape
from lakemerge.merge_source.nested_arrays import Ints, contiguous, run_starts
from lakemerge.merge_source.spool import Spool
from lakemerge.merge_source.state import State

__all__ = ["BATCH_MEMBERS", "Chunks", "MemberRows", "ScannedRows", "SoughtRows"]

BATCH_MEMBERS = 1 << 16
"""About how many members have their rows in memory at a time."""
_PLACE = "\0place"


class MemberRows(Protocol):
    """Gives the rows of clusters' members."""

    def batches(self) -> Iterator[tuple[int, Clusters, list[DatasetRows]]]:
        """All clusters in order, some at a time, with the number of the first one and the rows of the members."""


@dataclass(slots=True)
class Chunks:
    """Kept rows that were deleted from their tables, by the name of their chunk: from this run, and from the state."""

    state: State | None
    fresh: dict[str, pa.Table] = field(default_factory=dict)

    def parts(self, known: Known, members: Ints, places: Ints, shapes: Sequence[Shape | None]) -> Iterator[DatasetRows]:
        """The kept rows of some members.

        :param members: the places of the members among the known entities.
        :param places: their places among the wanted members.
        """
        names = known.chunks.take(pa.array(members))
        there = names.is_valid().to_numpy(zero_copy_only=False)
        members, places, names = members[there], places[there], names.drop_null()
        if not len(members):
            return
        tables = self._tables(names.unique().to_pylist())
        for name, table in tables.items():
            own = pc.equal(names, name).to_numpy(zero_copy_only=False)
            dataset = int(known.datasets[members[own][0]])
            shape = shapes[dataset]
            if shape is not None:
                rows = table.take(pa.array(known.places[members[own]]))
                yield DatasetRows(dataset, places[own], _with_columns(rows, shape))

    def _tables(self, names: Sequence[str]) -> Mapping[str, pa.Table]:
        found = {name: self.fresh[name] for name in names if name in self.fresh}
        missing = [name for name in names if name not in found]
        return found | (self.state.chunks(missing) if missing and self.state is not None else {})


def _with_columns(rows: pa.Table, shape: Shape) -> pa.Table:
    """Kept rows with the dataset's present columns."""
    columns = {
        name: rows.column(name) if name in rows.column_names else pa.nulls(rows.num_rows, shape.schema.field(name).type)
        for name in shape.kept
    }
    return pa.table(columns)


@dataclass(slots=True)
class SoughtRows:
    """Looks rows up in the datasets."""

    inputs: Sequence[Input]
    known: Known
    clusters: Clusters
    chunks: Chunks

    def batches(self) -> Iterator[tuple[int, Clusters, list[DatasetRows]]]:
        for start, part in self.clusters.batches(BATCH_MEMBERS):
            yield start, part, list(self._parts(part))

    def _parts(self, clusters: Clusters) -> Iterator[DatasetRows]:
        yield from _gone(self, clusters)
        gone = self.known.gone[clusters.members]
        for one in self.inputs:
            places = np.flatnonzero((clusters.datasets == one.offset) & ~gone)
            if len(places) and one.shape is not None:
                yield self._found(one, one.shape, clusters.ids.take(pa.array(places)), places)

    @staticmethod
    def _found(one: Input, shape: Shape, ids: pa.Array, places: Ints) -> DatasetRows:
        found, rows = one.find(ids, shape.kept)
        at = pc.index_in(ids, value_set=found)
        if at.null_count:
            missing = ids.filter(at.is_null())[0].as_py()
            raise FullRunNeededError(
                f"dataset {one.name!r} has no entity {missing!r}, which it had at the last run. Run with full=True",
                dataset=one.name,
                id=missing,
            )
        return DatasetRows(one.offset, places, rows.take(at))


@dataclass(slots=True)
class ScannedRows:
    """The rows of all clusters. Each dataset is read once, and its rows wait for the batch of their cluster."""

    inputs: Sequence[Input]
    known: Known
    clusters: Clusters
    chunks: Chunks
    threads: int
    """How many datasets are read at the same time."""

    def batches(self) -> Iterator[tuple[int, Clusters, list[DatasetRows]]]:
        parts = list(self.clusters.batches(BATCH_MEMBERS))
        firsts = np.array([int(self.clusters.offsets[start]) for start, _ in parts], dtype=np.int64)
        place_of = np.full(len(self.known) + 1, -1, dtype=np.int64)
        place_of[self.clusters.members] = np.arange(len(self.clusters.members))
        with Spool() as spool:
            with thread_pool(min(len(self.inputs), self.threads)) as pool:
                list(pool.map(lambda one: self._sort_out(one, place_of, firsts, spool), self.inputs))
            for number, (start, clusters) in enumerate(parts):
                waiting = self._waiting(spool, number, int(firsts[number]))
                yield start, clusters, [*waiting, *_gone(self, clusters)]

    def _sort_out(self, one: Input, place_of: Ints, firsts: Ints, spool: Spool) -> None:
        """Put the rows of a dataset into the batches of their clusters."""
        if one.shape is None:
            return
        for rows in one.scan(one.shape.kept):
            datasets = np.full(rows.num_rows, one.offset, dtype=np.int64)
            places = place_of[self.known.places_of(datasets, ids_of(rows, one.shape.id_columns))]
            batch = np.searchsorted(firsts, places, side="right") - 1
            order = np.argsort(batch, kind="stable")
            order = order[places[order] >= 0]
            labelled = rows.select(one.shape.kept).append_column(_PLACE, pa.array(places)).take(pa.array(order))
            starts = run_starts(batch[order])
            for start, end in pairwise([*starts.tolist(), len(order)]):
                number = int(batch[order[start]])
                spool.add(number * len(self.inputs) + one.offset, labelled.slice(start, end - start))

    def _waiting(self, spool: Spool, number: int, first: int) -> Iterator[DatasetRows]:
        for one in self.inputs:
            tables = list(spool.tables(number * len(self.inputs) + one.offset))
            if tables:
                rows = pa.concat_tables(tables)
                places = contiguous(rows.column(_PLACE)).to_numpy(zero_copy_only=False).astype(np.int64)
                yield DatasetRows(one.offset, places - first, rows.drop_columns([_PLACE]))


def _gone(rows: SoughtRows | ScannedRows, clusters: Clusters) -> Iterator[DatasetRows]:
    """The kept rows of members that were deleted."""
    gone = np.flatnonzero(rows.known.gone[clusters.members])
    yield from rows.chunks.parts(rows.known, clusters.members[gone], gone, [one.shape for one in rows.inputs])
