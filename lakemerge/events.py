"""What a program can learn of its calls: an event after each write, read and service, for listeners and for the log.

A listener feeds the metrics of Prometheus, StatsD or OpenTelemetry (docs/guides/monitoring.md). The logger
``lakemerge.events`` writes the same at level INFO, one line an event, as ``name=value``.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from lakemerge.spark_errors import unwrap_errors
from mergers.interrupts import is_interrupt
from mergers.logs import logger

__all__ = ["Event", "listen", "observed"]

_logger = logger("lakemerge.events")
_listeners: list[Callable[[Event], object]] = []
_Method = TypeVar("_Method", bound=Callable[..., object])


class _Observed(Protocol):
    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A call of a table that has ended."""

    operation: str
    """The name of the method, such as ``upsert``."""
    table: str
    """The URL of the table."""
    seconds: float
    result: object
    """What the call returned; ``None`` where it failed."""
    error: Exception | None
    sources: tuple[str, ...] = ()
    """Where an ingest job takes its rows from: folders and URLs, as far as they are known."""

    def values(self) -> dict[str, int | float | str]:
        """The numbers and words of the result by name, such as ``version``; for an Arrow table its ``rows``."""
        if isinstance(rows := getattr(self.result, "num_rows", None), int):
            return {"rows": rows}
        if not dataclasses.is_dataclass(self.result):
            return {}
        found = {field.name: getattr(self.result, field.name) for field in dataclasses.fields(self.result)}
        return {name: value for name, value in found.items() if isinstance(value, int | float | str)}


def listen(listener: Callable[[Event], object]) -> Callable[[], None]:
    """Call ``listener`` after each call of a table in this process, in the thread of that call.

    An error in the listener is logged. It does not disturb the call, which has ended already.

    :returns: a function that ends it.
    """
    _listeners.append(listener)

    def end() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return end


def observed(method: _Method, operation: str | None = None) -> _Method:
    """A method of a table that tells of its calls. An error of this library comes out as itself, also where Spark holds
    it in an error of its own.

    :param operation: what events call it; by default its name.
    """
    name = operation or method.__name__

    @functools.wraps(method)
    def call(self: _Observed, /, *args: object, **kwargs: object) -> object:
        if not _listeners and not _logger.isEnabledFor(logging.INFO):
            with unwrap_errors():
                return method(self, *args, **kwargs)
        started = time.perf_counter()
        try:
            with unwrap_errors():
                result = method(self, *args, **kwargs)
        except Exception as error:
            _tell(name, self, started, None, error)
            raise
        _tell(name, self, started, result, None)
        return result

    call.__lakemerge_observed__ = name  # type: ignore[attr-defined] # for lists of what is told
    return cast("_Method", call)


def _tell(operation: str, called: _Observed, started: float, result: object, error: Exception | None) -> None:
    url, sources = called.url, tuple(getattr(called, "sources", ()))
    seconds = time.perf_counter() - started
    event = Event(operation=operation, table=url, seconds=seconds, result=result, error=error, sources=sources)
    said = {"operation": operation, "table": url, "seconds": "", **event.values()}
    said["seconds"] = f"{event.seconds:.3f}"  # results count theirs, without what the call did around them
    if error is not None:
        said["error"] = type(error).__name__
    _logger.info("%s", " ".join(f"{name}={value}" for name, value in said.items()))
    for listener in tuple(_listeners):
        try:
            listener(event)
        except Exception as error:
            if is_interrupt(error):
                raise
            _logger.exception("a listener failed")
