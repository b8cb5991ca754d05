"""The new values of an update: SQL expressions over a row, or plain values, each in the type of its column."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakemerge._internal.arguments import shown
from lakemerge._internal.near import did_you_mean
from lakemerge.errors import FilterError, FrameError
from lakemerge.format.config import TableConfig
from lakemerge.read.sql.casts import cast
from lakemerge.read.sql.compiling import compile_value
from lakemerge.read.sql.kinds import name as type_name
from lakemerge.read.sql.nodes import Constant, Node, Rows
from lakemerge.read.sql.parsing import parsed
from lakemerge.schema.schema import castable
from mergers.wording import argument

__all__ = ["Assignments", "assigned_columns", "compile_assignments", "updated"]

Assignments = Mapping[str, object]
"""Column -> its new value: text is a SQL expression over the row, anything else is the value itself."""


def assigned_columns(assignments: object, config: TableConfig) -> dict[str, object]:
    """The assignments by the table's names of columns. Raises one :class:`lakemerge.FrameError` for all problems."""
    if not isinstance(assignments, Mapping) or not assignments:
        raise FrameError(
            f"{argument('set')} must map at least one column to its new value, as {{'price': 'price * 2'}}, not "
            f"{shown(assignments)}"
        )
    names = {name.lower(): name for name in config.schema.names}
    fixed = {**dict.fromkeys(config.partition_by, "partition"), **dict.fromkeys(config.key, "key")}
    found: dict[str, object] = {}
    problems = []
    for given, value in assignments.items():
        name = names.get(given.lower()) if isinstance(given, str) else None
        if name is None:
            problems.append(f"unknown column {given!r}; the table has {', '.join(config.schema.names)}"
                            f"{did_you_mean(str(given), config.schema.names)}")  # fmt: skip
        elif name in fixed:
            problems.append(f"{name!r} is a {fixed[name]} column, which stays: delete the row, and upsert it anew")
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
        if node.kind == kind or pa.types.is_null(node.kind) or _is_assignable(node.kind, kind):
            return cast(node, kind)
    except FilterError as error:
        raise FilterError(f"the new value of {name!r}: {error.message}", **error.facts) from error
    except RecursionError:
        raise FilterError(f"the new value of {name!r} is nested too deeply", filter=text) from None
    raise FilterError(
        f"the new value of {name!r} is {type_name(node.kind)}, and the column is {type_name(kind)}: cast it, as "
        f"CAST({text} AS {type_name(kind)})"
    )


def _constant(name: str, value: object, kind: pa.DataType) -> Node:
    try:
        scalar = pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError) as error:
        raise FrameError(f"the new value of {name!r}, {shown(value)}, does not fit {kind}: {error}") from error
    return Constant(scalar.as_py(), kind, shown(value))


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
