"""The same histories through pypaimon's primary-key tables and through ours give the same rows.

After every commit of a seeded random history the rows that pypaimon merges are compared with those
of a LakeMerge table with the matching merger, which is compacted now and then.

pypaimon is installed in an environment of its own (see :mod:`benchmarks.cases.paimon`). What it
cannot do is not compared: frames that lack columns, deletes and retractions under partial-update
and aggregation, their ``remove-record-on-*`` options, sequence groups, functions in partial-update,
``count`` and ``rbm64`` (:func:`test_what_pypaimon_refuses`); it also has no compaction.

Where the two differ by design, random histories keep away from it, and a case of its own says what
each gives (:data:`DIFFERENCES`); the pages in docs/mergers announce it. What depends on how Paimon
cuts a history into files has no such case: a batch is folded before it meets the rows of others, so
a null in ``merge_map_with_keytime`` may lose its effect, and with ``sequence.field`` a batch counts
as one record of its highest sequence. pypaimon 2.1 fails on
maps where it folds some keys of a file and others not.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasketches
import pyarrow as pa
import pytest
from pyroaring import BitMap

from benchmarks.cases.paimon import Paimon
from benchmarks.elsewhere import ElsewhereError
from lakemerge import LakeTable
from mergers.ordering import is_orderable
from tests.conformance.values import arrow_schema, assert_rows, rows_of
from tests.model import rank
from tests.property.effort import some

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="pypaimon 2.1 needs pyarrow below 20, which has no wheels for Python 3.14"
)

KEYS = 5
COMMITS = 6
Row = dict[str, Any]

_VALUES: Mapping[str, Sequence[Any]] = {
    "INT": range(-3, 4),
    "BIGINT": (-(2**40), -2, 0, 1, 7, 2**40),
    "DOUBLE": (-1.5, 0.25, 0.0, 2.0, 1024.0),  # sums of these are exact in any order
    "DECIMAL(9,2)": tuple(map(Decimal, ("-0.15", "0.00", "1.55", "700.01"))),
    "STRING": ("", "a", "b", "long " * 5, "é"),
    "BOOLEAN": (True, False),
    "BINARY": (b"", b"a", b"\x00\xff"),
    "DATE": (dt.date(1969, 12, 31), dt.date(2024, 2, 29)),
    "TIMESTAMP": (dt.datetime(1960, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC)),
    "ARRAY<INT>": ([], [1], [2, 1], [3]),
    "MAP<STRING,INT>": ([], [("a", 1)], [("a", None), ("b", 2)], [("c", 3), ("b", 4)]),
    "ARRAY<STRUCT<a:INT,v:STRING>>": ([], [{"a": 1, "v": "x"}], [{"a": 2, "v": "y"}, {"a": 1, "v": None}]),
}


def _theta(*items: int) -> bytes:
    sketch = datasketches.update_theta_sketch()
    for item in items:
        sketch.update(item)
    return bytes(sketch.compact().serialize())


def _hll(*items: int) -> bytes:
    sketch = datasketches.hll_sketch(12)
    for item in items:
        sketch.update(item)
    return bytes(sketch.serialize_compact())


@dataclass(frozen=True)
class Case:
    """A table of both. Column ``k`` is the key; a column ``kind`` holds row kinds and is not stored by us."""

    name: str
    ddl: str
    merger: str
    paimon: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    ordering: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    once: bool = False
    """A commit holds each key once."""
    singly: bool = False
    """A commit holds one row, all of one key."""
    fills: bool = False
    """Late records carry values only where no value of that sequence or a lower one stands."""

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.ddl)

    @property
    def sent(self) -> pa.Schema:
        """The schema of frames. The key is not nullable, because Paimon takes no nullable key."""
        kind = [pa.field("kind", pa.string())] if self.kinds else []
        return pa.schema([f.with_nullable(f.name != "k") for f in self.schema] + kind)

    def of(self, column: str) -> Sequence[Any]:
        kind = dict(part.strip().split(" ", maxsplit=1) for part in self.ddl.split(", "))[column]
        return self.values.get(column) or _VALUES[kind]

    def __str__(self) -> str:
        return self.name


_PLAIN = "i INT, d DOUBLE, n DECIMAL(9,2), s STRING, b BOOLEAN, x BINARY, day DATE, at TIMESTAMP, l ARRAY<INT>"
_ROW_KINDS = {"rowkind.field": "kind"}
_UPSERTS = ("+I", "+U")
_ALL = ("+I", "+U", "+U", "+U", "-U", "-D")
# A retraction alone removes the row in Paimon; its option makes it what it is here.
_DEDUPLICATE = {"merge-engine": "deduplicate", "ignore-update-before": "true", **_ROW_KINDS}


def _aggregation(name: str, columns: Sequence[tuple[str, Any]], **more: Any) -> Case:
    """A column a function: its type, and its name or its options here (Paimon's are made from them)."""
    ordering = more.get("ordering", ())
    ddl = ", ".join(["k BIGINT", *(f"{o} BIGINT" for o in ordering), *(f"c{i} {c[0]}" for i, c in enumerate(columns))])
    paimon = {"merge-engine": "aggregation"}
    if ordering:
        paimon["sequence.field"] = ",".join(ordering)
    for number, (_, given) in enumerate(columns):
        options = {"function": given} if isinstance(given, str) else dict(given)
        function = options.pop("function")
        paimon[f"fields.c{number}.aggregate-function"] = "rbm32" if function == "roaring_bitmap" else function
        names = {"delimiter": "list-agg-delimiter", "nested_key": "nested-key", "ts_field": "ts-field"}
        for option, value in options.items():
            text = ",".join(value) if isinstance(value, list) else str(value).lower()
            paimon[f"fields.c{number}.{names.get(option, option)}"] = text
    aggregates = {f"c{number}": given for number, (_, given) in enumerate(columns)}
    return Case(name, ddl, "aggregate", paimon, {"aggregates": aggregates}, **more)


_COMMUTATIVE = (
    *((kind, "sum") for kind in ("INT", "BIGINT", "DOUBLE", "DECIMAL(9,2)")),
    *((kind, name) for kind in ("INT", "DOUBLE", "DECIMAL(9,2)", "STRING", "DATE") for name in ("min", "max")),
    ("BOOLEAN", "bool_and"),
    ("BOOLEAN", "bool_or"),
)
_IN_ORDER = (
    ("STRING", "last_value"),
    ("ARRAY<INT>", "last_value"),
    ("STRING", "last_non_null_value"),
    ("STRING", "first_value"),
    ("INT", "first_non_null_value"),
    ("STRING", "listagg"),
    ("STRING", {"function": "listagg", "delimiter": "; "}),
    ("STRING", {"function": "listagg", "distinct": True}),
    ("ARRAY<INT>", "collect"),
    ("ARRAY<INT>", {"function": "collect", "distinct": True}),
    ("ARRAY<STRUCT<a:INT,v:STRING>>", "nested_update"),
    ("ARRAY<STRUCT<a:INT,v:STRING>>", {"function": "nested_update", "nested_key": ["a"]}),
)
_TIMED = [[("a", {"v": v, "t": v + 3}), ("b", {"v": -v, "t": 9 - v})] for v in range(6)]

CASES = (
    Case("deduplicate", f"k BIGINT, {_PLAIN}", "commit-time", _DEDUPLICATE, kinds=_ALL),
    Case(
        "deduplicate, sequence",
        f"k BIGINT, seq BIGINT, {_PLAIN}",
        "event-time",
        {"sequence.field": "seq", **_DEDUPLICATE},
        ordering=("seq",),
        kinds=_ALL,
        values={"seq": (None, *range(6))},
    ),
    Case(
        "deduplicate, two sequences",
        f"k BIGINT, p DOUBLE, q STRING, {_PLAIN}",
        "event-time",
        {"sequence.field": "p,q", **_DEDUPLICATE},
        ordering=("p", "q"),
        kinds=_ALL,
        values={"p": (None, -1.5, 0.0, 2.5, float("inf"), float("nan")), "q": (None, "", "a", "é")},
    ),
    Case(
        "first-row",
        f"k BIGINT, {_PLAIN}",
        "first-row",
        {"merge-engine": "first-row", "ignore-delete": "true", **_ROW_KINDS},
        {"ignore_delete": True},
        kinds=_ALL,
    ),
    Case("partial-update", f"k BIGINT, {_PLAIN}", "partial-update", {"merge-engine": "partial-update"}),
    Case(
        "partial-update, sequence",
        f"k BIGINT, seq BIGINT, {_PLAIN}",
        "partial-update",
        {"merge-engine": "partial-update", "sequence.field": "seq"},
        ordering=("seq",),
        values={"seq": range(9)},
        once=True,
        fills=True,
    ),
    _aggregation("aggregation, commutative", _COMMUTATIVE),
    _aggregation(
        "aggregation, sequence",
        (*_COMMUTATIVE, ("STRING", "last_value")),
        ordering=("seq",),
        values={"seq": (None, *range(6))},
    ),
    _aggregation(
        "aggregation, in order",
        (*_IN_ORDER, ("BIGINT", "product"), ("DOUBLE", "product")),
        values={
            # Nothing blank: pypaimon skips a blank text, but not where the first batch has just that row.
            **dict.fromkeys(("c5", "c6"), ("a", "b,c", " d ", "é")),
            "c7": ("a", "b", "b,c", "d,a"),
            "c12": (-1, 2, 1),
            "c13": (-1.0, 2.0, 0.5),
        },
    ),
    Case(
        "aggregation, default function",
        "k BIGINT, a INT, b DOUBLE, c INT",
        "aggregate",
        {
            "merge-engine": "aggregation",
            "fields.default-aggregate-function": "sum",
            "fields.c.aggregate-function": "last_value",
        },
        {"default_aggregate": "sum", "aggregates": {"c": "last_value"}},
    ),
    Case(
        "aggregation, no function named",
        "k BIGINT, a INT, b STRING",
        "aggregate",
        {"merge-engine": "aggregation"},
    ),
    _aggregation(
        "aggregation, one by one",
        [
            ("MAP<STRING,STRUCT<v:INT,t:INT>>", {"function": "merge_map_with_keytime", "ts_field": "t"}),
            ("MAP<STRING,INT>", "merge_map"),
            ("DECIMAL(9,2)", "product"),  # rounded at each step
        ],
        values={"c0": (*_TIMED, []), "c2": tuple(map(Decimal, ("1.55", "-1.05", "0.90", "-2.00")))},
        singly=True,
    ),
    _aggregation(
        "aggregation, sketches and bitmaps",
        [("BINARY", "theta_sketch"), ("BINARY", "hll_sketch"), ("BINARY", "roaring_bitmap")],
        values={
            "c0": [_theta(*range(n, 3 * n)) for n in (1, 5, 60, 4000)],
            "c1": [_hll(*range(n, 3 * n)) for n in (1, 5, 60, 4000)],
            "c2": [BitMap(range(n, 3 * n)).serialize() for n in (1, 5, 60, 4000)],
        },
    ),
)


@pytest.fixture(scope="module")
def paimon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paimon]:
    with Paimon(tmp_path_factory.mktemp("paimon")) as started:
        yield started


@pytest.mark.parametrize("seed", some(range(3)))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_rows(case: Case, seed: int, paimon: Paimon, tmp_path: Path) -> None:
    rng = random.Random(f"{case} {seed}")
    table = paimon.create(case.sent, key=["k"], options=case.paimon)
    ours = _ours(case, tmp_path)
    for number, rows in enumerate(_history(case, rng)):
        frame = pa.Table.from_pylist(rows, schema=case.sent)
        paimon.write(table, frame)
        ours.upsert(frame, kind_column="kind" if case.kinds else None)
        if rng.random() < 0.3:
            ours.compact()
        _compare(case, paimon.read(table, all_files=True), ours.to_arrow(), f"commit {number}")


def _ours(case: Case, path: Path) -> LakeTable:
    return LakeTable.create(
        path / "table",
        case.schema,
        key=["k"],
        ordering=case.ordering,
        merger=case.merger,
        options=case.options,
        buckets=2,
    )


def _compare(case: Case, theirs: pa.Table, ours: pa.Table, about: str) -> None:
    expected = rows_of(theirs.select(case.schema.names))
    if "sketches" not in case.name:
        assert_rows(ours, expected, case.schema, about)
        return
    (exact, estimated), (exact_theirs, estimated_theirs) = _known(rows_of(ours)), _known(expected)
    assert exact == exact_theirs, about
    # Theirs remembers the order of additions for an estimate, and ours does not, so that bytes depend on the sketches
    # alone. Either is within the error of a sketch of this size, which is 1.6 %.
    assert estimated == pytest.approx(estimated_theirs, rel=0.016), about


def _known(rows: Sequence[tuple[Any, ...]]) -> tuple[dict[int, object], dict[int, float]]:
    """What sketches say by key: their bytes, and what HLL sketches estimate, hang on how they were put together."""
    exact: dict[int, object] = {}
    estimated: dict[int, float] = {}
    for key, theta, hll, bitmap in rows:
        exact[key] = (
            None if theta is None else datasketches.compact_theta_sketch.deserialize(theta).get_estimate(),
            None if bitmap is None else frozenset(BitMap.deserialize(bitmap)),
        )
        estimated[key] = -1.0 if hll is None else datasketches.hll_sketch.deserialize(hll).get_estimate()
    assert len(exact) == len(rows)
    return exact, estimated


def _history(case: Case, rng: random.Random) -> Iterator[list[Row]]:
    """Commits of rows that hold every column; some keys come twice in one."""
    standing: dict[tuple[int, str], Any] = {}
    highest: dict[int, Any] = {}
    for number in range(3 * COMMITS if case.singly else COMMITS):
        # pypaimon shows the deletes of a table's only file as rows: it counts none where it writes them.
        kinds = case.kinds if number else _UPSERTS
        rows = []
        count = rng.randint(1, 10)
        keys = rng.sample(range(KEYS), min(count, KEYS)) if case.once else rng.choices(range(KEYS), k=count)
        keys = [0] if case.singly else keys
        for key in keys:
            row: Row = {"k": key}
            for name in case.schema.names[1:]:
                absent = name not in case.ordering and rng.random() < 0.3
                row[name] = None if absent else rng.choice(case.of(name))
            if case.kinds:
                row["kind"] = rng.choice(kinds)
            if case.fills:
                _only_fill(case, row, standing, highest)
            rows.append(row)
        yield rows


def _only_fill(case: Case, row: Row, standing: dict[tuple[int, str], Any], highest: dict[int, Any]) -> None:
    """Take from a late row the values that Paimon would let win over those that stand."""
    key, sequence = row["k"], tuple(rank(row[name]) for name in case.ordering)
    late = key in highest and sequence < highest[key]
    highest[key] = max(sequence, highest.get(key, sequence))
    for name in row.keys() - {"k", *case.ordering}:
        if late and (key, name) in standing and standing[key, name] <= sequence:
            row[name] = None
        if row[name] is not None and not (late and (key, name) in standing):
            standing[key, name] = sequence


_SEQUENCED = "k BIGINT, seq BIGINT, a STRING, b STRING"


@dataclass(frozen=True)
class Difference:
    """A history, a commit a row, that means something else to each."""

    name: str
    case: Case
    history: tuple[tuple[Any, ...], ...]
    theirs: tuple[Any, ...] | None
    ours: tuple[Any, ...] | None


DIFFERENCES = (
    Difference(
        "a late record fills gaps only",
        Case(
            "",
            _SEQUENCED,
            "partial-update",
            {"merge-engine": "partial-update", "sequence.field": "seq"},
            ordering=("seq",),
        ),
        ((1, 1, "one", None), (1, 5, None, None), (1, 3, "three", "three")),
        theirs=(1, 5, "three", "three"),
        ours=(1, 5, "one", "three"),
    ),
    Difference(
        "late texts stand in front as they come",
        _aggregation("", [("STRING", "listagg"), ("STRING", "last_non_null_value")], ordering=("seq",)),
        ((1, 5, "five", None), (1, 3, "three", "three"), (1, 4, "four", "four")),
        theirs=(1, 5, "three,four,five", "four"),
        ours=(1, 5, "four,three,five", "three"),
    ),
    Difference(
        "the first value is the last that came late",
        _aggregation("", [("STRING", "first_value")], ordering=("seq",)),
        ((1, 5, "five"), (1, 3, "three"), (1, 4, "four")),
        theirs=(1, 5, "three"),
        ours=(1, 5, "four"),
    ),
    Difference(
        "a retraction alone",
        Case("", "k BIGINT, a STRING", "commit-time", {"merge-engine": "deduplicate", **_ROW_KINDS}, kinds=_ALL),
        ((1, "one", "+I"), (1, "one", "-U")),
        theirs=None,
        ours=(1, "one"),
    ),
    Difference(
        "equal times, and nothing to remove",
        _aggregation(
            "", [("MAP<STRING,STRUCT<v:INT,t:INT>>", {"function": "merge_map_with_keytime", "ts_field": "t"})]
        ),
        ((1, [("a", {"v": 1, "t": 1}), ("b", None)]), (1, [("a", {"v": 2, "t": 1})])),
        theirs=(1, [("a", {"v": 1, "t": 1}), ("b", None)]),
        ours=(1, [("a", {"v": 2, "t": 1})]),
    ),
    Difference(
        "repeats within one text",
        _aggregation("", [("STRING", {"function": "listagg", "distinct": True})]),
        ((1, "a,a"), (1, "b,a")),
        theirs=(1, "a,a,b"),
        ours=(1, "a,b"),
    ),
    Difference(
        "an overflow that a later value takes back",
        _aggregation("", [("DECIMAL(3,0)", "sum")]),
        ((1, Decimal(900)), (1, Decimal(900)), (1, Decimal(-900))),
        theirs=(1, Decimal(-900)),
        ours=(1, Decimal(900)),
    ),
    Difference(
        "zeros of both signs are one ordering",
        Case(
            "",
            "k BIGINT, o DOUBLE, a STRING",
            "event-time",
            {"merge-engine": "deduplicate", "sequence.field": "o"},
            ordering=("o",),
        ),
        ((1, 0.0, "plus"), (1, -0.0, "minus")),
        theirs=(1, 0.0, "plus"),
        ours=(1, -0.0, "minus"),
    ),
)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.name)
def test_differs_as_documented(difference: Difference, paimon: Paimon, tmp_path: Path) -> None:
    case = difference.case
    table = paimon.create(case.sent, key=["k"], options=case.paimon)
    ours = _ours(case, tmp_path)
    for row in difference.history:
        frame = pa.Table.from_pylist([dict(zip(case.sent.names, row, strict=True))], schema=case.sent)
        paimon.write(table, frame)
        ours.upsert(frame, kind_column="kind" if case.kinds else None)
    for rows, expected in ((paimon.read(table, all_files=True), difference.theirs), (ours.to_arrow(), difference.ours)):
        found = rows_of(rows.select(case.schema.names))
        assert found == ([] if expected is None else [expected])


_SUM = {"fields.a.aggregate-function": "sum"}


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"merge-engine": "partial-update", "fields.g.sequence-group": "a"}, "+I"),
        ({"merge-engine": "partial-update", **_SUM}, "+I"),
        ({"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}, "+I"),
        ({"merge-engine": "partial-update", "ignore-delete": "true"}, "+I"),
        ({"merge-engine": "partial-update"}, "-D"),
        ({"merge-engine": "aggregation", **_SUM}, "-U"),
        ({"merge-engine": "aggregation", **_SUM}, "-D"),
        ({"merge-engine": "aggregation", "aggregation.remove-record-on-delete": "true"}, "+I"),
        ({"merge-engine": "aggregation", "fields.a.ignore-retract": "true", **_SUM}, "+I"),
        ({"merge-engine": "aggregation", "fields.a.aggregate-function": "count"}, "+I"),
        ({"merge-engine": "aggregation", "fields.a.aggregate-function": "rbm64"}, "+I"),
        ({"merge-engine": "first-row", "sequence.field": "g"}, "+I"),
    ],
    ids=str,
)
def test_what_pypaimon_refuses(options: Mapping[str, str], kind: str, paimon: Paimon) -> None:
    """What is compared must grow when pypaimon takes more."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("g", pa.int64()), ("a", pa.int64())])
    schema = schema.append(pa.field("kind", pa.string()))
    table = paimon.create(schema, key=["k"], options={**_ROW_KINDS, **options})
    rows = pa.Table.from_pylist([{"k": 1, "g": 1, "a": 1, "kind": "+I"}, {"k": 1, "g": 2, "a": 2, "kind": kind}])

    def write_and_read() -> None:
        paimon.write(table, rows.cast(schema))
        paimon.read(table, all_files=True)

    with pytest.raises(ElsewhereError, match=r"not implement|not yet|Do not support"):
        write_and_read()


def test_first_row_hides_what_is_not_compacted(paimon: Paimon) -> None:
    """Why the comparison reads all files: pypaimon shows nothing of a first-row table that Java has not compacted."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    table = paimon.create(schema, key=["k"], options={"merge-engine": "first-row"})
    paimon.write(table, pa.table({"k": pa.array([1])}, schema=schema))
    assert (paimon.read(table, all_files=False).num_rows, paimon.read(table, all_files=True).num_rows) == (0, 1)


def test_every_function_of_pypaimon_is_compared() -> None:
    named = {option for case in CASES for name, option in case.paimon.items() if name.endswith("aggregate-function")}
    assert named >= {
        "sum", "product", "min", "max", "last_value", "last_non_null_value", "first_value", "first_non_null_value",
        "bool_and", "bool_or", "listagg", "collect", "merge_map", "merge_map_with_keytime", "nested_update",
        "theta_sketch", "hll_sketch", "rbm32",
    }  # fmt: skip
    assert all(is_orderable(case.schema.field(name).type) for case in CASES for name in case.ordering)
