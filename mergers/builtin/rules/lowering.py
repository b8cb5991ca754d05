"""Which rules are folds over segments: sums, extremes, and picks of records.

The forms are recognised in the checked tree. A rule without such a form is computed in rounds, with the same result.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakemerge.sql.nodes import Node
from lakemerge.sql.trees import FilterError, Tree
from mergers.builtin.rules.checked import Rule, compiled
from mergers.ordering import is_orderable

__all__ = ["Form", "Lowered", "Nulls", "lowered"]

_DIGITS = 18
"""Decimals of up to this many digits are summed as integers."""


class Form(enum.Enum):
    """How a column's value follows from the records."""

    TAKE = "take"
    """It is that of the last record that sets it."""
    KEEP = "keep"
    TAKE_KNOWN = "take known"
    """It is the last one that is not null."""
    KEEP_KNOWN = "keep known"
    """It is the first one that is not null."""
    EXTREME = "extreme"
    PICK = "pick"
    """It is that of the last record for which a condition is true."""
    SUM = "sum"


class Nulls(enum.Enum):
    """What null does to a sum or an extreme."""

    STICK = "stick"
    """Once the value is null it stays so."""
    RESTART = "restart"
    """After a null, a sum begins with a number."""
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Lowered:
    form: Form
    nulls: Nulls = Nulls.SKIP
    lowest: bool = False
    """Whether an extreme is the lowest value; else it is the highest."""
    ties: bool = False
    """Whether a value replaces an equal one before it, in an extreme."""
    operand: Rule | None = None
    """The condition of a pick, and what a sum adds."""
    negative: bool = False
    """Of a sum: it is taken away."""
    start: int = 0
    """Of a sum that restarts: what it begins with."""


def lowered(rule: Rule, name: str, schema: pa.Schema) -> Lowered | None:
    """The form of a column's rule; ``None`` if it has none."""
    kind = schema.field(name).type
    tree = _bare(rule.tree)
    new, old = ["new", name], ["old", name]
    if tree == new:
        return Lowered(Form.TAKE)
    if tree == old:
        return Lowered(Form.KEEP)
    parts = _call(tree, "coalesce", "nvl", "ifnull")
    if parts == [new, old]:
        return Lowered(Form.TAKE_KNOWN)
    if parts == [old, new]:
        return Lowered(Form.KEEP_KNOWN)
    for function, lowest in (("greatest", False), ("least", True)):
        parts = _call(tree, function)
        if parts in ([old, new], [new, old]) and is_orderable(kind):
            return Lowered(Form.EXTREME, lowest=lowest, ties=parts == [new, old])
    return _sum(rule, tree, name, schema) or _pick(rule, tree, name, schema)


def _bare(tree: Tree) -> Tree:
    while tree[0] == "paren":
        tree = tree[1]
    return tree


def _call(tree: Tree, *names: str) -> list[Tree] | None:
    return [_bare(part) for part in tree[2]] if tree[0] == "call" and tree[1] in names else None


def _operand(rule: Rule, tree: Tree, schema: pa.Schema) -> Rule | None:
    """A part of a rule as a rule of its own; ``None`` if it may fail."""
    try:
        node = compiled(tree, schema)
    except FilterError:
        return None
    if node.may_fail:
        return None
    return Rule.of(rule.text, tree, node)


def _pick(rule: Rule, tree: Tree, name: str, schema: pa.Schema) -> Lowered | None:
    """``CASE WHEN condition THEN new.x ELSE old.x END``, and the like."""
    taking = _taking(tree, name)
    if taking is None or taking[0] == "boolean":
        return None
    if (extreme := _compared(taking, name, schema.field(name).type)) is not None:
        return extreme
    operand = _operand(rule, taking, schema)
    return None if operand is None or name in operand.old else Lowered(Form.PICK, operand=operand)


def _taking(tree: Tree, name: str) -> Tree | None:
    """The condition on which a rule takes the record's value, and keeps the row's otherwise."""
    tree = _bare(tree)
    if tree == ["new", name]:
        return ["boolean", True]
    if tree == ["old", name]:
        return ["boolean", False]
    values: list[Any]
    if tree[0] == "if":
        values = [_taking(part, name) for part in tree[2:]]
        return None if None in values else ["if", tree[1], *values]
    if tree[0] != "case" or tree[3] is None:
        return None
    values = [_taking(value, name) for _, value in tree[2]]
    default = _taking(tree[3], name)
    if default is None or None in values:
        return None
    tests = [test for test, _ in tree[2]]
    return ["case", tree[1], [list(pair) for pair in zip(tests, values, strict=True)], default]


def _compared(taking: Tree, name: str, kind: pa.DataType) -> Lowered | None:
    """``new.x >= old.x`` and its like as the condition for ``x`` itself. It is not true of nulls."""
    yes, no = ["boolean", True], ["boolean", False]
    if taking[0] == "case" and taking[1] is None and len(taking[2]) == 1:
        ((test, value),) = taking[2]
        taking = ["if", test, value, taking[3]]
    if taking[0] != "if" or taking[2:] != [yes, no]:
        return None
    test = _bare(taking[1])
    operators = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
    if test[0] not in operators or not is_orderable(kind):
        return None
    sides = [_bare(part) for part in test[1:]]
    if sides == [["new", name], ["old", name]]:
        operator = test[0]
    elif sides == [["old", name], ["new", name]]:
        operator = operators[test[0]]
    else:
        return None
    return Lowered(Form.EXTREME, Nulls.STICK, lowest=operator[0] == "<", ties=operator.endswith("="))


def _sum(rule: Rule, tree: Tree, name: str, schema: pa.Schema) -> Lowered | None:
    """``old.x + e``, ``coalesce(old.x, 0) + e`` and ``coalesce(old.x + e, old.x, e)``."""
    old = ["old", name]
    nulls, parts = Nulls.STICK, _call(tree, "coalesce")
    rest: list[Tree] = []
    if parts is not None and len(parts) == 3:
        tree, *rest = parts
        nulls = Nulls.SKIP
    if tree[0] not in ("+", "-"):
        return None
    left, right = (_bare(part) for part in tree[1:])
    start = _start(left, old)
    if start is None and tree[0] == "+":
        left, right = right, left
        start = _start(left, old)
    if start is None or (rest and (left != old or rest not in ([old, right], [right, old]) or tree[0] == "-")):
        return None
    if left != old:
        nulls = Nulls.RESTART
    operand = _operand(rule, right, schema)
    if operand is None or name in operand.old or not _addable(operand.node, schema.field(name).type):
        return None
    return Lowered(Form.SUM, nulls, operand=operand, negative=tree[0] == "-", start=start)


def _start(tree: Tree, old: Tree) -> int | None:
    """What a sum begins with after a null, if the tree is the row's value."""
    if tree == old:
        return 0
    parts = _call(tree, "coalesce", "nvl", "ifnull")
    if parts is None or len(parts) != 2 or parts[0] != old or parts[1][0] != "number" or not parts[1][1].isdecimal():
        return None
    return int(parts[1][1]) if len(parts[1][1]) <= _SMALL else None


_SMALL = 2
"""Digits that every type of number holds."""


def _addable(node: Node, kind: pa.DataType) -> bool:
    """Whether adding to a column rounds nothing on the way, and has no type that is narrower than the column's."""
    of = node.kind
    if pa.types.is_integer(kind):
        return bool(pa.types.is_integer(of))
    if pa.types.is_float64(kind):
        return bool(pa.types.is_floating(of) or pa.types.is_integer(of))
    if pa.types.is_float32(kind):
        return bool(pa.types.is_float32(of))
    if not pa.types.is_decimal(kind) or kind.precision > _DIGITS:
        return False
    if pa.types.is_integer(of):
        return of.bit_width <= 32 and 10 + kind.scale <= _DIGITS
    return bool(pa.types.is_decimal(of)) and of.scale <= kind.scale and of.precision - of.scale + kind.scale <= _DIGITS
