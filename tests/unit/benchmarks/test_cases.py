"""Every case of the benchmarks runs small and finds its results right, and finds out when one is wrong."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from benchmarks import harness, tables
from benchmarks.cases import (
    foundation_log,
    ingest,
    merge_source,
    merger_functions,
    mergers,
    paimon,
    plans,
    s3,
    scale_log,
    scale_rows,
)
from benchmarks.cases.merger_answers import Answers
from benchmarks.cases.merger_folds import Folds
from benchmarks.cases.merger_records import CASES as CONFIGURATIONS
from benchmarks.cases.merger_records import Case, Inputs, logs_only, merged, updates
from benchmarks.cases.people import People, union_find
from benchmarks.cases.s3_proxy import Proxy, Request
from benchmarks.elsewhere import Elsewhere, ElsewhereError, elsewhere
from benchmarks.foundation_data import DIRTY_FRAMES, RECENT_FRAMES
from benchmarks.foundation_data import Inputs as LineItems
from benchmarks.measure import Report
from benchmarks.tpch import LINEITEM
from lakemerge import LakeTable
from lakemerge.delta import AddFile
from lakemerge.merge_source import MergeSource
from mergers import default_registry

pytestmark = pytest.mark.bench

SCALE = 0.001
SMALL: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "foundation": ({"scale": SCALE, "parts": ("metadata", "requests"), "rounds": 1, "files": 60, "commits": 7}, 38),
    "mergers": (
        {"scale": 0.002, "parts": ("updates", "versions", "functions", "row", "expression", "uniting"), "rounds": 1},
        59,
    ),
    "compaction": ({"rows": 2_000, "rounds": 1}, 3),
    "log-compaction": ({"commits": 4, "rows": 50, "rounds": 1}, 10),
    "compaction-plan": ({"slices": 20, "commits": 3, "rounds": 1}, 6),
    "vacuum": ({"files": 2_000, "rounds": 1}, 3),
    "publish": (
        {"rows": 2_000, "buckets": 64, "week_rows": 4_000, "days": 0.1, "spark": False, "rounds": 1},
        9,
    ),
    "lookups": ({"rows": 2_000, "commits": 3, "commit_rows": 200, "keys": 40}, 17),
    "growth": ({"rows": (2_000, 4_000), "commits": 2, "commit_rows": 50}, 32),
    "scale-files": ({"files": (2_000, 4_000)}, 22),
    "scale-commits": ({"commits": (30, 60), "files": 5, "interval": 7}, 24),
    "scale-writers": ({"writers": (2, 5), "upserts": 2}, 10),
    "scale-rows": ({"rows": (2_000, 4_000), "commit_rows": 100}, 28),
    "plan-time": ({"files": 60, "commits": 3, "touched": 10, "rounds": 1, "spark": False}, 3),
    "merge-source": ({"rows": 300, "changed": 20, "rounds": 1, "spark": False}, 10),
    "ingest": ({"scale": SCALE, "parts": ("arrow", "small", "plan"), "rounds": 1, "many": 7, "files": 50}, 10),
    "provenance": ({"rows": 2_000, "records": 400, "keys": 10, "rounds": 1}, 6),
    "transactions": ({"rows": 5_000, "rounds": 1, "parts": ("arrow",)}, 1),
}
"""Sizes, and how many figures are reported. Other cases need Spark or a server: tests/spark, tests/s3."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated inputs, made once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sync", lambda: None)


def run(case: str, folder: Path, data: Path, **more: Any) -> Report:
    report = Report(Console(quiet=True))
    harness.function_of(case)(harness.Run(report, folder, data), **{**SMALL[case][0], **more})
    return report


@pytest.mark.parametrize("case", SMALL)
def test_a_case_finds_its_results_right(case: str, tmp_path: Path, data: Path) -> None:
    report = run(case, tmp_path, data)
    assert report.problems == []
    assert len(report.lines) == SMALL[case][1]
    assert all(line.value > 0 for line in report.lines if line.unit in ("s", "ms"))
    assert all(line.floor != 0 for line in report.lines)


def test_only_cases_with_spark_or_a_server_are_tried_elsewhere() -> None:
    assert set(harness.CASES) - set(SMALL) == {"s3", "sql", "streams", "tpch"}


Wrap = Callable[..., Any]


def rows_lost(right: Wrap) -> Wrap:
    return lambda *given, **named: right(*given, **named).slice(1)


def key_lost(right: Wrap) -> Wrap:
    """After the service a row is gone."""

    def service(table: LakeTable, **named: Any) -> Any:
        result = right(table, **named)
        table.delete(pa.table({"k": pa.array([1], pa.int64())}))
        return result if named.get("minor") else right(table) or result

    return service


def stale(right: Wrap) -> Wrap:
    def get(table: LakeTable, key: Any) -> Any:
        row = right(table, key)
        return row and {**row, "ts": row["ts"] - 1}

    return get


def with_result(**changes: Any) -> Callable[[Wrap], Wrap]:
    """A result with other fields; a function makes them of the old values."""

    def wrap(right: Wrap) -> Wrap:
        def call(*given: Any, **named: Any) -> Any:
            result = right(*given, **named)
            return replace(result, **{name: change(getattr(result, name)) for name, change in changes.items()})

        return call

    return wrap


def asks_for_every_file(right: Wrap) -> Wrap:
    def pruned(view: Any, condition: Any) -> Any:
        for path in view.snapshot.files:
            view.store.stat(path)
        return right(view, condition)

    return pruned


def in_this_process(right: Wrap) -> Wrap:
    """A step of the case of many rows whose look-ups give old rows."""

    def call(_: str, do: str, **named: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LakeTable, "get", stale(LakeTable.get))
            return getattr(scale_rows, do)(**named)

    return call


class Shortened:
    """A past of the table that has lost a row."""

    def __init__(self, past: Any) -> None:
        self.past = past

    def to_arrow(self) -> pa.Table:
        return self.past.to_arrow().slice(1)


WRONG: Mapping[str, tuple[str, object, str, Callable[[Wrap], Wrap]]] = {
    "requests: a read loses a row": ("foundation requests", LakeTable, "to_arrow", rows_lost),
    "mergers: a merge loses a row": ("mergers row", mergers, "merged", rows_lost),
    "mergers: increments are lost": ("mergers uniting", LakeTable, "to_arrow", rows_lost),
    "compaction: a row is lost": ("compaction", LakeTable, "compact", key_lost),
    "compaction: logs are left": (
        "compaction", LakeTable, "compact", lambda right: lambda table, **_: right(table, where="false")
    ),
    "log compaction: a row is lost": ("log-compaction", LakeTable, "compact_logs", key_lost),
    "log compaction: records are left out": (
        "log-compaction", LakeTable, "compact_logs", with_result(records=lambda records: records - 50)
    ),
    "plan of a compaction: a group less": (
        "compaction-plan", LakeTable, "compact", with_result(groups=lambda groups: groups[1:])
    ),
    "vacuum: a file too many": (
        "vacuum", LakeTable, "vacuum", with_result(files=lambda files: {**files, "log": files["log"] + 1})
    ),
    "vacuum: nothing is deleted": ("vacuum", LakeTable, "vacuum", lambda right: lambda table, **_: right(table)),
    "publish: another row is shown": ("publish", LakeTable, "to_arrow", rows_lost),
    "look-ups: an old row": ("lookups", LakeTable, "get", stale),
    "look-ups: a row of no key": (
        "lookups", LakeTable, "get", lambda right: lambda table, key: right(table, key) or {**key, "ts": 0}
    ),
    "growth: an old row": ("growth", LakeTable, "get", stale),
    "growth: a scan loses rows": ("growth", LakeTable, "scan", lambda right: lambda table: list(right(table))[1:]),
    "files: none for a key": ("scale-files", scale_log, "file_slices_of_keys", lambda right: lambda *_, **__: []),
    "commits: the last one is missing": (
        "scale-commits", LakeTable, "history", lambda right: lambda table, limit: right(table, limit=limit - 1)
    ),
    "writers: a row is lost": ("scale-writers", LakeTable, "to_arrow", rows_lost),
    "rows: an old row": ("scale-rows", scale_rows, "elsewhere", in_this_process),
    "plan of a read: a file slice less": (
        "plan-time", plans, "prune_file_slices", lambda right: lambda *given: right(*given)[1:]
    ),
    "plan of a read: a request for each file": ("plan-time", plans, "prune_file_slices", asks_for_every_file),
    "merge source: a run does nothing": ("merge-source", MergeSource, "run", lambda right: lambda source: None),
    "ingest: a table loses a row": ("ingest arrow", LakeTable, "to_arrow", rows_lost),
    "ingest: blocks are not planned": (
        "ingest plan", ingest, "elsewhere",
        lambda right: lambda *given, **named: {**right(*given, **named), "blocks": 0},
    ),
    "provenance: explain ends in another row": ("provenance", LakeTable, "get", stale),
    "provenance: what_if loses a row": (
        "provenance", LakeTable, "what_if", lambda right: lambda *given: Shortened(right(*given))
    ),
    "provenance: replay leaves records out": (
        "provenance", LakeTable, "replay", with_result(records=lambda records: records - 1)
    ),
    "transactions: another update": (
        "transactions", LakeTable, "update_where",
        lambda right: lambda table, where, _: right(table, where, {"i0": "i0 + 2"}),
    ),
    "transactions: too many rows": (
        "transactions", LakeTable, "update_where", lambda right: lambda table, _, values: right(table, "true", values)
    ),
}  # fmt: skip
"""The case, and its part if it has several; what is spoilt, and how."""


@pytest.mark.parametrize("wrong", WRONG)
def test_a_case_finds_a_wrong_result(wrong: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, owner, name, wrap = WRONG[wrong]
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    case, _, part = named.partition(" ")
    assert run(case, tmp_path, data, **({"parts": (part,)} if part else {})).problems


def test_a_wrong_log_is_found(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose appends are empty."""
    right = tables.commit
    monkeypatch.setattr(
        foundation_log,
        "commit",
        lambda handle, tip, actions: right(handle, tip, [one for one in actions if isinstance(one, AddFile)]),
    )
    (problem,) = run("foundation", tmp_path, data, parts=("metadata",)).problems
    assert problem.startswith("metadata: the same and 7 log appends since")


def test_every_builtin_merger_is_timed() -> None:
    builtin = {merger.name for merger in default_registry() if merger.__module__.startswith("mergers.builtin.")}
    assert {case.merger for case in CONFIGURATIONS} == builtin


@pytest.mark.parametrize("make", [updates, logs_only, merger_functions.changes, merger_functions.versions])
def test_a_wrong_value_of_a_merge_is_found(make: Callable[..., Inputs]) -> None:
    inputs = make(0.002, seed=3)
    answers = Folds(inputs) if inputs.taken_back else Answers(inputs)
    cases: tuple[Case, ...] = merger_functions.CASES if inputs.taken_back else CONFIGURATIONS
    for case in cases:
        right = merged(case, inputs)
        assert answers.problems(case, right) == []
        for position, field in enumerate(right.schema):
            values = right.column(position).to_pylist()
            place = next((place for place in reversed(range(len(values))) if values[place] != values[0]), None)
            values[place or 0] = None if place is None else values[0]
            spoilt = right.set_column(position, field, pa.array(values, field.type))
            assert answers.problems(case, spoilt), (case.name, field.name)


def test_without_pypaimon_the_rest_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paimon, "PYTHON", tmp_path / "nowhere")
    assert harness.main(["mergers", "--parts", "pypaimon", "--path", str(tmp_path)]) == 0
    assert "NOT RUN: pypaimon" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="make paimon"):
        paimon.Paimon(tmp_path)


@pytest.mark.skipif(not paimon.PYTHON.exists(), reason="pypaimon is not installed: make paimon")
def test_a_wrong_read_by_pypaimon_is_found(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("mergers", tmp_path / "right", data, parts=("pypaimon",)).problems == []
    monkeypatch.setattr(paimon.Paimon, "read", rows_lost(paimon.Paimon.read))
    problems = run("mergers", tmp_path / "wrong", data, parts=("pypaimon",)).problems
    assert [problem.partition(":")[0] for problem in problems] == ["pypaimon, read"]


def test_the_union_find_joins_by_both_rules() -> None:
    people = People.drawn(4)
    people.who["a"]["email"][:] = [1, 2, 3, 3]
    people.who["b"]["mail"][:] = [2, 5, 3, 6]
    people.who["b"]["phone"][:] = [7, 8, 9, 7]
    people.who["c"]["phone"][:] = [9, 9, 1, 7]
    roots = union_find(people)
    groups: dict[int, list[str]] = {}
    for name in "abc":
        for place, root in enumerate(roots[name].tolist()):
            groups.setdefault(root, []).append(f"{name}{place}")
    assert sorted(groups.values()) == [["a0"], ["a1", "b0", "b3", "c3"], ["a2", "a3", "b2", "c0", "c1"], ["b1"], ["c2"]]


def test_wrong_clusters_are_found(tmp_path: Path) -> None:
    people = People.drawn(1)
    for columns in people.who.values():
        for who in columns.values():
            who[:] = 5
    table = LakeTable.create(
        tmp_path / "out", "_id STRING, _deleted BOOLEAN, _members ARRAY<STRUCT<dataset: INT, id: STRING>>", key=["_id"]
    )
    members = [{"dataset": place, "id": "0"} for place in range(3)]
    row = {"_id": "x", "_deleted": False, "_members": members}
    table.upsert(pa.Table.from_pylist([row], schema=table.schema))
    assert merge_source.problems_of(people, tmp_path) == []
    parted = [{**row, "_members": members[:2]}, {**row, "_id": "y", "_members": members[2:]}]
    table.upsert(pa.Table.from_pylist(parted, schema=table.schema))
    assert merge_source.problems_of(people, tmp_path) == ["2 clusters, not 1"]
    people.who["c"]["phone"][:] = 6
    table.upsert(pa.Table.from_pylist([row], schema=table.schema))
    found = " ".join(merge_source.problems_of(people, tmp_path))
    assert "not the same" in found
    assert "twice or missing" in found


class OneRequest(Proxy):
    """A proxy that saw one request in each step, or none."""

    def __init__(self, seen: int) -> None:
        self.seen = [Request("GET", "/", 0.0, 1.0, 5, 7)] * seen

    def taken(self) -> list[Request]:
        return self.seen


def test_a_step_on_object_storage_reports_cost_and_wrong_answers() -> None:
    report = Report(Console(quiet=True))
    s3._Meter(report, OneRequest(1), "any").step("a read", lambda: 1, lambda found: "" if found == 1 else "wrong")
    assert report.problems == []
    assert [line.value for line in report.lines if line.unit in ("requests", "bytes")] == [1, 1, 7, 5]
    s3._Meter(report, OneRequest(1), "any").step("a read", lambda: 2, lambda found: "" if found == 1 else "wrong")
    s3._Meter(report, OneRequest(0), "any").step("a read", lambda: 1)
    assert report.problems == ["any, a read: wrong", "any, a read: the store was asked for nothing"]
    assert s3._wrong((("1",),), (("2",),))


@pytest.mark.parametrize(("rows", "buckets"), [(2_000, 4), (10_000_000, 8), (12_500_000, 8), (100_000_000, 64)])
def test_tables_of_many_rows_have_a_power_of_two_of_buckets(rows: int, buckets: int) -> None:
    assert scale_rows.buckets_of(rows) == buckets


def test_functions_are_called_in_another_process() -> None:
    assert elsewhere("benchmarks.elsewhere", "peak_bytes") > 1 << 20
    with Elsewhere("builtins") as process:
        with pytest.raises(ElsewhereError, match="ValueError: invalid literal"):
            process.ask("int", "x")
        assert process.ask("print", "what a library prints is no answer") is None
        assert process.ask("int", "11", base=2) == 3
    with pytest.raises(ElsewhereError, match="ended with status"), Elsewhere("benchmarks.nowhere") as process:
        process.ask("int", 1)


def sized(
    run: harness.Run,
    *,
    rows: Annotated[tuple[int, ...], "of each table"] = (1, 2),
    parts: Annotated[tuple[str, ...], "what"] = ("a", "b"),
    scale: Annotated[float, "of all"] = 0.5,
    spark: Annotated[bool, "or not"] = True,
    rounds: harness.Rounds = 3,
) -> None:
    """Reports its options."""
    run.report.value("sized", f"{rows} {parts} {scale} {spark}", "objects", rounds)
    (run.folder / "left").write_text("here")
    run.report.check("sized", ["that is wrong"] if rounds == 1 else [])


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(harness, "function_of", lambda case: sized)
    out = tmp_path / "new" / "out.json"
    assert harness.main(["growth", "--path", str(tmp_path), "--out", str(out), "--rows", "7,8", "--no-spark"]) == 0
    body = json.loads(out.read_text())
    assert (body["case"], body["problems"], body["options"]["rows"]) == ("growth", [], [7, 8])
    assert [(line["what"], line["value"]) for line in body["lines"]] == [("(7, 8) ('a', 'b') 0.5 False", 3)]
    assert [path.name for path in tmp_path.iterdir()] == ["new"], "folders of the run are deleted"
    assert harness.main(["growth", "--path", str(tmp_path), "--rounds", "1", "--parts", "b"]) == 1
    assert "WRONG sized: that is wrong" in capsys.readouterr().out
    for wrong, message in (
        (["--parts", "b,c"], "there are a, b; not c"),
        (["--rounds", "0"], "at least 1 is needed"),
        (["--rows", "1,x"], "invalid"),
        (["--strange", "1"], "unrecognized arguments"),
    ):
        with pytest.raises(SystemExit):
            harness.main(["growth", *wrong])
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        harness.main(["strange"])
    assert "invalid choice: 'strange'" in capsys.readouterr().err


def test_every_case_has_a_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        harness.main(["--help"])
    listed = capsys.readouterr().out
    for name in harness.CASES:
        assert name in listed
        with pytest.raises(SystemExit):
            harness.main([name, "--help"])
        assert "--out" in capsys.readouterr().out


def test_frames_of_line_items_are_disjoint_and_hold_new_late_and_newer_rows(data: Path) -> None:
    inputs = LineItems.prepare(data, scale=SCALE, seed=7)
    count = {"small": 0.01, "large": 0.1, **dict.fromkeys(DIRTY_FRAMES, 0.025)}
    expected = {name: round(part * SCALE * 6_000_000) for name, part in count.items()}
    stored, seen = rows_of(inputs.initial), set[tuple[int, int]]()
    for name, rows in expected.items():
        found = rows_of(inputs.frame(name))
        assert len(found) == inputs.frame_rows(name) == rows
        assert not seen & found.keys()
        seen |= found.keys()
    fates = Counter(
        "new" if key not in stored else "newer" if time > stored[key] else "late"
        for key, time in rows_of(inputs.frame("large")).items()
    )
    shares = {fate: number / expected["large"] for fate, number in fates.items()}
    assert shares == {
        "new": pytest.approx(0.1, abs=0.04),
        "late": pytest.approx(0.05, abs=0.04),
        "newer": pytest.approx(0.85, abs=0.06),
    }
    last = sorted(stored)[-round(0.05 * len(stored)) :]
    assert all(min(rows_of(inputs.frame(name))) >= last[0] for name in RECENT_FRAMES)


def rows_of(path: Path) -> dict[tuple[int, int], int]:
    """Times by key; a key may be there once only."""
    columns = pq.read_table(path, columns=[*LINEITEM.key, LINEITEM.ordering]).columns
    *keys, times = (column.to_pylist() for column in columns)
    found = dict(zip(zip(*keys, strict=True), times, strict=True))
    assert len(found) == len(times)
    return found
