"""The rules of ``expression``, checked against a table and compiled.

Source: docs/merge-semantics.md, section 5, ``expression``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from lakemerge.sql.casts import cast
from lakemerge.sql.functions import FUNCTIONS
from lakemerge.sql.logic import condition
from lakemerge.sql.nodes import Call, Constant, Node, Rows, all_nodes
from lakemerge.sql.trees import FUNCTIONS_VERSION, FilterError, Tree, mapped, node_of, parts_of, tree_of
from lakemerge.sql.types import is_number, is_time
from mergers.contract import TableShape
from mergers.type_names import type_name

__all__ = ["IS_FIRST", "Rule", "Rules", "compiled", "is_set_name", "new_name", "old_name", "rules_of", "worded"]

IS_FIRST: Final = "is_first()"
"""The name that a compiled rule has for ``is_first()``."""
_PURE = frozenset(
    {"old", "new", "is_set", "is_first", "paren", "case", "if", "and", "or", "not", "is", "null", "boolean", "between",
     "=", "!=", "<", "<=", ">", ">=", "<=>", "is distinct"}
)  # fmt: skip
_PURE_CALLS = frozenset({"coalesce", "nvl", "ifnull", "greatest", "least", "isnull", "isnotnull"})
_UNSTEADY = frozenset(
    {"now", "current_timestamp", "localtimestamp", "current_date", "curdate", "current_time", "current_timezone",
     "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id",
     "spark_partition_id", "input_file_name", "current_user", "user", "session_user", "current_catalog",
     "current_database", "current_schema", "version"}
)  # fmt: skip
_AGGREGATES = frozenset(
    {"sum", "count", "avg", "mean", "min", "max", "first", "last", "first_value", "last_value", "any_value", "min_by",
     "max_by", "collect_list", "collect_set", "array_agg", "listagg", "string_agg", "bool_and", "bool_or", "every",
     "some", "any", "count_if", "approx_count_distinct", "row_number", "rank", "dense_rank", "lag", "lead"}
)  # fmt: skip
_INSTEAD = {
    "sum": "old.x + new.x", "count": "old.x + 1", "min": "least(old.x, new.x)", "max": "greatest(old.x, new.x)",
    "collect_set": "array_union(old.x, new.x)",
}  # fmt: skip


def old_name(column: str) -> str:
    """The name that a compiled rule has for a column of the row so far."""
    return f"old.{column}"


def new_name(column: str) -> str:
    """The same for a column of the record."""
    return f"new.{column}"


def is_set_name(column: str) -> str:
    """The same for ``is_set(new.column)``."""
    return f"is_set.{column}"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, value or condition."""

    text: str
    tree: Tree
    """Its columns are ``["old", name]`` and ``["new", name]``, and it has ``["is_set", name]`` and ``["is_first"]``."""
    node: Node = field(repr=False, compare=False)
    """Computes it over columns that :func:`old_name` and the like name, in the type of the rule's column."""
    old: frozenset[str]
    """The columns of ``old`` that it reads."""
    new: frozenset[str]
    asked: frozenset[str]
    """The columns that it asks ``is_set`` of."""

    @property
    def reads(self) -> frozenset[str]:
        return self.old | self.new

    @classmethod
    def of(cls, text: str, tree: Tree, node: Node) -> Rule:
        reads = {side: frozenset(part[1] for part in parts_of(tree) if part[0] == side) for side in _SIDES}
        return cls(text, tree, node, *(reads[side] for side in _SIDES))

    @property
    def always(self) -> bool:
        """Whether it is applied to records that set none of the columns that it reads."""
        return not self.new or bool(self.asked)

    @property
    def asks_first(self) -> bool:
        """Whether it asks ``is_first()``."""
        return any(part[0] == "is_first" for part in parts_of(self.tree))

    @property
    def is_pick(self) -> bool:
        """Whether it gives one of the values, which it compares with each other alone."""
        return all(
            part[0] in _PURE or (part[0] == "call" and part[1] in _PURE_CALLS) for part in parts_of(self.tree)
        ) and any(part[0] in ("old", "new") for part in parts_of(self.tree))

    @property
    def kept(self) -> list[Any]:
        """As a table keeps it."""
        return [self.text, self.tree]


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of a table."""

    columns: Mapping[str, Rule]
    first: Mapping[str, Rule]
    ignore_when: Rule | None
    remove_when: Rule | None

    @property
    def conditions(self) -> list[Rule]:
        return [rule for rule in (self.ignore_when, self.remove_when) if rule is not None]

    @property
    def all(self) -> list[Rule]:
        return [*self.columns.values(), *self.first.values(), *self.conditions]

    @property
    def only_picks(self) -> bool:
        return not self.first and all(rule.is_pick for rule in self.all)

    def closure(self, columns: Collection[str]) -> frozenset[str]:
        """The columns, and all that their rules read, directly or through rules."""
        found: set[str] = set()
        left = set(columns)
        while left:
            name = left.pop()
            found.add(name)
            rules = (self.columns.get(name), self.first.get(name))
            left |= {read for rule in rules if rule is not None for read in rule.reads} - found
        return frozenset(found)

    @property
    def decisive(self) -> frozenset[str]:
        """The columns that decide whether there is a row."""
        return self.closure({name for rule in self.conditions for name in rule.reads})

    def kept(self, shape: TableShape) -> dict[str, Any]:
        """The option ``checked``."""
        found: dict[str, Any] = {"functions": FUNCTIONS_VERSION}
        if not self.only_picks:
            used = {name for rule in self.all for name in rule.reads} | {*self.columns, *self.first}
            kinds = {field.name: field.type for field in shape.schema if field.name in used}
            # A struct may get further fields without a change of the merger.
            found["types"] = {name: type_name(kind) for name, kind in kinds.items() if not pa.types.is_nested(kind)}
        for option, rules in (("columns", self.columns), ("first", self.first)):
            if rules:
                found[option] = {name: rule.kept for name, rule in rules.items()}
        for option, rule in (("ignore_when", self.ignore_when), ("remove_when", self.remove_when)):
            if rule is not None:
                found[option] = rule.kept
        return found


def rules_of(
    shape: TableShape,
    *,
    columns: Mapping[str, str],
    first: Mapping[str, str],
    ignore_when: str | None,
    remove_when: str | None,
    kept: Mapping[str, Any],
    problems: list[str],
) -> Rules:
    """The rules, compiled. What is wrong with them is added to ``problems``.

    :param columns: the names are the table's.
    :param kept: the option ``checked``. A tree in it stands for the text beside it, and for no other.
    """
    version = kept.get("functions", FUNCTIONS_VERSION)
    if not isinstance(version, int) or version > FUNCTIONS_VERSION:
        problems.append(
            f"its rules are of version {version!r} of the set of functions, and this LakeMerge knows up to "
            f"{FUNCTIONS_VERSION}: upgrade it"
        )
        kept = {}
    compiling = _Compiling(shape, problems)
    values = {
        option: {
            name: rule
            for name, text in given.items()
            if (rule := compiling.value(text, _tree_in(_mapping(kept.get(option)).get(name), text), name, option))
        }
        for option, given in (("columns", columns), ("first", first))
    }
    ignore, remove = (
        None if text is None else compiling.condition(text, _tree_in(kept.get(option), text), option)
        for option, text in (("ignore_when", ignore_when), ("remove_when", remove_when))
    )
    return Rules(values["columns"], values["first"], ignore, remove)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tree_in(kept: object, text: str) -> Tree | None:
    """The kept tree, if it is that of the text."""
    if isinstance(kept, list | tuple) and len(kept) == 2 and kept[0] == text and isinstance(kept[1], list | tuple):
        found: Tree = _lists(kept[1])
        return found
    return None


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class _Compiling:
    shape: TableShape
    problems: list[str]

    def value(self, text: str, tree: Tree | None, name: str, option: str) -> Rule | None:
        what = f"the rule of column {name!r}" if option == "columns" else f"first of column {name!r}"
        kind = self.shape.schema.field(name).type

        def stored(node: Node) -> Node:
            if pa.types.is_null(node.kind) or node.kind == kind:
                return cast(node, kind)
            if _fits(node.kind, kind):
                return node if pa.types.is_nested(kind) else cast(node, kind)
            hint = "" if pa.types.is_nested(kind) else f": cast it, as CAST({text} AS {type_name(kind)})"
            raise FilterError(f"it is {type_name(node.kind)}, and the column is {type_name(kind)}{hint}")

        return self._rule(text, tree, what, stored, first=option == "first")

    def condition(self, text: str, tree: Tree | None, option: str) -> Rule | None:
        return self._rule(text, tree, option, condition)

    def _rule(self, text: str, tree: Tree | None, what: str, finish: Any, *, first: bool = False) -> Rule | None:
        try:
            fresh = tree is None
            if tree is None:
                tree = self._resolved(tree_of(text))
            used = [(part[0], part[1]) for part in parts_of(tree) if part[0] in _SIDES]
            for side, name in used:
                if name not in self.shape.schema.names:
                    raise FilterError(f"the table has no column {name!r}; it has {self._known}")
                if first and side == "old":
                    raise FilterError(f"it reads old.{name}, and a first record has no row before it: read new.{name}")
            found = Rule.of(text, tree, finish(compiled(tree, self.shape.schema)))
            if fresh:
                _check_constants(found.node)
            return found
        except FilterError as error:
            self.problems.append(f"{what}, {text!r}: {worded(error.message)}")
            return None

    @property
    def _known(self) -> str:
        return ", ".join(self.shape.schema.names)

    def _resolved(self, tree: Tree) -> Tree:
        """The tree with the table's names of columns. Raises :class:`FilterError` for names that no rule has."""
        return mapped(tree, self._leaf)

    def _leaf(self, part: Tree) -> Tree | None:
        if part[0] == "column":
            return self._column(part[1:])
        if part[0] != "call":
            return None
        name, arguments = part[1], part[2]
        if name == "is_first":
            if arguments:
                raise FilterError("is_first() takes no argument")
            return ["is_first"]
        if name == "is_set":
            found = self._column(arguments[0][1:]) if len(arguments) == 1 and arguments[0][0] == "column" else None
            if found is None or found[0] != "new":
                raise FilterError("is_set takes one column of the record, as is_set(new.x)")
            return ["is_set", found[1]]
        if name not in FUNCTIONS:
            raise FilterError(_no_function(name))
        return None

    def _column(self, parts: list[str]) -> Tree:
        side, *names = parts
        if not names and side.lower() in _UNSTEADY:
            raise FilterError(_no_function(side.lower()))
        if side.lower() not in ("old", "new") or not names:
            shown = ".".join(parts)
            raise FilterError(f"{shown!r} says neither old nor new: write old.{shown} or new.{shown}")
        there = {name.lower(): name for name in self.shape.schema.names}
        name = there.get(names[0].lower())
        if name is None:
            near = difflib.get_close_matches(names[0].lower(), there, n=1)
            hint = f"; did you mean {there[near[0]]!r}?" if near else ""
            raise FilterError(f"the table has no column {names[0]!r}; it has {self._known}{hint}")
        found: Tree = [side.lower(), name]
        for inner in names[1:]:
            found = ["field", found, inner]
        return found


_SIDES = ("old", "new", "is_set")


def compiled(tree: Tree, schema: pa.Schema) -> Node:
    """What computes a rule's tree. Raises :class:`FilterError`."""
    fields: dict[str, pa.DataType] = {IS_FIRST: pa.bool_()}

    def named(part: Tree) -> Tree | None:
        if part[0] == "is_first":
            return ["column", IS_FIRST]
        if part[0] == "is_set":
            fields[is_set_name(part[1])] = pa.bool_()
            return ["column", is_set_name(part[1])]
        if part[0] in ("old", "new"):
            name = (old_name if part[0] == "old" else new_name)(part[1])
            fields[name] = schema.field(part[1]).type
            return ["column", name]
        return None

    flat = mapped(tree, named)
    return node_of(flat, _lookup(fields))


def _lookup(fields: Mapping[str, pa.DataType]) -> pa.Schema:
    return pa.schema(list(fields.items()))


def _check_constants(node: Node) -> None:
    """Raise :class:`FilterError` for a part without columns that fails, for it would on every record."""
    for part in all_nodes(node):
        if isinstance(part, Call) and all(isinstance(argument, Constant) for argument in part.arguments):
            part.evaluate(Rows.one())


def _fits(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a column takes values of a type as they are."""
    if pa.types.is_nested(kind) or pa.types.is_nested(given):
        return _loose(given) == _loose(kind)
    return (is_number(given) and is_number(kind)) or (is_time(given) and pa.types.is_timestamp(kind))


def _loose(kind: pa.DataType) -> object:
    """The type without what may be null in it."""
    if pa.types.is_struct(kind):
        return tuple((part.name, _loose(part.type)) for part in kind)
    if pa.types.is_map(kind):
        return ("map", _loose(kind.key_type), _loose(kind.item_type))
    return ("list", _loose(kind.value_type)) if pa.types.is_list(kind) else kind


def _no_function(name: str) -> str:
    if name in _UNSTEADY:
        return (
            f"{name}() is not the same each time it is computed, and no row may depend on when it is merged: let the "
            "writer put the value in a column, and read it as new.x"
        )
    if name in _AGGREGATES:
        instead = f", as {_INSTEAD[name]}" if name in _INSTEAD else ""
        return f"{name}() is over several rows, and a rule says what one record does to the row{instead}"
    near = difflib.get_close_matches(name, FUNCTIONS, n=1)
    hint = f"did you mean {near[0]}()? " if near else ""
    known = ", ".join(sorted(FUNCTIONS))
    return f"{name}() is not among the functions of rules; {hint}They are is_first, is_set, {known}"


_NAME = re.compile(r"`((?:old|new|is_set)\.[^`]+|is_first\(\))`")


def worded(message: str) -> str:
    """A message about a filter, about a rule."""
    told = _NAME.sub(r"\1", message).replace("the filter cannot be judged: ", "")
    return re.sub(r"\b(a|the) filters?\b", r"\1 rule", told).replace("filters do", "rules do")
