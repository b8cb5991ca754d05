"""Random histories of a table: what they are, how hypothesis draws them, and how one is checked.

A history is a frozen value whose ``repr`` is the whole story, so a failing example can be read, and
pasted into a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import hypothesis.strategies as st
import pyarrow as pa

from tests.conformance.model_engine import ModelEngine, ModelHandle
from tests.conformance.runner import COMPACTIONS, Compaction, Engine, Filter, Handle, TableCase
from tests.conformance.values import assert_rows, rows_of

__all__ = [
    "AddColumn",
    "Compact",
    "History",
    "Overwrite",
    "Probe",
    "Reopen",
    "Transact",
    "Write",
    "check_history",
    "histories",
]

KIND = "_op"
_VALUES: dict[str, Sequence[Any]] = {
    "INT": (None, 0, 1, 2, 3, -2147483648),
    "BIGINT": (None, 0, 1, 2, 3, -1, 9223372036854775807),
    "STRING": (None, "", "a", "b", "d", "B", "\u00e9", "a b"),
    "DOUBLE": (None, 0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan),
}


_ADDED = ("x0 INT", "x1 STRING")
"""Columns that a history may add."""


@dataclass(frozen=True)
class Write:
    """One commit. ``kinds`` is ``None`` for a plain upsert without a kind column; ``by_delete`` goes
    through ``delete``; ``spread`` gives every row a batch of its own."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    kinds: tuple[str, ...] | None
    by_delete: bool
    spread: bool


@dataclass(frozen=True)
class Compact:
    kind: Compaction


@dataclass(frozen=True)
class AddColumn:
    ddl: str


@dataclass(frozen=True)
class Reopen:
    pass


@dataclass(frozen=True)
class Transact:
    """A transaction: an update of the rows that meet the filter, a delete of these, or a merge of rows."""

    how: Literal["update", "delete", "merge update", "merge delete"]
    where: Filter | None
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """The rows of a merge's source. An update has one row: the new values."""


@dataclass(frozen=True)
class Overwrite:
    """An overwrite. A condition, and partitions of the rows, mean something only to tables with partitions."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    where: Filter | None
    dynamic: bool
    spread: bool


Action = Write | Compact | AddColumn | Reopen | Transact | Overwrite


@dataclass(frozen=True)
class Probe:
    """A projection and perhaps a filter, read after a step."""

    columns: tuple[str, ...]
    filter: Filter | None
    form: Literal["sql", "expression"]


@dataclass(frozen=True)
class History:
    """``small_budget``: a writer that makes a file of every batch."""

    table: TableCase
    buckets: int
    small_budget: bool
    steps: tuple[tuple[Action, Probe], ...]


@st.composite
def _tables(draw: st.DrawFn) -> TableCase:
    keys = draw(st.sampled_from([("k INT",), ("k STRING",), ("k BIGINT", "k2 STRING"), ("k STRING", "k2 INT")]))
    orderings = draw(st.lists(st.sampled_from(["BIGINT", "DOUBLE", "STRING"]), max_size=2))
    merger = draw(st.sampled_from(["event-time", "commit-time", None])) if orderings else "commit-time"
    marker = draw(st.sampled_from([None, None, {"column": "s", "values": ["d"]}, {"column": "v", "values": [3, 1]}]))
    ordered = [f"o{i} {kind}" for i, kind in enumerate(orderings)]
    return TableCase(
        ddl=", ".join([*keys, "v INT", *ordered, "s STRING"]),
        key=tuple(part.split()[0] for part in keys),
        ordering=tuple(part.split()[0] for part in ordered),
        merger=merger,
        options={} if marker is None else {"delete_when": marker},
        partition_by=draw(st.sampled_from([(), ("k2",)])) if "k2 INT" in keys else (),
    )


def _kind_of(columns: dict[str, str], name: str, *, key: bool) -> st.SearchStrategy[Any]:
    values = _VALUES[columns[name]]
    return st.sampled_from(values[1:5] if key else values)


@st.composite
def _writes(draw: st.DrawFn, table: TableCase, columns: dict[str, str]) -> Write:
    """Mostly lawful frames; a careless one may lack ordering columns, and now and then a key is null.
    An empty frame has all ordering columns: what kind of frame it is otherwise would be a guess."""
    shape = draw(st.sampled_from(["full", "full", "partial", "partial", "keys", "careless"]))
    style = draw(st.sampled_from(["upsert", "upsert", "mixed", "mixed", "deletes", "by_delete"]))
    count = draw(st.integers(0, 6))
    deletes = style in ("deletes", "by_delete")
    others = [name for name in columns if name not in (*table.key, *table.ordering)]
    chosen = list(others) if shape == "full" else draw(st.lists(st.sampled_from(others), unique=True))
    if shape == "careless" and not deletes and count:
        chosen += draw(st.lists(st.sampled_from(table.ordering), unique=True)) if table.ordering else []
    elif not (shape == "keys" and deletes and count):
        chosen += table.ordering
    names = draw(st.permutations([*table.key, *chosen]))
    row = st.tuples(*(_kind_of(columns, name, key=name in table.key) for name in names))
    rows = draw(st.lists(row, min_size=count, max_size=count))
    if rows and draw(st.integers(0, 29)) == 29:
        place = names.index(table.key[-1])
        rows[-1] = (*rows[-1][:place], None, *rows[-1][place + 1 :])
    kinds: tuple[str, ...] | None = None
    if style == "mixed":
        one = st.sampled_from(["+U", "+U", "+I", "-D", "-D", "-U"])
        kinds = tuple(draw(st.lists(one, min_size=count, max_size=count)))
    elif deletes:
        kinds = ("-D",) * count
    return Write(tuple(names), tuple(rows), kinds, style == "by_delete", draw(st.booleans()))


@st.composite
def _probes(draw: st.DrawFn, columns: dict[str, str]) -> Probe:
    """No comparison on floats: SQL and Arrow differ on NaN, and filters are the engine's business."""
    names = draw(st.lists(st.sampled_from(list(columns)), min_size=1, unique=True))
    form: Literal["sql", "expression"] = "sql" if draw(st.booleans()) else "expression"
    if draw(st.booleans()):
        return Probe(tuple(names), None, form)
    column = draw(st.sampled_from(list(columns)))
    how = draw(st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "is null", "is not null"]))
    if how.startswith("is") or columns[column] == "DOUBLE":
        return Probe(tuple(names), Filter(column, how if how.startswith("is") else "is not null"), form)
    value = draw(st.sampled_from([value for value in _VALUES[columns[column]] if value is not None]))
    return Probe(tuple(names), Filter(column, how, value), form)


@st.composite
def _transactions(draw: st.DrawFn, table: TableCase, columns: dict[str, str]) -> Transact:
    how: Literal["update", "delete", "merge update", "merge delete"]
    how = draw(st.sampled_from(["update", "delete", "merge update", "merge delete"]))
    others = [name for name in columns if name not in table.key]
    chosen = draw(st.lists(st.sampled_from(others), min_size=1, unique=True))
    where = draw(_probes({name: columns[name] for name in (*table.key, *others)})).filter
    names = tuple(chosen) if how == "update" else (*table.key, *chosen)
    row = st.tuples(*(_kind_of(columns, name, key=name in table.key) for name in names))
    count = 1 if how == "update" else draw(st.integers(0, 4))
    keys = len(table.key)
    unique = None if how == "update" else (lambda values: values[:keys])
    rows = draw(st.lists(row, min_size=count, max_size=count, unique_by=unique))
    return Transact(how, where, names, tuple(rows))


@st.composite
def _overwrites(draw: st.DrawFn, table: TableCase, columns: dict[str, str]) -> Overwrite:
    """Now and then with a key twice, or with rows outside of the condition."""
    others = [name for name in columns if name not in table.key]
    names = (*table.key, *draw(st.lists(st.sampled_from(others), unique=True)))
    row = st.tuples(*(_kind_of(columns, name, key=name in table.key) for name in names))
    unique = None if draw(st.integers(0, 4)) == 4 else (lambda values: values[: len(table.key)])
    rows = draw(st.lists(row, max_size=5, unique_by=unique))
    where, dynamic = None, draw(st.booleans())
    if table.partition_by and not dynamic and draw(st.integers(0, 2)):
        (column,) = table.partition_by
        how = draw(st.sampled_from(["=", "!=", "<", ">="]))
        where = Filter(column, how, draw(_kind_of(columns, column, key=True)))
        if draw(st.integers(0, 3)):
            place = names.index(column)
            rows = [values for values in rows if where.keeps(values[place])]
    return Overwrite(names, tuple(rows), where, dynamic, draw(st.booleans()))


@st.composite
def _steps(draw: st.DrawFn, table: TableCase, columns: dict[str, str]) -> tuple[Action, Probe]:
    what = draw(
        st.sampled_from(
            [
                "write",
                "write",
                "write",
                "write",
                "compact",
                "compact",
                "transact",
                "transact",
                "overwrite",
                "overwrite",
                "add",
                "reopen",
            ]
        )
    )
    action: Action
    match what:
        case "write":
            action = draw(_writes(table, columns))
        case "compact":
            action = Compact(draw(st.sampled_from(COMPACTIONS)))
        case "transact":
            action = draw(_transactions(table, columns))
        case "overwrite":
            action = draw(_overwrites(table, columns))
        case "add":
            action = AddColumn(draw(st.sampled_from(_ADDED)))
        case _:
            action = Reopen()
    return action, draw(_probes(columns))


@st.composite
def histories(draw: st.DrawFn, *, max_steps: int = 8) -> History:
    """Steps are drawn without regard to each other, so that any of them can be shrunk away, over all
    columns there may ever be; those that are not there yet are then left out."""
    table = draw(_tables())
    columns = dict(part.split() for part in (*table.ddl.split(", "), *_ADDED))
    drawn = draw(st.lists(_steps(table, columns), min_size=1, max_size=max_steps))
    steps = tuple(_settled(drawn, {part.split()[0] for part in _ADDED}, table.key[0]))
    return History(table, draw(st.sampled_from([1, 4])), draw(st.booleans()), steps)


def _settled(steps: Sequence[tuple[Action, Probe]], absent: set[str], key: str) -> Iterator[tuple[Action, Probe]]:
    for action, probe in steps:
        settled = action
        if isinstance(action, AddColumn):
            name = action.ddl.split()[0]
            settled = action if name in absent else Reopen()
            absent = absent - {name}
        elif isinstance(action, Write | Overwrite):
            kept = [i for i, name in enumerate(action.columns) if name not in absent]
            rows = tuple(tuple(row[i] for i in kept) for row in action.rows)
            settled = replace(action, columns=tuple(action.columns[i] for i in kept), rows=rows)
        elif isinstance(action, Transact):
            kept = [i for i, name in enumerate(action.columns) if name not in absent]
            where = None if action.where is not None and action.where.column in absent else action.where
            if kept or action.how != "update":
                rows = tuple(tuple(row[i] for i in kept) for row in action.rows)
                names = tuple(action.columns[i] for i in kept)
                settled = replace(action, columns=names, rows=rows, where=where)
            else:
                settled = Reopen()
        columns = tuple(name for name in probe.columns if name not in absent) or (key,)
        condition = None if probe.filter is not None and probe.filter.column in absent else probe.filter
        yield settled, replace(probe, columns=columns, filter=condition)


def check_history(
    history: History, engine: Engine, *, again: bool = True
) -> tuple[Handle, ModelHandle, dict[int, int]]:
    """Play the history on the engine and on the model; they agree after every step, and every version
    that ever was still reads as it did.

    :param again: whether every version is read again at the end.
    :returns: both, and the model's number of each version."""
    table = history.table
    model = ModelEngine()
    expected = model.create(table, buckets=history.buckets, spread=False)
    actual = engine.create(table, buckets=history.buckets, spread=history.small_budget)
    seen = [(actual.version(), expected.version())]
    for place, (action, probe) in enumerate(history.steps):
        about = f"step {place} {action}"
        match action:
            case Write():
                _write_both(action, actual, expected, engine, about)
            case Transact():
                _both(partial(_transact, action, expected.model.schema), actual, expected, engine, about)
            case Overwrite():
                _overwrite_both(action, actual, expected, engine, about)
            case Compact():
                actual.compact(action.kind)
            case AddColumn():
                actual.add_columns(action.ddl)
                expected.add_columns(action.ddl)
            case Reopen():
                actual.reopen()
        _same(actual.read(), expected.read(), about)
        seen.append((actual.version(), expected.version()))
        got = actual.read(columns=probe.columns, filter=probe.filter, form=probe.form)
        _same(got, expected.read(columns=probe.columns, filter=probe.filter), f"{about}: {probe}")
    for version, number in dict(seen).items() if again else ():
        _same(actual.read(version=version), expected.read(version=number), f"version {version}, at the end")
    return actual, expected, dict(seen)


def _transact(action: Transact, schema: pa.Schema, handle: Handle) -> None:
    match action.how:
        case "update":
            handle.update(dict(zip(action.columns, action.rows[0], strict=True)), action.where)
        case "delete":
            handle.delete_where(action.where)
        case _:
            source = _frame(Write(action.columns, action.rows, None, False, False), schema)
            matched = action.how.removeprefix("merge ")
            handle.merge(source, matched, insert=matched == "update")


def _write_both(write: Write, actual: Handle, expected: ModelHandle, engine: Engine, about: str) -> None:
    frame = _frame(write, expected.model.schema)
    _both(lambda handle: _write(write, frame, handle), actual, expected, engine, about)


def _both(deed: Callable[[Handle], None], actual: Handle, expected: ModelHandle, engine: Engine, about: str) -> None:
    """Do the same on both. What the model refuses is refused, and makes no version."""
    before = actual.version()
    try:
        deed(expected)
    except ModelEngine.errors as refusal:
        try:
            deed(actual)
        except engine.errors:
            assert actual.version() == before, f"{about}: a refused write made a version"
        else:
            raise AssertionError(f"{about}: not refused, although {refusal}") from refusal
    else:
        deed(actual)


def _overwrite_both(action: Overwrite, actual: Handle, expected: ModelHandle, engine: Engine, about: str) -> None:
    frame = _frame(Write(action.columns, action.rows, None, False, False), expected.model.schema)
    before = actual.version()
    try:
        expected.overwrite(frame, action.where, dynamic=action.dynamic, spread=action.spread)
    except ModelEngine.errors as refusal:
        try:
            actual.overwrite(frame, action.where, dynamic=action.dynamic, spread=action.spread)
        except engine.errors:
            assert actual.version() == before, f"{about}: a refused overwrite made a version"
        else:
            raise AssertionError(f"{about}: not refused, although {refusal}") from refusal
    else:
        actual.overwrite(frame, action.where, dynamic=action.dynamic, spread=action.spread)


def _frame(write: Write, schema: pa.Schema) -> pa.Table:
    fields = [pa.field(name, schema.field(name).type) for name in write.columns]
    arrays = [pa.array([row[i] for row in write.rows], f.type) for i, f in enumerate(fields)]
    frame = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    if write.kinds is None or write.by_delete:
        return frame
    return frame.append_column(KIND, pa.array(write.kinds, pa.string()))


def _write(write: Write, frame: pa.Table, handle: Handle) -> None:
    if write.by_delete:
        handle.delete(frame)
    else:
        kind_column = None if write.kinds is None else KIND
        handle.write(frame, kind_column=kind_column, spread=write.spread)


def _same(actual: pa.Table, expected: pa.Table, about: str) -> None:
    assert_rows(actual, rows_of(expected), expected.schema, about)
