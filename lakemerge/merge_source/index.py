"""The index from values to the entities that hold them, as records of the state table.

Each pair of an expression and a value has a head, which counts the holders. If there are few, the head itself lists
them; if there are more, a hash of their ids spreads them over pages. So heads alone show whether a value is held
through two expressions, and by how many entities. To add one holder to many costs one page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.layout.xxhash64 import hash_columns
from lakemerge.merge_source.combine import MEMBER
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, lengths_of, list_array, run_starts, spread
from lakemerge.merge_source.rule_values import Held
from lakemerge.merge_source.state import VALUE, State, deletes, records

__all__ = ["Heads", "Holders", "find_heads", "find_holders", "heads_of", "rebuilt", "updated"]

_PAGE = 256
"""About how many holders a page has."""
_GROWTH = 4
_SPARSE = 16
"""A full run joins the pages of a value if they hold this many times fewer holders than they could."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Pairs of an expression and a value, each with an entity that holds it."""

    pairs: Ints
    """The places of the pairs among the heads."""
    datasets: Ints
    ids: pa.Array

    def __len__(self) -> int:
        return len(self.pairs)

    def where(self, keep: Bools) -> Holders:
        return Holders(self.pairs[keep], self.datasets[keep], self.ids.filter(pa.array(keep)))

    @staticmethod
    def together(parts: Iterable[Holders]) -> Holders:
        given = list(parts)
        return Holders(
            np.concatenate([np.empty(0, np.int64), *(part.pairs for part in given)]),
            np.concatenate([np.empty(0, np.int64), *(part.datasets for part in given)]),
            contiguous(pa.chunked_array([part.ids for part in given], pa.string())),
        )


@dataclass(frozen=True, slots=True)
class Heads:
    """Pairs of an expression and a value, each once, with what the state says about them."""

    expressions: Ints
    values: pa.Array
    counts: Ints
    pages: Ints
    holders: pa.Array
    """The holders that are listed in the heads."""
    texts: pa.Array

    def __len__(self) -> int:
        return len(self.expressions)

    def places(self, expressions: Ints, values: pa.Array) -> Ints:
        """The places of pairs; -1 for a pair that has none."""
        found = pc.index_in(key_texts(expressions, values), value_set=self.texts)
        return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def find_heads(state: State, expressions: Ints, values: pa.Array) -> Heads:
    """The heads of pairs; a pair without holders has a count of 0."""
    codes = key_texts(expressions, values).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, firsts = np.unique(codes, return_index=True)
    heads = _new_heads(expressions[firsts], values.take(pa.array(firsts)))
    if not len(heads):
        return heads
    found = state.values(heads.values, heads.expressions, np.zeros(len(heads), dtype=np.int64))
    at = pc.index_in(heads.texts, value_set=key_texts(_ints(found, "a"), contiguous(found.column("k"))))
    there = at.is_valid().to_numpy(zero_copy_only=False)
    known = found.take(at.drop_null())
    heads.counts[there], heads.pages[there] = _ints(known, "count"), _ints(known, "pages")
    return replace(heads, holders=contiguous(found.column("holders")).take(at))


def heads_of(held: Held) -> tuple[Heads, Ints]:
    """The heads of all pairs that are held, as if the state had none of them, and the place of each pair among them."""
    expressions = 1 + held.expressions.max(initial=0)
    encoded = pa.array(held.codes * expressions + held.expressions).dictionary_encode()
    pairs = encoded.dictionary.to_numpy()
    heads = _new_heads(pairs % expressions, held.encoded.dictionary.take(pa.array(pairs // expressions)))
    return heads, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _new_heads(expressions: Ints, values: pa.Array) -> Heads:
    """The heads of pairs that are not in the state."""
    count = len(expressions)
    nothing = pa.nulls(count, VALUE.field("holders").type)
    counts, pages = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    return Heads(expressions, values, counts, pages, nothing, key_texts(expressions, values))


def find_holders(state: State, heads: Heads, wanted: Bools) -> Holders:
    """All holders of the wanted pairs."""
    pairs = np.flatnonzero(wanted)
    paged = pairs[heads.pages[pairs] > 1]
    group, place = spread(heads.pages[paged])
    return Holders.together([_inline(heads, pairs), _of_pages(state, heads, paged[group], place + 1)])


def updated(state: State, heads: Heads, added: Holders, removed: Holders) -> Iterator[pa.Table]:
    """The records to write for holders that are added and removed."""
    change = np.bincount(added.pairs, minlength=len(heads)) - np.bincount(removed.pairs, minlength=len(heads))
    counts = heads.counts + change
    pages = heads.pages.copy()
    while (full := counts > pages * _PAGE).any():
        pages[full] *= _GROWTH
    both = Holders.together([added, removed])
    touched = np.unique(both.pairs)
    grown = pages != heads.pages
    steady = both.where(~grown[both.pairs] & (heads.pages[both.pairs] > 1))
    single = touched[heads.pages[touched] == 1]
    loaded = [
        _inline(heads, single),
        _of_pages(state, heads, *_distinct(steady.pairs, _page_of(steady, heads.pages))),
        find_holders(state, heads, grown & (heads.pages > 1)),
    ]
    now = _without(Holders.together([*loaded, added]), removed)
    yield from _pages_written(heads, now, both, pages, grown)
    yield from _heads_written(heads, now, touched, counts, pages)


def rebuilt(heads: Heads, holders: Holders) -> pa.Table:
    """All records for the given holders, with the three key columns and those of :data:`VALUE`. ``heads`` say how many
    pages there were."""
    counts = np.bincount(holders.pairs, minlength=len(heads)).astype(np.int64)
    pages = heads.pages.copy()
    pages[counts * _SPARSE < pages * _PAGE] = 1
    while (full := counts > pages * _PAGE).any():
        pages[full] *= _GROWTH
    at, lists = _by_page(holders, np.where(pages[holders.pairs] == 1, 0, _page_of(holders, pages)))
    single = at[1] == 0
    paged = np.flatnonzero(pages > 1)
    pairs = np.concatenate([at[0], paged])
    numbers = np.concatenate([at[1], np.zeros(len(paged), dtype=np.int64)])
    is_head = np.concatenate([single, np.ones(len(paged), dtype=np.bool_)])
    absent = pa.nulls(len(paged), lists.type)
    return pa.table(
        {
            "k": heads.values.take(pa.array(pairs)),
            "a": pa.array(heads.expressions[pairs].astype(np.int32)),
            "b": pa.array(numbers.astype(np.int32)),
            "count": pa.array(counts[pairs], mask=~is_head),
            "pages": pa.array(pages[pairs].astype(np.int32), mask=~is_head),
            "holders": contiguous(pa.chunked_array([lists, absent])),
        }
    )


def _heads_written(heads: Heads, now: Holders, touched: Ints, counts: Ints, pages: Ints) -> Iterator[pa.Table]:
    gone, kept = touched[counts[touched] == 0], touched[counts[touched] > 0]
    if len(gone):
        yield deletes("v", heads.values.take(pa.array(gone)), heads.expressions[gone], np.zeros_like(gone))
    if not len(kept):
        return
    inline = now.where(pages[now.pairs] == 1)
    at, lists = _by_page(inline, np.zeros_like(inline.pairs))
    place = np.full(len(heads), -1, dtype=np.int64)
    place[at[0]] = np.arange(len(at[0]))
    chosen = lists.take(pa.array(place[kept], mask=place[kept] < 0))
    columns = {
        "count": pa.array(counts[kept]),
        "pages": pa.array(pages[kept].astype(np.int32)),
        "holders": chosen,
    }
    yield records("v", heads.values.take(pa.array(kept)), heads.expressions[kept], np.zeros_like(kept), columns)


def _pages_written(heads: Heads, now: Holders, both: Holders, pages: Ints, grown: Bools) -> Iterator[pa.Table]:
    spread_out = now.where(pages[now.pairs] > 1)
    at, lists = _by_page(spread_out, _page_of(spread_out, pages))
    if len(at[0]):
        pairs = at[0]
        yield records("v", heads.values.take(pa.array(pairs)), heads.expressions[pairs], at[1], {"holders": lists})
    # Pages without a holder now: pages of removed holders, and all earlier pages of pairs that got more pages.
    changed = both.where((heads.pages[both.pairs] > 1) & ~grown[both.pairs])
    paged = np.flatnonzero(grown & (heads.pages > 1))
    group, place = spread(heads.pages[paged])
    pairs, numbers = _distinct(
        np.concatenate([changed.pairs, paged[group]]), np.concatenate([_page_of(changed, pages), place + 1])
    )
    empty = ~np.isin(_code(pairs, numbers), _code(*at))
    if empty.any():
        pairs, numbers = pairs[empty], numbers[empty]
        yield deletes("v", heads.values.take(pa.array(pairs)), heads.expressions[pairs], numbers)


def _inline(heads: Heads, pairs: Ints) -> Holders:
    lists = heads.holders.take(pa.array(pairs))
    return _unfolded(pairs, lists)


def _of_pages(state: State, heads: Heads, pairs: Ints, numbers: Ints) -> Holders:
    found = state.values(heads.values.take(pa.array(pairs)), heads.expressions[pairs], numbers)
    at = heads.places(_ints(found, "a"), contiguous(found.column("k")))
    return _unfolded(at, contiguous(found.column("holders")))


def _unfolded(pairs: Ints, lists: pa.Array) -> Holders:
    rows, _ = spread(lengths_of(lists))
    members = pc.list_flatten(lists)
    return Holders(pairs[rows], members.field("dataset").to_numpy().astype(np.int64), contiguous(members.field("id")))


def _page_of(holders: Holders, pages: Ints) -> Ints:
    """The page of each holder, from 1 on."""
    if not len(holders):
        return np.empty(0, dtype=np.int64)
    return 1 + (hash_columns([holders.ids]) & (pages[holders.pairs] - 1))


def _by_page(holders: Holders, numbers: Ints) -> tuple[tuple[Ints, Ints], pa.Array]:
    """Pairs and pages, each once, and their holders as lists sorted by id."""
    ranks = pc.rank(holders.ids, tiebreaker="dense").to_numpy(zero_copy_only=False) if len(holders) else holders.pairs
    order = np.lexsort((ranks, holders.datasets, numbers, holders.pairs))
    pairs, numbers = holders.pairs[order], numbers[order]
    starts = run_starts(pairs, numbers)
    members = pa.StructArray.from_arrays(
        [pa.array(holders.datasets[order].astype(np.int32)), holders.ids.take(pa.array(order))], fields=list(MEMBER)
    )
    return (pairs[starts], numbers[starts]), list_array(np.append(starts, len(order)), members)


def _without(holders: Holders, removed: Holders) -> Holders:
    """The holders that are not removed, each once."""
    texts = key_texts(holders.datasets, holders.ids)
    encoded = pa.chunked_array([texts, key_texts(removed.datasets, removed.ids)], pa.string()).combine_chunks()
    codes = contiguous(encoded).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    own, other = _code(holders.pairs, codes[: len(holders)]), _code(removed.pairs, codes[len(holders) :])
    keep = np.zeros(len(holders), dtype=np.bool_)
    keep[np.unique(own, return_index=True)[1]] = True
    return holders.where(keep & ~np.isin(own, other))


def _distinct(pairs: Ints, numbers: Ints) -> tuple[Ints, Ints]:
    _, firsts = np.unique(_code(pairs, numbers), return_index=True)
    return pairs[firsts], numbers[firsts]


def _code(pairs: Ints, numbers: Ints) -> Ints:
    return pairs * (1 << 31) + numbers


def _ints(table: pa.Table, name: str) -> Ints:
    return contiguous(table.column(name)).to_numpy(zero_copy_only=False).astype(np.int64)
