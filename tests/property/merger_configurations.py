"""Configurations of the built-in mergers, the records that hypothesis draws for them, and the fold.

A history is folded in two ways. The plain-Python model folds it record by record. The kernel folds it in the history's
commits, onto its own stored state, with pre-combined frames if the laws allow that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest

from mergers import Frame, Merger, RowKind, TableShape, default_registry, fold
from mergers.contract import Kinds
from mergers.errors import MergeOverflowError, RecordRefusedError
from mergers.kernel import combine, overlay_rows, tombstone_schema
from mergers.keys import key_columns, sort_order
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import arrow_schema, assert_rows
from tests.model import ModelTable, Refused, Unreadable

__all__ = ["CONFIGURATIONS", "Commit", "Configuration", "History", "check", "histories"]

KEYS = (1, 2, 3)
NAN = math.nan
_VALUES: dict[str, Sequence[Any]] = {
    "INT": (None, 0, 1, 2, 3, -7),
    "BIGINT": (None, 1, 2, 3, 2**62, -(2**63), 2**63 - 1),
    "STRING": (None, "", " ", "a", "b", "a,b", ",", "b,a,b", "zero"),
    "DOUBLE": (None, 0.1, 0.2, 0.3, -1.5, 1e16),
    "BOOLEAN": (None, True, False),
    "BINARY": (None, b"", b"a", b"zero"),
    "DECIMAL(5,2)": (None, *map(Decimal, ("0.00", "1.55", "-0.15", "999.99", "3.00"))),
    "DECIMAL(4,0)": (None, *map(Decimal, ("7", "-2", "9999"))),
    "DECIMAL(38,1)": (None, *map(Decimal, ("0.5", "9" * 37 + ".9", "-" + "9" * 37 + ".9"))),
    "ARRAY<INT>": (None, [], [1], [1, 2, 1], [3, None]),
    "MAP<INT,STRING>": (None, [], [(1, "a")], [(1, "b"), (2, None)], [(3, "c"), (2, "d")]),
    "ARRAY<STRUCT<a:INT,v:STRING>>": (
        None,
        [],
        [{"a": 1, "v": "x"}],
        [{"a": 2, "v": "y"}, {"a": 1, "v": "z"}],
        [{"a": None, "v": None}, {"a": 3, "v": "x"}],
    ),
    "ARRAY<DOUBLE>": (None, [], [NAN], [0.0, 1.5], [-0.0, NAN, None], [1.5, 1.5]),
    "ARRAY<ARRAY<DOUBLE>>": (
        None,
        [[]],
        [[NAN], None],
        [[0.0, 1.5], [-0.0, 1.5]],
        [[-0.0, 1.5], [0.0]],
        [None, [None]],
    ),
    "MAP<DOUBLE,STRING>": (None, [], [(0.0, "a")], [(-0.0, "b"), (NAN, "c")], [(NAN, "d"), (1.5, None)]),
    "ARRAY<STRUCT<a:DOUBLE,v:MAP<INT,DOUBLE>>>": (
        None,
        [],
        [{"a": NAN, "v": [(1, 0.0)]}],
        [{"a": 0.0, "v": None}, {"a": NAN, "v": [(1, -0.0)]}],
        [{"a": -0.0, "v": None}, {"a": 1.5, "v": [(1, NAN), (2, None)]}],
        [{"a": 1.5, "v": [(1, NAN), (2, None)]}, {"a": None, "v": []}],
    ),
}
"""Values of a column by its type."""


@dataclass(frozen=True)
class Configuration:
    """A table's configuration. ``kinds``: the row kinds that its records may have."""

    name: str
    ddl: str
    merger: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ordering: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("+U",)
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Column -> its values, if it does not take the values of :data:`_VALUES` for its type."""

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.ddl)

    @property
    def shape(self) -> TableShape:
        shape = TableShape(self.schema, ("k",), self.ordering)
        return replace(shape, remembers=self._built(shape).remembers(shape))

    def built(self) -> Merger:
        return self._built(self.shape)

    def _built(self, shape: TableShape) -> Merger:
        return default_registry().resolve(self.merger).from_options(dict(self.options), shape)

    def values_of(self, column: str) -> Sequence[Any]:
        types = dict(part.strip().split(" ", maxsplit=1) for part in self.ddl.split(", "))
        return self.values.get(column) or _VALUES[types[column]]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Commit:
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    kinds: tuple[str, ...]
    compact: bool
    """Fold everything into stored state after this commit."""


@dataclass(frozen=True)
class History:
    commits: tuple[Commit, ...]
    projection: tuple[str, ...]


_ALL = ("+U", "+I", "-U", "-D")
_FUNCTIONS = {
    "sum": ("INT", "BIGINT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,1)"),
    "product": ("INT", "BIGINT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(4,0)"),
    "count": ("INT", "BIGINT"),
    "last_value": ("STRING", "ARRAY<INT>"),
    "last_non_null_value": ("STRING", "MAP<INT,STRING>"),
    "collect": ("ARRAY<INT>", "ARRAY<DOUBLE>", "ARRAY<ARRAY<DOUBLE>>"),
    "merge_map": ("MAP<INT,STRING>", "MAP<DOUBLE,STRING>"),
    "nested_update": ("ARRAY<STRUCT<a:INT,v:STRING>>", "ARRAY<STRUCT<a:DOUBLE,v:MAP<INT,DOUBLE>>>"),
    "min": ("INT", "DOUBLE", "STRING"),
    "max": ("DECIMAL(5,2)", "BINARY", "BOOLEAN"),
    "first_value": ("INT", "STRING"),
    "first_non_null_value": ("INT",),
    "bool_and": ("BOOLEAN",),
    "bool_or": ("BOOLEAN",),
    "listagg": ("STRING",),
}
_RETRACTABLE = tuple(_FUNCTIONS)[:8]
_VARIANTS: dict[str, Mapping[str, Any]] = {
    "listagg": {"delimiter": "-", "distinct": True},
    "collect": {"distinct": True},
    "nested_update": {"nested_key": ["a"]},
}


def _aggregated(names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Columns and their functions: one for each type, and for each variant."""
    fields: list[str] = []
    chosen: dict[str, Any] = {}
    for name in names:
        variants: list[Mapping[str, Any]] = [{}, {"delimiter": ",", "distinct": True}] if name == "listagg" else [{}]
        variants += [_VARIANTS[name]] if name in _VARIANTS else []
        for kind in _FUNCTIONS[name]:
            for variant in variants:
                column = f"c{len(fields)}"
                fields.append(f"{column} {kind}")
                chosen[column] = {"function": name, **variant} if variant else name
    return fields, chosen


def _aggregates() -> list[Configuration]:
    found = []
    for ordering in ((), ("o",), ("o", "p")):
        given = [f"{name} INT" for name in ordering]
        for removing in (False, True):
            options = {"remove_record_on_delete": True} if removing else {}
            tag = f"{len(ordering)} orderings{', removing' if removing else ''}"
            for number in range(0, len(_RETRACTABLE), 4):
                fields, chosen = _aggregated(_RETRACTABLE[number : number + 4])
                ddl = ", ".join(["k INT", *given, *fields])
                found.append(
                    Configuration(
                        f"aggregate {number}, {tag}", ddl, "aggregate", {"aggregates": chosen} | options, ordering, _ALL
                    )
                )
            fields, chosen = _aggregated([name for name in _FUNCTIONS if name not in _RETRACTABLE])
            ddl = ", ".join(["k INT", *given, *fields])
            ignored = {"ignore_retract": list(chosen)}
            found.append(
                Configuration(
                    f"aggregate ignoring, {tag}",
                    ddl,
                    "aggregate",
                    {"aggregates": chosen} | ignored | options,
                    ordering,
                    _ALL,
                )
            )
    return found


def _partial_updates() -> list[Configuration]:
    found = []
    modes: list[dict[str, Any]] = [
        {},
        {"unset": "absent"},
        {"unset": "default", "defaults": {"s": "zero", "i": 0, "l": []}},
        {"unset": "marker", "marker": "zero"},
    ]
    values = "i INT, s STRING, b BINARY, l ARRAY<INT>"
    for mode in modes:
        name = f"partial-update {mode.get('unset', 'null')}"
        for ordering in ((), ("o",), ("o", "p")):
            ddl = ", ".join(["k INT", *(f"{column} INT" for column in ordering), values])
            deletes: list[dict[str, Any]] = [{"ignore_delete": True}, {"remove_record_on_delete": True}]
            found += [
                Configuration(
                    f"{name}, {len(ordering)} orderings, {option}", ddl, "partial-update", mode | option, ordering, _ALL
                )
                for option in deletes
            ]
        groups = {"s1": ["a", "b"], "s2,s3": ["c", "d", "e"]}
        ddl = "k INT, s1 INT, a STRING, b INT, s2 INT, s3 INT, c INT, d STRING, e INT, i INT, s STRING"
        plain = {"sequence_groups": groups} | _without(mode, "l")
        choices = {"b": "sum", "c": "first_value", "d": "last_non_null_value", "e": "count"}
        more = {"aggregates": choices, "ignore_retract": ["c"]}
        removal = {"remove_record_on_sequence_group": ["s2,s3", "s1"]}
        found.append(Configuration(f"{name}, groups", ddl, "partial-update", plain, (), _ALL))
        found.append(Configuration(f"{name}, aggregates", ddl, "partial-update", plain | more, (), _ALL))
        found.append(Configuration(f"{name}, removal", ddl, "partial-update", plain | more | removal, (), _ALL))
    return found


def _without(mode: Mapping[str, Any], column: str) -> dict[str, Any]:
    if "defaults" not in mode:
        return dict(mode)
    kept = {name: value for name, value in mode["defaults"].items() if name != column}
    return {**mode, "defaults": {**kept, "b": 2, "c": 3}}


def _others() -> list[Configuration]:
    rows = "v INT, s STRING, b BINARY"
    ignoring = {"ignore_delete": True}
    op = {"op_column": "op"}
    toast: tuple[Any, ...] = (None, "a", "__debezium_unavailable_value")
    found = [
        Configuration("first-row", f"k INT, {rows}", "first-row", ignoring, (), _ALL),
        Configuration("first-row, 1 ordering", f"k INT, o INT, {rows}", "first-row", ignoring, ("o",), _ALL),
        Configuration("first-row, 2", f"k INT, o INT, p DOUBLE, {rows}", "first-row", ignoring, ("o", "p"), _ALL),
        Configuration(
            "debezium-mysql",
            f"k INT, o STRING, p INT, op STRING, {rows}",
            "debezium-mysql",
            op,
            ("o", "p"),
            _ALL,
            {
                "op": ("u", "u", "c", "d"),
                "o": (None, "x.00002", "x.10", "9", "00000000000000000000010", "1", "bad.", ""),
            },
        ),
        Configuration(
            "debezium-postgres",
            f"k INT, o BIGINT, op STRING, {rows}",
            "debezium-postgres",
            op,
            ("o",),
            _ALL,
            {"op": ("u", "u", "c", "d"), "s": toast, "b": (*toast[:1], b"a", b"__debezium_unavailable_value")},
        ),
        Configuration(
            "aws-dms", f"k INT, o INT, op STRING, {rows}", "aws-dms", op, ("o",), _ALL, {"op": ("I", "U", "D")}
        ),
        Configuration(
            "overwrite-non-defaults", f"k INT, {rows}", "overwrite-non-defaults", {"defaults": {"s": "zero", "v": 0}}
        ),
    ]
    for marker in ({}, {"delete_when": {"column": "s", "values": ["a", "b"]}}):
        found.append(
            Configuration(f"event-time {len(marker)}", f"k INT, o INT, {rows}", "event-time", marker, ("o",), _ALL)
        )
        found.append(Configuration(f"commit-time {len(marker)}", f"k INT, {rows}", "commit-time", marker, (), _ALL))
    return found


_RULES: Mapping[str, Mapping[str, Any]] = {
    "sums": {"columns": {"i": "old.i + new.i", "n": "old.n + 1", "f": "old.f + new.f", "a": "old.a"}},
    "sums of others": {"columns": {"n": "old.n + coalesce(new.i, 0)", "a": "new.a"}, "default": "keep"},
    "sums from zero": {"columns": {"n": "coalesce(old.n, 0) + new.n", "f": "coalesce(old.f, 0) + new.f"}},
    "sums of what is known": {"columns": {"n": "coalesce(old.n + new.n, old.n, new.n)"}, "default": "first"},
    "differences": {"columns": {"n": "old.n + (new.i - old.i)"}},
    "less": {"columns": {"n": "old.n - new.n", "s": "coalesce(new.s, old.s)"}, "first": {"n": "1"}},
    "extremes": {
        "columns": {
            "f": "greatest(old.f, new.f)",
            "s": "least(new.s, old.s)",
            "r": "CASE WHEN new.r >= old.r THEN new.r ELSE old.r END",
        }
    },
    "picks": {
        "columns": {
            "r": "greatest(old.r, new.r)",
            "s": "CASE WHEN new.r >= old.r THEN new.s ELSE old.s END",
            "l": "array_union(old.l, new.l)",
        }
    },
    "picks by the lowest": {
        "columns": {"r": "IF(old.r > new.r, new.r, old.r)", "s": "coalesce(old.s, new.s)", "a": "old.b", "b": "old.a"},
        "default": "last",
    },
    "set or not": {
        "columns": {"s": "CASE WHEN is_set(new.s) THEN new.s WHEN is_first() THEN 'first' ELSE 'unset' END"},
        "first": {"s": "CASE WHEN is_set(new.s) THEN new.s WHEN is_first() THEN 'first' ELSE 'unset' END", "i": "1"},
    },
    "failing": {"columns": {"n": "old.n DIV new.n", "i": "old.i + new.i"}, "first": {"n": "new.n DIV new.i"}},
    "failing and anew": {"columns": {"n": "new.n DIV new.i"}},
    "ignoring": {"columns": {"n": "old.n + new.n"}, "ignore_when": "new.r < old.r"},
    "ignoring by a total": {"columns": {"n": "old.n + 1", "s": "upper(new.s)"}, "ignore_when": "old.n > 3"},
    "removing": {"columns": {"s": "coalesce(new.s, old.s)"}, "remove_when": "new.s = 'a'"},
    "removing later": {"columns": {"n": "old.n + new.n"}, "remove_when": "new.s = 'b' AND NOT is_first()"},
    "both": {
        "columns": {"r": "greatest(old.r, new.r)", "s": "CASE WHEN new.r = 1 THEN 'one' ELSE old.s END"},
        "first": {"s": "upper(new.s)"},
        "ignore_when": "new.r < old.r",
        "remove_when": "new.s = 'a'",
    },
    "failing conditions": {"columns": {"n": "old.n + new.n"}, "ignore_when": "new.n DIV new.i = 1"},
    "newer": {"default": "newer"},
    "last": {"default": "last"},
    "first": {"default": "first"},
}


def _expressions() -> list[Configuration]:
    found = []
    unordered = (
        "sums",
        "sums of what is known",
        "picks by the lowest",
        "failing",
        "ignoring by a total",
        "both",
        "last",
    )
    for ordering, names in (((), unordered), (("o",), tuple(_RULES)), (("o", "p"), ("both",))):
        given = [f"{name} INT" for name in ordering]
        ddl = ", ".join(["k INT", *given, "i INT, n BIGINT, f DOUBLE, s STRING, r INT, l ARRAY<INT>, a INT, b INT"])
        found += [
            Configuration(
                f"expression {name}, {len(ordering)} orderings", ddl, "expression", _RULES[name], ordering, _ALL
            )
            for name in names
        ]
    return found


CONFIGURATIONS = (*_others(), *_partial_updates(), *_aggregates(), *_expressions())


@st.composite
def histories(draw: st.DrawFn, configuration: Configuration) -> History:
    commits = draw(st.lists(_commits(configuration), min_size=1, max_size=6))
    names = configuration.schema.names
    projection = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    return History(tuple(commits), tuple(name for name in names if name in projection))


@st.composite
def _commits(draw: st.DrawFn, configuration: Configuration) -> Commit:
    names = configuration.schema.names
    unordered = bool(configuration.ordering) and "-D" in configuration.kinds and draw(st.integers(0, 6)) == 6
    kinds = ("-D", "-U") if unordered else configuration.kinds
    columns = set(names)
    if unordered or draw(st.booleans()):
        columns = {"k", *draw(st.lists(st.sampled_from(names), unique=True))}
        for group in configuration.options.get("sequence_groups", {}):
            parts = set(group.split(","))
            columns = columns | parts if columns & parts else columns
        columns = columns - set(configuration.ordering) if unordered else columns | set(configuration.ordering)
    if configuration.merger == "aws-dms" and unordered:
        columns |= set(configuration.ordering)
    order = draw(st.permutations(sorted(columns)))
    count = draw(st.integers(1, 6))
    cells = [st.sampled_from(KEYS if name == "k" else configuration.values_of(name)) for name in order]
    rows = draw(st.lists(st.tuples(*cells), min_size=count, max_size=count))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
    return Commit(tuple(order), tuple(rows), tuple(chosen), draw(st.booleans()))


def check(configuration: Configuration, history: History) -> None:
    """Check that the kernel's rows are the model's after every commit, also in a projection."""
    merger, shape = configuration.built(), configuration.shape
    model = ModelTable(
        configuration.schema,
        key=("k",),
        ordering=configuration.ordering,
        merger=configuration.merger,
        options=configuration.options,
        mergers=ALL_MERGERS,
    )
    stored = _Stored(configuration.schema.empty_table(), tombstone_schema(shape).empty_table(), ())
    for number, commit in enumerate(history.commits):
        rows = [dict(zip(commit.columns, row, strict=True)) for row in commit.rows]
        frame = _frame(commit, configuration.schema)
        kinds = np.array([_SYMBOLS[kind] for kind in commit.kinds], dtype=np.int8)
        try:
            model.write(commit.columns, rows, commit.kinds)
        except Refused:
            with pytest.raises(RecordRefusedError):
                _check_frame(merger, shape, frame, kinds)
            continue
        _check_frame(merger, shape, frame, kinds)
        stored = stored.with_frame(_combined(merger, shape, frame, kinds, number))
        about = f"commit {number}"
        try:
            expected: list[tuple[Any, ...]] = [tuple(row.values()) for row in model.rows()]
        except Unreadable:
            with pytest.raises(MergeOverflowError):
                stored.folded(merger, shape, shape.schema.names)
            continue
        now = stored.folded(merger, shape, shape.schema.names)
        assert_rows(now.base, expected, shape.schema, about)
        part = stored.folded(merger, shape, history.projection).base
        wanted = [tuple(row[name] for name in history.projection) for row in model.rows()]
        assert_rows(part, wanted, part.schema, f"{about}, projected")
        stored = now if commit.compact else stored


@dataclass(frozen=True)
class _Stored:
    """The contents of a table: its stored state, and the frames since."""

    base: pa.Table
    tombstones: pa.Table
    frames: tuple[Frame, ...]

    def with_frame(self, frame: Frame) -> _Stored:
        return _Stored(self.base, self.tombstones, (*self.frames, frame))

    def folded(self, merger: Merger, shape: TableShape, columns: Sequence[str]) -> _Stored:
        """The contents compacted, with these columns."""
        names = merger.needs(shape, columns) | set(shape.key) | set(shape.ordering)
        needed = [name for name in shape.schema.names if name in names]
        base = self.base.select(needed)
        frames = [
            Frame(
                frame.rows.select([name for name in frame.rows.column_names if name in names]),
                frame.kinds,
                frame.version,
                frozenset(frame.rows.column_names),
            )
            for frame in self.frames
        ]
        folded = fold(merger, shape, base=base, tombstones=self.tombstones, frames=frames, columns=columns)
        wanted = [name for name in shape.schema.names if name in columns]
        return _Stored(overlay_rows(base, folded, wanted, sort=True), folded.tombstones, ())


def _frame(commit: Commit, schema: pa.Schema) -> pa.Table:
    fields = [pa.field(name, schema.field(name).type) for name in schema.names if name in commit.columns]
    places = [commit.columns.index(f.name) for f in fields]
    arrays = [pa.array([row[i] for row in commit.rows], f.type) for i, f in zip(places, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _check_frame(merger: Merger, shape: TableShape, frame: pa.Table, kinds: Kinds) -> None:
    merger.check_kinds(shape, frozenset(RowKind(kind) for kind in kinds.tolist()))
    merger.check_records(shape, frame.combine_chunks().to_batches()[0], kinds)


def _combined(merger: Merger, shape: TableShape, frame: pa.Table, kinds: Kinds, version: int) -> Frame:
    """The frame sorted by key, as a writer leaves it."""
    order = sort_order(key_columns(frame, shape.key))
    rows, kinds = frame.take(pa.array(order)), kinds[order]
    keep = combine(merger, shape, Frame(rows, kinds, version), full=set(rows.column_names) == set(shape.schema.names))
    if keep is not None:
        rows, kinds = rows.filter(pa.array(keep)), kinds[keep]
    return Frame(rows, kinds, version)


_SYMBOLS = {kind.symbol: int(kind) for kind in RowKind}
