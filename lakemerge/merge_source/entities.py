"""Entities of the output in Sesam's form: dictionaries without nulls, in which a single value is no list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.combine import FIXED, OutputShape
from lakemerge.merge_source.ids import key_texts
from lakemerge.merge_source.known import ints, strings
from lakemerge.merge_source.lists import contiguous
from lakemerge.merge_source.state import State

__all__ = ["entities_of"]


def entities_of(rows: pa.Table, shape: OutputShape, state: State) -> Iterator[dict[str, Any]]:
    """The rows, in order of ``_updated``."""
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[("_updated", "ascending")])).combine_chunks()
    own = [name for name in ordered.column_names if name not in FIXED.names]
    columns = {name: _values(contiguous(ordered.column(name))) for name in [*FIXED.names, *own]}
    singles = _singles(ordered, shape, state)
    for place in range(ordered.num_rows):
        entity: dict[str, Any] = {"_id": columns["_id"][place]}
        entity |= {name: True for name in ("_deleted", "$replaced") if columns[name][place]}
        if columns["$ids"][place] is not None:
            entity["$ids"] = columns["$ids"][place]
        entity["_updated"] = columns["_updated"][place]
        for name in own:
            value = columns[name][place]
            if value is None:
                continue
            if name == "$merged" and shape.strategy == "list":
                entity[name] = _members(value, columns["_members"][place], shape)
            elif len(value) == 1 and _is_single(name, shape, singles.get(place, ())):
                if value[0] is not None:
                    entity[name] = value[0]
            else:
                entity[name] = value
        yield entity


def _is_single(name: str, shape: OutputShape, singles: tuple[str, ...]) -> bool:
    """Whether a list of one in the table is a single value of the entity."""
    known = next((one for one in shape.properties if one.name.lower() == name.lower()), None)
    if shape.strategy == "compact" or known is None or not known.lists:
        return True
    return len(known.lists) < len(known.columns) and known.name in singles


def _singles(rows: pa.Table, shape: OutputShape, state: State) -> dict[int, tuple[str, ...]]:
    """Place of the row -> the properties that are single values, where only the state says so."""
    told = [one.name for one in shape.properties if one.lists and len(one.lists) < len(one.columns)]
    there = {name.lower() for name in rows.column_names}
    told = [name for name in told if name.lower() in there]
    if shape.strategy != "default" or not told:
        return {}
    members = strings(rows, "_members")
    places = np.flatnonzero(members.is_valid().to_numpy(zero_copy_only=False))
    firsts = pc.list_element(members.take(pa.array(places)), 0)
    datasets = firsts.field("dataset").to_numpy(zero_copy_only=False).astype(np.int64)
    ids = contiguous(firsts.field("id"))
    found = state.entities(datasets, ids)
    own = key_texts(ints(found, "dataset"), strings(found, "id"))
    lists = strings(found, "singles").take(pc.index_in(key_texts(datasets, ids), value_set=own)).to_pylist()
    return {place: tuple(names) for place, names in zip(places.tolist(), lists, strict=True) if names}


def _members(members: list[dict[str, Any]], datasets: list[dict[str, Any]], shape: OutputShape) -> list[Any]:
    return [_member(row, who["dataset"], shape) for row, who in zip(members, datasets, strict=True)]


def _member(row: Mapping[str, Any], dataset: int, shape: OutputShape) -> dict[str, Any]:
    """A member as it is: a property that is no list in its dataset is a single value."""
    known = {one.name: one for one in shape.properties}
    told = {}
    for name, value in row.items():
        one = known.get(name)
        told[name] = value[0] if one is not None and one.lists and dataset not in one.lists else value
    return told


def _values(column: pa.Array) -> list[Any]:
    convert = _converter(column.type)
    return [None if value is None else convert(value) for value in column.to_pylist()]


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Converts pyarrow's Python values: structs lose their nulls, and maps become dictionaries."""
    if pa.types.is_struct(kind):
        inner = {field.name: _converter(field.type) for field in kind}
        return lambda value: {name: inner[name](part) for name, part in value.items() if part is not None}
    if pa.types.is_list(kind):
        element = _converter(kind.value_type)
        return lambda value: [None if part is None else element(part) for part in value]
    if pa.types.is_map(kind):
        item = _converter(kind.item_type)
        return lambda value: {key: None if part is None else item(part) for key, part in value}
    return lambda value: value
