"""Schemas of tables: Arrow in memory, Delta's JSON in the log, Spark's DDL for people and for Spark.

The canonical Arrow types, one per type of the Delta protocol ("Schema Serialization Format"): bool,
int8/16/32/64, float32/64, decimal128, string, binary, date32, timestamp[us, UTC] (TIMESTAMP),
timestamp[us] (TIMESTAMP_NTZ), list<element>, map<key, value> and struct. A field's comment is its
Arrow metadata ``comment``; other text entries of Delta's field metadata are Arrow entries of the same
name, and entries that are not text are kept as JSON under ``json:<name>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import pyarrow as pa

from lakemerge.errors import SchemaError
from lakemerge.schema.casts import castable, extension_type, safe_cast
from lakemerge.schema.ddl import NO_LENGTHS, PLACEHOLDER, TIMESTAMP, TIMESTAMP_NTZ, parse_ddl
from lakemerge.schema.lengths import LENGTH, length_problems
from lakemerge.schema.limits import TOO_DEEP, level_problems, name_problem
from lakemerge.sql.types import field_ddl, type_ddl
from mergers.type_names import type_name

__all__ = [
    "UnknownTypeError",
    "castable",
    "check_names",
    "from_delta_json",
    "json_entry",
    "needs_timestamp_ntz",
    "roomy_schema",
    "safe_cast",
    "to_arrow_schema",
    "to_ddl",
    "to_delta_json",
    "type_ddl",
    "type_json",
    "with_inner_types",
    "with_json_entry",
]

_DELTA_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
}
_SAME_VALUES: dict[pa.DataType, pa.DataType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
"""Unsigned integers, and the types that hold their values."""
_JSON_PREFIX = "json:"
_NUMBER = re.compile("[0-9]{1,9}")
_BOUNDED = re.compile(r"(?:char|varchar)\([0-9]{1,9}\)")


class UnknownTypeError(SchemaError):
    """Types that Delta may have and this library does not know."""


@runtime_checkable
class _HasJson(Protocol):
    """Spark's ``StructType``, whose JSON is Delta's."""

    def json(self) -> str: ...


def to_arrow_schema(schema: pa.Schema | str | _HasJson) -> pa.Schema:
    """The canonical schema from an Arrow schema, a Spark DDL string or a Spark ``StructType``.

    Other Arrow forms of the same values (large and view types, dictionaries, timestamps in
    seconds or milliseconds or of another zone) become canonical.
    Raises :class:`SchemaError`, with every problem in ``problems``: types that Delta does not have,
    names that :func:`check_names` refuses, and types that nest deeper than readers go.
    """
    if isinstance(schema, pa.Schema):
        problems: list[str] = []
        try:
            _raise_if(level_problems(schema))
            canonical = pa.schema([_canonical_field(field, field.name, problems) for field in schema])
        except UnicodeDecodeError as error:
            raise SchemaError(f"the schema cannot be used: a name in it is not UTF-8: {error}") from error
        problems += _name_problems(canonical) + length_problems(canonical)
        _raise_if(problems)
        return canonical
    if isinstance(schema, str):
        parsed = parse_ddl(schema)
    elif isinstance(schema, _HasJson):
        try:
            parsed = from_delta_json(schema.json())
        except RecursionError as error:
            raise SchemaError(TOO_DEEP) from error
    else:
        raise SchemaError(
            f"a schema is a pyarrow.Schema, a DDL string or a Spark StructType, not {type(schema).__name__}"
        )
    check_names(parsed)
    _raise_if(length_problems(parsed))
    return parsed


def roomy_schema(schema: pa.Schema) -> pa.Schema:
    """The canonical schema of a table that is made for frames of this schema.

    As :func:`to_arrow_schema`, but types that no table has become types that hold their values: unsigned integers the
    next wider signed ones, and nanoseconds microseconds. Raises :class:`SchemaError`.
    """
    return to_arrow_schema(pa.schema([field.with_type(_roomy(field.type)) for field in schema]))


def _roomy(kind: pa.DataType) -> pa.DataType:
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else TIMESTAMP_NTZ
    return with_inner_types(kind, _roomy)


def with_inner_types(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type, with the types in it changed: of fields, keys, values and elements, not of what is in these. A list of
    any form becomes a plain one, and a dictionary or run-end encoding its values."""
    if isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType):
        return change(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_type), kind.item_field.with_type(change(kind.item_type)))
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.ListViewType | pa.LargeListViewType):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)))
    return kind


def check_names(schema: pa.Schema) -> None:
    """Raise :class:`SchemaError` for no columns at all, empty names, names that differ only in case
    (at every level), reserved names of columns, and types that nest deeper than readers go."""
    _raise_if(level_problems(schema))
    _raise_if(_name_problems(schema))


def to_delta_json(schema: pa.Schema) -> str:
    """Delta's ``schemaString`` of a canonical schema."""
    return json.dumps(_struct_json(schema), ensure_ascii=False, separators=(",", ":"))


def from_delta_json(text: str, *, of_frame: bool = False) -> pa.Schema:
    """The canonical schema of a Delta ``schemaString``; the inverse of :func:`to_delta_json`.

    :param of_frame: whether it is the schema of a frame, whose texts of bounded length are texts like all others. In a
        table's, such types are not known.

    Names are not checked. Raises :class:`SchemaError` for damaged JSON, and :class:`UnknownTypeError`, with all of
    them in ``problems``, for types that this library does not know (variant, intervals, collated strings).
    """
    unknown: list[str] = []
    try:
        node = json.loads(text)
        kind = _from_node(node, "schema", unknown)
        if of_frame:
            kind, unknown = _unbounded(kind), [told for told in unknown if NO_LENGTHS not in told]
    except ValueError as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    except RecursionError as error:
        raise SchemaError(TOO_DEEP) from error
    _raise_if(unknown, UnknownTypeError)
    if not pa.types.is_struct(kind):
        raise SchemaError("the schema is not a struct")
    return pa.schema([kind.field(i) for i in range(kind.num_fields)])


def to_ddl(schema: pa.Schema) -> str:
    """Spark DDL of a canonical schema. DDL has no word for non-null elements and map values, nor for
    field metadata other than comments: those are left out."""
    return ", ".join(field_ddl(field, " ") for field in schema)


def needs_timestamp_ntz(schema: pa.Schema) -> bool:
    """Whether a TIMESTAMP_NTZ is anywhere in the schema, so that the table needs that Delta feature."""
    return any(_has_ntz(field.type) for field in schema)


def json_entry(field: pa.Field, name: str) -> object:
    """An entry of Delta's field metadata that is not text; ``None`` where there is none."""
    text = (field.metadata or {}).get(f"{_JSON_PREFIX}{name}".encode())
    return None if text is None else json.loads(text)


def with_json_entry(field: pa.Field, name: str, value: object) -> pa.Field:
    """The field with an entry of Delta's field metadata that is not text."""
    text = json.dumps(value, ensure_ascii=False)
    return field.with_metadata({**(field.metadata or {}), f"{_JSON_PREFIX}{name}".encode(): text.encode()})


def _raise_if(problems: list[str], kind: type[SchemaError] = SchemaError) -> None:
    if problems:
        raise kind("the schema cannot be used: " + "; ".join(problems), problems=tuple(problems))


def _name_problems(schema: pa.Schema) -> list[str]:
    problems = [] if len(schema) else ["no columns"]
    problems += [problem for problem in map(name_problem, schema.names) if problem is not None]
    for path, names in _levels("", pa.struct(list(schema))):
        seen: dict[str, str] = {}
        for name in names:
            if not name:
                problems.append(f"a field of {path or 'the schema'} has no name")
            elif name.lower() in seen:
                problems.append(f"{path + name!r} and {path + seen[name.lower()]!r} are one name: rename one of them")
            seen.setdefault(name.lower(), name)
    return problems


def _unbounded(kind: pa.DataType) -> pa.DataType:
    """The type without the entries of metadata that bound the lengths of texts."""
    if pa.types.is_struct(kind):
        return pa.struct([_unbounded_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_unbounded(kind.key_type), _unbounded_field(kind.item_field))
    return pa.list_(_unbounded_field(kind.value_field)) if pa.types.is_list(kind) else kind


def _unbounded_field(field: pa.Field) -> pa.Field:
    entries = {name: value for name, value in (field.metadata or {}).items() if name != LENGTH}
    return field.with_type(_unbounded(field.type)).with_metadata(entries or None)


def _levels(path: str, kind: pa.DataType) -> Iterator[tuple[str, list[str]]]:
    """The field names of every struct in a type, with the path of the struct."""
    if pa.types.is_struct(kind):
        yield path, [field.name for field in kind]
        for field in kind:
            yield from _levels(f"{path}{field.name}.", field.type)
    elif pa.types.is_map(kind):
        yield from _levels(f"{path}key.", kind.key_type)
        yield from _levels(f"{path}value.", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _levels(f"{path}element.", kind.value_type)


def _canonical_field(field: pa.Field, path: str, problems: list[str], *, name: str | None = None) -> pa.Field:
    metadata: dict[str | bytes, str | bytes] = {}
    for key, value in (field.metadata or {}).items():
        # Notes that readers of Parquet and IPC files make about the file are not part of a table's schema.
        if key.startswith((b"PARQUET:", b"ARROW:")):
            continue
        try:
            metadata[key.decode()] = value.decode()
            if key.startswith(_JSON_PREFIX.encode()):
                json.loads(value)
        except ValueError:
            problems.append(f"{path}: its metadata {key!r} is not text")
    kind = _canonical(field.type, path, problems)
    return pa.field(name or field.name, kind, nullable=field.nullable, metadata=metadata or None)


def _canonical(kind: pa.DataType, path: str, problems: list[str]) -> pa.DataType:
    if kind in _DELTA_NAMES:
        return kind
    if kind in _SAME_VALUES:
        return _SAME_VALUES[kind]
    if isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType):
        return _canonical(kind.value_type, path, problems)
    if isinstance(kind, pa.BaseExtensionType) and (same := extension_type(kind)) is not None:
        return same
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return TIMESTAMP if kind.tz else TIMESTAMP_NTZ
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            problems.append(f"{path}: a struct needs at least one field")
        return pa.struct([_canonical_field(field, f"{path}.{field.name}", problems) for field in kind])
    if pa.types.is_map(kind):
        key = _canonical(kind.key_type, f"{path}.key", problems)
        return pa.map_(key, _canonical_field(kind.item_field, f"{path}.value", problems, name="value"))
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.ListViewType | pa.LargeListViewType):
        return pa.list_(_canonical_field(kind.value_field, f"{path}.element", problems, name="element"))
    problems.append(f"{path}: a table cannot hold {type_name(kind)}: {_remedy(kind)}")
    return PLACEHOLDER


def _remedy(kind: pa.DataType) -> str:
    if pa.types.is_unsigned_integer(kind):
        return f"cast it to {type_name(_WIDER[kind])}"
    if pa.types.is_timestamp(kind):
        return "cast it to microseconds"
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return "cast it to BIGINT"
    if pa.types.is_decimal(kind):
        return "a decimal has at most 38 digits, and between 0 and all of them follow the point"
    if pa.types.is_null(kind):
        return "name a type"
    if isinstance(kind, pa.BaseExtensionType):
        return f"cast it to its storage type {type_name(kind.storage_type)}"
    return "cast it to a type that Delta has"


def _struct_json(fields: pa.Schema | pa.StructType) -> dict[str, object]:
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": type_json(field.type),
                "nullable": field.nullable,
                "metadata": _metadata_json(field),
            }
            for field in fields
        ],
    }


def type_json(kind: pa.DataType) -> object:
    """Delta's JSON of a type: its name, or an object."""
    if kind in _DELTA_NAMES:
        return _DELTA_NAMES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return _struct_json(kind)
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": type_json(kind.key_type),
            "valueType": type_json(kind.item_type),
            "valueContainsNull": kind.item_field.nullable,
        }
    return {
        "type": "array",
        "elementType": type_json(kind.value_type),
        "containsNull": kind.value_field.nullable,
    }


def _metadata_json(field: pa.Field) -> dict[str, object]:
    entries: dict[str, object] = {}
    for key, value in (field.metadata or {}).items():
        name = key.decode()
        if name.startswith(_JSON_PREFIX):
            entries[name.removeprefix(_JSON_PREFIX)] = json.loads(value)
        else:
            entries[name] = value.decode()
    return entries


def _metadata_arrow(entries: Mapping[str, object]) -> dict[str | bytes, str | bytes] | None:
    metadata: dict[str | bytes, str | bytes] = {}
    for name, value in entries.items():
        if isinstance(value, str) and not name.startswith(_JSON_PREFIX):
            metadata[name] = value
        else:
            metadata[_JSON_PREFIX + name] = json.dumps(value, ensure_ascii=False)
    return metadata or None


_FROM_DELTA = {name: kind for kind, name in _DELTA_NAMES.items()}


def _from_node(node: object, path: str, unknown: list[str]) -> pa.DataType:
    if isinstance(node, str):
        return _from_name(node, path, unknown)
    match node:
        case {"type": "struct", "fields": list(fields)}:
            return pa.struct([_from_field(field, path, unknown) for field in fields])
        case {"type": "array", "elementType": element, "containsNull": bool(nullable)}:
            inner = _from_node(element, f"{path}.element", unknown)
            return pa.list_(pa.field("element", inner, nullable=nullable))
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": bool(nullable)}:
            key_type = _from_node(key, f"{path}.key", unknown)
            inner = _from_node(value, f"{path}.value", unknown)
            return pa.map_(key_type, pa.field("value", inner, nullable=nullable))
    raise SchemaError(f"the schema cannot be used: {path}: not a type: {json.dumps(node)[:80]}")


def _from_field(node: object, path: str, unknown: list[str]) -> pa.Field:
    match node:
        case {"name": str(name), "type": kind, "nullable": bool(nullable), **rest}:
            inner = f"{path}.{name}" if path != "schema" else name
            given = rest.get("metadata")
            metadata = given if isinstance(given, dict) else {}
            if "__COLLATIONS" in metadata:
                unknown.append(f"{inner}: collated strings are not supported")
            if isinstance(kind, str) and _BOUNDED.fullmatch(kind.strip().lower()):
                metadata = {**metadata, LENGTH.decode(): kind.strip().lower()}
                kind = "string"
            arrow = _from_node(kind, inner, unknown)
            return pa.field(name, arrow, nullable=nullable, metadata=_metadata_arrow(metadata))
    raise SchemaError(f"the schema cannot be used: {path}: not a field: {json.dumps(node)[:80]}")


def _from_name(name: str, path: str, unknown: list[str]) -> pa.DataType:
    kind = _FROM_DELTA.get(name)
    if kind is not None:
        return kind
    if name.lower() == "string collate utf8_binary":
        return pa.string()  # which is what Spark calls a STRING that it has read from JSON
    word, _, rest = name.partition("(")
    numbers = [part.strip() for part in rest.removesuffix(")").split(",")]
    if rest.endswith(")") and all(_NUMBER.fullmatch(part) for part in numbers):
        if word in ("char", "varchar") and len(numbers) == 1:
            unknown.append(f"{path}: a table cannot hold {name.upper()}: {NO_LENGTHS}")
            return pa.string()
        if word == "decimal" and len(numbers) == 2:
            precision, scale = int(numbers[0]), int(numbers[1])
            if 1 <= precision <= 38 and scale <= precision:
                return pa.decimal128(precision, scale)
    unknown.append(f"{path}: the type {name!r} is not supported")
    return PLACEHOLDER


def _has_ntz(kind: pa.DataType) -> bool:
    if kind == TIMESTAMP_NTZ:
        return True
    return any(_has_ntz(kind.field(i).type) for i in range(kind.num_fields))
