"""The inputs of the foundation benchmark against a fold in plain Python, its cases at a tiny scale,
and that it sees wrong answers."""

from __future__ import annotations

import json
import pstats
from collections import Counter
from pathlib import Path
from types import FunctionType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks import foundation, foundation_log, phases
from benchmarks.foundation_cases import Bench, DeltaMerge
from benchmarks.foundation_data import DIRTY_FRAMES, RECENT_FRAMES, Inputs, merged_sql
from benchmarks.measure import Report
from benchmarks.tpch import CHANGES_BEGIN_US, LINEITEM, connect
from lakemerge import LakeTable

pytestmark = pytest.mark.long

SCALE = 0.002
ROWS = round(SCALE * 6_000_000)
RECENT = dict.fromkeys(RECENT_FRAMES, ROWS // 300)
FRAMES = {"small": ROWS // 100, "large": ROWS // 10, **dict.fromkeys(DIRTY_FRAMES, ROWS // 40)}

Key = tuple[int, int]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs.prepare(tmp_path_factory.mktemp("foundation"), scale=SCALE, seed=5)


@pytest.fixture
def report() -> Report:
    return Report(Console(quiet=True))


def rows_of(path: Path) -> dict[Key, tuple[object, ...]]:
    """Rows by key; a key may be there once only."""
    table = pq.read_table(path).select(list(LINEITEM.names))
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    places = [LINEITEM.names.index(name) for name in LINEITEM.key]
    found = {tuple(row[place] for place in places): row for row in rows}
    assert len(found) == len(rows)
    return found


def ordering_of(row: tuple[object, ...]) -> int:
    value = row[LINEITEM.names.index(LINEITEM.ordering)]
    assert isinstance(value, int)
    return value


def folded(base: Path, frames: list[Path]) -> dict[Key, tuple[object, ...]]:
    state = rows_of(base)
    for frame in frames:
        for key, row in rows_of(frame).items():
            if key not in state or ordering_of(row) >= ordering_of(state[key]):
                state[key] = row
    return state


def test_frames_have_exact_sizes_and_disjoint_keys(inputs: Inputs) -> None:
    keys = {name: set(rows_of(inputs.frame(name))) for name in FRAMES}
    assert {name: len(found) for name, found in keys.items()} == FRAMES
    assert {name: inputs.frame_rows(name) for name in FRAMES} == FRAMES
    assert len(set.union(*keys.values())) == sum(FRAMES.values())
    assert {len(list(inputs.frame(name).iterdir())) for name in FRAMES} == {2}


def test_frames_of_recent_keys_take_rows_of_the_last_twentieth(inputs: Inputs) -> None:
    keys = {name: set(rows_of(inputs.frame(name))) for name in RECENT}
    assert {name: len(found) for name, found in keys.items()} == RECENT
    assert len(set.union(*keys.values())) == sum(RECENT.values())
    assert min(set.union(*keys.values())) >= sorted(rows_of(inputs.initial))[-ROWS // 20 - 1]


def test_frames_hold_new_late_and_newer_rows(inputs: Inputs) -> None:
    stored = rows_of(inputs.initial)
    fates: Counter[str] = Counter()
    for key, row in rows_of(inputs.frame("large")).items():
        if key not in stored:
            fates["new"] += 1
        else:
            fates["newer" if ordering_of(row) > ordering_of(stored[key]) else "late"] += 1
            assert (ordering_of(row) >= CHANGES_BEGIN_US) == (ordering_of(row) > ordering_of(stored[key]))
    shares = {fate: count / FRAMES["large"] for fate, count in fates.items()}
    assert shares == {
        "new": pytest.approx(0.1, abs=0.03),
        "late": pytest.approx(0.05, abs=0.03),
        "newer": pytest.approx(0.85, abs=0.04),
    }


def test_merged_rows_equal_a_fold_in_plain_python(inputs: Inputs, tmp_path: Path) -> None:
    assert rows_of(inputs.merged) == folded(inputs.initial, [inputs.frame(name) for name in DIRTY_FRAMES])
    assert rows_of(inputs.merged_recent) == folded(inputs.initial, [inputs.frame(name) for name in RECENT_FRAMES])
    upserts = [inputs.frame("small"), inputs.frame("large")]
    with connect(tmp_path) as db:
        db.execute(f"COPY ({merged_sql(inputs.third, upserts)}) TO '{tmp_path / 'found.parquet'}' (FORMAT parquet)")
    assert rows_of(tmp_path / "found.parquet") == folded(inputs.third, upserts)


def test_tables_of_other_sizes(inputs: Inputs) -> None:
    whole, third = rows_of(inputs.initial), rows_of(inputs.third)
    assert len(whole) == inputs.initial_rows
    assert third.items() <= whole.items()
    assert len(third) == len(whole) // 3
    tenfold = rows_of(inputs.tenfold())
    assert whole.items() <= tenfold.items()
    assert len(tenfold) == 3 * len(whole) + len(third)


def test_a_second_call_generates_nothing(inputs: Inputs) -> None:
    before = inputs.merged.stat().st_mtime_ns
    assert Inputs.prepare(inputs.folder.parent, scale=SCALE, seed=5) == inputs
    assert inputs.merged.stat().st_mtime_ns == before


@pytest.mark.parametrize("bad", [{"scale": 0.0, "seed": 1}, {"scale": 0.1, "seed": -1}])
def test_impossible_parameters_are_refused(tmp_path: Path, bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="are needed"):
        Inputs.prepare(tmp_path, **bad)  # type: ignore[arg-type]  # integers where the signature says so


def test_every_case_on_spark_gives_right_answers(
    spark: SparkSession, inputs: Inputs, report: Report, tmp_path: Path
) -> None:
    options = foundation._options(["--cases", "load,upsert,read,compact", "--repeat", "1", "--no-delta", "--profile"])
    foundation.run(options, inputs, tmp_path, report, spark)
    assert report.problems == []
    assert {line.case for line in report.lines} == {"load", "upsert", "read", "compact"}
    # load 2, upsert 2 x 3 + 2, read 2 x 5 clean, 5 + 1 minor-compacted, dirty and the first one, compact 2
    assert len([line for line in report.lines if line.target is not None]) == 30
    objects = [line for line in report.lines if line.unit == "objects"]
    assert [(line.value, line.target) for line in objects] == [(3, 4), (3, 4)]  # two log files and the commit


def test_a_merge_by_delta_gives_the_same_rows(
    spark: SparkSession, inputs: Inputs, report: Report, tmp_path: Path
) -> None:
    merge = DeltaMerge(Bench(spark, inputs, tmp_path, report, rounds=1, delta=True, large=False), inputs.third)
    for name in ("small", "large"):
        contender = merge.contender(name)
        assert contender.before is not None
        contender.before()
        contender.run()
        merge.check(name)
    assert report.problems == []
    assert any((tmp_path / "delta").glob("deletion_vector_*.bin"))
    merge.check("small")
    assert report.problems  # the table holds the other frame's rows now


def test_a_wrong_answer_is_seen(spark: SparkSession, inputs: Inputs, report: Report, tmp_path: Path) -> None:
    bench = Bench(spark, inputs, tmp_path, report, rounds=1, delta=False, large=False)
    bench.check("right", bench.parquet(inputs.merged), inputs.initial, DIRTY_FRAMES)
    assert report.problems == []
    bench.check("one commit is missing", bench.parquet(inputs.merged), inputs.initial, DIRTY_FRAMES[:-1])
    assert report.problems
    assert {problem.partition(":")[0] for problem in report.problems} == {"one commit is missing"}


def test_a_long_log_is_opened(inputs: Inputs, report: Report, tmp_path: Path) -> None:
    foundation_log.metadata(inputs, tmp_path, report, rounds=1, files=60, commits=7)
    assert report.problems == []
    assert len([line for line in report.lines if line.target == 1.0]) == 2
    grow = foundation_log.long_log(tmp_path / "log", pq.read_metadata(inputs.initial), files=60, commits=7)
    assert list(grow) == [(7, 0), (14, 7 * 60)]
    table = LakeTable.open(tmp_path / "log")
    assert (table.version, table.view.snapshot.checkpoint_version) == (14, 7)
    assert len(table.view.base_files) == 60


def test_requests_are_counted_exactly(inputs: Inputs, report: Report, tmp_path: Path) -> None:
    foundation_log.requests(inputs, tmp_path, report)
    assert report.problems == []
    base, folder = tmp_path / "requests.parquet", tmp_path / "requests-1"
    counts = foundation_log.count_requests(inputs, base, tmp_path / "again", report)
    append = counts["append of one task"].calls
    assert (append["open_output"], append["put_if_absent"], append["put"], append["delete"]) == (1, 1, 0, 0)
    logs = sorted((folder / "_lakemerge" / "log").iterdir())
    assert len(logs) == 1
    written = logs[0].stat().st_size + (folder / "_delta_log" / f"{2:020}.json").stat().st_size
    shown = next(line for line in report.lines if line.what == "append of one task: bytes written")
    assert shown.value == written
    assert counts["open"].calls["put"] == 0


def test_a_table_that_answers_wrong_is_seen_by_the_request_counts(
    inputs: Inputs, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base.parquet"
    pq.write_table(pq.read_table(inputs.third).slice(0, 500), base)
    whole = LakeTable.to_arrow

    def short(table: LakeTable, *, filter: str | None = None) -> pa.Table:
        return whole(table, filter=filter).slice(1)

    monkeypatch.setattr(LakeTable, "to_arrow", short)
    foundation_log.count_requests(inputs, base, tmp_path / "table", report)
    assert any(problem.startswith("requests: dirty read: row count") for problem in report.problems)


def test_phases_name_functions_of_the_product() -> None:
    found = [
        function
        for plan in phases._PLANS.values()
        for phase in (*plan.driver, *plan.task)
        for function in phase.functions
    ]
    assert found
    assert all(isinstance(function, FunctionType) for function in found)


def test_phases_see_what_ran(spark: SparkSession, inputs: Inputs, report: Report, tmp_path: Path) -> None:
    bench = Bench(spark, inputs, tmp_path, report, rounds=1, delta=False, large=False)
    table = bench.copy(bench.table("loaded", inputs.third), "profiled", phases.IN_TASKS)
    frame = bench.parquet(inputs.frame("large"))
    for case, action in (("upsert", lambda: table.upsert(frame)), ("compact", table.compact)):
        driver, tasks = phases.profiled(case, tmp_path / "profiles", action)
        plan = phases._PLANS[case]
        silent = [p.label for p in plan.driver if phases.seconds_in(pstats.Stats(driver), p.functions) <= 0]
        silent += [p.label for p in plan.task if sum(phases.seconds_in(task, p.functions) for task in tasks) <= 0]
        assert silent == []
    assert all(file_slice.is_clean for file_slice in table.view.file_slices)


def test_the_command_writes_its_numbers(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--scale", str(SCALE), "--cases", "requests", "--path", str(tmp_path), "--out", str(out)]
    assert foundation.main(arguments) == 0
    body = json.loads(out.read_text())
    assert (body["problems"], body["cases"], body["scale"]) == ([], ["requests"], SCALE)
    assert {line["case"] for line in body["lines"]} == {"requests"}
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["data", "out.json"]


def test_wrong_answers_fail_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(inputs: Inputs, scratch: Path, report: Report) -> None:
        report.check("requests", ["row count: 1, expected 2"])

    monkeypatch.setattr(foundation_log, "requests", wrong)
    assert foundation.main(["--scale", str(SCALE), "--cases", "requests", "--path", str(tmp_path)]) == 1


def test_unknown_cases_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        foundation._options(["--cases", "load,compaction"])
    assert "not compaction" in capsys.readouterr().err
