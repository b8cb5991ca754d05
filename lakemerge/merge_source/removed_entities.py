"""Entities whose rows went, and retired ids, until ``deleted_retention`` has passed and they are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.entity_states import Fresh, ints, strings
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.state import State, deletes

__all__ = ["Departures", "due_departures", "forgotten_entities", "forgotten_of", "is_due"]


@dataclass(frozen=True, slots=True)
class Departures:
    """What went so long ago that it is forgotten."""

    keys: tuple[str, ...]
    """The keys of their records."""
    datasets: Ints
    ids: pa.Array
    retired: pa.Array
    """Ids of the output."""

    def deletes(self) -> Iterator[pa.Table]:
        """Deletes for their records."""
        if self.keys:
            zeros = np.zeros(len(self.keys), dtype=np.int64)
            yield deletes("x", pa.array(self.keys, pa.string()), zeros, zeros)


def is_due(state: State, before_ms: int) -> bool:
    """Whether anything went by then, and is not forgotten yet."""
    return any(int(key.partition("-")[0]) <= before_ms for key in state.departure_keys())


def due_departures(state: State, before_ms: int | None) -> Departures:
    """What went by then.

    :param before_ms: ``None``: nothing is ever forgotten.
    """
    none = np.empty(0, dtype=np.int64)
    empty = pa.array([], pa.string())
    if before_ms is None:
        return Departures((), none, empty, empty)
    found = state.departures()
    due = {key: rows for key, rows in found.items() if int(key.partition("-")[0]) <= before_ms}
    if not due:
        return Departures((), none, empty, empty)
    rows = pa.concat_tables(due.values())
    datasets, ids = ints(rows, "dataset"), strings(rows, "id")
    retired = ids.filter(pa.array(datasets < 0)).unique()
    # An id may have been retired again since.
    later = [
        strings(rows.filter(pc.less(rows.column("dataset"), 0)), "id") for key, rows in found.items() if key not in due
    ]
    again = contiguous(pa.chunked_array(later, pa.string()))
    entities = pa.array(datasets >= 0)
    return Departures(
        tuple(sorted(due)),
        datasets[datasets >= 0],
        ids.filter(entities),
        retired.filter(pc.invert(pc.is_in(retired, value_set=again))),
    )


def forgotten_entities(state: State, due: Departures, fresh: Fresh, before_ms: int | None) -> Fresh:
    """The entities that are forgotten now: their rows are still gone, and went by then."""
    if not len(due.ids) or before_ms is None:
        return Fresh.together([])
    codes = key_texts(due.datasets, due.ids).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    once = np.unique(codes, return_index=True)[1]
    found = state.entities(due.datasets[once], due.ids.take(pa.array(once)))
    texts = key_texts(ints(found, "dataset"), strings(found, "id"))
    is_due = _went_by(found, before_ms) & ~pc.is_in(texts, value_set=fresh.texts).to_numpy(zero_copy_only=False)
    chosen = found.filter(pa.array(is_due))
    yes, none = np.ones(chosen.num_rows, dtype=np.bool_), np.empty(0, dtype=np.int64)
    return Fresh(
        ints(chosen, "dataset"),
        strings(chosen, "id"),
        yes,
        yes,
        yes,
        pa.nulls(len(yes), pa.string()),
        np.zeros(len(yes), dtype=np.int64),
        Held(none, none, pa.array([], pa.string())),
    )


def forgotten_of(old: pa.Table, gone: Fresh, before_ms: int | None) -> tuple[Fresh, pa.Array]:
    """The entities whose rows are gone, those that are forgotten now marked as dropped; and the texts of these.

    :param old: the state's records of entities.
    """
    if before_ms is None or not len(gone):
        return gone, pa.array([], pa.string())
    due = old.filter(pa.array(_went_by(old, before_ms)))
    texts = key_texts(ints(due, "dataset"), strings(due, "id"))
    # A row that came back and went again is in another chunk.
    at = pc.index_in(gone.texts, value_set=texts)
    is_due = at.is_valid().to_numpy(zero_copy_only=False)
    before = strings(due, "chunk").take(at)
    again = pc.fill_null(pc.not_equal(gone.chunks, before), False).to_numpy(zero_copy_only=False)
    is_due &= ~again
    return replace(gone, dropped=gone.dropped | is_due), gone.texts.filter(pa.array(is_due))


def _went_by(records: pa.Table, before_ms: int) -> Bools:
    gone = strings(records, "gone").fill_null(False)
    due = pc.and_(gone, pc.fill_null(pc.less_equal(strings(records, "went"), before_ms), False))
    return due.to_numpy(zero_copy_only=False)
