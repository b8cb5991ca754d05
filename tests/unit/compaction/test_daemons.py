"""Processes that stay, while their table is removed and another one is made in its place."""

from __future__ import annotations

import datetime as dt
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lakemerge import LakeTable, Settings, TableReplacedError
from lakemerge.cli.service import run_maintenance
from lakemerge.ingest import Files
from lakemerge.results.maintenance import MaintenanceResult
from tests.unit.faults import create, frame, listing, rows_of, state_of
from tests.unit.ingest.landing import land, numbered

EAGER = {"lakemerge.minorCompaction.afterCommits": "2", "lakemerge.maintenance": "off"}


class Script(threading.Event):
    """The pauses of a process that repeats: each pause runs an action, and the last one stops the process."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = list(happens)

    def wait(self, timeout: float | None = None) -> bool:
        if self._happens:
            self._happens.pop(0)()
        else:
            self.set()
        return self.is_set()


def nothing() -> None:
    pass


def filled(path: Path, commits: int, value: str = "x") -> LakeTable:
    table = create(path, properties=EAGER)
    for number in range(commits):
        table.upsert(frame([(number % 3, number, value)]))
    return table


def removed(path: Path) -> Callable[[], None]:
    """In one step. While a table is being removed file by file, nobody can tell it from a damaged one."""

    def remove() -> None:
        gone = path.with_name("gone")
        path.rename(gone)
        shutil.rmtree(gone)

    return remove


def made_anew(path: Path, commits: int) -> Callable[[], object]:
    return lambda: filled(path, commits, "new")


def maintained(table: LakeTable, stop: threading.Event) -> list[MaintenanceResult]:
    runs: list[MaintenanceResult] = []
    run_maintenance(table, every=dt.timedelta(hours=1), stop=stop, show=runs.append)
    return runs


def logs_of(path: Path) -> int:
    return len(LakeTable.open(path).opened.view.log_commits)


@pytest.mark.parametrize("commits", [1, 4, 9])
def test_maintenance_goes_on_with_the_table_that_is_there(
    commits: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The new one is shorter than the old one, as long, or longer."""
    path = tmp_path / "t"
    table = filled(path, 4)
    stop = Script(lambda: (removed(path)(), made_anew(path, commits)()), nothing, nothing)
    with caplog.at_level(logging.WARNING, "lakemerge"):
        runs = maintained(table, stop)
    assert [run.minor is not None for run in runs] == [True, commits > 2, False]
    assert logs_of(path) < 2
    new = LakeTable.open(path).opened.view.snapshot.metadata.id
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"continues with the table {new}" in line
    assert state_of(path) == rows_of(frame([(k, max(range(k, commits, 3)), "new") for k in range(min(3, commits))]))


def test_maintenance_waits_for_a_table_that_was_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    table = filled(path, 4)
    gone: list[bool] = []
    stop = Script(
        removed(path), nothing, lambda: gone.append(path.exists()), made_anew(path, 9), nothing, made_no_more, nothing
    )
    with caplog.at_level(logging.WARNING, "lakemerge"):
        runs = maintained(table, stop)
    lines = [record.getMessage() for record in caplog.records]
    assert ["was removed; maintenance looks again" in line for line in lines] == [True, True, True, False]
    assert "continues with the table" in lines[-1]
    assert gone == [False], "nothing was written where the table had been"
    assert [run.minor is not None for run in runs] == [True, True, False, False]
    assert logs_of(path) < 2


def made_no_more() -> None:
    """The next run finds nothing that is due."""


def test_maintenance_once_ends_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = filled(path, 4)
    removed(path)()
    made_anew(path, 9)()
    before = listing(path)
    with pytest.raises(TableReplacedError):
        run_maintenance(table, every=None, stop=threading.Event(), show=lambda _: None)
    assert listing(path) == before


def test_a_table_of_another_kind_in_its_place_is_no_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    table = filled(path, 4)

    def foreign() -> None:
        removed(path)()
        (path / "_delta_log").mkdir(parents=True)
        (path / "_delta_log" / f"{0:020d}.json").write_text("no commit")

    stop = Script(foreign, nothing, lambda: (removed(path)(), made_anew(path, 9)()), nothing)
    with caplog.at_level(logging.WARNING, "lakemerge"):
        maintained(table, stop)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all("failed, and will be tried again" in line for line in lines[:2])
    assert "continues with the table" in lines[2]
    assert logs_of(path) < 2


def test_a_table_opened_anew_keeps_its_arguments_and_nothing_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    settings = Settings(threads=1)
    create(path).upsert(frame([(1, 1, "old")]))
    table = LakeTable.open(path, settings=settings)
    table.to_arrow()
    removed(path)()
    create(path).upsert(frame([(2, 2, "new")]))
    anew = table.opened_anew()
    assert rows_of(anew.to_arrow()) == [(2, 2, "new")]
    assert anew.opened.handle.settings is settings
    assert anew.opened.handle.store is table.opened.handle.store
    assert anew.opened.handle.decoded is not table.opened.handle.decoded
    assert anew.opened.handle.footers is not table.opened.handle.footers


@pytest.mark.parametrize("with_consumer", [False, True])
@pytest.mark.parametrize("commits", [None, 1, 9])
def test_a_follower_ends_by_name(with_consumer: bool, commits: int | None, tmp_path: Path) -> None:
    """Its position means nothing in another table, even if that has a consumer of its name."""
    path = tmp_path / "t"
    table = filled(path, 4)
    if with_consumer:
        table.consumers.register("me", version=0)
        batches = table.follow("me", poll=0.001)
    else:
        batches = table.follow(since=0, poll=0.001)
    seen = [next(batches) for _ in range(4)]
    assert sum(batch.num_rows for batch in seen) >= 4
    removed(path)()
    if commits is not None:
        filled(path, commits, "new").consumers.register("me", version=0)
        position = LakeTable.open(path).consumers.position("me")
    with pytest.raises(TableReplacedError):
        next(batches)
    if commits is not None:
        assert LakeTable.open(path).consumers.position("me") == position
    else:
        assert not path.exists(), "nothing was written where the table had been"


@pytest.mark.parametrize("anew", [False, True])
def test_an_ingest_that_repeats_ends_by_name(anew: bool, tmp_path: Path) -> None:
    path, landing = tmp_path / "t", tmp_path / "landing"
    land(landing, "a.json", numbered(0, 3))
    job = create(path).ingest("feed", Files(landing, format="json"), after="delete")
    ended: list[BaseException] = []

    def run() -> None:
        try:
            job.run(every="10ms")
        except TableReplacedError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until_gone(landing / "a.json")
        removed(path)()
        if anew:
            create(path)
        land(landing, "b.json", numbered(3, 5))
        job.trigger()
        thread.join(timeout=60)
        assert [type(error) for error in ended] == [TableReplacedError]
    finally:
        job.stop()
        thread.join(timeout=60)
    assert (landing / "b.json").exists(), "a file that is in no table stays"
    if anew:
        again = LakeTable.open(path).ingest("feed", Files(landing, format="json"))
        assert again.run().rows == 2
    else:
        assert not path.exists(), "nothing was written where the table had been"


def until_gone(file: Path) -> None:
    tick = threading.Event()
    for _ in range(6000):
        if not file.exists():
            return
        tick.wait(0.01)
    raise AssertionError(f"{file} is still there")
