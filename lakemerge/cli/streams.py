"""The commands of the change feed: ``changes``, and ``consumers``."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import orjson
import pyarrow as pa
import typer

from lakemerge.cli.arguments import duration
from lakemerge.cli.common import PathArgument, StorageOption, opened

__all__ = ["changes", "consumers_app"]

consumers_app = typer.Typer(
    help="Followers of a table that hold back vacuum for what they have yet to read.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

NameArgument = Annotated[str, typer.Argument(help="Of the consumer.")]


def changes(
    path: PathArgument,
    storage_options: StorageOption = None,
    since: Annotated[
        int | None, typer.Option(help="The version after which to begin; without it the present rows come first.")
    ] = None,
    until: Annotated[int | None, typer.Option(help="The last version to tell of.")] = None,
    consumer: Annotated[str | None, typer.Option(help="Go on from a consumer's position, and advance it.")] = None,
    net: Annotated[bool, typer.Option("--net", help="Each key once: how it differs in the end.")] = False,
    poll: Annotated[str | None, typer.Option(help="Go on for ever, with so long a wait, such as 1s.")] = None,
) -> None:
    """Print what commits changed, a JSON object a line."""
    table = opened(path, storage_options)
    if net:
        if since is None or consumer is not None or poll is not None:
            raise typer.BadParameter("--net needs --since, and goes with neither --consumer nor --poll")
        _print(table.changes(since, until, net=True))
        return
    _print(table.follow(consumer, poll, since=since, until=until))


@consumers_app.command("list")
def list_consumers(path: PathArgument, storage_options: StorageOption = None) -> None:
    """Show where each consumer stands, and how far it is behind."""
    for consumer in opened(path, storage_options).consumers.list():
        typer.echo(
            f"{consumer.name}: has read version {consumer.version}; {consumer.lag_versions} versions, "
            f"{consumer.lag_rows:,} records and {consumer.lag} behind; expires after {consumer.expires_after}"
        )


@consumers_app.command()
def register(
    path: PathArgument,
    name: NameArgument,
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="What it has read; by default the latest version.")] = None,
    present_rows: Annotated[bool, typer.Option("--present-rows", help="It reads the version's rows first.")] = False,
    expires_after: Annotated[str, typer.Option(help="Vacuum waits so long for it at most, such as 7d.")] = "7d",
) -> None:
    """Make a consumer."""
    consumers = opened(path, storage_options).consumers
    age = duration(expires_after)
    made = consumers.register(name, version=version, present_rows=present_rows, expires_after=age)
    typer.echo(f"{made.name} begins after version {made.version}")


@consumers_app.command()
def advance(path: PathArgument, name: NameArgument, version: int, storage_options: StorageOption = None) -> None:
    """Say that a consumer has read everything up to a version."""
    opened(path, storage_options).consumers.advance(name, version)


@consumers_app.command()
def expire(
    path: PathArgument,
    storage_options: StorageOption = None,
    older_than: Annotated[str | None, typer.Option(help="Instead of what each was registered with.")] = None,
) -> None:
    """Take away consumers that have not advanced for too long."""
    age: dt.timedelta | None = None if older_than is None else duration(older_than)
    typer.echo(", ".join(opened(path, storage_options).consumers.expire(older_than=age)) or "none is old enough")


@consumers_app.command()
def drop(path: PathArgument, name: NameArgument, storage_options: StorageOption = None) -> None:
    """Take a consumer away."""
    opened(path, storage_options).consumers.drop(name)


def _print(batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        for row in batch.to_pylist():
            sys.stdout.write(orjson.dumps(row, default=_plain).decode() + "\n")
        sys.stdout.flush()


def _plain(value: Any) -> object:
    """A JSON form for values of types that JSON lacks."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | dt.timedelta):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
