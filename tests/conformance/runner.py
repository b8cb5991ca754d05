"""Runs the conformance cases on an engine, in every way that must not show in the answer.

``docs/guides/conformance.md`` defines a case and the four things a runner varies. A :class:`Mode` is one choice
of all four; :func:`plan` rewrites a case's steps for it and :func:`run_case` plays them.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.conformance.custom_mergers import CUSTOM_MERGERS
from tests.conformance.values import arrow_schema, assert_rows, frame_of, from_json, rows_of
from tests.model import rank

__all__ = [
    "COMPACTIONS",
    "SUPPORTED",
    "Case",
    "Compaction",
    "Engine",
    "Filter",
    "Handle",
    "Mode",
    "TableCase",
    "applies",
    "load_cases",
    "plan",
    "run_case",
]

Compaction = Literal["full", "minor", "logs", "rescale"]
"""What changes files and no answer: full and minor compaction, log compaction of all logs, and a rewrite
for another count of buckets."""

COMPACTIONS: tuple[Compaction, ...] = ("full", "minor", "logs", "rescale")

CASES = Path(__file__).parent / "cases"
KIND = "_op"

SUPPORTED: frozenset[str | None] = frozenset(
    {
        None,
        "aggregate",
        "aws-dms",
        "commit-time",
        "debezium-mysql",
        "debezium-postgres",
        "event-time",
        "expression",
        "first-row",
        "overwrite-non-defaults",
        "partial-update",
        *(merger.name for merger in CUSTOM_MERGERS),
    }
)
"""Mergers whose cases run against the product; ``None`` is the default merger. Extend it here, and
the expected numbers of cases in the test modules with it."""


@dataclass(frozen=True)
class TableCase:
    ddl: str
    key: tuple[str, ...]
    ordering: tuple[str, ...]
    merger: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.ddl)


@dataclass(frozen=True)
class Write:
    """One commit. ``number``: which ``write`` of the case ends with it, if one does."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    number: int | None
    refused: Literal["no", "write", "write-or-read"] = "no"
    types: Mapping[str, str] = field(default_factory=dict)
    """Column -> its type in the frame as DDL, if that is not the table's."""


@dataclass(frozen=True)
class AddColumns:
    ddl: str


@dataclass(frozen=True)
class Compact:
    kind: Compaction = "full"


@dataclass(frozen=True)
class Expect:
    rows: tuple[tuple[Any, ...], ...]
    columns: tuple[str, ...] | None
    filter: tuple[Any, ...] | None
    as_of: int | None


@dataclass(frozen=True)
class Transact:
    """A transaction. It has one of ``values`` (an update), ``deletes``, or ``rows`` (a merge)."""

    where: tuple[Any, ...] | None = None
    values: Mapping[str, Any] | None = None
    deletes: bool = False
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    matched: Literal["update", "delete"] | None = None
    insert: bool = False


@dataclass(frozen=True)
class Overwrite:
    """An overwrite of the table, of the partitions that meet ``where``, or of those of the rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    where: tuple[Any, ...] | None = None
    dynamic: bool = False
    is_refused: bool = False


Step = Write | AddColumns | Compact | Expect | Transact | Overwrite


@dataclass(frozen=True)
class Case:
    file: str
    name: str
    table: TableCase
    steps: tuple[Step, ...]
    create_error: bool

    def __str__(self) -> str:
        return f"{self.file.removesuffix('.json')}/{self.name}"


@dataclass(frozen=True)
class Mode:
    """One choice of everything that must not matter.

    ``calls``: ``plain`` passes a kind column only where some row is not ``+U``, ``kinds`` always,
    ``deletes`` makes a commit of nothing but ``-D`` through ``delete``. ``reads``: as the case asks,
    by SQL string, by expression, or everything and then selected by hand. ``compaction``: ``minor``,
    ``logs`` and ``rescale`` are done after every change, ``random`` is any kind.
    """

    name: str
    compaction: Literal["case", "never", "always", "minor", "logs", "rescale", "random"] = "case"
    batching: Literal["case", "rows", "joined"] = "case"
    spread: bool = False
    reads: Literal["full", "sql", "expression"] = "full"
    calls: Literal["plain", "kinds", "deletes"] = "plain"
    buckets: int = 2
    seed: int = 0

    def __str__(self) -> str:
        return self.name


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Filter:
    """``column operator value``, or ``column is [not] null``, in the forms that engines take."""

    column: str
    operator: str
    value: Any = None

    def sql(self) -> str:
        if self.operator.startswith("is"):
            return f"{self.column} {self.operator}"
        if isinstance(self.value, float) and not math.isfinite(self.value):
            return f"{self.column} {self.operator} double('{self.value}')"
        text = "'" + self.value.replace("'", "''") + "'" if isinstance(self.value, str) else str(self.value)
        return f"{self.column} {self.operator} {text}"

    def expression(self) -> pc.Expression:
        """The same condition in Arrow's terms: there NaN equals nothing, and is neither above nor below a number."""
        column: Any = pc.field(self.column)
        if self.operator == "is null":
            return cast("pc.Expression", column.is_null())
        if self.operator == "is not null":
            return cast("pc.Expression", column.is_valid())
        plain = _OPERATORS[self.operator](column, pc.scalar(self.value))
        if not isinstance(self.value, float):
            return cast("pc.Expression", plain)
        if math.isnan(self.value):
            of_nan = _OPERATORS[self.operator](1, 1), _OPERATORS[self.operator](0, 1)
            return cast("pc.Expression", pc.if_else(column.is_nan(), *map(pc.scalar, of_nan)))
        return cast("pc.Expression", plain | column.is_nan() if self.operator in (">", ">=") else plain)

    def keeps(self, value: Any) -> bool:
        if self.operator.startswith("is"):
            return (value is None) == (self.operator == "is null")
        return value is not None and bool(_OPERATORS[self.operator](rank(value), rank(self.value)))


class Handle(Protocol):
    """An open table of some engine. Versions are the engine's own numbers."""

    def write(self, frame: pa.Table, *, kind_column: str | None, spread: bool) -> int: ...

    def delete(self, frame: pa.Table) -> int: ...

    def update(self, values: Mapping[str, Any], where: Filter | None) -> int: ...

    def delete_where(self, where: Filter | None) -> int: ...

    def merge(self, source: pa.Table, matched: str | None, *, insert: bool) -> int:
        """``matched``: what becomes of rows that the source has too: ``update``, ``delete``, or nothing. ``insert``:
        whether the others are inserted."""

    def overwrite(self, frame: pa.Table, where: Filter | None, *, dynamic: bool, spread: bool) -> int: ...

    def add_columns(self, ddl: str) -> None: ...

    def compact(self, kind: Compaction) -> None: ...

    def version(self) -> int: ...

    def reopen(self) -> None:
        """Forget everything held in memory."""

    def read(
        self,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        form: Literal["sql", "expression"] = "sql",
    ) -> pa.Table: ...


class Engine(Protocol):
    errors: tuple[type[Exception], ...]
    """What a refusal is raised as."""

    def create(self, table: TableCase, *, buckets: int, spread: bool) -> Handle:
        """A new table; with ``spread`` a writer that puts each batch of rows into a file of its own."""


def load_cases(*, supported: frozenset[str | None] | None = None) -> dict[str, list[Case]]:
    """All cases by file; with ``supported`` those of these mergers and every ``create_error``."""
    files = {
        path.name: [_case(path.name, raw) for raw in json.loads(path.read_text())] for path in CASES.glob("*.json")
    }
    return {
        name: [c for c in cases if supported is None or c.create_error or c.table.merger in supported]
        for name, cases in sorted(files.items())
    }


def _case(file: str, raw: Mapping[str, Any]) -> Case:
    given = raw["table"]
    table = TableCase(
        given["schema"],
        tuple(given["key"]),
        tuple(given["ordering"]),
        given.get("merger"),
        given["options"],
        tuple(given.get("partition_by", ())),
    )
    names, steps, number = table.schema.names, list[Step](), 0
    for step in raw.get("steps", ()):
        if "add_columns" in step:
            names = [*names, *arrow_schema(step["add_columns"]).names]
            steps.append(AddColumns(step["add_columns"]))
        elif "compact" in step:
            steps.append(Compact())
        elif "update" in step or "delete_where" in step or "merge" in step:
            where = step.get("where", step.get("delete_where")) or None
            steps.append(
                Transact(
                    where=None if where is None else tuple(where),
                    values=step.get("update"),
                    deletes="delete_where" in step,
                    columns=tuple(step.get("columns", names)),
                    rows=tuple(map(tuple, step.get("merge", ()))),
                    matched=step.get("matched"),
                    insert="not_matched" in step,
                )
            )
        elif "overwrite" in step:
            steps.append(
                Overwrite(
                    tuple(step.get("columns", names)),
                    tuple(map(tuple, step["overwrite"])),
                    tuple(step["where"]) if "where" in step else None,
                    step.get("dynamic", False),
                    "error" in step,
                )
            )
        elif "expect" in step:
            columns = tuple(step["columns"]) if "columns" in step else None
            condition = tuple(step["filter"]) if "filter" in step else None
            steps.append(Expect(tuple(map(tuple, step["expect"])), columns, condition, step.get("as_of")))
        else:
            refused = step.get("error", "no")
            rows = tuple(map(tuple, step["write"]))
            here = None if "error" in step else number
            steps.append(Write(tuple(step.get("columns", names)), rows, here, refused, step.get("types", {})))
            number += "error" not in step
    return Case(file, raw["name"], table, tuple(steps), raw.get("create_error", False))


def plan(case: Case, mode: Mode) -> list[Step]:
    """The case's steps, with other commits and compactions but the same answers."""
    steps: list[Step] = [s for s in case.steps if mode.compaction == "case" or not isinstance(s, Compact)]
    if mode.batching == "rows":
        steps = [part for step in steps for part in _by_rows(step)]
    elif mode.batching == "joined":
        steps = _joined(steps)
    known = {step.number for step in steps if isinstance(step, Write)}
    steps = [s for s in steps if not isinstance(s, Expect) or s.as_of is None or s.as_of in known]
    return _compacted(steps, mode, random.Random(f"{case.name}/{mode.seed}"))


def _by_rows(step: Step) -> list[Step]:
    if not isinstance(step, Write) or step.refused != "no" or len(step.rows) < 2:
        return [step]
    parts: list[Step] = [replace(step, rows=(row,), number=None) for row in step.rows[:-1]]
    return [*parts, replace(step, rows=step.rows[-1:])]


def _joined(steps: Sequence[Step]) -> list[Step]:
    result: list[Step] = []
    for step in steps:
        last = result[-1] if result else None
        if (
            isinstance(step, Write)
            and isinstance(last, Write)
            and step.refused == last.refused == "no"
            and (step.columns, step.types) == (last.columns, last.types)
        ):
            result[-1] = replace(step, rows=last.rows + step.rows)
        else:
            result.append(step)
    return result


def _compacted(steps: Sequence[Step], mode: Mode, rng: random.Random) -> list[Step]:
    if mode.compaction in ("case", "never"):
        return list(steps)

    def compact() -> Compact:
        return Compact(rng.choice(COMPACTIONS) if mode.compaction == "random" else _kind(mode))

    result: list[Step] = []
    for step in steps:
        result.append(step)
        changes = isinstance(step, AddColumns | Transact | Overwrite) or (
            isinstance(step, Write) and step.refused != "write-or-read"
        )
        if changes and (mode.compaction != "random" or rng.random() < 0.5):
            result.append(compact())
    return [compact(), *result] if rng.random() < 0.5 else result


def _kind(mode: Mode) -> Compaction:
    match mode.compaction:
        case "minor" | "logs" | "rescale":
            return mode.compaction
        case _:
            return "full"


def applies(case: Case, mode: Mode, *, base: Mode) -> bool:
    """False where ``mode`` makes nothing of the case that ``base`` does not: the same commits through
    the same calls, compacted and read alike."""
    steps = plan(case, mode)
    if steps != plan(case, base) or mode.reads != base.reads:
        return True
    writes = [step for step in steps if isinstance(step, Write)]
    many = [step for step in steps if isinstance(step, Write | Overwrite) and len(step.rows) > 1]
    if mode.spread != base.spread and many:
        return True
    return any(_calls(step, mode) != _calls(step, base) for step in writes)


def run_case(case: Case, mode: Mode, engine: Engine) -> None:
    """Raise an :class:`AssertionError` where the engine's answers are not the case's."""
    if case.create_error:
        with pytest.raises(engine.errors):
            engine.create(case.table, buckets=mode.buckets, spread=mode.spread)
        return
    handle = engine.create(case.table, buckets=mode.buckets, spread=mode.spread)
    schema, versions = case.table.schema, dict[int, tuple[int, pa.Schema]]()
    for place, step in enumerate(plan(case, mode)):
        about = f"{case} in mode {mode}, step {place} {step}"
        match step:
            case Write():
                if step.refused != "no":
                    _refused(handle, engine, schema, step, mode, about)
                    continue
                version = _write(handle, schema, step, mode)
                if step.number is not None:
                    versions[step.number] = (version, schema)
            case Transact():
                _transact(handle, schema, step)
            case Overwrite():
                _overwrite(handle, engine, schema, step, mode, about)
            case AddColumns():
                handle.add_columns(step.ddl)
                schema = pa.schema([*schema, *arrow_schema(step.ddl)])
            case Compact():
                handle.compact(step.kind)
            case Expect():
                at, shape = (None, schema) if step.as_of is None else versions[step.as_of]
                _expect(handle, step, at, shape, mode, about)


def _calls(step: Write, mode: Mode) -> Literal["upsert", "upsert with kinds", "delete"]:
    kinds = {row[0] for row in step.rows}
    if mode.calls == "deletes" and kinds == {"-D"}:
        return "delete"
    return "upsert" if mode.calls != "kinds" and kinds <= {"+U"} else "upsert with kinds"


def _write(handle: Handle, schema: pa.Schema, step: Write, mode: Mode) -> int:
    frame = frame_of(schema, step.columns, [row[1:] for row in step.rows], step.types)
    match _calls(step, mode):
        case "delete":
            return handle.delete(frame)
        case "upsert":
            return handle.write(frame, kind_column=None, spread=mode.spread)
        case "upsert with kinds":
            frame = frame.append_column(KIND, pa.array([row[0] for row in step.rows], pa.string()))
            return handle.write(frame, kind_column=KIND, spread=mode.spread)


def _transact(handle: Handle, schema: pa.Schema, step: Transact) -> None:
    where = None if step.where is None else _filter(step.where, schema)
    if step.values is not None:
        handle.update({name: from_json(v, schema.field(name).type) for name, v in step.values.items()}, where)
    elif step.deletes:
        handle.delete_where(where)
    else:
        handle.merge(frame_of(schema, step.columns, step.rows, {}), step.matched, insert=step.insert)


def _overwrite(handle: Handle, engine: Engine, schema: pa.Schema, step: Overwrite, mode: Mode, about: str) -> None:
    where = None if step.where is None else _filter(step.where, schema)
    frame = frame_of(schema, step.columns, step.rows, {})
    if not step.is_refused:
        handle.overwrite(frame, where, dynamic=step.dynamic, spread=mode.spread)
        return
    version = handle.version()
    with pytest.raises(engine.errors):
        handle.overwrite(frame, where, dynamic=step.dynamic, spread=mode.spread)
    assert handle.version() == version, f"{about}: a refused overwrite made a version"


def _filter(condition: Sequence[Any], schema: pa.Schema) -> Filter:
    column, how, *literal = condition
    return Filter(column, how, from_json(literal[0], schema.field(column).type) if literal else None)


def _refused(handle: Handle, engine: Engine, schema: pa.Schema, step: Write, mode: Mode, about: str) -> None:
    before, version = rows_of(handle.read()), handle.version()
    try:
        _write(handle, schema, step, mode)
    except engine.errors:
        after = handle.read()
        assert_rows(after, before, after.schema, f"{about}: rows after the refusal")
        assert handle.version() == version, f"{about}: a refused write made a version"
        return
    assert step.refused == "write-or-read", f"{about}: not refused"
    with pytest.raises(engine.errors):
        handle.read()
    with contextlib.suppress(*engine.errors):
        handle.compact(_kind(mode))
    with pytest.raises(engine.errors):
        handle.read()


def _expect(handle: Handle, step: Expect, at: int | None, schema: pa.Schema, mode: Mode, about: str) -> None:
    names = list(step.columns or schema.names)
    shape = pa.schema([schema.field(name) for name in names])
    rows = [tuple(from_json(v, f.type) for v, f in zip(row, shape, strict=True)) for row in step.rows]
    condition = None if step.filter is None else _filter(step.filter, schema)
    full = handle.read(version=at)
    by_hand = [tuple(row[name] for name in names) for row in _kept(full, condition)]
    assert_rows(_table(by_hand, shape), rows, shape, f"{about}: selected by hand")
    assert full.schema.names == schema.names, f"{about}: columns {full.schema.names}"
    if mode.reads == "full":
        return
    pushed = handle.read(version=at, columns=step.columns, filter=condition, form=mode.reads)
    assert_rows(pushed, rows, shape, about)
    probes = _probes(full, schema)
    for columns, derived in random.Random(about).sample(probes, min(3, len(probes))):
        part = pa.schema([schema.field(name) for name in columns])
        wanted = [tuple(row[name] for name in columns) for row in _kept(full, derived)]
        got = handle.read(version=at, columns=columns, filter=derived, form=mode.reads)
        assert_rows(got, wanted, part, f"{about}: probe {columns} where {derived}")


def _kept(table: pa.Table, condition: Filter | None) -> list[dict[str, Any]]:
    rows = [dict(zip(table.column_names, row, strict=True)) for row in rows_of(table)]
    return [row for row in rows if condition is None or condition.keeps(row[condition.column])]


def _table(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    shape = pa.schema([pa.field(f.name, f.type) for f in schema])
    return pa.Table.from_arrays([pa.array([row[i] for row in rows], f.type) for i, f in enumerate(shape)], schema=shape)


def _probes(full: pa.Table, schema: pa.Schema) -> list[tuple[list[str], Filter | None]]:
    """Projections and filters of our own, for a runner to take some of: the last column alone, all
    backwards, and each text or integer column compared with a value that it holds."""
    names = schema.names
    probes: list[tuple[list[str], Filter | None]] = [(names[-1:], None), (names[::-1], None)]
    for name in names:
        kind = schema.field(name).type
        values = [value for value in full.column(name).to_pylist() if value is not None]
        if values and (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            others = [other for other in names if other != name]
            probes += [(others, Filter(name, "=", values[0])), (others, Filter(name, ">", min(values)))]
            probes.append(([name], Filter(name, "is null")))
    return probes
