"""Value expressions of equality rules, and their parser.

There are two forms with one meaning: Sesam's lists (``["lower", "a.name"]``) and text as in SQL (``lower(a.name)``).
A path begins with the alias of a dataset. All paths of an expression name the same dataset.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "FUNCTIONS",
    "Call",
    "Expression",
    "ExpressionError",
    "Literal",
    "Node",
    "Path",
    "parse_equality",
    "parse_expression",
    "shown",
]

FUNCTIONS: Mapping[str, tuple[int, int | None]] = {
    "coalesce": (1, None),
    "concat": (1, None),
    "list": (1, None),
    "lower": (1, 1),
    "string": (1, 1),
    "strip": (1, 1),
    "tuples": (1, None),
    "upper": (1, 1),
}
"""Every function, with the fewest and the most arguments that it takes."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
      | (?P<name>(?:`[^`]+`|[\w$:@-]+)(?:\.(?:`[^`]+`|[\w$:@-]+))*)
      | (?P<mark>==|[(),=])
    )""",
    re.VERBOSE,
)
_SEGMENT = re.compile(r"`([^`]*)`|([^.`]+)")
_PATH = re.compile(r"(?:`[^`]+`|[^.`]+)(?:\.(?:`[^`]+`|[^.`]+))+")
_PLAIN = re.compile(r"[\w$:@-]+")
"""Names that need no back quotes."""
_LOOKS_LIKE_A_PATH = re.compile(r"[A-Za-z_][\w-]*\.[\w$`][\w$`.:-]*")


class ExpressionError(ValueError):
    """Something is no expression. The text says why."""


@dataclass(frozen=True, slots=True)
class Path:
    """A property of an entity, or of the structs in it."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Literal:
    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Node, ...]


Node: TypeAlias = Path | Literal | Call


@dataclass(frozen=True, slots=True)
class Expression:
    """A value expression over the entities of one dataset."""

    dataset: int
    """The dataset's offset."""
    node: Node

    @property
    def text(self) -> str:
        """A text that is the same for equal expressions, whatever the dataset's alias."""
        return json.dumps([self.dataset, _plain(self.node)], ensure_ascii=False)


def parse_equality(rule: object, aliases: Sequence[str]) -> tuple[Expression, Expression]:
    """The two sides of a rule. Raises :class:`ExpressionError`."""
    if isinstance(rule, str):
        sides = _Text(rule, aliases).equality()
    elif isinstance(rule, Sequence) and len(rule) == 3 and rule[0] == "eq":
        sides = parse_expression(rule[1], aliases), parse_expression(rule[2], aliases)
    else:
        raise ExpressionError('a rule is ["eq", one side, the other side], or text such as "a.x = lower(b.y)"')
    if sides[0].dataset == sides[1].dataset:
        raise ExpressionError(f"both sides name the dataset {aliases[sides[0].dataset]!r}; they must name two")
    return sides


def parse_expression(given: object, aliases: Sequence[str]) -> Expression:
    """One value expression. Raises :class:`ExpressionError`."""
    found: list[int] = []
    if isinstance(given, str):
        if _is_path(given, aliases):
            return _of_one_dataset(_path(given, aliases, found), found, aliases)
        return _Text(given, aliases).expression()
    node = _listed(given, aliases, found)
    return _of_one_dataset(node, found, aliases)


def shown(expression: Expression, aliases: Sequence[str]) -> str:
    """The expression as text, as in SQL."""
    return _shown(expression.node, aliases[expression.dataset])


def _of_one_dataset(node: Node, found: Sequence[int], aliases: Sequence[str]) -> Expression:
    datasets = sorted(set(found))
    if len(datasets) != 1:
        named = ", ".join(repr(aliases[offset]) for offset in datasets) or "none"
        raise ExpressionError(f"an expression names exactly one dataset; this one names {named}")
    return Expression(datasets[0], node)


def _listed(given: object, aliases: Sequence[str], found: list[int]) -> Node:
    """Reads a part of Sesam's form."""
    if isinstance(given, str):
        if _is_path(given, aliases):
            return _path(given, aliases, found)
        alias = given.partition(".")[0]
        if _LOOKS_LIKE_A_PATH.fullmatch(given):
            raise ExpressionError(
                f"{given!r} names the dataset {alias!r}; there are {', '.join(map(repr, aliases))}. A text with a dot "
                f"that is no path is written as text: \"concat(a.x, '{given}')\""
            )
        return Literal(given)
    if isinstance(given, bool | int | float):
        return Literal(given)
    if isinstance(given, Sequence) and given and isinstance(given[0], str):
        return _call(given[0], [_listed(part, aliases, found) for part in given[1:]])
    raise ExpressionError(f"{given!r} is no expression: write a path, or a list of a function and its arguments")


def _call(name: str, arguments: Sequence[Node]) -> Call:
    if name not in FUNCTIONS:
        raise ExpressionError(f"there is no function {name!r}; there are {', '.join(FUNCTIONS)}")
    fewest, most = FUNCTIONS[name]
    if len(arguments) < fewest or (most is not None and len(arguments) > most):
        wanted = "one argument" if most == 1 else f"{fewest} or more arguments"
        raise ExpressionError(f"{name!r} takes {wanted}, not {len(arguments)}")
    return Call(name, tuple(arguments))


def _is_path(text: str, aliases: Sequence[str]) -> bool:
    """Whether a string in Sesam's form is a path. In such a path blanks need no quotes."""
    return text.partition(".")[0] in aliases and "." in text and not set(text) & set("=(),'")


def _path(text: str, aliases: Sequence[str], found: list[int]) -> Path:
    if _PATH.fullmatch(text) is None:
        raise ExpressionError(f"{text!r} is no path: write an alias, a dot and a property")
    names = tuple(quoted or plain for quoted, plain in _SEGMENT.findall(text))
    if names[0] not in aliases:
        raise ExpressionError(f"{text!r} names the dataset {names[0]!r}; there are {', '.join(map(repr, aliases))}")
    found.append(aliases.index(names[0]))
    return Path(names[1:])


class _Text:
    """Reads one text, token by token."""

    def __init__(self, text: str, aliases: Sequence[str]) -> None:
        self._text = text
        self._aliases = aliases
        self._tokens = list(_tokens(text))
        self._at = 0

    def equality(self) -> tuple[Expression, Expression]:
        left = self._side()
        if self._next() not in (("mark", "="), ("mark", "==")):
            raise ExpressionError(f"{self._text!r} is no rule: write two expressions with = between them")
        right = self._side()
        self._end()
        return left, right

    def expression(self) -> Expression:
        side = self._side()
        self._end()
        return side

    def _side(self) -> Expression:
        found: list[int] = []
        return _of_one_dataset(self._node(found), found, self._aliases)

    def _node(self, found: list[int]) -> Node:
        kind, value = self._next()
        if kind == "text":
            return Literal(value[1:-1].replace("''", "'"))
        if kind == "number":
            return Literal(float(value) if "." in value else int(value))
        if kind != "name":
            raise ExpressionError(f"{self._text!r} is no expression: {value or 'something'!r} is not expected there")
        if self._peek() != ("mark", "("):
            return _path(value, self._aliases, found)
        self._next()
        arguments = [self._node(found)]
        while (token := self._next()) == ("mark", ","):
            arguments.append(self._node(found))
        if token != ("mark", ")"):
            raise ExpressionError(f"{self._text!r} is no expression: a ')' is missing")
        return _call(value.lower(), arguments)

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _end(self) -> None:
        if self._peek()[0] != "end":
            raise ExpressionError(f"{self._text!r} has more than an expression: {self._peek()[1]!r} is not expected")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise ExpressionError(f"{text!r} cannot be read from {text[at:].strip()[:20]!r} on")
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


def _plain(node: Node) -> object:
    match node:
        case Path(names):
            return {"path": list(names)}
        case Literal(value):
            return {"literal": value}
        case Call(function, arguments):
            return [function, *map(_plain, arguments)]


def _shown(node: Node, alias: str) -> str:
    match node:
        case Path(names):
            return ".".join([alias, *(name if _PLAIN.fullmatch(name) else f"`{name}`" for name in names)])
        case Literal(value):
            return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else json.dumps(value)
        case Call(function, arguments):
            return f"{function}({', '.join(_shown(part, alias) for part in arguments)})"
