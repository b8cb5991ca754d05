"""A read that a vacuum overtakes says so, with a remedy, wherever the vacuum comes in. The table is not damaged.

Routes through Spark are in ``tests/spark/datasource/test_feed_reader.py``.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import CommitConflictError, LakeMergeError, LakeTable, VersionNotFoundError
from lakemerge.cli import main
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, open_over

MOST_OPENED = 4
"""A vacuum comes before each of the first files that a read opens."""


def replayed(table: LakeTable, folder: Path) -> object:
    table.replay(folder / "again")
    return rows(LakeTable.open(folder / "again"))


def rows(table: LakeTable) -> object:
    return sorted(map(str, table.to_arrow().to_pylist()))


def listed(batches: Any) -> list[str]:
    return [str(row) for batch in batches for row in batch.to_pylist()]


ROUTES: dict[str, Callable[[LakeTable, Path], object]] = {
    "changes": lambda table, _: listed(table.changes(0)),
    "changes without images": lambda table, _: listed(table.changes(0, 3, before_images=False)),
    "net changes": lambda table, _: listed(table.changes(0, net=True)),
    "follow": lambda table, _: listed(table.follow(since=0, poll=None)),
    "follow from the present rows": lambda table, _: listed(table.follow(poll=None)),
    "a consumer": lambda table, _: listed(table.follow("late", poll=None)),
    "rows": lambda table, _: rows(table),
    "a scan": lambda table, _: sorted(listed(table.scan())),
    "a look-up": lambda table, _: table.get({"k": 1}),
    "a query": lambda table, _: table.query("SELECT count(*) AS n FROM self WHERE v <> 'x'").to_pylist(),
    "explain": lambda table, _: [step.verdict for step in table.explain({"k": 1}, 0).steps],
    "what_if": lambda table, _: sorted(map(str, table.what_if("commit-time", since=0).to_arrow().to_pylist())),
    "replay": replayed,
}
COMMANDS = {
    "changes": ["changes", "T", "--since", "0"],
    "changes until": ["changes", "T", "--since", "0", "--until", "3"],
    "net changes": ["changes", "T", "--since", "0", "--net"],
    "diff": ["diff", "T", "0", "3"],
    "a consumer": ["changes", "T", "--consumer", "late"],
    "the present rows": ["changes", "T"],
}


def made(path: Path) -> LakeTable:
    table = create(path, properties={"lakemerge.maintenance": "off"})
    for at in range(3):
        table.upsert(frame([(1, at, f"v{at}"), (2, at, f"w{at}"), (3 + at, at, "x")]))
    table.consumers.register("late", version=0, expires_after=dt.timedelta(microseconds=1000))
    return table


def overtaking(path: Path, at: int) -> tuple[LakeTable, list[Call]]:
    """A table during whose ``at``-th opening of a file a compaction and a vacuum without retention run."""
    calls: list[Call] = []

    def overtake(call: Call) -> None:
        calls.append(call)
        other = LakeTable.open(path)
        other.compact()
        other.upsert(frame([(99, 1, "late")]))
        other.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)

    slow, _ = open_over(path, Fault(action=overtake, method="open_input", at=at))
    return slow, calls


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_says_so(route: str, tmp_path: Path) -> None:
    told = 0
    for at in range(1, MOST_OPENED):
        folder = tmp_path / str(at)
        made(folder / "t")
        slow, calls = overtaking(folder / "t", at)
        try:
            ROUTES[route](slow, folder)
        except LakeMergeError as error:
            told += 1
            check_said(error)
        if not calls:
            break
    assert told


def check_said(error: LakeMergeError) -> None:
    expired = "expired" in error.message  # vacuum drops a consumer that is late, and says so
    assert isinstance(error, VersionNotFoundError | CommitConflictError) or expired, error
    assert "a vacuum was faster" in error.message or "vacuum kept the versions from" in error.message or expired, error
    assert "damaged" not in error.message
    assert re.search(r"again|anew|begin|since|makes it", error.message), error


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = 0
    for at in range(1, MOST_OPENED):
        path = tmp_path / str(at)
        made(path)
        slow, calls = overtaking(path, at)
        for module in ("streams", "rows"):
            monkeypatch.setattr(f"lakemerge.cli.{module}.opened", lambda *_, table=slow, **__: table)
        code = main([str(path) if word == "T" else word for word in COMMANDS[command]])
        err = capsys.readouterr().err
        assert "Traceback" not in err
        if code:
            told += 1
            assert code in (2, 3), err
            assert "a vacuum was faster" in err or "expired" in err
            assert "damaged" not in err
        if not calls:
            break
    assert told


def test_a_reader_that_is_slow_says_so(tmp_path: Path) -> None:
    """The reader is made before the vacuum, and read after it."""
    reads: tuple[Callable[[LakeTable], pa.RecordBatchReader], ...] = (
        lambda table: table.changes(0),
        lambda table: table.changes(0, net=True),
        lambda table: table.scan(),
        lambda table: LakeTable.open(table.url, version=2).scan(),
    )
    for read in reads:
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        table = made(path)
        reader = read(table)
        other = LakeTable.open(path)
        other.compact()
        other.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
        with pytest.raises(VersionNotFoundError, match=r"a vacuum was faster than this read"):
            reader.read_all()
