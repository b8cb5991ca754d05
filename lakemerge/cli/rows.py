"""``lakemerge init``, ``upsert``, ``get``, ``query``, ``diff`` and ``failed-keys``: a table and its rows by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import pyarrow as pa
import typer

from lakemerge.cli.arguments import named_values
from lakemerge.cli.arguments import storage_options as parsed_options
from lakemerge.cli.common import (
    FailedKeysOption,
    PathArgument,
    QuietOption,
    StorageOption,
    on_failed,
    opened,
    show_progress,
)
from lakemerge.cli.output import (
    JsonLinesOption,
    JsonOption,
    document,
    facts,
    lines,
    row_lines,
    say,
    say_lines,
)
from lakemerge.cli.provenance import KeyArgument, OptionsOption, key_of, merger_options
from lakemerge.cli.spelling import spelled
from lakemerge.cli.tables import cell, columns_of, shown_rows
from lakemerge.errors import InputError
from lakemerge.feed.difference import KIND, TIMESTAMP, VERSION
from lakemerge.ingest.guessing import Guess
from lakemerge.ingest.single_file import SingleFile
from lakemerge.storage.options import shown_name
from lakemerge.table.table import LakeTable
from mergers.type_names import type_name
from mergers.wording import worded

__all__ = ["register"]

FormatOption = Annotated[
    str | None,
    typer.Option(help="csv, json (lines), parquet, avro or orc; by default from the ending of the file's name."),
]
FormatOptionOption = Annotated[
    list[str] | None, typer.Option("--option", help="NAME=VALUE for the format, such as delimiter=;.")
]
ColumnOption = Annotated[list[str] | None, typer.Option("--column", help="A column to read; may be given again.")]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, help="Show at most this many rows. --json shows all.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (init, upsert, get, query, diff, failed_keys):
        app.command(name=command.__name__.replace("_", "-"))(command)


def init(
    path: PathArgument,
    schema: Annotated[
        str | None, typer.Option(help="The columns as DDL, such as 'id BIGINT, name STRING, seq BIGINT'.")
    ] = None,
    like: Annotated[str | None, typer.Option("--like", help="A data file; the table gets its columns.")] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="NAME=TYPE: with --like, the type of a column, such as code=STRING; repeatable."),
    ] = None,
    key_columns: Annotated[list[str] | None, typer.Option("--key", help="A key column; may be given again.")] = None,
    ordering: Annotated[
        list[str] | None, typer.Option(help="A column that says which record is newer; may be given again.")
    ] = None,
    merger: Annotated[
        str | None,
        typer.Option(
            help="A merger's name; by default event-time with --ordering, else commit-time. For a rule of your own "
            """take expression, with --options '{"columns": {"n": "old.n + new.n"}}'."""
        ),
    ] = None,
    options: OptionsOption = None,
    partition_by: Annotated[
        list[str] | None, typer.Option(help="A column to partition by, which must be a --key, too; may be given again.")
    ] = None,
    buckets: Annotated[int | None, typer.Option(help="Buckets of a partition, a power of two.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="NAME=VALUE, a table property; may be given again.")
    ] = None,
    format: FormatOption = None,  # noqa: A002 - the option's name
    format_options: FormatOptionOption = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace an existing table by an empty one, with a commit in its log."),
    ] = False,
    storage_options: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Create a table. Its columns come from --schema, or with --like from a data file, whose types are guessed."""
    given = parsed_options(storage_options or ())
    if (schema is None) == (like is None):
        raise InputError("name the columns of the table: either --schema with DDL, or --like with a data file")
    if not key_columns:
        raise InputError("name the columns that identify a row: --key NAME, once for each key column")
    if types and like is None:
        raise InputError("--type corrects a guess of --like; with --schema, write the type there")
    columns: object = schema
    guess = None
    if like is not None:
        file = SingleFile.found(like, format=format, options=named_values(format_options), storage_options=given)
        guess = file.guess(key=key_columns, types=_types(types))
        columns = guess.schema
    table = LakeTable.create(
        path,
        columns,
        key=key_columns,
        ordering=ordering or (),
        merger=merger,
        options=merger_options(options),
        partition_by=partition_by or (),
        buckets=buckets,
        properties=_texts(properties),
        storage_options=given,
        replace=replace,
    )
    ddl = _ddl(table.schema)
    detail = table.detail()
    if json:
        document(
            {
                "table": table.url,
                "version": table.version,
                "schema": ddl,
                "key": table.key,
                "ordering": table.ordering,
                "merger": detail.merger,
                **({} if guess is None else {"notes": guess.notes, "warnings": guess.warnings}),
            }
        )
        return
    say(f"{table.url} is a table now, merged by {detail.merger}, with the columns")
    say(f"  {ddl}")
    if guess is not None:
        _say_guess(guess)
    say(f"Next: lakemerge upsert {path} {like or 'FILE'}")


def upsert(
    path: PathArgument,
    data_file: Annotated[
        str, typer.Argument(metavar="FILE", help="A data file: a path, or a URL such as s3://landing/orders.parquet.")
    ],
    storage_options: StorageOption = None,
    format: FormatOption = None,  # noqa: A002 - the option's name
    format_options: FormatOptionOption = None,
    columns: ColumnOption = None,
    kind_column: Annotated[
        str | None, typer.Option(help="The file's column that holds each record's kind: +I, +U, -U or -D.")
    ] = None,
    merge_schema: Annotated[bool, typer.Option("--merge-schema", help="Add the columns that the table lacks.")] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Write the records of a file in one commit. The same file may be written again; ingest takes each record once.

    What a record of JSON does not name keeps its value.
    """
    show_progress(quiet=quiet)
    table = opened(path, storage_options)
    found = SingleFile.found(
        data_file,
        format=format,
        options=named_values(format_options),
        storage_options=parsed_options(storage_options or ()),
    )
    rows = found.rows(
        table.opened.view.config,
        table.opened.handle.merger(table.opened.view),
        columns=columns or None,
        kind_column=kind_column,
        merge_schema=merge_schema,
        max_columns=table.opened.handle.settings.max_columns,
    )
    about = {"file": found.file.path}
    result = table.upsert(rows, kind_column=kind_column, merge_schema=merge_schema, info=about)
    if json:
        document(result)
    else:
        say(f"version {result.version}: {result.rows:,} records of {data_file}, {result.bytes:,} bytes written")


def failed_keys(
    path: PathArgument,
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="An earlier version.")] = None,
    where: Annotated[
        str | None, typer.Option(help="A SQL condition: only parts that may have rows that meet it.")
    ] = None,
    json: JsonLinesOption = False,
) -> None:
    """List the keys whose merge fails, with their records. Reads of these keys fail, all others do not."""
    found = opened(path, storage_options, version=version).failed_keys(filter=where)
    if json:
        lines(found.to_arrow().to_pylist())
    else:
        say_lines(repr(found))


def get(
    path: PathArgument,
    key: KeyArgument,
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="An earlier version.")] = None,
    columns: ColumnOption = None,
    failed_keys: FailedKeysOption = "raise",
    json: JsonOption = False,
) -> None:
    """Show the row of one key. With --json, null says that there is none."""
    table = opened(path, storage_options, version=version)
    row = table.get(key_of(table, key), columns=columns or None, failed_keys=on_failed(failed_keys))
    if json:
        document(row)
    elif row is None:
        say("there is no such row")
    else:
        facts([(name, cell(value)) for name, value in row.items()])


def query(
    path: PathArgument,
    sql: Annotated[str, typer.Argument(help="The query; the table is called self.")],
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="An earlier version.")] = None,
    sandbox: Annotated[
        bool,
        typer.Option("--sandbox", help="For SQL that you do not trust: only one SELECT, without files and extensions."),
    ] = False,
    failed_keys: FailedKeysOption = "raise",
    limit: LimitOption = 50,
    json: JsonLinesOption = False,
) -> None:
    """Run a query with DuckDB: lakemerge query orders "SELECT state, count(*) FROM self GROUP BY state"."""
    rows = opened(path, storage_options, version=version).query(
        sql, sandbox=sandbox, failed_keys=on_failed(failed_keys)
    )
    if json:
        row_lines(rows.to_batches())
    elif rows.num_columns:
        shown_rows(rows, limit=limit)
    else:
        say("done")  # a COPY


def diff(
    path: PathArgument,
    earlier: Annotated[int, typer.Argument(metavar="EARLIER", help="The earlier version.")],
    later: Annotated[int, typer.Argument(metavar="LATER", help="The later version.")],
    storage_options: StorageOption = None,
    failed_keys: FailedKeysOption = "raise",
    limit: LimitOption = 50,
    json: JsonLinesOption = False,
) -> None:
    """Show how the rows of one version differ from those of another: +I new, -U and +U changed, -D gone."""
    if earlier > later:
        raise InputError(f"name the earlier version first: {later} {earlier}, not {earlier} {later}")
    table = opened(path, storage_options)
    changes = table.changes(earlier, later, net=True, failed_keys=on_failed(failed_keys))
    if json:
        row_lines(changes)
        return
    rows = changes.read_all()
    names = [name for name in rows.column_names if name not in (KIND, VERSION, TIMESTAMP)]
    if rows.num_rows:
        shown_rows(rows.select([KIND, *names]).rename_columns(["change", *names]), limit=limit)
    else:
        say(f"the rows of versions {earlier} and {later} are the same")


def _say_guess(guess: Guess) -> None:
    for name, why in guess.notes.items():
        say(f"  {name} is {type_name(guess.schema.field(name).type)}: {why}")
    if guess.is_guessed:
        say("These types are guessed from the file's beginning; --type NAME=TYPE names another one")
    for warning in guess.warnings:
        say(f"warning: {worded(warning, partial(spelled, 'init'))}", error=True)


def _types(given: Sequence[str] | None) -> dict[str, str]:
    types: dict[str, str] = {}
    for pair in given or ():
        name, equals, kind = pair.partition("=")
        if not (name and equals and kind):
            raise InputError(f"--type {pair!r} is not NAME=TYPE, such as code=STRING")
        types[name] = kind
    return types


def _ddl(schema: pa.Schema) -> str:
    """The columns as ``--schema`` takes them."""
    return ", ".join(f"{_name(name)} {kind}" for name, kind in columns_of(schema).items())


def _name(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


def _texts(given: Sequence[str] | None) -> dict[str, str]:
    properties: dict[str, str] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not (name and equals):
            shown = shown_name(pair, frozenset())
            raise InputError(f"property {shown} is not NAME=VALUE, such as lakemerge.retention.maxBytes=50GiB")
        properties[name] = value
    return properties
