"""Tells exceptions of signal handlers and time limits from errors of the code that they interrupt.

A handler of a signal raises its exception between any two steps of the main thread (Celery, RQ, alarms of schedulers),
and other tools raise one into a thread. Code that handles errors of its own calls must let these pass, because only
whoever set the limit knows what to do.
"""

from __future__ import annotations

import signal
from types import CodeType
from typing import Any, Final

__all__ = ["is_foreign", "is_interrupt"]

_FAMILIES: Final = frozenset(
    {
        *("builtins", "concurrent", "asyncio", "json", "pickle", "struct", "zlib", "socket", "ssl", "subprocess"),
        *("lakemerge", "mergers", "compaction"),
        *("pyarrow", "numpy", "orjson", "pyspark", "py4j", "grpc", "duckdb", "pandas", "polars"),
        *("fsspec", "s3fs", "aiobotocore", "botocore", "aiohttp", "urllib3"),
        *("gcsfs", "google", "requests", "adlfs", "azure", "msal"),
    }
)
"""Where the classes of exceptions are defined that a call of this library or of what it uses can raise."""


def is_interrupt(error: BaseException) -> bool:
    """Whether a handler of a signal raised the exception, or Ctrl-C did."""
    if not isinstance(error, Exception):
        return True
    codes = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def is_foreign(error: BaseException) -> bool:
    """Whether the exception is surely or probably not an error of the code that it ended: an interrupt, a
    ``TimeoutError`` without the system's number, or a class that nothing here uses."""
    if is_interrupt(error) or type(error).__module__.partition(".")[0] not in _FAMILIES:
        return True
    return type(error) is TimeoutError and error.errno is None


def _handlers() -> frozenset[CodeType]:
    """The code of the handlers that are set. Those of Python itself, as for Ctrl-C, are not written in Python."""
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # a partial
        handler = getattr(handler, "__func__", handler)  # a method
        called = vars(type(handler)).get("__call__", handler)  # an object that is called
        code = getattr(handler, "__code__", None) or getattr(called, "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return frozenset(found)
