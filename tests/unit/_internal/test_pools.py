"""The one factory of pools of threads."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import as_completed, wait

import pytest

from lakemerge._internal.pools import inline_pools, thread_pool


def test_a_pool_has_threads_of_the_name() -> None:
    with thread_pool(2, name="here") as pool:
        assert pool.submit(threading.current_thread).result().name.startswith("here")


def test_inline_pools_work_in_order_in_the_callers_thread() -> None:
    seen: list[int] = []
    with inline_pools(), inline_pools():
        with thread_pool(4) as pool:
            futures = [pool.submit(seen.append, number) for number in range(5)]
            assert seen == [0, 1, 2, 3, 4]
            assert all(future.done() for future in futures)
            assert len(list(as_completed(futures))) == len(wait(futures).done) == 5
            assert list(pool.map(lambda _: threading.get_ident(), range(3))) == [threading.get_ident()] * 3
        with pytest.raises(ValueError, match="at least one thread"):
            thread_pool(0)
    with thread_pool(1) as pool:
        assert pool.submit(threading.get_ident).result() != threading.get_ident()


def test_exceptions_wait_in_their_future() -> None:
    def failing(error: BaseException) -> None:
        raise error

    with inline_pools(), thread_pool(1) as pool:
        for error in (KeyError("x"), KeyboardInterrupt()):
            failed = pool.submit(failing, error)
            with pytest.raises(type(error)):
                failed.result()


def test_items_that_wait_for_each_other_have_threads_all_the_same() -> None:
    barrier = threading.Barrier(2)
    with inline_pools(), thread_pool(2, together=True) as pool:
        assert sorted(pool.map(lambda _: barrier.wait(30), range(2))) == [0, 1]


def test_a_generator_that_is_closed_waits_for_no_thread() -> None:
    """Else the process would stand still if the garbage collector closed it in the middle of a thread's start."""
    go_on, began = threading.Event(), threading.Event()
    done: list[int] = []

    def work(number: int) -> int:
        if number:
            began.set()
            assert go_on.wait(60), "whoever closed the generator waited for this thread"
        done.append(number)
        return number

    def results() -> Generator[int, None, None]:
        with thread_pool(2) as pool:
            yield from pool.map(work, range(9))

    found = results()
    assert next(found) == 0
    assert began.wait(60)
    found.close()
    assert done == [0]
    go_on.set()


def test_a_generator_that_comes_to_its_end_waits_for_its_threads() -> None:
    def results() -> Iterator[int]:
        with thread_pool(2, name="ending") as pool:
            yield from pool.map(abs, range(9))

    assert list(results()) == list(range(9))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ending")]
