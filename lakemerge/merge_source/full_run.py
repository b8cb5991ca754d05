"""The entities that a full run looks at: all entities of the datasets and of the state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import FullRunNeededError, InputError, LakeMergeError
from lakemerge.merge_source.content_hash import hash_rows
from lakemerge.merge_source.entity_states import Fresh, Known, ints, strings
from lakemerge.merge_source.ids import ids_of, key_texts
from lakemerge.merge_source.incremental_run import fresh_of_rows, narrow_columns
from lakemerge.merge_source.index import Heads, Holders, heads_of, rebuilt
from lakemerge.merge_source.inputs import Input, Shape
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import VALUE, State, chunk_rows, deletes, records

__all__ = [
    "all_entities",
    "each_once",
    "emptied_chunks",
    "gone_entities",
    "index_records",
    "leftover_records",
    "remembered",
    "still_there",
]


def all_entities(inputs: Sequence[Input], rules: Rules) -> Fresh:
    """The entities that the datasets have."""
    with thread_pool(2) as pool:
        parts = [fresh for found in pool.map(lambda one: list(_of_dataset(one, rules)), inputs) for fresh in found]
    return each_once(Fresh.together(parts), inputs)


def each_once(fresh: Fresh, inputs: Sequence[Input]) -> Fresh:
    """The same entities.

    :raises lakemerge.InputError: a dataset has an id twice. It cannot if the ids are its key.
    """
    doubtful = [one.offset for one in inputs if not one.ids_are_key]
    texts = fresh.texts.filter(pa.array(np.isin(fresh.datasets, doubtful))) if doubtful else pa.array([], pa.string())
    if len(texts.unique()) < len(texts):
        counts = pc.value_counts(texts)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0].as_py()
        offset, _, name = twice.partition("|")
        raise InputError(f"dataset {inputs[int(offset)].name!r} has the id {name!r} twice", id=name)
    return fresh


def _of_dataset(one: Input, rules: Rules) -> Iterator[Fresh]:
    if one.shape is None:
        return
    for rows in one.scan(narrow_columns(one.offset, one.shape, rules)):
        yield fresh_of_rows(one.offset, one.shape, rules, rows)


def remembered(state: State) -> pa.Table:
    """The state's records of all entities."""
    none = np.empty(0, dtype=np.int64)
    return pa.concat_tables([state.entities(none, pa.array([], pa.string())), *state.all_entities()])


def still_there(old: pa.Table, offsets: Sequence[int]) -> pa.Table:
    """The records whose datasets are still there, with the datasets' new offsets.

    :param offsets: for each old offset of a dataset its new one, or -1.
    """
    now = np.array([*offsets, -1], dtype=np.int32)[ints(old, "dataset")]
    moved = old.set_column(old.schema.get_field_index("dataset"), "dataset", pa.array(now))
    return moved.filter(pa.array(now >= 0))


def gone_entities(
    inputs: Sequence[Input], versions: Sequence[int | None], old: pa.Table, fresh: Fresh, run: int
) -> tuple[Fresh, dict[str, pa.Table]]:
    """Entities of the state that the datasets lack, and the rows of those that were deleted since, if they can still
    be read.

    :param versions: the versions of the datasets when the state was written.
    """
    if not old.num_rows:
        return Fresh.together([]), {}
    own = key_texts(ints(old, "dataset"), strings(old, "id"))
    missing = ~pc.is_in(own, value_set=fresh.texts).to_numpy(zero_copy_only=False)
    went_before = missing & strings(old, "gone").fill_null(False).to_numpy(zero_copy_only=False)
    parts: list[Fresh] = []
    chunks: dict[str, pa.Table] = {}
    for one in inputs:
        went = missing & (ints(old, "dataset") == one.offset)
        if not went.any():
            continue
        name = f"{run:020d}-{one.offset}"
        ids, before = strings(old, "id").filter(pa.array(went)), went_before[went]
        kept = _last_rows(one, versions[one.offset], ids, before)
        if kept.rows is not None:
            chunks[name] = kept.rows
        at = pc.index_in(ids, value_set=kept.ids)
        found = at.is_valid().to_numpy(zero_copy_only=False)
        names = pa.array([name]).take(pa.array(np.zeros(len(ids), dtype=np.int64), mask=~found))
        # What went before and did not come back meanwhile is kept where it was.
        earlier = old.filter(pa.array(went))
        names = pc.if_else(pa.array(before & ~found), strings(earlier, "chunk"), names)
        places = np.where(before & ~found, ints(earlier, "place"), at.fill_null(0).to_numpy(zero_copy_only=False))
        replaced = pc.is_in(ids, value_set=kept.replaced).to_numpy(zero_copy_only=False)
        parts.append(_as_gone(ids, np.full(len(ids), one.offset, dtype=np.int64), names, places, replaced))
    return Fresh.together(parts), chunks


def _as_gone(ids: pa.Array, datasets: Ints, chunks: pa.Array, places: Ints, dropped: Bools) -> Fresh:
    yes = np.ones(len(ids), dtype=np.bool_)
    none = np.empty(0, dtype=np.int64)
    held = Held(none, none, pa.array([], pa.string()))
    return Fresh(datasets, ids, yes, yes, dropped, chunks, places.astype(np.int64), held)


@dataclass(frozen=True, slots=True)
class _LastRows:
    """Rows that went, as they were."""

    ids: pa.Array
    rows: pa.Table | None = None
    replaced: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    """The ids of rows that had a successor in their table."""


def _last_rows(one: Input, version: int | None, ids: pa.Array, before: Bools) -> _LastRows:
    """The rows as they were when they were deleted. If that is not known any more, the rows as they were when the state
    was written. If that version cannot be read either, only their ids are left.

    :param before: which of the rows were gone already. They are given only if they came back, and went again.
    """
    nothing = _LastRows(pa.array([], pa.string()))
    if version is None or one.table is None or one.shape is None:
        return nothing
    found = nothing
    with contextlib.suppress(FullRunNeededError, FileNotFoundError):
        found = _rows_that_went(one, one.shape, version, ids)
    wanted = ids.filter(pa.array(~before))
    lacking = wanted.filter(pc.invert(pc.is_in(wanted, value_set=found.ids)))
    if not len(lacking):
        return found
    with contextlib.suppress(LakeMergeError, FileNotFoundError):
        texts, rows = _rows_of_version(one, version, lacking)
        whole = rows if found.rows is None else pa.concat_tables([found.rows, rows], promote_options="permissive")
        return _LastRows(pa.concat_arrays([found.ids, texts]), whole.combine_chunks(), found.replaced)
    return found


def _rows_that_went(one: Input, shape: Shape, version: int, ids: pa.Array) -> _LastRows:
    found: list[pa.Table] = []
    for rows, went in one.changes(version):
        wanted = pc.and_(went, pc.is_in(ids_of(rows, shape.id_columns), value_set=ids))
        found.append(rows.filter(wanted))
    if not found:
        return _LastRows(pa.array([], pa.string()))
    rows = pa.concat_tables(found).combine_chunks()
    texts = ids_of(rows, shape.id_columns)
    codes = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    last = pa.array(np.sort(len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]))
    texts, rows = texts.take(last), rows.take(last)
    if not len(texts):
        return _LastRows(pa.array([], pa.string()))
    return _LastRows(texts, rows.select(shape.kept), texts.filter(pa.array(shape.replaced_flags(rows))))


def _rows_of_version(one: Input, version: int, ids: pa.Array) -> tuple[pa.Array, pa.Table]:
    earlier = one.earlier(version)
    if earlier.table_id != one.table_id or earlier.shape is None:
        raise InputError(f"the table of dataset {one.name!r} is another one now")
    found, rows = earlier.find(ids, earlier.shape.kept)
    return found, rows.select(earlier.shape.kept)


def index_records(state: State | None, known: Known) -> Iterator[pa.Table]:
    """The changes that make the index hold the values of all entities."""
    held = known.held
    heads, pairs = heads_of(held)
    old = _old_index(state)
    if old is not None:
        heads = _with_pages(heads, old)
    wanted = rebuilt(heads, Holders(pairs, known.datasets[held.rows], known.ids.take(pa.array(held.rows))))
    changed = np.ones(wanted.num_rows, dtype=np.bool_)
    if old is not None:
        hashes, keys, old_keys = hash_rows(wanted).view(np.int64), _index_keys(wanted), _index_keys(old)
        at = pc.index_in(keys, value_set=old_keys)
        there = at.is_valid().to_numpy(zero_copy_only=False)
        changed = ~there
        place = at.fill_null(0).to_numpy(zero_copy_only=False)
        changed[there] = ints(old, "hash")[place[there]] != hashes[there]
        gone = ~pc.is_in(old_keys, value_set=keys).to_numpy(zero_copy_only=False)
        if gone.any():
            left = old.filter(pa.array(gone))
            yield deletes("v", strings(left, "k"), ints(left, "a"), ints(left, "b"))
    if changed.any():
        rows = wanted if changed.all() else wanted.filter(pa.array(changed))
        columns = {name: contiguous(rows.column(name)) for name in VALUE.names}
        yield records("v", strings(rows, "k"), ints(rows, "a"), ints(rows, "b"), columns)


def _old_index(state: State | None) -> pa.Table | None:
    """The keys of the index, the numbers of pages in its heads, and a hash of each record."""
    if state is None:
        return None
    parts = []
    for table in state.all_values():
        hashes = pa.array(hash_rows(table.select(["k", "a", "b", *VALUE.names])).view(np.int64))
        parts.append(table.select(["k", "a", "b", "pages"]).append_column("hash", hashes))
    return pa.concat_tables(parts) if parts else None


def _index_keys(table: pa.Table) -> pa.Array:
    numbers = ints(table, "a") * (1 << 31) + ints(table, "b")
    return key_texts(numbers, strings(table, "k"))


def _with_pages(heads: Heads, old: pa.Table) -> Heads:
    first = old.filter(pc.equal(old.column("b"), 0))
    at = pc.index_in(heads.texts, value_set=key_texts(ints(first, "a"), strings(first, "k")))
    pages = strings(first, "pages").take(at).fill_null(1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Heads(heads.expressions, heads.values, heads.counts, np.maximum(pages, 1), heads.holders, heads.texts)


def leftover_records(state: State, known: Known, old: pa.Table) -> Iterator[pa.Table]:
    """Deletes for records that are not needed any more: entities under old offsets or that are none any more, and kept
    rows of entities that came back.

    :param old: the state's records of all entities.
    """
    datasets, ids = ints(old, "dataset"), strings(old, "id")
    stale = known.places_of(datasets, ids) < 0
    if stale.any():
        yield deletes("e", ids.filter(pa.array(stale)), datasets[stale], np.zeros(stale.sum(), dtype=np.int64))
    needed = set(known.chunks.drop_null().unique().to_pylist())
    unneeded = [name for name in state.all_chunks() if name not in needed]
    if unneeded:
        zeros = np.zeros(len(unneeded), dtype=np.int64)
        yield deletes("d", pa.array(unneeded), zeros, zeros)


def emptied_chunks(state: State, old: pa.Table, known: Known, *, whole: bool) -> Iterator[pa.Table]:
    """Records of kept rows without those that nobody needs any more: their entities came back, or are none any more. A
    row keeps its place.

    :param old: the state's records of entities.
    :param whole: whether these are all; chunks that nobody needs are then deleted elsewhere.
    """
    kept = old.filter(old.column("chunk").is_valid())
    if not kept.num_rows:
        return
    at = known.by_text.of(key_texts(ints(kept, "dataset"), strings(kept, "id")))
    same = pc.equal(known.chunks.take(pa.array(at, mask=at < 0)), strings(kept, "chunk"))
    left = kept.filter(pc.invert(pc.fill_null(same, False)))
    needed = set(known.chunks.drop_null().unique().to_pylist())
    if whole:
        left = left.filter(pc.is_in(left.column("chunk"), value_set=pa.array(sorted(needed), pa.string())))
    names = strings(left, "chunk")
    tables = state.chunks(names.unique().to_pylist())
    for name, rows in tables.items():
        places = ints(left, "place")[pc.equal(names, name).to_numpy(zero_copy_only=False)]
        if len(np.unique(places)) == rows.num_rows and name not in needed:
            yield deletes("d", pa.array([name]), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
            continue
        gone = np.zeros(rows.num_rows, dtype=np.bool_)
        gone[places] = True
        yield chunk_rows(name, rows.take(pa.array(np.arange(rows.num_rows), mask=gone)))
