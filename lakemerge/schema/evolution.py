"""How a table's schema may change while its files stay: pure functions from schema to schema.

Files written under an earlier schema stay readable under each schema that these functions make. Columns and fields of
structs are added (they are nullable, and null in older files), may become nullable, may get comments and wider types,
and columns may change places. Readers find columns and fields by name.
Source: docs/table-format.md, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lakemerge.errors import InputError, SchemaError
from lakemerge.schema.ddl import parse_columns, parse_path
from lakemerge.schema.lengths import length_of
from lakemerge.schema.limits import brought_name_problem, leaf_count
from lakemerge.schema.schema import check_names, needs_timestamp_ntz, to_arrow_schema
from lakemerge.schema.widening import check_wider, is_wider, with_type_change
from mergers.type_names import type_name
from mergers.wording import argument

__all__ = [
    "carries",
    "check_columns",
    "common_type",
    "loosened",
    "new_columns",
    "nullable_throughout",
    "only_fields_of",
    "with_columns",
    "with_columns_of_frame",
    "with_comments",
    "with_names",
    "with_nullable",
    "with_order",
    "with_schema",
    "with_types",
    "without_columns",
]

_Path = Sequence[str]


def with_columns(schema: pa.Schema, columns: str | pa.Schema) -> pa.Schema:
    """The schema with new nullable columns at its end, or new nullable fields at the end of structs. A new field is
    given by a dotted name (``address.zip``), or by an existing struct column with further fields. Raises
    :class:`SchemaError`."""
    if isinstance(columns, str):
        added = [(path, to_arrow_schema(pa.schema([field])).field(0)) for path, field in parse_columns(columns)]
    else:
        added = [((), field) for field in to_arrow_schema(columns)]
    required = [field.name for _, field in added if not field.nullable]
    if required:
        raise SchemaError(
            f"added columns must be nullable, since earlier rows have no value for {', '.join(required)}: leave out "
            "NOT NULL"
        )
    grown = _root(schema)
    for path, field in added:
        grown = _edited(grown, path, partial(_with_field, field=field))
    return _checked(pa.schema(list(grown.type)), schema)


def with_columns_of_frame(
    schema: pa.Schema, frame: pa.Schema, *, kind_column: str | None, max_columns: int
) -> pa.Schema:
    """The schema with the columns and fields that only a frame has, as nullable ones.

    Columns and fields that both have stay as in the table. Whether the frame fits is checked later
    (:func:`lakemerge.write.start.plan_frame`). Raises :class:`SchemaError` for names and types that no table has.

    :param max_columns: with more columns of Parquet than this (:func:`leaf_count`) no table grows.
    """
    kind = None if kind_column is None else kind_column.lower()
    given = pa.struct([field for field in frame if field.name.lower() != kind])
    grown = pa.schema(list(_union(pa.struct(list(schema)), given, _fresh)))
    check_columns(schema, grown, max_columns)
    there = {name.lower() for name in schema.names}
    brought = [field.name for field in given if field.name.lower() not in there]
    if problems := [problem for problem in map(brought_name_problem, brought) if problem is not None]:
        raise SchemaError("the schema cannot be used: " + "; ".join(problems), problems=tuple(problems))
    return _checked(grown, schema)


def check_columns(before: pa.Schema, grown: pa.Schema, max_columns: int) -> None:
    """Raise :class:`SchemaError` for a schema that was grown by a merge of schemas beyond a number of columns."""
    leaves = leaf_count(grown)
    if leaves > max_columns and leaves > leaf_count(before):
        raise SchemaError(
            f"the table would have {leaves} columns (fields of structs are counted, too), and a merge of schemas makes "
            f"at most {max_columns}: leave columns out, add them by table.alter, or raise Settings.max_columns",
            columns=leaves,
        )


def with_schema(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The schema with the columns and fields that only another schema has. If the two disagree in a column that both
    have, :func:`carries` is false for the result and the other schema."""
    return pa.schema(list(_union(pa.struct(list(schema)), pa.struct(list(other)), lambda field: field)))


def common_type(kind: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both: the wider of the two. A struct gets the fields of both. ``None`` if
    there is no such type. Both must be :func:`nullable_throughout`."""
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = list(kind)
        places = {field.name.lower(): place for place, field in enumerate(fields)}
        for field in other:
            place = places.get(field.name.lower())
            if place is None:
                fields.append(field)
                continue
            both = common_type(fields[place].type, field.type)
            if both is None or fields[place].name != field.name:
                return None
            fields[place] = fields[place].with_type(both)
        return pa.struct(fields)
    if pa.types.is_list(kind) and pa.types.is_list(other):
        both = common_type(kind.value_type, other.value_type)
        return None if both is None else pa.list_(kind.value_field.with_type(both))
    if pa.types.is_map(kind) and pa.types.is_map(other) and kind.key_type == other.key_type:
        both = common_type(kind.item_type, other.item_type)
        return None if both is None else pa.map_(kind.key_type, kind.item_field.with_type(both))
    if kind == other or is_wider(other, kind):
        return kind
    return other if is_wider(kind, other) else None


def only_fields_of(kind: pa.DataType, part: pa.DataType) -> pa.DataType:
    """``kind`` without the fields of structs that ``part`` lacks, at every level."""
    if pa.types.is_struct(kind) and pa.types.is_struct(part):
        there = {field.name.lower(): field.type for field in part}
        kept = [field for field in kind if field.name.lower() in there]
        return pa.struct([field.with_type(only_fields_of(field.type, there[field.name.lower()])) for field in kept])
    if pa.types.is_list(kind) and pa.types.is_list(part):
        return pa.list_(kind.value_field.with_type(only_fields_of(kind.value_type, part.value_type)))
    if pa.types.is_map(kind) and pa.types.is_map(part):
        return pa.map_(kind.key_type, kind.item_field.with_type(only_fields_of(kind.item_type, part.item_type)))
    return kind


def nullable_throughout(field: pa.Field) -> pa.Field:
    """The field with null allowed in it and at every level within it."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([nullable_throughout(child) for child in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(nullable_throughout(kind.value_field))
    elif pa.types.is_map(kind):
        key = nullable_throughout(kind.key_field).with_nullable(False)
        kind = pa.map_(key, nullable_throughout(kind.item_field))
    return field.with_type(kind).with_nullable(True)


def with_comments(schema: pa.Schema, comments: Mapping[str, str | None]) -> pa.Schema:
    """The schema with comments on columns or fields (dotted names). ``None`` removes one. Raises
    :class:`SchemaError`."""
    root = _root(schema)
    for name, comment in comments.items():
        if comment is not None and not isinstance(comment, str):
            raise SchemaError(f"the comment of column {name!r} must be a string, not {comment!r}")
        root = _edited(root, _path(schema, name), partial(_with_comment, comment=comment))
    return pa.schema(list(root.type))


def with_nullable(schema: pa.Schema, columns: Sequence[str], key: Sequence[str]) -> pa.Schema:
    """The schema with columns or fields (dotted names) made nullable. Raises :class:`SchemaError`."""
    root = _root(schema)
    for name in _names(columns, "nullable"):
        path = _path(schema, name)
        if path[0].lower() in {column.lower() for column in key}:
            raise SchemaError(f"key column {path[0]!r} cannot become nullable")
        root = _edited(root, path, lambda field: field.with_nullable(True))
    return pa.schema(list(root.type))


def with_types(schema: pa.Schema, types: Mapping[str, str | pa.DataType], key: Sequence[str]) -> pa.Schema:
    """The schema with wider types, given as DDL or Arrow types, for columns, fields, elements of lists or values of
    maps (dotted names). Raises :class:`SchemaError`."""
    root = _root(schema)
    for name, wanted in types.items():
        path = _path(schema, name)
        if path[0].lower() in {column.lower() for column in key}:
            raise SchemaError(
                f"key column {path[0]!r} cannot get another type: its rows would be in other buckets. Make a table "
                "with that type, and upsert the rows"
            )
        depth = _depth_of_field(root.type, path)
        edit = partial(_widened, outer=path[:depth], inside=path[depth:], to=_type(name, wanted))
        root = _edited(root, path[:depth], edit)
    return pa.schema(list(root.type))


def with_names(schema: pa.Schema, names: Mapping[str, str]) -> tuple[pa.Schema, dict[str, str]]:
    """The schema with other names of columns, and the changes in the table's spelling. Raises :class:`SchemaError`."""
    changes: dict[str, str] = {}
    for name, new in names.items():
        if not isinstance(new, str):
            raise SchemaError(f"the new name of column {name!r} must be a string, not {new!r}")
        there = _column(schema, name, "renamed")
        if there in changes:
            raise SchemaError(f"{argument('rename_columns')} names column {there!r} twice")
        changes[there] = new
    changes = {name: new for name, new in changes.items() if name != new}
    renamed = pa.schema([field.with_name(changes.get(field.name, field.name)) for field in schema])
    check_names(renamed)
    known = {name.lower() for name in schema.names}
    brought = [new for new in changes.values() if new.lower() not in known]
    if problems := [problem for problem in map(brought_name_problem, brought) if problem is not None]:
        raise SchemaError("the schema cannot be used: " + "; ".join(problems), problems=tuple(problems))
    return renamed, changes


def without_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[pa.Schema, list[str]]:
    """The schema without some columns, and these in the table's spelling. Raises :class:`SchemaError`."""
    dropped = [_column(schema, name, "dropped") for name in _names(columns, "drop_columns")]
    if len(set(dropped)) < len(dropped):
        raise SchemaError(f"{argument('drop_columns')} names a column twice: {', '.join(dropped)}")
    return pa.schema([field for field in schema if field.name not in dropped]), dropped


def _column(schema: pa.Schema, name: object, done: str) -> str:
    """The table's spelling of a column's name. A name with a dot in it may be in back quotes."""
    path = _path(schema, name)
    known = {column.lower(): column for column in schema.names}
    if path[0].lower() not in known:
        raise SchemaError(f"unknown column {name!r}; the table has {', '.join(schema.names)}")
    if len(path) > 1:
        raise SchemaError(f"{'.'.join(path)!r} is a field within a column, and only columns can be {done}")
    return known[path[0].lower()]


def with_order(schema: pa.Schema, order: Sequence[str]) -> pa.Schema:
    """The schema with the named columns first, in that order. The others keep their order. Raises
    :class:`SchemaError`."""
    places = {name.lower(): place for place, name in enumerate(schema.names)}
    first: list[int] = []
    for name in _names(order, "order"):
        if name.lower() not in places:
            known = ", ".join(schema.names)
            raise SchemaError(f"{argument('order')} names unknown column {name!r}; the table has {known}")
        if places[name.lower()] in first:
            raise SchemaError(f"{argument('order')} names column {name!r} twice")
        first.append(places[name.lower()])
    rest = [place for place in range(len(schema)) if place not in first]
    return pa.schema([schema.field(place) for place in [*first, *rest]])


def carries(kind: pa.DataType, part: pa.DataType) -> bool:
    """Whether ``kind`` has all fields of ``part``, with the same types. Places in structs, nullability and further
    fields do not matter."""
    if pa.types.is_struct(kind) and pa.types.is_struct(part):
        there = {field.name: field.type for field in kind}
        return all(field.name in there and carries(there[field.name], field.type) for field in part)
    if pa.types.is_list(kind) and pa.types.is_list(part):
        return carries(kind.value_type, part.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(part):
        return bool(kind.key_type == part.key_type) and carries(kind.item_type, part.item_type)
    return bool(kind == part)


def new_columns(before: pa.Schema, after: pa.Schema) -> list[str]:
    """Dotted names of the columns and fields that only ``after`` has. For a new struct, only its own name."""
    old = set(_paths(before))
    return [".".join(path) for path in _paths(after) if path not in old and (len(path) == 1 or path[:-1] in old)]


def _root(schema: pa.Schema) -> pa.Field:
    """The schema as one struct field, so that columns are fields like any others."""
    return pa.field("", pa.struct(list(schema)))


def _checked(grown: pa.Schema, before: pa.Schema) -> pa.Schema:
    check_names(grown)
    if needs_timestamp_ntz(grown) and not needs_timestamp_ntz(before):
        raise SchemaError(
            "a TIMESTAMP_NTZ column needs a higher Delta reader version than this table has; create the table with it, "
            "or use TIMESTAMP"
        )
    return grown


def _path(schema: pa.Schema, name: Any) -> _Path:
    """The path for a name. A column with exactly this name goes first, so a name with a dot in it needs no back
    quotes."""
    if isinstance(name, str) and name.lower() in (column.lower() for column in schema.names):
        return (name,)
    return parse_path(name)


def _type(name: str, wanted: Any) -> pa.DataType:
    if isinstance(wanted, pa.DataType):
        return to_arrow_schema(pa.schema([pa.field("x", wanted)])).field(0).type
    if not isinstance(wanted, str):
        raise SchemaError(f"the type of column {name!r} must be DDL or a pyarrow.DataType, not {wanted!r}")
    found = to_arrow_schema(f"x {wanted}").field(0)
    if length_of(found) is not None:
        raise SchemaError(f"column {name!r} cannot become {wanted}: rows that are there may have longer texts")
    return found.type


def _depth_of_field(kind: pa.DataType, path: _Path) -> int:
    """How many names of a path lead to the last struct field on it. The names after it go into lists and maps."""
    depth = 0
    for place, name in enumerate(path, 1):
        if pa.types.is_struct(kind):
            depth = place
            kind = next((child.type for child in kind if child.name.lower() == name.lower()), None)
        elif pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        if kind is None:
            break
    return depth


def _widened(field: pa.Field, *, outer: _Path, inside: _Path, to: pa.DataType) -> pa.Field:
    """The field of a struct with another type, in itself or in the lists and maps ``inside`` it."""
    before: list[pa.DataType] = []

    def widen(part: pa.Field) -> pa.Field:
        if part.type != to:
            check_wider(".".join([*outer, *inside]), part.type, to)
            before.append(part.type)
        return part.with_type(to)

    done = _edited(field, inside, widen, outer)
    return with_type_change(done, before[0], to, [name.lower() for name in inside]) if before else done


def _names(columns: Any, parameter: str) -> Sequence[str]:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise InputError(f"{argument(parameter)} must be a list of column names, not {columns!r}")
    return list(columns)


def _edited(field: pa.Field, path: _Path, edit: Callable[[pa.Field], pa.Field], outer: _Path = ()) -> pa.Field:
    """``field`` with one field below it changed. Elements of lists and values of maps are named as in Spark:
    ``element``, ``value``."""
    if not path:
        return edit(field)
    name, kind = path[0], field.type
    inner = partial(_edited, path=path[1:], edit=edit, outer=(*outer, name))
    if pa.types.is_struct(kind):
        fields = list(kind)
        place = next((i for i, child in enumerate(fields) if child.name.lower() == name.lower()), None)
        if place is not None:
            fields[place] = inner(fields[place])
            return field.with_type(pa.struct(fields))
    elif pa.types.is_list(kind) and name.lower() == "element":
        return field.with_type(pa.list_(inner(kind.value_field)))
    elif pa.types.is_map(kind) and name.lower() == "value":
        return field.with_type(pa.map_(kind.key_type, inner(kind.item_field)))
    there = f"; it has {', '.join(child.name for child in kind)}" if pa.types.is_struct(kind) else ""
    where = f"column {'.'.join(outer)!r}" if outer else "the table"
    raise SchemaError(f"unknown column {'.'.join([*outer, name])!r}: {where} has no field {name!r}{there}")


def _with_field(parent: pa.Field, field: pa.Field) -> pa.Field:
    if not pa.types.is_struct(parent.type):
        raise SchemaError(
            f"{field.name!r} cannot be added to {parent.name!r}, which is {type_name(parent.type)} and no struct"
        )
    added = pa.struct([field])
    grown = _union(parent.type, added, lambda new: new)
    if grown == parent.type:
        raise SchemaError(f"column {field.name!r} is there already: take another name, or leave it out")
    if not carries(grown, added):
        raise SchemaError(
            f"column {field.name!r} is there already, and what it has is not as in {type_name(field.type)}"
        )
    return parent.with_type(grown)


def _with_comment(field: pa.Field, comment: str | None) -> pa.Field:
    metadata = {key: value for key, value in (field.metadata or {}).items() if key != b"comment"}
    if comment is not None:
        metadata[b"comment"] = comment.encode()
    return field.with_metadata(metadata or None)


def _union(
    kind: pa.DataType,
    other: pa.DataType,
    take: Callable[[pa.Field], pa.Field],
) -> pa.DataType:
    """``kind`` with the struct fields that only ``other`` has, each as changed by ``take``."""
    if isinstance(other, pa.DictionaryType | pa.RunEndEncodedType):
        return _union(kind, other.value_type, take)
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = list(kind)
        places = {field.name.lower(): place for place, field in enumerate(fields)}
        for field in other:
            place = places.get(field.name.lower())
            if place is None:
                places[field.name.lower()] = len(fields)
                fields.append(take(field))
            else:
                fields[place] = fields[place].with_type(_union(fields[place].type, field.type, take))
        return pa.struct(fields)
    if pa.types.is_map(kind) and pa.types.is_map(other):
        return pa.map_(kind.key_type, kind.item_field.with_type(_union(kind.item_type, other.item_type, take)))
    if pa.types.is_list(kind) and hasattr(other, "value_field"):
        return pa.list_(kind.value_field.with_type(_union(kind.value_type, other.value_type, take)))
    return kind


def _fresh(field: pa.Field) -> pa.Field:
    """A frame's field as a column of the table: nullable at every level, with its comment and no other metadata."""
    canonical = to_arrow_schema(pa.schema([field])).field(0)
    comment = (canonical.metadata or {}).get(b"comment")
    return pa.field(
        canonical.name, loosened(canonical.type), metadata=None if comment is None else {b"comment": comment}
    )


def loosened(kind: pa.DataType) -> pa.DataType:
    """The type, nullable at every level and without metadata."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, loosened(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(loosened(kind.key_type), pa.field("value", loosened(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", loosened(kind.value_type)))
    return kind


def _paths(schema: pa.Schema) -> Iterator[tuple[str, ...]]:
    for field in schema:
        yield from _paths_of(field, ())


def _paths_of(field: pa.Field, outer: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    path = (*outer, field.name)
    yield path
    kind = field.type
    children = list(kind) if pa.types.is_struct(kind) else []
    if pa.types.is_map(kind):
        children = [kind.item_field]
    elif pa.types.is_list(kind):
        children = [kind.value_field]
    for child in children:
        yield from _paths_of(child, path)
