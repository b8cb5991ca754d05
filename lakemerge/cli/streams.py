"""The commands of the change feed: ``changes``, and ``consumers``."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from lakemerge.cli.arguments import duration
from lakemerge.cli.common import FailedKeysOption, PathArgument, StorageOption, on_failed, opened
from lakemerge.cli.output import JsonLinesOption, JsonOption, document, lines, row_lines, say

__all__ = ["changes", "consumers_app"]

consumers_app = typer.Typer(
    help="Manage followers of a table. Vacuum keeps what they have not read yet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

NameArgument = Annotated[str, typer.Argument(help="The consumer's name.")]


def changes(
    path: PathArgument,
    storage_options: StorageOption = None,
    since: Annotated[
        int | None, typer.Option(help="Start after this version. Without it, the present rows come first.")
    ] = None,
    until: Annotated[int | None, typer.Option(help="The last version to show.")] = None,
    consumer: Annotated[str | None, typer.Option(help="Start at this consumer's position, and advance it.")] = None,
    net: Annotated[bool, typer.Option("--net", help="Show each key once, with its total change.")] = False,
    failed_keys: FailedKeysOption = "raise",
    poll: Annotated[
        str | None, typer.Option(help="Repeat until stopped, with this pause in between, such as 1s.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Has no effect: the output is always one JSON object per line.")
    ] = False,
) -> None:
    """Print what commits changed, one JSON object per line."""
    table = opened(path, storage_options)
    if net:
        if since is None or consumer is not None or poll is not None:
            raise typer.BadParameter("--net needs --since, and goes with neither --consumer nor --poll")
        row_lines(table.changes(since, until, net=True, failed_keys=on_failed(failed_keys)))
        return
    row_lines(table.follow(consumer, poll, since=since, until=until, failed_keys=on_failed(failed_keys)))


@consumers_app.command("list")
def list_consumers(path: PathArgument, storage_options: StorageOption = None, json: JsonLinesOption = False) -> None:
    """Show where each consumer stands, and how far it is behind."""
    found = opened(path, storage_options).consumers.list()
    if json:
        lines(found)
        return
    for consumer in found:
        say(
            f"{consumer.name}: has read version {consumer.version}; {consumer.lag_versions} versions, "
            f"{consumer.lag_rows:,} records and {consumer.lag} behind; expires after {consumer.expires_after}"
        )


@consumers_app.command()
def register(
    path: PathArgument,
    name: NameArgument,
    storage_options: StorageOption = None,
    version: Annotated[int | None, typer.Option(help="The version that it has read; by default the latest.")] = None,
    present_rows: Annotated[
        bool, typer.Option("--present-rows", help="The consumer first reads the rows of the version.")
    ] = False,
    expires_after: Annotated[str, typer.Option(help="Vacuum waits at most this long for it, such as 7d.")] = "7d",
    json: JsonOption = False,
) -> None:
    """Make a consumer."""
    consumers = opened(path, storage_options).consumers
    age = duration(expires_after)
    made = consumers.register(name, version=version, present_rows=present_rows, expires_after=age)
    if json:
        document(made)
    else:
        say(f"{made.name} begins after version {made.version}")


@consumers_app.command()
def advance(
    path: PathArgument,
    name: NameArgument,
    version: Annotated[int, typer.Argument(help="The version up to which it has read everything.")],
    storage_options: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Say that a consumer has read everything up to a version."""
    opened(path, storage_options).consumers.advance(name, version)
    if json:
        document({"name": name, "version": version})


@consumers_app.command()
def expire(
    path: PathArgument,
    storage_options: StorageOption = None,
    older_than: Annotated[
        str | None, typer.Option(help="Use this age for all consumers instead of each consumer's own.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Remove consumers that have not advanced for too long."""
    age: dt.timedelta | None = None if older_than is None else duration(older_than)
    gone = opened(path, storage_options).consumers.expire(older_than=age)
    if json:
        document({"expired": gone})
    else:
        say(", ".join(gone) or "no consumer is old enough")


@consumers_app.command()
def drop(
    path: PathArgument, name: NameArgument, storage_options: StorageOption = None, json: JsonOption = False
) -> None:
    """Remove a consumer."""
    opened(path, storage_options).consumers.drop(name)
    if json:
        document({"dropped": name})
