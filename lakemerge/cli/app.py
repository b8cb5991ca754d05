"""The commands: thin readers of arguments over :class:`lakemerge.LakeTable`.

A parameter of a command has the name of the library's parameter to which it is passed. So errors can name the option
(:mod:`lakemerge.cli.spelling`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from lakemerge._internal.version import library_version
from lakemerge.cli import conversion, merge_source, provenance, rows
from lakemerge.cli.arguments import byte_count, duration
from lakemerge.cli.arguments import storage_options as parsed_options
from lakemerge.cli.common import PathArgument, QuietOption, StorageOption, opened, show_progress
from lakemerge.cli.demo import demo
from lakemerge.cli.forget import forget
from lakemerge.cli.ingest import ingest_app
from lakemerge.cli.output import JsonLinesOption, JsonOption, document, lines, say, say_lines
from lakemerge.cli.service import run_maintenance, stopping
from lakemerge.cli.spelling import has_commands
from lakemerge.cli.streams import changes, consumers_app
from lakemerge.cli.tables import (
    columns_of,
    shown_buckets,
    shown_copy,
    shown_detail,
    shown_history,
    shown_lag,
    shown_maintenance,
    shown_plan,
    shown_probe,
    shown_result,
    shown_vacuum,
)
from lakemerge.cli.warehouse import WarehouseMaintenance, shown_visit, shown_visits, visit_document
from lakemerge.connector.jar import jar_path, jar_version
from lakemerge.errors import InputError
from lakemerge.results.compactions import CompactionStrategy
from lakemerge.storage.probe import probe as probed
from lakemerge.table.gauges import openmetrics
from lakemerge.table.table import LakeTable
from mergers.wording import printable

__all__ = ["app", "run"]


class _Commands(TyperGroup):
    """The commands. Arguments may be names of files that strangers chose, so what is said of a wrong one is escaped."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _usage_escaped():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _usage_escaped():
            return super().invoke(ctx)


@contextmanager
def _usage_escaped() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        usage: Any = error
        if hasattr(usage, "format_message"):
            told = printable(usage.format_message(), lines=True)
            usage.format_message = lambda: told
        raise


app = typer.Typer(
    name="lakemerge",
    cls=_Commands,
    help="Create LakeMerge tables, write and read their rows, and keep them healthy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        say(versions())
        raise typer.Exit


@app.callback()
def lakemerge(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Create LakeMerge tables, write and read their rows, and keep them healthy."""


def versions() -> str:
    """The version of the library, and those of what it works with."""
    found = [f"Python {platform.python_version()}"]
    for package in ("pyarrow", "pyspark", "duckdb"):
        with suppress(PackageNotFoundError):
            found.append(f"{package} {package_version(package)}")
    return f"lakemerge {library_version()} ({', '.join(found)})"


app.command()(demo)
app.add_typer(ingest_app, name="ingest")
app.add_typer(merge_source.app, name="merge-source")
rows.register(app)
app.command()(forget)
conversion.register(app)
provenance.register(app)
app.add_typer(consumers_app, name="consumers")
app.command()(changes)


def run(arguments: Sequence[str]) -> int:
    """Run the command that the arguments name. Returns its exit code."""
    try:
        app(args=list(arguments), prog_name="lakemerge")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


@app.command()
def show(
    path: PathArgument,
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="An earlier version.")] = None,
    json: JsonOption = False,
) -> None:
    """Show what a table is and what reading it costs now."""
    table = opened(path, storage_options, version=version)
    if json:
        detail = table.detail()
        amplification = {"read_amplification": detail.read_amplification}
        document(dataclasses.asdict(detail) | amplification | {"columns": columns_of(table.schema)})
    else:
        shown_detail(table)


@app.command()
def jar(json: JsonOption = False) -> None:
    """Print where the jar for Spark's catalogs is, for spark-submit --jars and servers."""
    if json:
        document({"path": str(jar_path()), "version": jar_version()})
    else:
        say(str(jar_path()))


@app.command()
def history(
    path: PathArgument,
    storage_options: StorageOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Only the newest commits.")] = 20,
    json: JsonLinesOption = False,
) -> None:
    """Show what each commit did, newest first."""
    entries = opened(path, storage_options).history(limit=limit)
    if json:
        lines(entries)
    else:
        shown_history(entries)


@app.command()
def buckets(
    path: PathArgument,
    storage_options: StorageOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Only the costliest to read.")] = 50,
    json: JsonLinesOption = False,
) -> None:
    """Show the buckets of a table, the costliest to read first."""
    found = sorted(opened(path, storage_options).buckets(), key=lambda part: -part.read_amplification)
    if json:
        lines(dataclasses.asdict(part) | {"read_amplification": part.read_amplification} for part in found[:limit])
    else:
        shown_buckets(found, limit=limit)


@app.command()
def metrics(
    paths: Annotated[list[str], typer.Argument(help="Folders or URLs of tables.")],
    storage_options: StorageOption = None,
    json: JsonLinesOption = False,
) -> None:
    """Print what a scraper watches of tables, as OpenMetrics text. Only metadata is read."""
    found = [opened(path, storage_options).gauges() for path in paths]
    if json:
        lines(found)
    else:
        say_lines(openmetrics(found).removesuffix("\n"))


@app.command()
def compact(
    path: PathArgument,
    storage_options: StorageOption = None,
    minor: Annotated[
        bool, typer.Option("--minor", help="Write only the changed rows, to files beside the base files.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    order: Annotated[
        Literal["oldest", "log-bytes", "log-count", "read-amplification"],
        typer.Option(help="Which base files come first."),
    ] = "oldest",
    where: Annotated[str | None, typer.Option(help="A SQL condition over partition columns.")] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(help="Read and write at most this many bytes, such as 50GiB. The next run does the rest."),
    ] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Merge logs into base files."""
    show_progress(quiet=quiet)
    table = opened(path, storage_options)
    strategy, limit = CompactionStrategy(order=order), None if max_bytes is None else byte_count(max_bytes)
    if dry_run:
        plan = table.compact(minor=minor, strategy=strategy, where=where, max_bytes=limit, dry_run=True)
        document(plan) if json else shown_plan(plan)
    else:
        result = table.compact(minor=minor, strategy=strategy, where=where, max_bytes=limit)
        document(result) if json else shown_result(result)


@app.command()
def maintain(
    path: Annotated[
        str | None, typer.Argument(help="Folder or URL of the table, such as s3://bucket/orders; or give --warehouse.")
    ] = None,
    storage_options: StorageOption = None,
    warehouse: Annotated[
        str | None,
        typer.Option(help="Maintain all tables below this folder: those in it, and those in its folders."),
    ] = None,
    at_once: Annotated[
        int, typer.Option(min=1, max=64, help="With --warehouse: tables that are maintained at the same time.")
    ] = 2,
    turn: Annotated[
        str, typer.Option(help="With --warehouse: after this time the next table has its turn, such as 15m.")
    ] = "15m",
    every: Annotated[
        str | None, typer.Option(help="Repeat, with this pause in between, such as 5m. SIGTERM or Ctrl-C ends it.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Run nothing. The exit code is 4 if other engines lag more than lakemerge.publish.maxLag, by this "
            "host's clock.",
        ),
    ] = False,
    quiet: QuietOption = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, one for each run of a table.")
    ] = False,
) -> None:
    """Run the services that are due by the schedules of tables: compactions, log compaction, vacuum."""
    show_progress(quiet=quiet)
    if (path is None) == (warehouse is None):
        raise InputError("give the path of a table, or --warehouse and the folder of many")
    if check and (every is not None or warehouse is not None):
        raise InputError("--check looks once, at one table: give it without --every and --warehouse")
    pause = None if every is None else duration(every)
    if warehouse is not None:
        with stopping() as stop:
            WarehouseMaintenance(
                warehouse,
                parsed_options(storage_options or ()) or {},
                at_once=at_once,
                turn=duration(turn),
                stop=stop,
                show=visit_document if json else shown_visit,
            ).run(pause, show_round=(lambda _: None) if json else shown_visits)
        return
    table = opened(str(path), storage_options)
    if check:
        detail = table.detail()
        document(detail) if json else shown_lag(detail)
        if detail.lags:
            raise typer.Exit(4)
        return
    with stopping() as stop:
        run_maintenance(table, every=pause, stop=stop, show=document if json else shown_maintenance)


@app.command()
def vacuum(
    path: PathArgument,
    storage_options: StorageOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run/--delete", help="Only show what would be deleted.")] = True,
    retention: Annotated[
        str | None, typer.Option(help="How long a replaced version stays readable, such as 7d.")
    ] = None,
    enforce_retention: Annotated[
        bool,
        typer.Option("--enforce-retention/--no-enforce-retention", help="Refuse a retention shorter than the table's."),
    ] = True,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Delete files that no version within the retention needs. By default, only list them."""
    show_progress(quiet=quiet)
    table = opened(path, storage_options)
    kept: dt.timedelta | None = None if retention is None else duration(retention)
    result = table.vacuum(dry_run=dry_run, retention=kept, enforce_retention=enforce_retention)
    document(result) if json else shown_vacuum(result)


@app.command()
def copy(
    path: PathArgument,
    target: Annotated[str, typer.Argument(help="Folder or URL of the copy: without a table, or an earlier copy.")],
    storage_options: StorageOption = None,
    target_options: Annotated[
        list[str] | None,
        typer.Option("--target-option", help="NAME=VALUE for the store of the copy; by default, as for the table."),
    ] = None,
    version: Annotated[int | None, typer.Option(help="The version to copy. By default the latest.")] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Copy a table to another folder or store, as a backup. Copying a backup restores it."""
    show_progress(quiet=quiet)
    options = parsed_options(storage_options or () if target_options is None else target_options)
    result = opened(path, storage_options, version=version).copy_to(target, storage_options=options)
    document(result) if json else shown_copy(result)


@app.command()
def check(
    path: PathArgument,
    storage_options: StorageOption = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Repair what can be: write checkpoints again, delete what no version names."),
    ] = False,
    drop_orphans: Annotated[
        bool,
        typer.Option("--drop-orphans", help="If nothing is wrong, also vacuum: delete files that no version needs."),
    ] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Verify a table: its log, files, rows and statistics. The exit code is 4 if something is wrong."""
    show_progress(quiet=quiet)
    options = parsed_options(storage_options or ())
    result = LakeTable.check(path, repair=repair, storage_options=options)
    vacuumed = opened(path, storage_options).vacuum(dry_run=False) if result.ok and drop_orphans else None
    if json:
        document(dataclasses.asdict(result) | {"ok": result.ok, "vacuum": vacuumed})
    else:
        say_lines(str(result))
    if not result.ok:
        raise typer.Exit(4)
    if vacuumed is not None and not json:
        shown_vacuum(vacuumed)


@app.command()
def probe(
    url: Annotated[str, typer.Argument(help="Folder or URL for tables, such as s3://bucket/lake. It need not exist.")],
    storage_options: StorageOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Try out whether a store keeps what tables need of it. The exit code is 1 if it does not. Nothing stays there."""
    show_progress(quiet=quiet)
    result = probed(url, parsed_options(storage_options or ()))
    document(dataclasses.asdict(result) | {"ok": result.ok}) if json else shown_probe(result)
    if not result.ok:
        raise typer.Exit(1)


has_commands(typer.main.get_command(app))
