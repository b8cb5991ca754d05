"""Classic V1 checkpoints: the state at one version as Parquet (protocol, "Checkpoint Schema").

Each row holds one action in one of six struct columns. Optional keys that this library does not know survive in commits
but not here, except those that the protocol defines for ``add`` (``ADD_EXTRA``). Tags and partition values of removed
files are not kept either: they may be keys that are erased, and a checkpoint would keep them for a retention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.delta.actions import (
    DEFAULT_FORMAT,
    AddFile,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    encode_path,
)
from lakemerge.delta.checkpoint_reader import ADD_EXTRA, COMMIT_DIGEST, read_checkpoint
from lakemerge.delta.listing import LAST_CHECKPOINT, Checkpoint, checkpoint_path, read_hint
from lakemerge.delta.protocol import duration_ms
from lakemerge.delta.snapshot import Snapshot
from lakemerge.delta.vectors import DeletionVector
from lakemerge.errors import TableDamagedError
from lakemerge.storage.base import FileStat, Put, Store

__all__ = ["encode_checkpoint", "write_checkpoint"]

_WEEK_MS: Final = 7 * 86_400_000
_STRINGS: Final = pa.list_(pa.string())
_MAP: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)


def write_checkpoint(
    store: Store, snapshot: Snapshot, *, now_ms: int, still_holds: Callable[[], bool] = lambda: True
) -> None:
    """Write the checkpoint of ``snapshot`` and point ``_last_checkpoint`` at it. ``now_ms`` is by the store's clock,
    and may be behind it.

    It is idempotent. An existing checkpoint is replaced only if it is damaged or lacks something, so that no file
    changes under a reader without need. Its footer holds the digest of the commit that it stands for.

    :param still_holds: whether the log is still that of the snapshot's table. Another table's may be there by the time
        the checkpoint is written. It is asked once the new checkpoint is there and the files to replace were looked at,
        so whatever is replaced is the table's own. A checkpoint in another table's log is deleted.
    """
    table = encode_checkpoint(snapshot, now_ms=now_ms)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="snappy")
    data = sink.getvalue().to_pybytes()
    path = checkpoint_path(snapshot.version)
    there = None if store.put_if_absent(path, data) is Put.CREATED else store.stat(path)
    pointer = store.stat(LAST_CHECKPOINT)
    if not still_holds():
        _withdraw(store, path, data)
        return
    if there is not None and not _holds(store, there, snapshot):
        store.replace_exact(there, data)
    said = {
        "version": snapshot.version,
        "size": table.num_rows,
        "sizeInBytes": len(data),
        "numOfAddFiles": len(snapshot.files),
    }
    _point(store, pointer, snapshot.version, orjson.dumps(said), still_holds)


def _point(store: Store, there: FileStat | None, version: int, pointer: bytes, still_holds: Callable[[], bool]) -> None:
    """Write ``_last_checkpoint``, unless it names a later checkpoint that is there."""
    if there is None:
        # By now there may be another table, or none.
        if store.put_if_absent(LAST_CHECKPOINT, pointer) is Put.CREATED and not still_holds():
            _withdraw(store, LAST_CHECKPOINT, pointer)
        return
    hint = read_hint(store)
    if hint is None or hint <= version or store.stat(checkpoint_path(hint)) is None:
        store.replace_exact(there, pointer)


def _withdraw(store: Store, path: str, data: bytes) -> None:
    """Delete a file that was written into the log of another table, or where there is none any more."""
    found = store.stat(path)
    if found is not None and store.get(path) == data:
        store.delete_exact([found])


def encode_checkpoint(snapshot: Snapshot, *, now_ms: int) -> pa.Table:
    """The checkpoint's rows, with the digest of its commit as metadata. Tombstones that expired before ``now_ms`` are
    left out. If the retention cannot be read, all are kept."""
    retention_ms = duration_ms(snapshot.metadata, "delta.deletedFileRetentionDuration", default=_WEEK_MS)
    removes = [
        remove
        for remove in snapshot.tombstones.values()
        if retention_ms is None or (remove.deletion_time_ms or 0) > now_ms - retention_ms
    ]
    segments = {
        "protocol": _protocol(snapshot.protocol),
        "metaData": _metadata(snapshot.metadata),
        "txn": _txns(list(snapshot.txns.values())),
        "domainMetadata": _domains(list(snapshot.domains.values())),
        "add": _adds(list(snapshot.files.values())),
        "remove": _removes(removes),
    }
    total = sum(len(segment) for segment in segments.values())
    columns: dict[str, pa.Array[Any]] = {}
    offset = 0
    for name, segment in segments.items():
        before, after = offset, total - offset - len(segment)
        columns[name] = pa.concat_arrays([pa.nulls(before, segment.type), segment, pa.nulls(after, segment.type)])
        offset += len(segment)
    return pa.table(columns).replace_schema_metadata(
        None if snapshot.digest is None else {COMMIT_DIGEST: snapshot.digest}
    )


def _holds(store: Store, found: FileStat, snapshot: Snapshot) -> bool:
    try:
        replay = read_checkpoint(store, Checkpoint(snapshot.version, (found,)))
    except (TableDamagedError, FileNotFoundError):
        return False
    return (
        replay.digest == snapshot.digest
        and replay.protocol == snapshot.protocol
        and replay.metadata == snapshot.metadata
        and {file.identity: file.tags for file in replay.files.values()}
        == {file.identity: file.tags for file in snapshot.files.values()}
        and replay.txns.keys() == snapshot.txns.keys()
        and {d.domain: d.configuration for d in replay.domains.values()}
        == {d.domain: d.configuration for d in snapshot.domains.values()}
    )


# Writing: one struct array per kind of action.


def _struct(columns: Mapping[str, tuple[Sequence[object], pa.DataType]]) -> pa.StructArray:
    arrays = [pa.array(values, type=kind) for values, kind in columns.values()]
    return pa.StructArray.from_arrays(arrays, names=list(columns))


def _maps(values: Iterable[Mapping[str, str | None] | None]) -> list[list[tuple[str, str | None]] | None]:
    return [None if value is None else list(value.items()) for value in values]


def _protocol(protocol: Protocol) -> pa.StructArray:
    reader = sorted(protocol.reader_features) if protocol.min_reader >= 3 else None
    writer = sorted(protocol.writer_features) if protocol.min_writer >= 7 else None
    return _struct(
        {
            "minReaderVersion": ([protocol.min_reader], pa.int32()),
            "minWriterVersion": ([protocol.min_writer], pa.int32()),
            "readerFeatures": ([reader], _STRINGS),
            "writerFeatures": ([writer], _STRINGS),
        }
    )


def _metadata(metadata: Metadata) -> pa.StructArray:
    layout = cast(Mapping[str, object], metadata.extra.get("format", DEFAULT_FORMAT))
    options = cast(Mapping[str, str], layout.get("options") or {})
    return _struct(
        {
            "id": ([metadata.id], pa.string()),
            "name": ([metadata.name], pa.string()),
            "description": ([metadata.description], pa.string()),
            "format": (
                [{"provider": layout["provider"], "options": list(options.items())}],
                pa.struct([("provider", pa.string()), ("options", _MAP)]),
            ),
            "schemaString": ([metadata.schema_string], pa.string()),
            "partitionColumns": ([list(metadata.partition_columns)], _STRINGS),
            "configuration": (_maps([metadata.configuration]), _MAP),
            "createdTime": ([metadata.created_time_ms], pa.int64()),
        }
    )


def _txns(txns: Sequence[Txn]) -> pa.StructArray:
    return _struct(
        {
            "appId": ([txn.app_id for txn in txns], pa.string()),
            "version": ([txn.version for txn in txns], pa.int64()),
            "lastUpdated": ([txn.last_updated_ms for txn in txns], pa.int64()),
        }
    )


def _domains(domains: Sequence[DomainMetadata]) -> pa.StructArray:
    return _struct(
        {
            "domain": ([domain.domain for domain in domains], pa.string()),
            "configuration": ([domain.configuration for domain in domains], pa.string()),
            "removed": ([domain.removed for domain in domains], pa.bool_()),
        }
    )


def _adds(files: Sequence[AddFile]) -> pa.StructArray:
    extra = {name for file in files for name in file.extra} & ADD_EXTRA.keys()
    return _struct(
        {
            "path": ([file.encoded_path or encode_path(file.path) for file in files], pa.string()),
            "partitionValues": (_maps(file.partition_values for file in files), _MAP),
            "size": ([file.size_bytes for file in files], pa.int64()),
            "modificationTime": ([file.modification_time_ms for file in files], pa.int64()),
            "dataChange": ([file.data_change for file in files], pa.bool_()),
            "stats": ([file.stats for file in files], pa.string()),
            "tags": (_maps(file.tags or None for file in files), _MAP),
            **_vectors([file.vector for file in files]),
            **{name: ([file.extra.get(name) for file in files], ADD_EXTRA[name]) for name in sorted(extra)},
        }
    )


def _removes(files: Sequence[RemoveFile]) -> pa.StructArray:
    return _struct(
        {
            "path": ([file.encoded_path or encode_path(file.path) for file in files], pa.string()),
            "deletionTimestamp": ([file.deletion_time_ms for file in files], pa.int64()),
            "dataChange": ([file.data_change for file in files], pa.bool_()),
            "extendedFileMetadata": ([False] * len(files), pa.bool_()),
            "size": ([file.size_bytes for file in files], pa.int64()),
            **_vectors([file.vector for file in files]),
        }
    )


def _vectors(vectors: Sequence[DeletionVector | None]) -> dict[str, tuple[Sequence[object], pa.DataType]]:
    """The column of deletion vectors. Checkpoints of tables without any are as they always were."""
    if all(vector is None for vector in vectors):
        return {}
    return {"deletionVector": ([None if vector is None else vector.to_json() for vector in vectors], _VECTOR)}
