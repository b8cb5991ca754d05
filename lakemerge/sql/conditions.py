"""Conditions as they are written: each operand has its own type.

:meth:`Condition.node` casts the operands to Spark's common type and computes the condition. A filter first looks
whether it compares a column with a literal, for then it needs no cast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lakemerge.sql.casts import as_text
from lakemerge.sql.logic import compare, condition, is_null, junction, negation, null_safe, of_one_kind
from lakemerge.sql.nodes import Constant, Node, call
from lakemerge.sql.parsing import sql, unsupported
from lakemerge.sql.patterns import like, like_regex, pattern_call
from lakemerge.sql.strings import lower
from lakemerge.sql.types import STRING

__all__ = [
    "Among",
    "Comparison",
    "Condition",
    "Joined",
    "Like",
    "Not",
    "NullTest",
    "RowsAmong",
    "Truth",
    "TruthTest",
]


@dataclass(frozen=True, slots=True)
class Condition(ABC):
    tree: Any
    """sqlglot's tree of it."""

    @property
    def text(self) -> str:
        """The condition in SQL, for messages."""
        return sql(self.tree)

    @abstractmethod
    def node(self) -> Node:
        """What computes it. Raises :class:`FilterError` if the types do not fit."""


@dataclass(frozen=True, slots=True)
class Truth(Condition):
    """A boolean value."""

    value: Node

    def node(self) -> Node:
        return condition(self.value)


@dataclass(frozen=True, slots=True)
class Comparison(Condition):
    """``left operator right`` for ``= != < <= > >= <=>``."""

    operator: str
    left: Node
    right: Node

    def node(self) -> Node:
        if self.operator == "<=>":
            return null_safe(self.left, self.right, self.text)
        return compare(self.operator, self.left, self.right, self.text)


@dataclass(frozen=True, slots=True)
class Among(Condition):
    """``value IN (items)``, with at least one item."""

    value: Node
    items: tuple[Node, ...]

    def node(self) -> Node:
        text = self.text
        value, *items = of_one_kind([self.value, *self.items], text)
        return junction([compare("=", value, item, text) for item in items], text, is_or=True)


@dataclass(frozen=True, slots=True)
class RowsAmong(Condition):
    """``(value, ...) IN ((item, ...), ...)``. Only filters know it."""

    values: tuple[Node, ...]
    rows: tuple[tuple[str, tuple[Node, ...]], ...]
    """Each row's text and its values. Something else than a row has no values."""

    def node(self) -> Node:
        unsupported(self.tree)


@dataclass(frozen=True, slots=True)
class NullTest(Condition):
    """``value IS NULL``."""

    value: Node

    def node(self) -> Node:
        return is_null(self.value, self.text)


@dataclass(frozen=True, slots=True)
class TruthTest(Condition):
    """``of IS TRUE`` or ``of IS FALSE``. It is never null."""

    of: Condition
    wanted: bool

    def node(self) -> Node:
        return null_safe(self.of.node(), Constant(self.wanted, pa.bool_(), ""), self.text)


@dataclass(frozen=True, slots=True)
class Like(Condition):
    """``value LIKE pattern ESCAPE escape``, or ``ILIKE``."""

    value: Node
    pattern: Node
    escape: str
    ignores_case: bool
    """``ILIKE``."""

    def node(self) -> Node:
        texts, pattern = as_text(self.value), as_text(self.pattern)
        if self.ignores_case:
            texts, pattern = (call(lower, [side], STRING, side.text) for side in (texts, pattern))
        if isinstance(pattern, Constant) and pattern.value is not None:
            like_regex(pattern.value, self.escape)  # fails now if an escape stands before anything but a wildcard
        fails = not isinstance(pattern, Constant)
        return pattern_call(partial(like, escape=self.escape), texts, pattern, self.text, fails=fails)


@dataclass(frozen=True, slots=True)
class Not(Condition):
    of: Condition

    def node(self) -> Node:
        return negation(self.of.node(), self.text)


@dataclass(frozen=True, slots=True)
class Joined(Condition):
    """``AND`` or ``OR``."""

    parts: Sequence[Condition]
    is_or: bool

    def node(self) -> Node:
        return junction([part.node() for part in self.parts], self.text, is_or=self.is_or)
