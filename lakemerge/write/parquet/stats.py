"""Delta's per-file statistics, from Parquet footers.

Source: Delta protocol, "Per-file Statistics": numRecords, and for the first 32 columns minValues,
maxValues and nullCount. Only top-level columns of orderable types get bounds. A string bound of
more than 32 characters is cut. A cut maximum gets U+10FFFF appended, so that it is still a bound. Float
columns have no bounds in files that Arrow writes (:mod:`lakemerge.write.parquet.encoding`). parquet-mr leaves the
bounds of a float column out of a footer if there is a NaN.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["file_statistics"]

_COLUMNS = 32
_PREFIX = 32
_HIGHEST = "\U0010ffff"


def file_statistics(footer: pq.FileMetaData, schema: pa.Schema) -> str:
    """The ``stats`` JSON of an ``add``. Only columns that have statistics in every row group get some."""
    leaves = [footer.schema.column(i) for i in range(footer.num_columns)]
    # Only a top-level leaf has a name equal to its path: a column "s.x" has, the field x of a struct s has not.
    indexed = {leaf.path: i for i, leaf in enumerate(leaves) if leaf.name == leaf.path}
    lows: dict[str, object] = {}
    highs: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for field in list(schema)[:_COLUMNS]:
        index = indexed.get(field.name)
        if index is None:
            continue
        chunks = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[field.name] = sum(chunk.null_count for chunk in chunks)
        valued = [chunk for chunk in chunks if chunk.num_values]
        if valued and all(chunk.has_min_max for chunk in valued) and not pa.types.is_binary(field.type):
            try:
                low, high = min(chunk.min for chunk in valued), max(chunk.max for chunk in valued)
            except (OverflowError, ValueError, TypeError):
                continue  # instants that Python's datetime cannot hold get no bounds, nor do values without an order
            _bound(lows, field.name, low, upper=False)
            _bound(highs, field.name, high, upper=True)
    body = {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return orjson.dumps(body).decode()


def _bound(into: dict[str, object], name: str, value: object, *, upper: bool) -> None:
    if isinstance(value, bool | bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return  # bytes are of a file whose column is not what the schema says
    if isinstance(value, str) and len(value) > _PREFIX:
        if upper and value[_PREFIX] == _HIGHEST:
            return  # no short text is an upper bound
        value = value[:_PREFIX] + (_HIGHEST if upper else "")
    if isinstance(value, dt.datetime):
        # Delta keeps milliseconds: a minimum is rounded down, a maximum is rounded up.
        if upper and value.microsecond % 1000:
            try:
                value += dt.timedelta(milliseconds=1)
            except OverflowError:
                return
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        value = text + "Z" if value.tzinfo is not None else text
    elif isinstance(value, dt.date):
        value = value.isoformat()
    elif isinstance(value, decimal.Decimal):
        # Delta writes decimals as JSON numbers. A decimal that a double cannot hold exactly gets no bound.
        number = float(value)
        if decimal.Decimal(repr(number)) != value:
            return
        value = number
    into[name] = value
