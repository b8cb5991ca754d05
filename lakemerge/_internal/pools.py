"""The one place that makes pools of threads.

Within :func:`inline_pools` a pool works in the thread of its caller, one item after the other, in order. So a test can
decide which call comes after which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import ParamSpec, TypeVar

__all__ = ["inline_pools", "thread_pool"]

P = ParamSpec("P")
T = TypeVar("T")


class _InlineExecutor(Executor):
    """Works on each item when it is submitted. As with threads, an exception waits in the future."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the caller of result() gets it, as from a pool of threads
            future.set_exception(error)
        return future


class _Pool(ThreadPoolExecutor):
    """Whoever leaves the block waits for the threads, unless a generator that holds the pool is closed in the middle.

    The garbage collector may close it at any place, such as in the middle of another thread's start. Up to Python 3.12,
    that holds a lock without which no thread can be joined, and the process would stand still. What threads have begun
    goes on by itself then, and nobody takes the results. So what generators give to pools only reads.
    """

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        abandoned = kind is not None and issubclass(kind, GeneratorExit)
        self.shutdown(wait=not abandoned, cancel_futures=abandoned)


_depth = 0
"""How many contexts of :func:`inline_pools` are open, in whatever threads."""


def thread_pool(threads: int, *, name: str = "", together: bool = False) -> Executor:
    """A pool of at most ``threads`` threads.

    :param name: with which the names of the threads begin.
    :param together: whether items wait for each other. Such a pool has threads also within :func:`inline_pools`.
    """
    if _depth and not together:
        if threads < 1:
            raise ValueError("a pool needs at least one thread")
        return _InlineExecutor()
    return _Pool(threads, thread_name_prefix=name)


@contextmanager
def inline_pools() -> Iterator[None]:
    """For tests: all pools that are made meanwhile work in the threads of their callers."""
    global _depth  # noqa: PLW0603 - one factory for the whole process is the purpose
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
