"""A merger on a table's own records: delivered again in the ways that its laws say do not matter.

The records of a sample of keys are read once, in one pass over the logs, and held in memory. All deliveries are folded
in memory by the one kernel. Nothing is written. The sample and the deliveries depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge._internal.cache import Cache
from lakemerge.errors import InputError
from lakemerge.format.block_index import DecodedLogs
from lakemerge.format.config import TableConfig
from lakemerge.format.names import KIND_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.layout.xxhash64 import hash_columns
from lakemerge.provenance.deliveries import CHECKS, LAWS, Check, Delivery, Histories, Law, differing, play, smallest
from lakemerge.provenance.key_records import nullable
from lakemerge.provenance.retained import retained
from lakemerge.provenance.short import short_notes
from lakemerge.provenance.verification import DeliveryCheck, MergerVerification, RefutedLaw, names_of, values_of
from lakemerge.python_values import python_rows
from lakemerge.read.filter.prune import file_slices_of_keys
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.sources import MergeSpec, block_schema, block_stream, stored_streams, tombstone_stream
from lakemerge.table.create import choose_merger
from mergers import Merger, TableShape
from mergers.contract import Bools, Ints, RowKind
from mergers.kernel import VERSION_COLUMN, tombstone_schema
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.portions import gather
from mergers.restart import RecordKind
from mergers.wording import argument

__all__ = ["MOST_RECORDS", "verify"]

MOST_RECORDS: Final = 64
"""A key delivers at most so many records, the first ones."""
_SCAN_BYTES = 2**20
_U64 = npt.NDArray[np.uint64]


def verify(
    handle: Handle,
    tip: TableView,
    merger: str | Merger | None,
    options: Mapping[str, object] | None,
    *,
    since: int | None,
    sample_keys: int,
    rounds: int,
    seed: int,
    require: Sequence[str],
) -> MergerVerification:
    """See :meth:`lakemerge.LakeTable.verify_merger`."""
    for name, value, least in (("sample_keys", sample_keys, 1), ("rounds", rounds, 1), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"{argument(name)} must be at least {least}, not {value}")
    if unknown := [law for law in require if law not in LAWS]:
        raise InputError(f"there is no law {unknown[0]!r}; the laws are {', '.join(LAWS)}")
    known = retained(handle, tip, since)
    handle = handle.knowing(merger)
    if merger is None:
        merger = tip.config.merger_id
        options = tip.config.merger_options if options is None else options
    chosen = choose_merger(handle, merger, options, tip.config.shape)
    config = known.view.config.merged_by(chosen)
    apart = replace(handle, decoded=DecodedLogs(), scans=Cache(_SCAN_BYTES))
    view = TableView(known.view.snapshot, config, handle.store, apart.decoded)
    sample = _Sample(config, sample_keys, seed, handle.settings.merge_budget_bytes)
    for file_slice in view.file_slices:
        sample.take(apart, file_slice)
    histories = _with_states(sample.histories(), apart, view)
    shape = _shape(config)
    trial = _Trial(chosen, shape, histories, rounds, seed, frozenset(require))
    checks = trial.run()
    notes = [*known.notes, *sample.notes(), *trial.notes]
    own = tip.config
    if (chosen.id, dict(chosen.options())) != (own.merger_id, dict(own.merger_options)):
        notes += short_notes(handle, known)
    if not len(histories.group):
        notes.append(
            "there are no records: they are compacted into the rows, and earlier ones are gone"
            if tip.version > known.start.version or not tip.is_empty
            else "the table has no records"
        )
    return MergerVerification(
        version=tip.version,
        begins=known.start.version,
        merger=chosen.name,
        options=chosen.options(),
        keys=histories.keys.num_rows,
        records=len(histories.group),
        seed=seed,
        checks=tuple(checks),
        notes=tuple(dict.fromkeys(notes)),
    )


def _shape(config: TableConfig) -> TableShape:
    """The table's shape with nullable columns: a history that is cut short may lack values that the whole one has."""
    shape = config.shape
    schema = pa.schema([column.with_nullable(column.name not in shape.key) for column in shape.schema])
    return TableShape(schema, shape.key, shape.ordering, shape.remembers)


# Which records


@dataclass(slots=True)
class _Sample:
    """The records of the keys with the smallest hashes, as far as they were read."""

    config: TableConfig
    most_keys: int
    seed: int
    budget: int
    parts: list[pa.Table] = field(default_factory=list)
    """Records with all columns of the table and those of ``_META``."""
    presence: dict[frozenset[str], int] = field(default_factory=dict)
    limit: int = 2**64 - 1
    """Only keys whose hash is at most that are in the sample."""
    held: int = 0
    cut: bool = False
    smaller: bool = False
    _order: int = 0

    def take(self, handle: Handle, file_slice: FileSlice) -> None:
        """Read the live records of a file slice."""
        schema, names = nullable(self.config.schema), self.config.names
        with ParquetFiles(handle.store, handle.footers) as files:
            for block in file_slice.blocks:
                self._order += 1
                own = block_schema(schema, block, names)
                stream = block_stream(block, own, file_slice, self.config, files, max(1, self.budget // 4))
                for table, _ in stream:
                    self._add(table, names.carried(block.file.columns) & {*schema.names}, block.version)
        self._prune()

    def _add(self, table: pa.Table, carried: frozenset[str], version: int) -> None:
        if not table.num_rows:
            return
        hashes = _mixed(hash_columns([table.column(name) for name in self.config.key]), self.seed)
        keep = hashes <= np.uint64(self.limit)
        if not keep.any():
            return
        table, hashes = table.filter(pa.array(keep)), hashes[keep]
        rows = table.num_rows
        versions = (
            table.column(VERSION_COLUMN).to_numpy()
            if VERSION_COLUMN in table.column_names
            else np.full(rows, version, dtype=np.int64)
        )
        source = self.presence.setdefault(carried, len(self.presence))
        kinds = table.column(KIND_COLUMN).fill_null(int(RowKind.UPDATE_AFTER))
        columns = [
            table.column(name) if name in carried else pa.nulls(rows, self.config.schema.field(name).type)
            for name in self.config.schema.names
        ]
        meta = [
            pa.array(hashes),
            pa.array(versions),
            pa.array(np.full(rows, self._order, dtype=np.int64)),
            kinds,
            pa.array(np.full(rows, source, dtype=np.int64)),
        ]
        part = pa.Table.from_arrays([*columns, *meta], schema=pa.schema([*nullable(self.config.schema), *_META]))
        self.parts.append(part)
        self.held += part.nbytes
        if self.held > self.budget:
            self._prune()

    def _prune(self) -> None:
        """Leave out keys beyond the sample, records beyond those that a key may have, and keys that take up too many
        bytes."""
        if not self.parts:
            return
        while True:
            records = pa.concat_tables(self.parts)
            hashes = records.column("_lm_hash").to_numpy()
            found = np.unique(hashes)
            most = self.most_keys
            if self.held > self.budget and len(self.parts) == 1:
                most = min(most, max(1, len(found) // 2))
                self.smaller = True
            if len(found) > most:
                self.limit = int(found[most - 1])
            order = np.lexsort((*(records.column(name).to_numpy() for name in ("_lm_block", "_lm_commit")), hashes))
            starts = np.flatnonzero(np.diff(hashes[order].view(np.int64), prepend=0) != 0)
            starts = np.union1d(starts, [0])
            rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
            self.cut = self.cut or bool((rank >= MOST_RECORDS).any())
            own = order[(rank < MOST_RECORDS) & (hashes[order] <= np.uint64(self.limit))]
            self.parts = [gather(records, own)]
            self.held = self.parts[0].nbytes
            if self.held <= self.budget or len(found) == 1:
                return

    def histories(self) -> Histories:
        """The records, without stored states."""
        shape = self.config.shape
        names = self.config.schema.names
        self._prune()
        empty = pa.schema([*nullable(self.config.schema), *_META]).empty_table()
        records = pa.concat_tables([empty, *self.parts])
        # The sort is stable, and records are in the order of their commits.
        order = sort_order(key_columns(records, shape.key))
        records = gather(records, order)
        keys = key_columns(records, shape.key)
        starts = group_starts(keys)
        stored = nullable(self.config.schema)
        key_schema = pa.schema([shape.schema.field(name) for name in shape.key])
        return Histories(
            base=stored.empty_table(),
            tombstones=tombstone_schema(shape).empty_table(),
            keys=gather(records.select(shape.key), starts).cast(key_schema),
            group=np.repeat(np.arange(len(starts)), np.diff(np.append(starts, records.num_rows))).astype(np.int64),
            kinds=records.column("_lm_kind").to_numpy().astype(np.int8),
            versions=records.column("_lm_commit").to_numpy(),
            sources=records.column("_lm_source").to_numpy(),
            presence=tuple(self.presence),
            rows=records.select(names),
        )

    def notes(self) -> Iterable[str]:
        if self.smaller:
            yield "the records of the sample would take more memory than a merge may, so it has fewer keys"
        if self.cut:
            yield f"of keys with more than {MOST_RECORDS} records, the first {MOST_RECORDS} were delivered"


_META = pa.schema(
    [
        ("_lm_hash", pa.uint64()),
        ("_lm_commit", pa.int64()),
        ("_lm_block", pa.int64()),
        ("_lm_kind", pa.int8()),
        ("_lm_source", pa.int64()),
    ]
)


def _mixed(hashes: npt.NDArray[np.int64], seed: int) -> _U64:
    """Hashes in another order for each seed. Equal hashes stay equal, and different ones different."""
    mixed = hashes.view(np.uint64) ^ np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))


def _with_states(histories: Histories, handle: Handle, view: TableView) -> Histories:
    """The histories with the stored states of their keys."""
    config, shape = view.config, view.config.shape
    if not histories.keys.num_rows:
        return histories
    spec = MergeSpec.of(handle, view)
    schema, budget = nullable(config.schema), handle.settings.merge_budget_bytes
    rows, tombstones = [histories.base], [histories.tombstones]
    sought = key_columns(histories.keys, shape.key)

    def own(table: pa.Table) -> pa.Table:
        return table.filter(pa.array(locate(sought, key_columns(table, shape.key))[1]))

    with ParquetFiles(handle.store, handle.footers) as files:
        for file_slice in file_slices_of_keys(view, histories.keys, exact=True):
            for _, stream in stored_streams(spec, file_slice, schema, files, budget):
                rows += [own(table) for table, _ in stream if table.num_rows]
            tombstones += [own(table) for table, _ in tombstone_stream(spec, file_slice, files) if table.num_rows]
    return replace(histories, base=_by_key(rows, shape), tombstones=_by_key(tombstones, shape))


def _by_key(parts: Sequence[pa.Table], shape: TableShape) -> pa.Table:
    table = pa.concat_tables(parts)
    return gather(table, sort_order(key_columns(table, shape.key)))


# What is tried


@dataclass(slots=True)
class _Trial:
    merger: Merger
    shape: TableShape
    histories: Histories
    rounds: int
    seed: int
    require: frozenset[str]
    notes: list[str] = field(default_factory=list)

    def run(self) -> list[DeliveryCheck]:
        merger, shape = self.merger, self.shape
        before = play(merger, shape, self.histories, self.histories.as_they_came())
        if before.failed:
            count, (first, *_) = len(before.failed), before.failed.values()
            self.notes.append(f"{count:,} key(s) are left out, because their merge fails as they came: {first}")
            keep = np.ones(self.histories.keys.num_rows, dtype=np.bool_)
            keep[[*before.failed]] = False
            self.histories = self.histories.of_keys(keep)
        found: list[DeliveryCheck] = []
        for check in CHECKS:
            for promised, keys in self._promised(check.law):
                found += self._check(check, keys, promised=promised)
        for promised, keys in self._promised("selective"):
            if promised:  # that a row is made of several records needs no example
                found += self._selective(keys)
        return found

    def _promised(self, law: Law | None) -> Iterable[tuple[bool, Bools]]:
        """The keys for which a law is promised, and those for which it is not. It depends on the columns that their
        records carry."""
        whole = np.ones(self.histories.keys.num_rows, dtype=np.bool_)
        if law is None or law in self.require:
            return [(True, whole)]
        full, partial = (getattr(self.merger.laws(self.shape, full_frames=f), law) for f in (True, False))
        are_full = self.histories.are_full()
        promised = np.where(are_full, full, partial)
        return [(flag, keys) for flag, keys in ((True, promised), (False, ~promised)) if keys.any()]

    def _check(self, check: Check, keys: Bools, *, promised: bool) -> Iterable[DeliveryCheck]:
        histories = self.histories.of_keys(keys)
        before = play(self.merger, self.shape, histories, histories.as_they_came())
        plain, tried, refuted = histories.as_they_came(), 0, None
        for round_ in range(self.rounds):
            seed = [self.seed, round_, CHECKS.index(check)]
            delivery = check.draw(self.merger, self.shape, histories, np.random.default_rng(seed))
            varied = _varied(histories, plain, delivery)
            if not varied:
                continue
            tried += varied
            after = play(self.merger, self.shape, histories, delivery)
            broken = differing(self.shape, histories, before, after)
            if len(broken):
                refuted = self._refuted(check, histories, broken, promised=promised)
                break
        if tried:
            yield self._found(check.name, check.law, check.words, tried, refuted, promised=promised)

    def _found(
        self, name: str, law: str | None, words: str, tried: int, refuted: RefutedLaw | None, *, promised: bool
    ) -> DeliveryCheck:
        return DeliveryCheck(
            name=name, law=law, promised=promised, words=words, histories=tried, counterexample=refuted
        )

    def _refuted(self, check: Check, histories: Histories, broken: Ints, *, promised: bool) -> RefutedLaw:
        """The smallest history among those that are broken, made smaller."""
        sizes = histories.sizes[broken]
        keep = np.zeros(histories.keys.num_rows, dtype=np.bool_)
        keep[broken[np.argmin(sizes)]] = True
        plays = _MOST_PLAYS if promised else _FEW_PLAYS
        one, delivery = smallest(self.merger, self.shape, check, histories.of_keys(keep), self.seed, plays=plays)
        return _refutation(self.merger, self.shape, one, delivery)

    def _selective(self, keys: Bools) -> Iterable[DeliveryCheck]:
        """Whether each row is one of the records, or the row before, whole."""
        histories = self.histories.of_keys(keys & (self.histories.sizes > 0))
        count = min(histories.keys.num_rows, _MOST_COMPARED)
        some = np.arange(histories.keys.num_rows) < count
        histories = histories.of_keys(some)
        made = play(self.merger, self.shape, histories, histories.as_they_came())
        at, _ = locate(key_columns(histories.keys, self.shape.key), key_columns(made.rows, self.shape.key))
        base_at, _ = locate(key_columns(histories.keys, self.shape.key), key_columns(histories.base, self.shape.key))
        given: dict[int, set[str]] = {number: set() for number in range(count)}
        for group, row in zip(histories.group.tolist(), histories.rows.to_pylist(), strict=True):
            given[group].add(repr(row))
        for group, row in zip(base_at.tolist(), histories.base.to_pylist(), strict=True):
            given[group].add(repr(row))
        rows = zip(at.tolist(), made.rows.to_pylist(), strict=True)
        wrong = [group for group, row in rows if repr(row) not in given[group]]
        refuted = None
        if wrong:
            group = min(wrong, key=lambda number: (histories.sizes[number], number))
            keep = np.arange(count) == group
            refuted = _refutation(self.merger, self.shape, histories.of_keys(keep), None)
        if count:
            words = "a row is one of its records, whole"
            yield self._found("selective", "selective", words, count, refuted, promised=True)


_MOST_PLAYS, _FEW_PLAYS = 600, 60
"""How many folds make a counterexample smaller: to a law that is promised, and to another."""
_MOST_COMPARED = 2_000
"""How many rows are compared with their records, value by value."""


def _varied(histories: Histories, plain: Delivery, delivery: Delivery) -> int:
    """How many histories come otherwise than they came."""
    group = histories.group[delivery.order]
    flags = delivery.stages != delivery.stages[0] if len(delivery.stages) else np.zeros(0, dtype=np.bool_)
    if delivery.batches is not None:
        return len(np.unique(group[delivery.batches >= 0]))
    if delivery.column is not None:
        return histories.keys.num_rows
    if len(delivery.order) != len(plain.order):
        return int((np.bincount(group) != histories.sizes).sum())
    moved = delivery.order != plain.order
    if not moved.any():
        joined = np.zeros(len(group), dtype=np.bool_)
        joined[1:] = (group[1:] == group[:-1]) & (delivery.commits[1:] == delivery.commits[:-1])
        return len(np.unique(group[joined | flags]))
    return len(np.unique(group[moved]))


def _refutation(merger: Merger, shape: TableShape, history: Histories, delivery: Delivery | None) -> RefutedLaw:
    before = play(merger, shape, history, history.as_they_came())
    (key,) = python_rows(history.keys)
    stored = next(iter(python_rows(history.base)), None)
    records = []
    for place, row in enumerate(python_rows(history.rows)):
        carried = history.presence[history.sources[place]]
        kind = RecordKind(int(history.kinds[place])).symbol
        values = {name: value for name, value in row.items() if name in carried}
        records.append((int(history.versions[place]), kind, values))
    expected = _end(before.rows, before.failed)
    if delivery is None:
        words, found, expected = "the row", expected, "the row must be one of these, whole"
    else:
        after = play(merger, shape, history, delivery)
        words, found = _in_words(delivery, len(records)), _end(after.rows, after.failed)
        if delivery.column is not None:
            expected = _end(before.rows.select(after.rows.column_names), before.failed)
    return RefutedLaw(
        key=key,
        stored=stored,
        forgotten=history.tombstones.num_rows > 0,
        records=tuple(records),
        delivery=words,
        expected=expected,
        found=found,
    )


def _end(rows: pa.Table, failed: Mapping[int, Any]) -> str:
    if failed:
        return f"the merge fails: {next(iter(failed.values()))}"
    return values_of(next(iter(python_rows(rows)), None))


def _in_words(delivery: Delivery, count: int) -> str:
    names = [names_of(count)[place] for place in delivery.order.tolist()]
    told: list[str] = []
    plain = delivery.order.tolist() == list(range(count))
    if not plain:
        told.append(f"in the order {', '.join(names)}")
    if delivery.batches is not None:
        for batch in sorted({*delivery.batches.tolist()} - {-1}):
            own = [name for name, each in zip(names, delivery.batches.tolist(), strict=True) if each == batch]
            told.append(f"{' and '.join([', '.join(own[:-1]), own[-1]])} combined first")
    elif plain:
        for commit in np.unique(delivery.commits).tolist():
            own = [name for name, each in zip(names, delivery.commits.tolist(), strict=True) if each == commit]
            if len(own) > 1:
                told.append(f"{' and '.join([', '.join(own[:-1]), own[-1]])} in one commit")
    stages = delivery.stages.tolist()
    told += [f"stored after {names[place]}" for place in range(len(names) - 1) if stages[place] != stages[place + 1]]
    if delivery.column is not None:
        told.append(f"reading only the column {delivery.column}")
    return "; ".join(told) or "merged again"
