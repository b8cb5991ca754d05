"""The domain that makes a log commit: which blocks it added, inline or in a block index file.

Source: docs/table-format.md, sections 3 and 4.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.config import LOG_DOMAIN_PREFIX, State, TableConfig
from lakemerge.errors import TableDamagedError
from lakemerge.log import DomainMetadata
from lakemerge.slices.model import LogBlock, LogFile, Partition, SliceId, key_from_json, key_to_json
from lakemerge.storage.base import Store

__all__ = ["LogCommit", "read_log_commit", "write_block_index"]

_INDEX_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("first_row_group", pa.int32()),
        ("row_groups", pa.int32()),
        ("partition", pa.string()),
        ("bucket", pa.int32()),
        ("rows", pa.int64()),
        ("data_bytes", pa.int64()),
        ("key_min", pa.string()),
        ("key_max", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class LogCommit:
    """The log blocks of one commit, in the order of their tasks."""

    id: str
    version: int
    merger_epoch: int
    columns: tuple[str, ...]
    blocks: tuple[LogBlock, ...]
    index: str | None
    """Path of the block index file, where there is one."""

    @property
    def domain_name(self) -> str:
        return LOG_DOMAIN_PREFIX + self.id

    @property
    def paths(self) -> frozenset[str]:
        """Every file the commit refers to."""
        logs = frozenset(block.file.path for block in self.blocks)
        return logs if self.index is None else logs | {self.index}

    def domain(self, *, config: TableConfig, state: State, version: int) -> DomainMetadata:
        """The action that makes the blocks live from ``version`` on."""
        body: dict[str, object] = {
            "version": version,
            "merger": config.merger_id,
            "mergerEpoch": state.merger_epoch,
            "schemaEpoch": state.schema_epoch,
            "columns": list(self.columns),
            "buckets": self.blocks[0].buckets,
        }
        if self.index is None:
            body |= _inline(self.blocks)
        else:
            body["index"] = self.index
        return DomainMetadata(self.domain_name, orjson.dumps(body).decode(), False)


def read_log_commit(domain: DomainMetadata, store: Store) -> LogCommit:
    """Decode a log domain, reading its block index file where it has one."""
    try:
        body = orjson.loads(domain.configuration)
        version, index = int(body["version"]), body.get("index")
        columns = tuple(str(name) for name in body["columns"])
        buckets = int(body["buckets"])
        if index is None:
            blocks = _from_inline(body, columns, buckets, version)
        else:
            blocks = _from_index(store, index, columns, buckets, version)
        return LogCommit(
            id=domain.domain.removeprefix(LOG_DOMAIN_PREFIX),
            version=version,
            merger_epoch=int(body["mergerEpoch"]),
            columns=columns,
            blocks=blocks,
            index=index,
        )
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise TableDamagedError(f"log domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error


def write_block_index(store: Store, path: str, blocks: Sequence[LogBlock]) -> None:
    """Write blocks as a block index file."""
    rows = [
        (
            block.file.path,
            block.file.size_bytes,
            block.first_row_group,
            block.row_groups,
            orjson.dumps(block.slice.partition).decode(),
            block.slice.bucket,
            block.rows,
            block.data_bytes,
            None if block.key_min is None else orjson.dumps(key_to_json(block.key_min)).decode(),
            None if block.key_max is None else orjson.dumps(key_to_json(block.key_max)).decode(),
        )
        for block in blocks
    ]
    arrays = [
        pa.array(values, type=field.type) for field, values in zip(_INDEX_SCHEMA, zip(*rows, strict=True), strict=True)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=_INDEX_SCHEMA), sink, compression="zstd")
    store.put(path, sink.getvalue())


def _inline(blocks: Sequence[LogBlock]) -> dict[str, object]:
    files = {file: i for i, file in enumerate(dict.fromkeys(block.file for block in blocks))}
    partitions = {partition: i for i, partition in enumerate(dict.fromkeys(b.slice.partition for b in blocks))}
    return {
        "files": [[file.path, file.size_bytes] for file in files],
        "partitions": [list(partition) for partition in partitions],
        "blocks": [
            [
                files[block.file],
                block.first_row_group,
                block.row_groups,
                partitions[block.slice.partition],
                block.slice.bucket,
                block.rows,
                block.data_bytes,
                None if block.key_min is None else key_to_json(block.key_min),
                None if block.key_max is None else key_to_json(block.key_max),
            ]
            for block in blocks
        ],
    }


def _from_inline(body: dict[str, object], columns: tuple[str, ...], buckets: int, version: int) -> tuple[LogBlock, ...]:
    files = [LogFile(str(path), int(size), columns) for path, size in _list(body["files"])]
    partitions: list[Partition] = [tuple(values) for values in _list(body["partitions"])]
    return tuple(
        LogBlock(
            file=files[file],
            first_row_group=first,
            row_groups=groups,
            slice=SliceId(partitions[partition], bucket),
            buckets=buckets,
            rows=rows,
            data_bytes=data_bytes,
            key_min=None if low is None else key_from_json(low),
            key_max=None if high is None else key_from_json(high),
            version=version,
        )
        for file, first, groups, partition, bucket, rows, data_bytes, low, high in _list(body["blocks"])
    )


def _from_index(store: Store, path: str, columns: tuple[str, ...], buckets: int, version: int) -> tuple[LogBlock, ...]:
    try:
        table = pq.read_table(io.BytesIO(store.get(path)), schema=_INDEX_SCHEMA)
    except (FileNotFoundError, pa.ArrowException) as error:
        raise TableDamagedError(f"block index {path!r} cannot be read: {error}", path=path) from error
    files: dict[str, LogFile] = {}
    return tuple(
        LogBlock(
            file=files.setdefault(row["path"], LogFile(row["path"], row["size"], columns)),
            first_row_group=row["first_row_group"],
            row_groups=row["row_groups"],
            slice=SliceId(tuple(orjson.loads(row["partition"])), row["bucket"]),
            buckets=buckets,
            rows=row["rows"],
            data_bytes=row["data_bytes"],
            key_min=None if row["key_min"] is None else key_from_json(orjson.loads(row["key_min"])),
            key_max=None if row["key_max"] is None else key_from_json(orjson.loads(row["key_max"])),
            version=version,
        )
        for row in table.to_pylist()
    )


def _list(value: object) -> list[list[Any]]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, not {value!r}")
    return value
