"""The benchmark of ingest at a tiny scale, and that it sees a wrong row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks import ingest
from benchmarks.ingest import Bench
from benchmarks.measure import Report
from benchmarks.tpch import LINEITEM, Workload
from lakemerge import LakeTable
from lakemerge.schema.ddl import parse_ddl

pytestmark = pytest.mark.long


def bench_in(folder: Path) -> Bench:
    """With line items made by hand: the generator of TPC-H is not needed for it."""
    schema = parse_ddl(LINEITEM.ddl)
    values: dict[str, Any] = {"l_orderkey": range(60), "l_linenumber": [1] * 60, "updated_at": range(1, 61)}
    texts = {name: pa.array([str(n) for n in range(60)]) for name in LINEITEM.names if name not in values}
    days = pa.array([f"1995-01-{n % 28 + 1:02}" for n in range(60)])
    columns = [
        pa.array(values[field.name], field.type)
        if field.name in values
        else (days if pa.types.is_date(field.type) else texts[field.name]).cast(field.type)
        for field in schema
    ]
    (folder / "data" / "lineitem").mkdir(parents=True)
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), folder / "data" / "lineitem" / "initial.parquet")
    (folder / "work").mkdir()
    return Bench(Report(Console(quiet=True)), folder / "work", Workload(folder / "data", 1), rounds=1, many=7)


def test_it_measures_and_finds_the_rows_right(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    ingest.measure(bench, ["arrow", "small"], files=0)
    assert bench.report.problems == []
    assert [line.target for line in bench.report.lines] == [1.2] * 4 + [0.1]


def test_it_plans_in_another_process(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    ingest.measure(bench, ["plan"], files=50)
    assert bench.report.problems == []
    memory = {line.what: line.value for line in bench.report.lines if line.unit == "bytes"}
    assert len(memory) == 2
    assert all(value < 400 << 20 for value in memory.values())


def test_it_sees_a_wrong_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_in(tmp_path)
    right = bench.landing("csv", 1) / "00000.csv"
    right.write_text(right.read_text().replace(",59,", ",58,"))
    bench.table()
    bench.ingest("csv", right.parent)
    bench.check("csv")
    assert bench.report.problems
    bench.report.problems.clear()
    whole: Any = LakeTable.upsert

    def upsert(table: LakeTable, frame: pa.Table) -> Any:
        return whole(table, frame if frame.num_rows == 1 else frame.slice(0, frame.num_rows - 1))

    monkeypatch.setattr(LakeTable, "upsert", upsert)
    bench.table()
    ingest._read_by_arrow(bench, "csv", right.parent)
    bench.check("csv")
    assert any("row count" in problem for problem in bench.report.problems)
