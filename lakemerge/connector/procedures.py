"""``CALL lake.system.compact(table => 'shop.orders')``: the upkeep of tables, from SQL.

The work is done by the driver's Python alone, in the memory that :class:`lakemerge.Settings` allow. For tables that are
larger than that is good for, call the same methods of a :class:`lakemerge.LakeTable` that has a Spark session.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lakemerge.errors import InputError
from lakemerge.table.table import LakeTable

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
    return [
        [what, None if value is None else str(value)]
        for what, value in _flat(PROCEDURES[name].run(target, **arguments))
    ]


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
