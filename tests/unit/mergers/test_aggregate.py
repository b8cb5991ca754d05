"""``aggregate`` and its functions: what the conformance cases leave out; results worked out by hand."""

from __future__ import annotations

import json
import pickle
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pyroaring
import pytest

from mergers import Laws, RowKind
from mergers.builtin.functions import FUNCTIONS, sketches
from mergers.errors import (
    InstallError,
    MergeOverflowError,
    MergerConfigurationError,
    MergeValueError,
    RecordRefusedError,
)
from mergers.restart import RecordKind
from mergers.testing.records import State, Step
from tests.unit.mergers.folds import build, fold_frames, problems_of, shape_of

ROOT = Path(__file__).resolve().parents[3]
TIMED = pa.map_(pa.string(), pa.struct([("v", pa.int32()), ("at", pa.int64())]))


def one(kind: pa.DataType, function: object, *commits: list[tuple[str, Any]], compact: bool = False) -> Any:
    """The value of one column of one key after commits of (kind, value)."""
    shape = shape_of({"v": kind})
    merger = build("aggregate", {"aggregates": {"v": function}}, shape)
    rows = [[(symbol, 1, value) for symbol, value in commit] for commit in commits]
    [(_, value)] = fold_frames(merger, shape, *rows, compact=compact)
    return value


def adds(*values: Any) -> list[tuple[str, Any]]:
    return [("+U", value) for value in values]


def test_options_make_a_round_trip() -> None:
    shape = shape_of({"a": pa.int64(), "b": pa.string(), "m": TIMED})
    options = {
        "aggregates": {
            "a": "sum",
            "b": {"function": "listagg", "delimiter": "-", "distinct": True},
            "m": {"function": "merge_map_with_keytime", "ts_field": "at"},
        },
        "default_aggregate": "last_value",
        "ignore_retract": ["b", "m"],
        "remove_record_on_delete": True,
    }
    merger = build("aggregate", options, shape)
    assert merger.options() == options
    assert build("aggregate", json.loads(json.dumps(options)), shape) == merger
    assert pickle.loads(pickle.dumps(merger)) == merger


def test_every_problem_is_reported() -> None:
    shape = shape_of({"o": pa.int64(), "a": pa.int64(), "b": pa.string(), "c": pa.list_(pa.int32())}, ordering=["o"])
    wrong = {"k": "sum", "o": "max", "zz": "sum", "a": "median", "b": "product", "c": {"function": "collect", "x": 1}}
    with pytest.raises(MergerConfigurationError) as caught:
        build("aggregate", {"aggregates": wrong, "ignore_retract": ["q"], "x": 1}, shape)
    assert len(problems_of(caught.value)) == 8


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        (pa.int8(), (100, -100, 27), 27),
        (pa.int64(), (2**63 - 1, -(2**63), 5), 4),
        (
            pa.decimal128(38, 2),
            (Decimal("9" * 36 + ".99"), Decimal("-1.00"), Decimal("0.50")),
            Decimal("9" * 35 + "9.49"),
        ),
        (pa.decimal128(18, 0), (Decimal(-(10**17)), Decimal(1), None), Decimal(-(10**17) + 1)),
    ],
)
def test_sum_is_exact(kind: pa.DataType, values: tuple[Any, ...], total: Any, compact: bool) -> None:
    assert one(kind, "sum", *(adds(value) for value in values), compact=compact) == total


@pytest.mark.parametrize(
    ("kind", "function", "values"),
    [
        (pa.int8(), "sum", (100, 28)),
        (pa.int8(), "count", (1,) * 128),
        (pa.int16(), "product", (200, 200)),
        (pa.int64(), "sum", (2**63 - 1, 1)),
        (pa.int64(), "sum", (-(2**63), -1)),
        (pa.int64(), "product", (2**40, 2**40)),
        (pa.decimal128(5, 2), "sum", (Decimal("999.99"), Decimal("0.01"))),
        (pa.decimal128(38, 0), "sum", (Decimal(10**38 - 1), Decimal(1))),
        (pa.decimal128(38, 0), "sum", (Decimal(10**38 - 1),) * 3),
        (pa.decimal128(38, 2), "product", (Decimal(10**30), Decimal(10**30))),
    ],
)
def test_overflow_names_key_and_column(kind: pa.DataType, function: str, values: tuple[Any, ...]) -> None:
    with pytest.raises(MergeOverflowError, match="'v'") as caught:
        one(kind, function, adds(*values))
    assert caught.value.facts["key"] == {"k": 1}
    # Nothing is lost: what is taken back brings the total back into range.
    back = [("-U", value) for value in values[1:]]
    assert one(kind, function, adds(*values), back) == (1 if function == "count" else values[0])


def test_floats_are_added_one_after_the_other() -> None:
    values = [0.1, 1e16, -1e16, 0.2] * 50
    total = 0.0
    for value in values:
        total += value
    assert one(pa.float64(), "sum", adds(*values)) == total
    assert one(pa.float64(), "sum", *(adds(value) for value in values), compact=True) == total
    single = np.float32(0)
    for _ in range(100):
        single += np.float32(0.1)
    assert one(pa.float32(), "sum", adds(*[0.1] * 100)) == float(single)


def test_product_divides_and_rounds() -> None:
    assert one(pa.int32(), "product", adds(-7), [("-U", 2)]) == -3
    assert one(pa.decimal128(6, 2), "product", adds(Decimal("0.05"), Decimal("0.10"))) == Decimal("0.01")
    assert one(pa.decimal128(6, 2), "product", adds(Decimal("-0.05"), Decimal("0.10"))) == Decimal("-0.01")
    assert one(pa.decimal128(4, 0), "product", adds(Decimal(7)), [("-U", Decimal(2))]) == Decimal(4)
    assert one(pa.float64(), "product", adds(*[2.0] * 80), [("-U", 2.0)] * 70, adds(3.0)) == 3.0 * 2**10
    assert one(pa.int64(), "product", [*adds(*[2] * 80), *[("-U", 2)] * 70], adds(3)) == 3 * 2**10


def test_product_refuses_to_take_back_a_zero() -> None:
    shape = shape_of({"v": pa.int32()})
    merger = build("aggregate", {"aggregates": {"v": "product"}}, shape)
    rows = pa.RecordBatch.from_pydict({"k": [1, 2], "v": [0, 1]}, schema=shape.schema)
    kinds = np.array([RowKind.UPDATE_AFTER, RowKind.UPDATE_BEFORE], dtype=np.int8)
    merger.check_records(shape, rows, kinds)
    with pytest.raises(RecordRefusedError, match="zero"):
        merger.check_records(shape, rows, kinds[::-1])


@pytest.mark.parametrize("compact", [False, True])
def test_map_keeps_the_newest_entry_by_time(compact: bool) -> None:
    shape = shape_of({"o": pa.int32(), "m": TIMED}, ordering=["o"])
    options = {"aggregates": {"m": {"function": "merge_map_with_keytime", "ts_field": "at"}}}

    def at(value: int, time: int | None) -> dict[str, int | None]:
        return {"v": value, "at": time}

    commits = (
        [("+U", 1, 5, [("a", at(1, 5)), ("b", at(1, 5))])],
        [("+U", 1, 6, [("a", at(2, 4)), ("b", None), ("c", at(3, None))])],  # older time; removal; no time
        [("+U", 1, 3, [("a", at(3, 5)), ("d", None)])],  # a late record, and a tie that it loses
        [("+U", 1, 9, [("b", at(9, 1))])],  # what was removed is not remembered
    )
    rows = fold_frames(build("aggregate", options, shape), shape, *commits, compact=compact)
    assert [(k, o, dict(m)) for k, o, m in rows] == [(1, 9, {"a": at(1, 5), "b": at(9, 1)})]


def _sketches(start: int, end: int) -> tuple[bytes, ...]:
    hll, theta = datasketches.hll_sketch(12), datasketches.update_theta_sketch(12)
    for number in range(start, end):
        hll.update(number)
        theta.update(number)
    bitmaps = pyroaring.BitMap(range(start, end)).serialize(), pyroaring.BitMap64(range(start, end)).serialize()
    return (hll.serialize_compact(), theta.compact().serialize(), *bitmaps)


@pytest.mark.parametrize("compact", [False, True])
def test_sketches_and_bitmaps_are_united(compact: bool) -> None:
    shape = shape_of(dict.fromkeys("htbw", pa.binary()))
    functions = {"h": "hll_sketch", "t": "theta_sketch", "b": "roaring_bitmap"}
    options = {"aggregates": functions | {"w": {"function": "roaring_bitmap", "bits": 64}}}
    commits = [[("+U", 1, *_sketches(start, start + 1000))] for start in (0, 500, 1000)]
    [(_, hll, theta, small, wide)] = fold_frames(build("aggregate", options, shape), shape, *commits, compact=compact)
    assert datasketches.hll_sketch.deserialize(hll).get_estimate() == pytest.approx(2000, rel=0.03)
    assert datasketches.compact_theta_sketch.deserialize(theta).get_estimate() == 2000
    assert pyroaring.BitMap.deserialize(small) == pyroaring.BitMap(range(2000))
    assert pyroaring.BitMap64.deserialize(wide) == pyroaring.BitMap64(range(2000))


def test_a_union_of_bitmaps_has_the_same_bytes_in_any_groups() -> None:
    """Worked out by hand: 4, 5, 9, 10, 11 and 12, 13 beside 0 and 16. The runs 0, 4-5, 9-13, 16 take 2 + 4 * 4 bytes,
    and an array of nine numbers takes 18 bytes: no fewer, so it is an array. Of 7, 8, 9 a run takes as many, too."""
    shape = shape_of({"v": pa.binary()})
    merger = build("aggregate", {"aggregates": {"v": "roaring_bitmap"}}, shape)
    one = bytes.fromhex("3a3000000100000000000400100000000400050009000a000b00")
    other = bytes.fromhex("3a30000001000000000001001000000000001000")
    run = bytes.fromhex("3b300000010000030001000a000300")  # 10 to 13
    expected = "3a3000000100000000000800100000000000040005" + "0009000a000b000c000d001000"
    records = [("+U", 1, one), ("+U", 1, other), ("+U", 1, run)]
    for commits in ([records], [records[:1], records[1:]], [[two] for two in records], [records[::-1]]):
        [(_, union)] = fold_frames(merger, shape, *commits, compact=True)
        assert union.hex() == expected
    three = bytes.fromhex("3b3000000100000200010007000200")
    [(_, union)] = fold_frames(merger, shape, [("+U", 1, three), ("+U", 1, three)])
    assert union.hex() == "3a30000001000000000002001000000007000800" + "0900"
    assert fold_frames(merger, shape, [("+U", 1, three)]) == [(1, three)]  # one alone stays as it came


def test_bytes_that_are_no_sketch_are_refused() -> None:
    shape = shape_of({"v": pa.binary()})
    for function in ("hll_sketch", "theta_sketch", "roaring_bitmap"):
        merger = build("aggregate", {"aggregates": {"v": function}}, shape)
        frame = pa.RecordBatch.from_pydict({"k": [1], "v": [b"no"]}, schema=shape.schema)
        with pytest.raises(RecordRefusedError, match=function):
            merger.check_records(shape, frame, None)
        with pytest.raises(MergeValueError, match=function):
            fold_frames(merger, shape, [("+U", 1, b"no"), ("+U", 1, b"no")])


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    sketches._library.cache_clear()
    with pytest.raises(InstallError, match=r"lakemerge\[sketches\]"):
        one(pa.binary(), "hll_sketch", adds(b"x", b"y"))


def test_retraction_without_ordering_starts_a_row_of_no_ordering() -> None:
    shape = shape_of({"o": pa.int32(), "n": pa.int32()}, ordering=["o"])
    merger = build("aggregate", {"aggregates": {"n": "sum"}, "remove_record_on_delete": True}, shape)
    removed = [("+U", 1, 5, 1), ("-D", 1, 6, None)]
    assert fold_frames(merger, shape, removed, [("+U", 1, 5, 9)]) == []
    assert fold_frames(merger, shape, removed, [("+U", 1, 6, 9)]) == [(1, 6, 9)]


def test_laws() -> None:
    plain = shape_of({"o": pa.int32(), "n": pa.int64(), "f": pa.float64()})
    ordered = shape_of({"o": pa.int32(), "n": pa.int64()}, ordering=["o"])

    def laws(function: str, *, late: bool = False, **options: Any) -> Laws:
        shape = ordered if late else shape_of({"n": pa.int64()})
        return build("aggregate", {"aggregates": {"n": function}, **options}, shape).laws(shape, full_frames=True)

    assert laws("sum") == Laws(associative=True, commutative=True)
    assert laws("max") == Laws(associative=True, commutative=True, replay_safe=True)
    assert laws("last_value") == Laws(associative=True)
    assert {laws(name, late=True) for name in ("sum", "max", "last_value")} == {Laws()}  # a clear remembers an ordering
    assert laws("product") == Laws()
    sketch = shape_of({"h": pa.binary()})
    for function in ("hll_sketch", "theta_sketch", "roaring_bitmap"):
        union = build("aggregate", {"aggregates": {"h": function}}, sketch)
        assert union.laws(sketch, full_frames=True) == Laws(associative=True, commutative=True)
    floats = build("aggregate", {"aggregates": {"f": "sum"}}, plain)
    assert not floats.laws(plain, full_frames=True).associative


def test_functions_are_those_of_the_document() -> None:
    lines = (ROOT / "docs/merge-semantics.md").read_text().partition("| function | types |")[2].partition("\n\n")[0]
    named = {name for line in lines.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert set(FUNCTIONS) == named


def test_with_an_ordering_no_law_holds() -> None:
    """Over a key that a transaction cleared at 2, of records at 1 and 3 the first stays out, unless it comes last."""
    shape = shape_of({"o": pa.int64(), "n": pa.int64()}, ordering=["o"])
    merger = build("aggregate", {"aggregates": {"n": "sum"}}, shape)
    state = State.empty(shape).after(merger, shape, [Step(RecordKind.CLEAR, {"k": 1, "o": 2, "n": None})])
    early, late = (Step(RecordKind.UPDATE_AFTER, {"k": 1, "o": o, "n": 5}) for o in (1, 3))
    forth, back = (state.after(merger, shape, steps).rows.to_pylist() for steps in ([early, late], [late, early]))
    assert (forth, back) == ([{"k": 1, "o": 3, "n": 5}], [{"k": 1, "o": 3, "n": 10}])
