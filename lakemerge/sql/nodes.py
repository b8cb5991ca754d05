"""Values of SQL expressions, computed a batch at a time.

A :class:`Node` computes one Arrow array from the rows of a batch. It is asked only about the rows that need its value:
``CASE WHEN n > 0 THEN 1 / n END`` divides on the rows where ``n > 0``, as Spark does. So a computation that fails on a
row can raise its error at once. Nodes are picklable, because they are sent to Spark's tasks.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError

__all__ = [
    "Call",
    "Column",
    "Constant",
    "Field",
    "Node",
    "RowError",
    "Rows",
    "all_nodes",
    "assembled",
    "call",
    "positions_of",
]

Positions = npt.NDArray[np.int64]
_TIMESTAMP = pa.timestamp("us", "UTC")


class RowError(Exception):
    """The computation fails for the values of a row. The message says which values, and what is wrong."""


class Rows:
    """Some rows of a batch. A column is filtered to these rows when it is first used."""

    def __init__(self, of: pa.RecordBatch | Rows, mask: pa.BooleanArray | None = None) -> None:
        """:param mask: which rows of ``of``. Null means no. Without a mask, all rows."""
        self._of = of
        self._mask = mask
        self._columns: dict[str, pa.Array] = {}
        self.count: int = of.num_rows if isinstance(of, pa.RecordBatch) else of.count
        if mask is not None:
            self.count = mask.true_count

    @classmethod
    def one(cls) -> Rows:
        """One row without columns, to compute constants on."""
        return cls(pa.RecordBatch.from_arrays([pa.nulls(1)], [""]))

    def column(self, name: str) -> pa.Array:
        # Without recursion, because a CASE of many branches narrows its rows as many times.
        narrower: list[Rows] = []
        at: pa.RecordBatch | Rows = self
        while isinstance(at, Rows) and name not in at._columns:
            narrower.append(at)
            at = at._of
        found = at._columns[name] if isinstance(at, Rows) else at.column(name)
        for rows in reversed(narrower):
            found = found if rows._mask is None else found.filter(rows._mask)
            rows._columns[name] = found
        return found

    def where(self, mask: pa.BooleanArray) -> Rows:
        return self if mask.true_count == self.count else Rows(self, mask)


class Node(ABC):
    """An expression over rows."""

    __slots__ = ()

    kind: pa.DataType
    """The type of its values."""
    text: str
    """The expression in SQL, for messages."""
    may_fail: bool
    """Whether it may fail on some rows."""

    @property
    def children(self) -> Sequence[Node]:
        """The expressions that it consists of."""
        return ()

    @abstractmethod
    def evaluate(self, rows: Rows) -> pa.Array:
        """One value for each row. If it fails on a row, it raises a :class:`FilterError` with the row's values."""


@dataclass(frozen=True, slots=True)
class Column(Node):
    name: str
    kind: pa.DataType
    text: str
    may_fail: bool = False

    def evaluate(self, rows: Rows) -> pa.Array:
        return rows.column(self.name)


@dataclass(frozen=True, slots=True)
class Field(Node):
    """A field of a struct."""

    of: Node
    index: int
    kind: pa.DataType
    text: str
    may_fail: bool

    @property
    def children(self) -> Sequence[Node]:
        return (self.of,)

    def evaluate(self, rows: Rows) -> pa.Array:
        return pc.struct_field(self.of.evaluate(rows), [self.index])


@dataclass(frozen=True, slots=True)
class Constant(Node):
    value: Any
    """The Python value; ``None`` for NULL."""
    kind: pa.DataType
    text: str
    may_fail: bool = False
    literal: bool = False
    """It is written as a number. Spark then takes its precision from its digits and not from its type."""
    written: dt.datetime | None = None
    """The time in a text that is cast to TIMESTAMP or TIMESTAMP_NTZ. It has a zone only if the text has one."""

    def evaluate(self, rows: Rows) -> pa.Array:
        # Arrow repeats a list or map at least once.
        if self.value is None or not rows.count:
            return pa.nulls(rows.count, self.kind)
        return pa.repeat(pa.scalar(self.value, self.kind), rows.count)


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function of its arguments' values."""

    function: Callable[..., pa.Array]
    arguments: tuple[Node, ...]
    kind: pa.DataType
    text: str
    may_fail: bool
    strict: bool
    """The result is null if an argument is. As in Spark, the arguments after a null are not computed."""

    @property
    def children(self) -> Sequence[Node]:
        return self.arguments

    def evaluate(self, rows: Rows) -> pa.Array:
        if rows.count == 0:
            return pa.nulls(0, self.kind)
        arrays = self._values(rows)
        try:
            return self.function(*arrays)
        except (RowError, pa.ArrowException, MemoryError) as error:
            raise FilterError(f"the filter cannot be judged: {self.text}: {error}", construct=self.text) from error

    def _values(self, rows: Rows) -> list[pa.Array]:
        arrays: list[pa.Array] = []
        known: pa.BooleanArray | None = None
        for argument in self.arguments:
            if argument.may_fail and known is not None and known.true_count < rows.count:
                values = argument.evaluate(rows.where(known))
                arrays.append(assembled([(positions_of(known), values)], rows.count, argument.kind))
            else:
                arrays.append(argument.evaluate(rows))
            if self.strict and arrays[-1].null_count:
                valid = arrays[-1].is_valid()
                known = valid if known is None else pc.and_(known, valid)
        return arrays


def call(
    function: Callable[..., pa.Array],
    arguments: Sequence[Node],
    kind: pa.DataType,
    text: str,
    *,
    fails: bool = False,
    strict: bool = True,
) -> Node:
    """The node for ``function`` of the arguments. If all arguments are constants, it is computed now and the result is
    a constant. But not from a TIMESTAMP: the result depends on the time zone, and a constant would hide that.

    :param fails: whether ``function`` may raise :class:`RowError`.
    """
    may_fail = fails or any(argument.may_fail for argument in arguments)
    made = Call(function, tuple(arguments), kind, text, may_fail, strict)
    known = all(isinstance(argument, Constant) and argument.kind != _TIMESTAMP for argument in arguments)
    return _constant(made) if known and not pa.types.is_nested(kind) else made


def _constant(made: Call) -> Node:
    try:
        return Constant(made.evaluate(Rows.one())[0].as_py(), made.kind, made.text)
    except (FilterError, ValueError, OverflowError):  # it fails only if a row needs it, or Python has no such date
        return made


def all_nodes(node: Node) -> Iterator[Node]:
    """The node and all nodes below it."""
    yield node
    for child in node.children:
        yield from all_nodes(child)


def positions_of(mask: pa.BooleanArray) -> Positions:
    """Where a mask is true."""
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))


def assembled(parts: Sequence[tuple[Positions, pa.Array]], count: int, kind: pa.DataType) -> pa.Array:
    """``count`` values, put together from parts with their positions. Positions that no part has are null."""
    whole = pa.concat_arrays([pa.nulls(1, kind), *(values for _, values in parts)])
    places = np.zeros(count, dtype=np.int64)
    start = 1
    for positions, values in parts:
        places[positions] = np.arange(start, start + len(values))
        start += len(values)
    return whole.take(pa.array(places))
