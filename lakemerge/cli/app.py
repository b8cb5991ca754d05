"""The commands: thin readers of arguments over :class:`lakemerge.LakeTable`."""

from __future__ import annotations

import datetime as dt
import logging
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from lakemerge.cli import merge_source
from lakemerge.cli.arguments import byte_count, duration, storage_options
from lakemerge.cli.service import run_maintenance, stopping
from lakemerge.cli.tables import shown_detail, shown_history, shown_plan, shown_result, shown_slices, shown_vacuum
from lakemerge.plans import CompactionStrategy
from lakemerge.table import LakeTable

__all__ = ["app", "run"]

app = typer.Typer(
    name="lakemerge",
    help="Looks at LakeMerge tables and keeps them healthy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(merge_source.app, name="merge-source")

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


def run(arguments: Sequence[str] | None) -> int:
    """Run the command that the arguments name (by default those of the process); its exit code."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="lakemerge")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


@app.command()
def show(
    path: PathArgument,
    storage: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="An earlier version.")] = None,
) -> None:
    """Show what a table is and what reading it costs now."""
    shown_detail(_open(path, storage, version=version))


@app.command()
def history(
    path: PathArgument,
    storage: StorageOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Only the newest commits.")] = 20,
) -> None:
    """Show what each commit did, newest first."""
    shown_history(_open(path, storage).history(limit=limit))


@app.command()
def slices(
    path: PathArgument,
    storage: StorageOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Only the costliest to read.")] = 50,
) -> None:
    """Show the slices of a table, the costliest to read first."""
    shown_slices(_open(path, storage).slices(), limit=limit)


@app.command()
def compact(
    path: PathArgument,
    storage: StorageOption = None,
    minor: Annotated[bool, typer.Option("--minor", help="Write what changed beside the base files.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    order: Annotated[
        Literal["oldest", "log-bytes", "log-count", "read-amplification"], typer.Option(help="What comes first.")
    ] = "oldest",
    where: Annotated[str | None, typer.Option(help="A SQL condition over partition columns.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option(help="Bytes to read and write at most, such as 50GiB; the rest is for the next run.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Merge logs into base files."""
    _show_progress(quiet=quiet)
    table = _open(path, storage)
    strategy, limit = CompactionStrategy(order=order), None if max_bytes is None else byte_count(max_bytes)
    if dry_run:
        shown_plan(table.compact(minor=minor, strategy=strategy, where=where, max_bytes=limit, dry_run=True))
    else:
        shown_result(table.compact(minor=minor, strategy=strategy, where=where, max_bytes=limit))


@app.command()
def maintain(
    path: PathArgument,
    storage: StorageOption = None,
    every: Annotated[
        str | None, typer.Option(help="Go on, with so long a pause, such as 5m; ends on SIGTERM or Ctrl-C.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Do what is due by the table's schedule: compactions, log compaction, vacuum."""
    _show_progress(quiet=quiet)
    pause = None if every is None else duration(every)
    with stopping() as stop:
        run_maintenance(_open(path, storage), every=pause, stop=stop)


@app.command()
def vacuum(
    path: PathArgument,
    storage: StorageOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run/--delete", help="Only say what would be deleted.")] = True,
    retention: Annotated[
        str | None, typer.Option(help="How long a replaced version stays readable, such as 7d.")
    ] = None,
    enforce_retention: Annotated[
        bool, typer.Option("--enforce-retention/--no-enforce-retention", help="Refuse less than the table asks for.")
    ] = True,
    quiet: QuietOption = False,
) -> None:
    """Delete files that no version within the retention needs; by default only say which."""
    _show_progress(quiet=quiet)
    table = _open(path, storage)
    kept: dt.timedelta | None = None if retention is None else duration(retention)
    shown_vacuum(table.vacuum(dry_run=dry_run, retention=kept, enforce_retention=enforce_retention))


@app.command()
def check(
    path: PathArgument,
    storage: StorageOption = None,
    rebuild_checkpoint: Annotated[
        bool, typer.Option("--rebuild-checkpoint", help="Write damaged checkpoints anew, from what is older.")
    ] = False,
    drop_orphans: Annotated[
        bool, typer.Option("--drop-orphans", help="Where nothing is wrong, also vacuum: files that nothing needs go.")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Verify a table: its log, files, rows and statistics. Exit code 4 where something is wrong."""
    _show_progress(quiet=quiet)
    options = storage_options(storage or ())
    result = LakeTable.check(path, rebuild_checkpoints=rebuild_checkpoint, storage_options=options)
    typer.echo(str(result))
    if not result.ok:
        raise typer.Exit(4)
    if drop_orphans:
        shown_vacuum(_open(path, storage).vacuum(dry_run=False))


def _open(path: str, storage: Sequence[str] | None, *, version: int | None = None) -> LakeTable:
    return LakeTable.open(path, version=version, storage_options=storage_options(storage or ()))


def _show_progress(*, quiet: bool) -> None:
    """What services log goes to the error stream, so that results can be piped."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in ("compaction", "lakemerge"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING if quiet else logging.INFO)
