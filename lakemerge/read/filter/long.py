"""Long Arrow expressions, taken apart: chains of ``&``, ``|`` and ``~`` become conditions of any length.

Only the pickled form of an expression shows what is in it: a record batch of the literals, and in the metadata of its
schema the tree, in prefix order (Arrow, ``cpp/src/arrow/compute/expression.cc``, ``Serialize``). The metadata has the
same keys many times, which pyarrow's mapping of it loses, so they are read from the schema's flatbuffer
(``format/Schema.fbs``).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.read.filter.judging import Judgement, expressions_of
from lakemerge.read.filter.literals import Fit, Place
from lakemerge.read.filter.points import MOST_LITERALS, MOST_VALUES
from lakemerge.read.filter.predicates import (
    OPPOSITE,
    Operand,
    Points,
    Predicate,
    all_of,
    any_of,
    bind,
    compare_literal,
    is_in,
)

__all__ = ["Long", "compile_long"]

_MOST_CALLS = 200
"""How many calls one condition between ``&``, ``|`` and ``~`` may have, all within one another at the worst."""
_STACK_BYTES = 512 << 20
"""Address space for the thread that pickles an expression: Arrow's recursion takes some 100 bytes for each level."""
_COMPARISONS = {"equal": "=", "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}
_CHAINS = {"and_kleene": False, "or_kleene": True}


class Long(NamedTuple):
    """A long expression as a filter."""

    expression: Judgement
    columns: frozenset[str]
    may_match: Judgement | None
    points: Points


@dataclass(slots=True)
class _Call:
    """A call, with the range of its tokens."""

    name: str
    start: int
    end: int = 0
    arguments: list[_Call | _Leaf] = field(default_factory=list)
    calls: int = 1
    """How many calls it consists of."""


class _Leaf(NamedTuple):
    """A column, a literal, or a call's options."""

    kind: str
    value: str
    start: int
    end: int


class _Parts(NamedTuple):
    tokens: list[tuple[str, str]]
    batch: pa.RecordBatch


def compile_long(expression: pc.Expression, schema: pa.Schema) -> Long | None:
    """The filter of a long expression; ``None`` if it is short, and Arrow can take it as it is.

    Raises :class:`FilterError` for conditions that nest too deeply, and for what does not fit the table.
    """
    parts = _parts_of(expression)
    if parts is None or _is_short(parts):
        return None
    return _Compiler(schema, parts).compiled(_parsed(parts.tokens))


def _parts_of(expression: pc.Expression) -> _Parts | None:
    """``None`` if Arrow cannot pickle the expression."""
    found: list[_Parts] = []

    def work() -> None:
        try:
            _, (pickled, *_) = expression.__reduce__()
            with pa.ipc.open_file(pickled) as reader:
                found.append(_Parts(_entries(reader.schema), reader.get_batch(0)))
        except (pa.ArrowException, TypeError, ValueError, struct.error):
            return

    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=work, name="lakemerge-expression")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return found[0] if found else None


def _is_short(parts: _Parts) -> bool:
    """Whether :func:`lakemerge.read.filter.points.points_of` finds what values the expression names."""
    calls = sum(key == "call" for key, _ in parts.tokens)
    return calls <= MOST_LITERALS and all(len(_listed(column)) <= MOST_VALUES for column in parts.batch.columns)


def _listed(options: pa.Array) -> pa.Array:
    """The values of an ``isin``, if these are its options."""
    at = options.type.get_field_index("value_set") if pa.types.is_struct(options.type) else -1
    is_list = at >= 0 and pa.types.is_list(options.type.field(at).type)
    return options.field(at).flatten() if is_list else pa.nulls(0)


def _entries(schema: pa.Schema) -> list[tuple[str, str]]:
    """The metadata's keys and values, in their order."""
    data = schema.serialize().to_pybytes()
    body = 8 if data[:4] == b"\xff\xff\xff\xff" else 4
    message = _Table(data[body:], struct.unpack_from("<I", data, body)[0])
    header = message.table(2)
    entries = [] if header is None else header.tables(2)
    return [(entry.text(0), entry.text(1)) for entry in entries]


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def table(self, number: int) -> _Table | None:
        place = self._place(number)
        return None if place is None else _Table(self.data, place + self._word(place))

    def tables(self, number: int) -> list[_Table]:
        place = self._place(number)
        if place is None:
            return []
        start = place + self._word(place)
        slots = [start + 4 + 4 * entry for entry in range(self._word(start))]
        return [_Table(self.data, slot + self._word(slot)) for slot in slots]

    def text(self, number: int) -> str:
        place = self._place(number)
        if place is None:
            return ""
        start = place + self._word(place)
        return self.data[start + 4 : start + 4 + self._word(start)].decode()

    def _place(self, number: int) -> int | None:
        """Where a field is; ``None`` if it has its default."""
        table = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        slot = 4 + 2 * number
        if slot >= struct.unpack_from("<H", self.data, table)[0]:
            return None
        offset = struct.unpack_from("<H", self.data, table + slot)[0]
        return self.at + offset if offset else None

    def _word(self, at: int) -> int:
        return int(struct.unpack_from("<I", self.data, at)[0])


def _parsed(tokens: Sequence[tuple[str, str]]) -> _Call | _Leaf:
    """The tree of the tokens, made without recursion."""
    open_calls = [_Call("", 0)]
    place = 0
    while place < len(tokens):
        key, value = tokens[place]
        start, place = place, place + 1
        if key == "call":
            open_calls.append(_Call(value, start))
            continue
        if key == "end":
            done = open_calls.pop()
            done.end = place
            open_calls[-1].calls += done.calls
            open_calls[-1].arguments.append(done)
            continue
        if key == "nested_field_ref":
            place += int(value)
        open_calls[-1].arguments.append(_Leaf(key, value, start, place))
    return open_calls[0].arguments[0]


class _Compiler:
    def __init__(self, schema: pa.Schema, parts: _Parts) -> None:
        self.schema = schema
        self.tokens, self.batch = parts
        self.columns: set[str] = set()

    def compiled(self, root: _Call | _Leaf) -> Long:
        found = self.predicate(root)
        if found.expression is None:
            raise AssertionError("an Arrow expression is one again")
        for part in expressions_of(found.expression):
            if not pa.types.is_boolean(bind(part, self.schema)):
                raise FilterError("the filter joins something that is not a condition")
        return Long(found.expression, frozenset(self.columns), found.may_match, found.points)

    def predicate(self, root: _Call | _Leaf) -> Predicate:
        """Where the expression is true. Steps go down through chains and ``~``, and up again with what they found."""
        steps: list[tuple[_Call | _Leaf, bool, int]] = [(root, False, -1)]
        found: list[Predicate] = []
        while steps:
            node, negate, begun = steps.pop()
            if begun >= 0:
                parts = found[begun:]
                del found[begun:]
                is_or = _CHAINS[node.name] != negate  # type: ignore[union-attr] # only chains are begun
                found.append(any_of(parts) if is_or else all_of(parts))
            elif isinstance(node, _Call) and node.name in _CHAINS:
                steps.append((node, negate, len(found)))
                steps += [(part, negate, -1) for part in reversed(_flat(node))]
            elif isinstance(node, _Call) and node.name == "invert":
                steps.append((node.arguments[0], not negate, -1))
            else:
                found.append(self.condition(node, negate=negate))
        return found[0]

    def condition(self, node: _Call | _Leaf, *, negate: bool) -> Predicate:
        if isinstance(node, _Call):
            if node.calls > _MOST_CALLS:
                raise FilterError(
                    f"the filter has a condition of {node.calls} calls of functions, and the limit is {_MOST_CALLS}: "
                    "join conditions by &, | and ~, and give long lists to isin"
                )
            if (plain := self.plain(node, negate=negate)) is not None:
                return plain
        self.note_columns(node)
        expression = self.expression(node)
        return Predicate(~expression if negate else expression, None)

    def plain(self, node: _Call, *, negate: bool) -> Predicate | None:
        """A comparison of a column with values of its type, about which statistics tell; ``None`` for all else."""
        if not node.arguments or not isinstance(node.arguments[0], _Leaf) or node.arguments[0].kind != "field_ref":
            return None
        name, other = node.arguments[0].value, node.arguments[-1]
        place = self.schema.get_field_index(name)
        if place < 0 or not isinstance(other, _Leaf) or len(node.arguments) != 2:
            return None
        kind = self.schema.field(place).type
        if pa.types.is_floating(kind) or pa.types.is_nested(kind):
            return None
        operand, values = Operand(pc.field(name), kind, name, name), None
        if node.name in _COMPARISONS and other.kind == "literal":
            values = self.batch.column(int(other.value))
        elif node.name == "is_in" and other.kind == "options" and not negate:
            values = _listed(self.batch.column(int(other.value)))
        if values is None or values.type != kind or values.null_count or not len(values):
            return None
        try:
            fits = [Fit(Place.AT, value) for value in values.to_pylist()]
        except (ValueError, OverflowError):  # a time that Python has no value for
            return None
        self.columns.add(name)
        if node.name == "is_in":
            return is_in(operand, fits, negate=False)
        op = _COMPARISONS[node.name]
        return compare_literal(OPPOSITE[op] if negate else op, operand, fits[0])

    def note_columns(self, node: _Call | _Leaf) -> None:
        place = node.start
        while place < node.end:
            key, value = self.tokens[place]
            place += 1
            if key == "nested_field_ref":
                key, value = self.tokens[place]
                place += int(self.tokens[place - 1][1])
            if key == "field_ref":
                if value.startswith("FieldRef") or self.schema.get_field_index(value) < 0:
                    known = ", ".join(self.schema.names)
                    raise FilterError(f"the table has no column {value!r}; it has {known}", column=value)
                self.columns.add(value)

    def expression(self, node: _Call | _Leaf) -> pc.Expression:
        """A part of the expression by itself, with its literals only."""
        columns: list[pa.Array] = [pa.nulls(1)]  # Arrow wants one row, also of an expression without literals
        entries: list[tuple[str, str]] = []
        for key, value in self.tokens[node.start : node.end]:
            if key not in ("literal", "options"):
                entries.append((key, value))
                continue
            entries.append((key, str(len(columns))))
            columns.append(self.batch.column(int(value)))
        schema = pa.schema([pa.field("", column.type) for column in columns], pa.KeyValueMetadata(entries))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        load: Any = pc.Expression._deserialize
        found: pc.Expression = load(sink.getvalue())
        return found


def _flat(node: _Call) -> list[_Call | _Leaf]:
    """The parts of a chain, which Arrow nests two and two."""
    found: list[_Call | _Leaf] = []
    todo: list[_Call | _Leaf] = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, _Call) and part.name == node.name:
            todo += reversed(part.arguments)
        else:
            found.append(part)
    return found
