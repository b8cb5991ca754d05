"""One file as a frame for an upsert, or as the schema of a new table: the readers of ingest, without a job.

A job notes in the table what it took up, and takes up each record once. This reads a file as often as it is told to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.json as pjson

from lakemerge.errors import InputError, SchemaError
from lakemerge.format.config import TableConfig
from lakemerge.ingest.formats.base import (
    Format,
    Origin,
    Peek,
    Piece,
    Reject,
    WindowSchema,
    with_folders,
)
from lakemerge.ingest.formats.choose import chosen_format, file_columns
from lakemerge.ingest.formats.compressed import ENDINGS
from lakemerge.ingest.formats.delimited import Delimited
from lakemerge.ingest.formats.json_lines import JsonLines
from lakemerge.ingest.formats.record_rows import MAX_VALUE_LEVELS, add_field, nests_deeper
from lakemerge.ingest.formats.text_lines import TextLines
from lakemerge.ingest.guessing import Guess, equal_keys, guessed_texts, settled, with_types
from lakemerge.ingest.places import Places, whole_path
from lakemerge.ingest.reading import Reading, Rejects, readable, refused
from lakemerge.ingest.source import SourceFile
from lakemerge.ingest.window_columns import ColumnOptions
from lakemerge.options import Settings
from lakemerge.schema.limits import leaf_count
from lakemerge.schema.schema import to_arrow_schema
from mergers import Merger
from mergers.wording import argument

__all__ = ["SingleFile"]

_ENDINGS: Final = {
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "pq": "parquet",
    "avro": "avro",
    "orc": "orc",
}
_COMPRESSED: Final = frozenset(ending.removeprefix(".") for ending in ENDINGS)
_LOOKED_AT: Final = 16 << 20
"""Bytes of a text file that its types are guessed from."""


@dataclass(frozen=True, slots=True)
class SingleFile:
    """A data file, found and looked at. Made by :meth:`found`."""

    file: SourceFile
    format_name: str
    options: Mapping[str, Any]
    places: Places = field(repr=False)

    @staticmethod
    def found(
        location: str,
        *,
        format: str | None = None,  # noqa: A002 - as for Files
        options: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, object] | None = None,
    ) -> SingleFile:
        """:param location: a local path or an ``s3://`` URL.
        :param format: by default the one that the name ends with, such as ``orders.csv.gz``.
        :param options: of the format, as for ``Files`` (docs/guides/ingest.md).
        :raises lakemerge.InputError: there is no such file, or no telling what it holds.
        """
        path = whole_path(location)
        places = Places(storage_options or {})
        file = places.of(path).stat(path)
        if file is None:
            raise InputError(f"there is no file {path}; to load a folder, use table.ingest (lakemerge ingest)")
        ending = _ending(path)
        chosen = format or _ENDINGS.get(ending)
        if chosen is None:
            known = ", ".join(f".{name}" for name in _ENDINGS)
            raise InputError(
                f"{path} does not say what it holds: its name ends with none of {known}; name its format "
                f"({argument('format', 'csv')})"
            )
        given = dict(options or {})
        return SingleFile(file, chosen, {"delimiter": "\t"} | given if ending == "tsv" else given, places)

    def schema(self) -> pa.Schema:
        """See :meth:`guess`."""
        return self.guess().schema

    def guess(self, *, key: Sequence[str] = (), types: Mapping[str, str] | None = None) -> Guess:
        """The columns of a table that can hold the file. Types of CSV and JSON are guessed from its beginning, so that
        no value is lost; times become TIMESTAMP, as they are read: a text without a zone is in UTC.

        :param key: columns that will be the key. If keys become equal in their types, a warning says it.
        :param types: column -> DDL of its type, for columns whose type is known.
        :raises lakemerge.SchemaError: a table cannot have such columns, or the file has no such column.
        """
        chosen = self._format(())
        if isinstance(chosen, Delimited):
            guessed = guessed_texts(self._texts(chosen))
        else:
            with self._open(chosen) as data:
                guessed = settled(self._typed(data, chosen), is_guessed=isinstance(chosen, JsonLines))
        guess = with_types(replace(guessed, schema=to_arrow_schema(guessed.schema)), types or {})
        return replace(guess, warnings=self._warnings(guess.schema, key))

    def _typed(self, data: pa.NativeFile, chosen: Format) -> pa.Schema:
        """The columns as the file or Arrow types them."""
        if isinstance(chosen, JsonLines):
            return self._guessed_json(data, chosen)
        peek = chosen.peek(data, self.file)
        return pa.schema(list(zip(peek.names, peek.types or (), strict=True)))

    def _warnings(self, schema: pa.Schema, key: Sequence[str]) -> tuple[str, ...]:
        """What is to be said of keys that are text in the file."""
        lower = {name.lower() for name in key}
        names = [name for name in schema.names if name.lower() in lower]
        chosen = self._format(tuple(names))
        is_nested = any(pa.types.is_nested(schema.field(name).type) for name in names)
        if not names or is_nested or not isinstance(chosen, Delimited | JsonLines):
            return ()
        told = equal_keys(self._texts(chosen, names), schema)
        return () if told is None else (told,)

    def _texts(self, chosen: Delimited | JsonLines, names: Sequence[str] | None = None) -> pa.Table:
        """The beginning of the file as the ingest reads it, with columns of texts; by default all."""
        peek = None
        if isinstance(chosen, Delimited):
            if not chosen.header:
                raise InputError(f"{self.file.path} has no header: say what its columns are ({argument('schema')})")
            with self._open(chosen) as data:
                peek = chosen.peek(data, self.file)
        given = names or (peek.names if peek else ())
        schema = to_arrow_schema(pa.schema([(name, pa.string()) for name in given]))
        frame, rows, size = WindowSchema.of(schema, ignores=True), [schema.empty_table()], 0
        unread: list[tuple[Origin, str]] = []
        with self._open(chosen) as data:
            for parsed in chosen.parsed(data, self._piece(peek), frame):
                unread += parsed.unread[:1]
                rows.append(pa.table(parsed.rows))
                size += parsed.rows.nbytes
                if size > _LOOKED_AT:
                    break
        if unread and not size:
            raise refused(Reject(self.file.path, *unread[0]), 0)
        return pa.concat_tables(rows)

    @contextmanager
    def _open(self, chosen: Format) -> Iterator[pa.NativeFile]:
        with self.places.of(self.file.path).open(self.file) as data, readable(self.file.path, chosen.name):
            yield data

    def rows(
        self,
        config: TableConfig,
        merger: Merger,
        *,
        columns: Sequence[str] | None = None,
        kind_column: str | None = None,
        merge_schema: bool = False,
        max_columns: int = Settings().max_columns,
    ) -> pa.RecordBatchReader:
        """The records as a frame for an upsert into the table. It has the columns of the file. Records of JSON carry
        what they name; the rest is unset (:mod:`lakemerge.write.carried`). The first record that does not fit is an
        error, which names its place.

        :param columns: the columns to take, the key among them; by default all. What a record of JSON lacks of them is
            null.
        :param merge_schema: whether columns that the table lacks are taken, too.
        :param max_columns: with more columns of Parquet than this the table does not grow.
        :raises lakemerge.FrameError: the file does not fit the table.
        """
        chosen = self._format(columns or config.schema.names)
        peek, new = None, dict[str, pa.DataType]()
        if chosen.describes_itself:
            with self._open(chosen) as data:
                peek = with_folders(chosen.peek(data, self.file), self.file.path)
        if isinstance(chosen, JsonLines) and merge_schema:
            found = self._new_fields(chosen, config, max_columns)
            new = {name: kind for name, kind in found.items() if name != kind_column}
        shape = ColumnOptions(
            chosen,
            None if columns is None else tuple(columns),
            kind_column,
            merge_schema=merge_schema,
            max_columns=max_columns,
            fixed=chosen.columns if isinstance(chosen, TextLines) else None,
            of_file=file_columns(self.format_name, self.options),
        )
        frame = shape.frame(config, peek, new)
        if isinstance(chosen, JsonLines) and frame.parse.grows:  # what is new is known
            frame = replace(frame, parse=replace(frame.parse, room=0))
        reading = Reading.of(config, merger, self.places, chosen, frame, 0)
        return pa.RecordBatchReader.from_batches(frame.schema, reading.rows(self._piece(peek), Rejects(0, [])))

    def _format(self, columns: Sequence[str]) -> Format:
        return chosen_format(self.format_name, self.options, columns=columns)

    def _piece(self, peek: Peek | None) -> Piece:
        return Piece(self.file, 0, 1, 0, self.file.size, peek)

    def _new_fields(self, chosen: JsonLines, config: TableConfig, max_columns: int) -> dict[str, pa.DataType]:
        """The fields that the table lacks, with the types of their values."""
        new: dict[str, pa.DataType] = {}
        frame = WindowSchema.of(config.schema, room=max(0, max_columns - leaf_count(config.schema)))
        with self.places.of(self.file.path).open(self.file) as data, readable(self.file.path, chosen.name):
            for parsed in chosen.parsed(data, self._piece(None), frame):
                bad = [*parsed.unread, *((parsed.origin(row), parsed.problems[row]) for row in sorted(parsed.problems))]
                if bad:
                    raise refused(Reject(self.file.path, *bad[0]), 0)
                for name, kind in parsed.new.items():
                    add_field(new, name, kind)
        return new

    def _guessed_json(self, data: pa.NativeFile, chosen: JsonLines) -> pa.Schema:
        """Raises :class:`SchemaError` for values beyond the limit of records, because Arrow's guess of types ends the
        process if they nest some thousand levels deep."""
        seen: list[bytes] = []
        size = 0
        for lines in chosen.records(data, self.file.path):
            for line in lines:
                if line.count(b"[") + line.count(b"{") > MAX_VALUE_LEVELS and _is_too_deep(line):
                    raise SchemaError(
                        f"{self.file.path} has a record that nests more than {MAX_VALUE_LEVELS} levels deep: leave it "
                        "out, or name the columns of the table"
                    )
                seen.append(line)
                size += len(line) + 1
            if size > _LOOKED_AT:
                break
        records = pa.BufferReader(b"\n".join(seen))
        return pjson.read_json(
            records,
            read_options=pjson.ReadOptions(use_threads=False, block_size=size + 1),
            parse_options=pjson.ParseOptions(newlines_in_values=chosen.multiline),
        ).schema


def _is_too_deep(line: bytes) -> bool:
    try:
        return nests_deeper(orjson.loads(line), MAX_VALUE_LEVELS)
    except ValueError:
        return True  # orjson reads no value that nests a thousand levels


def _ending(path: str) -> str:
    parts = path.rpartition("/")[2].lower().split(".")
    while len(parts) > 1 and parts[-1] in _COMPRESSED:
        parts.pop()
    return parts[-1] if len(parts) > 1 else ""
