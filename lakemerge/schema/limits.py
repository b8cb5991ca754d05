"""What a column may be, so that every reader of the table can read it: how deep its type nests, and its name.

Source: docs/table-format.md, section 10. The checks walk types without recursion, because the types are those of
callers and of files, and may be nested thousands deep.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

__all__ = [
    "MAX_LEVELS",
    "TOO_DEEP",
    "brought_name_problem",
    "leaf_count",
    "level_problems",
    "levels_of",
    "name_problem",
]

MAX_LEVELS = 40
"""How deep the type of a column may nest. A struct is one level, a list or a map is two, as in Parquet.

pyarrow and Spark read up to 100 levels. delta-rs (deltalake, polars) reads the schemas of up to 41 structs, because its
JSON parser stops at 128 levels. The time in which DuckDB opens a file doubles with each list: 0.2 s for 20 lists, 4 s
for 24."""

_HIDDEN_PREFIX = "_lm_"
"""LakeMerge's own columns in files have names with this prefix."""

_RESERVED = {
    "_tmp_metadata_row_index": "Spark keeps that name for the row numbers of Parquet files",
}
"""Names in lower case, and who keeps them. A column with such a name cannot be read on Spark."""

TOO_DEEP = "the schema nests too deeply: flatten it, or keep the inner part as JSON text in a STRING column"
"""For schemas that nest so deep that they cannot be parsed."""

_FEED = frozenset({"_row_kind", "_change_type", "_commit_version", "_commit_timestamp"})
"""Columns of change feeds, here and in Delta."""

_LIST_LEVELS = 2
_LISTS = (pa.MapType, pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)


def levels_of(kind: pa.DataType) -> int:
    """How many levels the type nests; 0 for types that are not nested."""
    return max((levels for levels, _ in _parts(kind)), default=0)


def leaf_count(fields: pa.Schema | pa.StructType) -> int:
    """The number of columns of a Parquet file: the values below structs, lists and maps. A map has its keys, too."""
    return sum(_is_leaf(part) for field in fields for _, part in _parts(field.type))


def level_problems(fields: pa.Schema) -> list[str]:
    """The columns that nest deeper than readers go."""
    return [
        f"{field.name[:80]!r} nests {levels} levels deep, and readers take {MAX_LEVELS} (a struct is one level, a list "
        "or a map is two): flatten it, or keep it as JSON text in a STRING column"
        for field in fields
        if (levels := levels_of(field.type)) > MAX_LEVELS
    ]


def name_problem(name: str) -> str | None:
    """Why no column of a table can have the name; ``None`` if one can. Names of fields of structs are free."""
    lower = name.lower()
    if lower.startswith(_HIDDEN_PREFIX):
        return f"{name!r}: names that start with {_HIDDEN_PREFIX!r} are reserved, rename the column"
    if lower in _RESERVED:
        return f"{name!r}: {_RESERVED[lower]}, rename the column"
    return None


def brought_name_problem(name: str) -> str | None:
    """Why a merge of schemas adds no column of the name. Its names come from frames and files of others."""
    if name.lower() not in _FEED:
        return name_problem(name)
    return (
        f"{name!r}: the changes of a table use that name for commits, and could not be read with such a column: "
        "rename it or leave it out; table.alter adds it all the same"
    )


def _is_leaf(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or isinstance(kind, pa.DictionaryType | pa.RunEndEncodedType))


def _parts(kind: pa.DataType) -> Iterator[tuple[int, pa.DataType]]:
    """The type and all types within it, each with the number of levels that are around it, its own among them."""
    todo = [(0, kind)]
    while todo:
        outer, part = todo.pop()
        own = outer + (_LIST_LEVELS if _has_items(part) else pa.types.is_nested(part))
        yield own, part
        if pa.types.is_map(part):
            todo += [(own, part.key_type), (own, part.item_type)]
        elif _has_items(part):
            todo.append((own, part.value_type))
        elif isinstance(part, pa.DictionaryType | pa.RunEndEncodedType):
            todo.append((outer, part.value_type))
        else:
            todo += [(own, part.field(place).type) for place in range(part.num_fields)]


def _has_items(kind: pa.DataType) -> bool:
    return isinstance(kind, _LISTS)
