"""Overrides: a table of the user's that says which rows are the same, and which are not.

An override is a value that its two rows hold. The value is the key of the override's row, and one expression of each
dataset stands for ``same``, another for ``different``. So clusters, the index and the state treat a ``same`` as they
treat any value. The state has for each row that is named what it holds in that way: part ``u``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import DatasetsMissingError, InputError, MergeConfigError, VersionNotFoundError
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.entity_states import Fresh, held_lists, held_of, ints, strings
from lakemerge.merge_source.ids import ids_of, key_texts
from lakemerge.merge_source.inputs import Access, Input, open_input
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous
from lakemerge.merge_source.results import Override
from lakemerge.merge_source.rule_values import Held, distinct
from lakemerge.merge_source.rules import Rules
from lakemerge.merge_source.state import SCHEMA, DatasetState, State, deletes, records
from lakemerge.merge_source.value_texts import plain_texts
from lakemerge.table.table import LakeTable

__all__ = ["OVERRIDE", "Holdings", "OverrideTable", "Unusable", "differences", "open_overrides", "with_holdings"]

OVERRIDE = "o"
"""The first letter of a value that is the key of an override."""
_COLUMNS = ("left_dataset", "left_id", "right_dataset", "right_id", "verdict")
_TOLD = ("who", "at", "why")
_VERDICTS = ("same", "different")
_KIND = "_row_kind"


@dataclass(frozen=True, slots=True)
class Unusable:
    """Overrides that count for nothing."""

    keys: pa.Array
    reasons: Sequence[str]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What rows hold because overrides name them: for each row a list, which is empty if no override does any more."""

    datasets: Ints
    ids: pa.Array
    held: Held
    """The row is a place among the first two."""
    unusable: Unusable = field(default_factory=lambda: Unusable(pa.array([], pa.string()), ()))

    def __len__(self) -> int:
        return len(self.datasets)

    @property
    def texts(self) -> pa.Array:
        return key_texts(self.datasets, self.ids)

    @staticmethod
    def none() -> Holdings:
        nothing = np.empty(0, dtype=np.int64)
        return Holdings(nothing, pa.array([], pa.string()), Held(nothing, nothing, pa.array([], pa.string())))

    @staticmethod
    def of_pairs(datasets: Ints, ids: pa.Array, expressions: Ints, values: pa.Array, unusable: Unusable) -> Holdings:
        """From one triple for each row that an override names."""
        encoded = key_texts(datasets, ids).dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, firsts, rows = np.unique(codes, return_index=True, return_inverse=True)
        held = distinct(rows.astype(np.int64), expressions, values)
        return Holdings(datasets[firsts], ids.take(pa.array(firsts)), held, unusable)

    def where(self, keep: Bools) -> Holdings:
        place, inside = np.cumsum(keep) - 1, keep[self.held.rows]
        held = Held(
            place[self.held.rows[inside]], self.held.expressions[inside], self.held.values.filter(pa.array(inside))
        )
        return Holdings(self.datasets[keep], self.ids.filter(pa.array(keep)), held, self.unusable)

    def records(self) -> Iterator[pa.Table]:
        """The records of the state for these rows."""
        counts = np.bincount(self.held.rows, minlength=len(self))
        for kept, rows in ((True, self.where(counts > 0)), (False, self.where(counts == 0))):
            zeros = np.zeros(len(rows), dtype=np.int64)
            if len(rows) and kept:
                yield records("u", rows.ids, rows.datasets, zeros, {"held": held_lists(rows.held, len(rows))})
            elif len(rows):
                yield deletes("u", rows.ids, rows.datasets, zeros)


@dataclass(frozen=True, slots=True)
class OverrideTable:
    """The table of overrides at one version."""

    input: Input
    config: MergeConfig
    """With rules that know overrides."""

    @property
    def state(self) -> DatasetState:
        one = self.input
        return DatasetState(one.table_id, one.version, one.restore_epoch, "", one.key)

    def earlier(self, known: DatasetState) -> OverrideTable:
        """At the version that a run took up. Raises :class:`lakemerge.VersionNotFoundError`."""
        same = known.version is None or known.version == self.input.version
        return self if same else replace(self, input=self.input.earlier(known.version or 0))

    def all(self) -> Holdings:
        """What all overrides give."""
        return self._holdings(list(self.input.scan(self._columns)))

    def changed(self, state: State, known: DatasetState | None) -> Holdings:
        """What the rows hold now that overrides name or named which changed since a run. Rows that changed otherwise
        are not among them."""
        now = self.state
        if known is not None and known == now:
            return Holdings.none()
        followed = known is not None and (known.table_id, known.restore_epoch) == (now.table_id, now.restore_epoch)
        if followed and isinstance(self.input.table, LakeTable) and known is not None:
            try:
                return self._followed(state, self.input.table, known.version or 0)
            except (VersionNotFoundError, FileNotFoundError):
                pass  # what changed is not known any more: the whole table tells as well
        return differences(state, self.all())

    def _followed(self, state: State, table: LakeTable, since: int) -> Holdings:
        before: list[pa.Table] = []
        after: list[pa.Table] = []
        for batch in table.changes(since, net=True):
            rows = pa.Table.from_batches([batch])
            old = pc.is_in(rows.column(_KIND), value_set=pa.array(["-U", "-D"]))
            before.append(rows.filter(old))
            after.append(rows.filter(pc.invert(old)))
        gone, come = self._holdings(before), self._holdings(after)
        datasets = np.concatenate([gone.datasets, come.datasets])
        ids = contiguous(pa.chunked_array([gone.ids, come.ids], pa.string()))
        codes = key_texts(datasets, ids).dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
        once = np.unique(codes, return_index=True)[1]
        datasets, ids = datasets[once], ids.take(pa.array(once))
        told = _remembered(state, datasets, ids)
        moved = pa.chunked_array([gone.held.values, come.held.values], pa.string()).unique()
        stays = pc.invert(pc.is_in(told.values, value_set=moved)).to_numpy(zero_copy_only=False)
        at = pc.index_in(come.texts, value_set=key_texts(datasets, ids)).to_numpy(zero_copy_only=False).astype(np.int64)
        held = distinct(
            np.concatenate([told.rows[stays], at[come.held.rows]]),
            np.concatenate([told.expressions[stays], come.held.expressions]),
            contiguous(pa.chunked_array([told.values.filter(pa.array(stays)), come.held.values], pa.string())),
        )
        return Holdings(datasets, ids, held, come.unusable)

    def told(self, keys: pa.Array) -> dict[str, Override]:
        """The overrides with these keys, by key."""
        ids, rows = self.input.find(keys, self._columns)
        if not rows.num_rows:
            return {}
        columns = {name.lower(): plain_texts(contiguous(rows.column(name))).to_pylist() for name in self._columns}
        nothing = [None] * rows.num_rows
        return {
            key: Override(
                key=key,
                verdict=str(columns["verdict"][place]),
                left=(str(columns["left_dataset"][place]), str(columns["left_id"][place])),
                right=(str(columns["right_dataset"][place]), str(columns["right_id"][place])),
                who=columns.get("who", nothing)[place],
                at=columns.get("at", nothing)[place],
                why=columns.get("why", nothing)[place],
            )
            for place, key in enumerate(ids.to_pylist())
        }

    @property
    def _columns(self) -> list[str]:
        """The columns of the table that overrides have, as the table spells them."""
        names = self.input.shape.schema.names if self.input.shape is not None else []
        return [name for name in names if name.lower() in (*_COLUMNS, *_TOLD)]

    def _check_once(self, keys: pa.Array) -> None:
        """Raise :class:`lakemerge.InputError` if two overrides have one key. They cannot in a table that has a key."""
        if isinstance(self.input.table, LakeTable):
            return
        counts = pc.value_counts(keys)
        twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if len(twice):
            raise InputError(
                f"the table of overrides at {self.input.dataset.url} has the key {twice[0].as_py()!r} twice. Nothing "
                "was changed. Give each override a key of its own",
                id=twice[0].as_py(),
            )

    def _holdings(self, tables: Sequence[pa.Table]) -> Holdings:
        shape = self.input.shape
        tables = [table for table in tables if table.num_rows]
        if shape is None or not tables:
            return Holdings.none()
        rows = pa.concat_tables(
            [table.select(list(dict.fromkeys([*shape.id_columns, *self._columns]))) for table in tables]
        )
        keys = ids_of(rows, shape.id_columns)
        self._check_once(keys)
        given = {name.lower(): strings(rows, name) for name in rows.column_names}
        places = {name: place for place, name in enumerate(self.config.names)}
        places |= {alias: place for place, alias in enumerate(self.config.aliases)}
        left, right = (_places(given[f"{side}_dataset"], places) for side in ("left", "right"))
        left_ids, right_ids = given["left_id"], given["right_id"]
        verdict = pc.fill_null(pc.index_in(given["verdict"], value_set=pa.array(_VERDICTS)), -1)
        number = verdict.to_numpy(zero_copy_only=False).astype(np.int64)
        alike = pc.fill_null(pc.equal(left_ids, right_ids), False).to_numpy(zero_copy_only=False) & (left == right)
        null = (left_ids.is_null().to_numpy(zero_copy_only=False)) | right_ids.is_null().to_numpy(zero_copy_only=False)
        bad = {
            "its verdict is neither same nor different": number < 0,
            "it names a dataset that the source does not have": (left < 0) | (right < 0),
            "it names no row": null,
            "it names one row twice": alike & ~null,
        }
        reason = np.full(len(keys), -1)
        for place, (_, flags) in enumerate(bad.items()):
            reason[(reason < 0) & flags] = place
        good = np.flatnonzero(reason < 0)
        wrong = np.flatnonzero(reason >= 0)
        unusable = Unusable(keys.take(pa.array(wrong)), [list(bad)[place] for place in reason[wrong].tolist()])
        rules = self.config.rules
        expressions = np.stack([np.array(rules.same), np.array(rules.different)])
        values = pc.binary_join_element_wise(OVERRIDE, keys.take(pa.array(good)), "")
        return Holdings.of_pairs(
            np.concatenate([left[good], right[good]]),
            contiguous(pa.chunked_array([left_ids.take(pa.array(good)), right_ids.take(pa.array(good))], pa.string())),
            np.concatenate([expressions[number[good], left[good]], expressions[number[good], right[good]]]),
            contiguous(pa.chunked_array([values, values], pa.string())),
            unusable,
        )


def open_overrides(config: MergeConfig, access: Access) -> OverrideTable | None:
    """The table of overrides at its latest version; ``None`` if there is to be none.

    :raises lakemerge.DatasetsMissingError: there is no table.
    :raises lakemerge.MergeConfigError: it lacks columns.
    """
    if config.override_dataset is None:
        return None
    one = open_input(-1, config.override_dataset, access)
    if one.table is None or one.shape is None:
        raise DatasetsMissingError(
            f"there is no table of overrides at {one.dataset.url}. Nothing was changed. Create it, or leave overrides "
            "out of the configuration",
            dataset=one.name,
            url=one.dataset.url,
        )
    kinds = {column.name.lower(): column.type for column in one.shape.schema}
    lacking = [name for name in _COLUMNS if not pa.types.is_string(kinds.get(name, pa.null()))]
    lacking += [name for name in ("who", "why") if name in kinds and not pa.types.is_string(kinds[name])]
    if lacking:
        raise MergeConfigError(
            f"the table of overrides at {one.dataset.url} must have the STRING columns {', '.join(_COLUMNS)}, and may "
            f"have who, at and why; not as they must be: {', '.join(lacking)}",
            problems=tuple(lacking),
        )
    return OverrideTable(one, config)


def differences(state: State, now: Holdings) -> Holdings:
    """What rows hold now that held something else by what the state says."""
    found = pa.concat_tables([_nothing(), *state.all_overridden()])
    datasets, ids = ints(found, "a"), strings(found, "k")
    lists = held_lists(now.held, len(now))
    at = pc.index_in(key_texts(datasets, ids), value_set=now.texts)
    gone = at.is_null().to_numpy(zero_copy_only=False)
    before = _texts_of(strings(found, "held"))
    same = pc.fill_null(pc.equal(before, _texts_of(lists).take(at)), False).to_numpy(zero_copy_only=False)
    unchanged = pc.is_in(now.texts, value_set=key_texts(datasets[same], ids.filter(pa.array(same))))
    changed = now.where(~unchanged.to_numpy(zero_copy_only=False))
    return Holdings(
        np.concatenate([changed.datasets, datasets[gone]]),
        contiguous(pa.chunked_array([changed.ids, ids.filter(pa.array(gone))], pa.string())),
        changed.held,
        now.unusable,
    )


def with_holdings(state: State, rules: Rules, fresh: Fresh, changed: Holdings, *, everything: bool = False) -> Fresh:
    """Changed entities with what they hold because of overrides, and the entities for which just that changed.

    :param changed: what rows hold now for which it changed; all rows, if the run looks at ``everything``.
    """
    told = changed if everything else _all_of(state, fresh, changed)
    at = pc.index_in(told.texts, value_set=fresh.texts).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    live = np.append(~(fresh.deleted | fresh.dropped), False)
    inside = live[at[told.held.rows]] & (at[told.held.rows] >= 0)
    held = distinct(
        np.concatenate([fresh.held.rows, at[told.held.rows[inside]]]),
        np.concatenate([fresh.held.expressions, told.held.expressions[inside]]),
        contiguous(pa.chunked_array([fresh.held.values, told.held.values.filter(pa.array(inside))], pa.string())),
    )
    fresh = replace(fresh, held=held)
    if everything:
        return fresh
    others = changed.where(~pc.is_in(changed.texts, value_set=fresh.texts).to_numpy(zero_copy_only=False))
    return Fresh.together([fresh, _of_state(state, rules, others)])


def _all_of(state: State, fresh: Fresh, changed: Holdings) -> Holdings:
    """What changed rows hold, be it that the overrides changed or the rows."""
    rest = ~pc.is_in(fresh.texts, value_set=changed.texts).to_numpy(zero_copy_only=False)
    datasets, ids = fresh.datasets[rest], fresh.ids.filter(pa.array(rest))
    told = _remembered(state, datasets, ids)
    return Holdings(
        np.concatenate([changed.datasets, datasets]),
        contiguous(pa.chunked_array([changed.ids, ids], pa.string())),
        Held(
            np.concatenate([changed.held.rows, told.rows + len(changed)]),
            np.concatenate([changed.held.expressions, told.expressions]),
            contiguous(pa.chunked_array([changed.held.values, told.values], pa.string())),
        ),
    )


def _of_state(state: State, rules: Rules, changed: Holdings) -> Fresh:
    """Entities whose rows are as they were, with what they hold now."""
    found = state.entities(changed.datasets, changed.ids)
    found = found.filter(pc.invert(contiguous(found.column("deleted")))).combine_chunks()
    count = found.num_rows
    datasets, ids = ints(found, "dataset"), strings(found, "id")
    before = held_of(strings(found, "held"))
    own = ~np.isin(before.expressions, [*rules.same, *rules.different])
    at = pc.index_in(changed.texts, value_set=key_texts(datasets, ids))
    place = at.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)[changed.held.rows]
    inside = place >= 0
    no = np.zeros(count, dtype=np.bool_)
    return Fresh(
        datasets,
        ids,
        no,
        no,
        no,
        pa.nulls(count, pa.string()),
        np.zeros(count, dtype=np.int64),
        distinct(
            np.concatenate([before.rows[own], place[inside]]),
            np.concatenate([before.expressions[own], changed.held.expressions[inside]]),
            contiguous(
                pa.chunked_array(
                    [before.values.filter(pa.array(own)), changed.held.values.filter(pa.array(inside))], pa.string()
                )
            ),
        ),
    )


def _remembered(state: State, datasets: Ints, ids: pa.Array) -> Held:
    """What the state says that rows hold because of overrides. The row is a place among the given ones."""
    found = state.overridden(datasets, ids)
    told = held_of(strings(found, "held"))
    at = pc.index_in(key_texts(ints(found, "a"), strings(found, "k")), value_set=key_texts(datasets, ids))
    place = at.to_numpy(zero_copy_only=False).astype(np.int64)
    return Held(place[told.rows], told.expressions, told.values)


def _nothing() -> pa.Table:
    return pa.schema([SCHEMA.field(name) for name in ("k", "a", "held")]).empty_table()


def _texts_of(lists: pa.Array) -> pa.Array:
    """Lists of holdings as texts that are equal if the lists are."""
    inside = pc.list_flatten(lists)
    texts = key_texts(inside.field("expression").to_numpy(zero_copy_only=False).astype(np.int64), inside.field("value"))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), texts), "\0")


def _places(names: pa.Array, places: Mapping[str, int]) -> Ints:
    known = pa.array(list(places), pa.string())
    at = pc.index_in(names, value_set=known)
    offsets = pa.array(list(places.values()), pa.int64()).take(at)
    return offsets.fill_null(-1).to_numpy(zero_copy_only=False)
