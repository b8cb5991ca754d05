"""All output of commands.

For programs, ``--json`` makes of standard output one JSON document, or a JSON object a line for rows. Its values are
exact: what a terminal would obey is written as JSON's escapes.

For people there are text and tables. Names, paths and values come from strangers, so their control characters are shown
as escapes, on a terminal and in a pipe. No other module of the commands writes to a stream.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import orjson
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from lakemerge.python_values import decimal_text, python_rows
from mergers.wording import printable

__all__ = [
    "JsonLinesOption",
    "JsonOption",
    "columns",
    "document",
    "facts",
    "lines",
    "row_lines",
    "say",
    "say_lines",
    "with_base64",
]

_UNSAFE = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON may hold as it is, but a terminal must not get: compare :mod:`mergers.wording`."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def document(value: object) -> None:
    """Print one JSON document."""
    _write(value)


def lines(values: Iterable[object]) -> None:
    """Print each value as one line of JSON."""
    for value in values:
        _write(value)


def row_lines(batches: Iterable[pa.RecordBatch]) -> None:
    """Print each row as one line of JSON. Each batch is printed as soon as it is read. Columns of the same
    name get a number."""
    for batch in batches:
        lines(python_rows(batch))
        sys.stdout.flush()


def _write(value: object) -> None:
    text = orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    # Outside of its strings, JSON has none of these, and in strings this is the same value.
    sys.stdout.write(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def say(text: str, *, error: bool = False) -> None:
    """Print one line.

    :param error: print it to the error stream.
    """
    typer.echo(printable(text), err=error)


def say_lines(text: str) -> None:
    """Print text of several lines. They must be the program's own: values in it are escaped already, or can hold no
    line feed."""
    typer.echo(printable(text, lines=True))


def facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    _print(table, rows)


def columns(names: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table with a header."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(printable(name), overflow="fold")
    _print(table, rows)


def _print(table: Table, rows: Iterable[Iterable[str]]) -> None:
    for row in rows:
        table.add_row(*map(printable, row))
    # If the output is no terminal, lines are not wrapped, so that other programs can search and cut them.
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, emoji=False, width=1000)
    console.print(table)


def with_base64(value: object) -> object:
    """A value whose bytes, at any depth, are texts in base 64: as ``--json`` has them, and as keys are given."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key: with_base64(part) for key, part in value.items()}
    if isinstance(value, list):
        return [with_base64(part) for part in value]
    return tuple(map(with_base64, value)) if isinstance(value, tuple) else value


def _plain(value: Any) -> object:
    """Values without a form in JSON: bytes become base 64, decimals become text, durations become seconds."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return decimal_text(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
