"""Python's collector is paused, and on again: in every thread, whatever happens."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from lakemerge._internal import collector
from lakemerge._internal.collector import collector_paused, spare_survivors
from lakemerge.storage import LocalStore
from lakemerge.table.kept import kept_table
from tests.unit.read.test_decoded_logs import stored_in


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.enable()
    yield
    collector._watching.clear()
    gc.unfreeze()
    (gc.enable if was_on else gc.disable)()


def test_it_is_off_inside_and_on_again() -> None:
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), collector_paused():
        raise KeyboardInterrupt
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


class _Overtaken:
    """``gc``, where other threads get all the time they want once one was told whether the collector is on."""

    def __init__(self, other: threading.Thread) -> None:
        self.other = other
        self.enable, self.disable = gc.enable, gc.disable

    def isenabled(self) -> bool:
        answer = gc.isenabled()
        if threading.current_thread() is not self.other:
            self.other.join(timeout=1)
        return answer


def test_two_threads_leave_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One leaves its pause just when the other has found the collector off, and is about to turn it off."""
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with collector_paused():
            inside.set()
            leave.wait(timeout=60)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(timeout=60)
    leave.set()
    monkeypatch.setattr(collector, "gc", _Overtaken(thread))
    with collector_paused():
        pass
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert gc.isenabled()


def test_it_is_on_while_the_store_is_asked(tmp_path: Path) -> None:
    settings = Settings(inline_blocks=1)
    properties = {"delta.checkpointInterval": "2"}
    table = LakeTable.create(
        tmp_path, "k BIGINT, v STRING", key=["k"], buckets=4, settings=settings, properties=properties
    )
    for value in ("base", "one", "two", "three"):
        table.upsert(pa.table({"k": range(20), "v": [value] * 20}))
    asked = []

    class Listening(LocalStore):
        def get(self, path: str) -> bytes:
            asked.append((path, gc.isenabled()))
            return super().get(path)

    assert len(stored_in(Listening(tmp_path), settings).to_arrow(filter="v = 'three'")) == 20
    assert {path.rpartition(".")[2] for path, _ in asked} >= {"json", "parquet"}
    assert [path for path, on in asked if not on] == []


class Circle:
    def __init__(self) -> None:
        self.own = self


class Plain:
    pass


def is_spared(kept: object) -> bool:
    """Not by a count, because Python 3.12 spares objects of its own."""
    return all(found is not kept for found in gc.get_objects())


@pytest.fixture
def _in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(collector, "_searches", itertools.count(1))
    spare_survivors()


@pytest.mark.usefixtures("_in_a_worker")
def test_a_worker_does_not_search_again_what_survived() -> None:
    """Once in a while it does."""
    before = Circle()
    gone = weakref.ref(before)
    gc.collect()
    assert is_spared(before)
    later = Circle()
    gone_later = weakref.ref(later)
    del before, later
    for _ in range(collector._ALL_AGAIN - 2):
        gc.collect()
        assert gone() is not None, "it survived a search"
        assert gone_later() is None
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("_in_a_worker")
def test_a_short_search_spares_nothing() -> None:
    kept = Circle()
    gc.collect(1)
    assert not is_spared(kept)


@pytest.mark.usefixtures("_in_a_worker")
def test_what_nothing_refers_to_is_freed_at_once() -> None:
    kept = Plain()
    gone = weakref.ref(kept)
    gc.collect()
    del kept
    assert gone() is None


@pytest.mark.usefixtures("_in_a_worker")
def test_it_is_asked_for_once() -> None:
    spare_survivors()
    assert (collector._watching, gc.callbacks.count(collector._tell)) == ([collector._spare], 1)


def test_only_workers_of_spark_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    kept = Circle()
    spare_survivors()
    gc.collect()
    assert not is_spared(kept)


def test_tables_that_are_kept_do_not_refer_to_themselves(tmp_path: Path) -> None:
    """So a planner that keeps tables frees each version as soon as it keeps the next."""
    table = LakeTable.create(tmp_path / "t", "k BIGINT", key=["k"], properties={"lakemerge.maintenance": "off"})
    views = []
    gc.collect()
    gc.disable()
    for number in range(5):
        table.upsert(pa.table({"k": [number]}))
        views.append(weakref.ref(kept_table(str(tmp_path / "t"), {}, ()).latest))
    assert [view() is None for view in views] == [True, True, True, True, False]
