"""``CALL lake.system.compact(table => 'shop.orders')``: the upkeep of tables, from SQL.

The work is done by the driver's Python alone, in the memory that :class:`lakemerge.Settings` allow. For tables that are
larger than that is good for, call the same methods of a :class:`lakemerge.LakeTable` that has a Spark session.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from lakemerge.errors import InputError
from lakemerge.results.forgetting import ForgetResult
from lakemerge.table.table import LakeTable
from mergers.type_names import type_name

__all__ = ["PROCEDURES", "called", "definition", "place_of"]


@dataclass(frozen=True, slots=True)
class _Procedure:
    description: str
    run: Callable[..., Any]
    """Called with the table and the arguments. Returns a result of a service, or ``None``."""
    parameters: tuple[tuple[str, str, str | None], ...] = ()
    """The parameters after the table, each with its name, its type and its default in SQL. ``None``: it is required."""
    makes_table: bool = False
    """Whether it makes a table of what is there. Then it is called with a path, and options of the store and mergers in
    ``of``."""


def _vacuum(table: LakeTable, *, retention_hours: int | None = None, dry_run: bool = False) -> Any:
    retention = None if retention_hours is None else dt.timedelta(hours=retention_hours)
    return table.vacuum(retention=retention, dry_run=dry_run)


def _restore(table: LakeTable, *, version: int | None = None, savepoint: str | None = None) -> Any:
    return table.restore(version=version, savepoint=savepoint)


def _convert(
    path: str,
    *,
    of: Mapping[str, Any],
    key: str,
    ordering: str | None = None,
    partition_by: str | None = None,
    merger: str | None = None,
    buckets: int | None = None,
    exclusive: bool = False,
    dry_run: bool = False,
) -> Any:
    return LakeTable.convert(
        path,
        key=_names(key),
        ordering=_names(ordering or ""),
        partition_by=None if partition_by is None else _names(partition_by),
        merger=merger,
        buckets=buckets,
        exclusive=exclusive,
        dry_run=dry_run,
        **of,
    )


def _forget(
    table: LakeTable,
    *,
    keys: str,
    drop_history: bool = False,
    drop_rejects: bool = False,
    salt: str | None = None,
) -> ForgetResult:
    return table.forget(_keys_of(table, keys), drop_history=drop_history, drop_rejects=drop_rejects, salt=salt)


def _keys_of(table: LakeTable, text: str) -> pa.Table:
    """The keys in ``'[{"id": 1}, {"id": 2}]'``. Dates, times and decimals are texts, as JSON has none.

    :raises InputError: it is no list of keys. The message does not show it: a log may keep messages.
    """
    wanted = ", ".join(f'"{name}": ...' for name in table.key)
    try:
        rows = orjson.loads(text)
    except orjson.JSONDecodeError:
        rows = None
    names = {name.lower(): name for name in table.key}
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and {name.lower() for name in row} == names.keys() and len(row) == len(names)
        for row in rows
    ):
        raise InputError(f"keys must be a list in JSON, each with all columns of the key: [{{{wanted}}}]")
    found = [{names[name.lower()]: value for name, value in row.items()} for row in rows]
    return pa.table({name: _column_of(name, [row[name] for row in found], table.schema) for name in table.key})


def _column_of(name: str, values: list[object], schema: pa.Schema) -> pa.Array:
    kind = schema.field(name).type
    if pa.types.is_binary(kind):
        raise InputError(f"column {name!r} of the key is BINARY, which JSON does not have: call LakeTable.forget")
    as_text = pa.types.is_temporal(kind) or pa.types.is_decimal(kind)
    try:
        # Numbers of JSON are binary fractions, which are no decimals.
        return pa.array(values, pa.string()).cast(kind) if as_text else pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        told = f"a text such as {_EXAMPLES[kind_name]!r}" if (kind_name := _told(kind)) else type_name(kind)
        raise InputError(f"a value of the key column {name!r} is not {told}") from None


def _told(kind: pa.DataType) -> str | None:
    """Which kind of text a value is."""
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "time"
    return "decimal" if pa.types.is_decimal(kind) else None


_EXAMPLES: Final = {"date": "2026-11-01", "time": "2026-11-01T12:30:00Z", "decimal": "12.50"}


def _names(text: str) -> list[str]:
    """The names in ``'country, id'``."""
    return [name.strip() for name in text.split(",") if name.strip()]


PROCEDURES: Final[Mapping[str, _Procedure]] = {
    "compact": _Procedure(
        "Merge records into the rows of base files.",
        lambda table, minor: table.compact(minor=minor),
        (("minor", "BOOLEAN", "false"),),
    ),
    "compact_logs": _Procedure("Join small log files.", lambda table: table.compact_logs()),
    "convert": _Procedure(
        "Make a plain Delta table a LakeMerge table, in place.",
        _convert,
        (
            ("key", "STRING", None),
            ("ordering", "STRING", "NULL"),
            ("partition_by", "STRING", "NULL"),
            ("merger", "STRING", "NULL"),
            ("buckets", "INT", "NULL"),
            ("exclusive", "BOOLEAN", "false"),
            ("dry_run", "BOOLEAN", "false"),
        ),
        makes_table=True,
    ),
    "forget": _Procedure(
        "Erase the rows of some keys, and all that the table remembers of them. Call it again until it says done.",
        _forget,
        (
            ("keys", "STRING", None),
            ("drop_history", "BOOLEAN", "false"),
            ("drop_rejects", "BOOLEAN", "false"),
            ("salt", "STRING", "NULL"),
        ),
    ),
    "unconvert": _Procedure("Make the table a plain Delta table.", lambda table: table.unconvert()),
    "maintain": _Procedure("Do whatever is due by the table's properties.", lambda table: table.maintain()),
    "vacuum": _Procedure(
        "Delete files that no kept version needs.",
        _vacuum,
        (("retention_hours", "INT", "NULL"), ("dry_run", "BOOLEAN", "false")),
    ),
    "rescale": _Procedure(
        "Give the table another number of buckets.",
        lambda table, buckets: table.rescale(buckets=buckets),
        (("buckets", "INT", None),),
    ),
    "restore": _Procedure(
        "Make an earlier version the newest.",
        _restore,
        (("version", "BIGINT", "NULL"), ("savepoint", "STRING", "NULL")),
    ),
    "savepoint": _Procedure(
        "Keep a version, under a name.",
        lambda table, name, version=None, hold=False: table.savepoint(name, version=version, hold=hold),
        (("name", "STRING", None), ("version", "BIGINT", "NULL"), ("hold", "BOOLEAN", "false")),
    ),
    "drop_savepoint": _Procedure(
        "Let a savepoint go.",
        lambda table, name, hold=False: table.drop_savepoint(name, hold=hold),
        (("name", "STRING", None), ("hold", "BOOLEAN", "false")),
    ),
}


def definition(name: str) -> dict[str, Any]:
    """What Spark has to know of a procedure."""
    procedure = PROCEDURES[name]
    given = [{"name": each, "type": kind, **({} if default is None else {"default": default})}
             for each, kind, default in procedure.parameters]  # fmt: skip
    parameters = [{"name": "table", "type": "STRING"}, *given]
    return {"name": name, "description": procedure.description, "parameters": parameters}


def place_of(text: str) -> tuple[list[str], str]:
    """Namespace and name of ``'shop.orders'``; a path has no namespace.

    :raises InputError: it is neither.
    """
    if "/" in text:
        return [], text
    *namespace, name = text.split(".")
    if len(namespace) != 1:
        raise InputError(f"table => {text!r}: write 'NAMESPACE.TABLE', without the catalog")
    return namespace, name


def called(name: str, target: LakeTable | str, arguments: Mapping[str, Any]) -> list[list[str | None]]:
    """The result of a procedure, as pairs of a name and a value.

    :param target: the table, or a path for a procedure that makes one.
    """
    result = PROCEDURES[name].run(target, **arguments)
    pairs: Iterable[tuple[str, object]] = _flat(result)
    if isinstance(result, ForgetResult):
        pairs = [*result.report(), *([] if "salt" in arguments else [("salt", result.salt)])]
    return [[what, None if value is None else str(value)] for what, value in pairs]


def _flat(result: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The fields of a result that are single values. Those of results in it have their name before them."""
    if not dataclasses.is_dataclass(result):
        return
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if dataclasses.is_dataclass(value):
            if field.name != "plan":
                yield from _flat(value, f"{prefix}{field.name}.")
        elif isinstance(value, int | float | str | None):
            yield f"{prefix}{field.name}", value
