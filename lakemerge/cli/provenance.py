"""``lakemerge explain``, ``lineage``, ``record-send``, ``associate``, ``what-if``, ``verify``, ``replay`` and
``report``."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import typer

from lakemerge.cli.arguments import storage_options as parsed_options
from lakemerge.cli.common import PathArgument, StorageOption, opened
from lakemerge.cli.output import JsonLinesOption, JsonOption, document, lines, row_lines, say, say_lines
from lakemerge.cli.tables import shown_rows
from lakemerge.errors import InputError
from lakemerge.quantities import duration
from lakemerge.report import report_html
from lakemerge.table.table import LakeTable
from mergers.type_names import type_name

__all__ = ["KeyArgument", "MergerOption", "OptionsOption", "key_of", "merger_options", "register"]

KeyArgument = Annotated[
    list[str], typer.Argument(help="Each key column as NAME=VALUE, such as id=7. BINARY is in base 64.")
]
MaybeKeyArgument = Annotated[list[str] | None, typer.Argument(help="Each key column as NAME=VALUE: only that key.")]
SinceOption = Annotated[
    int | None, typer.Option(help="Only records after this version. 0: as far back as history goes.")
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="A key that this is about, such as id=7 or region=eu,id=7. May be given several times."),
]
InfoOption = Annotated[
    list[str] | None, typer.Option(help="An entry of the commit's info, as NAME=VALUE. May be given several times.")
]
MergerOption = Annotated[str | None, typer.Option(help="A merger's name; by default the table's own.")]
OptionsOption = Annotated[str | None, typer.Option(help="The merger's options as a JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (explain, lineage, record_send, associate, what_if, verify, replay, report):
        app.command(name=command.__name__.replace("_", "-"))(command)


def explain(
    path: PathArgument,
    key: KeyArgument,
    storage_options: StorageOption = None,
    since: SinceOption = None,
    json: JsonLinesOption = False,
) -> None:
    """Show every record of a key: where it came from, what it did to the row, and why."""
    table = opened(path, storage_options)
    found = table.explain(key_of(table, key), since)
    if json:
        lines(found.to_arrow().to_pylist())
    else:
        say_lines(repr(found))


def lineage(
    path: PathArgument,
    key: MaybeKeyArgument = None,
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="An earlier version.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only events of this kind, such as SEND. May be given several times.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Only events of commits that name this file: a path, its end, or a pattern.")
    ] = None,
    after: Annotated[str | None, typer.Option(help="Only events at or after this time.")] = None,
    before: Annotated[str | None, typer.Option(help="Only events before this time.")] = None,
    info: Annotated[
        str | None, typer.Option(help="Only events whose details contain this, as NAME=VALUE or text.")
    ] = None,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz.")] = False,
    json: JsonLinesOption = False,
) -> None:
    """Show how a version's rows, or one key, got from source files to base files, and where they went."""
    if dot and json:
        raise InputError("a graph cannot be printed as JSON: give --dot or --json, not both")
    table = opened(path, storage_options)
    found = table.lineage(
        version,
        key=key_of(table, key) if key else None,
        kind=kind or None,
        file=file,
        after=after,
        before=before,
        info=_info_of(info),
    )
    if json:
        lines(found.to_arrow().to_pylist())
    else:
        say_lines(found.to_dot() if dot else repr(found))


def record_send(
    path: PathArgument,
    to: Annotated[str, typer.Argument(help="Who or what got the rows: a path, a URL or a name.")],
    storage_options: StorageOption = None,
    since: Annotated[
        int | None, typer.Option(help="The changes after this version were sent. Without it, all rows.")
    ] = None,
    version: Annotated[int | None, typer.Option(help="Up to this version; by default the latest.")] = None,
    keys: KeysOption = None,
    info: InfoOption = None,
    json: JsonOption = False,
) -> None:
    """Note that rows were sent elsewhere, so that lineage shows it. This changes no row."""
    table = opened(path, storage_options)
    made = table.record_send(to, since=since, version=version, keys=_key_list(table, keys), info=_pairs(info))
    _noted(made, json=json)


def associate(
    path: PathArgument,
    uri: Annotated[str, typer.Argument(help="Its name in the other system, such as a URL.")],
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="A version whose records this is about.")] = None,
    keys: KeysOption = None,
    info: InfoOption = None,
    json: JsonOption = False,
) -> None:
    """Link a ticket, run or document elsewhere to the table, so that lineage shows it."""
    table = opened(path, storage_options)
    made = table.associate(uri, version=version, keys=_key_list(table, keys), info=_pairs(info))
    _noted(made, json=json)


def _noted(version: int, *, json: bool) -> None:
    if json:
        document({"version": version})
    else:
        say(f"noted in version {version}")


def _key_list(table: LakeTable, given: Sequence[str] | None) -> list[dict[str, Any]] | None:
    """The keys that options name: each the pairs of its columns with commas between, such as ``region=eu,id=7``."""
    return [key_of(table, one.split(",")) for one in given] if given else None


def _pairs(given: Sequence[str] | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise InputError(f"{pair!r} is not NAME=VALUE, such as ticket=4711")
        found[name] = value
    return found


def _info_of(given: str | None) -> dict[str, object] | str | None:
    """A condition on the info of events: ``NAME=VALUE``, or any text."""
    return _pairs([given]) if given is not None and given.partition("=")[0] and "=" in given else given


def what_if(
    path: PathArgument,
    storage_options: StorageOption = None,
    merger: MergerOption = None,
    options: OptionsOption = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only records after this version (0: as far back as history goes), or of this age, such as 7d."
        ),
    ] = None,
    where: Annotated[str | None, typer.Option(help="A SQL condition on the rows to show.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Show at most this many rows. --json shows all.")
    ] = 20,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="Show only rows that would not be as they are. The exit code is 1 if there are any."
        ),
    ] = False,
    json: JsonLinesOption = False,
) -> None:
    """Show what the rows would be under another merger or other options. Writes nothing."""
    table = opened(path, storage_options)
    view = table.what_if(merger, merger_options(options), None if since is None else _version_of(table, since))
    rows = view.diff(filter=where) if diff else view.to_arrow(filter=where)
    if json:
        row_lines(rows.to_batches())
    else:
        shown_rows(rows, limit=limit)
    for note in view.notes:
        say(f"note: {note}", error=True)
    if diff:
        if not json:
            say(_differing(rows, table.key))
        if rows.num_rows:
            raise typer.Exit(1)


def _version_of(table: LakeTable, since: str) -> int:
    """A version as it is written, or the last one that is so old."""
    if since.isdecimal():
        return int(since)
    before_ms = (dt.datetime.now(dt.UTC) - duration(since)).timestamp() * 1000
    return max((entry.version for entry in table.history() if entry.timestamp_ms <= before_ms), default=0)


def _differing(rows: pa.Table, key: tuple[str, ...]) -> str:
    """How many rows differ, and in which columns."""
    kinds, values = rows.column(0).to_pylist(), rows.drop_columns([rows.column_names[0]])
    if not kinds:
        return "no row would differ"
    changed, before = dict[str, int](), None
    for place, kind in enumerate(kinds):
        if kind == "+U" and before is not None:
            for name in values.column_names:
                one, other = values.column(name)[before], values.column(name)[place]
                if name not in key and one != other:
                    changed[name] = changed.get(name, 0) + 1
        before = place
    parts = [
        f"{kinds.count('+U')} would differ"
        + (f" ({', '.join(f'{n} in {c}' for n, c in changed.items())})" * bool(changed))
    ]
    parts += [f"{kinds.count('+I')} would be new", f"{kinds.count('-D')} would be gone"]
    told = [part for part in parts if not part.startswith("0 ")]
    return f"of the rows, {', '.join(told)}; `lakemerge explain` shows the records of a key"


def verify(
    path: PathArgument,
    storage_options: StorageOption = None,
    merger: MergerOption = None,
    options: OptionsOption = None,
    sample_keys: Annotated[int, typer.Option(help="Take the records of so many keys, up to 64 of each.")] = 10_000,
    since: Annotated[
        str, typer.Option(help="Only records after this version, or of this age, such as 7d. 0: all that are known.")
    ] = "0",
    rounds: Annotated[int, typer.Option(help="How often the records are delivered in each way.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides the sample and the deliveries.")] = 0,
    require: Annotated[
        list[str] | None,
        typer.Option(help="A law that has to hold, declared or not, such as commutative. May be given several times."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Deliver a table's own records again: compacted on the way, combined, twice, late. The exit code is 1 if rows
    differ that the merger says cannot. Writes nothing."""
    table = opened(path, storage_options)
    found = table.verify_merger(
        merger,
        merger_options(options),
        sample_keys=sample_keys,
        since=_version_of(table, since),
        rounds=rounds,
        seed=seed,
        require=require or (),
    )
    if json:
        document({**dataclasses.asdict(found), "sound": found.is_sound})
    else:
        say_lines(str(found))
    if not found.is_sound:
        raise typer.Exit(1)


def replay(
    path: PathArgument,
    into: Annotated[str, typer.Argument(help="Folder or URL of the other table; it is created if there is none.")],
    storage_options: StorageOption = None,
    merger: MergerOption = None,
    options: OptionsOption = None,
    since: SinceOption = None,
    until: Annotated[int | None, typer.Option(help="The last version to replay.")] = None,
    where: Annotated[str | None, typer.Option(help="A SQL condition on each record's own values.")] = None,
    json: JsonOption = False,
) -> None:
    """Commit a table's records again, into another table. If it was interrupted, call it again."""
    table = opened(path, storage_options)
    given = parsed_options(storage_options or ())
    result = table.replay(
        into,
        merger=merger,
        options=merger_options(options),
        since=since,
        until=until,
        where=where,
        storage_options=given,
    )
    if json:
        document(result)
        return
    for name, value in result.report():
        say(f"{name:<15} {value}")


def report(
    path: PathArgument,
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.")],
    storage_options: StorageOption = None,
    explained: Annotated[
        list[str] | None,
        typer.Option("--key", help="Also explain this key, as NAME=VALUE; give it once for each key column."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a page about a table that works offline: state, plots, compactions, ingest, maintenance."""
    table = opened(path, storage_options)
    page = report_html(table, key=key_of(table, explained) if explained else None)
    out.write_text(page, encoding="utf-8")
    if json:
        document({"file": str(out), "characters": len(page)})
    else:
        say(f"{out}: {len(page):,} characters")


def key_of(table: LakeTable, given: Sequence[str]) -> dict[str, Any]:
    """The key that arguments name, in the types of the table. Raises :class:`InputError`."""
    key: dict[str, Any] = {}
    known = {name.lower(): name for name in table.schema.names}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise InputError(f"{pair!r} is not NAME=VALUE, such as {table.key[0]}=7")
        column = known.get(name.lower())
        if column is None:
            raise InputError(f"the table has no column {name!r}; its key is {', '.join(table.key)}")
        kind = table.schema.field(column).type
        is_bytes = pa.types.is_binary(kind)
        try:
            # Bytes are in base 64, as commands print them.
            key[column] = (
                base64.b64decode(value, validate=True) if is_bytes else pa.array([value]).cast(kind)[0].as_py()
            )
        except (binascii.Error, ValueError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            form = ", in base 64" if is_bytes else ""
            raise InputError(
                f"{value!r} is not a value of key column {column!r}, which is {type_name(kind)}{form}"
            ) from error
    return key


def merger_options(text: str | None) -> dict[str, object] | None:
    """The options that were typed as JSON. Raises :class:`InputError`."""
    if text is None:
        return None
    try:
        options = orjson.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise InputError(f"the options of a merger are a JSON object, not {text!r}")
    return options
