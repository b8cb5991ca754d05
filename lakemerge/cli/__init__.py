"""The command ``lakemerge``. Importing this needs no extra; running a command needs ``lakemerge[cli]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lakemerge.errors import (
    DependencyMissingError,
    InputError,
    InstallError,
    LakeMergeError,
    RetryError,
    TableError,
)

__all__ = ["EXIT_CODES", "main"]

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (InputError, 2),
    (RetryError, 3),
    (TableError, 4),
    (InstallError, 5),
    (LakeMergeError, 1),
    (OSError, 1),
)
"""By group of errors: fix the input, try again, fix the table, install something; else 1."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it cannot do is one line on the error stream, and the exit code says whose turn it is."""
    try:
        return _app(arguments)
    except (LakeMergeError, OSError) as error:
        sys.stderr.write(f"lakemerge: {one_line(error)}\n")
        return next(code for group, code in EXIT_CODES if isinstance(error, group))


def one_line(error: Exception) -> str:
    """What went wrong and what to do about it."""
    text = error.message if isinstance(error, LakeMergeError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def _app(arguments: Sequence[str] | None) -> int:
    try:
        from lakemerge.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        raise DependencyMissingError("the command line is not installed: pip install 'lakemerge[cli]'") from error
    return run(arguments)
