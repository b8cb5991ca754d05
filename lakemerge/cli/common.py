"""Helpers of commands: common arguments, opening a table, progress."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from lakemerge.cli.arguments import storage_options
from lakemerge.errors import InputError, NotATableError
from lakemerge.read.failed_keys import OnFailedKeys
from lakemerge.table.table import LakeTable
from mergers.wording import argument

__all__ = [
    "FailedKeysOption",
    "PathArgument",
    "QuietOption",
    "StorageOption",
    "on_failed",
    "opened",
    "show_progress",
]

PathArgument = Annotated[str, typer.Argument(help="Folder or URL of the table, such as s3://bucket/orders.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        "-o",
        help="NAME=VALUE for the store, such as endpoint_url=...; may be given again. More may be in "
        "LAKEMERGE_STORAGE_OPTIONS, a JSON object.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


FailedKeysOption = Annotated[
    str,
    typer.Option(
        help="raise: a key whose merge fails is an error. skip: it has no row; `lakemerge failed-keys` lists it."
    ),
]


def on_failed(given: str) -> OnFailedKeys:
    """The value of the option. Raises :class:`InputError`."""
    if given not in get_args(OnFailedKeys):
        raise InputError(f"{argument('failed_keys')} must be raise or skip, not {given!r}")
    return "skip" if given == "skip" else "raise"


def opened(path: str, storage: Sequence[str] | None, *, version: int | None = None) -> LakeTable:
    try:
        return LakeTable.open(path, version=version, storage_options=storage_options(storage or ()))
    except NotATableError as error:
        raise NotATableError(f"{error.message}; `lakemerge init` makes a table", **error.facts) from error


def show_progress(*, quiet: bool) -> None:
    """Send the log of services to the error stream, so that results can be piped."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    # Events say to programs what the command itself says to people.
    handler.addFilter(lambda record: record.name != "lakemerge.events")
    for name in ("compaction", "lakemerge"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING if quiet else logging.INFO)
