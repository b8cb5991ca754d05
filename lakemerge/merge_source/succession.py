"""Compares datasets and rules with those of the last run: which changes are allowed, and which need a full run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakemerge.errors import DatasetsRemovedError, DatasetsReorderedError, FullRunNeededError, MergeConfigError
from lakemerge.merge_source.config import Dataset, MergeConfig
from lakemerge.merge_source.inputs import Input, Shape, shape_of
from lakemerge.merge_source.state import DatasetState, Meta
from lakemerge.merge_source.types import Property, loosened, properties_of
from lakemerge.schema.schema import from_delta_json, to_delta_json

__all__ = ["Succession", "dataset_states", "succession"]


@dataclass(frozen=True, slots=True)
class Succession:
    """What a run takes over from the one before."""

    offsets: tuple[int, ...]
    """For each old offset of a dataset its new one; -1 if it was removed."""
    everything: bool
    """Whether every entity has to be looked at."""


def succession(meta: Meta, config: MergeConfig, inputs: Sequence[Input], *, full: bool) -> Succession:
    """Compare with the last run.

    :raises lakemerge.DatasetsReorderedError: known datasets are in another order, or new ones come before them.
    :raises lakemerge.DatasetsRemovedError: a dataset is gone, and the run is not a full one.
    :raises lakemerge.FullRunNeededError: an input was restored, and the run is not a full one.
    """
    _check_once(inputs)
    if not meta.run:
        return Succession((), everything=True)
    offsets = _offsets(meta, config, inputs, full=full)
    if not full:
        _check_restored(meta, inputs)
    before = MergeConfig.from_json(meta.config)
    return Succession(offsets, full or _means_another(before, config) or _shapes_changed(meta, before, config, inputs))


def dataset_states(inputs: Sequence[Input]) -> tuple[DatasetState, ...]:
    return tuple(
        DatasetState(
            table_id=one.table_id,
            version=one.version,
            restore_epoch=one.restore_epoch,
            schema="" if one.shape is None else to_delta_json(one.shape.schema),
            key=one.key,
        )
        for one in inputs
    )


def _check_once(inputs: Sequence[Input]) -> None:
    names: dict[str, str] = {}
    for one in inputs:
        if one.table_id is None:
            continue
        if one.table_id in names:
            raise MergeConfigError(
                f"datasets {names[one.table_id]!r} and {one.name!r} are the same table; a dataset appears once"
            )
        names[one.table_id] = one.name


def _offsets(meta: Meta, config: MergeConfig, inputs: Sequence[Input], *, full: bool) -> tuple[int, ...]:
    now = [one.table_id for one in inputs]
    before = [one.table_id for one in meta.datasets]
    names = list(MergeConfig.from_json(meta.config).names)
    found = [now.index(table) if table is not None and table in now else None for table in before]
    kept = [place for place in found if place is not None]
    lost = [offset for offset, table in enumerate(before) if table is not None and found[offset] is None]
    moved = [offset for offset, place in enumerate(found) if place is not None and place != offset]
    if kept != sorted(kept) or (moved and not lost):
        raise DatasetsReorderedError(
            f"the datasets were {', '.join(names)} and are {', '.join(config.names)}: their order must stay, and new "
            "ones come at the end, since ids and the order of members rest on it",
            before=tuple(names),
            now=config.names,
        )
    if lost and not full:
        left = ", ".join(repr(names[offset]) for offset in lost)
        raise DatasetsRemovedError(
            f"dataset(s) {left} left the configuration, or their tables were created anew. Run with full=True to take "
            "that up",
            datasets=tuple(names[offset] for offset in lost),
        )
    # If a table was created anew in the same place, the entities of that place are kept.
    in_place = {offset for offset in lost if not moved and offset < len(now) and now[offset] not in before}
    return tuple(
        offset if place is None and (offset in in_place or before[offset] is None) else -1 if place is None else place
        for offset, place in enumerate(found)
    )


def _check_restored(meta: Meta, inputs: Sequence[Input]) -> None:
    for one, before in zip(inputs, meta.datasets, strict=False):
        if one.table_id == before.table_id and one.restore_epoch != before.restore_epoch:
            raise FullRunNeededError(
                f"dataset {one.name!r} was restored to an earlier version since the last run. Run with full=True",
                dataset=one.name,
            )


def _means_another(before: MergeConfig, now: MergeConfig) -> bool:
    """Whether the configurations give different entities."""
    if before.rules.text != now.rules.text or len(before.inputs) != len(now.inputs):
        return True
    if any(getattr(before, name) != getattr(now, name) for name in ("identity", "strategy", "type_conflicts")):
        return True
    told = [[(one.id_columns, one.deleted) for one in config.inputs] for config in (before, now)]
    return told[0] != told[1]


def _shapes_changed(meta: Meta, before: MergeConfig, config: MergeConfig, inputs: Sequence[Input]) -> bool:
    """Whether columns changed in a way that may change the output of unchanged rows."""
    old = [_shape(one, dataset) for one, dataset in zip(meta.datasets, before.inputs, strict=True)]
    new = [one.shape for one in inputs]
    if any((one is None) != (other is None) for one, other in zip(old, new, strict=True)):
        return True
    for one, other in zip(old, new, strict=True):
        if one is not None and other is not None and _types_differ(one.schema, other.schema):
            return True
    as_text = config.type_conflicts == "string"
    known = {one.name.lower(): one for one in properties_of(old, as_text=as_text)}
    pairs = [(known.get(one.name.lower()), one) for one in properties_of(new, as_text=as_text)]
    return any(one is not None and _told(one) != _told(other) for one, other in pairs)


def _shape(one: DatasetState, dataset: Dataset) -> Shape | None:
    return shape_of(dataset, from_delta_json(one.schema), one.key) if one.schema else None


def _types_differ(before: pa.Schema, now: pa.Schema) -> bool:
    both = set(before.names) & set(now.names)
    return any(loosened(before.field(name).type) != loosened(now.field(name).type) for name in both)


def _told(one: Property) -> tuple[bool, bool, bool]:
    return bool(one.lists), 0 < len(one.lists) < len(one.columns), one.as_text
