"""The workload of the comparison: frames are what the docs say, and expected rows equal a fold in plain Python."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.compare.queries import AGGREGATE, FILTER, FULL_SCAN, look_up
from benchmarks.compare.workload import SIZES, WIDE, WIDE_CHANGED, Frame, Parameters, Workload
from benchmarks.tpch import LINEITEM

PARAMETERS = Parameters(scale=0.001, commits=4, rounds=1, seed=5)

Key = tuple[int, int]
Record = dict[str, object]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def workload(cache: Path) -> Workload:
    return Workload.prepare(cache, PARAMETERS)


def records(path: Path) -> list[Record]:
    rows: list[Record] = pq.read_table(path).to_pylist()
    return rows


def key_of(row: Record) -> Key:
    order, line = row["l_orderkey"], row["l_linenumber"]
    assert isinstance(order, int)
    assert isinstance(line, int)
    return order, line


def time_of(row: Record) -> int:
    value = row[LINEITEM.ordering]
    assert isinstance(value, int)
    return value


def folded(base: Path, frames: list[Frame]) -> dict[Key, Record]:
    """The rows after each record of each frame in turn; no frame is older than a delete before it."""
    state = {key_of(row): row for row in records(base)}
    for frame in frames:
        for row in records(frame.path):
            key = key_of(row)
            if key in state and time_of(row) < time_of(state[key]):
                continue
            if frame.deletes:
                state.pop(key, None)
            else:
                state[key] = row
    return state


def count_of(workload: Workload) -> int:
    return round(workload.initial_rows * 0.01)


@pytest.mark.long
def test_late_records_lose(workload: Workload) -> None:
    stored = folded(workload.initial, [])
    known = [row for row in records(workload.late.path) if key_of(row) in stored]
    late = [row for row in known if time_of(row) < time_of(stored[key_of(row)])]
    assert len(late) == pytest.approx(len(known) / 2, abs=len(known) * 0.1)
    after = folded(workload.initial, [workload.late])
    assert all(after[key_of(row)] == stored[key_of(row)] for row in late)


def test_expected_rows_equal_a_fold(workload: Workload) -> None:
    frames = [workload.small(1), workload.late, workload.duplicates, workload.deletes, workload.large]
    state = workload.state(workload.initial, frames)
    rows = records(state)
    assert {key_of(row): row for row in rows} == folded(workload.initial, frames)
    assert [key_of(row) for row in rows] == sorted(map(key_of, rows))
    # The large commit brings deleted rows back, so a delete decides only about what is older.
    deleted = {key_of(row) for row in records(workload.deletes.path)}
    assert deleted & {key_of(row) for row in rows}
    assert deleted - {key_of(row) for row in rows}
    before = state.stat().st_mtime_ns
    assert workload.state(workload.initial, frames).stat().st_mtime_ns == before
    assert workload.state(workload.initial, frames[:1]) != state


@pytest.mark.long
def test_sizes(workload: Workload) -> None:
    rows = {size: workload.rows(size) for size in SIZES}
    whole = workload.initial_rows
    assert rows == {"third": whole // 3, "initial": whole, "tenfold": 3 * whole + whole // 3}
    for size in SIZES:
        for number in (0, 1):
            frame = workload.sized(size, number)
            found = records(frame.path)
            assert len(found) == count_of(workload)
            stored = {key_of(row) for row in records(workload.table(size))}
            assert sum(key_of(row) in stored for row in found) == pytest.approx(len(found) * 0.9, abs=1)
        state = workload.state(workload.table(size), [workload.sized(size, 0), workload.sized(size, 1)])
        assert {key_of(row): row for row in records(state)} == folded(
            workload.table(size), [workload.sized(size, 0), workload.sized(size, 1)]
        )


def test_wide_rows(workload: Workload) -> None:
    assert len(WIDE.columns) == 100
    expected = {row["id"]: row for row in records(workload.wide)}
    frames = [workload.wide_change(0), workload.wide_change(1)]
    for frame in frames:
        for row in records(frame.path):
            assert set(row) == {"id", "updated_at", *WIDE_CHANGED}
            assert all(row[name] != expected[row["id"]][name] for name in ("updated_at", "i0", "d0"))
            expected[row["id"]] = {**expected[row["id"]], **row}
    assert {row["id"]: row for row in records(workload.wide_state(frames))} == expected


def test_answers(workload: Workload) -> None:
    rows = records(workload.initial)
    assert workload.answer(workload.initial, FULL_SCAN) == ((str(len(rows)),),)
    sums: dict[object, Decimal] = defaultdict(Decimal)
    for row in rows:
        sums[row["l_shipmode"]] += Decimal(str(row["l_extendedprice"]))
    assert workload.answer(workload.initial, AGGREGATE) == tuple(sorted((str(a), str(b)) for a, b in sums.items()))
    week = [row for row in rows if "1995-03-01" <= str(row["l_shipdate"]) < "1995-03-08"]
    assert week
    total = sum(Decimal(str(row["l_extendedprice"])) for row in week)
    first = min(str(row["l_comment"]) for row in week)
    assert workload.answer(workload.initial, FILTER) == ((str(len(week)), str(total), first),)
    key = workload.updated_key()
    stored = folded(workload.initial, [workload.small(1)])[key]
    columns = look_up(*key).columns
    found = workload.answer(workload.state(workload.initial, [workload.small(1)]), look_up(*key))
    assert found == (tuple(str(stored[name]) for name in columns),)
