"""``lakemerge maintain --warehouse``: every table of a folder, by one process."""

from __future__ import annotations

import datetime as dt
import json
import threading
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.cli import main
from lakemerge.cli.warehouse import Visit, Visits, WarehouseMaintenance
from tests.unit.faults import create, frame, rows_of, state_of

DUE = {
    "lakemerge.minorCompaction.afterCommits": "2",
    "lakemerge.compaction.ratio": "off",
    "lakemerge.maintenance": "off",
}
ROWS = [(k, 2, "new") for k in range(3)]


def table(path: Path, commits: int = 3) -> Path:
    made = create(path, properties=DUE)
    for number in range(commits):
        made.upsert(frame([(k, number, "new") for k in range(3)]))
    return path


def damaged(path: Path) -> Path:
    table(path)
    for file in (path / "_lakemerge" / "log").rglob("*.parquet"):
        file.write_bytes(b"no Parquet")
    return path


def pending(path: Path) -> int:
    return len(LakeTable.open(path).opened.view.log_commits)


def warehouse(folder: Path) -> list[Path]:
    """Two tables in namespaces and one beside them, among folders that are none."""
    deltalake.write_deltalake(folder / "shop" / "plain", pa.table({"a": [1]}))
    (folder / "shop" / "empty").mkdir()
    (folder / "_internal").mkdir()
    table(folder / "shop" / "_hidden")
    return [table(folder / "shop" / "orders"), table(folder / "people" / "customers"), table(folder / "loose")]


def test_each_table_is_maintained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = warehouse(tmp_path)
    assert main(["maintain", "--warehouse", str(tmp_path), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert [pending(path) for path in tables] == [0, 0, 0]
    assert all(state_of(path) == rows_of(frame(ROWS)) for path in tables)
    assert [str(path) in shown for path in tables] == [True, True, True]
    assert "3 tables: something was due in 3; " in shown
    assert pending(tmp_path / "shop" / "_hidden") == 2
    assert main(["maintain", "--warehouse", str(tmp_path), "--json", "--quiet"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(line["table"] for line in lines) == sorted(map(str, tables))
    assert [line["minor"] for line in lines] == [None, None, None]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_damaged_table_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    tables = warehouse(tmp_path)
    broken = damaged(tmp_path / "a" / "broken")
    assert main(["maintain", "--warehouse", str(tmp_path), *(["--json"] if as_json else [])]) == 4
    out, errors = capsys.readouterr()
    assert [pending(path) for path in tables] == [0, 0, 0]
    assert f"maintenance of {broken} failed" in errors
    if as_json:
        (failed,) = [line for line in map(json.loads, out.splitlines()) if "error" in line]
        assert failed["table"] == str(broken)


class Rounds(threading.Event):
    """The pauses between rounds: each runs an action, and the last one stops the process."""

    def __init__(self, *actions: object) -> None:
        super().__init__()
        self.actions = list(actions)

    def wait(self, timeout: float | None = None) -> bool:
        if self.actions:
            action = self.actions.pop(0)
            assert callable(action)
            action()
        else:
            self.set()
        return self.is_set()


def run(folder: Path, stop: threading.Event, **given: object) -> tuple[list[Visit], list[Visits]]:
    visits: list[Visit] = []
    rounds: list[Visits] = []
    options = {"at_once": 1, "turn": dt.timedelta(hours=1), **given}
    process = WarehouseMaintenance(str(folder), {}, stop=stop, show=visits.append, **options)  # type: ignore[arg-type]
    process.run(dt.timedelta(hours=1), rounds.append)
    return visits, rounds


def test_a_repeating_process_finds_new_tables_and_goes_on_after_errors(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    table(folder / "shop" / "orders")

    def more() -> None:
        table(folder / "shop" / "later")
        damaged(folder / "shop" / "broken")

    visits, rounds = run(folder, Rounds(more, lambda: folder.rename(tmp_path / "away"), lambda: None))
    assert [(done.tables, done.busy, done.failed) for done in rounds] == [
        (1, 1, 0),
        (3, 1, 1),
        (0, 0, 0),
        (0, 0, 0),
    ]
    assert [Path(visit.table).name for visit in visits if visit.error is not None] == ["broken"]


def test_the_table_whose_visit_is_longest_ago_comes_first(tmp_path: Path) -> None:
    for name in "cab":
        table(tmp_path / "shop" / name)
    visits, _ = run(tmp_path, Rounds(lambda: table(tmp_path / "shop" / "z")))
    assert [Path(visit.table).name for visit in visits] == ["a", "b", "c", "z", "a", "b", "c"]


def test_a_table_whose_turn_is_over_goes_on_in_the_next_round(tmp_path: Path) -> None:
    """With a turn of no length, each is stopped before its first service, and the round does not spin."""
    tables = [table(tmp_path / "shop" / name) for name in "ab"]
    visits, rounds = run(tmp_path, Rounds(lambda: None), turn=dt.timedelta(0))
    assert [visit.result.stopped for visit in visits if visit.result is not None] == [True] * 4
    assert [done.unfinished for done in rounds] == [0, 0]
    assert [pending(path) for path in tables] == [2, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give the path of a table, or --warehouse"),
        (["a", "--warehouse", "b"], "give the path of a table, or --warehouse"),
        (["--warehouse", "b", "--check"], "--check looks once, at one table"),
    ],
)
def test_mistakes(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", *given]) == 2
    assert message in capsys.readouterr().err
