"""``lakemerge convert`` and ``unconvert``: a Delta table becomes a LakeMerge table, and the other way round."""

from __future__ import annotations

from typing import Annotated

import typer

from lakemerge.cli.arguments import storage_options as parsed_options
from lakemerge.cli.common import PathArgument, QuietOption, StorageOption, opened, show_progress
from lakemerge.cli.output import JsonOption, document, facts, say
from lakemerge.cli.provenance import OptionsOption, merger_options
from lakemerge.cli.tables import cell
from lakemerge.errors import InputError
from lakemerge.results.conversion import ConversionPlan, ConversionResult, UnconversionResult
from lakemerge.results.display import counted, readable_bytes
from lakemerge.table.table import LakeTable

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (convert, unconvert):
        app.command()(command)


def convert(
    path: PathArgument,
    key_columns: Annotated[list[str] | None, typer.Option("--key", help="A key column; may be given again.")] = None,
    ordering: Annotated[
        list[str] | None, typer.Option(help="A column that says which record is newer; may be given again.")
    ] = None,
    merger: Annotated[
        str | None,
        typer.Option(help="A merger's name; by default event-time with --ordering, else commit-time."),
    ] = None,
    options: OptionsOption = None,
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            help="A column to partition by, which must be a --key, too; may be given again. By default those of its "
            "partition columns that are key columns."
        ),
    ] = None,
    buckets: Annotated[int | None, typer.Option(help="Buckets of a partition, a power of two.")] = None,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Nobody else writes the table meanwhile. Object stores need it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it costs, and which keys are null or repeated.")
    ] = False,
    storage_options: StorageOption = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Make a plain Delta table a LakeMerge table, in place. Called again after an interruption, it goes on."""
    if not key_columns:
        raise InputError("name the columns that identify a row: --key NAME, once for each key column")
    show_progress(quiet=quiet)
    result = LakeTable.convert(
        path,
        key=key_columns,
        ordering=ordering or (),
        merger=merger,
        options=merger_options(options),
        partition_by=partition_by or None,
        buckets=buckets,
        exclusive=exclusive,
        dry_run=dry_run,
        storage_options=parsed_options(storage_options or ()),
    )
    if json:
        document(result)
    elif isinstance(result, ConversionPlan):
        _shown_plan(result)
    else:
        _shown_result(result)


def unconvert(
    path: PathArgument, storage_options: StorageOption = None, quiet: QuietOption = False, json: JsonOption = False
) -> None:
    """Make a LakeMerge table a plain Delta table, which other engines write. Its logs are compacted before."""
    show_progress(quiet=quiet)
    result = opened(path, storage_options).unconvert()
    document(result) if json else _shown_end(result)


def _shown_plan(plan: ConversionPlan) -> None:
    keys = "; ".join(", ".join(f"{name}={cell(value)}" for name, value in key.items()) for key in plan.repeated_keys)
    facts(
        [
            ("table", f"{plan.url}, version {plan.version}"),
            ("rows", f"{plan.rows:,}"),
            (
                "to read",
                f"{counted(plan.files, 'file')}, {readable_bytes(plan.bytes)}, in {counted(plan.steps, 'step')}",
            ),
            ("partitioned by", ", ".join(plan.partition_by) or "nothing"),
            ("buckets", str(plan.buckets)),
            ("null keys", f"{plan.null_keys:,}"),
            ("repeated", counted(plan.repeated_rows, "row") + (f", such as {keys}" if keys else "")),
        ]
    )


def _shown_result(result: ConversionResult) -> None:
    if result.repeated:
        say(f"{result.url} was converted already, in version {result.version}")
        return
    facts(
        [
            ("table", f"{result.url}, version {result.version}"),
            ("rows", f"{result.rows:,}, and {result.merged_rows:,} left out as older ones of their key"),
            ("written", f"{counted(result.files, 'file')}, {readable_bytes(result.bytes)}"),
            ("former files", f"{result.former_files:,}, until a vacuum after the retention"),
        ]
    )


def _shown_end(result: UnconversionResult) -> None:
    say(f"{result.url} is a plain Delta table from version {result.version} on")
    if result.dropped_jobs:
        say(f"the ledgers of ingest jobs ended: {', '.join(result.dropped_jobs)}")
