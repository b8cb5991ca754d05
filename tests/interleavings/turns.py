"""A deterministic scheduler: operations of the product run in threads that take turns at their calls to the store.

A schedule says whose turn it is, for how many calls, and what becomes of a call. It is a line of text, such as
``A4 B A`` (A makes four calls to the store, B runs to its end, then A goes on) or ``A3!lost B``:

- ``A`` lets A run to its end, ``A4`` lets it make four calls. A switch before a call stands for an answer that came
  late to the call before it, too, since nothing else is shared.
- ``A4!fault``: the fourth of these calls meets a fault, of :data:`FAULTS`.
- ``A^7``: A runs to its end, and an exception that is not the library's is raised at the seventh new line that runs
  after its commit was sent; ``A^^7`` at the seventh bytecode.
- ``A+`` carries out what A's client gave up. Without it, that happens when all have ended.

Who is not at its end after the last step runs to it. Everything that could make two runs differ is fixed: ids, clocks,
pauses and pools of threads.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeVar
from unittest import mock

import pyarrow as pa

import lakemerge.connector.places
import lakemerge.delta.commit
import lakemerge.table.opening
import lakemerge.table.rename
from lakemerge._internal.pools import inline_pools
from lakemerge.storage import open_store
from lakemerge.storage.base import FileStat, Store
from lakemerge.testing.faults import FaultStore
from lakemerge.testing.memory import Bucket, MemoryStore
from tests.interrupting import OWN, AlarmError, ends_a_with

__all__ = ["FAULTS", "MUTATING", "Killed", "Outcome", "Schedule", "Step", "Touch", "outside", "play", "still", "unseen"]

T = TypeVar("T")

MUTATING: Final = frozenset(
    {"delete", "delete_empty_folders", "delete_exact", "publish", "put", "put_if_absent", "replace_exact"}
)

FAULTS: Final[Mapping[str, str]] = {
    "fail": "nothing is done, and the caller gets an error",
    "lost": "it is done, and the caller gets an error",
    "late": "the caller gets an error, and it is done after the caller ended",
    "stuck": "as late, and all later puts of this path get no answer and do nothing",
    "gone": "nothing is done, and no later call gets an answer or does anything",
    "gone-after": "as gone, but this call is done",
    "gone-late": "as gone, but this call is done after the caller ended",
    "kill": "the process ends before the call",
    "kill-after": "the process ends after the call was done",
}

_CLOCK: Final = "_lakemerge/.clock"
_BEGAN_MS: Final = 1_790_000_000_000
_WAIT_S: Final = 120
_COMMIT: Final = re.compile(r"_delta_log/\d{20}\.json")
_STEP: Final = re.compile(
    r"(?P<who>[A-Z])(?:(?P<calls>\d+)(?:!(?P<fault>[a-z-]+))?|(?P<line>\^{1,2}\d+)|(?P<late>\+))?"
)


class Killed(BaseException):
    """The process of the operation has ended. Whatever it still does reaches no store."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a schedule; see the module."""

    who: str
    calls: int | None = None
    fault: str | None = None
    line: int | None = None
    opcode: bool = False
    carry_out: bool = False

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.who}{'^^' if self.opcode else '^'}{self.line}"
        fault = f"!{self.fault}" if self.fault else ""
        return f"{self.who}{'' if self.calls is None else self.calls}{fault}{'+' if self.carry_out else ''}"


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, text: str) -> Schedule:
        steps = []
        for word in text.split():
            found = _STEP.fullmatch(word)
            if found is None or (found["fault"] and found["fault"] not in FAULTS):
                raise ValueError(f"{word!r} is no step of a schedule")
            line = found["line"]
            steps.append(
                Step(
                    found["who"],
                    int(found["calls"]) if found["calls"] else None,
                    found["fault"],
                    int(line.lstrip("^")) if line else None,
                    opcode=bool(line) and line.startswith("^^"),
                    carry_out=bool(found["late"]),
                )
            )
        return cls(tuple(steps))

    def __str__(self) -> str:
        return " ".join(map(str, self.steps))


@dataclass(frozen=True, slots=True)
class Touch:
    """One call of an operation, by what it reads or changes."""

    method: str
    paths: tuple[str, ...]
    """Whole paths in the bucket. That of a listing is the beginning of all that it lists."""

    @property
    def changes(self) -> bool:
        return self.method in MUTATING

    def conflicts(self, other: Touch) -> bool:
        """Whether the order of the two calls can matter."""
        if not (self.changes or other.changes):
            return False
        return any(
            (left == right or (self.lists and right.startswith(left)) or (other.lists and left.startswith(right)))
            and not left.endswith(_CLOCK)
            for left, right in itertools.product(self.paths, other.paths)
        )

    @property
    def lists(self) -> bool:
        return self.method in ("list", "folders", "clean_up", "delete_empty_folders")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended."""

    value: object
    error: BaseException | None
    touches: tuple[Touch, ...]
    lines: int
    """How many new lines (or bytecodes) ran after the commit was sent, if an exception was to be raised at one."""
    raised_at: str | None
    """Where an exception was raised into it."""

    def __str__(self) -> str:
        return "done" if self.error is None else f"{type(self.error).__name__}: {self.error}"[:200]


class _Task:
    """An operation and its thread, which runs only while it has the turn."""

    def __init__(self, name: str, deed: Callable[[], object]) -> None:
        self.name = name
        self.deed = deed
        self.ids = itertools.count()
        self.is_scheduled = False
        self.is_over = False
        self.touches: list[Touch] = []
        self.value: object = None
        self.error: BaseException | None = None
        self.alarm: tuple[int, bool] | None = None
        self.lines = 0
        self.raised_at: str | None = None
        self._seen: set[tuple[str, int]] = set()
        self._left: int | None = None
        self._fault: str | None = None
        self._broken: str | None = None
        self._stuck: set[str] = set()
        self._given_up: list[Callable[[], object]] = []
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def step(self, step: Step) -> None:
        """Give the turn, and wait until it comes back."""
        if step.carry_out:
            self.carry_out()
            return
        if self.is_over or step.calls == 0:
            return
        self._left, self._fault = step.calls, step.fault
        if step.line is not None:
            self.alarm = (step.line, step.opcode)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name=f"turns-{self.name}")
            self._thread.start()
        else:
            self._turn.release()
        if not self._back.acquire(timeout=_WAIT_S):
            raise AssertionError(f"{self.name} neither called the store nor ended within {_WAIT_S} s")

    def _run(self) -> None:
        _here.task = self
        self.is_scheduled = True
        try:
            self.value = self.deed()
        except BaseException as error:  # noqa: BLE001 - it is the outcome
            self.error = error
        finally:
            sys.settrace(None)
            self.is_scheduled = False
            self.is_over = True
            self._broken = self._broken or "ended"
            _here.task = None
            self._back.release()

    def carry_out(self) -> None:
        given_up, self._given_up = self._given_up, []
        for do in given_up:
            with contextlib.suppress(OSError):
                do()

    def outcome(self) -> Outcome:
        return Outcome(self.value, self.error, tuple(self.touches), self.lines, self.raised_at)

    def call(self, touch: Touch, do: Callable[[], T]) -> T:
        """Make a call to the store, once it is this operation's turn, with the fault that it meets."""
        if not self.is_scheduled:
            if self.is_over:
                raise Killed
            return do()
        if self._left == 0:
            self._back.release()
            if not self._turn.acquire(timeout=2 * _WAIT_S):
                raise Killed
        if self._left is not None:
            self._left -= 1
        self.touches.append(touch)
        fault, path = None, touch.paths[0] if touch.paths else ""
        if self._left == 0:
            fault, self._fault = self._fault, None
        if self._broken is not None:
            raise Killed if self._broken == "kill" else _no_answer(touch)
        if touch.method == "put_if_absent" and path in self._stuck:
            raise _no_answer(touch)
        if fault is None:
            result = do()
            if self.alarm is not None and touch.method == "put_if_absent" and _COMMIT.search(path):
                self._raise_later()
            return result
        return self._faulty(fault, touch, path, do)

    def _faulty(self, fault: str, touch: Touch, path: str, do: Callable[[], object]) -> Any:
        if fault in ("late", "stuck", "gone-late"):
            self._given_up.append(do)
        elif fault in ("lost", "gone-after", "kill-after"):
            do()
        if fault == "stuck":
            self._stuck.add(path)
        if fault.startswith("gone"):
            self._broken = "gone"
        if fault.startswith("kill"):
            self._broken = "kill"
            raise Killed
        raise _no_answer(touch)

    def _raise_later(self) -> None:
        """From now on, count lines, and raise at the one that was asked for."""
        at, by_opcode = self.alarm or (0, False)
        self.alarm = None

        def trace(frame: FrameType, event: str, _: object) -> Any:
            name = frame.f_code.co_filename
            if not name.startswith(OWN) or self.raised_at is not None:
                return None
            if event == "call":
                frame.f_trace_opcodes = by_opcode
                return trace
            if event != ("opcode" if by_opcode else "line") or ends_a_with(frame):
                return trace
            place = (name, frame.f_lasti if by_opcode else frame.f_lineno)
            if place not in self._seen:  # each place once
                self._seen.add(place)
                self.lines += 1
                if self.lines == at:
                    self.raised_at = f"{name.rpartition('lakemerge/')[2]}:{frame.f_lineno}"
                    raise AlarmError
            return trace

        sys.settrace(trace)
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(OWN):
                frame.f_trace = trace
                frame.f_trace_opcodes = by_opcode
            frame = frame.f_back  # type: ignore[assignment]


def _no_answer(touch: Touch) -> OSError:
    return ConnectionResetError(errno.ECONNRESET, f"no answer to {touch.method} {', '.join(touch.paths)[:200]}")


class TurnStore(FaultStore):
    """A store all of whose calls wait for their operation's turn."""

    def __init__(self, store: MemoryStore, task: _Task) -> None:
        super().__init__(store)
        self._memory = store
        self.task = task
        self.bucket = store.bucket
        self.prefix = store.prefix

    def __reduce__(self) -> Any:
        # Work that goes through a pickle stays in this process and in its operation.
        number = next(_numbers)
        _pickled[number] = self
        return _unpickled, (number,)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        return iter(self._do("list", folder, lambda: [*self._memory.list(folder, start_after=start_after)]))

    def delete(self, paths: Sequence[str]) -> None:
        self.task.call(self._touch("delete", *paths), lambda: self._memory.delete(paths))

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        touch = self._touch("delete_exact", *(file.path for file in files))
        return self.task.call(touch, lambda: self._memory.delete_exact(files))

    def sync(self, paths: Sequence[str]) -> None:
        """Nothing: the store's writes are durable, as in an object store."""

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        # Until the file is published nobody sees anything of it.
        return self._published(path)

    @contextmanager
    def _published(self, path: str) -> Iterator[pa.NativeFile]:
        file = pa.BufferOutputStream()
        yield file
        data = file.getvalue()
        place = self._memory.prefix + path
        self.task.call(self._touch("publish", path), lambda: self._memory.bucket.write(place, data))

    def _do(self, method: str, path: str, do: Callable[[], T]) -> T:
        return self.task.call(self._touch(method, path), do)

    def _touch(self, method: str, *paths: str) -> Touch:
        prefix = self._memory.prefix
        if method in ("list", "folders", "clean_up", "delete_empty_folders"):
            return Touch(method, tuple(f"{prefix}{path}/" if path else prefix for path in paths))
        return Touch(method, tuple(prefix + path for path in paths))


class _Here(threading.local):
    task: _Task | None = None


_here = _Here()
_numbers = itertools.count()
_pickled: dict[int, TurnStore] = {}
_world: list[Bucket] = []
_others = itertools.count()


def _unpickled(number: int) -> TurnStore:
    return _pickled[number]


def _opened(url: Any, _: object = None) -> Store:
    location = str(url)
    scheme = f"memory://{_world[-1].name}/"
    if not location.startswith(scheme):
        return _real_open_store(url)
    store = MemoryStore(_world[-1], location.removeprefix(scheme).rstrip("/"))
    return store if _here.task is None else TurnStore(store, _here.task)


_real_open_store = open_store


def _new_id() -> uuid.UUID:
    """Another id each time, the same ones in each run. It tells whose it is."""
    task = _here.task
    mark, number = ("0", next(_others)) if task is None else (f"{ord(task.name) - 55:x}", next(task.ids))
    return uuid.UUID(f"{mark}{number:07x}-0000-4000-8000-{mark * 12}")


def _now_ns() -> int:
    """A clock that stands still, so that two orders of the same calls end in the same bytes."""
    return _BEGAN_MS * 1_000_000


@contextmanager
def still(bucket: Bucket) -> Iterator[None]:
    """Within it, tables at ``memory://NAME/...`` are in the bucket, and nothing is left to chance."""
    _world.append(bucket)
    saved, ids = _others_now(), itertools.count(1 << 20)
    try:
        with ExitStack() as stack:
            for module in (lakemerge.table.opening, lakemerge.connector.places, lakemerge.table.rename):
                stack.enter_context(mock.patch.object(module, "open_store", _opened))
            stack.enter_context(mock.patch.object(lakemerge.delta.commit, "_RETRY_DELAYS_S", (0.0,) * 7))
            stack.enter_context(mock.patch.object(uuid, "uuid4", _new_id))
            stack.enter_context(mock.patch.object(time, "time_ns", _now_ns))
            stack.enter_context(mock.patch.object(time, "monotonic_ns", _now_ns))
            stack.enter_context(mock.patch.object(time, "sleep", return_value=None))
            stack.enter_context(inline_pools())
            stack.enter_context(_quiet())
            _set_others(ids)
            yield
    finally:
        _set_others(saved)
        _world.pop()


def _others_now() -> Iterator[int]:
    return _others


def _set_others(counter: Any) -> None:
    global _others  # noqa: PLW0603 - ids count from the same number in each world
    _others = counter


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def play(
    bucket: Bucket, deeds: Mapping[str, Callable[[], Callable[[], object]]], schedule: Schedule
) -> dict[str, Outcome]:
    """Play a schedule in a bucket, which it changes. To be called within :func:`still`.

    :param deeds: by name. Each opens what it needs, as long as nobody else works, and returns the operation.
    """
    tasks = {}
    for name, prepare in deeds.items():
        task = _Task(name, lambda: None)
        _here.task = task
        try:
            task.deed = prepare()
        finally:
            _here.task = None
        tasks[name] = task
    for step in schedule.steps:
        tasks[step.who].step(step)
    for task in tasks.values():
        task.step(Step(task.name))
    for task in tasks.values():
        task.carry_out()
    _pickled.clear()
    return {name: task.outcome() for name, task in tasks.items()}


@contextmanager
def unseen() -> Iterator[None]:
    """Within it, an operation looks at the tables without a call that counts."""
    task, _here.task = _here.task, None
    try:
        yield
    finally:
        _here.task = task


@contextmanager
def outside(store: Store) -> Iterator[Bucket]:
    """The bucket of an operation's store, for what somebody else does to a whole folder at once, as one call."""
    assert isinstance(store, TurnStore)
    bucket, task = store.bucket, store.task
    touch = Touch("delete_empty_folders", (store.prefix,))
    task.call(touch, lambda: None)
    with unseen():
        yield bucket
