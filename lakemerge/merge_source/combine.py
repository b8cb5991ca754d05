"""Combines the rows of clusters' members into rows of the output, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.clusters import Clusters
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.content_hash import hash_rows
from lakemerge.merge_source.inputs import Shape
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, lengths_of, list_array, run_starts, spread
from lakemerge.merge_source.survivorship import Column, Survivors, needed_columns, survived, survivors_of, type_of
from lakemerge.merge_source.types import Property, properties_of
from lakemerge.merge_source.value_texts import plain_texts
from lakemerge.schema.casts import safe_cast
from mergers.builtin.functions.equal import equality_codes

__all__ = [
    "FIXED",
    "MEMBER",
    "STABLE",
    "Combined",
    "DatasetRows",
    "OutputShape",
    "chosen",
    "combine",
    "members_of",
    "own_values",
]

MEMBER = pa.struct([("dataset", pa.int32()), ("id", pa.string())])
FIXED = pa.schema(
    [
        pa.field("_id", pa.string(), nullable=False),
        ("$ids", pa.list_(pa.field("element", pa.string()))),
        ("_deleted", pa.bool_()),
        ("$replaced", pa.bool_()),
        ("_updated", pa.int64()),
        ("_members", pa.list_(pa.field("element", MEMBER))),
    ]
)
"""Columns of every output, before the properties."""
STABLE = pa.schema([("$replaced_by", pa.string()), ("$split_into", pa.list_(pa.field("element", pa.string())))])
"""Further columns of an output whose ids are stable."""


@dataclass(frozen=True, slots=True)
class OutputShape:
    """The properties of the output."""

    strategy: str
    properties: tuple[Property, ...]
    has_ids: bool
    """Whether some dataset has ``$ids`` of its own."""
    stable: bool = False
    """Whether ids are stable."""
    survivors: Survivors = field(default_factory=dict)
    """The rules of columns that hold one value."""

    @staticmethod
    def of(shapes: Sequence[Shape | None], config: MergeConfig) -> OutputShape:
        """The shape for datasets. Raises :class:`lakemerge.SchemaError` if columns of one name have no common type."""
        has_ids = any(shape is not None and shape.ids is not None for shape in shapes)
        properties = tuple(properties_of(shapes, as_text=config.type_conflicts == "string"))
        complete = bool(shapes) and all(shape is not None for shape in shapes)
        survivors = survivors_of(config.survivors, properties, complete=complete) if config.survivors else {}
        return OutputShape(config.strategy, properties, has_ids, config.identity == "stable", survivors)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*FIXED, *(STABLE if self.stable else ()), *self.fields])

    @property
    def fields(self) -> list[pa.Field]:
        if self.strategy == "list":
            return [pa.field("$merged", _list_of(self.member_type))]
        return [pa.field(one.name, self.type_of(one)) for one in self.properties]

    def type_of(self, one: Property) -> pa.DataType:
        """The type of a property's column."""
        rule = self.survivors.get(one.name.lower())
        return _list_of(one.type) if rule is None else type_of(one, rule)

    @property
    def member_type(self) -> pa.DataType:
        """The type of a member as it is. A property that is a list in some dataset is a list here."""
        own = [pa.field("_id", pa.string())]
        if self.has_ids:
            own.append(pa.field("$ids", _list_of(pa.string())))
        return pa.struct(
            [*own, *(pa.field(one.name, _list_of(one.type) if one.lists else one.type) for one in self.properties)]
        )


@dataclass(frozen=True, slots=True)
class DatasetRows:
    """Rows of one dataset, and the members that they belong to."""

    dataset: int
    places: Ints
    """The places of these members among all members of the clusters."""
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Combined:
    """One row for each cluster."""

    rows: pa.Table
    """All columns but ``_updated``."""
    hashes: Ints
    """Hashes of the entities' content, without their members."""
    singles: pa.Array
    """For each row, the properties that are a single value though some dataset has them as lists."""


def combine(clusters: Clusters, parts: Sequence[DatasetRows], shape: OutputShape) -> Combined:
    """The rows of clusters, in their order. A member without a row adds only its id."""
    deleted = pa.array(clusters.deleted)
    ids = _own_ids(clusters, parts)
    fixed = {
        "_id": clusters.output_ids,
        "$ids": ids,
        "_deleted": deleted,
        "$replaced": pa.array(np.zeros(len(clusters), dtype=np.bool_)),
        "_members": members_of(clusters.offsets, clusters.datasets, clusters.ids),
    }
    hashed = {"_id": clusters.output_ids, "$ids": ids, "_deleted": _if_true(deleted)}
    if shape.strategy == "list":
        own: dict[str, pa.Array] = {"$merged": _as_they_are(clusters, parts, shape)}
        singles: list[tuple[str, Bools]] = []
    else:
        own = dict.fromkeys(one.name for one in shape.properties)
        singles = []
        for one in shape.properties:
            if one.name.lower() in shape.survivors:
                own[one.name] = chosen(clusters, parts, one, shape)[0]
            else:
                own[one.name], single = _joined(clusters, parts, one, compact=shape.strategy == "compact")
                singles.append((one.name, single))
    if shape.stable:
        own |= {"$split_into": clusters.split_into}
    # Whether a value is single or a list of one is part of the entity's content.
    hashed |= own | {f"{name}\0single": _if_true(pa.array(single)) for name, single in singles}
    told = {one.name for one in shape.properties if one.lists and len(one.lists) < len(one.columns)}
    return Combined(
        pa.table(fixed | own),
        hash_rows(pa.table(hashed)).view(np.int64),
        _names_where([(name, single) for name, single in singles if name in told], len(clusters)),
    )


def chosen(
    clusters: Clusters, parts: Sequence[DatasetRows], one: Property, shape: OutputShape
) -> tuple[pa.Array, Ints]:
    """The values of a column that has a rule, and the members that gave them; -1 where no single one did."""
    rule = shape.survivors[one.name.lower()]
    names = needed_columns(one, rule, shape.properties)
    columns = {
        other.name.lower(): own_values(parts, other) for other in shape.properties if other.name.lower() in names
    }
    count = len(clusters)
    return survived(one, rule, columns, clusters.of_members, clusters.datasets, count, shape.properties)


def own_values(parts: Sequence[DatasetRows], one: Property) -> Column:
    """The values of a property that members have, without nulls and empty lists."""
    kind = _list_of(one.type) if one.lists else one.type
    places, values = [], []
    for part in parts:
        if part.dataset not in one.columns:
            continue
        column = contiguous(part.rows.column(one.columns[part.dataset]))
        there = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_list(column.type):
            there &= lengths_of(column) > 0
        column = column.filter(pa.array(there))
        places.append(part.places[there])
        values.append(_as_lists(column, one) if one.lists else _cast(column, one))
    at, joined = _in_order(places, values, kind)
    return Column(at, joined)


def members_of(offsets: Ints, datasets: Ints, ids: pa.Array) -> pa.Array:
    """Clusters' members as lists."""
    members = pa.StructArray.from_arrays([pa.array(datasets.astype(np.int32)), contiguous(ids)], fields=list(MEMBER))
    return list_array(offsets, members)


def _own_ids(clusters: Clusters, parts: Sequence[DatasetRows]) -> pa.Array:
    """For each cluster, the ids of its members or, if they have ``$ids``, those ids; each once."""
    own = np.ones(len(clusters.datasets), dtype=np.bool_)
    places, texts = [], []
    for part in parts:
        name = _ids_column(part)
        if name is None:
            continue
        given = contiguous(part.rows.column(name))
        there = given.is_valid().to_numpy(zero_copy_only=False)
        own[part.places[there]] = False
        rows, values = _flattened(given)
        places.append(part.places[rows])
        texts.append(plain_texts(values))
    places.append(np.flatnonzero(own))
    texts.append(clusters.ids.filter(pa.array(own)))
    at, values = _in_order(places, texts, pa.string())
    group = clusters.of_members[at]
    keep = _each_once(group, values)
    kept = values.filter(pa.array(keep))
    return list_array(_offsets(group[keep], len(clusters)), kept)


def _ids_column(part: DatasetRows) -> str | None:
    return next((name for name in part.rows.column_names if name.lower() == "$ids"), None)


def _joined(
    clusters: Clusters, parts: Sequence[DatasetRows], one: Property, *, compact: bool
) -> tuple[pa.Array, Bools]:
    """The values of a property for each cluster (null if no member has any), and whether they are one single value."""
    count = len(clusters)
    places, values = [], []
    contributions = np.zeros(count, dtype=np.int64)
    scalars = np.zeros(count, dtype=np.int64)
    for part in parts:
        if part.dataset not in one.columns:
            continue
        column = contiguous(part.rows.column(one.columns[part.dataset]))
        givers = clusters.of_members[part.places[column.is_valid().to_numpy(zero_copy_only=False)]]
        added = np.bincount(givers, minlength=count)
        contributions += added
        if part.dataset not in one.lists:
            scalars += added
        rows, elements = _flattened(column)
        places.append(part.places[rows])
        values.append(_cast(elements, one))
    at, elements = _in_order(places, values, one.type)
    group = clusters.of_members[at]
    present = contributions > 0
    if compact:
        keep = _each_once(group, elements)
        group, elements = group[keep], elements.filter(pa.array(keep))
        filled = np.bincount(group[elements.is_valid().to_numpy(zero_copy_only=False)], minlength=count)
        many = np.bincount(group, minlength=count)
        # An empty list is dropped, and so is a single null.
        present = (many > 1) | (filled > 0)
        lone = ~present[group]
        group, elements = group[~lone], elements.filter(pa.array(~lone))
        return list_array(_offsets(group, count), elements, present), present & (many == 1)
    return list_array(_offsets(group, count), elements, present), (contributions == 1) & (scalars == 1)


def _as_they_are(clusters: Clusters, parts: Sequence[DatasetRows], shape: OutputShape) -> pa.Array:
    """The members as structs."""
    kind = shape.member_type
    places: list[Ints] = []
    structs: list[pa.Array] = []
    bare = np.ones(len(clusters.datasets), dtype=np.bool_)
    for part in parts:
        bare[part.places] = False
        places.append(part.places)
        structs.append(_structs(clusters.ids.take(pa.array(part.places)), part, shape))
    lacking = np.flatnonzero(bare)
    places.append(lacking)
    nothing = DatasetRows(-1, lacking, pa.table({}))
    structs.append(_structs(clusters.ids.take(pa.array(lacking)), nothing, shape))
    _, members = _in_order(places, structs, kind)
    return list_array(clusters.offsets, members)


def _structs(ids: pa.Array, part: DatasetRows, shape: OutputShape) -> pa.Array:
    kind, count = shape.member_type, len(part.places)
    children = [contiguous(ids)]
    if shape.has_ids:
        name = _ids_column(part)
        given = pa.nulls(count, _list_of(pa.string())) if name is None else part.rows.column(name)
        children.append(_as_lists(contiguous(given), Property("$ids", pa.string(), as_text=True)))
    for one in shape.properties:
        wanted = kind.field(kind.get_field_index(one.name)).type
        if part.dataset not in one.columns:
            children.append(pa.nulls(count, wanted))
            continue
        column = contiguous(part.rows.column(one.columns[part.dataset]))
        children.append(_as_lists(column, one) if one.lists else _cast(column, one))
    return pa.StructArray.from_arrays(children, fields=list(kind))


def _as_lists(column: pa.Array, one: Property) -> pa.Array:
    there = column.is_valid().to_numpy(zero_copy_only=False)
    counts = lengths_of(column) if pa.types.is_list(column.type) else there.astype(np.int64)
    _, elements = _flattened(column)
    return list_array(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), _cast(elements, one), there)


def _flattened(column: pa.Array) -> tuple[Ints, pa.Array]:
    """The elements of lists, or the values that are not null, each with its row."""
    if pa.types.is_list(column.type):
        return spread(lengths_of(column))[0], contiguous(pc.list_flatten(column))
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(there), column.drop_null()


def _cast(values: pa.Array, one: Property) -> pa.Array:
    if one.as_text:
        return plain_texts(values)
    target = pa.schema([pa.field("value", one.type)])
    return safe_cast(pa.record_batch([values], names=["value"]), target).column(0)


def _in_order(places: Sequence[Ints], values: Sequence[pa.Array], kind: pa.DataType) -> tuple[Ints, pa.Array]:
    """The values of several parts, in the order of their members."""
    at = np.concatenate([np.empty(0, dtype=np.int64), *places])
    joined = contiguous(pa.chunked_array(list(values), kind))
    if not len(at) or bool((at[1:] >= at[:-1]).all()):
        return at, joined
    order = np.argsort(at, kind="stable")
    return at[order], joined.take(pa.array(order))


def _offsets(group: Ints, count: int) -> Ints:
    counts = np.bincount(group, minlength=count)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _each_once(group: Ints, values: pa.Array) -> Bools:
    """Which values are the first of their kind in their group."""
    several = np.flatnonzero(np.bincount(group)[group] > 1)  # most groups have one value, which needs no comparison
    group, codes = group[several], equality_codes(values.take(pa.array(several)))
    order = np.lexsort((codes, group))
    keep = np.ones(len(values), dtype=np.bool_)
    keep[several] = False
    keep[several[order[run_starts(group[order], codes[order])]]] = True
    return keep


def _if_true(flags: pa.Array) -> pa.Array:
    return pc.if_else(flags, flags, pa.scalar(None, pa.bool_()))


def _names_where(singles: Sequence[tuple[str, Bools]], count: int) -> pa.Array:
    names = pa.array([name for name, _ in singles], pa.string())
    flags = np.stack([single for _, single in singles], axis=1) if singles else np.zeros((count, 0), dtype=np.bool_)
    row, name = np.nonzero(flags)
    return list_array(_offsets(row, count), names.take(pa.array(name)), np.asarray(flags.any(axis=1)))


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))
