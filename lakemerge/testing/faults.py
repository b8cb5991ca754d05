"""A store that fails, kills the process or does something else, at chosen calls or at random, for tests of failures."""

from __future__ import annotations

import copy
import errno
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from lakemerge.errors import StoreError
from lakemerge.storage.base import FileStat, NothingCreatedError, Put, Store
from lakemerge.testing.watched import WatchedInput, WatchedOutput

__all__ = [
    "Answer",
    "Call",
    "Chance",
    "Fail",
    "Fault",
    "FaultStore",
    "Forbid",
    "Kill",
    "Lag",
    "Refuse",
    "Short",
    "Slow",
    "Throttle",
    "Unclear",
    "store_faults",
]

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a store. ``publish`` is the end of an ``open_output`` context without an error, at
    which the file becomes visible. ``read`` and ``write`` are calls on files that the store opened; they count only if
    a fault names them. ``path`` of ``delete`` and ``sync`` is the first of their
    paths, if any."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What an action returns to change what the caller gets."""

    of: Callable[[Any], Any]
    """Makes the caller's answer from the store's answer. If the fault comes before the effect, the store is not called,
    and it gets ``None``."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raises a copy of ``error``."""

    error: Exception

    def __call__(self, call: Call) -> None:
        raise copy.copy(self.error)


@dataclass(frozen=True, slots=True)
class Refuse:
    """A refusal of a file system with ``code`` of :mod:`errno`, such as on a full disk or a read-only one."""

    code: int

    def __call__(self, call: Call) -> None:
        if call.method == "put_if_absent":
            raise NothingCreatedError(f"{call.path!r} was not created ({os.strerror(self.code)})", errno=self.code)
        raise OSError(self.code, os.strerror(self.code), call.path)


@dataclass(frozen=True, slots=True)
class Throttle:
    """The error of a throttling object store: S3's ``503 SlowDown``, as its store reports it."""

    def __call__(self, call: Call) -> Answer:
        if call.method == "put_if_absent":
            return Answer(lambda _: Put.UNKNOWN)
        raise StoreError(f"{call.method} {call.path}: SlowDown: Please reduce your request rate", store_code="SlowDown")


@dataclass(frozen=True, slots=True)
class Unclear:
    """A put-if-absent that does not say whether it created the file."""

    def __call__(self, call: Call) -> Answer:
        return Answer(lambda _: Put.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Forbid:
    """The error of an object store that refuses a request, or says so after it carried it out."""

    code: str = "ExpiredToken"

    def __call__(self, call: Call) -> None:
        raise StoreError(f"{call.method} {call.path}: {self.code}", store_code=self.code)


@dataclass(frozen=True, slots=True)
class Lag:
    """A listing that does not show the ``newest`` files yet."""

    newest: int = 1

    def __call__(self, call: Call) -> Answer:
        return Answer(self._without_newest)

    def _without_newest(self, found: Sequence[FileStat]) -> list[FileStat]:
        hidden = sorted(found, key=lambda file: (file.modified_ms, file.path))[-self.newest :]
        return [file for file in found if file not in hidden]


@dataclass(frozen=True, slots=True)
class Short:
    """A read that gives only half of the bytes."""

    def __call__(self, call: Call) -> Answer:
        return Answer(lambda data: data[: len(data) // 2])


@dataclass(frozen=True, slots=True)
class Slow:
    """A store that takes its time: before the effect, or with its answer."""

    seconds: float
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, call: Call) -> None:
        self.sleep(self.seconds)


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
    """Called in the thread of the call; may raise, may return an :class:`Answer`, and may use other stores."""
    at: int = 1
    """The number of the call among those that fit, from 1 on."""
    method: str | None = None
    """Only calls of this method; ``None``: of any but ``read`` and ``write``."""
    path: str = ""
    """Only calls whose path contains this."""
    after: bool = False
    """Whether the fault comes after the call has had its effect or failed by itself. Otherwise it comes before the
    call, or replaces it if the action raises or answers."""
    lasting: bool = False
    """Whether it also comes at every later call that fits."""

    def fits(self, call: Call) -> bool:
        named = call.method == self.method or (self.method is None and call.method not in ("read", "write"))
        return named and self.path in call.path

    def is_due(self, count: int) -> bool:
        return count == self.at or (self.lasting and count > self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """Random faults: at each call one of the faults that fit comes with the probability ``rate``, whatever its ``at``.

    The random choice depends on the seed, on method and path of the call (without ids of transactions) and on the
    number of such calls before. So it is the same in every run, even if threads run in another order.
    """

    seed: object
    rate: float
    faults: tuple[Fault, ...]

    def drawn(self, call: Call, count: int) -> Fault | None:
        lots = random.Random(f"{self.seed} {call.method} {self.path_of(call)} {count}")  # noqa: S311 - no secret
        if lots.random() >= self.rate:
            return None
        fitting = [fault for fault in self.faults if fault.fits(call)]
        return lots.choice(fitting) if fitting else None

    @staticmethod
    def path_of(call: Call) -> str:
        return _ID.sub("*", call.path)


def store_faults() -> tuple[Fault, ...]:
    """Faults that a store may have at any call without breaking its contract. None of them is damage."""
    lost = (
        ConnectionResetError(errno.ECONNRESET, "connection reset by peer"),
        TimeoutError(errno.ETIMEDOUT, "no answer in time"),
    )
    return (
        *(Fault(action=Fail(error), after=after) for error in lost for after in (False, True)),
        *(Fault(action=Throttle(), method=method) for method in _REQUESTS),
        *(Fault(action=Unclear(), method="put_if_absent", after=after) for after in (False, True)),
        *(Fault(action=Forbid(), method="put_if_absent", after=after) for after in (False, True)),
        *(Fault(action=Refuse(errno.ENOSPC), method=method) for method in ("open_output", "write", "publish", "put")),
        *(Fault(action=Refuse(code), method="put_if_absent") for code in (errno.ENOSPC, errno.EROFS)),
        *(Fault(action=Refuse(errno.EROFS), method=method) for method in _WRITES),
        *(Fault(action=Lag(newest), method="list", after=True) for newest in (1, 2, 5)),
        Fault(action=Short(), method="read", after=True),
        Fault(action=Fail(TimeoutError(errno.ETIMEDOUT, "no answer in time")), method="read"),
        Fault(action=Slow(0.001)),
    )


_WRITES = ("delete", "delete_exact", "put", "replace_exact", "open_output")
_REQUESTS = (
    *("put_if_absent", "put", "get", "stat", "list", "delete", "delete_exact", "replace_exact"),
    *("open_input", "read", "publish"),
)


class FaultStore(Store):
    """Passes everything on to ``store``, with faults. Calls are counted before anything happens.

    A pickle holds the store and the faults, not the counts: each process counts its own calls. A fault on
    ``open_input`` is at the opening, not at the reads.
    """

    def __init__(self, store: Store, *faults: Fault | Chance) -> None:
        self._store = store
        self._faults = faults
        self._lock = threading.RLock()
        self._counts: Counter[object] = Counter()
        self._calls: list[Call] = []
        self._injected: Counter[str] = Counter()
        offered = [fault for given in faults for fault in (given.faults if isinstance(given, Chance) else (given,))]
        self._watched = {fault.method for fault in offered} & {"read", "write"}

    def __repr__(self) -> str:
        return f"FaultStore({self._store!r}, faults={len(self._faults)})"

    def __reduce__(self) -> tuple[type[FaultStore], tuple[Store | Fault | Chance, ...]]:
        return type(self), (self._store, *self._faults)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls in order, including those that failed."""
        with self._lock:
            return tuple(self._calls)

    @property
    def injected(self) -> Counter[str]:
        """Method of the call -> how many faults there were."""
        with self._lock:
            return self._injected.copy()

    @property
    def can_move(self) -> bool:  # type: ignore[override]  # it is the store's
        return self._store.can_move

    @property
    def url(self) -> str:
        return self._store.url

    def spark_url(self, path: str) -> str:
        return self._store.spark_url(path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        return self._do("put_if_absent", path, lambda: self._store.put_if_absent(path, data))

    def put(self, path: str, data: bytes) -> None:
        self._do("put", path, lambda: self._store.put(path, data))

    def get(self, path: str) -> bytes:
        return self._do("get", path, lambda: self._store.get(path))

    def stat(self, path: str) -> FileStat | None:
        return self._do("stat", path, lambda: self._store.stat(path))

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        # The folder is listed completely, so that "after" has a meaning even if the caller stops early.
        return iter(self._do("list", folder, lambda: [*self._store.list(folder, start_after=start_after)]))

    def folders(self, folder: str) -> Sequence[str]:
        return self._do("folders", folder, lambda: self._store.folders(folder))

    def delete_empty_folders(self, folder: str) -> None:
        self._do("delete_empty_folders", folder, lambda: self._store.delete_empty_folders(folder))

    def delete(self, paths: Sequence[str]) -> None:
        self._do("delete", next(iter(paths), ""), lambda: self._store.delete(paths))

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        return self._do("delete_exact", files[0].path if files else "", lambda: self._store.delete_exact(files))

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        return self._do("replace_exact", file.path, lambda: self._store.replace_exact(file, data))

    def sync(self, paths: Sequence[str]) -> None:
        self._do("sync", next(iter(paths), ""), lambda: self._store.sync(paths))

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        return self._do("clean_up", "", lambda: self._store.clean_up(before_ms=before_ms, dry_run=dry_run))

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        opened = self._do("open_input", path, lambda: self._store.open_input(path, size_bytes=size_bytes))
        if "read" not in self._watched:
            return opened
        return pa.PythonFile(WatchedInput(opened, lambda read: self._do("read", path, read)), mode="r")

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        output = self._do("open_output", path, lambda: self._store.open_output(path))
        return self._output(output, path)

    @contextmanager
    def _output(self, output: AbstractContextManager[pa.NativeFile], path: str) -> Iterator[pa.NativeFile]:
        call = Call("publish", path)
        with output as file:
            if "write" in self._watched:
                yield from self._watched_output(file, path)
            else:
                yield file
            due = self._due(call)
            _act(due, call, after=False)
        _act(due, call, after=True)

    def _watched_output(self, file: pa.NativeFile, path: str) -> Iterator[pa.NativeFile]:
        watched = WatchedOutput(file, lambda write, _: self._do("write", path, write))
        output = pa.PythonFile(watched, mode="w")
        try:
            yield output
            output.close()
        finally:
            watched.give_up()

    def _do(self, method: str, path: str, do: Callable[[], _T]) -> _T:
        call = Call(method, path)
        due = self._due(call)
        instead = _act(due, call, after=False)
        try:
            result: _T = instead[0].of(None) if instead else do()
        except BaseException:
            _act(due, call, after=True)
            raise
        for answer in _act(due, call, after=True):
            result = answer.of(result)
        return result

    def _due(self, call: Call) -> tuple[Fault, ...]:
        """Note the call. Returns the faults that are due at it."""
        due = []
        with self._lock:
            self._calls.append(call)
            for number, given in enumerate(self._faults):
                if isinstance(given, Chance):
                    kind = (number, call.method, given.path_of(call))
                    self._counts[kind] += 1
                    drawn = given.drawn(call, self._counts[kind])
                    due += [] if drawn is None else [drawn]
                elif given.fits(call):
                    self._counts[number] += 1
                    due += [given] if given.is_due(self._counts[number]) else []
            self._injected.update(call.method for _ in due)
        return tuple(due)


def _act(due: Sequence[Fault], call: Call, *, after: bool) -> list[Answer]:
    told = [fault.action(call) for fault in due if fault.after is after]
    return [answer for answer in told if isinstance(answer, Answer)]
