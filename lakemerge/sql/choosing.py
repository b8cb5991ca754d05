"""``AND``, ``OR``, ``NOT``, ``CASE``, ``COALESCE``. Each part is computed only on the rows that still need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.nodes import Constant, Node, Rows, assembled, call, positions_of
from lakemerge.sql.types import name, widest

__all__ = ["Junction", "case", "coalesce", "condition", "junction", "negation"]

_BOOL = pa.bool_()


def condition(node: Node) -> Node:
    """The node as a truth value. Raises :class:`FilterError` if it is not one."""
    if pa.types.is_null(node.kind):
        return Constant(None, _BOOL, node.text)
    if not pa.types.is_boolean(node.kind):
        raise FilterError(f"{node.text} is {name(node.kind)}, not a condition", construct=node.text)
    return node


def junction(nodes: Sequence[Node], text: str, *, is_or: bool) -> Node:
    parts = tuple(map(condition, nodes))
    return Junction(parts, is_or, _BOOL, text, any(part.may_fail for part in parts))


def negation(node: Node, text: str) -> Node:
    return call(pc.invert, [condition(node)], _BOOL, text)


def case(branches: Sequence[tuple[Node, Node]], otherwise: Node | None, text: str) -> Node:
    """``CASE WHEN condition THEN value ... ELSE otherwise END``. Without ``ELSE`` the result is null."""
    conditions = tuple(condition(test) for test, _ in branches)
    given = [value for _, value in branches] + ([] if otherwise is None else [otherwise])
    kind = widest(given, text)
    values = tuple(cast(value, kind) for value in given)
    may_fail = any(node.may_fail for node in (*conditions, *values))
    return _Case(conditions, values, kind, text, may_fail)


def coalesce(nodes: Sequence[Node], text: str) -> Node:
    kind = widest(nodes, text)
    values = tuple(cast(node, kind) for node in nodes)
    return _Coalesce(values, kind, text, any(value.may_fail for value in values))


@dataclass(frozen=True, slots=True)
class Junction(Node):
    """``AND`` or ``OR``: each part is computed on the rows that the parts before it left undecided. Null decides
    nothing."""

    parts: tuple[Node, ...]
    is_or: bool
    kind: pa.DataType
    text: str
    may_fail: bool

    @property
    def children(self) -> Sequence[Node]:
        return self.parts

    def evaluate(self, rows: Rows) -> pa.Array:
        join = pc.or_kleene if self.is_or else pc.and_kleene
        found = self.parts[0].evaluate(rows)
        for part in self.parts[1:]:
            if not part.may_fail:
                found = join(found, part.evaluate(rows))
                continue
            asked = (pc.invert(found) if self.is_or else found).fill_null(True)
            values = part.evaluate(rows.where(asked))
            spread = assembled([(positions_of(asked), values)], rows.count, _BOOL)
            found = join(found, spread)  # null on the rows that are already decided; null changes nothing there
        return found


@dataclass(frozen=True, slots=True)
class _Case(Node):
    conditions: tuple[Node, ...]
    values: tuple[Node, ...]
    """One value for each condition, and one more if there is an ``ELSE``."""
    kind: pa.DataType
    text: str
    may_fail: bool

    @property
    def children(self) -> Sequence[Node]:
        return self.conditions + self.values

    def evaluate(self, rows: Rows) -> pa.Array:
        parts = []
        left, places = rows, np.arange(rows.count)
        for test, value in zip(self.conditions, self.values, strict=False):
            holds = test.evaluate(left).fill_null(False)
            parts.append((places[positions_of(holds)], value.evaluate(left.where(holds))))
            others = pc.invert(holds)
            left, places = left.where(others), places[positions_of(others)]
        if len(self.values) > len(self.conditions):
            parts.append((places, self.values[-1].evaluate(left)))
        return assembled(parts, rows.count, self.kind)


@dataclass(frozen=True, slots=True)
class _Coalesce(Node):
    values: tuple[Node, ...]
    kind: pa.DataType
    text: str
    may_fail: bool

    @property
    def children(self) -> Sequence[Node]:
        return self.values

    def evaluate(self, rows: Rows) -> pa.Array:
        parts = []
        left, places = rows, np.arange(rows.count)
        for value in self.values:
            found = value.evaluate(left)
            there, missing = found.is_valid(), found.is_null()
            parts.append((places[positions_of(there)], found.filter(there)))
            left, places = left.where(missing), places[positions_of(missing)]
        return assembled(parts, rows.count, self.kind)
