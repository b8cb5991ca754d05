"""A store that fails, dies or lets something else happen at a chosen call, for tests of what survives."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from lakemerge.storage.base import FileStat, Put, Store

__all__ = ["Call", "Fail", "Fault", "FaultStore", "Kill"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store. ``publish`` is the end of an ``open_output`` context without an error, at
    which the file becomes visible. ``path`` of ``delete`` is the first of its paths, if any."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Raises a copy of ``error``."""

    error: Exception

    def __call__(self, call: Call) -> None:
        raise copy.copy(self.error)


@dataclass(frozen=True, slots=True)
class Kill:
    """Ends the process at once: no clean-up, no handler, no ``finally``."""

    status: int = 9

    def __call__(self, call: Call) -> None:
        os._exit(self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at which call."""

    action: Callable[[Call], object]
    """Called in the thread of the call; may raise, and may use other stores."""
    at: int = 1
    """The how-manieth of the calls that fit, from 1 on."""
    method: str | None = None
    """Only calls of this method; ``None``: of any."""
    path: str = ""
    """Only calls whose path contains this."""
    after: bool = False
    """Once the call has had its effect, or has failed by itself; else in its place if the action
    raises, or before it."""
    lasting: bool = False
    """At every later call that fits as well."""

    def fits(self, call: Call) -> bool:
        return self.method in (None, call.method) and self.path in call.path


class FaultStore(Store):
    """Passes everything on to ``store``, with faults. Calls are counted before anything happens.

    A pickle holds the store and the faults, not the counts: each process counts its own. A fault on
    ``open_input`` concerns the opening alone, not the reads.
    """

    def __init__(self, store: Store, *faults: Fault) -> None:
        self._store = store
        self._faults = faults
        self._lock = threading.Lock()
        self._counts = [0] * len(faults)
        self._calls: list[Call] = []

    def __repr__(self) -> str:
        return f"FaultStore({self._store!r}, faults={len(self._faults)})"

    def __reduce__(self) -> tuple[type[FaultStore], tuple[Store | Fault, ...]]:
        return type(self), (self._store, *self._faults)

    @property
    def calls(self) -> tuple[Call, ...]:
        """What was called, in order, those that failed included."""
        with self._lock:
            return tuple(self._calls)

    @property
    def url(self) -> str:
        return self._store.url

    def spark_url(self, path: str) -> str:
        return self._store.spark_url(path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        with self._call("put_if_absent", path):
            return self._store.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        with self._call("put", path):
            self._store.put(path, data)

    def get(self, path: str) -> bytes:
        with self._call("get", path):
            return self._store.get(path)

    def stat(self, path: str) -> FileStat | None:
        with self._call("stat", path):
            return self._store.stat(path)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        # Listed whole, so that "after" has a meaning also where the caller stops early.
        with self._call("list", folder):
            found = [*self._store.list(folder, start_after=start_after)]
        return iter(found)

    def delete(self, paths: Sequence[str]) -> None:
        with self._call("delete", next(iter(paths), "")):
            self._store.delete(paths)

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        with self._call("clean_up", ""):
            return self._store.clean_up(before_ms=before_ms, dry_run=dry_run)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        with self._call("open_input", path):
            return self._store.open_input(path, size_bytes=size_bytes)

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        with self._call("open_output", path):
            output = self._store.open_output(path)
        return self._output(output, Call("publish", path))

    @contextmanager
    def _output(self, output: AbstractContextManager[pa.NativeFile], call: Call) -> Iterator[pa.NativeFile]:
        with output as file:
            yield file
            due = self._count(call)
            _act(due, call, after=False)
        _act(due, call, after=True)

    @contextmanager
    def _call(self, method: str, path: str) -> Iterator[None]:
        call = Call(method, path)
        due = self._count(call)
        _act(due, call, after=False)
        try:
            yield
        finally:
            _act(due, call, after=True)

    def _count(self, call: Call) -> tuple[Fault, ...]:
        """Note the call; the faults that are due at it."""
        due = []
        with self._lock:
            self._calls.append(call)
            for number, fault in enumerate(self._faults):
                if fault.fits(call):
                    self._counts[number] += 1
                    count = self._counts[number]
                    if count == fault.at or (fault.lasting and count > fault.at):
                        due.append(fault)
        return tuple(due)


def _act(due: Sequence[Fault], call: Call, *, after: bool) -> None:
    for fault in due:
        if fault.after is after:
            fault.action(call)
