"""The command that erases keys."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final

import typer

from lakemerge.cli.arguments import named_values
from lakemerge.cli.arguments import storage_options as parsed_options
from lakemerge.cli.common import PathArgument, QuietOption, StorageOption, opened, show_progress
from lakemerge.cli.output import JsonOption, document, say_lines
from lakemerge.cli.rows import FormatOption, FormatOptionOption
from lakemerge.ingest.single_file import SingleFile

__all__ = ["forget"]

_EXIT: Final = {"done": 0, "waiting": 3, "found": 4}


def forget(
    path: PathArgument,
    keys_file: Annotated[str, typer.Option("--keys", metavar="FILE", help="A data file with the key columns.")],
    storage_options: StorageOption = None,
    format: FormatOption = None,  # noqa: A002 - the option's name
    format_options: FormatOptionOption = None,
    drop_history: Annotated[
        bool, typer.Option("--drop-history", help="Give up savepoints, consumers that are behind, and kept records.")
    ] = False,
    drop_rejects: Annotated[
        bool, typer.Option("--drop-rejects", help="Also take out records that ingest jobs set aside.")
    ] = False,
    search: Annotated[
        list[str] | None, typer.Option("--search", help="Another folder to search; may be given again.")
    ] = None,
    salt: Annotated[str | None, typer.Option(help="The salt of the digest. By default a random one.")] = None,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Erase the rows of some keys, and all that the table remembers of them. Call it again until it says done.

    The history of the table ends. The exit code is 3 while something waits, and 4 if a key is left where the command
    does not change it.
    """
    show_progress(quiet=quiet)
    table = opened(path, storage_options)
    found = SingleFile.found(
        keys_file,
        format=format,
        options=named_values(format_options),
        storage_options=parsed_options(storage_options or ()),
    )
    view = table.opened.view
    frame = found.rows(view.config, table.opened.handle.merger(view), columns=list(table.key)).read_all()
    result = table.forget(
        frame.select(list(table.key)),
        drop_history=drop_history,
        drop_rejects=drop_rejects,
        search=search or (),
        salt=salt,
        storage_options=parsed_options(storage_options or ()) or None,
    )
    if json:
        told = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        document(told if salt is None else {name: value for name, value in told.items() if name != "salt"})
    else:
        say_lines(str(result))
        if salt is None:
            say_lines(f"salt: {result.salt} (keep it apart from the report, or throw it away)")
    if _EXIT[result.state]:
        raise typer.Exit(_EXIT[result.state])
