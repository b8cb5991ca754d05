"""A time limit that ends a call anywhere reaches its caller, and is not taken for an error of the store.

Signal handlers raise ``TimeoutError`` without a number of the system, which is an ``OSError``: whatever handles errors
of files must let it pass. Here it is raised at lines of the library all over a call.
"""

from __future__ import annotations

import datetime as dt
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lakemerge import LakeTable, Settings
from lakemerge._internal.collector import collector_paused
from lakemerge.cli.service import run_maintenance
from lakemerge.ingest import Files
from tests.interrupting import OWN, ends_a_with
from tests.property.effort import some
from tests.unit.faults import create, frame
from tests.unit.ingest.landing import land

ALONE = Settings(threads=1)


def _limited(call: Callable[[], object], at: int) -> tuple[int, BaseException | None]:
    """Raises at the line with that number, counted from 1. Returns how many lines ran, and what came out."""
    ran, limit = 0, TimeoutError("the limit")

    def trace(ran_in: FrameType, event: str, _: object) -> Any:
        nonlocal ran
        if not ran_in.f_code.co_filename.startswith(OWN):
            return None
        if event == "line" and not ends_a_with(ran_in):
            ran += 1
            if ran == at:
                raise limit
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except TimeoutError as error:
        return ran, error
    finally:
        sys.settrace(before)
    return ran, None


def _table(folder: Path) -> LakeTable:
    table = create(folder / "t", settings=ALONE, buckets=2, properties={"lakemerge.maintenance": "off"})
    for number in range(11):
        table.upsert(frame([(number, 1, "x")]))
    (folder / "in").mkdir()
    return table


def _opened(folder: Path) -> LakeTable:
    return LakeTable.open(folder / "t", settings=ALONE)


def _maintained(folder: Path) -> None:
    """By a service that repeats it."""
    stop = threading.Event()
    run_maintenance(_opened(folder), every=dt.timedelta(microseconds=1), stop=stop, show=lambda _: stop.set())


def _ingested(folder: Path) -> None:
    """By a job that runs on."""
    job = _opened(folder).ingest("job", Files(folder / "in", format="json"))
    land(folder / "in", "a.json", [{"k": 1, "o": 1, "v": "x"}])
    job.trigger()
    really = job._work_off

    def once(*given: Any, **named: Any) -> None:
        really(*given, **named)
        job.stop()

    job._work_off = once  # type: ignore[method-assign]
    job.run(every="10ms")


CALLS: dict[str, Callable[[Path], object]] = {
    "open": _opened,
    "check": lambda folder: LakeTable.check(folder / "t", settings=ALONE),
    "maintenance": _maintained,
    "ingest": _ingested,
}


# An exception at the end of a generator's ``with`` leaves a file open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("call", [*CALLS])
def test_a_time_limit_comes_out_wherever_it_ends_a_call(tmp_path: Path, call: str) -> None:
    _table(tmp_path)
    lines, _ = _limited(lambda: CALLS[call](tmp_path), 0)
    assert lines > 100
    swallowed = []
    for at in some(range(1, lines, max(1, lines // 200))):
        ran, error = _limited(lambda: CALLS[call](tmp_path), at)
        if ran >= at and error is None:
            swallowed.append(at)
    gc.collect()
    assert swallowed == []


def test_no_lock_stays_locked() -> None:
    """After the tests above: another thread still gets the lock of the collector's pauses."""
    got: list[bool] = []

    def pause() -> None:
        with collector_paused():
            got.append(True)

    thread = threading.Thread(target=pause, daemon=True)
    thread.start()
    thread.join(10)
    assert got == [True]
