"""What the golden tables are: one or more for every built-in merger.

Each is loaded into base files, written to, compacted (into new base files, with tombstones where the
merger keeps them) and written to again, so that it ends with logs that are not compacted yet.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasketches
import pyroaring

from lakemerge import Settings

__all__ = ["CASES", "Alter", "Case", "Compact", "Write"]


_PLAIN = Settings(threads=1)
_SPLIT = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, inline_blocks=1, threads=1)
"""Several base files a bucket, several logs a write, block index files."""


@dataclass(frozen=True)
class Write:
    """Rows of JSON values for ``columns``; one more value is the row's kind."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Compact:
    """All logs into base files, or beside them."""

    minor: bool = False


@dataclass(frozen=True)
class Alter:
    add_columns: str | None = None
    merger: str | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    name: str
    merger: str
    ddl: str
    steps: Sequence[Write | Compact | Alter]
    key: Sequence[str] = ("k",)
    ordering: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    partition_by: Sequence[str] = ()
    buckets: int = 1
    settings: Settings = _PLAIN
    by_hand: Sequence[Sequence[Sequence[Any]]] = ()
    """Rows after each step, where the model does not know the functions."""
    model_merger: str = ""
    """A merger that stands in for it in the model, where the rows are written by hand."""
    decode: Mapping[str, str] = field(default_factory=dict)
    """Binary columns whose rows are given as what is in them: a sketch's estimate, a bitmap's numbers."""


def _sketch(kind: str, *items: int) -> Mapping[str, str]:
    """Serialised by the library, not by the product."""
    made: bytes
    if kind == "hll":
        hll = datasketches.hll_sketch(8)
        for item in items:
            hll.update(item)
        made = hll.serialize_compact()
    elif kind == "theta":
        theta = datasketches.update_theta_sketch(8)
        for item in items:
            theta.update(item)
        made = theta.compact().serialize()
    else:
        made = (pyroaring.BitMap if kind == "bitmap" else pyroaring.BitMap64)(items).serialize()
    return {"b64": base64.b64encode(made).decode()}


def _bundle(key: int, items: Sequence[int], entries: Sequence[Sequence[Any]]) -> Sequence[Any]:
    sketches = [_sketch(kind, *items) for kind in ("hll", "theta", "bitmap", "bitmap64")]
    return [key, *sketches, {"map": entries}]


_KOV = ("k", "o", "v")

CASES = (
    Case(
        "event-time",
        "event-time",
        "p STRING, k BIGINT, o BIGINT, v STRING",
        key=("p", "k"),
        ordering=("o",),
        options={"delete_when": {"column": "v", "values": ["gone"]}},
        partition_by=("p",),
        buckets=2,
        settings=_SPLIT,
        steps=(
            Write(("p", "k", "o", "v"), [["north", k, 10, f"n{k}"] for k in range(6)] + [["söuth", 0, 10, "s0"]]),
            Write(
                ("p", "k", "o", "v"),
                [["north", 0, 11, "newer"], ["north", 1, 9, "late"], ["söuth", 0, 12, "gone"], ["north", 9, 1, "new"]],
            ),
            Write(("p", "k", "o"), [["north", 2, 20, "-D"], ["north", 7, 20, "-D"]]),
            Compact(),
            Write(("p", "k", "o"), [["north", 3, 30]]),
            Compact(minor=True),
            Write(
                ("p", "k", "o", "v"),
                [["north", 2, 19, "stale"], ["north", 7, 21, "back"], ["söuth", 0, 11, "stale"], ["west", 1, 1, "x"]],
            ),
            Write(("p", "k"), [["north", 4, "-D"]]),
        ),
    ),
    Case(
        "commit-time",
        "commit-time",
        "k BIGINT, d DATE, t TIMESTAMP, m DECIMAL(12,2), w DECIMAL(38,4), b BINARY, f DOUBLE, y BOOLEAN, "
        "l ARRAY<STRING>, s STRUCT<a: INT, b: ARRAY<BIGINT>>, x MAP<STRING,INT>",
        steps=(
            Write(
                ("k", "d", "t", "m", "w", "b", "f", "y", "l", "s", "x"),
                [
                    [
                        1,
                        "2026-02-28",
                        "2026-02-28T23:59:59.999999+00:00",
                        "9999999999.99",
                        "-" + "9" * 34 + ".0001",
                        {"b64": "AP8="},
                        1.5,
                        True,
                        ["a", None, ""],
                        [1, [2, None]],
                        {"map": [["k", 1], ["", None]]},
                    ],
                    [
                        2,
                        "0001-01-01",
                        "1900-01-01T00:00:00+00:00",
                        "-0.01",
                        "0.0000",
                        {"b64": ""},
                        -0.5,
                        False,
                        [],
                        [None, None],
                        {"map": []},
                    ],
                    [3, None, None, None, None, None, None, None, None, None, None],
                ],
            ),
            Write(("k", "f", "l"), [[1, 2.5, ["b"]], [3, 0.125, None], [4, 4.0, ["new"]]]),
            Compact(),
            Write(("k",), [[2, "-D"], [5]]),
            Alter(add_columns="late STRING"),
            Write(("late", "k"), [["x", 1], ["y", 2]]),
        ),
    ),
    Case(
        "first-row",
        "first-row",
        "k STRING, o INT, v STRING",
        ordering=("o",),
        options={"ignore_delete": True},
        steps=(
            Write(_KOV, [["a", 5, "first"], ["b", 5, "first"], ["ü", 5, None]]),
            Write(_KOV, [["a", 4, "lower"], ["b", 6, "higher"], ["c", 1, "new"], ["b", 1, None, "-D"]]),
            Compact(),
            Write(("k", "o"), [["a", 3], ["b", 5]]),
            Write(_KOV, [["c", None, "null is lowest"]]),
        ),
    ),
    Case(
        "partial-update",
        "partial-update",
        "k BIGINT, o BIGINT, a STRING, b INT",
        ordering=("o",),
        options={"unset": "default", "defaults": {"b": 0}, "remove_record_on_delete": True},
        steps=(
            Write(("k", "o", "a", "b"), [[1, 5, "x", 0], [2, 5, None, 7], [3, 5, "z", 9]]),
            Write(("k", "o", "b"), [[1, 4, 3], [2, 6, 0], [4, 1, 0]]),
            Write(("k", "o"), [[3, 9, "-D"]]),
            Compact(),
            Write(("k", "o", "a"), [[2, 3, "filled"], [3, 8, "stale"], [4, 2, None]]),
            Write(("k", "o", "a", "b"), [[1, 7, None, 8], [3, 10, "again", 1]]),
        ),
    ),
    Case(
        "partial-update-groups",
        "partial-update",
        "k BIGINT, g BIGINT, a STRING, n BIGINT, h INT, i INT, c STRING, free STRING",
        options={
            "sequence_groups": {"g": ["a", "n"], "h,i": ["c"]},
            "aggregates": {"n": "sum"},
            "remove_record_on_sequence_group": ["h,i"],
        },
        buckets=2,
        steps=(
            Write(
                ("k", "g", "a", "n", "h", "i", "c", "free"),
                [
                    [1, 5, "a5", 10, 1, 1, "c11", "f"],
                    [2, 5, "b5", 1, None, None, "never", None],
                    [3, 1, "x", 1, 1, 0, "y", "z"],
                ],
            ),
            Write(("k", "g", "a", "n"), [[1, 4, "late", 5], [2, 6, None, 2], [1, 4, None, 1, "-U"]]),
            Write(("k", "h", "i", "c"), [[1, 1, 0, "older"], [2, 2, None, "c2"], [3, 1, 1, None, "-D"]]),
            Compact(),
            Write(("k", "h", "i", "c", "free"), [[2, 2, 0, "c20", "set"], [3, None, 5, "c5", None]]),
            Write(("k", "g", "a", "n"), [[3, 0, "new", 4], [1, 9, "a9", 100, "-D"]]),
        ),
    ),
    Case(
        "aggregate",
        "aggregate",
        "k BIGINT, o BIGINT, total DECIMAL(38,2), best DOUBLE, seen INT, tags STRING, parts ARRAY<INT>, "
        "props MAP<STRING,INT>, items ARRAY<STRUCT<id: INT, v: STRING>>, ok BOOLEAN, born STRING, last STRING",
        ordering=("o",),
        options={
            "aggregates": {
                "total": "sum",
                "best": "max",
                "seen": "count",
                "tags": {"function": "listagg", "delimiter": ";", "distinct": True},
                "parts": "collect",
                "props": "merge_map",
                "items": {"function": "nested_update", "nested_key": ["id"]},
                "ok": "bool_and",
                "born": "first_value",
            },
            "ignore_retract": ["best", "tags", "ok", "born"],
        },
        steps=(
            Write(
                ("k", "o", "total", "best", "seen", "tags", "parts", "props", "items", "ok", "born", "last"),
                [
                    [1, 5, "1.10", 0.5, 7, "a", [1], {"map": [["x", 1]]}, [[1, "one"]], True, "first", "l1"],
                    [1, 6, "2.20", 0.25, 7, "b;a", [2, 1], {"map": [["y", 2]]}, [[2, "two"]], None, "second", None],
                    [2, 5, "-0.01", None, None, None, None, None, None, False, None, None],
                ],
            ),
            Write(
                ("k", "o", "total", "tags", "items"),
                [[1, 4, "0.70", "late", [[1, "older"], [3, "three"]]], [3, 1, "9" * 36 + ".99", "z", []]],
            ),
            Compact(),
            Write(
                ("k", "o", "total", "best", "seen", "parts", "props", "last"),
                [
                    [1, 7, "0.10", 9.0, 1, [1], {"map": [["x", 0]]}, "l1", "-U"],
                    [2, 6, "5.00", 1.0, 1, [4], {"map": [["z", None]]}, "l2"],
                ],
            ),
            Write(("k", "o", "ok", "seen"), [[1, 8, False, 1], [4, 1, True, None]]),
        ),
    ),
    Case(
        "aggregate-sketches",
        "aggregate",
        "k BIGINT, h BINARY, t BINARY, b BINARY, w BINARY, m MAP<STRING,STRUCT<v: INT, at: BIGINT>>",
        options={
            "aggregates": {
                "h": {"function": "hll_sketch", "lg_k": 10},
                "t": "theta_sketch",
                "b": "roaring_bitmap",
                "w": {"function": "roaring_bitmap", "bits": 64},
                "m": {"function": "merge_map_with_keytime", "ts_field": "at"},
            }
        },
        steps=(
            Write(
                ("k", "h", "t", "b", "w", "m"),
                [_bundle(1, [1, 2, 3], [["a", [1, 5]], ["b", [2, 5]]]), _bundle(2, [7], [])],
            ),
            Write(("k", "h", "t", "b", "w", "m"), [_bundle(1, [3, 4], [["a", [9, 4]], ["b", None], ["c", [3, 1]]])]),
            Compact(),
            Write(
                ("k", "h", "t", "b", "w", "m"),
                [_bundle(1, [5, 70000], [["a", [8, 6]]]), _bundle(3, [], [["z", [1, 1]]])],
            ),
            Write(("k",), [[2], [4]]),
        ),
        by_hand=(
            (
                (1, 3, 3, [1, 2, 3], [1, 2, 3], {"map": [["a", [1, 5]], ["b", [2, 5]]]}),
                (2, 1, 1, [7], [7], {"map": []}),
            ),
            (
                (1, 4, 4, [1, 2, 3, 4], [1, 2, 3, 4], {"map": [["a", [1, 5]], ["c", [3, 1]]]}),
                (2, 1, 1, [7], [7], {"map": []}),
            ),
            (
                (1, 4, 4, [1, 2, 3, 4], [1, 2, 3, 4], {"map": [["a", [1, 5]], ["c", [3, 1]]]}),
                (2, 1, 1, [7], [7], {"map": []}),
            ),
            (
                (1, 6, 6, [1, 2, 3, 4, 5, 70000], [1, 2, 3, 4, 5, 70000], {"map": [["a", [8, 6]], ["c", [3, 1]]]}),
                (2, 1, 1, [7], [7], {"map": []}),
                (3, 0, 0, [], [], {"map": [["z", [1, 1]]]}),
            ),
            (
                (1, 6, 6, [1, 2, 3, 4, 5, 70000], [1, 2, 3, 4, 5, 70000], {"map": [["a", [8, 6]], ["c", [3, 1]]]}),
                (2, 1, 1, [7], [7], {"map": []}),
                (3, 0, 0, [], [], {"map": [["z", [1, 1]]]}),
                (4, None, None, None, None, None),
            ),
        ),
        model_merger="commit-time",
        decode={"h": "hll", "t": "theta", "b": "bitmap", "w": "bitmap64"},
    ),
    Case(
        "debezium-mysql",
        "debezium-mysql",
        "k BIGINT, file STRING, pos BIGINT, op STRING, v STRING",
        ordering=("file", "pos"),
        options={"op_column": "op"},
        steps=(
            Write(
                ("k", "file", "pos", "op", "v"),
                [
                    [1, "binlog.000009", 4, "c", "one"],
                    [2, "binlog.000009", 5, "r", "two"],
                    [3, None, None, "r", "snap"],
                ],
            ),
            Write(
                ("k", "file", "pos", "op", "v"),
                [[1, "binlog.000010", 1, "u", "newer"], [2, "binlog.000010", 2, "d", None], [3, "b.1", 0, "u", "seen"]],
            ),
            Compact(),
            Write(
                ("k", "file", "pos", "op", "v"),
                [[2, "binlog.000009", 9, "u", "stale"], [1, "binlog.000009", 9, "d", None]],
            ),
            Write(("k", "file", "pos", "op", "v"), [[2, "binlog.000011", 1, "c", "back"], [3, "b.0002", 0, "d", None]]),
        ),
    ),
    Case(
        "debezium-postgres",
        "debezium-postgres",
        "k BIGINT, lsn DECIMAL(20,0), op STRING, v STRING, big BINARY",
        ordering=("lsn",),
        options={"op_column": "op"},
        steps=(
            Write(
                ("k", "lsn", "op", "v", "big"),
                [[1, "18446744073709551614", "c", "one", {"b64": "AAEC"}], [2, "5", "c", "two", None]],
            ),
            Write(
                ("k", "lsn", "op", "v", "big"),
                [
                    [
                        1,
                        "18446744073709551615",
                        "u",
                        "new",
                        {"b64": base64.b64encode(b"__debezium_unavailable_value").decode()},
                    ],
                    [2, "6", "d", None, None],
                    [3, "6", "c", "__debezium_unavailable_value", None],
                ],
            ),
            Compact(),
            Write(("k", "lsn", "op", "v"), [[2, "5", "u", "stale"], [3, "7", "u", "__debezium_unavailable_value"]]),
            Write(("k", "lsn", "op", "v"), [[2, "8", "c", "back"]]),
        ),
    ),
    Case(
        "aws-dms",
        "aws-dms",
        "k BIGINT, Op STRING, v STRING",
        options={"op_column": "Op"},
        steps=(
            Write(("k", "Op", "v"), [[1, "I", "a"], [2, "I", "b"], [3, "I", "c"]]),
            Write(("k", "Op", "v"), [[1, "U", "a2"], [2, "D", "b"], [4, "d", "lower case is no delete"]]),
            Compact(),
            Write(("k", "Op", "v"), [[2, "I", "b3"], [3, "D", None]]),
            Write(("k", "Op"), [[1, "U"]]),
        ),
    ),
    Case(
        "overwrite-non-defaults",
        "overwrite-non-defaults",
        "k BIGINT, n INT, s STRING, l ARRAY<INT>",
        options={"defaults": {"n": 0, "s": "none", "l": []}},
        steps=(
            Write(("k", "n", "s", "l"), [[1, 5, "x", [1]], [2, 0, "none", []], [3, None, None, None]]),
            Write(("k", "n", "s", "l"), [[1, 0, "y", []], [2, 7, "none", [2]], [3, 0, "z", None]]),
            Compact(),
            Write(("k", "s"), [[1, "none"], [4, "w"]]),
            Write(("k", "n", "l"), [[1, None, None], [3, 1, [3]]]),
        ),
    ),
    Case(
        "expression",
        "expression",
        "k BIGINT, o BIGINT, r INT, s STRING, n BIGINT, l ARRAY<INT>, d DECIMAL(10,2), day DATE",
        ordering=("o",),
        options={
            "columns": {
                "r": "greatest(old.r, new.r)",
                "s": "CASE WHEN new.r >= old.r THEN new.s ELSE old.s END",
                "n": "coalesce(old.n + new.n, old.n, new.n)",
                "l": "array_union(old.l, new.l)",
                "d": "old.d + new.d / 3",
                "day": "IF(new.day > DATE '2024-01-01' + INTERVAL 1 MONTH, new.day, old.day)",
            },
            "first": {"s": "coalesce(upper(trim(new.s)), 'none')"},
            "ignore_when": "new.n < 0 OR new.n % 7 = 6",
            "remove_when": "new.s IN ('gone', 'purged') AND NOT is_first() OR is_set(new.l) AND size(new.l) > 3",
        },
        steps=(
            Write(
                ("k", "o", "r", "s", "n", "l", "d", "day"),
                [
                    [1, 5, 2, " a", 1, [1, 1], "1.00", "2024-01-31"],
                    [2, 5, None, None, None, [], "0.50", None],
                    [3, 5, 1, "gone", 3, None, None, "2024-05-01"],
                ],
            ),
            Write(("k", "o", "r", "s"), [[1, 4, 3, "late"], [2, 6, 1, "b"], [3, 6, 1, "gone"]]),
            Compact(),
            Write(
                ("k", "o", "n", "l", "d", "day"),
                [[1, 7, 4, [2, 1], "1.00", "2024-02-02"], [2, 7, 13, [9], "9.00", None], [3, 5, 1, [1], "1.00", None]],
            ),
            Write(("k", "o", "l"), [[2, 3, [1, 2, 3, 4]], [4, 1, [1, 2, 3, 4]]]),
            Write(("k", "o", "n"), [[1, 8, 2, "-U"], [3, 6, 5], [2, 6, 1]]),
        ),
    ),
    Case(
        "altered",
        "event-time",
        "k BIGINT, o BIGINT, n BIGINT",
        ordering=("o",),
        steps=(
            Write(("k", "o", "n"), [[1, 5, 1], [2, 5, 2], [3, 5, 3]]),
            Write(("k", "o", "n"), [[1, 4, 9], [2, 6, None, "-D"]]),
            Compact(),
            Alter(merger="aggregate", options={"aggregates": {"n": "sum"}}),
            Write(("k", "o", "n"), [[1, 4, 10], [2, 5, 7], [3, 6, 1, "-U"]]),
            Compact(),
            Alter(merger="commit-time", options={}),
            Write(("k", "n"), [[1, 0], [2, 4]]),
        ),
    ),
)
