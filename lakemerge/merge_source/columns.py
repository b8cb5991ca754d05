"""Finds the columns that rules name in the tables of the datasets.

A name that its table lacks is an error. Two spellings of a column, or of a field of a struct, are one. Expressions
whose kinds of values never meet are warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from lakemerge.errors import MergeConfigError
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.expressions import Call, Expression, Literal, Node, Path
from lakemerge.merge_source.rules import IDS, Rules, rules_of, with_overrides
from lakemerge.merge_source.value_texts import kind_letter
from mergers.logs import logger

__all__ = ["found_in", "warn_of_kinds"]

_logger = logger(__name__)
_TEXT = ("lower", "upper", "strip", "concat")
"""Functions of strings; they ignore other values."""


def found_in(config: MergeConfig, schemas: Sequence[pa.Schema | None]) -> MergeConfig:
    """The configuration with rules over the columns that there are. A dataset without a table is not looked at.

    :raises lakemerge.MergeConfigError: a rule names a column, or a field of one, that its table does not have.
    """
    problems: list[str] = []

    def meant(expression: Expression) -> Expression:
        schema = schemas[expression.dataset]
        if schema is None:
            return expression
        return replace(expression, meaning=_meaning(expression.node, schema, config, expression.dataset, problems))

    pairs = [(meant(one), meant(other)) for one, other in config.rules.pairs]
    if problems:
        told = tuple(dict.fromkeys(problems))
        raise MergeConfigError("rules name what their tables do not have: " + "; ".join(told), problems=told)
    rules = rules_of(pairs, pairwise=config.rules.pairwise)
    return config.with_rules(rules if config.overrides is None else with_overrides(rules, len(config.datasets)))


def _meaning(node: Node, schema: pa.Schema, config: MergeConfig, offset: int, problems: list[str]) -> Node:
    match node:
        case Path(names):
            return Path(tuple(_spelled(names, schema, config, offset, problems)))
        case Call(function, arguments):
            return Call(function, tuple(_meaning(part, schema, config, offset, problems) for part in arguments))
        case Literal():
            return node


def _spelled(
    names: tuple[str, ...], schema: pa.Schema, config: MergeConfig, offset: int, problems: list[str]
) -> Iterator[str]:
    """The names in one spelling. Those of columns and fields are in lower case; keys of maps are as they are."""
    if len(names) == 1 and names[0].lower() in IDS:
        yield names[0].lower()
        return
    kind: pa.DataType = pa.struct(list(schema))
    for place, name in enumerate(names):
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            yield name
            kind = kind.item_type
            continue
        fields = {field.name.lower(): field.type for field in kind} if pa.types.is_struct(kind) else {}
        if name.lower() not in fields:
            problems.append(_missing(names, place, sorted(fields), config, offset))
            yield from names[place:]
            return
        yield name.lower()
        kind = fields[name.lower()]


def _missing(names: tuple[str, ...], place: int, fields: Sequence[str], config: MergeConfig, offset: int) -> str:
    alias, dataset = config.aliases[offset], config.names[offset]
    path = ".".join([alias, *names])
    if place:
        inside = ".".join([alias, *names[:place]])
        there = ", ".join(fields) or "none, as it is not a struct"
        return f"{path}: {inside} has no field {names[place]!r}; it has {there}"
    return f"{path}: dataset {dataset!r} has no column {names[0]!r}; it has {', '.join(fields)}"


def warn_of_kinds(rules: Rules, aliases: Sequence[str], schemas: Sequence[pa.Schema | None]) -> None:
    """Log a warning for each expression whose values are never equal to any other's of its class."""
    kinds = [_kinds(one.meaning, schemas[one.dataset]) for one in rules.expressions]
    for numbers in rules.classes:
        for number in set(numbers).difference(rules.same):
            others = [other for other in numbers if other != number] or [number]
            if number in rules.alone:
                others.append(number)
            theirs = [kinds[other] for other in others]
            own = kinds[number]
            if own is None or any(their is None or own & their for their in theirs):
                continue
            _logger.warning(
                "%s never matches %s: %s are never equal to %s. Convert one side, as with string(...)",
                rules.shown(number, aliases),
                " nor ".join(rules.shown(other, aliases) for other in others),
                _told(own),
                _told(frozenset().union(*(their or () for their in theirs))),
            )


_NAMES = {
    "s": "strings",
    "n": "numbers",
    "b": "booleans",
    "x": "binary values",
    "d": "dates",
    "t": "times with a zone",
    "l": "times without a zone",
    "j": "structs and maps",
    "u": "tuples",
}


def _told(letters: frozenset[str]) -> str:
    return " and ".join(_NAMES[letter] for letter in sorted(letters)) or "no values at all"


def _kinds(node: Node, schema: pa.Schema | None) -> frozenset[str] | None:
    """The kinds of values that an expression may give; ``None`` if that is not known."""
    match node:
        case Literal(value):
            if value is None:
                return frozenset()
            return frozenset("s" if isinstance(value, str) else "b" if isinstance(value, bool) else "n")
        case Path(names):
            return frozenset("s") if len(names) == 1 and names[0] in IDS else _kind_at(names, schema)
        case Call("string", _):
            return frozenset("s")
        case Call("tuples", _):
            return frozenset("u")
        case Call("nullif", arguments):
            return _kinds(arguments[0], schema)
        case Call("case", arguments):
            paired = len(arguments) - len(arguments) % 2
            return _union([*arguments[1:paired:2], *arguments[paired:]], schema)
        case Call(function, arguments):
            found = _union(arguments, schema)
            return found & frozenset("s") if function in _TEXT and found is not None else found


def _union(nodes: Sequence[Node], schema: pa.Schema | None) -> frozenset[str] | None:
    found: frozenset[str] = frozenset()
    for node in nodes:
        kinds = _kinds(node, schema)
        if kinds is None:
            return None
        found |= kinds
    return found


def _kind_at(names: tuple[str, ...], schema: pa.Schema | None) -> frozenset[str] | None:
    if schema is None:
        return None
    kind: pa.DataType = pa.struct(list(schema))
    for name in names:
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_map(kind):
            kind = kind.item_type
        else:
            kind = next((field.type for field in kind if field.name.lower() == name.lower()), pa.null())
    while pa.types.is_list(kind):
        kind = kind.value_type
    return None if pa.types.is_null(kind) else frozenset(kind_letter(kind))
