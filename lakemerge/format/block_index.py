"""The domain that makes a log commit: which blocks it added, inline or in a block index file.

Source: docs/table-format.md, sections 3 and 4.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge._internal.collector import collector_paused
from lakemerge._internal.parquet import parquet_table
from lakemerge._internal.pools import thread_pool
from lakemerge.delta import DomainMetadata
from lakemerge.errors import TableDamagedError
from lakemerge.format.block_checks import (
    body_of,
    check_index,
    check_inline,
    columns_at,
    list_of,
    parsed_partition,
    partition_of,
)
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import BucketId, Key, KeyKinds, Partition, check_kinds, key_from_json, key_to_json
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.format.names import LOG_DOMAIN_PREFIX
from lakemerge.format.state import State
from lakemerge.format.values import bucket_count, optional_path, stored_path, whole_number
from lakemerge.storage.base import Store
from mergers.interrupts import is_foreign

__all__ = [
    "COUNT_COLUMNS",
    "KEY_COLUMNS",
    "BlockCounts",
    "DecodedLogs",
    "LogCommit",
    "log_paths",
    "log_version",
    "parsed_keys",
    "read_block_counts",
    "write_block_index",
]

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

COUNT_COLUMNS = ("partition", "bucket", "rows", "data_bytes")
"""The columns that :func:`read_block_counts` reads, with the types of block index files: partitions are JSON."""

KEY_COLUMNS = ("key_min", "key_max")
"""The columns that it also reads on request: keys as JSON."""

_FILE_COLUMNS = pa.field("columns", pa.string())
"""The columns of each block's file, as JSON: their places among those of the commit. Only in the index of a commit
whose files have different columns."""

_READERS = 8
_PLAIN = frozenset({int, str})
"""The types of key values that JSON can hold as they are."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """The blocks of one commit as columns, to count a million blocks without a Python value for each."""

    version: int
    oldest: int
    """The version of the oldest record. For a consolidated log it is earlier than the commit."""
    buckets: int
    """The bucket count they were written under."""
    blocks: pa.Table
    """The columns of :data:`COUNT_COLUMNS`, and on request those of :data:`KEY_COLUMNS`."""


@dataclass(frozen=True, slots=True)
class LogCommit:
    """The log blocks of one commit, in the order of their tasks."""

    id: str
    version: int
    merger_epoch: int
    columns: tuple[str, ...]
    """The columns that records of the commit carry, by their names in files. A file may have fewer, see
    :attr:`LogFile.columns`."""
    blocks: tuple[LogBlock, ...]
    index: str | None
    """The path of the block index file; ``None`` if there is none."""
    packed_from: int | None = None
    """For a consolidated log: the oldest version that it stands for. ``version`` is the newest."""

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
        if self.packed_from is not None:
            body["from"] = self.packed_from
        if self.index is None:
            body |= _inline(self.blocks, self.columns)
        else:
            body["index"] = self.index
        return DomainMetadata(self.domain_name, orjson.dumps(body).decode(), False)


@dataclass(frozen=True, slots=True)
class _Told:
    """A log domain whose blocks are still to be decoded."""

    domain: DomainMetadata
    body: dict[str, Any]
    index: str | None

    @staticmethod
    def of(domain: DomainMetadata) -> _Told:
        with _damage_in(domain):
            body = body_of(domain)
            return _Told(domain, body, optional_path(body.get("index")))

    def commit(self, indexes: Mapping[str, bytes], kinds: KeyKinds) -> LogCommit:
        """Decode the blocks.

        :param indexes: path -> block index file.
        :param kinds: the kinds of the table's keys.
        """
        body = self.body
        with _damage_in(self.domain):
            version = whole_number(body["version"])
            columns = tuple(str(name) for name in body["columns"])
            buckets = bucket_count(body["buckets"])
            packed_from = whole_number(body["from"]) if "from" in body else None
            if self.index is None:
                blocks = _from_inline(body, columns, buckets, version, kinds)
            else:
                blocks = _from_index(self.index, indexes[self.index], columns, buckets, version, kinds)
            if packed_from is not None:
                blocks = tuple(replace(block, packed_from=packed_from) for block in blocks)
            return LogCommit(
                id=self.domain.domain.removeprefix(LOG_DOMAIN_PREFIX),
                version=version,
                merger_epoch=whole_number(body["mergerEpoch"]),
                columns=columns,
                blocks=blocks,
                index=self.index,
                packed_from=packed_from,
            )


def log_paths(domain: DomainMetadata, store: Store) -> frozenset[str]:
    """Every file to which a log domain refers. Its blocks are not decoded."""
    with _damage_in(domain):
        body = body_of(domain)
        index = optional_path(body.get("index"))
        if index is None:
            return frozenset(stored_path(path) for path, *_ in list_of(body["files"]))
        paths = _index_columns(index, _stored(store, index), pa.schema([_INDEX_SCHEMA.field("path")])).column("path")
        return frozenset(map(stored_path, paths.unique().to_pylist())) | {index}


def log_version(domain: DomainMetadata) -> int:
    """The version of the newest record of a log domain. Its blocks are not decoded."""
    with _damage_in(domain):
        return whole_number(body_of(domain)["version"])


class DecodedLogs:
    """The log commits that were decoded last. A version has most logs of the version before it. So a read after each
    commit, and each attempt of a commit, only decodes logs and reads indexes that are new."""

    def __init__(self) -> None:
        self._known: Mapping[tuple[str, str], LogCommit] = {}

    def __reduce__(self) -> tuple[type[DecodedLogs], tuple[()]]:
        return DecodedLogs, ()  # executors have no use for them

    def read(self, domains: Iterable[DomainMetadata], store: Store, kinds: KeyKinds) -> list[LogCommit]:
        """The log commits of all log domains of a version, in their order. Block index files are read.

        :param kinds: the kinds of the table's keys.
        """
        known = self._known
        asked = {(domain.domain, domain.configuration): domain for domain in domains}
        new = {name: _Told.of(domain) for name, domain in asked.items() if name not in known}
        paths = [told.index for told in new.values() if told.index is not None]
        with thread_pool(_READERS) as pool:
            indexes = dict(zip(paths, pool.map(partial(_stored, store), paths), strict=True))
        with collector_paused():
            decoded = {name: told.commit(indexes, kinds) for name, told in new.items()}
        self._known = {name: decoded[name] if name in decoded else known[name] for name in asked}
        return list(self._known.values())

    def paths(self, domains: Mapping[str, DomainMetadata]) -> set[str]:
        """The files of those known log commits that are among the domains of a version. Nothing is read."""
        present = ((name, text, commit) for (name, text), commit in self._known.items() if name in domains)
        return {path for name, text, commit in present if domains[name].configuration == text for path in commit.paths}


def read_block_counts(domain: DomainMetadata, store: Store, *, keys: bool) -> BlockCounts:
    """The sizes and places of a log domain's blocks. If there are many blocks, this is far cheaper than
    :class:`DecodedLogs`."""
    schema = pa.schema([_INDEX_SCHEMA.field(name) for name in (*COUNT_COLUMNS, *KEY_COLUMNS)])
    with _damage_in(domain):
        body = body_of(domain)
        index = optional_path(body.get("index"))
        wanted = schema if keys else pa.schema([schema.field(name) for name in COUNT_COLUMNS])
        version, buckets = whole_number(body["version"]), bucket_count(body["buckets"])
        if index is None:
            blocks = _counted(body, buckets, schema).select(wanted.names)
        else:
            blocks = _index_columns(index, _stored(store, index), wanted)
            check_index(blocks, buckets, nullable=KEY_COLUMNS)
        return BlockCounts(version, whole_number(body.get("from", version)), buckets, blocks)


def _counted(body: dict[str, object], buckets: int, schema: pa.Schema) -> pa.Table:
    partitions = [orjson.dumps(values).decode() for values in list_of(body["partitions"])]
    check_inline(list_of(body["blocks"]), buckets)
    rows = [
        (
            partitions[partition],
            bucket,
            rows,
            data_bytes,
            None if low is None else orjson.dumps(low).decode(),
            None if high is None else orjson.dumps(high).decode(),
        )
        for _, _, _, partition, bucket, rows, data_bytes, low, high in list_of(body["blocks"])
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    return pa.table([pa.array(values, field.type) for field, values in zip(schema, columns, strict=True)], schema)


def write_block_index(store: Store, path: str, blocks: Sequence[LogBlock], columns: Sequence[str]) -> None:
    """Write blocks as a block index file.

    :param columns: those of the commit.
    """
    rows = [
        (
            block.file.path,
            block.file.size_bytes,
            block.first_row_group,
            block.row_groups,
            orjson.dumps(block.bucket_id.partition).decode(),
            block.bucket_id.bucket,
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
    table = pa.table(arrays, schema=_INDEX_SCHEMA)
    places = _places_of({block.file: block.file.columns for block in blocks}, columns)
    if places:
        texts = {file: orjson.dumps(found).decode() for file, found in places.items()}
        table = table.append_column(_FILE_COLUMNS, pa.array([texts.get(block.file) for block in blocks], pa.string()))
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    store.put(path, sink.getvalue())


def _places_of(files: Mapping[LogFile, Sequence[str]], columns: Sequence[str]) -> dict[LogFile, list[int]]:
    """The places of their columns for files that do not have all of the commit's."""
    place = {name: number for number, name in enumerate(columns)}
    return {file: sorted(place[name] for name in own) for file, own in files.items() if len(own) != len(columns)}


def _inline(blocks: Sequence[LogBlock], columns: Sequence[str]) -> dict[str, object]:
    files = {file: i for i, file in enumerate(dict.fromkeys(block.file for block in blocks))}
    places = _places_of({file: file.columns for file in files}, columns)
    partitions = {partition: i for i, partition in enumerate(dict.fromkeys(b.bucket_id.partition for b in blocks))}
    return {
        "files": [[file.path, file.size_bytes, *([places[file]] if file in places else ())] for file in files],
        "partitions": [list(partition) for partition in partitions],
        "blocks": [
            [
                files[block.file],
                block.first_row_group,
                block.row_groups,
                partitions[block.bucket_id.partition],
                block.bucket_id.bucket,
                block.rows,
                block.data_bytes,
                None if block.key_min is None else key_to_json(block.key_min),
                None if block.key_max is None else key_to_json(block.key_max),
            ]
            for block in blocks
        ],
    }


def _from_inline(
    body: dict[str, object], columns: tuple[str, ...], buckets: int, version: int, kinds: KeyKinds
) -> tuple[LogBlock, ...]:
    files = [_file_of(entry, columns) for entry in list_of(body["files"])]
    partitions = [partition_of(values) for values in list_of(body["partitions"])]
    blocks = list_of(body["blocks"])
    check_inline(blocks, buckets)
    return tuple(
        LogBlock(
            file=files[file],
            first_row_group=first,
            row_groups=groups,
            bucket_id=BucketId(partitions[partition], bucket),
            buckets=buckets,
            rows=rows,
            data_bytes=data_bytes,
            key_min=_bound(low, kinds),
            key_max=_bound(high, kinds),
            version=version,
        )
        for file, first, groups, partition, bucket, rows, data_bytes, low, high in blocks
    )


def _file_of(entry: list[Any], columns: tuple[str, ...]) -> LogFile:
    path, size, *places = entry
    if len(places) > 1:
        raise ValueError(f"a log file has a path, a size and places of columns, not {entry!r}")
    own = columns_at(places[0], columns) if places else columns
    return LogFile(stored_path(path), whole_number(size), own)


def _from_index(
    path: str, data: bytes, columns: tuple[str, ...], buckets: int, version: int, kinds: KeyKinds
) -> tuple[LogBlock, ...]:
    table = _index_columns(path, data, _INDEX_SCHEMA, optional=_FILE_COLUMNS)
    check_index(table, buckets, nullable=(*KEY_COLUMNS, _FILE_COLUMNS.name))
    files: dict[str, LogFile] = {}
    carried: dict[str | None, tuple[str, ...]] = {None: columns}
    partitions: dict[str, Partition] = {}
    slices: dict[tuple[str, int], BucketId] = {}
    found = []
    told = [table.column(name).to_pylist() for name in _INDEX_SCHEMA.names if name not in KEY_COLUMNS]
    differ = _FILE_COLUMNS.name in table.column_names
    places = table.column(_FILE_COLUMNS.name).to_pylist() if differ else [None] * table.num_rows
    for file, size, first, groups, partition, bucket, rows, data_bytes, own, low, high in zip(
        *told, places, *(parsed_keys(table.column(name), kinds) for name in KEY_COLUMNS), strict=True
    ):
        if own not in carried:
            carried[own] = columns_at(orjson.loads(own), columns)
        if file not in files:
            files[file] = LogFile(stored_path(file), size, carried[own])
        if (partition, bucket) not in slices:
            if partition not in partitions:
                partitions[partition] = parsed_partition(partition)
            slices[partition, bucket] = BucketId(partitions[partition], bucket)
        of = slices[partition, bucket]
        found.append(LogBlock(files[file], first, groups, of, buckets, rows, data_bytes, low, high, version))
    return tuple(found)


def parsed_keys(column: pa.ChunkedArray, kinds: KeyKinds) -> list[Key | None]:
    """Keys from the JSON of a block index. All are parsed at once; to parse each by itself takes five times as long.

    Raises :class:`ValueError` or :class:`TypeError` for a key that is none of these kinds.
    """
    texts = ",".join(column.fill_null("null").to_pylist())
    bodies: list[Any] = orjson.loads(f"[{texts}]")
    as_it_is = kinds if _PLAIN.issuperset(kinds) else None
    return [tuple(body) if body and tuple(map(type, body)) == as_it_is else _bound(body, kinds) for body in bodies]


def _bound(body: object, kinds: KeyKinds) -> Key | None:
    if body is None:
        return None
    key = key_from_json(body)
    check_kinds(key, kinds)
    return key


def _stored(store: Store, path: str) -> bytes:
    """A block index file. It is fetched whole, because pyarrow reports a failing store and a damaged file both as
    OSError."""
    try:
        return store.get(path)
    except FileNotFoundError as error:
        raise TableDamagedError(f"block index {path!r} is missing", path=path) from error


def _index_columns(path: str, data: bytes, schema: pa.Schema, *, optional: pa.Field | None = None) -> pa.Table:
    try:
        return parquet_table(data, schema, optional=optional)
    except (KeyError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if is_foreign(error):
            raise
        raise TableDamagedError(f"block index {path!r} cannot be read: {error}", path=path) from error


@contextlib.contextmanager
def _damage_in(domain: DomainMetadata) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise TableDamagedError(f"log domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error
