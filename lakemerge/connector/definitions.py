"""A table's definition as SQL has it: columns, and table properties.

What other tables do not have is in properties: ``key``, ``ordering``, ``merger``, ``merger.options`` and ``buckets``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa

from lakemerge.errors import InputError, SchemaError
from lakemerge.schema.schema import from_delta_json, type_ddl

__all__ = ["altered", "created", "shown_properties"]

_NAMES: Final = ("key", "ordering")
_OF_SPARK: Final = ("provider", "owner", "is_managed_location", "external", "comment", "location", "collation")
_DECLARED: Final = re.compile(r"\"((?:char|varchar)\([0-9]+\))\"")
_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]+?))\s*(?:,|$)")


def created(request: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of :meth:`lakemerge.LakeTable.create` for a ``CREATE TABLE``, as JSON has them. The schema is in
    Delta's JSON."""
    given = dict(request["properties"])
    provider = given.pop("provider", "lakemerge")
    if provider.lower() != "lakemerge":
        raise InputError(
            f"this catalog has LakeMerge tables only: write USING lakemerge, not USING {provider}. If a write of a "
            "frame or of a stream was to make the table, create the table first: it needs a key"
        )
    if "location" in given or given.pop("external", "false") == "true":
        raise InputError("a table's place is its name: leave out LOCATION and EXTERNAL, or use the catalog of paths")
    if options := sorted(name for name in given if name.startswith("option.")):
        raise InputError(f"OPTIONS ({options[0].removeprefix('option.')} ...): use TBLPROPERTIES")
    if "key" not in given:
        raise SchemaError(
            "a table needs a key: name the columns that identify a row in TBLPROPERTIES ('key' = 'id')",
        )
    merger = _merger(given)
    buckets = given.pop("buckets", None)
    return {
        "schema": request["schema"],
        "key": _listed(given.pop("key")),
        "ordering": _listed(given.pop("ordering", "")),
        "merger": merger.get("merger"),
        "options": merger.get("options"),
        "partition_by": request["partitioning"],
        "constraints": request.get("constraints", []),
        "buckets": None if buckets is None else _number("buckets", buckets),
        "description": given.pop("comment", None),
        "properties": {name: value for name, value in given.items() if name not in _OF_SPARK} or None,
    }


def shown_properties(config: Any, metadata: Any, url: str) -> dict[str, str]:
    """The properties that ``DESCRIBE`` and ``SHOW CREATE TABLE`` show. The second makes the same table again."""
    own = {
        "key": _joined(config.key),
        "merger": config.merger_name,
        "merger.options": orjson.dumps(config.merger_options).decode(),
        "provider": "lakemerge",
        "location": url,
        "is_managed_location": "true",
    }
    if config.ordering:
        own["ordering"] = _joined(config.ordering)
    if config.buckets is not None:
        own["buckets"] = str(config.buckets)
    if metadata.description is not None:
        own["comment"] = metadata.description
    internal = set(config.configuration())
    users = {
        name: value
        for name, value in metadata.configuration.items()
        if name not in internal and not name.startswith("delta.enable") and not name.startswith("delta.inCommit")
    }
    return users | own


def altered(
    changes: Sequence[Mapping[str, Any]], schema: pa.Schema, constraints: Collection[str] = ()
) -> dict[str, Any]:
    """The arguments of :meth:`lakemerge.LakeTable.alter` for an ``ALTER TABLE``.

    :param constraints: the names of those that the table has.
    """
    properties: dict[str, str | None] = {}
    arguments: dict[str, Any] = {}
    order = list(schema.names)
    for change in changes:
        if change["change"] in ("set property", "remove property"):
            properties[change["property"]] = change.get("value")
        elif change["change"] == "add constraint":
            arguments.setdefault("add_constraints", {})[change["constraint"]] = change["condition"]
        elif change["change"] == "drop constraint":
            if change["constraint"].lower() in constraints or not change["ifExists"]:
                arguments.setdefault("drop_constraints", []).append(change["constraint"])
        else:
            _change_column(change, schema, arguments, order)
    if order[: len(schema.names)] != schema.names:
        arguments["order"] = order
    if "comment" in properties:
        arguments["description"] = properties.pop("comment") or ""
    for name in (*_NAMES, "buckets", *_OF_SPARK):
        if name in properties:
            remedy = "; use LakeTable.rescale" if name == "buckets" else ""
            raise SchemaError(f"table property {name!r} cannot be changed{remedy}")
    arguments |= _merger(properties)
    if properties:
        arguments["properties"] = properties
    return arguments


def _change_column(change: Mapping[str, Any], schema: pa.Schema, arguments: dict[str, Any], order: list[str]) -> None:
    """Add a change of a column to the arguments, and to the order of the columns."""
    kind, column = change["change"], change["column"]
    name = _dotted(column)
    if kind == "add column":
        arguments["add_columns"] = ", ".join(filter(None, (arguments.get("add_columns"), _added(change, column))))
        if len(column) == 1:
            order.append(column[0])
        _place(order, column, change)
    elif kind == "type":
        arguments.setdefault("widen", {})[name] = _type(change["type"])
    elif kind == "nullability":
        if change["nullable"]:
            arguments.setdefault("nullable", []).append(name)
        elif column not in [[field.name] for field in schema if not field.nullable]:
            raise SchemaError(
                f"SET NOT NULL of {name}: it is refused, unless a column has it already, because rows may have nulls"
            )
    elif kind == "comment":
        arguments.setdefault("comments", {})[name] = change["comment"]
    elif kind == "position":
        _place(order, column, change)
    elif kind == "rename column":
        if len(column) > 1:
            raise SchemaError(f"RENAME COLUMN {name}: only columns can be renamed, not fields within them")
        arguments.setdefault("rename_columns", {})[name] = change["to"]
    else:
        if len(column) > 1:
            raise SchemaError(f"DROP COLUMN {name}: only columns can be dropped, not fields within them")
        arguments.setdefault("drop_columns", []).append(name)


def _merger(properties: dict[str, Any]) -> dict[str, Any]:
    """Takes the merger and its options out of the properties."""
    found: dict[str, Any] = {}
    if "merger" in properties:
        found["merger"] = properties.pop("merger")
    if "merger.options" in properties:
        text = properties.pop("merger.options")
        try:
            found["options"] = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InputError(f"table property 'merger.options' must be JSON, not {text!r}: {error}") from error
    return found


def _added(change: Mapping[str, Any], column: Sequence[str]) -> str:
    if not change["nullable"]:
        raise SchemaError(f"ADD COLUMN {_dotted(column)} NOT NULL: rows that are there would have no value")
    comment = change.get("comment")
    told = "" if comment is None else " COMMENT '" + comment.replace("\\", "\\\\").replace("'", "\\'") + "'"
    declared = _DECLARED.fullmatch(change["type"].strip().lower())
    kind = type_ddl(_type(change["type"])) if declared is None else declared[1]
    return f"{_dotted(column)} {kind}{told}"


def _place(order: list[str], column: Sequence[str], change: Mapping[str, Any]) -> None:
    """Move a column in the order of columns, if the change says where."""
    if not (change.get("first") or "after" in change):
        return
    if len(column) != 1:
        raise SchemaError(f"fields of a struct stay in their order: leave out FIRST and AFTER of {_dotted(column)}")
    lower = [name.lower() for name in order]
    name = order.pop(lower.index(column[0].lower()))
    lower.remove(column[0].lower())
    if change.get("first"):
        order.insert(0, name)
    elif change["after"].lower() not in lower:
        raise SchemaError(f"there is no column {change['after']!r} to put {name!r} after")
    else:
        order.insert(lower.index(change["after"].lower()) + 1, name)


def _type(text: str) -> pa.DataType:
    """A Spark type in JSON."""
    field = f'{{"name": "x", "type": {text}, "nullable": true, "metadata": {{}}}}'
    return from_delta_json(f'{{"type": "struct", "fields": [{field}]}}', of_frame=True).field(0).type


def _dotted(column: Sequence[str]) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in column)


def _listed(text: str) -> list[str]:
    """Names that commas separate. A name with a comma goes into back quotes."""
    names, at = [], 0
    while at < len(text) and text.strip():
        found = _NAME.match(text, at)
        if found is None or found.end() == at:
            raise InputError(f"{text!r} is no list of column names that commas separate")
        names.append(found[1].replace("``", "`") if found[1] is not None else found[2])
        at = found.end()
    return names


def _joined(names: Sequence[str]) -> str:
    return ", ".join(f"`{name.replace('`', '``')}`" if re.search(r"[`,]|^\s|\s$", name) else name for name in names)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"table property {name!r} must be a number, not {text!r}") from None
