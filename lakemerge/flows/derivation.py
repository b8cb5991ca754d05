"""The history of a dimension (SCD type 2), derived from its events.

An event begins a new row of its key if the key had no row, or if a tracked column differs from the event before it in
the sequence. The row ends where the next one begins, or where an event deletes. A change in other columns changes the
row in place. So a late event splits a row, and only the event is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from lakemerge.flows.settings import DELETED, END, START, HistoryView
from mergers.builtin.functions.equal import equality_codes
from mergers.contract import Bools, Ints

__all__ = ["derived", "derived_batches", "history_schema", "spelled"]


def history_schema(events: pa.Schema) -> pa.Schema:
    """The columns of a history."""
    start = events.field(START)
    rest = [field.with_nullable(True) for field in events if field.name not in (START, DELETED)]
    return pa.schema([*rest, start.with_nullable(True), start.with_name(END).with_nullable(True)])


def derived_batches(batches: Iterable[pa.RecordBatch], view: HistoryView) -> Iterator[pa.RecordBatch]:
    """As :func:`derived`, for a stream of batches sorted by key and sequence. Only the events of one key and of one
    batch are in memory at a time."""
    held: list[pa.Table] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(pa.Table.from_batches([batch]))
        whole = pa.concat_tables(held)
        last = int(np.flatnonzero(_begins(whole, view.keys))[-1])
        if last:
            yield from derived(whole.slice(0, last), view).to_batches()
        held = [whole.slice(last)]
    if held:
        yield from derived(pa.concat_tables(held), view).to_batches()


def derived(events: pa.Table, view: HistoryView) -> pa.Table:
    """The history of events. They must be sorted by key and sequence, and include all events of their keys."""
    schema = history_schema(events.schema)
    if not events.num_rows:
        return schema.empty_table()
    events = events.combine_chunks()
    begins = _begins(events, view.keys)
    deletes = events.column(DELETED).fill_null(False).to_numpy(zero_copy_only=False)
    # After a delete, as at the beginning of a key, the next event begins with an empty row.
    fresh = begins | np.concatenate([[False], deletes[:-1]])
    keys = {name.lower() for name in view.keys}
    data = [name for name in events.column_names if name not in (START, DELETED) and name.lower() not in keys]
    filled = {name: events.column(name).combine_chunks() for name in data}
    if view.ignore_null_updates:
        filled = {name: _filled(column, fresh) for name, column in filled.items()}
    starts = fresh.copy()
    for name in data:
        if view.tracks(name):
            codes = equality_codes(filled[name])
            starts[1:] |= codes[1:] != codes[:-1]
    starts &= ~deletes
    first = np.flatnonzero(starts)
    # A row has the values of the last event before the key's next row or delete.
    ends = np.flatnonzero(starts | deletes)
    after = np.append(ends, len(starts))[np.searchsorted(ends, first, side="right")]
    same = after < len(starts)
    same[same] = ~_between(begins, first[same], after[same])
    last = np.where(same, after, _key_ends(begins, first)) - 1
    columns = [
        filled[field.name].take(pa.array(last))
        if field.name in filled
        else events.column(field.name).combine_chunks().take(pa.array(last))
        for field in schema
        if field.name not in (START, END)
    ]
    at = events.column(START).combine_chunks()
    ended = at.take(pa.array(np.where(same, after, 0), mask=~same))
    return pa.table([*columns, at.take(pa.array(first)), ended], schema=schema)


def _begins(events: pa.Table, keys: tuple[str, ...]) -> Bools:
    """Where the events of a key begin."""
    begins = np.zeros(events.num_rows, dtype=np.bool_)
    begins[:1] = True
    for name in keys:
        codes = equality_codes(events.column(spelled(events, name)).combine_chunks())
        begins[1:] |= codes[1:] != codes[:-1]
    return begins


def spelled(events: pa.Table, column: str) -> str:
    return next(name for name in events.column_names if name.lower() == column.lower())


def _filled(column: pa.Array, fresh: Bools) -> pa.Array:
    """The column with each null replaced by the last value before it in the same row of the history."""
    rows = np.arange(len(column))
    known = np.maximum.accumulate(np.where(column.is_valid().to_numpy(zero_copy_only=False), rows, -1))
    since = np.maximum.accumulate(np.where(fresh, rows, 0))
    return column.take(pa.array(np.where(known >= since, known, rows)))


def _between(begins: Bools, first: Ints, after: Ints) -> Bools:
    """Whether a key begins after ``first`` and at or before ``after``."""
    counted = np.cumsum(begins)
    differ: Bools = counted[after] != counted[first]
    return differ


def _key_ends(begins: Bools, first: Ints) -> Ints:
    """For each place, the end (excluded) of the events of its key."""
    bounds = np.append(np.flatnonzero(begins), len(begins))
    ends: Ints = bounds[np.searchsorted(bounds, first, side="right")]
    return ends
