"""Results for programs: ``--json`` makes of standard output one JSON document, or a JSON object a line for rows."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import orjson
import pyarrow as pa
import typer

__all__ = ["JsonLinesOption", "JsonOption", "document", "lines", "row_lines"]

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
    """Print each row as one line of JSON. Each batch is printed as soon as it is read."""
    for batch in batches:
        lines(batch.to_pylist())
        sys.stdout.flush()


def _write(value: object) -> None:
    sys.stdout.write(orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode() + "\n")


def _plain(value: Any) -> object:
    """Values without a form in JSON: bytes become base 64, decimals become text, durations become seconds."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
