"""The entities that a run looks at, as they are in the state and as they are now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.layout.xxhash64 import hash_columns
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, lengths_of, list_array, run_starts, spread
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.state import ENTITY, HOLDING

__all__ = ["Fresh", "Known", "Places", "assemble", "held_lists", "held_of", "ints", "strings"]


@dataclass(frozen=True, slots=True)
class Fresh:
    """Entities that may have changed, each once."""

    datasets: Ints
    ids: pa.Array
    deleted: Bools
    gone: Bools
    """Whether the row was deleted from its table."""
    dropped: Bools
    """Whether the entity is none any more: it has a successor in its own table, or is forgotten."""
    chunks: pa.Array
    """The name of the chunk that keeps the deleted row; null if none does."""
    places: Ints
    """The place of the row in its chunk."""
    held: Held
    """The values that they hold; deleted entities hold none."""

    def __len__(self) -> int:
        return len(self.datasets)

    @property
    def texts(self) -> pa.Array:
        return key_texts(self.datasets, self.ids)

    def where(self, keep: Bools) -> Fresh:
        """Some of the entities."""
        place = np.cumsum(keep) - 1
        held = keep[self.held.rows]
        chosen = pa.array(keep)
        return Fresh(
            self.datasets[keep],
            self.ids.filter(chosen),
            self.deleted[keep],
            self.gone[keep],
            self.dropped[keep],
            self.chunks.filter(chosen),
            self.places[keep],
            Held(place[self.held.rows[held]], self.held.expressions[held], self.held.values.filter(pa.array(held))),
        )

    @staticmethod
    def together(parts: list[Fresh]) -> Fresh:
        starts = np.cumsum([0, *(len(part) for part in parts)])
        none = np.empty(0, dtype=np.int64)
        held = Held(
            np.concatenate([none, *(part.held.rows + start for part, start in zip(parts, starts, strict=False))]),
            np.concatenate([none, *(part.held.expressions for part in parts)]),
            _texts([part.held.values for part in parts]),
        )
        return Fresh(
            np.concatenate([none, *(part.datasets for part in parts)]),
            _texts([part.ids for part in parts]),
            np.concatenate([none.astype(np.bool_), *(part.deleted for part in parts)]),
            np.concatenate([none.astype(np.bool_), *(part.gone for part in parts)]),
            np.concatenate([none.astype(np.bool_), *(part.dropped for part in parts)]),
            _texts([part.chunks for part in parts]),
            np.concatenate([none, *(part.places for part in parts)]),
            held,
        )


@dataclass(frozen=True)
class Known:
    """Entities, sorted by dataset and id."""

    datasets: Ints
    ids: pa.Array
    texts: pa.Array
    """One text for each entity, by which it is found."""
    deleted: Bools
    gone: Bools
    chunks: pa.Array
    places: Ints
    held: Held
    fresh: Bools
    """Whether the entity may have changed."""
    was: Bools
    """Whether the state has the entity."""
    old: pa.Table
    """The state's records, in the columns of :data:`lakemerge.merge_source.state.ENTITY`; null for new entities."""

    def __len__(self) -> int:
        return len(self.datasets)

    def where(self, keep: Bools) -> Known:
        """Some of the entities."""
        if keep.all():
            return self
        chosen, place = pa.array(keep), np.cumsum(keep) - 1
        held = keep[self.held.rows]
        return Known(
            datasets=self.datasets[keep],
            ids=self.ids.filter(chosen),
            texts=self.texts.filter(chosen),
            deleted=self.deleted[keep],
            gone=self.gone[keep],
            chunks=self.chunks.filter(chosen),
            places=self.places[keep],
            held=Held(
                place[self.held.rows[held]], self.held.expressions[held], self.held.values.filter(pa.array(held))
            ),
            fresh=self.fresh[keep],
            was=self.was[keep],
            old=self.old.filter(chosen),
        )

    def places_of(self, datasets: Ints, ids: pa.Array) -> Ints:
        """The places of entities; -1 for an entity that is not among these."""
        return self.by_text.of(key_texts(datasets, ids))

    @cached_property
    def by_text(self) -> Places:
        """Finds entities by their text."""
        return Places(self.texts)

    @property
    def has_bars(self) -> bool:
        """Whether an id contains a bar. Only then can two clusters have the same composite id."""
        return bool(pc.any(pc.match_substring(self.ids, "|")).as_py())

    @property
    def old_firsts(self) -> Ints:
        """The entities that were the first members of their clusters."""
        first = key_texts(ints(self.old, "first_dataset"), strings(self.old, "first_id").fill_null(""))
        return np.flatnonzero(self.was & pc.equal(first, self.texts).to_numpy(zero_copy_only=False))


class Places:
    """Finds the places of texts in an array. The array is hashed once, for any number of look-ups."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts
        hashes = hash_columns([texts])
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._unique = bool((self._hashes[1:] != self._hashes[:-1]).all())

    def of(self, texts: pa.Array) -> Ints:
        """The places of texts; -1 for a text that is not there."""
        if not self._unique:
            found = pc.index_in(texts, value_set=self._texts)
            return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if not len(self._texts) or not len(texts):
            return np.full(len(texts), -1, dtype=np.int64)
        wanted = hash_columns([texts])
        # Look-ups in order find the hashes in the processor's cache.
        order = np.argsort(wanted)
        at = np.empty(len(wanted), dtype=np.int64)
        at[order] = np.searchsorted(self._hashes, wanted[order])
        places = self._order[np.minimum(at, len(self._hashes) - 1)].astype(np.int64)
        same = pc.equal(self._texts.take(pa.array(places)), texts).to_numpy(zero_copy_only=False)
        return np.where(same, places, -1)


def assemble(old: pa.Table, fresh: Fresh) -> Known:
    """The entities of the state and the changed entities, as they are now.

    :param old: the records of entities, each once.
    """
    datasets = np.concatenate([ints(old, "dataset"), fresh.datasets])
    ids = _texts([strings(old, "id"), fresh.ids])
    once = _firsts(key_texts(datasets, ids)) if old.num_rows else np.arange(len(fresh))
    chosen = once[_sorted(datasets[once], ids.take(pa.array(once)))]
    datasets, ids = datasets[chosen], ids.take(pa.array(chosen))
    texts = key_texts(datasets, ids)
    if old.num_rows:
        at_old = pc.index_in(texts, value_set=key_texts(ints(old, "dataset"), strings(old, "id")))
        at_fresh = pc.index_in(texts, value_set=fresh.texts)
    else:
        at_old, at_fresh = pa.nulls(len(texts), pa.int32()), pa.array(chosen)
    was, is_fresh = (at.is_valid().to_numpy(zero_copy_only=False) for at in (at_old, at_fresh))
    columns = [
        contiguous(old.column(field.name)).take(at_old) if old.num_rows else pa.nulls(len(texts), field.type)
        for field in ENTITY
    ]
    aligned = pa.table(columns, schema=ENTITY)
    place = at_fresh.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)

    def chosen_flags(name: str, now: Bools) -> Bools:
        before = contiguous(aligned.column(name)).fill_null(False).to_numpy(zero_copy_only=False)
        return np.where(is_fresh, now[place], before) if len(now) else before

    chunks = strings(aligned, "chunk")
    places = ints(aligned, "place")
    if len(fresh):
        chunks = pc.if_else(pa.array(is_fresh), fresh.chunks.take(pa.array(place)), chunks)
        places = np.where(is_fresh, fresh.places[place], places)
    return Known(
        datasets=datasets,
        ids=ids,
        texts=texts,
        deleted=chosen_flags("deleted", fresh.deleted),
        gone=chosen_flags("gone", fresh.gone),
        chunks=chunks,
        places=places,
        held=_held(aligned, is_fresh, at_fresh, fresh),
        fresh=is_fresh,
        was=was,
        old=aligned,
    )


def _sorted(datasets: Ints, ids: pa.Array) -> Ints:
    """The order by dataset and id. No dataset has an id twice."""
    order = np.argsort(datasets, kind="stable")
    parts = np.split(order, run_starts(datasets[order])[1:])

    def by_id(part: Ints) -> Ints:
        found: Ints = part[pc.array_sort_indices(ids.take(pa.array(part))).to_numpy()]
        return found

    with thread_pool(min(len(parts), os.cpu_count() or 1)) as pool:
        return np.concatenate(list(pool.map(by_id, parts)))


def _firsts(texts: pa.Array) -> Ints:
    """The first place of each text."""
    codes = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return np.unique(codes, return_index=True)[1].astype(np.int64)


def _held(aligned: pa.Table, is_fresh: Bools, at_fresh: pa.Array, fresh: Fresh) -> Held:
    before = held_of(contiguous(aligned.column("held")))
    kept = ~is_fresh[before.rows]
    now_at = np.full(len(fresh), -1, dtype=np.int64)
    now_at[at_fresh.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)] = np.flatnonzero(is_fresh)
    rows = np.concatenate([before.rows[kept], now_at[fresh.held.rows]])
    numbers = np.concatenate([before.expressions[kept], fresh.held.expressions])
    values = _texts([before.values.filter(pa.array(kept)), fresh.held.values])
    order = np.argsort(rows, kind="stable")
    return Held(rows[order], numbers[order], values.take(pa.array(order)))


def held_of(lists: pa.Array) -> Held:
    """The values in the lists of records. The row is the place of the record."""
    rows, _ = spread(lengths_of(lists))
    holdings = pc.list_flatten(lists)
    expressions = holdings.field("expression").to_numpy(zero_copy_only=False).astype(np.int64)
    return Held(rows, expressions, contiguous(holdings.field("value")))


def held_lists(held: Held, count: int) -> pa.Array:
    """The lists for so many records; null for a record without values."""
    holdings = pa.StructArray.from_arrays(
        [pa.array(held.expressions.astype(np.int32)), held.values], fields=list(HOLDING)
    )
    counts = np.bincount(held.rows, minlength=count)
    return list_array(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), holdings, counts > 0)


def ints(table: pa.Table, name: str) -> Ints:
    """A column of integers; 0 for null."""
    return contiguous(table.column(name)).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def strings(table: pa.Table, name: str) -> pa.Array:
    return contiguous(table.column(name))


def _texts(parts: list[pa.Array]) -> pa.Array:
    return contiguous(pa.chunked_array(parts, pa.string()))
