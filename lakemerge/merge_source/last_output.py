"""Reads the last output from the output itself, for runs that cannot trust the state because a table was restored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.combine import FIXED, OutputShape
from lakemerge.merge_source.content_hash import hash_rows, hash_values
from lakemerge.merge_source.entity_states import strings
from lakemerge.merge_source.nested_arrays import Ints, contiguous, lengths_of, offsets_of
from lakemerge.merge_source.output_ids import OldClusters
from lakemerge.merge_source.state import ENTITY
from lakemerge.table.table import LakeTable

__all__ = ["completed", "confirmed", "seen_clusters"]


def seen_clusters(output: LakeTable, shape: OutputShape, remembered: OldClusters) -> tuple[OldClusters, int]:
    """The clusters that the output shows, and the highest number of its rows.

    :param remembered: the state's clusters, which say whether a value is single or a list of one.
    """
    records, members, last = [], [], -1
    for batch in output.scan():
        rows = pa.Table.from_batches([batch])
        last = max(last, pc.max(rows.column("_updated")).as_py() or -1)
        # A retired id has no members, and is deleted. Any other row without members is one that no run writes.
        retired = pc.and_kleene(rows.column("_members").is_null(), rows.column("_deleted"))
        shown = rows.filter(pc.invert(pc.fill_null(retired, False)))
        if shown.num_rows:
            records.append(_records(shown, shape, remembered))
            members.append(contiguous(shown.column("_members")))
    fields = [
        ENTITY.field(name) for name in ("output_id", "hash", "updated", "run", "singles", "deleted", "split_into")
    ]
    empty = pa.schema([*fields, ("written", pa.int64())]).empty_table()
    lists = contiguous(pa.chunked_array(members, FIXED.field("_members").type))
    inside = pc.list_flatten(lists)
    datasets = inside.field("dataset").to_numpy(zero_copy_only=False).astype(np.int64)
    found = pa.concat_tables([empty, *records])
    return OldClusters(found, offsets_of(lists), datasets, contiguous(inside.field("id"))), last


def confirmed(told: OldClusters, seen: OldClusters) -> OldClusters:
    """What the output shows, with the hashes of rows that are not as the state says taken away: they are written again.

    :param told: the clusters as the state has them.
    """
    at = pc.index_in(seen.output_ids, value_set=told.output_ids)
    same = at.is_valid()
    for name in ("hash", "written", "updated"):
        one, other = strings(seen.records, name), strings(told.records, name).take(at)
        same = pc.and_(same, pc.fill_null(pc.equal(one, other), False))
    columns = {name: strings(seen.records, name) for name in seen.records.column_names}
    for name in ("hash", "written"):
        columns[name] = pc.if_else(same, columns[name], pa.scalar(None, columns[name].type))
    return replace(seen, records=pa.table(columns))


def completed(told: OldClusters, seen: OldClusters, *, after: int | None = None) -> OldClusters:
    """What the state says, and the rows of the output that the state knows nothing of. The hashes of rows that the
    output does not have as the state says are taken away: they are written again.

    :param told: the clusters as the state has them.
    :param after: rows of runs after this one count as if they were in the output.
    """
    at = pc.index_in(told.output_ids, value_set=seen.output_ids)
    same = at.is_valid()
    for name in ("hash", "written", "updated"):
        one, other = strings(told.records, name), strings(seen.records, name).take(at)
        same = pc.and_(same, pc.fill_null(pc.equal(one, other), False))
    if after is not None:
        same = pc.or_(same, pc.fill_null(pc.greater(strings(told.records, "run"), after), False))
    columns = {name: strings(told.records, name) for name in told.records.column_names}
    for name in ("hash", "written"):
        columns[name] = pc.if_else(same, columns[name], pa.scalar(None, columns[name].type))
    strange = pc.invert(pc.is_in(seen.output_ids, value_set=told.output_ids)).to_numpy(zero_copy_only=False)
    sizes = np.diff(seen.offsets)
    inside = np.repeat(strange, sizes)
    others = seen.records.filter(pa.array(strange)).select(list(columns))
    return OldClusters(
        pa.concat_tables([pa.table(columns), others], promote_options="permissive").combine_chunks(),
        np.concatenate([told.offsets, told.offsets[-1] + np.cumsum(sizes[strange], dtype=np.int64)]),
        np.concatenate([told.datasets, seen.datasets[inside]]),
        contiguous(pa.chunked_array([told.ids, seen.ids.filter(pa.array(inside))], pa.string())),
        np.append(np.zeros(len(told), dtype=np.bool_), np.ones(int(strange.sum()), dtype=np.bool_)),
    )


def _records(rows: pa.Table, shape: OutputShape, remembered: OldClusters) -> pa.Table:
    ids = strings(rows, "_id")
    at = pc.index_in(ids, value_set=remembered.output_ids)
    singles = strings(remembered.records, "singles").take(at)
    return pa.table(
        {
            "output_id": ids,
            "hash": pa.array(_hashes(rows, shape, singles), mask=_is_strange(rows)),
            "updated": strings(rows, "_updated"),
            "run": strings(remembered.records, "run").take(at).fill_null(0),
            "singles": singles,
            "deleted": strings(rows, "_deleted").fill_null(False),
            "split_into": _split_into(rows),
            "written": pa.array(hash_values(contiguous(rows.column("_members"))).view(np.int64)),
        }
    )


def _split_into(rows: pa.Table) -> pa.Array:
    kind = ENTITY.field("split_into").type
    known = "$split_into" in rows.column_names
    return strings(rows, "$split_into").cast(kind) if known else pa.nulls(rows.num_rows, kind)


def _is_strange(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows that no run writes in that way, whatever their values."""
    replaced = strings(rows, "$replaced").fill_null(True)
    strange = pc.or_(pc.or_(replaced, strings(rows, "_updated").is_null()), strings(rows, "_members").is_null())
    return strange.to_numpy(zero_copy_only=False)


def _hashes(rows: pa.Table, shape: OutputShape, singles: pa.Array) -> Ints:
    """The hashes that :func:`lakemerge.merge_source.combine.combine` makes."""
    own = [name for name in rows.column_names if name not in FIXED.names]
    hashed = {name: contiguous(rows.column(name)) for name in ("_id", "$ids", *own)}
    deleted = strings(rows, "_deleted")
    hashed["_deleted"] = pc.if_else(deleted, deleted, pa.scalar(None, pa.bool_()))
    spelled = {name.lower(): name for name in own}
    for one in shape.properties if shape.strategy != "list" else ():
        if one.name.lower() not in spelled or one.name.lower() in shape.survivors:
            continue
        alone = lengths_of(hashed[spelled[one.name.lower()]]) == 1
        if shape.strategy == "default" and one.lists:
            alone &= len(one.lists) < len(one.columns)
            alone &= _listed(singles, one.name)
        hashed[f"{one.name}\0single"] = pa.array([True]).take(pa.array(np.zeros(len(alone), np.int64), mask=~alone))
    return hash_rows(pa.table(hashed)).view(np.int64)


def _listed(lists: pa.Array, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which lists contain the name."""
    named = pc.equal(pc.list_flatten(lists), name).to_numpy(zero_copy_only=False)
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    found = np.zeros(len(lists), dtype=np.bool_)
    found[parents[named]] = True
    return found
