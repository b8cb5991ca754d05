"""Reads the last output from the output itself, for runs that cannot trust the state because a table was restored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.combine import FIXED, OutputShape
from lakemerge.merge_source.content import hash_rows, hash_values
from lakemerge.merge_source.known import strings
from lakemerge.merge_source.lists import Ints, contiguous, lengths_of, offsets_of
from lakemerge.merge_source.outcome import OldClusters
from lakemerge.merge_source.state import ENTITY
from lakemerge.table import LakeTable

__all__ = ["seen_clusters"]


def seen_clusters(output: LakeTable, shape: OutputShape, remembered: OldClusters) -> tuple[OldClusters, int]:
    """The clusters that the output shows, and the highest number of its rows.

    :param remembered: the state's clusters, which say whether a value is single or a list of one.
    """
    records, members, last = [], [], -1
    for batch in output.scan():
        rows = pa.Table.from_batches([batch])
        last = max(last, pc.max(rows.column("_updated")).as_py() or -1)
        shown = rows.filter(rows.column("_members").is_valid())
        if shown.num_rows:
            records.append(_records(shown, shape, remembered))
            members.append(contiguous(shown.column("_members")))
    fields = [ENTITY.field(name) for name in ("output_id", "hash", "updated", "run", "singles")]
    empty = pa.schema([*fields, ("written", pa.int64())]).empty_table()
    lists = contiguous(pa.chunked_array(members, FIXED.field("_members").type))
    inside = pc.list_flatten(lists)
    datasets = inside.field("dataset").to_numpy(zero_copy_only=False).astype(np.int64)
    found = pa.concat_tables([empty, *records])
    return OldClusters(found, offsets_of(lists), datasets, contiguous(inside.field("id"))), last


def _records(rows: pa.Table, shape: OutputShape, remembered: OldClusters) -> pa.Table:
    ids = strings(rows, "_id")
    at = pc.index_in(ids, value_set=remembered.output_ids)
    singles = strings(remembered.records, "singles").take(at)
    return pa.table(
        {
            "output_id": ids,
            "hash": pa.array(_hashes(rows, shape, singles)),
            "updated": strings(rows, "_updated"),
            "run": strings(remembered.records, "run").take(at).fill_null(0),
            "singles": singles,
            "written": pa.array(hash_values(contiguous(rows.column("_members"))).view(np.int64)),
        }
    )


def _hashes(rows: pa.Table, shape: OutputShape, singles: pa.Array) -> Ints:
    """The hashes that :func:`lakemerge.merge_source.combine.combine` makes."""
    own = [name for name in rows.column_names if name not in FIXED.names]
    hashed = {name: contiguous(rows.column(name)) for name in ("_id", "$ids", *own)}
    deleted = strings(rows, "_deleted")
    hashed["_deleted"] = pc.if_else(deleted, deleted, pa.scalar(None, pa.bool_()))
    for one in shape.properties if shape.strategy != "list" else ():
        if one.name not in own:
            continue
        alone = lengths_of(hashed[one.name]) == 1
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
