"""The clauses of a merge, and the names that its conditions and values use. Spark and Arrow share them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa
from sqlglot import exp

from lakemerge.errors import FilterError, FrameError
from lakemerge.format.config import TableConfig
from lakemerge.read.sql.parsing import parsed, sql
from lakemerge.transactions.assignments import assigned_columns

__all__ = [
    "SOURCE",
    "TARGET",
    "Clause",
    "Match",
    "Side",
    "matched_on",
    "qualified",
    "resolved",
    "row_schema",
    "shown_clause",
]

TARGET: Final = "target"
SOURCE: Final = "source"

Side = Literal["matched", "not matched", "not matched by source"]


@dataclass(frozen=True, slots=True)
class Clause:
    """``WHEN side AND condition THEN action``. The first clause of a side whose condition is true acts on a row."""

    side: Side
    action: Literal["update", "delete", "insert"]
    condition: str | None = None
    values: Mapping[str, object] | None = field(default=None)
    """Column -> its value; ``None``: all columns, from the source's columns of the same names."""

    @property
    def writes_set(self) -> bool:
        return self.action != "delete"


@dataclass(frozen=True, slots=True)
class Match:
    """What ``on`` says: the source's key, and what else must hold."""

    keys: Mapping[str, str]
    """Key column -> the expression over the source's columns that equals it."""
    rest: str | None
    """The further conditions, joined by AND."""


def matched_on(on: object, config: TableConfig, source: Sequence[str]) -> Match:
    """Read the condition of a merge. Raises :class:`lakemerge.FilterError` if it does not compare the whole key.

    :param source: the source's columns.
    """
    if not isinstance(on, str) or not on:
        raise FilterError(f"a merge needs a condition, as SQL text, such as {_example(config)!r}")
    keys: dict[str, str] = {}
    rest = []
    for part in _joined_by_and(qualified(parsed(on), config.schema.names, source)):
        found = _key_of(part, config)
        if found is None or found[0] in keys:
            rest.append(sql(part))
        else:
            keys[found[0]] = found[1]
    if missing := [name for name in config.key if name not in keys]:
        raise FilterError(
            f"the condition {on!r} does not compare the whole key: {', '.join(missing)} is missing. Rows are found by "
            f"their key, so a merge needs a condition such as {_example(config)!r}"
        )
    return Match(keys, " AND ".join(f"({text})" for text in rest) if rest else None)


def qualified(node: Any, target: Sequence[str], source: Sequence[str]) -> Any:
    """The expression with ``target.`` or ``source.`` before each column.

    :param target: the columns of the table; empty where the row has none.
    :raises lakemerge.FilterError: a name that both have, or none.
    """
    sides = {TARGET: {n.lower() for n in target}, SOURCE: {n.lower() for n in source}}

    def rewritten(part: Any) -> Any:
        if not isinstance(part, exp.Column):
            return part
        first, *_ = (piece.name for piece in part.parts)
        if first.lower() in sides and len(part.parts) > 1:
            return part
        found = [side for side, names in sides.items() if first.lower() in names]
        if len(found) != 1:
            why = "in the table and in the source" if found else "neither in the table nor in the source"
            raise FilterError(f"column {first!r} is {why}; write {TARGET}.{first} or {SOURCE}.{first}", column=first)
        pieces = [exp.to_identifier(found[0]), *part.parts]
        return exp.Dot.build(pieces) if len(pieces) > 4 else _column(pieces)

    return node.transform(rewritten)


def _column(parts: Sequence[Any]) -> Any:
    names = ("this", "table", "db", "catalog")
    return exp.Column(**{name: part.copy() for name, part in zip(names, reversed(parts), strict=False)})


def resolved(clause: Clause, config: TableConfig, source: Sequence[str], match: Match) -> dict[str, object]:
    """The clause's values by the table's names of columns, and for an insert those of all columns.

    :raises lakemerge.FrameError: columns that are unknown, or cannot be set; an insert whose key is not the one that
        ``on`` compares; a source that lacks columns.
    """
    names = {name.lower(): name for name in source}
    if clause.values is None:
        lacking = [name for name in config.schema.names if name.lower() not in names and name not in match.keys]
        if lacking:
            raise FrameError(
                f"the source has no column {', '.join(map(repr, lacking))}, which this clause takes from it: name the "
                "columns and their values in the clause"
            )
        fixed = {*config.key, *config.partition_by} if clause.action == "update" else set()
        values: dict[str, object] = {
            name: f"{SOURCE}.{_quoted(names[name.lower()])}"
            for name in config.schema.names
            if name not in fixed and name.lower() in names
        }
        return values if clause.action == "update" else values | dict(match.keys)
    if clause.action == "update":
        return assigned_columns(clause.values, config)
    return _inserted(clause.values, config, source, match)


def _inserted(
    values: Mapping[str, object], config: TableConfig, source: Sequence[str], match: Match
) -> dict[str, object]:
    names = {name.lower(): name for name in config.schema.names}
    found: dict[str, object] = {}
    for given, value in values.items():
        name = names.get(str(given).lower())
        if name is None or name in found:
            what = "is set twice" if name in found else f"is unknown; the table has {', '.join(config.schema.names)}"
            raise FrameError(f"the insert is not possible: column {given!r} {what}")
        found[name] = value
    for name, key in match.keys.items():
        value = found.get(name, key)
        text = sql(qualified(parsed(value), (), source)) if isinstance(value, str) else None
        if text != key:
            raise FrameError(
                f"the insert gives key column {name!r} the value {value!r}, and the merge compares it with {key}: an "
                "inserted row must have the key by which it was not found"
            )
    return found | dict(match.keys)


def shown_clause(clause: Clause) -> dict[str, object]:
    """The clause as JSON, for the history."""
    values = None if clause.values is None else {name: str(value) for name, value in clause.values.items()}
    return {"when": clause.side, "condition": clause.condition, "then": clause.action, "values": values}


def _joined_by_and(node: Any) -> Iterator[Any]:
    if isinstance(node, exp.Paren):
        yield from _joined_by_and(node.this)
    elif isinstance(node, exp.And):
        for part in node.flatten():
            yield from _joined_by_and(part)
    else:
        yield node


def _key_of(part: Any, config: TableConfig) -> tuple[str, str] | None:
    """The key column that the condition compares, and with what of the source."""
    if not isinstance(part, exp.EQ):
        return None
    names = {name.lower(): name for name in config.key}
    for one, other in ((part.this, part.expression), (part.expression, part.this)):
        if isinstance(one, exp.Column) and len(one.parts) == 2 and one.table.lower() == TARGET:
            name = names.get(one.name.lower())
            sides = {column.parts[0].name.lower() for column in other.find_all(exp.Column)}
            if name is not None and sides == {SOURCE}:
                return name, sql(other)
    return None


def _example(config: TableConfig) -> str:
    return " AND ".join(f"{TARGET}.{name} = {SOURCE}.{name}" for name in config.key)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def row_schema(config: TableConfig, source: pa.Schema) -> pa.Schema:
    """The row that conditions and values see: a struct of the table's columns, and one of the source's."""
    loose = (pa.schema([f.with_nullable(True) for f in schema]) for schema in (config.schema, source))
    return pa.schema([(name, pa.struct(list(each))) for name, each in zip((TARGET, SOURCE), loose, strict=True)])
