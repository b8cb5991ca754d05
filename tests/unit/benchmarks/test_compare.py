"""The comparison at a tiny size: every case runs and is right, wrong answers void their rows, runs resume."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.compare import __main__ as command
from benchmarks.compare.book import Arena, Written, written
from benchmarks.compare.cases import CASES
from benchmarks.compare.engine import Engine, Place
from benchmarks.compare.engines import ENGINES
from benchmarks.compare.memory import measured, tree_bytes
from benchmarks.compare.on_arrow import ArrowParquet, OnArrow
from benchmarks.compare.queries import Answer, Bound, Query, queries
from benchmarks.compare.results import CaseResult, Row
from benchmarks.compare.worker import run
from benchmarks.compare.workload import Frame, Parameters, Workload

pytestmark = pytest.mark.bench

PARAMETERS = Parameters(scale=0.001, commits=4, rounds=1, seed=5)
COMMITS = ["small commit", "late records", "duplicates", "deletes"]


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return Workload.prepare(tmp_path_factory.mktemp("compare"), PARAMETERS)


class Folding(OnArrow):
    """An engine in plain Python: a table is a dictionary."""

    configuration: Mapping[str, str] = {"rows": "a dictionary"}

    def __init__(self) -> None:
        self.tables: dict[Path, dict[tuple[object, ...], dict[str, object]]] = {}

    def load(self, place: Place, rows: Path) -> None:
        self.tables[place.path] = {self._key(place, row): row for row in pq.read_table(rows).to_pylist()}

    def upsert(self, place: Place, frame: Frame) -> None:
        table, time = self.tables[place.path], place.entity.ordering
        for row in pq.read_table(frame.path).to_pylist():
            stored = table.get(self._key(place, row))
            if stored is None or row[time] >= stored[time]:
                table[self._key(place, row)] = row

    def delete(self, place: Place, frame: Frame) -> None:
        for row in pq.read_table(frame.path).to_pylist():
            self.tables[place.path].pop(self._key(place, row), None)

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        for row in pq.read_table(frame.path).to_pylist():
            self.tables[place.path][self._key(place, row)].update(row)

    def compact(self, place: Place) -> None:
        place.path.mkdir(exist_ok=True)
        (place.path / "compacted").write_bytes(b"12345")

    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        tests = {"=": lambda a, b: a == b, ">=": lambda a, b: a >= b, "<": lambda a, b: a < b}
        found = [
            row
            for row in self.tables[place.path].values()
            if all(tests[sign](row[name], value) for name, sign, value in bounds)
        ]
        kinds = {"BIGINT": pa.int64(), "INT": pa.int32(), "DOUBLE": pa.float64(), "DATE": pa.date32()}
        kinds |= {"STRING": pa.string(), "DECIMAL(15,2)": pa.decimal128(15, 2)}
        schema = pa.schema([(name, kinds[kind]) for name, kind in place.entity.columns])
        rows = pa.Table.from_pylist(found, schema=schema)
        return rows.select(list(columns)) if columns else rows

    @staticmethod
    def _key(place: Place, row: Mapping[str, object]) -> tuple[object, ...]:
        return tuple(row[name] for name in place.entity.key)


def rows_of(case: str, engine: Engine, workload: Workload, scratch: Path) -> Sequence[Row]:
    return CASES[case](Arena(engine, ArrowParquet(), workload, scratch))


@pytest.mark.parametrize("case", [case for case in CASES if case != "mixes"])
def test_a_right_engine_has_right_rows(case: str, workload: Workload, tmp_path: Path) -> None:
    rows = rows_of(case, Folding(), workload, tmp_path)
    assert [row for row in rows if row.problems or row.cannot] == []
    seconds = {row.step for row in rows if row.unit == "s"}
    asked = {query.name for query in queries(0, 0)}
    expected = {
        "history": {"load", *COMMITS, "compaction", "large commit"}
        | {f"{state}: {name}" for state in ("dirty", "clean") for name in asked},
        "sizes": {"commit"},
        "merge": {"merge"},
        "longevity": {"commit", "full scan", "two-column aggregate", "key look-up"},
        "wide": {"partial update", "dirty: full scan", "dirty: aggregate of an updated column"},
    }
    assert seconds == expected[case]
    assert all(row.value is not None and row.floor for row in rows if row.unit == "s")
    counts = {row.step: len(row.samples) for row in rows if row.at is None}
    if case == "history":
        assert (counts["load"], counts["small commit"], counts["dirty: count"]) == (1, 3, 1)
        compacted = {row.unit: row.value for row in rows if row.step == "compaction"}
        assert (compacted["bytes"], compacted["objects"]) == (5, 1)
    if case == "sizes":
        sizes = [row.at for row in rows if row.unit == "s"]
        assert sizes == [workload.rows(size) for size in ("third", "initial", "tenfold")]
    if case == "longevity":
        assert [row.at for row in rows if (row.step, row.unit) == ("commit", "s")] == [1, 2, 3, 4]
        assert [row.at for row in rows if row.step == "full scan"] == [0, 1, 2, 3, 4]
        assert {row.step for row in rows if row.unit == "rate"} == {"degradation of commits", "degradation of queries"}


class IgnoresDeletes(Folding):
    def delete(self, place: Place, frame: Frame) -> None:
        return


class TakesLateRecords(Folding):
    def upsert(self, place: Place, frame: Frame) -> None:
        for row in pq.read_table(frame.path).to_pylist():
            self.tables[place.path][self._key(place, row)] = row


class LosesRowsInCompactions(Folding):
    def compact(self, place: Place) -> None:
        self.tables[place.path].popitem()


class LosesTheLargeCommit(Folding):
    def upsert(self, place: Place, frame: Frame) -> None:
        if frame.name != "large":
            super().upsert(place, frame)


class MiscountsQueries(Folding):
    def answer(self, place: Place, query: Query) -> Answer:
        return super().answer(place, query) if query.name != "count" else (("7",),)


class LosesRowsInLoads(Folding):
    def load(self, place: Place, rows: Path) -> None:
        super().load(place, rows)
        for _ in range(50):  # more than later frames bring back
            self.tables[place.path].popitem()


DIRTY, CLEAN = ({f"{state}: {query.name}" for query in queries(0, 0)} for state in ("dirty", "clean"))
READS_AND_LATER = {*COMMITS, *DIRTY, "compaction", *CLEAN}


@pytest.mark.parametrize(
    ("engine", "void"),
    [
        (IgnoresDeletes, READS_AND_LATER | {"large commit"}),
        (TakesLateRecords, READS_AND_LATER | {"large commit"}),
        (LosesRowsInCompactions, {"compaction", *CLEAN, "large commit"}),
        (LosesTheLargeCommit, {"large commit"}),
        (MiscountsQueries, {"dirty: count", "clean: count"}),
        (LosesRowsInLoads, {"load", *READS_AND_LATER, "large commit"}),
    ],
)
def test_wrong_answers_void_their_rows(
    engine: type[Folding], void: set[str], workload: Workload, tmp_path: Path
) -> None:
    rows = rows_of("history", engine(), workload, tmp_path)
    assert {row.step for row in rows if row.is_void} == void
    assert all(row.value is None and row.ratio is None and row.samples for row in rows if row.is_void)
    assert all(row.value is not None for row in rows if not row.is_void)


class MiscountingFloor(ArrowParquet):
    def answer(self, place: Place, query: Query) -> Answer:
        return super().answer(place, query) if query.name != "count" else (("7",),)


def test_a_floor_that_answers_wrong_is_no_floor(workload: Workload, tmp_path: Path) -> None:
    rows = CASES["history"](Arena(Folding(), MiscountingFloor(), workload, tmp_path))
    void = {row.step: row.problems for row in rows if row.is_void}
    assert set(void) == {"dirty: count", "clean: count"}
    assert all(problem.startswith("floor gave (('7',),), expected") for (problem,) in void.values())


@pytest.mark.parametrize("case", ["sizes", "longevity", "wide"])
def test_wrong_rows_void_every_case(case: str, workload: Workload, tmp_path: Path) -> None:
    rows = rows_of(case, LosesRowsInLoads(), workload, tmp_path)
    assert rows
    assert all(row.is_void for row in rows)


class Unable(Folding):
    cannot: Mapping[str, str] = {name: f"no {name} here" for name in ("delete", "compact", "wide")}

    def delete(self, place: Place, frame: Frame) -> None:
        raise AssertionError("it was said that this cannot be done")

    def compact(self, place: Place) -> None:
        raise AssertionError("it was said that this cannot be done")

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        raise AssertionError("it was said that this cannot be done")


def test_what_an_engine_cannot_do_is_said(workload: Workload, tmp_path: Path) -> None:
    rows = rows_of("history", Unable(), workload, tmp_path)
    cannot = {row.step: row.cannot for row in rows if row.cannot}
    assert cannot == {"deletes": "no delete here", "compaction": "no compact here"}
    assert not any(row.problems for row in rows)
    assert not any(row.step.startswith("clean") for row in rows)
    assert [row.cannot for row in rows_of("wide", Unable(), workload, tmp_path)] == ["no wide here"]


def test_what_is_written_is_what_is_new_or_changed() -> None:
    before = {"kept": (10, 1), "replaced": (20, 1), "gone": (40, 1), "touched": (80, 1)}
    after = {"kept": (10, 1), "replaced": (25, 2), "touched": (80, 2), "new": (3, 3)}
    assert written(before, after) == Written(bytes=108, objects=3)
    assert written({}, {}) == Written(0, 0)


def test_memory_of_a_tree_of_processes(tmp_path: Path) -> None:
    def process(pid: int, parent: int, kilobytes: int | None) -> None:
        (tmp_path / str(pid)).mkdir()
        resident = "" if kilobytes is None else f"VmSize:\t {kilobytes + 1} kB\nVmRSS:\t  {kilobytes} kB\n"
        (tmp_path / str(pid) / "status").write_text(
            f"Name:\t{'java' if pid == 8 else 'any'}\nPPid:\t{parent}\n{resident}"
        )

    for number in ((1, 0, 500), (7, 1, 10), (8, 7, 20), (9, 8, None), (10, 1, 40), (11, 8, 80), (13, 11, 80)):
        process(*number)
    # 13 was forked from 11 and has all of its memory in common with it.
    (tmp_path / "12").mkdir()  # ended
    (tmp_path / "self").mkdir()
    assert tree_bytes(7, tmp_path) == {"driver": 10 * 1024, "Java": 20 * 1024, "workers": 80 * 1024}
    assert tree_bytes(3, tmp_path) is None
    with measured() as peak:
        assert peak.bytes is not None
        assert peak.bytes > 1 << 20


def test_a_worker_writes_each_finished_case(workload: Workload, tmp_path: Path) -> None:
    def broken(_: Arena) -> Sequence[Row]:
        raise RuntimeError("out of luck")

    cases = {"wide": CASES["wide"], "sizes": broken, "history": CASES["history"]}
    (tmp_path / "tables").mkdir()
    with pytest.raises(RuntimeError, match="out of luck"):
        run("any", Arena(Folding(), ArrowParquet(), workload, tmp_path / "tables"), cases, tmp_path)
    assert [CaseResult.read(tmp_path, "any", case) is not None for case in cases] == [True, False, False]
    result = CaseResult.read(tmp_path, "any", "wide")
    assert result is not None
    assert result.configuration == {"rows": "a dictionary"}
    assert result.peak_memory_bytes
    assert sum(result.peak_memory_parts.values()) == result.peak_memory_bytes
    assert {row.step for row in result.rows if row.unit == "bytes"} == {"partial update"}


def test_a_case_is_given_up(workload: Workload, tmp_path: Path) -> None:
    """Engines wait in ``except Exception`` and in locks; it comes through."""
    forever = threading.Event()

    def slow(_: Arena) -> Sequence[Row]:
        with contextlib.suppress(Exception):
            forever.wait()
        return ()

    cases = {"wide": lambda _: (), "sizes": slow, "history": slow}
    run("any", Arena(Folding(), ArrowParquet(), workload, tmp_path), cases, tmp_path, minutes=0.002)
    found = [CaseResult.read(tmp_path, "any", case) for case in cases]
    assert [result and result.given_up for result in found] == [None, "not done in 0.002 minutes", None]
    assert found[2] is None, "the engine is in the middle of something"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


class Workers:
    """Stands for worker processes: finishes cases until it comes to one of ``broken``."""

    def __init__(self, state: Path, broken: Sequence[str] = ()) -> None:
        self.state, self.broken = state, broken
        self.started: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self, engine: str, cases: Sequence[str], log: Path) -> int:
        self.started.append((engine, tuple(cases)))
        for case in cases:
            if case in self.broken:
                log.write_text("Traceback\nMemoryError: all of it\n\tat java.lang.Thread\n")
                return 3
            CaseResult(engine=engine, case=case).write(self.state)
        log.write_text("")
        return 0


def test_a_failed_case_does_not_end_the_others_and_is_run_again(tmp_path: Path) -> None:
    cases = ["history", "sizes", "longevity"]
    workers = Workers(tmp_path, broken=["sizes"])
    results = command.compared("delta", cases, tmp_path, workers, say=lambda text: None)
    assert workers.started == [("delta", ("history", "sizes", "longevity")), ("delta", ("longevity",))]
    assert [(result.case, result.failure is None) for result in results] == [
        ("history", True),
        ("sizes", False),
        ("longevity", True),
    ]
    assert results[1].failure == "exit status 3:\nTraceback\nMemoryError: all of it"
    again = Workers(tmp_path)
    results = command.compared("delta", cases, tmp_path, again, say=lambda text: None)
    assert again.started == [("delta", ("sizes",))]
    assert [result.failure for result in results] == [None, None, None]
    never = Workers(tmp_path)
    assert command.compared("delta", cases, tmp_path, never, say=lambda text: None) == results
    assert never.started == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*more: str) -> int:
        sizes = ["--scale", "0.001", "--rounds", "1", "--commits", "4", "--cases", "history"]
        places = ["--path", str(tmp_path / "work"), "--out", str(tmp_path / "out"), "--name", "n"]
        return command.main([*sizes, *places, *more])

    # An environment that is not there: the case failed, the others finished, and are not run again.
    environments = tmp_path / "environments"
    environments.mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ENGINES["pypaimon"].environment:
            (environments / path.name).symlink_to(path)
    assert call("--engines", "lakemerge-arrow,pypaimon", "--environments", str(environments)) == 1
    shown = capsys.readouterr().out
    assert "FAILED pypaimon, history: exit status 1" in shown
    assert shown.count("lakemerge-arrow: history") == 1
    assert call("--engines", "lakemerge-arrow,deltalake") == 0
    shown = capsys.readouterr().out
    assert "lakemerge-arrow: history" not in shown
    assert "deltalake: history" in shown
    assert list((tmp_path / "work" / "compare").iterdir()) == []
    body = json.loads((tmp_path / "out" / "n.json").read_text())
    assert [(result["engine"], result["case"]) for result in body["results"]] == [
        ("lakemerge-arrow", "history"),
        ("deltalake", "history"),
    ]
    assert not any("problems" in row for result in body["results"] for row in result["rows"])
    assert (tmp_path / "out" / "n.md").read_text().count("| load |") == 2
