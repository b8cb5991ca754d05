"""Arrow batches with a file's own columns, as rows of a frame: what CSV, Parquet and ORC have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.ingest.casting import EITHER, Problems, fitted, unsound
from lakemerge.ingest.formats.base import WindowSchema
from lakemerge.ingest.formats.times import TimeFormats
from lakemerge.ingest.row_casting import json_text

__all__ = ["record_text", "to_frame", "told_type"]

_ISO: Final = TimeFormats()


def told_type(kind: pa.DataType, zone: str | None) -> pa.DataType:
    """What a file tells of a column: the type of a new column for it, and for :func:`lakemerge.ingest.casting.fits`.

    :param zone: the zone of times that have none.
    """
    if pa.types.is_timestamp(kind) and kind.tz is None and zone is not None:
        return EITHER
    if isinstance(kind, pa.BaseExtensionType):
        return pa.string() if kind.extension_name == "arrow.uuid" else kind.storage_type
    return pa.string() if pa.types.is_time(kind) else kind


def to_frame(
    batch: pa.RecordBatch,
    frame: WindowSchema,
    *,
    times: TimeFormats = _ISO,
    zone: str | None = None,
    either: Collection[str] = (),
) -> tuple[pa.RecordBatch, Problems]:
    """The columns of the frame, taken from a file's columns by name, whatever their case. A column that the file lacks
    is null. If there is a rescued column, file columns without a column in the frame go there, and values that do not
    fit their column.

    :param times: how texts are times.
    :param zone: the zone of times that have none, where the column of the frame is a moment.
    :param either: names of the file's columns whose times have no zone, and are in UTC where that column is a moment.
    """
    there = {name.lower(): place for place, name in enumerate(batch.schema.names)}
    problems: Problems = {}
    misfits: dict[int, dict[str, Any]] = {}
    arrays: list[pa.Array] = []
    for field in frame.schema:
        place = there.get(field.name.lower()) if field.name != frame.rescued else None
        if place is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        given = batch.column(place)
        found = unsound(given)
        if found:
            given = pc.if_else(pa.array([row not in found for row in range(len(given))]), given, None)
        own = "UTC" if batch.schema.names[place] in either else zone
        if own is not None and pa.types.is_timestamp(field.type) and field.type.tz is not None:
            given, unclear = _in_zone(given, own)
            found = unclear | found
        written = times.format_of(field.name, field.type) if given.type == pa.string() else None
        column, misfit = fitted(given, field.type) if written is None else written.read(given, field.type)
        arrays.append(column)
        if frame.rescued is not None and field.name not in frame.strict:
            for row in misfit:
                misfits.setdefault(row, {})[batch.schema.names[place]] = _value(given[row])
            misfit = {}
        found = misfit | found
        problems |= {row: f"column {field.name!r}: {reason}" for row, reason in found.items() if row not in problems}
    if frame.rescued is not None:
        rest = [name for name in batch.schema.names if name.lower() not in frame.places]
        arrays[frame.schema.names.index(frame.rescued)] = _rest(batch.select(rest), misfits)
    return pa.RecordBatch.from_arrays(arrays, schema=frame.schema), problems


def _in_zone(column: pa.Array, zone: str) -> tuple[pa.Array, Problems]:
    """Wall clocks as moments; null where the zone has such a time twice or not at all, when its clocks change."""
    if not pa.types.is_timestamp(column.type) or column.type.tz is not None:
        return column, {}
    first = pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="earliest")
    last = pc.assume_timezone(column, zone, ambiguous="latest", nonexistent="latest")
    unclear = pc.fill_null(pc.not_equal(first, last), False)
    if not pc.any(unclear).as_py():
        return first, {}
    rows = np.flatnonzero(unclear.to_numpy(zero_copy_only=False)).tolist()
    told = {row: f"{column[row]} is not exactly one time in {zone}, because clocks change there" for row in rows}
    return pc.if_else(unclear, pa.scalar(None, first.type), first), told


def record_text(batch: pa.RecordBatch, row: int) -> str:
    """A row as JSON."""
    return json_text({name: _value(batch.column(place)[row]) for place, name in enumerate(batch.schema.names)})


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode(errors="backslashreplace")
    except (ValueError, OverflowError):  # a time that Python has no value for: its year, or its nanoseconds
        return scalar.cast(pa.string()).as_py()


def _rest(batch: pa.RecordBatch, misfits: Mapping[int, Mapping[str, Any]]) -> pa.Array:
    """Each row as a JSON object of its values that are not null, and of its misfits; null if it has none."""
    some = np.zeros(batch.num_rows, np.bool_)
    for column in batch.columns:
        some |= column.is_valid().to_numpy(zero_copy_only=False)
    some[list(misfits)] = True
    if not some.any():
        return pa.nulls(batch.num_rows, pa.string())
    texts: list[str | None] = [None] * batch.num_rows
    places = np.flatnonzero(some)
    rows = _rows(batch.take(pa.array(places))) if batch.num_columns else []
    for number, place in enumerate(places.tolist()):
        row = {name: value for name, value in rows[number].items() if value is not None} if rows else {}
        texts[place] = json_text(row | dict(misfits.get(place, {})))
    return pa.array(texts, pa.string())


def _rows(batch: pa.RecordBatch) -> Sequence[Mapping[str, Any]]:
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError):
        return [{name: _value(batch[name][row]) for name in batch.schema.names} for row in range(batch.num_rows)]
