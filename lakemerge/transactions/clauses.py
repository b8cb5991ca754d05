"""The clauses of a merge, and the names that its conditions and values use. Spark and Arrow share them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from sqlglot import exp

from lakemerge.errors import FilterError, FrameError, InputError
from lakemerge.format.config import TableConfig
from lakemerge.frames import is_spark_column
from lakemerge.sql.parsing import parsed, sql
from lakemerge.transactions.assignments import assigned_columns

__all__ = [
    "Aliases",
    "Clause",
    "MergeCall",
    "Side",
    "brought_columns",
    "check_order",
    "matched_on",
    "names_row",
    "qualified",
    "resolved",
    "row_schema",
    "shown_clause",
]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Side = Literal["matched", "not matched", "not matched by source"]


@dataclass(frozen=True, slots=True)
class Aliases:
    """The names of both rows in conditions and values."""

    target: str = "target"
    source: str = "source"

    def __post_init__(self) -> None:
        for name in (self.target, self.source):
            if not name.isidentifier():
                raise InputError(f"an alias is a plain word such as 't', not {name!r}")
        if self.target.lower() == self.source.lower():
            raise InputError(f"both rows would have the alias {self.target!r}: give them different ones")


@dataclass(frozen=True, slots=True)
class Clause:
    """``WHEN side AND condition THEN action``. The first clause of a side whose condition is true acts on a row."""

    side: Side
    action: Literal["update", "delete", "insert"]
    condition: Any = None
    """SQL text, or a ``Column`` of Spark. ``None``: it is always true."""
    values: Mapping[str, object] | None = field(default=None)
    """Column -> its value; ``None``: all columns, from the source's columns of the same names."""

    @property
    def writes_set(self) -> bool:
        return self.action != "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeCall:
    """What a merge is asked for, besides its source."""

    on: str
    clauses: Sequence[Clause]
    aliases: Aliases = Aliases()
    evolves: bool = False
    """Whether columns that only the source has are added to the table."""

    def of(self, side: Side) -> list[int]:
        """The numbers of the clauses of a side."""
        return [number for number, clause in enumerate(self.clauses) if clause.side == side]

    @property
    def only_deletes_matched(self) -> bool:
        """Whether it does not matter which of several source rows matches."""
        own = [self.clauses[number] for number in self.of("matched")]
        return len(own) == 1 and own[0].action == "delete" and own[0].condition is None


@dataclass(frozen=True, slots=True)
class Match:
    """What ``on`` says: the source's key, and what else must hold."""

    keys: Mapping[str, str]
    """Key column -> the expression over the source's columns that equals it."""
    rest: str | None
    """The further conditions, joined by AND."""


def check_order(clauses: Sequence[Clause]) -> None:
    """Raise :class:`lakemerge.InputError` for a merge without clauses, or with one that no row can reach, as Delta
    does."""
    if not clauses:
        raise InputError("a merge needs at least one clause, such as .whenMatchedUpdateAll()")
    closed: set[Side] = set()
    for clause in clauses:
        if clause.side in closed:
            raise InputError(
                f"no row reaches the clause WHEN {clause.side.upper()} THEN {clause.action.upper()}, because one "
                "before it has no condition: only the last clause of its kind may leave the condition out"
            )
        if clause.condition is None:
            closed.add(clause.side)


def matched_on(on: object, config: TableConfig, source: Sequence[str], aliases: Aliases) -> Match:
    """Read the condition of a merge. Raises :class:`lakemerge.FilterError` if it does not compare the whole key.

    :param source: the source's columns.
    """
    if not isinstance(on, str) or not on:
        raise FilterError(f"a merge needs a condition, as SQL text, such as {_example(config, aliases)!r}")
    keys: dict[str, str] = {}
    rest = []
    for part in _joined_by_and(qualified(parsed(on), config.schema.names, source, aliases)):
        found = _key_of(part, config, aliases)
        if found is None or found[0] in keys:
            rest.append(sql(part))
        else:
            keys[found[0]] = found[1]
    if missing := [name for name in config.key if name not in keys]:
        raise FilterError(
            f"the condition {on!r} does not compare the whole key: {', '.join(missing)} is missing. Rows are found by "
            f"their key, so a merge needs a condition such as {_example(config, aliases)!r}; conditions on other "
            "columns may be added by AND"
        )
    return Match(keys, " AND ".join(f"({text})" for text in rest) if rest else None)


def names_row(on: str, alias: str) -> bool:
    """Whether a condition has columns of this alias."""
    columns = parsed(on).find_all(exp.Column)
    return any(len(column.parts) > 1 and column.parts[0].name.lower() == alias.lower() for column in columns)


def qualified(node: Any, target: Sequence[str], source: Sequence[str], aliases: Aliases) -> Any:
    """The expression with the alias of a row before each column.

    :param target: the columns of the table; empty where the row has none.
    :raises lakemerge.FilterError: a name that both have, or none.
    """
    sides = {aliases.target: {n.lower(): n for n in target}, aliases.source: {n.lower(): n for n in source}}
    words = {alias.lower(): alias for alias in sides}

    def rewritten(part: Any) -> Any:
        if not isinstance(part, exp.Column):
            return part
        first, *rest = part.parts
        if first.name.lower() in words and rest:
            side = words[first.name.lower()]
            if not sides[side]:
                where = "table that it acts on" if side == aliases.target else "source"
                raise FilterError(f"{sql(part)} is used in a clause that has no row of the {where}", column=sql(part))
            return _column([exp.to_identifier(side), _own(rest[0], sides[side]), *rest[1:]])
        name = first.name
        found = [side for side, names in sides.items() if name.lower() in names]
        if len(found) != 1:
            why = "in the table and in the source" if found else "neither in the table nor in the source"
            if not found and not (target and source):
                why = f"not in the {'source' if source else 'table'}, and this clause has no other row"
                raise FilterError(f"column {name!r} is {why}", column=name)
            raise FilterError(
                f"column {name!r} is {why}; write {aliases.target}.{name} or {aliases.source}.{name}", column=name
            )
        return _column([exp.to_identifier(found[0]), _own(first, sides[found[0]]), *rest])

    return node.transform(rewritten)


def _own(part: Any, names: Mapping[str, str]) -> Any:
    """A column's name as its row spells it, so that equal names are equal texts."""
    name = names.get(part.name.lower(), part.name)
    return exp.to_identifier(name, quoted=_PLAIN.fullmatch(name) is None)


def _column(parts: Sequence[Any]) -> Any:
    if len(parts) > 4:
        return exp.Dot.build(list(parts))
    names = ("this", "table", "db", "catalog")
    return exp.Column(**{name: part.copy() for name, part in zip(names, reversed(parts), strict=False)})


def brought_columns(call: MergeCall, config: TableConfig, source: Sequence[str]) -> list[str]:
    """The source's columns that the merge may add to the table or widen there, if it evolves the schema: all where a
    clause takes all columns, else those that clauses assign by the same name."""
    if any(clause.writes_set and clause.values is None for clause in call.clauses):
        return list(source)
    lead = f"{call.aliases.target}.".lower()
    wanted = {str(name).lower().removeprefix(lead) for clause in call.clauses for name in clause.values or ()}
    return [name for name in source if name.lower() in wanted]


def resolved(
    clause: Clause, config: TableConfig, source: Sequence[str], match: Match, call: MergeCall
) -> dict[str, object]:
    """The clause's values by the table's names of columns, and for an insert those of all columns.

    :param config: that of the table with the columns that the merge brings.
    :raises lakemerge.FrameError: columns that are unknown, or cannot be set; an insert whose key is not the one that
        ``on`` compares; a source that lacks columns.
    """
    if clause.values is not None:
        if clause.action == "update":
            return assigned_columns(clause.values, config, call.aliases.target)
        return _inserted(clause.values, config, source, match, call.aliases)
    names = {name.lower(): name for name in source}
    lacking = [name for name in config.schema.names if name.lower() not in names and name not in match.keys]
    if lacking and not call.evolves:
        raise FrameError(
            f"the source has no column {', '.join(map(repr, lacking))}, which this clause takes from it: name the "
            "columns and their values in the clause, or let the schema evolve (withSchemaEvolution())"
        )
    alias = call.aliases.source
    values: dict[str, object] = {
        name: f"{alias}.{_quoted(names[name.lower()])}" for name in config.schema.names if name.lower() in names
    }
    for name, key in match.keys.items():
        own = values.get(name, key)
        if own != key and _text_of(own, source, call.aliases) != key:
            raise FrameError(
                f"this clause takes key column {name!r} from {own}, and the merge compares it with {key}: name the "
                "columns and their values in the clause, without the key"
            )
    if clause.action == "update":
        return {name: value for name, value in values.items() if name not in match.keys}
    return values | dict(match.keys)


def _inserted(
    values: Mapping[str, object], config: TableConfig, source: Sequence[str], match: Match, aliases: Aliases
) -> dict[str, object]:
    names = {f"{aliases.target}.{name}".lower(): name for name in config.schema.names}
    names |= {name.lower(): name for name in config.schema.names}
    found: dict[str, object] = {}
    for given, value in values.items():
        name = names.get(str(given).lower())
        if name is None or name in found:
            what = "is set twice" if name in found else f"is unknown; the table has {', '.join(config.schema.names)}"
            raise FrameError(f"the insert is not possible: column {given!r} {what}")
        found[name] = value
    for name, key in match.keys.items():
        value = found.get(name, key)
        # A Column has no text to compare; Spark compares its values.
        if is_spark_column(value) or value == key:
            continue
        if _text_of(value, source, aliases) != key:
            raise FrameError(
                f"the insert gives key column {name!r} the value {value!r}, and the merge compares it with {key}: an "
                "inserted row must have the key by which it was not found"
            )
    return dict(match.keys) | {
        name: value for name, value in found.items() if name not in match.keys or is_spark_column(value)
    }


def _text_of(value: object, source: Sequence[str], aliases: Aliases) -> str | None:
    return sql(qualified(parsed(value), (), source, aliases)) if isinstance(value, str) else None


def shown_clause(clause: Clause) -> dict[str, object]:
    """The clause as JSON, for the history."""
    values = None if clause.values is None else {name: str(value) for name, value in clause.values.items()}
    condition = None if clause.condition is None else str(clause.condition)
    return {"when": clause.side, "condition": condition, "then": clause.action, "values": values}


def _joined_by_and(node: Any) -> Iterator[Any]:
    if isinstance(node, exp.Paren):
        yield from _joined_by_and(node.this)
    elif isinstance(node, exp.And):
        for part in node.flatten():
            yield from _joined_by_and(part)
    else:
        yield node


def _key_of(part: Any, config: TableConfig, aliases: Aliases) -> tuple[str, str] | None:
    """The key column that the condition compares, and with what of the source."""
    # Keys are never null, so both operators find the same rows.
    if not isinstance(part, exp.EQ | exp.NullSafeEQ):
        return None
    names = {name.lower(): name for name in config.key}
    for one, other in ((part.this, part.expression), (part.expression, part.this)):
        if isinstance(one, exp.Column) and len(one.parts) == 2 and one.table == aliases.target:
            name = names.get(one.name.lower())
            sides = {column.parts[0].name for column in other.find_all(exp.Column)}
            if name is not None and sides <= {aliases.source}:
                return name, sql(other)
    return None


def _example(config: TableConfig, aliases: Aliases) -> str:
    return " AND ".join(f"{aliases.target}.{name} = {aliases.source}.{name}" for name in config.key)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def row_schema(config: TableConfig, source: pa.Schema, aliases: Aliases) -> pa.Schema:
    """The row that conditions and values see: a struct of the table's columns, and one of the source's."""
    loose = (pa.schema([f.with_nullable(True) for f in schema]) for schema in (config.schema, source))
    names = (aliases.target, aliases.source)
    return pa.schema([(name, pa.struct(list(each))) for name, each in zip(names, loose, strict=True)])
