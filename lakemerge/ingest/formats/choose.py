"""Makes a format from the name and options that a caller gives."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import InputError
from lakemerge.ingest.formats.avro_files import AvroRecords
from lakemerge.ingest.formats.base import FileColumns, Format
from lakemerge.ingest.formats.compressed import CODECS
from lakemerge.ingest.formats.delimited import Delimited
from lakemerge.ingest.formats.json_lines import JsonLines, Unwrap
from lakemerge.ingest.formats.orc_files import OrcRows
from lakemerge.ingest.formats.parquet_files import ParquetRows
from lakemerge.ingest.formats.text_lines import TextLines
from lakemerge.ingest.formats.times import TimeFormats, time_format_problem

__all__ = ["ENVELOPE_OPTIONS", "FILE_OPTIONS", "FORMATS", "chosen_format", "file_columns"]

ENVELOPE_OPTIONS: Final = frozenset({"timestamp_unit", "decimals", "ordering"})
"""Options of the envelope; :class:`lakemerge.ingest.envelopes.Debezium` checks them."""

FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {
        "header": "flag",
        "delimiter": "character",
        "quote": "character or None",
        "escape": "character or None",
        "null": "texts",
        "encoding": "encoding",
        "multiline": "flag",
        "comment": "character or None",
        "skip_lines": "count",
        "date_format": "dates",
        "timestamp_format": "times",
        "compression": "codec",
    },
    "json": {
        "multiline": "flag",
        "date_format": "dates",
        "timestamp_format": "times",
        "encoding": "encoding",
        "compression": "codec",
    },
    "text": {
        "column": "name",
        "path_column": "name",
        "offset_column": "name",
        "encoding": "encoding",
        "compression": "codec",
    },
    "parquet": {"timezone": "zone"},
    "orc": {"timezone": "zone"},
    "avro": {},
}
"""The formats, and the kind of each of their options."""

FILE_OPTIONS: Final = ("path_column", "time_column")
"""Options of every format: columns that get something of the file."""


def file_columns(name: str, options: Mapping[str, Any]) -> FileColumns:
    """The columns that get something of the file, other than those that the format fills itself. Call it after
    :func:`chosen_format`."""
    given = {key: options.get(key) for key in FILE_OPTIONS if key not in FORMATS[name]}
    return FileColumns(given.get("path_column"), given.get("time_column"))


def chosen_format(
    name: str, options: Mapping[str, Any], *, columns: Sequence[str], unwrap: Unwrap | None = None
) -> Format:
    """The format. Raises an :class:`InputError` that lists everything wrong with the options.

    :param columns: the columns of CSV without a header.
    :param unwrap: takes a record out of its envelope.
    """
    if name not in FORMATS:
        raise InputError(f"format must be one of {', '.join(sorted(FORMATS))}, not {name!r}")
    known = FORMATS[name]
    beside = {key: "name" for key in FILE_OPTIONS if key not in known}
    given = {key: value for key, value in options.items() if unwrap is None or key not in ENVELOPE_OPTIONS}
    problems = [
        f"{key!r} is not an option of {name}; it has {', '.join(known) or 'none'} besides {', '.join(beside)}"
        for key in given
        if key not in known and key not in beside
    ]
    for key in given.keys() & beside.keys():
        _checked(key, given[key], beside[key], problems)
    values = {key: _checked(key, value, known[key], problems) for key, value in given.items() if key in known}
    if problems:
        raise InputError(f"the options of format {name!r} cannot be used: " + "; ".join(problems))
    if name in ("csv", "json"):
        values["times"] = TimeFormats.of(values.pop("date_format", None), values.pop("timestamp_format", None))
    match name:
        case "csv":
            made = Delimited(names=() if values.get("header", True) else tuple(columns), **values)
            if made.delimiter in (made.quote, made.escape):
                raise InputError(
                    "the options of format 'csv' cannot be used: 'delimiter' must differ from 'quote' and 'escape', "
                    f"and they are {made.delimiter!r}, {made.quote!r} and {made.escape!r}"
                )
            return made
        case "json":
            return JsonLines(unwrap, **values)
        case "text":
            return TextLines(**values)
        case "parquet":
            return ParquetRows(**values)
        case "orc":
            return OrcRows(**values)
        case _:
            return AvroRecords(unwrap)


def _checked(key: str, value: Any, kind: str, problems: list[str]) -> Any:
    match kind:
        case "flag" if not isinstance(value, bool):
            problems.append(f"{key!r} must be True or False, not {value!r}")
        case "character" if not _is_character(value):
            problems.append(f"{key!r} must be one ASCII character, not {value!r}")
        case "character or None" if value is not None and not _is_character(value):
            problems.append(f"{key!r} must be one ASCII character or None, not {value!r}")
        case "name" if not isinstance(value, str) or not value:
            problems.append(f"{key!r} must be the name of a column, not {value!r}")
        case "zone" if not _is_zone(value):
            problems.append(f"{key!r} must be the name of a time zone, such as 'Europe/Oslo', not {value!r}")
        case "codec" if value not in CODECS:
            problems.append(f"{key!r} must be one of {', '.join(CODECS)}, not {value!r}")
        case "count" if type(value) is not int or value < 0:
            problems.append(f"{key!r} must be a number from 0 on, not {value!r}")
        case "dates" | "times":
            problems += _wrong_times(key, value, dates=kind == "dates")
        case "encoding":
            return _encoding(key, value, problems)
        case "texts":
            return _texts(key, value, problems)
    return value


def _texts(key: str, value: Any, problems: list[str]) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        problems.append(f"{key!r} must be a text or a list of texts, not {value!r}")
        return ("",)
    return tuple(texts)


def _wrong_times(key: str, value: Any, *, dates: bool) -> Iterator[str]:
    """What is wrong with a format, or with one of those that a mapping has for columns."""
    given = value if isinstance(value, Mapping) else {None: value}
    for column, text in given.items():
        problem = time_format_problem(text, dates=dates)
        if column is not None and not isinstance(column, str):
            problem = f"{column!r} is not the name of a column"
        if problem is not None:
            yield f"{key!r}{'' if column is None else f' of column {column!r}'}: {problem}"


def _encoding(key: str, value: Any, problems: list[str]) -> str:
    try:
        name = codecs.lookup(value).name
        "\n".encode(name).decode(name)  # some codecs are for bytes alone
    except (LookupError, TypeError, UnicodeError):
        problems.append(f"{key!r} {value!r} is not known")
        return "utf-8"
    return "utf-8" if name == "utf-8-sig" else name


def _is_zone(value: object) -> bool:
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("us")), value)
    except (pa.ArrowException, TypeError, ValueError):
        return False
    return bool(value)


def _is_character(value: object) -> bool:
    return isinstance(value, str) and len(value) == 1 and value.isascii() and value not in "\r\n"
