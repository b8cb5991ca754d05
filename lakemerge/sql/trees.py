"""SQL expressions as trees of JSON values, to be kept.

A tree is a list: an operator, and its operands. Its form is LakeMerge's own, so a later parser does not change what a
kept tree means. Texts become trees by :func:`tree_of`, and trees become nodes by the one compiler (:func:`node_of`).

============================  =====================================================================
``["column", "a", "b"]``      names with dots between them, as they are written
``["number", "1.50"]``        a number with its digits; ``["text", "a"]``, ``["hex", "ff"]``,
                              ``["boolean", true]``, ``["null"]``
``["+", x, y]``               the same for other operators of two operands (:data:`_BINARY`)
``["cast", x, "INT", true]``  the last says whether it is written as ``CAST(...)``
``["case", x, [[c, v]], e]``  ``x`` and ``e`` may be null
``["call", "lower", [x]]``    a function
============================  =====================================================================
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from lakemerge.errors import FilterError
from lakemerge.sql.compiling import compile_value, type_named
from lakemerge.sql.nodes import Node
from lakemerge.sql.parsing import is_explicit, mark_explicit, only, parsed, unsupported
from mergers.type_names import type_name

__all__ = ["FUNCTIONS_VERSION", "FilterError", "Tree", "mapped", "node_of", "parts_of", "tree_of"]

Tree = list[Any]
FUNCTIONS_VERSION: Final = 1
"""The version of the set of operators and functions that trees may name. It rises with each addition, and no function
ever changes its meaning."""

_BINARY: Mapping[str, type] = {
    "+": exp.Add, "-": exp.Sub, "*": exp.Mul, "/": exp.Div, "%": exp.Mod, "div": exp.IntDiv, "||": exp.DPipe,
    "=": exp.EQ, "!=": exp.NEQ, "<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE, "<=>": exp.NullSafeEQ,
    "is distinct": exp.NullSafeNEQ, "and": exp.And, "or": exp.Or, "is": exp.Is, "like": exp.Like, "ilike": exp.ILike,
    "escape": exp.Escape, "rlike": exp.RegexpLike,
}  # fmt: skip
_UNARY: Mapping[str, type] = {"paren": exp.Paren, "negative": exp.Neg, "not": exp.Not}
_OPERATOR_OF = {kind: name for name, kind in (*_BINARY.items(), *_UNARY.items())}
_NAMED = exp.DataType.Type
_TYPES: Mapping[str, Any] = {
    "BOOLEAN": _NAMED.BOOLEAN, "TINYINT": _NAMED.TINYINT, "SMALLINT": _NAMED.SMALLINT, "INT": _NAMED.INT,
    "BIGINT": _NAMED.BIGINT, "FLOAT": _NAMED.FLOAT, "DOUBLE": _NAMED.DOUBLE, "STRING": _NAMED.TEXT,
    "DATE": _NAMED.DATE, "TIMESTAMP": _NAMED.TIMESTAMPTZ, "TIMESTAMP_NTZ": _NAMED.TIMESTAMPNTZ,
}  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")


def tree_of(text: str) -> Tree:
    """The tree of an expression. Raises :class:`FilterError` for text that is no expression, and for constructs that
    no tree has."""
    try:
        return _tree(parsed(text))
    except RecursionError:
        raise FilterError("it is nested too deeply", filter=text) from None


def node_of(tree: Tree, schema: pa.Schema) -> Node:
    """What computes a tree over the schema's columns, in the time zone UTC. A ``column`` has one name here.

    Raises :class:`FilterError` for types that do not fit, and for what is not a tree of this version.
    """
    try:
        return compile_value(_expression(tree), schema, dt.UTC)
    except RecursionError:
        raise FilterError("it is nested too deeply") from None
    except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise FilterError(f"{tree!r} is no expression of version {FUNCTIONS_VERSION}: {error!r}") from error


def parts_of(tree: Tree) -> Iterator[Tree]:
    """A tree and all trees in it."""
    yield tree
    for part in tree[1:]:
        yield from _parts_in(part)


def mapped(tree: Tree, change: Callable[[Tree], Tree | None]) -> Tree:
    """The tree with what ``change`` gives in the place of parts, from the outside in. ``None``: the part stays, and its
    own parts are asked."""
    found = change(tree)
    return [tree[0], *(_mapped_in(part, change) for part in tree[1:])] if found is None else found


def _is_tree(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and isinstance(part[0], str)


def _parts_in(part: Any) -> Iterator[Tree]:
    if _is_tree(part):
        yield from parts_of(part)
    elif isinstance(part, list):
        for inner in part:
            yield from _parts_in(inner)


def _mapped_in(part: Any, change: Callable[[Tree], Tree | None]) -> Any:
    if _is_tree(part):
        return mapped(part, change)
    return [_mapped_in(inner, change) for inner in part] if isinstance(part, list) else part


def _tree(node: Any) -> Tree:
    operator = _OPERATOR_OF.get(type(node))
    if operator in _UNARY:
        only(node, "this")
        return [operator, _tree(node.this)]
    if operator is not None:
        only(node, "this", "expression", "safe", "typed")
        return [operator, _tree(node.this), _tree(node.expression)]
    return _FORMS.get(type(node), unsupported)(node)


def _optional(node: Any) -> Tree | None:
    return None if node is None else _tree(node)


def _column(node: Any) -> Tree:
    return ["column", *(part.name for part in node.parts)]


def _dot(node: Any) -> Tree:
    if not isinstance(node.expression, exp.Identifier):
        unsupported(node)
    return ["field", _tree(node.this), node.expression.name]


def _bracket(node: Any) -> Tree:
    if len(node.expressions) != 1:
        unsupported(node)
    return ["at", _tree(node.this), _tree(node.expressions[0])]


def _literal(node: Any) -> Tree:
    return ["text" if node.is_string else "number", str(node.this)]


def _cast(node: Any) -> Tree:
    only(node, "this", "to", "safe")
    operator = "try_cast" if isinstance(node, exp.TryCast) else "cast"
    return [operator, _tree(node.this), type_name(type_named(node.to)), is_explicit(node)]


def _in(node: Any) -> Tree:
    only(node, "this", "expressions")
    if not node.expressions or isinstance(node.this, exp.Tuple):
        unsupported(node)
    return ["in", _tree(node.this), [_tree(item) for item in node.expressions]]


def _between(node: Any) -> Tree:
    only(node, "this", "low", "high")
    return ["between", *(_tree(part) for part in (node.this, node.args["low"], node.args["high"]))]


def _case(node: Any) -> Tree:
    only(node, "this", "ifs", "default")
    branches = [[_tree(branch.this), _tree(branch.args["true"])] for branch in node.args["ifs"]]
    return ["case", _optional(node.args.get("this")), branches, _optional(node.args.get("default"))]


def _if(node: Any) -> Tree:
    only(node, "this", "true", "false")
    if node.args.get("false") is None:
        unsupported(node)
    return ["if", *(_tree(node.args[part]) for part in ("this", "true", "false"))]


def _substring(node: Any) -> Tree:
    only(node, "this", "start", "length")
    return ["substring", *(_optional(node.args.get(part)) for part in ("this", "start", "length"))]


def _trim(node: Any) -> Tree:
    only(node, "this", "expression", "position")
    position = node.args.get("position")
    return ["trim", _tree(node.this), _optional(node.args.get("expression")), position and str(position)]


def _interval(node: Any) -> Tree:
    only(node, "this", "unit")
    unit = node.args.get("unit")
    if not isinstance(unit, exp.Var | None):
        unsupported(node)
    return ["interval", _tree(node.this), unit and unit.name]


_FORMS: Mapping[type, Callable[[Any], Tree]] = {
    exp.Column: _column,
    exp.Dot: _dot,
    exp.Bracket: _bracket,
    exp.Null: lambda node: ["null"],
    exp.Boolean: lambda node: ["boolean", bool(node.this)],
    exp.Literal: _literal,
    exp.RawString: lambda node: ["text", str(node.this)],
    exp.HexString: lambda node: ["hex", str(node.this)],
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.If: _if,
    exp.Substring: _substring,
    exp.Trim: _trim,
    exp.Interval: _interval,
    exp.Anonymous: lambda node: ["call", node.name.lower(), [_tree(part) for part in node.expressions]],
}


def _expression(tree: Tree) -> Any:
    """sqlglot's tree, as the compiler takes it."""
    operator, *parts = tree
    if operator in _UNARY:
        (inner,) = parts
        return _UNARY[operator](this=_expression(inner))
    if operator in _BINARY:
        left, right = parts
        return _BINARY[operator](this=_expression(left), expression=_expression(right))
    return _MAKERS[operator](*parts)


def _made(tree: Tree | None) -> Any:
    return None if tree is None else _expression(tree)


def _made_column(name: str) -> Any:
    return exp.Column(this=exp.Identifier(this=name, quoted=True))


def _made_cast(kind: type) -> Callable[..., Any]:
    def make(of: Tree, name: str, explicit: bool) -> Any:
        sizes = _DECIMAL.fullmatch(name)
        if sizes is None:
            to = exp.DataType(this=_TYPES[name])
        else:
            params = [exp.DataTypeParam(this=exp.Literal.number(size)) for size in sizes.groups()]
            to = exp.DataType(this=_NAMED.DECIMAL, expressions=params)
        made = kind(this=_expression(of), to=to)
        return mark_explicit(made) if explicit else made

    return make


def _made_case(of: Tree | None, branches: list[Any], default: Tree | None) -> Any:
    ifs = [exp.If(this=_expression(test), true=_expression(value)) for test, value in branches]
    return exp.Case(this=_made(of), ifs=ifs, default=_made(default))


def _made_trim(of: Tree, characters: Tree | None, position: str | None) -> Any:
    return exp.Trim(this=_expression(of), expression=_made(characters), position=position)


_MAKERS: Mapping[str, Callable[..., Any]] = {
    "column": _made_column,
    "field": lambda of, name: exp.Dot(this=_expression(of), expression=exp.Identifier(this=name, quoted=True)),
    "at": lambda of, place: exp.Bracket(this=_expression(of), expressions=[_expression(place)]),
    "null": exp.Null,
    "boolean": lambda value: exp.Boolean(this=bool(value)),
    "text": exp.Literal.string,
    "number": exp.Literal.number,
    "hex": lambda digits: exp.HexString(this=digits),
    "cast": _made_cast(exp.Cast),
    "try_cast": _made_cast(exp.TryCast),
    "in": lambda of, items: exp.In(this=_expression(of), expressions=[_expression(item) for item in items]),
    "between": lambda of, low, high: exp.Between(this=_expression(of), low=_expression(low), high=_expression(high)),
    "case": _made_case,
    "if": lambda test, one, other: exp.If(this=_expression(test), true=_expression(one), false=_expression(other)),
    "substring": lambda of, start, length: exp.Substring(
        this=_expression(of), start=_made(start), length=_made(length)
    ),
    "trim": _made_trim,
    "interval": lambda of, unit: exp.Interval(this=_expression(of), unit=unit and exp.Var(this=unit)),
    "call": lambda name, parts: exp.Anonymous(this=name, expressions=[_expression(part) for part in parts]),
}
