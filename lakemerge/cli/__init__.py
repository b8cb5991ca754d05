"""The command ``lakemerge``. Importing this needs no extra; running a command needs ``lakemerge[cli]``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from lakemerge.cli.spelling import one_line
from lakemerge.errors import (
    DependencyMissingError,
    InputError,
    InstallError,
    LakeMergeError,
    RetryError,
    TableError,
)

__all__ = ["EXIT_CODES", "TRACEBACK_VARIABLE", "main", "one_line"]

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


def _app(arguments: Sequence[str]) -> int:
    try:
        from lakemerge.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        raise DependencyMissingError("the command line is not installed: pip install 'lakemerge[cli]'") from error
    return run(arguments)
