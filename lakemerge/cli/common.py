"""Helpers of commands: common arguments, opening a table, progress."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from lakemerge.cli.arguments import storage_options
from lakemerge.errors import NotATableError
from lakemerge.table import LakeTable

__all__ = ["PathArgument", "QuietOption", "StorageOption", "opened", "show_progress"]

PathArgument = Annotated[str, typer.Argument(help="Folder or URL of the table, such as s3://bucket/orders.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        "-o",
        help="NAME=VALUE for the store, such as endpoint_url=...; may be given again. LAKEMERGE_STORAGE_OPTIONS, "
        "a JSON object, holds more of them.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


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
