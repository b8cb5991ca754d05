"""Delta's per-file statistics, from Parquet footers.

Source: Delta protocol, "Per-file Statistics": numRecords, and for the first 32 columns minValues,
maxValues and nullCount. Only top-level columns of orderable types get bounds. A string bound of
more than 32 characters is cut. A cut maximum gets U+10FFFF appended, so that it is still a bound. Float
columns have no bounds in files that Arrow writes (:mod:`lakemerge.write.parquet.encoding`). parquet-mr leaves the
bounds of a float column out of a footer if there is a NaN. Both writers leave out the bounds of a column chunk if they
are long texts.

If a file has values in a column of :func:`lakemerge.format.bounds.bounded_columns` but no bounds for them, the file has
no statistics.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemerge.format.bounds import STATISTICS_COLUMNS, bounded_columns
from lakemerge.read.parquet.extremes import extremes

__all__ = ["LONG_TEXT", "file_statistics", "footer_statistics", "text_bounds", "texts_without_bounds"]

LONG_TEXT = 1024
"""Writers leave out bounds of more bytes than some limit, which is higher than this one."""
_PREFIX = 32
_HIGHEST = "\U0010ffff"
_LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 998999, dt.UTC)


def file_statistics(
    footer: pq.FileMetaData,
    schema: pa.Schema,
    *,
    partition_by: Collection[str] = (),
    texts: Mapping[str, tuple[str, str]] | None = None,
) -> str | None:
    """The ``stats`` JSON of an ``add``. ``None`` if a reader might take what they lack for something else
    (:mod:`lakemerge.format.bounds`).

    :param texts: the least and the greatest of a column's long texts, and perhaps of others. They stand in for bounds
        that the footer lacks.
    """
    body, without = footer_statistics(footer, schema, texts=texts)
    if not without.isdisjoint(bounded_columns(schema, partition_by)):
        return None
    return orjson.dumps(body).decode()


def footer_statistics(
    footer: pq.FileMetaData, schema: pa.Schema, *, texts: Mapping[str, tuple[str, str]] | None = None
) -> tuple[dict[str, Any], set[str]]:
    """The statistics that a footer tells, and the columns that have values and no bounds. Only columns that have
    statistics in every row group get some."""
    leaves = [footer.schema.column(i) for i in range(footer.num_columns)]
    # Only a top-level leaf has a name equal to its path: a column "s.x" has, the field x of a struct s has not.
    indexed = {leaf.path: i for i, leaf in enumerate(leaves) if leaf.name == leaf.path}
    lows: dict[str, object] = {}
    highs: dict[str, object] = {}
    nulls: dict[str, int] = {}
    without: set[str] = set()
    for field in list(schema)[:STATISTICS_COLUMNS]:
        index = indexed.get(field.name)
        if index is None:
            continue
        chunks = _chunks(footer, index)
        counted = [chunk.null_count for chunk in chunks if chunk is not None and chunk.has_null_count]
        if len(counted) == len(chunks):
            nulls[field.name] = sum(counted)
        valued = [chunk for chunk in chunks if chunk is None or chunk.num_values]
        if not valued:
            continue
        bounds = _bounds(valued, field.type, (texts or {}).get(field.name))
        if bounds is None or not (
            _bound(lows, field.name, bounds[0], upper=False) & _bound(highs, field.name, bounds[1], upper=True)
        ):
            without.add(field.name)
    return {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}, without


def texts_without_bounds(footer: pq.FileMetaData, schema: pa.Schema) -> list[str]:
    """The columns of texts of whose bounds the footer lacks some."""
    paths = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    return [
        field.name
        for field in list(schema)[:STATISTICS_COLUMNS]
        if pa.types.is_string(field.type) and field.name in paths and _lacks_bounds(footer, paths[field.name])
    ]


def text_bounds(column: pa.ChunkedArray | pa.Array, *, longer_than: int = LONG_TEXT) -> tuple[str, str] | None:
    """The least and the greatest text of a column with a text of more bytes; ``None`` if it has none."""
    longest = pc.max(pc.binary_length(column)).as_py()
    if longest is None or longest <= longer_than:
        return None
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _chunks(footer: pq.FileMetaData, index: int) -> list[pq.Statistics | None]:
    """The statistics of a column's chunks. parquet-mr writes none, not even a count of nulls, for long texts."""
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    return [group.column(index).statistics for group in groups if group.num_rows]


def _lacks_bounds(footer: pq.FileMetaData, index: int) -> bool:
    return any(chunk is None or (chunk.num_values and not chunk.has_min_max) for chunk in _chunks(footer, index))


def _bounds(
    chunks: Sequence[pq.Statistics | None], kind: pa.DataType, texts: tuple[str, str] | None
) -> tuple[Any, Any] | None:
    """The least and the greatest value in column chunks with values; ``None`` if they are not known."""
    bounded = [chunk for chunk in chunks if chunk is not None and chunk.has_min_max]
    if pa.types.is_binary(kind) or (len(bounded) < len(chunks) and texts is None):
        return None
    try:
        found = [extremes(chunk) for chunk in bounded]
        lows, highs = [low for low, _ in found], [high for _, high in found]
        if len(bounded) < len(chunks) and texts is not None:
            lows, highs = [*lows, texts[0]], [*highs, texts[1]]
        return min(lows), max(highs)
    except (OverflowError, ValueError, TypeError):
        return None  # instants that Python's datetime cannot hold get no bounds, nor do values without an order


def _bound(into: dict[str, object], name: str, value: object, *, upper: bool) -> bool:
    """Add a bound. Returns whether the value has one."""
    if isinstance(value, bool | bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return False  # bytes are of a file whose column is not what the schema says
    if isinstance(value, str):
        value = _short(value, upper=upper)
    elif isinstance(value, dt.datetime):
        # Delta keeps milliseconds: a minimum is rounded down, a maximum is rounded up.
        if upper and value.microsecond % 1000:
            # Readers add a millisecond to a maximum anyway, so the last millisecond of all stays as it is.
            value = min(value, _LAST.replace(tzinfo=value.tzinfo)) + dt.timedelta(milliseconds=1)
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        value = text + "Z" if value.tzinfo is not None else text
    elif isinstance(value, dt.date):
        value = value.isoformat()
    elif isinstance(value, decimal.Decimal):
        # Delta writes decimals as JSON numbers. A decimal that a double cannot hold exactly gets no bound.
        number = float(value)
        if decimal.Decimal(repr(number)) != value:
            return False
        value = number
    into[name] = value
    return True


def _short(text: str, *, upper: bool) -> str:
    """A short bound of a text, or the text."""
    end = _PREFIX
    while upper and text[end : end + 1] == _HIGHEST:
        end += 1  # the prefix with the highest character would not be above the text
    return text if len(text) <= end else text[:end] + (_HIGHEST if upper else "")
