"""What is kept of files is bounded, and what was used longest ago goes first."""

from __future__ import annotations

import inspect
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from lakemerge._internal.cache import Cache, Fetched
from tests.interrupting import AlarmError


def test_values_are_kept_up_to_a_limit() -> None:
    kept: Cache[str, list[int]] = Cache(10)
    values = {name: [number] for number, name in enumerate("abc")}
    kept.keep("a", values["a"], 4)
    kept.keep("b", values["b"], 4)
    assert kept.get("a") is values["a"]
    kept.keep("c", values["c"], 6)
    assert [name for name in "abc" if kept.get(name) is None] == ["b"]
    kept.keep("d", [3], 11)
    assert kept.get("d") is None
    assert kept.get("a") is values["a"]


def test_a_value_counts_once() -> None:
    kept: Cache[str, int] = Cache(10)
    for _ in range(3):
        kept.keep("a", 1, 5)
    kept.keep("b", 2, 5)
    assert (kept.get("a"), kept.get("b")) == (1, 2)


def test_a_pickle_is_empty_and_keeps_again() -> None:
    kept: Cache[str, int] = Cache(10)
    kept.keep("a", 1, 5)
    copy = pickle.loads(pickle.dumps(kept))
    assert copy.get("a") is None
    copy.keep("b", 2, 10)
    assert copy.get("b") == 2
    copy.keep("c", 3, 11)
    assert copy.get("c") is None


def test_threads_wait_for_one_fetch() -> None:
    fetched, calls, go = Fetched(100), [], threading.Event()

    def fetch() -> bytes:
        calls.append(1)
        assert go.wait(30)
        return b"data"

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(fetched.get, "a", fetch) for _ in range(4)]
        assert fetched.get("b", lambda: b"other") == b"other", "other bytes do not wait"
        go.set()
        assert {one.result(30) for one in waiting} == {b"data"}
    assert len(calls) == 1


def test_a_failed_fetch_is_told_and_tried_again() -> None:
    fetched = Fetched(100)

    def fail() -> bytes:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        fetched.get("a", fail)
    assert fetched.get("a", lambda: b"data") == b"data"
    assert fetched.get("a", fail) == b"data"


def test_an_interrupt_of_one_thread_neither_ends_nor_stops_the_others() -> None:
    class LimitError(Exception):
        pass

    fetched, begun, go = Fetched(100), threading.Event(), threading.Event()

    def interrupted() -> bytes:
        begun.set()
        assert go.wait(30)
        raise LimitError

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetched.get, "a", interrupted)
        assert begun.wait(30)
        second = pool.submit(fetched.get, "a", lambda: b"data")
        go.set()
        with pytest.raises(LimitError):
            first.result(30)
        assert second.result(30) == b"data"


def test_an_exception_at_any_line_leaves_nobody_waiting() -> None:
    source, first = inspect.getsourcelines(Fetched.get)

    def lines_of(fetched: Fetched, number: int) -> bool:
        """Raises at the line with that number; whether there is such a line. Python itself sees to it that a ``with``
        is left."""
        seen = [0]

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code is not Fetched.get.__code__:
                return None if frame.f_code.co_filename != Fetched.get.__code__.co_filename else trace
            if event == "line" and "with " not in source[frame.f_lineno - first]:
                seen[0] += 1
                if seen[0] == number:
                    raise AlarmError
            return trace

        sys.settrace(trace)
        try:
            fetched.get("a", lambda: b"data")
        except AlarmError:
            return True
        finally:
            sys.settrace(None)
        return False

    number = 1
    with ThreadPoolExecutor(1) as pool:
        while lines_of(fetched := Fetched(100), number):
            assert pool.submit(fetched.get, "a", lambda: b"data").result(30) == b"data", f"line {number}"
            number += 1
    assert number > 5


def test_what_is_too_large_is_fetched_each_time() -> None:
    fetched, left = Fetched(3), [b"first", b"second"]
    assert fetched.get("a", left.pop) == b"second"
    assert fetched.get("a", left.pop) == b"first"
