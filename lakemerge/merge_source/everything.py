"""The entities that a full run looks at: all entities of the datasets and of the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import InputError, LakeMergeError
from lakemerge.merge_source.changes import fresh_of_rows, narrow_columns
from lakemerge.merge_source.content import hash_rows
from lakemerge.merge_source.ids import ids_of, key_texts
from lakemerge.merge_source.index import Heads, Holders, heads_of, rebuilt
from lakemerge.merge_source.inputs import Input
from lakemerge.merge_source.known import Fresh, Known, ints, strings
from lakemerge.merge_source.lists import Bools, Ints, contiguous
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import VALUE, State, deletes, records
from lakemerge.merge_source.values import Held

__all__ = [
    "all_entities",
    "each_once",
    "gone_entities",
    "index_records",
    "leftover_records",
    "remembered",
    "still_there",
]


def all_entities(inputs: Sequence[Input], rules: Rules) -> Fresh:
    """The entities that the datasets have."""
    with ThreadPoolExecutor(2) as pool:
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
    parts = [_as_gone(old, went_before, strings(old, "chunk"), ints(old, "place"))]
    chunks: dict[str, pa.Table] = {}
    for one in inputs:
        went = missing & ~went_before & (ints(old, "dataset") == one.offset)
        if not went.any():
            continue
        name = f"{run:020d}-{one.offset}"
        ids = strings(old, "id").filter(pa.array(went))
        kept, rows = _last_rows(one, versions[one.offset], ids)
        if rows is not None:
            chunks[name] = rows
        at = pc.index_in(ids, value_set=kept)
        names = pa.array([name]).take(pa.array(np.zeros(len(ids), dtype=np.int64), mask=at.is_null().to_numpy(False)))
        places = at.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        whole_names = _spread(names, went)
        whole_places = np.zeros(len(went), dtype=np.int64)
        whole_places[went] = places
        parts.append(_as_gone(old, went, whole_names, whole_places))
    return Fresh.together(parts), chunks


def _as_gone(old: pa.Table, which: Bools, chunks: pa.Array, places: Ints) -> Fresh:
    count = int(which.sum())
    yes = np.ones(count, dtype=np.bool_)
    none = np.empty(0, dtype=np.int64)
    chosen = pa.array(which)
    return Fresh(
        ints(old, "dataset")[which],
        strings(old, "id").filter(chosen),
        yes,
        yes,
        chunks.filter(chosen),
        places[which],
        Held(none, none, pa.array([], pa.string())),
    )


def _spread(values: pa.Array, where: Bools) -> pa.Array:
    place = np.cumsum(where) - 1
    return values.take(pa.array(np.where(where, place, 0), mask=~where))


def _last_rows(one: Input, version: int | None, ids: pa.Array) -> tuple[pa.Array, pa.Table | None]:
    """The rows as they were when they were deleted. If that is not known any more, the rows as they were when the state
    was written. If that version cannot be read either, only their ids are left."""
    if version is None or one.table is None or one.shape is None:
        return pa.array([], pa.string()), None
    for find in (_rows_that_went, _rows_of_version):
        try:
            return find(one, version, ids)
        except (LakeMergeError, FileNotFoundError):
            continue
    return pa.array([], pa.string()), None


def _rows_that_went(one: Input, version: int, ids: pa.Array) -> tuple[pa.Array, pa.Table]:
    shape = one.shape
    if shape is None:
        raise InputError(f"dataset {one.name!r} is not there")
    found: list[pa.Table] = []
    for rows, went in one.changes(version):
        wanted = pc.and_(went, pc.is_in(ids_of(rows, shape.id_columns), value_set=ids))
        found.append(rows.filter(wanted))
    if not found:
        raise InputError(f"dataset {one.name!r} does not tell of all rows that went")
    rows = pa.concat_tables(found)
    texts = ids_of(rows, shape.id_columns)
    codes = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    last = pa.array(len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1])
    if len(last) < len(ids):
        raise InputError(f"dataset {one.name!r} does not tell of all rows that went")
    return texts.take(last), rows.take(last).select(shape.kept)


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


def leftover_records(state: State, offsets: Sequence[int], known: Known) -> Iterator[pa.Table]:
    """Deletes for records that are not needed any more: entities under old offsets, and kept rows of entities that came
    back."""
    if any(now != before for before, now in enumerate(offsets)):
        for part in state.all_entities():
            datasets, ids = ints(part, "dataset"), strings(part, "id")
            stale = known.places_of(datasets, ids) < 0
            if stale.any():
                yield deletes("e", ids.filter(pa.array(stale)), datasets[stale], np.zeros(stale.sum(), dtype=np.int64))
    needed = set(known.chunks.drop_null().unique().to_pylist())
    unneeded = [name for name in state.all_chunks() if name not in needed]
    if unneeded:
        zeros = np.zeros(len(unneeded), dtype=np.int64)
        yield deletes("d", pa.array(unneeded), zeros, zeros)
