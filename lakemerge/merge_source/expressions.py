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
    "CONDITIONS",
    "FUNCTIONS",
    "Call",
    "Expression",
    "ExpressionError",
    "Literal",
    "Node",
    "Path",
    "lowered",
    "parse_equality",
    "parse_expression",
    "shown",
]

FUNCTIONS: Mapping[str, tuple[int, int | None]] = {
    "coalesce": (1, None),
    "concat": (1, None),
    "list": (1, None),
    "lower": (1, 1),
    "nullif": (2, None),
    "string": (1, 1),
    "strip": (1, 1),
    "tuples": (1, None),
    "upper": (1, 1),
}
"""Every function, with the fewest and the most arguments that it takes. ``case`` is written otherwise."""
CONDITIONS: Mapping[str, tuple[int, int | None]] = {
    "and": (1, None),
    "eq": (2, 2),
    "gt": (2, 2),
    "gte": (2, 2),
    "in": (2, None),
    "is-null": (1, 1),
    "lt": (2, 2),
    "lte": (2, 2),
    "neq": (2, 2),
    "not": (1, 1),
    "or": (1, None),
}
"""What may stand after ``when``, as Sesam's form names it."""
_OPERATORS: Mapping[str, str] = {
    "=": "eq",
    "==": "eq",
    "<>": "neq",
    "!=": "neq",
    "<": "lt",
    "<=": "lte",
    ">": "gt",
    ">=": "gte",
}
_SIGNS: Mapping[str, str] = {"eq": "=", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_WORDS: Mapping[str, bool | None] = {"null": None, "true": True, "false": False}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
      | (?P<name>(?:`[^`]+`|[\w$:@-]+)(?:\.(?:`[^`]+`|[\w$:@-]+))*)
      | (?P<mark>==|<>|!=|<=|>=|[(),=<>])
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
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or ``case``: a condition and a value by turns, and the value of ``else`` if their number is odd. A
    condition is a call of one of :data:`CONDITIONS`."""

    function: str
    arguments: tuple[Node, ...]


Node: TypeAlias = Path | Literal | Call


@dataclass(frozen=True, slots=True)
class Expression:
    """A value expression over the entities of one dataset."""

    dataset: int
    """The dataset's offset."""
    node: Node
    """The expression as it is written."""
    meaning: Node
    """The expression with the names of columns in lower case: two spellings of a column are one expression."""

    @property
    def text(self) -> str:
        """A text that is the same for equal expressions, whatever the dataset's alias and the spelling of columns."""
        return json.dumps([self.dataset, _plain(self.meaning)], ensure_ascii=False)


def lowered(node: Node) -> Node:
    """The node with the names of its columns in lower case. Names below a column may be keys of a map, and stay."""
    match node:
        case Path(names):
            return Path((names[0].lower(), *names[1:]))
        case Call(function, arguments):
            return Call(function, tuple(map(lowered, arguments)))
        case Literal():
            return node


def parse_equality(rule: object, aliases: Sequence[str]) -> tuple[Expression, Expression]:
    """The two sides of a rule. Raises :class:`ExpressionError`."""
    if isinstance(rule, str):
        sides = _Text(rule, aliases).equality()
    elif isinstance(rule, Sequence) and len(rule) == 3 and rule[0] == "eq":
        sides = parse_expression(rule[1], aliases), parse_expression(rule[2], aliases)
    else:
        raise ExpressionError('a rule is ["eq", one side, the other side], or text such as "a.x = lower(b.y)"')
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
    return Expression(datasets[0], node, lowered(node))


def _listed(given: object, aliases: Sequence[str], found: list[int]) -> Node:
    """Reads a part of Sesam's form."""
    if isinstance(given, str):
        if _is_path(given, aliases):
            return _path(given, aliases, found)
        alias = given.partition(".")[0]
        if _LOOKS_LIKE_A_PATH.fullmatch(given):
            raise ExpressionError(
                f"{given!r} names the dataset {alias!r}; there are {', '.join(map(repr, aliases))}. A text with a dot "
                f"that is not a path is written as text: \"concat(a.x, '{given}')\""
            )
        return Literal(given)
    if given is None or isinstance(given, bool | int | float):
        return Literal(given)
    if isinstance(given, Sequence) and given and isinstance(given[0], str):
        if given[0] in ("if", "case"):
            return _cases(given, aliases, found)
        return _call(given[0], [_listed(part, aliases, found) for part in given[1:]])
    raise ExpressionError(f"{given!r} is not an expression: write a path, or a list of a function and its arguments")


def _cases(given: Sequence[object], aliases: Sequence[str], found: list[int]) -> Node:
    """``["if", condition, value, other value]`` and ``["case", condition, value, ..., other value]``."""
    parts = given[1:]
    if len(parts) < 2 or (given[0] == "if" and len(parts) > 3):
        raise ExpressionError(f"{given[0]!r} takes a condition and a value, and may have another value at the end")
    paired = len(parts) - len(parts) % 2
    return Call(
        "case",
        tuple(
            _condition(part, aliases, found) if place < paired and place % 2 == 0 else _listed(part, aliases, found)
            for place, part in enumerate(parts)
        ),
    )


def _condition(given: object, aliases: Sequence[str], found: list[int]) -> Call:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given or given[0] not in CONDITIONS:
        raise ExpressionError(f"{given!r} is not a condition; write a list that begins with {', '.join(CONDITIONS)}")
    read = _condition if given[0] in ("and", "or", "not") else _listed
    return _call(given[0], [read(part, aliases, found) for part in given[1:]], CONDITIONS)


def _call(name: str, arguments: Sequence[Node], known: Mapping[str, tuple[int, int | None]] = FUNCTIONS) -> Call:
    if name not in known:
        raise ExpressionError(f"there is no function {name!r}; there are {', '.join(known)}")
    fewest, most = known[name]
    if len(arguments) < fewest or (most is not None and len(arguments) > most):
        wanted = "one argument" if most == 1 else "two arguments" if most else f"{fewest} or more arguments"
        raise ExpressionError(f"{name!r} takes {wanted}, not {len(arguments)}")
    return Call(name, tuple(arguments))


def _is_path(text: str, aliases: Sequence[str]) -> bool:
    """Whether a string in Sesam's form is a path. In such a path blanks need no quotes."""
    return text.partition(".")[0] in aliases and "." in text and not set(text) & set("=(),'")


def _path(text: str, aliases: Sequence[str], found: list[int]) -> Path:
    if _PATH.fullmatch(text) is None:
        raise ExpressionError(f"{text!r} is not a path: write an alias, a dot and a property")
    names = tuple(quoted or plain for quoted, plain in _SEGMENT.findall(text))
    if names[0] not in aliases:
        raise ExpressionError(f"{text!r} names the dataset {names[0]!r}; there are {', '.join(map(repr, aliases))}")
    found.append(aliases.index(names[0]))
    return Path(names[1:])


class _Text:
    """Reads one text, token by token. A parser of SQL would take ``a.first-name`` for a difference, and a backslash in
    a text for an escape."""

    def __init__(self, text: str, aliases: Sequence[str]) -> None:
        self._text = text
        self._aliases = aliases
        self._tokens = list(_tokens(text))
        self._at = 0

    def equality(self) -> tuple[Expression, Expression]:
        left = self._side()
        if self._next() not in (("mark", "="), ("mark", "==")):
            raise ExpressionError(f"{self._text!r} is not a rule: write two expressions with = between them")
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
            raise ExpressionError(
                f"{self._text!r} is not an expression: {value or 'something'!r} is not expected there"
            )
        if value.lower() == "case":
            return self._cases(found)
        if value.lower() in _WORDS:
            return Literal(_WORDS[value.lower()])
        if self._peek() != ("mark", "("):
            return _path(value, self._aliases, found)
        self._next()
        arguments = [self._node(found)]
        while (token := self._next()) == ("mark", ","):
            arguments.append(self._node(found))
        if token != ("mark", ")"):
            raise ExpressionError(f"{self._text!r} is not an expression: a ')' is missing")
        return _call(value.lower(), arguments)

    def _cases(self, found: list[int]) -> Node:
        """``case when CONDITION then VALUE ... else VALUE end`` or ``case VALUE when VALUE then VALUE ... end``."""
        operand = None if self._at_word("when") else self._node(found)
        arguments: list[Node] = []
        while self._take_word("when"):
            if operand is None:
                arguments.append(self._any_of(found))
            else:
                arguments.append(Call("eq", (operand, self._node(found))))
            self._expect("then")
            arguments.append(self._node(found))
        if not arguments:
            raise ExpressionError(f"{self._text!r} is not an expression: 'case' lacks a 'when'")
        if self._take_word("else"):
            arguments.append(self._node(found))
        self._expect("end")
        return Call("case", tuple(arguments))

    def _any_of(self, found: list[int]) -> Call:
        parts = [self._all_of(found)]
        while self._take_word("or"):
            parts.append(self._all_of(found))
        return parts[0] if len(parts) == 1 else Call("or", tuple(parts))

    def _all_of(self, found: list[int]) -> Call:
        parts = [self._condition(found)]
        while self._take_word("and"):
            parts.append(self._condition(found))
        return parts[0] if len(parts) == 1 else Call("and", tuple(parts))

    def _condition(self, found: list[int]) -> Call:
        if self._take_word("not"):
            return Call("not", (self._condition(found),))
        if self._peek() == ("mark", "("):
            self._next()
            inner = self._any_of(found)
            self._expect(")")
            return inner
        left = self._node(found)
        if self._take_word("is"):
            negated = self._take_word("not")
            self._expect("null")
            made = Call("is-null", (left,))
            return Call("not", (made,)) if negated else made
        negated = self._take_word("not")
        if negated or self._at_word("in"):
            self._expect("in")
            self._expect("(")
            among = [left, self._node(found)]
            while self._peek() == ("mark", ","):
                self._next()
                among.append(self._node(found))
            self._expect(")")
            made = Call("in", tuple(among))
            return Call("not", (made,)) if negated else made
        kind, sign = self._next()
        if kind != "mark" or sign not in _OPERATORS:
            raise ExpressionError(f"{self._text!r} is not an expression: a comparison is expected and not {sign!r}")
        return Call(_OPERATORS[sign], (left, self._node(found)))

    def _at_word(self, word: str) -> bool:
        kind, value = self._peek()
        return kind == "name" and value.lower() == word

    def _take_word(self, word: str) -> bool:
        there = self._at_word(word)
        self._at += there
        return there

    def _expect(self, what: str) -> None:
        kind, value = self._next()
        if kind == "text" or value.lower() != what:
            raise ExpressionError(
                f"{self._text!r} is not an expression: {what!r} is expected and not {value or 'its end'!r}"
            )

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
        case Call("case", arguments):
            return _shown_case(arguments, alias)
        case Call(function, arguments):
            return _shown_call(function, [_shown(part, alias) for part in arguments])


def _shown_case(arguments: Sequence[Node], alias: str) -> str:
    parts = [_shown(part, alias) for part in arguments]
    paired = len(parts) - len(parts) % 2
    whens = "".join(f" when {parts[at]} then {parts[at + 1]}" for at in range(0, paired, 2))
    return f"case{whens}{f' else {parts[-1]}' if len(parts) % 2 else ''} end"


def _shown_call(function: str, parts: Sequence[str]) -> str:
    if function in _SIGNS:
        return f"{parts[0]} {_SIGNS[function]} {parts[1]}"
    if function in ("and", "or"):
        return "(" + f" {function} ".join(parts) + ")"
    if function == "not":
        return f"not ({parts[0]})"
    if function == "is-null":
        return f"{parts[0]} is null"
    if function == "in":
        return f"{parts[0]} in ({', '.join(parts[1:])})"
    return f"{function}({', '.join(parts)})"
