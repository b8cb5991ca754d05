"""Raises an exception at a chosen line of the library, once a commit was sent: what signal handlers and threads do."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import lakemerge

__all__ = ["AlarmError", "ends_a_with", "raised_in", "raising_at"]

ROOT = Path(lakemerge.__file__).resolve().parent.parent
STORES = str(ROOT / "lakemerge" / "storage")
OWN = tuple(str(ROOT / package) for package in ("lakemerge", "compaction", "mergers"))


class AlarmError(Exception):
    """A time limit."""


def ends_a_with(frame: FrameType) -> bool:
    """Whether the frame is at a ``with``, which it may be about to leave. An exception that a trace function raises
    there skips the exit, and leaves a lock locked. Signals and threads raise none between the block and the exit."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


@contextmanager
def raising_at(logs: Path, number: int) -> Iterator[dict[str, Any]]:
    """Raise at the ``number``-th line of the library that runs after a commit file was made in any of the logs."""
    before = {path: set(path.glob("*.json")) for path in logs.glob("*/_delta_log")}
    seen: dict[str, Any] = {"lines": 0, "where": None, "sent": False}

    def is_sent() -> bool:
        return any(set(path.glob("*.json")) - before.get(path, set()) for path in logs.glob("*/_delta_log"))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(OWN):
            return None
        if event != "line" or seen["where"] is not None:
            return trace
        # Commit files are made by stores alone, and a look at the folders takes long.
        if not seen["sent"] and name.startswith(STORES):
            seen["sent"] = is_sent()
        if seen["sent"] and not ends_a_with(frame):
            seen["lines"] += 1
            if seen["lines"] == number:
                seen["where"] = f"{os.path.relpath(name, ROOT)}:{frame.f_lineno}"
                raise AlarmError
        return trace

    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(None)


def raised_in(deed: Callable[[], object], logs: Path, number: int) -> bool:
    """Do it, with an exception at that line. False if fewer lines ran: waiting for other threads takes more or less of
    them. An exception that was raised and does not arrive is an error."""
    with raising_at(logs, number) as seen, suppress(AlarmError):
        deed()
        assert seen["where"] is None, f"the exception at {seen['where']} was swallowed"
    return seen["where"] is not None
