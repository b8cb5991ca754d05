"""The entities that an incremental run looks at.

These are the entities whose rows changed, the members of the clusters that they were in, and the clusters that their
new values reach. A value counts only where two different expressions of a class have it. No other entity can change its
cluster, so one look is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.clusters import LeftOut, Link, certain_holders, joining
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.entity_states import Fresh, held_of, ints, strings
from lakemerge.merge_source.ids import ids_of, key_texts
from lakemerge.merge_source.index import Heads, Holders, find_heads, find_holders, updated
from lakemerge.merge_source.inputs import Input, Shape
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, run_starts
from lakemerge.merge_source.output_ids import Bystanders, too_many
from lakemerge.merge_source.rule_values import Held, columns_needed, held_values
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import State

__all__ = ["Reached", "changed_entities", "fresh_of_rows", "narrow_columns", "reach"]


def changed_entities(one: Input, rules: Rules, since: int, chunk: str) -> tuple[Fresh, pa.Table | None]:
    """The entities of a dataset that commits after a version changed, and the last rows of those that were deleted.

    :param chunk: the name under which the deleted rows are kept.
    """
    if one.shape is None:
        return Fresh.together([]), None
    shape = one.shape
    narrow = narrow_columns(one.offset, shape, rules)
    ids: list[pa.Array] = []
    gone: list[Bools] = []
    rows: list[pa.Table] = []
    last: list[pa.Table] = []
    for changed, went in one.changes(since):
        ids.append(ids_of(changed, shape.id_columns))
        gone.append(went.to_numpy(zero_copy_only=False))
        rows.append(changed.select(narrow))
        last.append(changed.filter(went).select(shape.kept))
    if not ids:
        return Fresh.together([]), None
    texts, is_gone = contiguous(pa.chunked_array(ids)), np.concatenate(gone)
    # The last event of an entity has its present row.
    codes = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    backwards = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
    final = np.sort(backwards)
    place_among_gone = np.cumsum(is_gone) - 1
    kept = place_among_gone[final][is_gone[final]]
    payload = pa.concat_tables(last).take(pa.array(kept)) if len(kept) else None
    now = pa.concat_tables(rows).take(pa.array(final))
    fresh = fresh_of_rows(one.offset, shape, rules, now, gone=is_gone[final], chunk=chunk)
    return fresh, payload


def narrow_columns(offset: int, shape: Shape, rules: Rules) -> list[str]:
    """The columns needed from every changed row. Other columns are read only for rows that are output."""
    flags = [name for name in (shape.deleted, shape.replaced) if name is not None]
    needed = columns_needed(rules, offset, shape.schema.names)
    return list(dict.fromkeys([*shape.id_columns, *flags, *needed]))


def fresh_of_rows(
    offset: int, shape: Shape, rules: Rules, rows: pa.Table, *, gone: Bools | None = None, chunk: str | None = None
) -> Fresh:
    """Entities from rows of a dataset.

    :param gone: which of the rows were deleted; the chunk keeps them, in their order.
    """
    ids = ids_of(rows, shape.id_columns)
    went = np.zeros(len(ids), dtype=np.bool_) if gone is None else gone
    deleted = went | shape.deleted_flags(rows)
    replaced = shape.replaced_flags(rows)
    live = np.flatnonzero(~deleted & ~replaced)
    held = held_values(rules, offset, rows.take(pa.array(live)), ids.take(pa.array(live)))
    names = pa.array([chunk], pa.string()).take(pa.array(np.zeros(len(ids), dtype=np.int64), mask=~went))
    return Fresh(
        datasets=np.full(len(ids), offset, dtype=np.int64),
        ids=ids,
        deleted=deleted,
        gone=went,
        dropped=replaced,
        chunks=names,
        places=np.where(went, np.cumsum(went) - 1, 0),
        held=Held(live[held.rows], held.expressions, held.values),
    )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Values of classes whose number of holders may have changed, each once."""

    classes: Ints
    values: pa.Array
    counts: Ints
    large: Bools
    """Whether more entities hold the value than may become one."""

    @property
    def left_out(self) -> LeftOut:
        count = int(self.large.sum())
        chosen = self.values.filter(pa.array(self.large))
        return LeftOut(self.classes[self.large], chosen, self.counts[self.large], np.zeros(count, dtype=np.bool_))


@dataclass(frozen=True, slots=True)
class Reached:
    """Everything that an incremental run looks at."""

    fresh: Fresh
    """The changed entities, without those that were added and deleted since the last run."""
    old: pa.Table
    """The state's records of all entities whose cluster or output may change."""
    bystanders: Bystanders
    records: list[pa.Table]
    """The records of the index that change."""
    sizes: Sizes
    """Which of the values that changed entities gained or lost have too many holders now."""


def reach(state: State, config: MergeConfig, fresh: Fresh) -> Reached:
    """Everything that changed entities can change.

    Raises :class:`lakemerge.MaxMergedError` if one value joins too many entities and is not to be left out. It does not
    read all of them.
    """
    found = _Found(state)
    seen = found.look_up(fresh.datasets, fresh.ids)
    known = pc.is_in(fresh.texts, value_set=key_texts(ints(seen, "dataset"), strings(seen, "id")))
    fresh = fresh.where(known.to_numpy(zero_copy_only=False) | ~(fresh.gone | fresh.dropped))
    heads, added, removed = _moves(state, config.rules, found.of(fresh.datasets, fresh.ids), fresh)
    holders, sizes = _joined_by(state, config, heads, added, removed)
    found.with_clusters(holders.datasets, holders.ids)
    bystanders = Bystanders.none()
    if config.identity == "first":
        bystanders = found.with_namesakes(fresh, len(config.datasets))
    return Reached(fresh, found.table, bystanders, list(updated(state, heads, added, removed)), sizes)


class _Found:
    """The records of the state that were looked up so far. Each is read once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked: pa.Array = pa.array([], pa.string())
        none = np.empty(0, dtype=np.int64)
        self.table = state.entities(none, pa.array([], pa.string()))

    def look_up(self, datasets: Ints, ids: pa.Array) -> pa.Table:
        """Look up entities that were not looked up before. Returns the records that exist."""
        texts = key_texts(datasets, ids)
        once = np.unique(
            texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64), return_index=True
        )[1]
        new = once[~pc.is_in(texts.take(pa.array(once)), value_set=self._asked).to_numpy(zero_copy_only=False)]
        found = self._state.entities(datasets[new], ids.take(pa.array(new)))
        self._asked = pa.concat_arrays([self._asked, texts.take(pa.array(new))])
        self.table = pa.concat_tables([self.table, found])
        return found

    def of(self, datasets: Ints, ids: pa.Array) -> pa.Table:
        """The records of entities, in their order; null for entities that the state lacks."""
        own = key_texts(ints(self.table, "dataset"), strings(self.table, "id"))
        return self.table.take(pc.index_in(key_texts(datasets, ids), value_set=own))

    def with_clusters(self, datasets: Ints, ids: pa.Array) -> None:
        """Look up entities, and all members of their clusters. A look-up is one pass over the state, so each pass asks
        for all entities that are known by then."""
        while True:
            told, names = self._told()
            everybody = contiguous(pa.chunked_array([contiguous(ids), names], pa.string()))
            if not self.look_up(np.concatenate([datasets, told]), everybody).num_rows:
                return

    def _told(self) -> tuple[Ints, pa.Array]:
        """The first members of clusters, the other members that the records list, and those of cut chains."""
        lists = [pc.list_flatten(strings(self.table, name)) for name in ("members", "chain_members")]
        chained = self.table.filter(self.table.column("chain_id").is_valid())
        datasets = [listed.field("dataset").to_numpy(zero_copy_only=False) for listed in lists]
        parts = [contiguous(listed.field("id")) for listed in lists]
        for part, dataset, name in ((self.table, "first_dataset", "first_id"), (chained, "chain_dataset", "chain_id")):
            datasets.append(ints(part, dataset))
            parts.append(strings(part, name))
        return np.concatenate(datasets).astype(np.int64), contiguous(pa.chunked_array(parts, pa.string()))

    def with_namesakes(self, fresh: Fresh, datasets: int) -> Bystanders:
        """Entities of other datasets with the same ids. Deleted ones are looked at, since the ids decide whether they
        show; live ones are returned as bystanders."""
        ids = contiguous(pa.chunked_array([strings(self.table, "id"), fresh.ids], pa.string())).unique()
        before = self.table
        every = np.tile(np.arange(datasets, dtype=np.int64), len(ids))
        found = self.look_up(every, ids.take(pa.array(np.repeat(np.arange(len(ids)), datasets))))
        deleted = strings(found, "deleted")
        self.table = pa.concat_tables([before, found.filter(deleted)])
        live = found.filter(pc.invert(deleted))
        own = key_texts(ints(live, "dataset"), strings(live, "id"))
        leads = pc.equal(key_texts(ints(live, "first_dataset"), strings(live, "first_id")), own)
        return Bystanders(ints(live, "dataset"), strings(live, "id"), leads.to_numpy(zero_copy_only=False))


def _moves(state: State, rules: Rules, old: pa.Table, fresh: Fresh) -> tuple[Heads, Holders, Holders]:
    """The values that changed entities gained and lost. Returns three things: the heads of these values, and of the
    values that they may join; the holders of the gained values; and the holders of the lost values.

    :param old: the records of the changed entities, in their order.
    """
    before = held_of(strings(old, "held"))
    after = fresh.held
    values = contiguous(pa.chunked_array([before.values, after.values], pa.string()))
    codes = values.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.concatenate([before.rows, after.rows])
    numbers = np.concatenate([before.expressions, after.expressions])
    is_after = np.arange(len(rows)) >= len(before)
    order = np.lexsort((is_after, codes, numbers, rows))
    starts = run_starts(rows[order], numbers[order], codes[order])
    sizes = np.diff(np.append(starts, len(order)))
    # A pair that is there before and after is neither added nor removed.
    moved = order[starts[sizes == 1]]
    came, went = moved[is_after[moved]], moved[~is_after[moved]]
    # Who lost a value may leave few enough holders, so that it joins them again.
    asked = moved if state.meta.left_out else came
    others, other_values = _others(rules, numbers[asked], values.take(pa.array(asked)))
    heads = find_heads(
        state,
        np.concatenate([numbers[moved], others]),
        contiguous(pa.chunked_array([values.take(pa.array(moved)), other_values], pa.string())),
    )

    def as_holders(at: Ints) -> Holders:
        pairs = heads.places(numbers[at], values.take(pa.array(at)))
        return Holders(pairs, fresh.datasets[rows[at]], fresh.ids.take(pa.array(rows[at])))

    return heads, as_holders(came), as_holders(went)


def _others(rules: Rules, numbers: Ints, values: pa.Array) -> tuple[Ints, pa.Array]:
    """The pairs of the same values with the other expressions of their classes."""
    expressions: list[Ints] = [np.empty(0, dtype=np.int64)]
    places: list[Ints] = [np.empty(0, dtype=np.int64)]
    for group in rules.classes:
        inside = np.flatnonzero(np.isin(numbers, group))
        for number in group:
            expressions.append(np.full(len(inside), number, dtype=np.int64))
            places.append(inside)
    return np.concatenate(expressions), values.take(pa.array(np.concatenate(places)))


def _joined_by(
    state: State, config: MergeConfig, heads: Heads, added: Holders, removed: Holders
) -> tuple[Holders, Sizes]:
    """The holders of values that join entities now and have a new holder, and of values that begin or cease to be left
    out."""
    rules = config.rules
    change = np.bincount(added.pairs, minlength=len(heads)) - np.bincount(removed.pairs, minlength=len(heads))
    counts = heads.counts + change
    encoded = heads.values.dictionary_encode()
    codes, size = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)
    datasets = np.array([one.dataset for one in rules.expressions], dtype=np.int64)[heads.expressions]
    is_new = np.zeros(len(heads), dtype=np.bool_)
    is_new[added.pairs] = True
    wanted = np.zeros(len(heads), dtype=np.bool_)
    parts: list[Sizes] = []
    for number, group in enumerate(rules.classes):
        inside = np.isin(heads.expressions, group)

        def judged(holders: Ints, inside: Bools = inside) -> tuple[Bools, Ints]:
            there = inside & (holders > 0)
            joins = joining(rules, codes[there], heads.expressions[there], size)
            return joins, certain_holders(codes[there], datasets[there], holders[there], size)

        (joined, before), (joins, after) = judged(heads.counts), judged(counts)
        was_large, is_large = joined & (before > config.max_merged), joins & (after > config.max_merged)
        fresh = np.bincount(codes[inside & is_new], minlength=size) > 0
        if config.oversize == "fail":
            _check_counts(config, number, heads, codes, inside & (counts > 0), np.flatnonzero(is_large & fresh))
            was_large = is_large = np.zeros(size, dtype=np.bool_)
        reached = (joins & ~is_large & (fresh | was_large)) | (joined & ~was_large & is_large)
        wanted |= inside & reached[codes]
        told = np.flatnonzero(np.bincount(codes[inside], minlength=size))
        values = encoded.dictionary.take(pa.array(told))
        parts.append(Sizes(np.full(len(told), number, dtype=np.int64), values, after[told], is_large[told]))
    none = np.empty(0, dtype=np.int64)
    sizes = Sizes(
        np.concatenate([none, *(part.classes for part in parts)]),
        contiguous(pa.chunked_array([part.values for part in parts], pa.string())),
        np.concatenate([none, *(part.counts for part in parts)]),
        np.concatenate([none.astype(np.bool_), *(part.large for part in parts)]),
    )
    return find_holders(state, heads, wanted), sizes


def _check_counts(config: MergeConfig, number: int, heads: Heads, codes: Ints, there: Bools, large: Ints) -> None:
    """Raise :class:`lakemerge.MaxMergedError` if the heads show that a value has too many holders."""
    for code in large.tolist():
        same = np.flatnonzero(there & (codes == code))
        link = Link(number, heads.values[int(same[0])].as_py(), tuple(sorted(heads.expressions[same].tolist())), ())
        raise too_many(config.rules, config.aliases, link, None, config.max_merged)
