"""Survivorship: rules that choose one value of an entity's column from the values of its members.

The rules are in docs/merge-source.md, "Survivorship". Whole columns are chosen at a time; which member won is known, so
that an entity can be explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.arguments import shown
from lakemerge.errors import LakeMergeError, MergeConfigError
from lakemerge.merge_source.nested_arrays import Bools, Ints, contiguous, list_array, run_starts, spread
from lakemerge.merge_source.types import Property
from lakemerge.merge_source.value_texts import plain_texts
from mergers.builtin.expression import Expression
from mergers.builtin.functions.equal import equality_codes
from mergers.contract import Groups, RowKind, TableShape
from mergers.ordering import is_orderable, order_codes

__all__ = ["Column", "Rule", "Survivors", "needed_columns", "parse_survivorship", "survived", "survivors_of", "type_of"]

Name = Literal["first", "newest", "priority", "longest", "most_frequent", "union", "expression"]
_BARE = ("first", "longest", "most_frequent", "union")


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one column."""

    column: str
    name: Name
    argument: str | tuple[int, ...] | None = None
    """The column of ``newest``, the SQL of ``expression``, or the offsets of datasets of ``priority``."""

    def told(self, aliases: Sequence[str]) -> object:
        """The rule as a configuration has it."""
        if self.argument is None:
            return self.name
        argument = self.argument
        return {self.name: argument if isinstance(argument, str) else [aliases[offset] for offset in argument]}

    def __str__(self) -> str:
        return self.name if self.argument is None else f"{self.name} {self.argument}"


Survivors = Mapping[str, Rule]
"""By column in lower case."""


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a column that members have, in their order."""

    places: Ints
    """The places of these members among all members."""
    values: pa.Array
    """Without nulls and empty lists."""


def parse_survivorship(
    given: Any, datasets: Sequence[Sequence[str]], strategy: object, problems: list[str]
) -> Survivors:
    """Read the rules. Everything wrong with them is added to ``problems``.

    :param datasets: of each dataset its alias and name.
    """
    if not isinstance(given, Mapping):
        problems.append(f"survivorship must be a mapping of columns to rules, not {shown(given)}")
        return {}
    if given and strategy == "list":
        problems.append("survivorship needs the strategy 'default' or 'compact': 'list' has no columns to choose for")
    found: dict[str, Rule] = {}
    for column, told in given.items():
        if not isinstance(column, str):
            problems.append(f"survivorship: {shown(column)} is not the name of a column")
        elif column.lower() in found:
            problems.append(f"survivorship names column {column!r} twice")
        elif (rule := _rule(column, told, datasets, problems)) is not None:
            found[column.lower()] = rule
    return found


def _rule(column: str, told: Any, datasets: Sequence[Sequence[str]], problems: list[str]) -> Rule | None:
    if isinstance(told, str) and told in _BARE:
        return Rule(column, cast("Name", told))
    name, argument = next(iter(told.items())) if isinstance(told, Mapping) and len(told) == 1 else (None, None)
    if name in ("newest", "expression") and isinstance(argument, str):
        return Rule(column, cast("Name", name), argument)
    if name == "priority" and isinstance(argument, Sequence) and not isinstance(argument, str):
        offsets = []
        for wanted in argument:
            at = next((offset for offset, names in enumerate(datasets) if wanted in names), None)
            if at is None:
                problems.append(f"survivorship of {column!r}: there is no dataset {shown(wanted)}")
            else:
                offsets.append(at)
        return Rule(column, "priority", tuple(dict.fromkeys(offsets)))
    problems.append(
        f"survivorship of {column!r} must be one of {', '.join(map(repr, _BARE))}, {{'newest': column}}, "
        f"{{'priority': [datasets]}} or {{'expression': sql}}, not {shown(told)}"
    )
    return None


def survivors_of(rules: Survivors, properties: Sequence[Property], *, complete: bool) -> Survivors:
    """The rules, checked against the columns that there are.

    :param complete: whether all datasets have a table; else columns may be missing.
    :raises lakemerge.MergeConfigError: a rule cannot be used.
    """
    known = {one.name.lower(): one for one in properties}
    problems = []
    for column, rule in rules.items():
        if column not in known:
            if complete:
                problems.append(f"no dataset has the column {rule.column!r}; there are {', '.join(known) or 'none'}")
        elif rule.name == "newest":
            by = known.get(str(rule.argument).lower())
            if by is None and complete:
                problems.append(f"{rule.column!r}: no dataset has the column {rule.argument!r}")
            elif by is not None and (by.lists or not is_orderable(by.type)):
                problems.append(f"{rule.column!r}: values of {rule.argument!r} have no order")
        elif rule.name == "expression" and complete:
            try:
                _folding(rule, properties)
            except LakeMergeError as error:
                problems.append(f"{rule.column!r}: {error.message}")
    if problems:
        raise MergeConfigError("survivorship cannot be used: " + "; ".join(problems), problems=tuple(problems))
    return {column: rule for column, rule in rules.items() if column in known}


def type_of(one: Property, rule: Rule) -> pa.DataType:
    """The type of the column in the output."""
    return _list_of(one.type) if rule.name == "union" else _value_type(one)


def survived(
    one: Property, rule: Rule, columns: Mapping[str, Column], clusters: Ints, datasets: Ints, count: int,
    properties: Sequence[Property],
) -> tuple[pa.Array, Ints]:  # fmt: skip
    """The values for each cluster, and the members that gave them: -1 where no single one did.

    :param columns: the columns that the rule reads, by name in lower case.
    :param clusters: the cluster of each member.
    :param datasets: the dataset of each member.
    :param count: how many clusters there are.
    """
    own = columns[one.name.lower()]
    if rule.name == "union":
        return _union(own, clusters, count, one), np.full(count, -1, dtype=np.int64)
    group = clusters[own.places]
    if rule.name == "expression":
        return _folded(rule, properties, columns, own, group, count), np.full(count, -1, dtype=np.int64)
    best = _best(rule, own, columns, group, datasets)
    order = np.lexsort((own.places, -best, group))
    firsts = order[run_starts(group[order])]
    winner = np.full(count, -1, dtype=np.int64)
    winner[group[firsts]] = firsts
    members = np.where(winner >= 0, own.places[winner] if len(own.places) else -1, -1)
    return own.values.take(pa.array(winner, mask=winner < 0)), members


def needed_columns(one: Property, rule: Rule, properties: Sequence[Property]) -> set[str]:
    """The columns that a rule reads, in lower case."""
    names = {one.name.lower()}
    if rule.name == "newest":
        names.add(str(rule.argument).lower())
    if rule.name == "expression":
        merger, shape = _folding(rule, properties)
        names |= {name.lower() for name in merger.needs(shape, {one.name})}
    return names


def _best(rule: Rule, own: Column, columns: Mapping[str, Column], group: Ints, datasets: Ints) -> Ints:
    """A number for each value: the highest of a cluster wins."""
    match rule.name:
        case "newest":
            by = columns.get(str(rule.argument).lower())
            ranks = np.full(len(own.places), -1, dtype=np.int64)
            if by is not None and len(by.places):
                at = np.searchsorted(by.places, own.places)
                there = by.places[np.minimum(at, len(by.places) - 1)] == own.places
                codes = np.unique(order_codes([by.values]), return_inverse=True)[1].astype(np.int64)
                ranks[there] = codes[at[there]]
            return ranks
        case "priority":
            asked = rule.argument if isinstance(rule.argument, tuple) else ()
            given = datasets[own.places]
            place = len(asked) + given
            for number, offset in enumerate(asked):
                place[given == offset] = number
            return -place
        case "longest":
            return _lengths(own.values)
        case "most_frequent":
            codes = equality_codes(own.values)
            pairs = group * (int(codes.max(initial=0)) + 1) + codes
            _, at, counts = np.unique(pairs, return_inverse=True, return_counts=True)
            return counts[at].astype(np.int64)
        case _:
            return np.zeros(len(own.places), dtype=np.int64)


def _lengths(values: pa.Array) -> Ints:
    counted = pc.list_value_length(values) if pa.types.is_list(values.type) else pc.utf8_length(plain_texts(values))
    return counted.to_numpy(zero_copy_only=False).astype(np.int64)


def _union(own: Column, clusters: Ints, count: int, one: Property) -> pa.Array:
    """All values of each cluster, each once."""
    places, values = own.places, own.values
    if one.lists:
        rows, _ = spread(pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64))
        places, values = places[rows], contiguous(pc.list_flatten(values))
        there = values.is_valid().to_numpy(zero_copy_only=False)
        places, values = places[there], values.drop_null()
    group = clusters[places]
    keep = _each_once(group, values)
    group, values = group[keep], values.filter(pa.array(keep))
    sizes = np.bincount(group, minlength=count)
    return list_array(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), values, sizes > 0)


def _each_once(group: Ints, values: pa.Array) -> Bools:
    keep = np.zeros(len(values), dtype=np.bool_)
    codes = equality_codes(values) if len(values) else group
    order = np.lexsort((np.arange(len(values)), codes, group))
    keep[order[run_starts(group[order], codes[order])]] = True
    return keep


def _folding(rule: Rule, properties: Sequence[Property]) -> tuple[Expression, TableShape]:
    """The merger that folds members. Raises :class:`lakemerge.MergerConfigurationError`.

    The rows have no key, so that the SQL can read nothing but properties.
    """
    shape = TableShape(pa.schema([pa.field(one.name, _value_type(one)) for one in properties]), (), ())
    return Expression.from_options({"columns": {rule.column: rule.argument}}, shape), shape


def _folded(
    rule: Rule, properties: Sequence[Property], columns: Mapping[str, Column], own: Column, group: Ints, count: int
) -> pa.Array:
    """The members' rows folded in their order, those that have a value of the column."""
    merger, shape = _folding(rule, properties)
    name = next(one.name for one in properties if one.name.lower() == rule.column.lower())
    names = {field.name.lower(): field for field in shape.schema}
    rows: dict[str, pa.Array] = {}
    for lower, column in columns.items():
        field = names[lower]
        if len(column.places):
            at = np.searchsorted(column.places, own.places)
            there = column.places[np.minimum(at, len(column.places) - 1)] == own.places
            rows[field.name] = column.values.take(pa.array(at, mask=~there))
        else:
            rows[field.name] = pa.nulls(len(own.places), field.type)
    order = np.argsort(group, kind="stable")
    starts = run_starts(group[order])
    length = len(order)
    zeros = np.zeros(length, dtype=np.int64)
    groups = Groups(
        shape=shape,
        offsets=np.append(starts, length),
        kinds=np.full(length, RowKind.INSERT, dtype=np.int8),
        stored=np.zeros(length, dtype=np.bool_),
        sources=zeros.astype(np.int32),
        presence=[frozenset(rows)],
        rows=pa.table(rows),
        order=order,
        versions=zeros,
    )
    merged = merger.merge_groups(groups) if length else None
    values = pa.array([], names[name.lower()].type)
    if merged is not None:
        picked = groups.column(name).take(pa.array(merged.winner))
        values = contiguous(merged.columns.get(name, picked))
    at = np.full(count, -1, dtype=np.int64)
    at[group[order[starts]]] = np.arange(len(starts))
    return values.take(pa.array(at, mask=at < 0))


def _value_type(one: Property) -> pa.DataType:
    return _list_of(one.type) if one.lists else one.type


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))
