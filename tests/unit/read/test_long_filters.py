"""Conditions of thousands of parts keep the rows that they say, in calls and bytes that grow with their length."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import add, and_, or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import FilterError, LakeTable
from lakemerge.delta import DeltaLog
from lakemerge.read.filter import judging
from lakemerge.read.filter.filter import parse_filter
from lakemerge.storage.local import LocalStore
from lakemerge.testing.counting import CountingStore

ROWS = 300
a, s, f = pc.field("a"), pc.field("s"), pc.field("f")
VALUES: list[dict[str, Any]] = [
    {
        "b": n % 3 == 1,
        "a": n if n % 11 else None,
        "s": f"k{n % 7}" if n % 5 else None,
        "f": [0.5 * n, float("nan"), None, -0.0][n % 4],
    }
    for n in range(ROWS)
]
SCHEMA = pa.schema([("b", pa.bool_()), ("a", pa.int64()), ("s", pa.string()), ("f", pa.float64())])
TABLE = pa.Table.from_pylist(VALUES, SCHEMA)
Row = dict[str, Any]


def spelled(part: str, numbers: range, joint: str) -> str:
    """The part for each number ``i``, and its rest ``m``."""
    return joint.join(part.format(i=number, m=number % 7) for number in numbers)


def ors(part: str, numbers: range) -> str:
    return spelled(part, numbers, " OR ")


def is_pair(row: Row, count: int) -> bool:
    return row["a"] is not None and row["a"] < count and row["s"] == f"k{row['a'] % 7}"


LONG: dict[str, tuple[Callable[[int], str], Callable[[Row, int], bool]]] = {
    "and": (lambda n: " AND ".join(f"a >= {-i}" for i in range(n)), lambda row, n: row["a"] is not None),
    "or of pairs": (lambda n: " OR ".join(f"(a = {i} AND s = 'k{i % 7}')" for i in range(n)), is_pair),
    "in rows": (lambda n: "(s, a) IN (" + spelled("('k{m}', {i})", range(n), ", ") + ")", is_pair),
    "not in rows": (
        lambda n: "(s, a) NOT IN (" + spelled("('k{m}', {i})", range(n), ", ") + ")",
        lambda row, n: not is_pair(row, n),
    ),
    "not or": (
        lambda n: "NOT (" + ors("(a = {i} AND s = 'k{m}')", range(n)) + ")",
        # Null if one side is null and the other one does not decide.
        lambda row, n: (
            not is_pair(row, n)
            and not (row["a"] is None and (row["s"] is None or int(row["s"][1:]) < n))
            and not (row["s"] is None and row["a"] is not None and row["a"] < n)
        ),
    ),
    "or is not true": (
        lambda n: "(" + ors("(a = {i} AND s > 'k{m}')", range(n)) + ") IS NOT TRUE",
        lambda row, n: (
            not (row["a"] is not None and row["a"] < n and row["s"] is not None and row["s"] > f"k{row['a'] % 7}")
        ),
    ),
    "or of floats": (
        lambda n: " OR ".join(f"f = {i / 2}" for i in range(n)),
        lambda row, n: row["f"] is not None and row["f"] in {i / 2 for i in range(n)},
    ),
    "mixed": (
        lambda n: " OR ".join(f"(a = {i} AND f > {i / 2 - 1})" for i in range(n)),
        lambda row, n: (
            row["a"] is not None
            and row["a"] < n
            and row["f"] is not None
            and (row["f"] != row["f"] or row["f"] > row["a"] / 2 - 1)
        ),
    ),
    "likes": (lambda n: " AND ".join(f"s NOT LIKE 'x{i}%'" for i in range(n)), lambda row, n: row["s"] is not None),
    "computed": (
        lambda n: " AND ".join(f"upper(s) <> 'K{i + 2}'" for i in range(n)),
        lambda row, n: row["s"] is not None and not 2 <= int(row["s"][1:]) < n + 2,
    ),
    "case": (
        lambda n: "CASE " + spelled("WHEN a = {i} THEN s = 'k{m}'", range(n), " ") + " END",
        is_pair,
    ),
    "case of a value": (
        lambda n: f"CASE a {' '.join(f'WHEN {i} THEN {i + 1}' for i in range(n))} END > 5",
        lambda row, n: row["a"] is not None and 5 <= row["a"] < n,
    ),
    "in": (lambda n: f"a IN ({', '.join(map(str, range(n)))})", lambda row, n: row["a"] is not None and row["a"] < n),
    "not in": (
        lambda n: f"a NOT IN ({', '.join(str(i + 9) for i in range(n))})",
        lambda row, n: row["a"] is not None and not 9 <= row["a"] < n + 9,
    ),
}
EXPRESSIONS: dict[str, tuple[Callable[[int], pc.Expression], Callable[[Row, int], bool]]] = {
    "and": (lambda n: reduce(and_, (a >= -i for i in range(n))), lambda row, n: row["a"] is not None),
    "or": (lambda n: reduce(or_, (a == i for i in range(n))), lambda row, n: row["a"] is not None and row["a"] < n),
    "or of pairs": (lambda n: reduce(or_, ((a == i) & (s == f"k{i % 7}") for i in range(n))), is_pair),
    "from the right": (
        lambda n: reduce(lambda left, right: right & left, (a >= -i for i in range(n))),
        lambda row, n: row["a"] is not None,
    ),
    "not and": (
        lambda n: ~reduce(and_, (a != i for i in range(n))),
        lambda row, n: row["a"] is not None and row["a"] < n,
    ),
    "not isin": (
        lambda n: reduce(and_, (~a.isin([i, i + 1]) for i in range(n))),
        lambda row, n: row["a"] is None or row["a"] > n,  # to Arrow a null is in no list
    ),
    "floats": (
        lambda n: reduce(or_, (f == i / 2 for i in range(n))),
        lambda row, n: row["f"] is not None and row["f"] in {i / 2 for i in range(n)},
    ),
    "a boolean column": (
        lambda n: reduce(and_, [pc.field("b"), ~pc.field("b") | (a >= 0), *(a >= -i for i in range(n))]),
        lambda row, n: row["b"] and row["a"] is not None,
    ),
    "isin": (lambda n: a.isin(list(range(n))), lambda row, n: row["a"] is not None and row["a"] < n),
    "other types": (
        lambda n: reduce(or_, (a == pa.scalar(i, pa.int8()) for i in range(min(n, 128)))),
        lambda row, n: row["a"] is not None and row["a"] < min(n, 128),
    ),
}


def expected(keeps: Callable[[Row, int], bool], count: int) -> list[int]:
    return [place for place, row in enumerate(VALUES) if keeps(row, count)]


def kept(condition: str | pc.Expression) -> list[int]:
    found = parse_filter(condition, SCHEMA)
    assert found is not None
    numbered = TABLE.append_column("place", pa.array(range(ROWS)))
    return found.kept(numbered)["place"].to_pylist()


@pytest.mark.parametrize("count", [2, 40, 200])
@pytest.mark.parametrize("name", LONG)
def test_long_text_keeps_the_rows_that_it_says(name: str, count: int) -> None:
    text, keeps = LONG[name]
    assert kept(text(count)) == expected(keeps, count)


@pytest.mark.parametrize("count", [2, 40, 200])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_long_expressions_keep_the_rows_that_they_say(name: str, count: int) -> None:
    expression, keeps = EXPRESSIONS[name]
    assert kept(expression(count)) == expected(keeps, count)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many expressions Arrow evaluates at a time."""
    numbers: list[int] = []
    evaluated = judging._evaluated

    def counting(parts: Any, table: pa.Table) -> pa.Table:
        numbers.append(len(parts))
        return evaluated(parts, table)

    with monkeypatch.context() as patched:
        patched.setattr(judging, "_evaluated", counting)
        yield numbers


@pytest.mark.parametrize("name", ["and", "or of pairs", "mixed", "or of floats", "likes"])
def test_expressions_grow_with_the_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for count in (640, 1280):
        with counted(monkeypatch) as numbers:
            kept(LONG[name][0](count))
        made.append(sum(numbers))
    assert made[1] <= 2 * made[0]
    assert made[1] <= 1280 * 2 // judging.MOST_PARTS + 1


def table_of(path: Path, count: int) -> None:
    made = LakeTable.create(
        path,
        "id BIGINT, s STRING, v INT",
        key=["id", "s"],
        buckets=16,
        properties={"lakemerge.maintenance": "off"},
    )
    made.upsert(
        pa.table(
            {"id": range(count), "s": [f"k{n % 7}" for n in range(count)], "v": pa.array(range(count), pa.int32())}
        )
    )
    made.compact()


def opened(path: Path) -> tuple[LakeTable, CountingStore]:
    store = CountingStore(LocalStore(path))
    handle = replace(LakeTable.open(path).opened.handle, store=store, log=DeltaLog(store))
    table = LakeTable(handle, handle.log.snapshot(), pinned=False, spark=None)
    store.reset()
    return table, store


@pytest.mark.parametrize(
    "asked",
    [
        lambda keys: " OR ".join(f"(id = {n} AND s = 'k{n % 7}')" for n in keys),
        lambda keys: "(id, s) IN (" + spelled("({i}, 'k{m}')", keys, ", ") + ")",
        lambda keys: "(s, id) IN (" + spelled("('k{m}', {i})", keys, ", ") + ") AND v >= 0",
        lambda keys: " OR ".join(f"(s = 'k{n % 7}' AND v > -1 AND id = {n})" for n in keys),
        lambda keys: reduce(or_, ((pc.field("id") == n) & (s == f"k{n % 7}") for n in keys)),
        lambda keys: reduce(or_, ((s == f"k{n % 7}") & (pc.field("id") == n) & (pc.field("v") > -1) for n in keys)),
    ],
    ids=["or", "rows", "rows and more", "or of more", "expression", "expression of more"],
)
@pytest.mark.parametrize("count", [2, 12, 30])
def test_composite_keys_are_a_look_up(
    asked: Callable[[range], str | pc.Expression], count: int, tmp_path: Path
) -> None:
    """A condition that names keys reads the files that ``get`` reads, dirty or clean."""
    table_of(tmp_path / "t", 5_000)
    for step in ("clean", "dirty"):
        if step == "dirty":
            LakeTable.open(tmp_path / "t").upsert(pa.table({"id": [7], "s": ["k0"], "v": pa.array([7], pa.int32())}))
        keys = range(7, 7 + count)
        table, store = opened(tmp_path / "t")
        looked_up = table.get([{"id": n, "s": f"k{n % 7}"} for n in keys])
        wanted = store.counts()
        table, store = opened(tmp_path / "t")
        found = table.to_arrow(filter=asked(keys))
        counts = store.counts()
        assert sorted(found["id"].to_pylist()) == sorted(looked_up["id"].to_pylist()) == list(keys)
        assert counts.calls["open_input"] <= wanted.calls["open_input"]
        assert counts.bytes_read <= wanted.bytes_read * 1.1 + 10_000


@pytest.mark.long
def test_ten_thousand_keys_read_no_bucket_twice(tmp_path: Path) -> None:
    table_of(tmp_path / "t", 12_000)
    reads = []
    for count in (5_000, 10_000):
        condition = " OR ".join(f"(id = {n} AND s = 'k{n % 7}')" for n in range(count))
        table, store = opened(tmp_path / "t")
        assert table.to_arrow(filter=condition).num_rows == count
        reads.append(store.counts())
    assert reads[1].bytes_read <= 2 * reads[0].bytes_read
    assert reads[1].calls["open_input"] <= 2 * reads[0].calls["open_input"]


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("(a, s) IN ((1, NULL))", "without NULL"),
        ("(a, s) IN ((1, 'x', 2))", "rows are compared as"),
        ("(a, s) IN (1)", "rows are compared as"),
        ("(a, a) IN ((1, 2))", "each column is there once"),
        ("(a, f) IN ((1, 2.5))", "none is a float"),
        ("(a + 1, s) IN ((1, 'x'))", "is not supported|rows are compared|Tuple|supported are"),
        ("(a, s) IN ((a, 'x'))", "rows are compared as"),
        ("(" * 5000 + "a = 1" + ")" * 5000, "nested too deeply"),
        ("NOT " * 5000 + "a = 1", "nested too deeply"),
        ("a" + " + 1" * 5000 + " > 0", "nested too deeply"),
        ("s" + " || 'x'" * 5000 + " = 'x'", "nested too deeply"),
        ("upper(" * 5000 + "s" + ")" * 5000 + " = 'X'", "nested too deeply"),
        ("a = 1" + " = true" * 5000, "nested too deeply"),
        ("CASE WHEN a = 0 THEN 1 ELSE " * 5000 + "2" + " END" * 5000 + " = 2", "nested too deeply"),
        (reduce(add, (a for _ in range(5000))) > 0, "a condition of 5000 calls"),
        (reduce(pc.and_, (a > n for n in range(5000))), "a condition of 9999 calls"),
        (reduce(and_, (a > n for n in range(50))) & (pc.field("zz") == 1), "no column 'zz'"),
        (reduce(and_, (a > n for n in range(50))) & (pc.field(0) == 1), "no column|by its position"),
        (reduce(and_, (a > n for n in range(50))) & a, "does not fit|not a condition|joins something that is not"),
    ],
    ids=lambda given: str(given)[:40] if isinstance(given, str) else "expression",
)
def test_what_is_refused_is_refused_by_name(condition: str | pc.Expression, problem: str) -> None:
    with pytest.raises(FilterError, match=problem):
        parse_filter(condition, SCHEMA)


ROUTES = {
    "to_arrow": "table.to_arrow(filter=condition).num_rows",
    "scan": "sum(batch.num_rows for batch in table.scan(filter=condition))",
    "delete_where": "table.delete_where(condition).version - 1",
    "query": "table.query(f'SELECT * FROM self WHERE {condition}', ).num_rows if isinstance(condition, str) else 3",
    "explain_read": "table.explain_read(filter=condition).file_slices and 3",
}


@pytest.mark.long
@pytest.mark.parametrize("route", ROUTES)
def test_no_route_ends_the_process(route: str, tmp_path: Path) -> None:
    program = f"""
import sys
from functools import reduce
from operator import and_
import pyarrow as pa
import pyarrow.compute as pc
from lakemerge import LakeMergeError, LakeTable
table = LakeTable.create(sys.argv[1], "id BIGINT", key=["id"])
table.upsert(pa.table({{"id": [1, 2, 3]}}))
text = " AND ".join(f"id >= {{-n}}" for n in range(10_000))
for condition in (text, reduce(and_, (pc.field("id") >= -n for n in range(10_000)))):
    try:
        print({ROUTES[route]})
    except LakeMergeError as error:
        print(type(error).__name__, repr(str(error)[:200]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "t")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2, done.stdout
