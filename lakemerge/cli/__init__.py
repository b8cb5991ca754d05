"""The command ``lakemerge``. Importing this needs no extra; running a command needs ``lakemerge[cli]``."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from functools import partial

from lakemerge.cli.spelling import spelled
from lakemerge.errors import (
    DependencyMissingError,
    InputError,
    InstallError,
    LakeMergeError,
    RetryError,
    TableError,
)
from mergers.wording import printable

__all__ = ["EXIT_CODES", "TRACEBACK_VARIABLE", "main"]

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (InputError, 2),
    (RetryError, 3),
    (TableError, 4),
    (InstallError, 5),
    (LakeMergeError, 1),
    (OSError, 1),
)
"""The exit code of each group of errors: fix the input, try again, fix the table, install something. Others have 1."""

TRACEBACK_VARIABLE = "LAKEMERGE_TRACEBACK"
"""If this environment variable is set, an error that is neither ours nor the system's is shown with its traceback."""

_NO_ROOM = ". Make room there, and run the command again"
_NO_RIGHT = ". Give this user the right to do that, or run the command as another user"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: ". Mount it for writing, or use another place",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. An error is one line on the error stream, and the exit code says who has to act."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it, as daemons do
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack letters that rows have
            stream.reconfigure(errors="backslashreplace")
    try:
        return _app(given)
    except (LakeMergeError, OSError) as error:
        command = next((argument for argument in given if not argument.startswith("-")), None)
        sys.stderr.write(f"lakemerge: {one_line(error, command=command)}\n")
        return next(code for group, code in EXIT_CODES if isinstance(error, group))
    except Exception as error:
        # A merger of the user, or a fault of this library.
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        told = one_line(error, command=None)
        sys.stderr.write(f"lakemerge: {told}. This is unexpected: {TRACEBACK_VARIABLE}=1 shows where it happened\n")
        return 1


def one_line(error: Exception, *, command: str | None) -> str:
    """What went wrong and what to do about it, in the words of the command that ran."""
    if isinstance(error, LakeMergeError):
        text = error.worded(partial(spelled, command))
    else:
        remedy = _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""
        text = f"{type(error).__name__}: {error}{remedy}"
    return printable(" ".join(text.split()))


def _app(arguments: Sequence[str]) -> int:
    try:
        from lakemerge.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        raise DependencyMissingError("the command line is not installed: pip install 'lakemerge[cli]'") from error
    return run(arguments)
