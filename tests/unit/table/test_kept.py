"""Tables that a process keeps open: what a second request reads and decodes, and that nothing stale is shown."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakemerge import LakeTable, Merger, TableReplacedError, VersionNotFoundError
from lakemerge.layout.view import TableView
from lakemerge.storage import LocalStore
from lakemerge.table.kept import forget_tables, kept_table
from lakemerge.testing.counting import CountingStore
from mergers import EventTime
from tests.unit.faults import create, frame

Calls = Callable[[], Counter[str]]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    forget_tables()
    yield
    forget_tables()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was asked of all stores since it was called last."""
    stores: list[CountingStore] = []

    def counting(url: str, _: object) -> CountingStore:
        stores.append(CountingStore(LocalStore(url)))
        return stores[-1]

    def found() -> Counter[str]:
        total: Counter[str] = Counter()
        for store in stores:
            total += Counter(store.counts().calls)
            store.reset()
        return total

    monkeypatch.setattr("lakemerge.table.opening.open_store", counting)
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Versions 1 to 4, with as many rows."""
    table = create(tmp_path / "t", buckets=4)
    for number in range(4):
        table.upsert(frame([(number, 1, "a")]))
    return str(tmp_path / "t")


def rows(view: TableView) -> int:
    """Stored rows and records. Each of the tables has a record for a row."""
    return sum(each.stored_rows + sum(block.rows for block in each.blocks) for each in view.file_slices)


def test_a_later_request_lists_newer_commits(path: str, calls: Calls) -> None:
    first = kept_table(path, {}, ())
    assert rows(first.latest) == 4
    assert calls()["get"] >= 4
    again = kept_table(path, {}, ())
    assert again.latest is first.latest, "nothing is decoded anew"
    assert calls() == {"list": 1}
    LakeTable.open(path).upsert(frame([(9, 1, "a")]))
    calls()
    assert rows(kept_table(path, {}, ()).latest) == 5
    assert calls()["get"] == 1


def test_an_earlier_version_is_decoded_once(path: str, calls: Calls) -> None:
    kept = kept_table(path, {}, ())
    calls()
    early = kept.at(2)
    assert (early.version, rows(early)) == (2, 2)
    assert calls()["get"] > 0
    assert kept.at(2) is early
    assert kept.at(4) is kept.latest
    assert calls() == {}
    with pytest.raises(VersionNotFoundError):
        kept.at(7)


def test_the_last_versions_are_kept(path: str, calls: Calls) -> None:
    kept = kept_table(path, {}, ())
    one, two = kept.at(1), kept.at(2)
    calls()
    assert (kept.at(1), kept.at(2)) == (one, two)
    assert calls() == {}
    kept.at(3)
    assert kept.at(1) is not one, "of many versions, those that were asked for last"


def test_other_options_are_another_table(path: str, calls: Calls) -> None:
    kept = kept_table(path, {}, ())
    assert kept_table(path, {"a": "b"}, ()) is not kept
    assert kept_table(path, {}, ()) is kept


def test_a_table_in_its_place(path: str, tmp_path: Path) -> None:
    kept = kept_table(path, {}, ())
    early = kept.at(1)
    shutil.rmtree(path)
    create(path, buckets=4).upsert(frame([(7, 1, "a"), (8, 1, "a")]))
    found = kept_table(path, {}, ())
    assert (found.latest.version, rows(found.latest)) == (1, 2)
    assert rows(early) == 1
    with pytest.raises(TableReplacedError):
        kept.at(0)


def test_a_merger_that_was_defined_anew(path: str) -> None:
    """A notebook's cell runs twice, and its class is another one with the same name."""

    def defined() -> type[Merger]:
        class Mine(EventTime):
            id = "6b0f0a3e-7c1f-4a57-9c0d-1f4d3a2b5c6d"
            name = "mine"

        return Mine

    first, second = defined(), defined()
    kept = kept_table(path, {}, [first])
    assert kept_table(path, {}, [first]) is kept
    again = kept_table(path, {}, [second])
    assert second in list(again.table.handle.registry)
    assert first not in list(again.table.handle.registry)
