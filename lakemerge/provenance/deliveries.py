"""Histories of keys, and other deliveries of the same records: compacted on the way, combined, repeated, shuffled.

A *history* is the stored state of a key and the records after it. A *delivery* is a history as it may also have
happened. The laws of a merger say which deliveries give the same rows, so a delivery with other rows refutes a law.
Everything is folded by the one kernel, many keys at a time. Source: docs/merge-semantics.md, section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa

from lakemerge.feed.difference import row_changes
from mergers import Frame, Merger, TableShape, fold
from mergers.contract import Bools, Ints, Kinds, RowKind
from mergers.errors import LakeMergeError
from mergers.failing import FAILURES
from mergers.kernel import combine, overlay_rows
from mergers.keys import key_columns, locate
from mergers.ordering import order_codes
from mergers.portions import gather
from mergers.restart import SET

__all__ = ["CHECKS", "LAWS", "Check", "Delivery", "Histories", "Law", "Outcome", "differing", "play", "smallest"]

Law = Literal["associative", "commutative", "replay_safe", "selective"]
LAWS: Final[tuple[Law, ...]] = get_args(Law)
_UPSERTS = (int(RowKind.INSERT), int(RowKind.UPDATE_AFTER))
_MOST_FAILING = 100
"""So many keys whose fold fails are looked for one by one."""
_FEW = 4
"""Histories of fewer records have few deliveries, and each of them should be drawn."""
_DRAWS = 6
"""So many deliveries of a history are tried before it counts as one that breaks no law."""


@dataclass(frozen=True, slots=True)
class Histories:
    """The histories of some keys. Arrays have one entry for each record, sorted by key and then by arrival."""

    base: pa.Table
    """The stored rows, sorted by key, with all columns."""
    tombstones: pa.Table
    """See :func:`mergers.kernel.tombstone_schema`."""
    keys: pa.Table
    """The key columns, sorted by key."""
    group: Ints
    """The number of each record's key."""
    kinds: Kinds
    versions: Ints
    sources: Ints
    """Index into ``presence``."""
    presence: tuple[frozenset[str], ...]
    """For each source, the columns that its records carry."""
    rows: pa.Table
    """The records with all columns of the table, null where they are unset."""

    @property
    def sizes(self) -> Ints:
        """How many records each key has."""
        return np.bincount(self.group, minlength=self.keys.num_rows).astype(np.int64)

    @property
    def rank(self) -> Ints:
        """The number of each record within its key."""
        return _ranks(self.group)

    def of_keys(self, keep: Bools) -> Histories:
        """The histories of some keys."""
        keys = self.keys.filter(pa.array(keep))
        records = np.flatnonzero(keep[self.group])
        numbers = np.cumsum(keep) - 1
        shape_key = keys.column_names
        return replace(
            self,
            base=_with_keys(self.base, keys, shape_key),
            tombstones=_with_keys(self.tombstones, keys, shape_key),
            keys=keys,
            group=numbers[self.group[records]].astype(np.int64),
            kinds=self.kinds[records],
            versions=self.versions[records],
            sources=self.sources[records],
            rows=gather(self.rows, records),
        )

    def of_records(self, keep: Bools, *, stored: bool = True) -> Histories:
        """The same keys with some of their records; with or without their stored states."""
        records = np.flatnonzero(keep)
        return replace(
            self,
            base=self.base if stored else self.base.slice(0, 0),
            tombstones=self.tombstones if stored else self.tombstones.slice(0, 0),
            group=self.group[records],
            kinds=self.kinds[records],
            versions=self.versions[records],
            sources=self.sources[records],
            rows=gather(self.rows, records),
        )

    def are_full(self) -> Bools:
        """Whether all upserts of a key carry all columns."""
        whole = np.array([len(columns) == self.rows.num_columns for columns in self.presence], dtype=np.bool_)
        partial = ~whole[self.sources] & np.isin(self.kinds, _UPSERTS)
        return np.bincount(self.group[partial], minlength=self.keys.num_rows) == 0

    def as_they_came(self) -> Delivery:
        count = len(self.group)
        return Delivery(np.arange(count), np.zeros(count, dtype=np.int64), self.rank)


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the records of histories arrive. Arrays have one entry for each record that is delivered, sorted by key."""

    order: Ints
    """The number of the record. A record may be delivered several times."""
    stages: Ints
    """Before each stage but the first, the state so far is stored, as by a compaction. Ascending within a key."""
    commits: Ints
    """Records of a key that arrive in one commit have one number. Ascending within a key."""
    batches: Ints | None = None
    """Records of a key with one number are combined before they are merged; -1: alone."""
    column: str | None = None
    """The only column that is read, of what the last stage makes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a delivery makes of the keys."""

    rows: pa.Table
    """Sorted by key."""
    failed: Mapping[int, LakeMergeError]
    """The keys whose merge fails, by number, and why."""


def play(merger: Merger, shape: TableShape, histories: Histories, delivery: Delivery) -> Outcome:
    """The rows after a delivery."""
    ranges, made, failed, searched = [(0, histories.keys.num_rows)], list[pa.Table](), dict[int, LakeMergeError](), 0
    while ranges:
        low, high = ranges.pop()
        try:
            lenient = high - low == 1 or searched > _MOST_FAILING // 2
            made.append(_played(merger, shape, *_between(histories, delivery, low, high), lenient=lenient))
        except FAILURES as error:
            searched += 1
            if high - low == 1 or searched > _MOST_FAILING:
                failed |= dict.fromkeys(range(low, high), error)
            else:
                middle = (low + high) // 2
                ranges += [(middle, high), (low, middle)]
    names = [delivery.column] if delivery.column is not None else shape.schema.names
    wanted = [name for name in shape.schema.names if name in names or name in shape.key]
    empty = histories.base.select(wanted).slice(0, 0)
    return Outcome(pa.concat_tables([empty, *(table.select(wanted) for table in made)]), failed)


def differing(shape: TableShape, histories: Histories, one: Outcome, other: Outcome) -> Ints:
    """The numbers of the keys whose rows differ between two outcomes, ascending. The second may have one column."""
    rows, _ = row_changes(
        _OfOneSchema(),
        shape.key,
        histories.keys,
        one.rows.select(other.rows.column_names),
        other.rows,
        before_images=True,
    )
    found = np.zeros(histories.keys.num_rows, dtype=np.bool_)
    if rows.num_rows:
        at, _ = locate(key_columns(histories.keys, shape.key), key_columns(rows, shape.key))
        found[at] = True
    # A row that a failed key does not have is no difference of its own.
    found[[*one.failed, *other.failed]] = False
    found[[*(one.failed.keys() ^ other.failed.keys())]] = True
    return np.flatnonzero(found)


class _OfOneSchema:
    schema = pa.schema([])

    def shaped(self, rows: pa.Table) -> pa.Table:
        return rows


Draw = Callable[[Merger, TableShape, Histories, np.random.Generator], Delivery]


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of delivery, under which rows may have to stay as they are."""

    name: str
    law: Law | None
    """The law that promises it; ``None`` if every merger has to keep it."""
    words: str
    draw: Draw = field(repr=False)


def smallest(
    merger: Merger, shape: TableShape, check: Check, history: Histories, seed: int, *, plays: int
) -> tuple[Histories, Delivery]:
    """A history of one key that a delivery breaks, with as few records as were found.

    :param history: a history that a delivery of the check breaks.
    :param plays: how many folds may be spent on it.
    """
    search = _Search(merger, shape, check, seed, plays)
    found = search.breaking(history)
    while found is None and search.plays > 0:  # the draws for many keys are others than those for one
        search.seed += 1
        found = search.breaking(history)
    if found is None:
        return history, history.as_they_came()
    if history.base.num_rows + history.tombstones.num_rows:
        bare = history.of_records(np.ones(len(history.group), dtype=np.bool_), stored=False)
        other = search.breaking(bare)
        history, found = (history, found) if other is None else (bare, other)
    size = max(1, len(history.group) // 2)
    while True:
        before = len(history.group)
        history, found = search.without(history, found, size)
        if size == 1 and len(history.group) == before:
            return history, found
        size = max(1, size // 2)


@dataclass(slots=True)
class _Search:
    """A search for smaller histories that a delivery breaks."""

    merger: Merger
    shape: TableShape
    check: Check
    seed: int
    plays: int
    """How many folds are left."""

    def breaking(self, history: Histories) -> Delivery | None:
        """A delivery that breaks the history, if one is found."""
        for draw in range(_DRAWS * (1 + (len(history.group) < _FEW))):
            if self.plays <= 0 or not len(history.group):
                return None
            self.plays -= 2
            delivery = self.check.draw(self.merger, self.shape, history, np.random.default_rng([self.seed, draw]))
            before = play(self.merger, self.shape, history, history.as_they_came())
            if before.failed:
                return None
            after = play(self.merger, self.shape, history, delivery)
            if len(differing(self.shape, history, before, after)):
                return delivery
        return None

    def without(self, history: Histories, found: Delivery, size: int) -> tuple[Histories, Delivery]:
        """The history without each run of so many records that it can do without."""
        start = 0
        while start < len(history.group):
            keep = np.ones(len(history.group), dtype=np.bool_)
            keep[start : start + size] = False
            candidate = history.of_records(keep)
            other = self.breaking(candidate)
            if other is None:
                start += size
            else:
                history, found = candidate, other
        return history, found


def _between(histories: Histories, delivery: Delivery, low: int, high: int) -> tuple[Histories, Delivery]:
    if low == 0 and high == histories.keys.num_rows:
        return histories, delivery
    keep = np.zeros(histories.keys.num_rows, dtype=np.bool_)
    keep[low:high] = True
    own = keep[histories.group[delivery.order]]
    numbers = np.cumsum(keep[histories.group]) - 1
    cut = replace(
        delivery,
        order=numbers[delivery.order[own]],
        stages=delivery.stages[own],
        commits=delivery.commits[own],
        batches=None if delivery.batches is None else delivery.batches[own],
    )
    return histories.of_keys(keep), cut


def _played(merger: Merger, shape: TableShape, histories: Histories, delivery: Delivery, *, lenient: bool) -> pa.Table:
    """:param lenient: whether what cannot be done is left, as in a table: batches that cannot be combined stay apart,
    and a state that cannot be computed is not stored."""
    if delivery.batches is not None:
        histories, delivery = _combined(merger, shape, histories, delivery, delivery.batches, lenient=lenient)
    base, tombstones, names = histories.base, histories.tombstones, shape.schema.names
    stages, last = np.unique(delivery.stages).tolist(), int(delivery.stages.max(initial=0))
    if delivery.column is not None:
        last = max(last, 1)  # something is stored before what is read by column
    waiting = np.zeros(len(delivery.order), dtype=np.bool_)
    for stage in [*(each for each in stages if each < last), last]:
        mine = waiting | (delivery.stages == stage)
        frames = _frames(shape, histories, delivery.order[mine], delivery.commits[mine])
        if stage == last and delivery.column is not None:
            return _read(merger, shape, base, tombstones, frames, delivery.column)
        try:
            folded = fold(merger, shape, base=base, tombstones=tombstones, frames=frames, columns=names)
        except FAILURES:  # such as a total that leaves its column, and comes back with later records
            if stage == last or not lenient:
                raise
            waiting = mine
            continue
        waiting = np.zeros(len(delivery.order), dtype=np.bool_)
        base, tombstones = overlay_rows(base, folded, names, sort=True), folded.tombstones
    return base


def _read(
    merger: Merger, shape: TableShape, base: pa.Table, tombstones: pa.Table, frames: Sequence[Frame], column: str
) -> pa.Table:
    """A read of one column, which sees only the columns that the merger says it needs."""
    wanted = {*merger.needs(shape, [column]), column, *shape.standing}
    needed = [name for name in shape.schema.names if name in wanted]
    cut = [
        replace(
            frame,
            rows=frame.rows.select([name for name in needed if name in frame.rows.column_names]),
            columns=frozenset(frame.rows.column_names),
        )
        for frame in frames
    ]
    names = [name for name in shape.schema.names if name == column or name in shape.key]
    held = base.select(needed)
    folded = fold(merger, shape, base=held, tombstones=tombstones, frames=cut, columns=names)
    return overlay_rows(held, folded, names, sort=True)


def _frames(shape: TableShape, histories: Histories, records: Ints, commits: Ints) -> list[Frame]:
    found = []
    sources = histories.sources[records]
    for source in np.unique(sources).tolist():
        mine = np.flatnonzero(sources == source)
        found.append(_frame(shape, histories, records[mine], source, commits[mine] + 1))
    return found


def _frame(shape: TableShape, histories: Histories, records: Ints, source: int, versions: Ints) -> Frame:
    carried = [name for name in shape.schema.names if name in histories.presence[source]]
    return Frame(gather(histories.rows.select(carried), records), histories.kinds[records], versions)


def _combined(
    merger: Merger, shape: TableShape, histories: Histories, delivery: Delivery, batches: Ints, *, lenient: bool
) -> tuple[Histories, Delivery]:
    """The delivery with the records of each batch combined. Those of the first stage are as they came: a base file took
    them up before."""
    sources = histories.sources[delivery.order]
    keep = np.ones(len(batches), dtype=np.bool_)
    order = delivery.order.copy()
    for batch, source in sorted({*zip(batches.tolist(), sources.tolist(), strict=True)}):
        if batch < 0:
            continue
        places = np.flatnonzero((batches == batch) & (sources == source))
        full = len(histories.presence[source]) == len(shape.schema)
        frame = _frame(shape, histories, order[places], source, np.zeros(len(places), dtype=np.int64))
        if _combines_itself(merger, shape, full=full):
            kept = combine(merger, shape, frame, full=full)
            if kept is not None:
                keep[places[~kept & (delivery.stages[places] > 0)]] = False
            continue
        try:
            histories = _with_folded(merger, shape, histories, order, places, frame, keep)
        except FAILURES:  # such as a partial total that does not fit its column
            if not lenient:
                raise
    left = replace(delivery, order=order[keep], stages=delivery.stages[keep], commits=delivery.commits[keep])
    return histories, replace(left, batches=None)


def _with_folded(
    merger: Merger, shape: TableShape, histories: Histories, order: Ints, places: Ints, frame: Frame, keep: Bools
) -> Histories:
    """Put the row that each batch makes without a state in the place of its records. ``order`` and ``keep`` change. A
    batch that makes no row stays as it is: no plan combines such records."""
    names = shape.schema.names
    empty = histories.base.slice(0, 0)
    folded = fold(merger, shape, base=empty, tombstones=histories.tombstones.slice(0, 0), frames=[frame], columns=names)
    made = folded.rows.select(names).cast(histories.rows.schema)
    groups, found = locate(key_columns(histories.keys, shape.key), key_columns(made, shape.key))
    numbers = np.full(histories.keys.num_rows, -1, dtype=np.int64)
    numbers[groups[found]] = len(histories.group) + np.flatnonzero(found)
    own = histories.group[order[places]]
    first = np.flatnonzero(np.diff(own, prepend=-1))
    combined = numbers[own] >= 0
    source = histories.sources[order[places[0]]]
    keep[places[combined]] = False
    firsts = places[first][combined[first]]
    keep[firsts] = True
    order[firsts] = numbers[own[first]][combined[first]]
    return replace(
        histories,
        group=np.concatenate([histories.group, groups]),
        kinds=np.concatenate([histories.kinds, np.full(len(groups), RowKind.UPDATE_AFTER, dtype=np.int8)]),
        versions=np.concatenate([histories.versions, np.zeros(len(groups), dtype=np.int64)]),
        sources=np.concatenate([histories.sources, np.full(len(groups), source, dtype=np.int64)]),
        rows=pa.concat_tables([histories.rows, made]),
    )


def _combines_itself(merger: Merger, shape: TableShape, *, full: bool) -> bool:
    return type(merger).combine is not Merger.combine and merger.laws(shape, full_frames=full).associative


# How deliveries are drawn


def _compacted(merger: Merger, shape: TableShape, histories: Histories, rng: np.random.Generator) -> Delivery:
    came = histories.as_they_came()
    joined = rng.random(len(came.order)) < 0.5
    return replace(came, stages=_stages(histories.group, rng, 2), commits=_commits(histories, came.order, joined))


def _projected(merger: Merger, shape: TableShape, histories: Histories, rng: np.random.Generator) -> Delivery:
    column = shape.schema.names[int(rng.integers(len(shape.schema)))]
    return replace(_compacted(merger, shape, histories, rng), column=column)


def _batched(merger: Merger, shape: TableShape, histories: Histories, rng: np.random.Generator) -> Delivery:
    """Runs of records that one frame could hold are combined."""
    came = histories.as_they_came()
    full = [len(columns) == len(shape.schema) for columns in histories.presence]
    itself = np.array([_combines_itself(merger, shape, full=each) for each in full], dtype=np.bool_)
    own = itself[histories.sources]
    fits = (histories.kinds < SET) & (own | np.isin(histories.kinds, _UPSERTS))
    same = np.zeros(len(fits), dtype=np.bool_)
    same[1:] = (
        (histories.group[1:] == histories.group[:-1])
        & (histories.sources[1:] == histories.sources[:-1])
        & fits[1:]
        & fits[:-1]
    )
    same &= rng.random(len(same)) < 0.7
    run = np.cumsum(~same) - 1
    starts = np.flatnonzero(~same)
    first_run = np.zeros(histories.keys.num_rows, dtype=np.int64)
    group_first = np.flatnonzero(np.diff(histories.group, prepend=-1))
    first_run[histories.group[group_first]] = run[group_first]
    batches = run - first_run[histories.group]
    sizes = np.diff(np.append(starts, len(same)))
    batches[sizes[run] < 2] = -1
    stages = np.ones(len(same), dtype=np.int64)
    if rng.random() < 0.5:
        stages = _stages(histories.group, rng, 1)
        # A base file may have taken up the first of the records that a merger chose from.
        stages[_any_of(histories.group, ~own)] = 1
    return replace(came, batches=batches, stages=stages)


def _doubled(merger: Merger, shape: TableShape, histories: Histories, rng: np.random.Generator) -> Delivery:
    """One record of each key comes again, later."""
    rank, sizes = histories.rank, histories.sizes
    segment, fits = np.cumsum(histories.kinds >= SET).astype(np.int64), histories.kinds < SET
    starts = np.cumsum(sizes) - sizes
    has = sizes > 0
    chosen = (starts + np.minimum((rng.random(len(sizes)) * sizes).astype(np.int64), sizes - 1))[has]
    chosen = chosen[fits[chosen]]
    ends = _ends(histories.group, segment)
    after = chosen + np.floor(rng.random(len(chosen)) * (ends[chosen] - chosen + 1)).astype(np.int64)
    order = np.concatenate([np.arange(len(rank)), chosen])
    places = np.concatenate([np.arange(len(rank), dtype=np.float64), after + 0.5])
    return _ordered(histories, order[np.argsort(places, kind="stable")], rng)


def _shuffled(merger: Merger, shape: TableShape, histories: Histories, rng: np.random.Generator) -> Delivery:
    """Records come in another order, within what the ordering allows: equal orderings keep their order, and nothing
    passes a record without an ordering, a set or a clear."""
    count = len(histories.group)
    stays, codes = histories.kinds >= SET, np.arange(count, dtype=np.int64)
    if shape.ordering and merger.traits(shape).uses_ordering:
        needed = frozenset(shape.ordering)
        placed = np.array([needed <= columns for columns in histories.presence], dtype=np.bool_)
        stays = stays | ~placed[histories.sources]
        codes = order_codes([_whole(histories.rows.column(name)) for name in shape.ordering])
    # Each record that stays is a segment of its own, so nothing moves over it.
    edge = stays.copy()
    edge[1:] |= stays[:-1]
    segment = np.cumsum(edge)
    drawn = rng.random(count)
    arrival = np.arange(count)
    equals = np.lexsort((arrival, codes, segment, histories.group))
    by_draw = np.lexsort((drawn, codes, segment, histories.group))
    places = np.empty(count)
    places[equals] = drawn[by_draw]
    return _ordered(histories, np.lexsort((places, segment, histories.group)), rng)


def _unvaried(merger: Merger, shape: TableShape, histories: Histories, rng: np.random.Generator) -> Delivery:
    return histories.as_they_came()


def _ordered(histories: Histories, order: Ints, rng: np.random.Generator) -> Delivery:
    group = histories.group[order]
    stages = _stages(group, rng, 1) if rng.random() < 0.5 else np.zeros(len(order), dtype=np.int64)
    return Delivery(order, stages, _ranks(group))


def _stages(group: Ints, rng: np.random.Generator, cuts: int) -> Ints:
    """Cut each group at random into up to ``cuts`` + 1 stages."""
    rank, sizes = _ranks(group), np.bincount(group)
    stages = np.zeros(len(group), dtype=np.int64)
    for _ in range(cuts):
        at = np.floor(rng.random(len(sizes)) * (sizes + 1)).astype(np.int64)
        stages += rank >= at[group]
    return stages


def _commits(histories: Histories, order: Ints, joined: Bools) -> Ints:
    """Commit numbers, where a record is in the commit of the one before if that carries the same columns."""
    group, sources = histories.group[order], histories.sources[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = ~(joined[1:] & (group[1:] == group[:-1]) & (sources[1:] == sources[:-1]))
    return np.cumsum(new).astype(np.int64)


def _ranks(group: Ints) -> Ints:
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return np.arange(len(group)) - np.repeat(starts, np.diff(np.append(starts, len(group))))


def _ends(group: Ints, segment: Ints) -> Ints:
    """For each record, the last one of its key and segment."""
    new = np.ones(len(group), dtype=np.bool_)
    new[1:] = (group[1:] != group[:-1]) | (segment[1:] != segment[:-1])
    starts = np.flatnonzero(new)
    return np.repeat(np.append(starts[1:], len(group)) - 1, np.diff(np.append(starts, len(group))))


def _any_of(group: Ints, flags: Bools) -> Bools:
    """For each record, whether one of its key has the flag."""
    return np.bincount(group, flags, minlength=1)[group] > 0


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _with_keys(rows: pa.Table, keys: pa.Table, names: Collection[str]) -> pa.Table:
    """The rows that have one of the keys."""
    return rows.filter(pa.array(locate(key_columns(keys, [*names]), key_columns(rows, [*names]))[1]))


CHECKS: Final = (
    Check("compacted", None, "compacted on the way, commits joined", _compacted),
    Check("projected", None, "read column by column", _projected),
    Check("combined", "associative", "combined before they are merged", _batched),
    Check("doubled", "replay_safe", "delivered twice", _doubled),
    Check("shuffled", "commutative", "late, within what the ordering allows", _shuffled),
)
"""What varies. That a result is one of the inputs (``selective``) needs no other delivery."""
