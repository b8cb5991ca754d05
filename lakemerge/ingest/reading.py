"""Reads pieces of files as rows that can be upserted, and sets bad records aside with their reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FrameError, InputError, LakeMergeError, RetryError
from lakemerge.format.config import TableConfig
from lakemerge.ingest.casting import Problems, texts_fitted
from lakemerge.ingest.envelopes import dms_kinds
from lakemerge.ingest.formats.base import Format, Parsed, Piece, Reject, folder_values
from lakemerge.ingest.formats.record_rows import add_field
from lakemerge.ingest.places import Places
from lakemerge.ingest.source import FileUnreadableError
from lakemerge.ingest.window_columns import WindowFrame
from lakemerge.write.carried import CARRIED, MOST_SETS, Sets, bits_of
from lakemerge.write.frame import KIND_WORDS
from mergers import Merger, RowKind
from mergers.contract import Bools
from mergers.interrupts import is_foreign, is_interrupt
from mergers.wording import argument

__all__ = ["BadRecordError", "NewFieldsError", "Reading", "Rejects", "readable"]

_KINDS: Final = {
    name: kind
    for names in ([kind.symbol for kind in RowKind], KIND_WORDS)
    for name, kind in zip(names, RowKind, strict=True)
}
_UPSERTS: Final = [name for name, kind in _KINDS.items() if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER)]
_DELETES: Final = [name for name, kind in _KINDS.items() if kind is RowKind.DELETE]
_MAX_TEXT: Final = 200
_ROW: Final = re.compile(r",? in row \d+")
"""The number of a row of one, in the errors of frames."""
_READERS: Final = frozenset({"fastavro", "_lzma", "binascii", "decimal"})
"""Modules beside those of :mod:`mergers.interrupts` whose errors tell of bytes that cannot be read."""
_CLIENTS: Final = frozenset({"botocore", "aiobotocore", "aiohttp", "urllib3", "fsspec", "s3fs", "socket", "ssl"})
"""Modules whose errors tell that a store could not be reached."""


class NewFieldsError(RetryError):
    """Records have fields that the frame lacks and may get. The caller finds all of them, and then begins again."""

    code = "new-fields"


class BadRecordError(FrameError):
    """A record of a file cannot be taken up, and no more records may be set aside."""

    code = "bad-record"


@dataclass(slots=True)
class Rejects:
    """The records that one task sets aside.

    :param limit: how many records may be set aside; 0: the first one is an error, ``None``: any number.
    """

    limit: int | None
    found: list[Reject]

    def add(self, reject: Reject, line_of: Callable[[int], int | None]) -> None:
        """Raises :class:`BadRecordError` beyond the limit.

        :param line_of: gives the number of the line that holds a byte of the file.
        """
        self.found.append(reject)
        if self.limit is not None and len(self.found) > self.limit:
            offset = reject.origin.offset
            raise refused(reject, self.limit, line=None if offset is None else line_of(offset))


def refused(reject: Reject, limit: int, *, line: int | None = None) -> BadRecordError:
    origin = reject.origin
    place = f"byte {origin.offset}" if origin.offset is not None else f"record {origin.row}"
    reason = reason_of(reject) if line is None else f"{reason_of(reject)} (line {line})"
    text = origin.text if len(origin.text) <= _MAX_TEXT else f"{origin.text[:_MAX_TEXT]}..."
    many = f"more than {limit} bad records; the last: " if limit else ""
    return BadRecordError(
        f"{many}{reject.path}, {place}: {reason}: {text!r}. Correct the file, or let ingest set such "
        f"records aside ({argument('bad_records', repr('quarantine'))}, {argument('max_bad_records', '...')}), and "
        "retry",
        path=reject.path,
        offset=origin.offset,
    )


def reason_of(reject: Reject) -> str:
    return reject.reason.rstrip(".")


@dataclass(frozen=True, slots=True)
class Reading:
    """How a window's pieces are read. Picklable."""

    places: Places
    format: Format
    frame: WindowFrame
    key: tuple[str, ...]
    required: tuple[str, ...]
    """Columns other than the key that may not be null, except in deletes."""
    marks: Callable[[pa.RecordBatch], Bools | None]
    """Which upserts the merger takes for deletes; ``None`` if none is (:meth:`mergers.Merger.marks`)."""
    ordering: tuple[str, ...]
    """The ordering columns, if they order records; else they are columns like others."""
    limit: int | None
    """How many records of a window may be set aside; ``None``: any number."""
    check: Callable[[pa.RecordBatch], object] | None = None
    """Raises an :class:`InputError` for rows that the table refuses."""

    @staticmethod
    def of(
        config: TableConfig,
        merger: Merger,
        places: Places,
        file_format: Format,
        frame: WindowFrame,
        limit: int | None,
    ) -> Reading:
        required = [column.name for column in config.schema if not column.nullable and column.name not in config.key]
        marks = partial(merger.marks, config.shape)
        ordering = config.ordering if merger.traits(config.shape).uses_ordering else ()
        return Reading(places, file_format, frame, config.key, tuple(required), marks, ordering, limit)

    def rows(self, piece: Piece, rejects: Rejects) -> Iterator[pa.RecordBatch]:
        """The records of a piece as batches of :attr:`WindowFrame.schema`, in their order.

        Raises the errors of :meth:`lakemerge.ingest.source.Source.open`, :class:`FileUnreadableError` and
        :class:`BadRecordError`.
        """
        path = piece.file.path
        folders = self._folder_values(piece.landed or path)
        with self.places.of(path).open(piece.file) as data, readable(path, self.format.name):

            def line_of(offset: int) -> int | None:
                data.seek(0)
                return self.format.line_of(data, path, offset)

            sets, optional = set[frozenset[str]](), self._optional
            for parsed in self.format.parsed(data, piece, self.frame.parse):
                for origin, reason in parsed.unread:
                    rejects.add(Reject(path, origin, reason), line_of)
                if parsed.new:
                    raise NewFieldsError(f"{path} has fields that the table lacks: {', '.join(parsed.new)}")
                if parsed.named is not None:
                    sets.update(names & optional for names in parsed.named.columns)
                    if len(sets) > MOST_SETS:
                        raise FileUnreadableError(_too_many_sets(path), path=path)
                rows = self._good(parsed, piece, rejects, folders, line_of)
                if rows.num_rows:
                    yield rows

    def new_fields(self, piece: Piece) -> dict[str, pa.DataType]:
        """The fields of a piece that the frame lacks, and the types of their values."""
        found: dict[str, pa.DataType] = {}
        path = piece.file.path
        with self.places.of(path).open(piece.file) as data, readable(path, self.format.name):
            for parsed in self.format.parsed(data, piece, self.frame.parse):
                for name, kind in parsed.new.items():
                    add_field(found, name, kind)
        return found

    def _folder_values(self, path: str) -> dict[str, pa.Scalar]:
        """The values of columns that the partition folders of a path have."""
        given = folder_values(path)
        found: dict[str, pa.Scalar] = {}
        for name in self.frame.folders:
            text = given.get(name.lower())
            if text is not None:
                column, problems = texts_fitted(pa.array([text]), self.frame.parse.schema.field(name).type)
                if problems:
                    reason = f"its folder {name}={text} has no value for column {name!r}: {problems[0]}"
                    raise FileUnreadableError(f"{path} cannot be loaded: {reason}", path=path)
                found[name] = column[0]
        return found

    def _good(
        self,
        parsed: Parsed,
        piece: Piece,
        rejects: Rejects,
        folders: Mapping[str, pa.Scalar],
        line_of: Callable[[int], int | None],
    ) -> pa.RecordBatch:
        path = piece.file.path
        problems: Problems = dict(parsed.problems)
        rows = self._with_kind(self._with_file(_filled(parsed.rows, folders), piece), problems)
        if self.frame.of_file.names:
            rows = rows.select(self.frame.names)
        if self.frame.parse.differs:
            rows = self._with_carried(rows, parsed.named, folders)
        self._judge(rows, problems)
        if self.check is not None:
            places = [place for place in range(rows.num_rows) if place not in problems]
            for row, reason in _refused_by(self.check, rows.take(pa.array(places, pa.int64()))):
                problems[places[row]] = reason
        if not problems:
            return rows
        keep = np.ones(rows.num_rows, np.bool_)
        last = None
        for place in sorted(problems):
            keep[place] = False
            origin = parsed.origin(place)
            if origin != last:  # a record that is two rows is one bad record
                rejects.add(Reject(path, origin, problems[place]), line_of)
            last = origin
        return rows.filter(pa.array(keep))

    def _with_file(self, rows: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
        """The columns with those that get something of the file."""
        path, time = self.frame.of_file
        if path is not None:
            landed = pa.scalar(piece.landed or piece.file.path, pa.string())
            rows = rows.append_column(path, pa.repeat(landed, rows.num_rows))
        if time is not None:
            moment = pa.scalar(piece.file.modified_ns // 1000, pa.int64()).cast(self.frame.schema.field(time).type)
            rows = rows.append_column(time, pa.repeat(moment, rows.num_rows))
        return rows

    def _with_kind(self, rows: pa.RecordBatch, problems: Problems) -> pa.RecordBatch:
        """The columns to upsert. A DMS operation becomes the kind."""
        op, kind = self.frame.op, self.frame.kind_column
        if op is None or kind is None:
            return rows
        place = rows.schema.names.index(op)
        # Files of a full load have no operations, so their rows are inserts.
        ops = pc.fill_null(rows.column(place), "I")
        rows = rows.set_column(place, rows.schema.field(place), ops)
        codes = pc.index_in(ops, value_set=pa.array(dms_kinds))
        _mark(codes.is_null(), "its operation is none of I, U and D", problems)
        kinds = pa.array(dms_kinds.values()).take(pc.fill_null(codes, 0))
        return rows.append_column(kind, kinds).select(self.frame.names)

    def _with_carried(self, rows: pa.RecordBatch, named: Sets | None, filled: Collection[str]) -> pa.RecordBatch:
        """The rows with what says which columns each of them carries: those that its record names, and those that every
        record needs or gets. A delete that names no ordering carries none, so it is unconditional."""
        names = self.frame.schema.names
        if named is None:
            bits = pa.repeat(pa.scalar(bits_of(names, names), pa.binary()), rows.num_rows)
            return rows.append_column(CARRIED, bits)
        always = (frozenset(names) - self._optional) | frozenset(filled)
        ordering = frozenset(self.ordering)
        bare = ordering - {*self.key, *filled, *self.frame.of_file.names}
        sets = [always | own for own in named.columns]
        sets += [always | own if own & ordering else (always | own) - bare for own in named.columns]
        codes = named.codes
        if self.frame.kind_column is not None:
            deletes = pc.is_in(rows.column(self.frame.kind_column), value_set=pa.array(_DELETES))
            codes = codes + len(named.columns) * deletes.to_numpy(zero_copy_only=False)
        bits = pa.array([bits_of(names, own) for own in sets], pa.binary()).take(pa.array(codes))
        return rows.append_column(CARRIED, bits)

    @property
    def _optional(self) -> frozenset[str]:
        """The columns that are unset in a record that does not name them. All others are needed, or filled."""
        frame = self.frame
        filled = {frame.kind_column, frame.op, frame.parse.rescued}
        return frozenset(frame.parse.schema.names) - {*self.key, *self.required, *self.ordering, *filled}

    def _judge(self, rows: pa.RecordBatch, problems: Problems) -> None:
        """Mark the rows for which the table would refuse the whole frame."""
        kind = self.frame.kind_column
        for name in self.key:
            if name in rows.schema.names:
                _mark(rows.column(name).is_null(), f"key column {name!r} is null", problems)
        if kind is not None:
            strange = pc.invert(pc.is_in(rows.column(kind), value_set=pa.array(list(_KINDS))))
            _mark(strange, f"column {kind!r} holds none of the row kinds {', '.join(_KINDS)}", problems)
        for name in self.required:
            if name in rows.schema.names and rows.column(name).null_count:
                bad = rows.column(name).is_null()
                if kind is not None:
                    bad = pc.and_(bad, pc.is_in(rows.column(kind), value_set=pa.array(_UPSERTS)))
                if (deletes := self.marks(rows)) is not None:
                    bad = pc.and_(bad, pa.array(~deletes))
                _mark(bad, f"column {name!r} is NOT NULL and null", problems)


def _too_many_sets(path: str) -> str:
    return (
        f"{path} cannot be loaded: its records have more than {MOST_SETS} different sets of fields: divide the file, "
        f"or name the columns to take ({argument('columns')}), where what a record lacks is null"
    )


@contextmanager
def readable(path: str, format_name: str) -> Iterator[None]:
    """Makes of whatever a format's reader raises an error of this file, which has its name. Errors of stores and other
    errors that have nothing to do with the bytes pass, and so do interrupts."""
    try:
        yield
    except FileUnreadableError as error:
        if "path" in error.facts:
            raise
        raise FileUnreadableError(f"{path} cannot be read as {format_name}: {error.message}", path=path) from error
    except FrameError as error:
        if "path" in error.facts:
            raise
        raise FrameError(f"{path}: {error.message}", **{**error.facts, "path": path}) from error
    except RecursionError as error:  # in a library's reader; values and schemas are checked before ours
        raise FileUnreadableError(f"{path} cannot be read as {format_name}: it nests too deeply", path=path) from error
    except Exception as error:
        if not _is_of_bytes(error):
            raise
        told = str(error) or repr(error)
        raise FileUnreadableError(f"{path} cannot be read as {format_name}: {told}", path=path) from error


def _is_of_bytes(error: Exception) -> bool:
    """Whether the bytes of a file are the reason for an error."""
    if isinstance(error, LakeMergeError):
        return False
    if isinstance(error, OSError):
        # Arrow reports bad input as an OSError without a number; other errors mean that the source failed.
        return type(error) is OSError and error.errno is None
    root = type(error).__module__.partition(".")[0]
    if root in _READERS:
        return not is_interrupt(error)
    return root not in _CLIENTS and not is_foreign(error)


def _refused_by(check: Callable[[pa.RecordBatch], object], rows: pa.RecordBatch) -> Iterator[tuple[int, str]]:
    """The rows for which a check raises, found by halving, and why."""
    todo = [(0, rows.num_rows)] if rows.num_rows else []
    while todo:
        start, count = todo.pop()
        try:
            check(rows.slice(start, count))
        except InputError as error:
            if count == 1:
                yield start, _ROW.sub("", error.message)
            else:
                todo += [(start + count // 2, count - count // 2), (start, count // 2)]


def _filled(rows: pa.RecordBatch, values: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """The rows with these values where the columns are null."""
    for name, value in values.items():
        place = rows.schema.names.index(name)
        rows = rows.set_column(place, rows.schema.field(place), pc.fill_null(rows.column(place), value))
    return rows


def _mark(bad: pa.Array, reason: str, problems: Problems) -> None:
    mask: npt.NDArray[np.bool_] = pc.fill_null(bad, True).to_numpy(zero_copy_only=False)
    for place in np.flatnonzero(mask).tolist():
        problems.setdefault(place, reason)
