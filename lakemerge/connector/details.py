"""What a table says about itself, as rows: ``lake.db.orders$history``, ``$files``, ``$buckets``, ``$savepoints``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
import pyarrow as pa

from lakemerge.format.names import WINNER_TAG
from lakemerge.format.savepoint import savepoints_of
from lakemerge.schema.schema import to_delta_json
from lakemerge.table.describe import buckets_of
from lakemerge.table.open_table import OpenTable

__all__ = ["DETAILS", "detail_rows", "detail_schema"]

_Rows = Iterator[tuple[Any, ...]]


def detail_schema(name: str) -> str:
    """The columns of one of the tables, as Delta's JSON."""
    return to_delta_json(DETAILS[name][0])


def detail_rows(name: str, table: OpenTable) -> _Rows:
    """The rows of one of the tables, in the order of its columns."""
    return DETAILS[name][1](table)


def _history(table: OpenTable) -> _Rows:
    for entry in table.handle.log.history():
        texts = (_texts(entry.parameters), _texts(entry.metrics), _texts(entry.info))
        yield (entry.version, _time(entry.timestamp_ms), entry.operation, *texts)


def _files(table: OpenTable) -> _Rows:
    """Base files, and log files that are not merged everywhere."""
    view = table.view
    for add in view.snapshot.files.values():
        rows = None if add.stats is None else orjson.loads(add.stats).get("numRecords")
        if rows is not None and add.vector is not None:
            rows -= add.vector.cardinality
        yield (
            "winner" if WINNER_TAG in add.tags else "base",
            add.path,
            add.size_bytes,
            rows,
            dict(add.partition_values),
        )
    logs = {block.file for file_slice in view.file_slices for block in file_slice.blocks}
    for file in sorted(logs, key=lambda file: file.path):
        yield ("log", file.path, file.size_bytes, None, {})


def _buckets(table: OpenTable) -> _Rows:
    for bucket in buckets_of(table.view):
        sizes = (getattr(bucket, name) for name in _SIZES)
        yield (dict(bucket.partition), bucket.bucket, *sizes, bucket.read_amplification)


def _savepoints(table: OpenTable) -> _Rows:
    for savepoint in savepoints_of(table.view.snapshot).values():
        yield (savepoint.name, savepoint.version, _time(savepoint.created_ms), savepoint.hold)


def _time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else orjson.dumps(value).decode() for name, value in values.items()}


_SIZES: Final = (
    *("base_files", "base_rows", "base_bytes", "winner_files", "winner_rows", "winner_bytes"),
    *("log_blocks", "log_rows", "log_bytes"),
)
_MAP: Final = pa.map_(pa.string(), pa.string())
_TIME: Final = pa.timestamp("us", "UTC")
DETAILS: Final[Mapping[str, tuple[pa.Schema, Callable[[OpenTable], _Rows]]]] = {
    "history": (
        pa.schema(
            [
                ("version", pa.int64()), ("timestamp", _TIME), ("operation", pa.string()),
                ("parameters", _MAP), ("metrics", _MAP), ("info", _MAP),
            ]
        ),
        _history,
    ),
    "files": (
        pa.schema(
            [
                ("kind", pa.string()), ("path", pa.string()), ("bytes", pa.int64()), ("rows", pa.int64()),
                ("partition", _MAP),
            ]
        ),
        _files,
    ),
    "buckets": (
        pa.schema(
            [
                ("partition", _MAP), ("bucket", pa.int32()), *((name, pa.int64()) for name in _SIZES),
                ("read_amplification", pa.float64()),
            ]
        ),
        _buckets,
    ),
    "savepoints": (
        pa.schema([("name", pa.string()), ("version", pa.int64()), ("created", _TIME), ("hold", pa.bool_())]),
        _savepoints,
    ),
}  # fmt: skip
"""The columns and rows of each."""
