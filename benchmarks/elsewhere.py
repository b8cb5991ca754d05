"""Calls functions in another process, of this environment or of another one.

    python -m benchmarks.elsewhere MODULE[:CLASS] [ARGUMENT ...]

serves the functions of a module, or the methods of an object that is made with the arguments. Requests and answers are
pickled.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Elsewhere", "ElsewhereError", "elsewhere", "peak_bytes"]

_ROOT = Path(__file__).resolve().parent.parent


class ElsewhereError(Exception):
    """What was raised in the other process, as text."""


class Elsewhere:
    """A process that serves functions. A context manager."""

    def __init__(self, served: str, *arguments: str | Path, python: Path | None = None) -> None:
        command = [str(python or sys.executable), "-m", "benchmarks.elsewhere", served, *map(str, arguments)]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.communicate()

    def ask(self, do: str, *arguments: object, **named: object) -> Any:
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise ElsewhereError("the process has no pipes")
        try:
            pickle.dump((do, arguments, named), requests)
            requests.flush()
            error, answer = pickle.load(answers)  # noqa: S301 - it comes from the process that this one started
        except (BrokenPipeError, EOFError):
            status = self._process.wait()
            raise ElsewhereError(f"the process ended with status {status}; its error is above") from None
        if error is not None:
            raise ElsewhereError(error)
        return answer


def elsewhere(served: str, do: str, *, python: Path | None = None, **named: object) -> Any:
    """One call in a process of its own."""
    with Elsewhere(served, python=python) as process:
        return process.ask(do, **named)


def peak_bytes() -> int:
    """The peak of this process' resident memory so far. Linux's ``ru_maxrss`` begins with what the parent had."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _serve(served: str, *arguments: str) -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # text that a library prints must not be taken for an answer
    module, _, kind = served.partition(":")
    target: Any = importlib.import_module(module)
    if kind:
        target = getattr(target, kind)(*arguments)
    while True:
        try:
            do, given, named = pickle.load(sys.stdin.buffer)  # noqa: S301 - the process that started this one sent it
        except EOFError:
            return
        try:
            answer: tuple[str | None, Any] = (None, getattr(target, do)(*given, **named))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other process raises it
            answer = (f"{type(error).__name__}: {error}", None)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
