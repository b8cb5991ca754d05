"""The new values of an update: SQL expressions over a row, or plain values, each in the type of its column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lakemerge._internal.arguments import shown
from lakemerge._internal.near import did_you_mean
from lakemerge.errors import FilterError, FrameError
from lakemerge.format.config import TableConfig
from lakemerge.frames import is_spark_column
from lakemerge.schema.schema import castable, safe_cast
from lakemerge.sql.casts import cast
from lakemerge.sql.compiling import compile_value
from lakemerge.sql.nodes import Constant, Node, Rows, call
from lakemerge.sql.parsing import parsed
from mergers.type_names import type_name
from mergers.wording import argument

__all__ = [
    "Assignments",
    "assigned_columns",
    "check_assignable",
    "compile_assignments",
    "only_text",
    "plain_value",
    "updated",
]

_OF_COLUMN = "the new value of"

Assignments = Mapping[str, object]
"""Column -> its new value: text is a SQL expression over the row, on Spark a ``Column`` is one, too, and anything else
is the value itself."""


def assigned_columns(assignments: object, config: TableConfig, alias: str | None = None) -> dict[str, object]:
    """The assignments by the table's names of columns. Raises one :class:`lakemerge.FrameError` for all problems.

    :param alias: what may stand before a name, as in ``target.price``.
    """
    if not isinstance(assignments, Mapping) or not assignments:
        raise FrameError(
            f"{argument('set')} must map at least one column to its new value, as {{'price': 'price * 2'}}, not "
            f"{shown(assignments)}"
        )
    names = {name.lower(): name for name in config.schema.names}
    if alias is not None:
        names = {f"{alias}.{name}".lower(): name for name in config.schema.names} | names
    fixed = {**dict.fromkeys(config.key, "key"), **dict.fromkeys(config.partition_by, "partition")}
    found: dict[str, object] = {}
    problems = []
    for given, value in assignments.items():
        name = names.get(given.lower()) if isinstance(given, str) else None
        if name is None:
            problems.append(f"unknown column {given!r}; the table has {', '.join(config.schema.names)}"
                            f"{did_you_mean(str(given), config.schema.names)}")  # fmt: skip
        elif name in fixed:
            problems.append(
                f"{name!r} is a {fixed[name]} column, which stays: leave it out, or delete the row and upsert it anew"
            )
        elif name in found:
            problems.append(f"column {name!r} is set twice")
        else:
            found[name] = value
    if problems:
        raise FrameError(f"the update is not possible: {'; '.join(problems)}", problems=tuple(problems))
    return found


def compile_assignments(
    assignments: Mapping[str, object],
    schema: pa.Schema,
    targets: pa.Schema,
    rewrite: Callable[[Any], Any] = lambda tree: tree,
) -> dict[str, Node]:
    """Column -> what computes its new value.

    :param assignments: see :func:`assigned_columns`.
    :param schema: the columns that expressions may use.
    :param targets: the columns of the table.
    :param rewrite: changes the parsed expressions before they are compiled.
    :raises lakemerge.FilterError: an expression is not understood, or has a type that the column does not take.
    """
    return {
        name: _compiled(name, value, schema, targets.field(name).type, rewrite)
        if isinstance(value, str)
        else _constant(name, value, targets.field(name).type)
        for name, value in assignments.items()
    }


def _compiled(name: str, text: str, schema: pa.Schema, kind: pa.DataType, rewrite: Callable[[Any], Any]) -> Node:
    try:
        node = compile_value(rewrite(parsed(text)), schema, dt.UTC)
        check_assignable(name, text, node.kind, kind)
        if pa.types.is_nested(kind) and not pa.types.is_null(node.kind) and node.kind != kind:
            return call(partial(_stored, field=pa.field(name, kind)), [node], kind, text, fails=False)
        return cast(node, kind)
    except FilterError as error:
        if error.message.startswith(_OF_COLUMN):
            raise
        raise FilterError(f"{_OF_COLUMN} {name!r}: {error.message}", **error.facts) from error
    except RecursionError:
        raise FilterError(f"{_OF_COLUMN} {name!r} is nested too deeply", filter=text) from None


def _stored(values: pa.Array, field: pa.Field) -> pa.Array:
    """The values in another type, fields of structs by their names."""
    return safe_cast(pa.RecordBatch.from_arrays([values], names=[field.name]), pa.schema([field])).column(0)


def check_assignable(name: str, text: object, given: pa.DataType, kind: pa.DataType) -> None:
    """Raise :class:`lakemerge.FilterError` if a column does not take values of a type: Spark's store assignment."""
    if given == kind or pa.types.is_null(given) or _is_assignable(given, kind):
        return
    raise FilterError(
        f"{_OF_COLUMN} {name!r} is {type_name(given)}, and the column is {type_name(kind)}: cast it, as "
        f"CAST({text} AS {type_name(kind)})"
    )


def only_text(value: object, what: str) -> None:
    """Raise :class:`lakemerge.FilterError` for a ``Column`` of Spark where none can be computed."""
    if is_spark_column(value):
        raise FilterError(f"{what} is a Column of Spark, and the rows are not read by Spark: write it as SQL text")


def _constant(name: str, value: object, kind: pa.DataType) -> Node:
    return Constant(plain_value(name, value, kind), kind, shown(value))


def plain_value(name: str, value: object, kind: pa.DataType) -> Any:
    """A value that is no expression, as one of the column's type. Raises :class:`lakemerge.FrameError`."""
    only_text(value, f"{_OF_COLUMN} {name!r}")
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
        raise FrameError(f"{_OF_COLUMN} {name!r}, {shown(value)}, does not fit {type_name(kind)}: {error}") from error


def _is_assignable(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a value is stored in a column of another type as it is: Spark's store assignment under ANSI."""
    if _is_number(given):
        return _is_number(kind) or pa.types.is_string(kind)
    if pa.types.is_date(given) or pa.types.is_timestamp(given):
        return pa.types.is_timestamp(kind) or pa.types.is_string(kind)
    return castable(given, kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def updated(batch: pa.RecordBatch, nodes: Mapping[str, Node], names: Sequence[str]) -> pa.RecordBatch:
    """The rows with their new values, with the columns ``names``."""
    rows = Rows(batch)
    arrays = [nodes[name].evaluate(rows) if name in nodes else batch.column(name) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
