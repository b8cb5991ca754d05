"""Compares datasets and rules with those of the last run: which changes are allowed, and which need a full run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakemerge.errors import (
    DatasetsMissingError,
    DatasetsRemovedError,
    DatasetsReorderedError,
    FullRunNeededError,
    MergeConfigError,
)
from lakemerge.merge_source.columns import found_in
from lakemerge.merge_source.combine import OutputShape
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.datasets import Dataset
from lakemerge.merge_source.inputs import Input, Shape, shape_of
from lakemerge.merge_source.state import DatasetState, Meta
from lakemerge.merge_source.types import Property, properties_of
from lakemerge.schema.evolution import loosened
from lakemerge.schema.schema import from_delta_json, to_delta_json

__all__ = ["Succession", "check_missing", "dataset_states", "shape_taken_up", "succession", "taken_up"]


@dataclass(frozen=True, slots=True)
class Succession:
    """What a run takes over from the one before."""

    offsets: tuple[int, ...]
    """For each old offset of a dataset its new one; -1 if it was removed."""
    everything: bool
    """Whether every entity has to be looked at."""


def succession(meta: Meta, config: MergeConfig, inputs: Sequence[Input], *, full: bool) -> Succession:
    """Compare with the last run.

    :raises lakemerge.DatasetsReorderedError: known datasets are in another order, or new ones come before them, and the
        run is not a full one.
    :raises lakemerge.DatasetsRemovedError: a dataset is gone, and the run is not a full one.
    :raises lakemerge.FullRunNeededError: an input was restored, and the run is not a full one.
    """
    _check_once(inputs)
    if not meta.run:
        return Succession((), everything=True)
    offsets = _offsets(meta, config, inputs, full=full)
    if not full:
        _check_restored(meta, inputs)
    before = taken_up(meta)
    return Succession(offsets, full or _means_another(before, config) or _shapes_changed(meta, before, config, inputs))


def taken_up(meta: Meta, config: MergeConfig | None = None) -> MergeConfig:
    """A configuration over the columns that the datasets had at the last run; by default that run's."""
    schemas = [from_delta_json(one.schema) if one.schema else None for one in meta.datasets]
    known = MergeConfig.from_json(meta.config) if config is None else config
    return found_in(known, schemas) if len(schemas) == len(known.datasets) else known


def shape_taken_up(meta: Meta) -> OutputShape:
    """The properties of the output in the last run."""
    config = MergeConfig.from_json(meta.config)
    shapes = [_shape(known, dataset) for dataset, known in zip(config.inputs, meta.datasets, strict=False)]
    return OutputShape.of(shapes, config)


def check_missing(meta: Meta, config: MergeConfig, inputs: Sequence[Input]) -> None:
    """Raise :class:`DatasetsMissingError` if a dataset that was taken up has no table now."""
    missing = [one for one in inputs if one.table is None]
    if not meta.run or not missing:
        return
    known = list(zip(MergeConfig.from_json(meta.config).inputs, meta.datasets, strict=True))
    for one in missing:
        for dataset, state in known:
            is_same = dataset.place == one.dataset.place or dataset.name == one.name
            if is_same and state.table_id is not None:
                raise DatasetsMissingError(
                    f"there is no table of dataset {one.name!r} at {one.dataset.url}; the last run of the merge source "
                    f"read its version {state.version}. Nothing was changed. Put the table back, or correct its path; "
                    "to give the dataset up, leave it out of the configuration and run with full=True",
                    dataset=one.name,
                    url=one.dataset.url,
                )


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
    if not full and (kept != sorted(kept) or (moved and not lost)):
        raise DatasetsReorderedError(
            f"the datasets were {', '.join(names)} and are {', '.join(config.names)}. Ids and the order of members "
            "rest on their order: keep it, and put new ones at the end, or run with full=True, which gives new ids",
            before=tuple(names),
            now=config.names,
        )
    if lost and not full:
        places = {one.dataset.place: one for one in inputs}
        anew = [offset for offset in lost if MergeConfig.from_json(meta.config).inputs[offset].place in places]
        left = [offset for offset in lost if offset not in anew]
        told = [
            f"dataset(s) {', '.join(repr(names[offset]) for offset in offsets)} {what}"
            for offsets, what in ((left, "left the configuration"), (anew, "have a table that was recreated"))
            if offsets
        ]
        raise DatasetsRemovedError(
            f"{', and '.join(told)}. Run with full=True to accept that",
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
    same = ("identity", "strategy", "type_conflicts", "max_merged", "oversize", "single_offsets", "survivors")
    if any(getattr(before, name) != getattr(now, name) for name in same):
        return True
    if now.overrides is not None and (before.names, before.aliases) != (now.names, now.aliases):
        return True  # overrides name datasets
    told = [[(_lower(one.id_columns), _lower(one.deleted)) for one in config.inputs] for config in (before, now)]
    return told[0] != told[1]


def _lower(names: Sequence[str] | str | None) -> object:
    """Names of columns without regard to case."""
    if names is None or isinstance(names, str):
        return names and names.lower()
    return tuple(name.lower() for name in names)


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
    present = properties_of(new, as_text=as_text)
    pairs = [(known.get(one.name.lower()), one) for one in present]
    if any(set(one.columns) - set(other.columns) for one, other in _both(known, present)):
        return True  # a dataset lost a column
    return any(one is not None and _told(one) != _told(other) for one, other in pairs)


def _both(known: Mapping[str, Property], present: Sequence[Property]) -> Iterator[tuple[Property, Property]]:
    """Each property as it was, and as it is."""
    now = {one.name.lower(): one for one in present}
    for name, one in known.items():
        yield one, now.get(name, Property(one.name, one.type))


def _shape(one: DatasetState, dataset: Dataset) -> Shape | None:
    return shape_of(dataset, from_delta_json(one.schema), one.key) if one.schema else None


def _types_differ(before: pa.Schema, now: pa.Schema) -> bool:
    both = set(before.names) & set(now.names)
    return any(loosened(before.field(name).type) != loosened(now.field(name).type) for name in both)


def _told(one: Property) -> tuple[bool, bool, bool]:
    return bool(one.lists), 0 < len(one.lists) < len(one.columns), one.as_text
