"""``lakemerge ingest``: files into a table, and what became of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from lakemerge.cli.arguments import duration, named_values
from lakemerge.cli.arguments import storage_options as options_of
from lakemerge.cli.common import PathArgument, QuietOption, StorageOption, opened, show_progress
from lakemerge.cli.output import JsonLinesOption, JsonOption, document, lines, row_lines, say
from lakemerge.cli.service import stopping
from lakemerge.cli.tables import shown_ingest, shown_ingest_files, shown_ingest_status, shown_rejects
from lakemerge.errors import InputError
from lakemerge.format.ingests import ingests_of
from lakemerge.ingest import Archive, Bins, Files, Fragments, IngestJob
from lakemerge.ingest.places import whole_path

__all__ = ["ingest_app"]

_DEFAULT_NAME = "default"


class _Group(TyperGroup):
    """``lakemerge ingest TABLE SOURCE`` runs a job. If the first argument is the name of a command, that command
    runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


ingest_app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Fill a table from files, each record exactly once: lakemerge ingest TABLE SOURCE --format json.",
)

SourceArgument = Annotated[list[str], typer.Argument(help="Folders or files, such as s3://landing/orders/.")]
NameOption = Annotated[str | None, typer.Option(help="The job's name; by default the table's only job.")]
FormatOption = Annotated[str, typer.Option(help="csv, json (lines), parquet, text, avro or orc.")]
PatternOption = Annotated[
    str | None, typer.Option(help="A regular expression that must match the whole name of a file.")
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="A column to read; may be given again. If a JSON record lacks one of them, it is null."
    ),
]
FormatOptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE for the format, such as delimiter=;."),
]
SourceOptionOption = Annotated[
    list[str] | None,
    typer.Option("--source-option", help="NAME=VALUE for the bucket of the files; by default the storage options."),
]
KindOption = Annotated[str | None, typer.Option(help="The column of the files that holds each record's kind.")]
EnvelopeOption = Annotated[Literal["debezium", "dms"] | None, typer.Option(help="The format that wraps each record.")]
BadOption = Annotated[
    Literal["fail", "quarantine"],
    typer.Option(help="What to do with bad records: let their window fail, or set them aside."),
]
MostBadOption = Annotated[
    str, typer.Option("--max-bad-records", help="How many records of a window may be set aside, or 'any'.")
]
RescuedOption = Annotated[
    str | None,
    typer.Option(help="The column that gets, as JSON, fields without a column and values that do not fit."),
]
GrowOption = Annotated[bool, typer.Option("--merge-schema", help="Add the columns that the table lacks.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]


@ingest_app.command("run")
def run_job(
    path: PathArgument,
    source: SourceArgument,
    storage_options: StorageOption = None,
    source_options: SourceOptionOption = None,
    name: Annotated[str, typer.Option(help="The job's name.")] = _DEFAULT_NAME,
    format: FormatOption = ...,  # type: ignore[assignment]  # noqa: A002 - the option's name
    pattern: PatternOption = None,
    recursive: Annotated[bool, typer.Option(help="Look into folders inside of folders.")] = True,
    block_bytes: Annotated[str, typer.Option(help="Size of the blocks that files are read in.")] = "64MiB",
    columns: ColumnOption = None,
    options: FormatOptionOption = None,
    settle: Annotated[str, typer.Option(help="How long a file must stay unchanged before it is read.")] = "0s",
    overwrites: Annotated[
        Literal["ingest", "refuse"], typer.Option(help="What to do with files that changed after they were ingested.")
    ] = "ingest",
    min_records: Annotated[int | None, typer.Option(help="A bin waits until it has this many records.")] = None,
    max_records: Annotated[int | None, typer.Option(help="A bin with this many records is full.")] = None,
    min_bytes: Annotated[str | None, typer.Option(help="A bin waits until it has this many bytes.")] = None,
    max_bytes: Annotated[str | None, typer.Option(help="A bin has at most this many bytes.")] = None,
    max_age: Annotated[str | None, typer.Option(help="A bin or a set waits at most this long.")] = None,
    max_bins: Annotated[int | None, typer.Option(help="At most this many bins or sets wait at a time.")] = None,
    correlate: Annotated[
        list[str] | None, typer.Option(help="Files with different values of this group or folder go to different bins.")
    ] = None,
    fragments: Annotated[
        bool,
        typer.Option("--fragments", help="Files are parts of sets, named by the groups identifier, index and count."),
    ] = False,
    kind_column: KindOption = None,
    envelope: EnvelopeOption = None,
    bad_records: BadOption = "fail",
    max_bad_records: MostBadOption = "0",
    rescued_column: RescuedOption = None,
    merge_schema: GrowOption = False,
    blocks_per_window: Annotated[int, typer.Option(help="Commit at most this many blocks at once.")] = 200,
    bytes_per_window: Annotated[str, typer.Option(help="Commit at most this many bytes of files at once.")] = "1GiB",
    after: Annotated[
        Literal["keep", "delete", "archive"], typer.Option(help="What to do with files that are in the table.")
    ] = "keep",
    archive: Annotated[str | None, typer.Option(help="Where archived files go.")] = None,
    archive_max_age: Annotated[str | None, typer.Option(help="How long archived files are kept.")] = None,
    archive_max_bytes: Annotated[str | None, typer.Option(help="How many bytes of archived files are kept.")] = None,
    max_read_amplification: Annotated[
        float | None, typer.Option(help="If read amplification is above this, run maintenance first.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Repeat, with a scan at this interval, such as 30s. SIGTERM or Ctrl-C ends it.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Also commit bins below their minima.")] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Ingest the files that are there now. With --every, repeat. The exit code is 1 if files failed, now or before."""
    show_progress(quiet=quiet)
    table = opened(path, storage_options)
    if every is None:
        _check_there(source)
    files = Files(
        *source,
        format=format,
        pattern=pattern,
        recursive=recursive,
        block_bytes=block_bytes,
        columns=columns,
        options=named_values(options),
        settle=duration(settle),
        overwrites=overwrites,
        storage_options=options_of(source_options or storage_options or ()),
    )
    sizes = (min_records, max_records, min_bytes, max_bytes, correlate)
    waits = () if fragments else (max_age, max_bins)
    bins = Bins(
        min_records=min_records,
        max_records=max_records,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        max_age=max_age,
        max_bins=5 if max_bins is None else max_bins,
        correlate=correlate or (),
    )
    job = table.ingest(
        name,
        files,
        bins=bins if any(value is not None for value in (*sizes, *waits)) else None,
        fragments=Fragments(max_age=max_age, max_bins=max_bins) if fragments else None,
        kind_column=kind_column,
        envelope=envelope,
        bad_records=bad_records,
        max_bad_records=_most_bad(max_bad_records),
        rescued_column=rescued_column,
        merge_schema=merge_schema,
        blocks_per_window=blocks_per_window,
        bytes_per_window=bytes_per_window,
        after=_after(after, archive, archive_max_age, archive_max_bytes),
        max_read_amplification=max_read_amplification,
    )
    with _stopped_by_signals(job):
        result = job.run(every=None if every is None else duration(every), drain=drain)
    document(result) if json else shown_ingest(result)
    if result.failed or result.to_retry:
        raise typer.Exit(1)


@ingest_app.command()
def status(
    path: PathArgument, storage_options: StorageOption = None, name: NameOption = None, json: JsonOption = False
) -> None:
    """Show the state of a job."""
    found = _job(path, storage_options, name).status()
    document(found) if json else shown_ingest_status(found)


@ingest_app.command()
def files(
    path: PathArgument,
    storage_options: StorageOption = None,
    name: NameOption = None,
    state: Annotated[str | None, typer.Option(help="Only files in this state, such as failed.")] = None,
    limit: LimitOption = 50,
    rejects: Annotated[bool, typer.Option("--rejects", help="Show the records that were set aside instead.")] = False,
    json: JsonLinesOption = False,
) -> None:
    """Show what became of each file, or the records that were set aside."""
    job = _job(path, storage_options, name)
    if rejects:
        records = job.rejects()
        row_lines(records.slice(0, limit).to_batches()) if json else shown_rejects(records, limit=limit)
    else:
        found = job.files(state=state)
        lines(found[:limit]) if json else shown_ingest_files(found, limit=limit)


@ingest_app.command()
def retry(
    path: PathArgument,
    paths: Annotated[list[str] | None, typer.Argument(help="Only these files.")] = None,
    storage_options: StorageOption = None,
    name: NameOption = None,
    json: JsonOption = False,
) -> None:
    """Put failed files back. The next run ingests them."""
    count = _job(path, storage_options, name).retry(paths or None)
    if json:
        document({"files": count})
    else:
        say(f"{count:,} files are put back")


@ingest_app.command()
def reset(
    path: PathArgument,
    storage_options: StorageOption = None,
    name: NameOption = None,
    seen: Annotated[
        Literal["keep", "forget"],
        typer.Option(help="keep: files in the ledger stay as they are. forget: they are new again."),
    ] = "keep",
    json: JsonOption = False,
) -> None:
    """Begin a new generation of the job: after a restore, or to ingest everything again."""
    job = _job(path, storage_options, name)
    job.reset(seen=seen)
    status = job.status()
    if json:
        document(status)
    else:
        say(f"{job.name}: generation {status.generation}")


@ingest_app.command()
def replay(
    path: PathArgument,
    source: SourceArgument,
    storage_options: StorageOption = None,
    source_options: SourceOptionOption = None,
    name: NameOption = None,
    format: FormatOption = ...,  # type: ignore[assignment]  # noqa: A002 - the option's name
    pattern: PatternOption = None,
    columns: ColumnOption = None,
    options: FormatOptionOption = None,
    kind_column: KindOption = None,
    envelope: EnvelopeOption = None,
    bad_records: BadOption = "fail",
    max_bad_records: MostBadOption = "0",
    rescued_column: RescuedOption = None,
    merge_schema: GrowOption = False,
    archive: Annotated[str | None, typer.Option(help="Where files were archived.")] = None,
    windows: Annotated[list[int] | None, typer.Option("--window", help="Only this window; may be given again.")] = None,
    into: Annotated[str | None, typer.Option(help="Another table; by default the same one.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Run even if records may be counted twice.")] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Read the blocks of windows again, in the same order, and write them."""
    show_progress(quiet=quiet)
    table = opened(path, storage_options)
    _check_there(source)
    files = Files(
        *source,
        format=format,
        pattern=pattern,
        columns=columns,
        options=named_values(options),
        storage_options=options_of(source_options or storage_options or ()),
    )
    job = table.ingest(
        _only(ingests_of(table.opened.view.snapshot), name),
        files,
        kind_column=kind_column,
        envelope=envelope,
        bad_records=bad_records,
        max_bad_records=_most_bad(max_bad_records),
        rescued_column=rescued_column,
        merge_schema=merge_schema,
        after=Archive(folder=archive),
    )
    target = None if into is None else opened(into, storage_options)
    result = job.replay(windows=windows or None, into=target, force=force)
    document(result) if json else shown_ingest(result)


def _check_there(source: Iterable[str]) -> None:
    """A run that is not repeated would wait for nothing. In a bucket there are no folders, so nothing can be said."""
    for location in source:
        path = whole_path(location)
        if os.path.isabs(path) and not os.path.exists(path):
            raise InputError(f"there is no folder or file {location}: check its spelling; ingest --every waits for it")


def _job(path: str, storage_options: Sequence[str] | None, name: str | None) -> IngestJob:
    """A job to look at. Raises :class:`InputError` if it is not clear which one."""
    table = opened(path, storage_options)
    return table.ingest(_only(ingests_of(table.opened.view.snapshot), name))


def _only(jobs: Iterable[str], name: str | None) -> str:
    """The given name, or the name of the table's only job."""
    if name is not None:
        return name
    known = list(jobs)
    if len(known) != 1:
        told = f"it has {', '.join(known)}; say which with --name" if known else "it has none"
        raise InputError(f"which ingest job of the table is meant? {told}")
    return known[0]


def _most_bad(text: str) -> int | None:
    if text == "any":
        return None
    if not text.isdecimal():
        raise InputError(f"--max-bad-records must be a number, or 'any', not {text!r}")
    return int(text)


def _after(after: Any, folder: str | None, max_age: str | None, max_bytes: str | None) -> Any:
    if after != "archive":
        if folder or max_age or max_bytes:
            raise InputError("--archive and its bounds need --after archive")
        return after
    return Archive(folder=folder, max_age=max_age, max_bytes=max_bytes)


@contextmanager
def _stopped_by_signals(job: IngestJob) -> Iterator[None]:
    with stopping() as stop:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.2):
                if stop.is_set():
                    job.stop()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
