"""Reading checkpoints: the rows of each kind of action, column by column.

A checkpoint of V1 is Parquet. One of V2 is Parquet or JSON, and may name *sidecars*, Parquet files with the data files
(Delta protocol, "Checkpoints").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.collector import collector_paused
from lakemerge._internal.parquet import ParquetFile
from lakemerge.delta.actions import (
    UNPLAIN_PATH,
    Action,
    AddFile,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    decode,
    decode_path,
)
from lakemerge.delta.listing import SIDECAR_FOLDER, Checkpoint
from lakemerge.delta.snapshot import SnapshotBuilder
from lakemerge.delta.vectors import DeletionVector
from lakemerge.errors import InputError, TableDamagedError, UnsupportedFeatureError
from lakemerge.storage.base import Store, is_own_failure

__all__ = ["ADD_EXTRA", "COMMIT_DIGEST", "read_checkpoint"]

COMMIT_DIGEST: Final = "lakemerge.commit"
"""The key in the footer's metadata under which a checkpoint of LakeMerge has the digest of its commit's file."""

ADD_EXTRA: Final[Mapping[str, pa.DataType]] = {
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
    "clusteringProvider": pa.string(),
}
"""Optional fields of ``add`` that the protocol defines and this library only carries along."""

_COLUMNS: Final = (
    "protocol",
    "metaData",
    "txn",
    "domainMetadata",
    *(f"add.{name}" for name in ("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags")),
    *(f"add.{name}" for name in (*ADD_EXTRA, "deletionVector")),
    *(f"remove.{name}" for name in ("path", "deletionTimestamp", "dataChange", "partitionValues", "size")),
    "remove.deletionVector",
    "sidecar",
)
"""The columns that are read. Parsed statistics and partition values are not read."""


def read_checkpoint(store: Store, checkpoint: Checkpoint) -> SnapshotBuilder:
    """The state that a checkpoint holds. Raises :class:`TableDamagedError`, which names the file, if it cannot be read,
    and :class:`FileNotFoundError` if it was deleted since it was listed."""
    replay = SnapshotBuilder()
    digests: set[str | None] = set()
    for part in checkpoint.parts:
        # Fetched whole, so that a failing store is not taken for a damaged file: pyarrow
        # reports both as OSError.
        data = store.get(part.path)
        sidecars: list[str] = []
        try:
            with collector_paused():
                if part.path.endswith(".json"):
                    replay.apply(decode(data, part.path))
                    sidecars = _sidecars_in_json(data)
                    digests.add(None)
                else:
                    file = ParquetFile(pa.BufferReader(data))
                    table = file.read(list(_COLUMNS))
                    replay.apply(_actions(table))
                    sidecars = _sidecars(table)
                    digests.add(_digest(file))
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, InputError) as error:
            if isinstance(error, OSError) and not is_own_failure(error):
                raise
            raise TableDamagedError(f"{part.path} cannot be read: {error}", path=part.path) from error
        for name in sidecars:
            _read_sidecar(store, part.path, name, replay)
    replay.digest = digests.pop() if len(digests) == 1 else None
    return replay


def _read_sidecar(store: Store, checkpoint: str, name: str, replay: SnapshotBuilder) -> None:
    """Take up the data files that a sidecar of a checkpoint names.

    Raises :class:`UnsupportedFeatureError` for one in another place than the log's folder of sidecars.
    """
    if "/" in name:
        raise UnsupportedFeatureError(
            f"{checkpoint} has its sidecar at {name!r}, and this library reads sidecars in {SIDECAR_FOLDER}",
            features=("v2Checkpoint",),
        )
    path = f"{SIDECAR_FOLDER}/{name}"
    try:
        data = store.get(path)
    except FileNotFoundError as error:
        raise TableDamagedError(f"{path} is missing, which {checkpoint} names", path=checkpoint) from error
    try:
        with collector_paused():
            replay.apply(_actions(ParquetFile(pa.BufferReader(data)).read(list(_COLUMNS))))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, InputError) as error:
        if isinstance(error, OSError) and not is_own_failure(error):
            raise
        raise TableDamagedError(f"{path} cannot be read: {error}", path=checkpoint) from error


def _sidecars(table: pa.Table) -> list[str]:
    if "sidecar" not in table.column_names:
        return []
    rows = table.column("sidecar").combine_chunks().drop_null()
    return cast(list[str], _Columns(rows).required("path")) if len(rows) else []


def _sidecars_in_json(data: bytes) -> list[str]:
    lines = (orjson.loads(line) for line in data.split(b"\n") if b'"sidecar"' in line)
    return [line["sidecar"]["path"] for line in lines if line.get("sidecar") is not None]


def _digest(file: ParquetFile) -> str | None:
    said = (file.metadata.metadata or {}).get(COMMIT_DIGEST.encode())
    return None if said is None else said.decode()


def _actions(table: pa.Table) -> Iterable[Action]:
    for name, read in _READERS.items():
        if name in table.column_names:
            for chunk in table.column(name).chunks:
                rows = cast(pa.StructArray, chunk.drop_null())
                if len(rows):
                    yield from read(_Columns(rows))


class _Columns:
    """The fields of a struct array as Python lists; a missing field is all null."""

    def __init__(self, rows: pa.StructArray) -> None:
        self.count = len(rows)
        self._fields = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def values(self, name: str) -> list[object]:
        array = self._fields.get(name)
        return [None] * self.count if array is None else array.to_pylist()

    def texts(self, name: str) -> list[str | None]:
        return cast(list[str | None], self.values(name))

    def integers(self, name: str) -> list[int | None]:
        return cast(list[int | None], self.values(name))

    def required(self, name: str) -> list[object]:
        values = self.values(name)
        if None in values:
            raise ValueError(f"null in {name!r}")
        return values

    def flags(self, name: str, *, default: bool) -> list[bool]:
        return [default if value is None else bool(value) for value in self.values(name)]

    def maps(self, name: str) -> list[dict[str, str | None] | None]:
        array = self._fields.get(name)
        if array is None:
            return [None] * self.count
        offsets = array.offsets.to_pylist()
        # The children of a sliced map are not sliced, and the offsets point into them.
        keys, items = cast(list[str], array.keys.to_pylist()), array.items.to_pylist()
        return [
            dict(zip(keys[start:end], items[start:end], strict=True)) if valid else None
            for start, end, valid in zip(offsets[:-1], offsets[1:], array.is_valid().to_pylist(), strict=True)
        ]

    def strings(self, name: str) -> list[dict[str, str]]:
        return [{k: v for k, v in (value or {}).items() if v is not None} for value in self.maps(name)]

    def paths(self) -> list[tuple[str, str | None]]:
        spelled = cast(list[str], self.required("path"))
        unplain = pc.match_substring_regex(self._fields["path"], UNPLAIN_PATH)
        if not pc.any(unplain).as_py():
            return [(path, None) for path in spelled]
        return [
            decode_path(path) if check else (path, None)
            for path, check in zip(spelled, unplain.to_pylist(), strict=True)
        ]


def _read_protocol(columns: _Columns) -> Iterable[Action]:
    for reader, writer, reads, writes in zip(
        cast(list[int], columns.required("minReaderVersion")),
        cast(list[int], columns.required("minWriterVersion")),
        cast(list[list[str] | None], columns.values("readerFeatures")),
        cast(list[list[str] | None], columns.values("writerFeatures")),
        strict=True,
    ):
        yield Protocol(reader, writer, frozenset(reads or ()), frozenset(writes or ()))


def _read_metadata(columns: _Columns) -> Iterable[Action]:
    for key, name, description, layout, schema, partition_columns, configuration, created in zip(
        cast(list[str], columns.required("id")),
        columns.texts("name"),
        columns.texts("description"),
        cast(list[dict[str, object] | None], columns.values("format")),
        cast(list[str], columns.required("schemaString")),
        cast(list[list[str] | None], columns.values("partitionColumns")),
        columns.strings("configuration"),
        columns.integers("createdTime"),
        strict=True,
    ):
        provider = "parquet" if layout is None else layout.get("provider")
        if provider != "parquet":
            raise UnsupportedFeatureError(f"data files of format {provider!r} are not supported", format=provider)
        options = dict(cast(list[tuple[str, str]], (layout or {}).get("options") or []))
        extra = {"format": {"provider": provider, "options": options}} if options else {}
        yield Metadata(key, name, description, schema, tuple(partition_columns or ()), configuration, created, extra)


def _read_txns(columns: _Columns) -> Iterable[Action]:
    app_ids = cast(list[str], columns.required("appId"))
    versions = cast(list[int], columns.required("version"))
    return map(Txn, app_ids, versions, columns.integers("lastUpdated"))


def _read_domains(columns: _Columns) -> Iterable[Action]:
    domains = cast(list[str], columns.required("domain"))
    configurations = cast(list[str], columns.required("configuration"))
    return map(DomainMetadata, domains, configurations, columns.flags("removed", default=False))


def _vectors(columns: _Columns) -> list[DeletionVector | None]:
    values = columns.values("deletionVector")
    return list(map(DeletionVector.from_json, values)) if "deletionVector" in columns else [None] * len(values)


def _read_adds(columns: _Columns) -> Iterable[Action]:
    vectors = _vectors(columns)
    extra = {name: columns.values(name) for name in ADD_EXTRA if name in columns}
    sizes = cast(list[int], columns.required("size"))
    times = cast(list[int], columns.required("modificationTime"))
    changes = columns.flags("dataChange", default=True)
    stats = columns.texts("stats")
    tags = columns.strings("tags")
    partitions = columns.maps("partitionValues")
    for row, (path, encoded_path) in enumerate(columns.paths()):
        yield AddFile(
            path,
            partitions[row] or {},
            sizes[row],
            times[row],
            changes[row],
            stats[row],
            tags[row],
            {name: values[row] for name, values in extra.items() if values[row] is not None},
            encoded_path,
            vectors[row],
        )


def _read_removes(columns: _Columns) -> Iterable[Action]:
    times = columns.integers("deletionTimestamp")
    changes = columns.flags("dataChange", default=True)
    partitions = columns.maps("partitionValues")
    sizes = columns.integers("size")
    vectors = _vectors(columns)
    for row, (path, encoded_path) in enumerate(columns.paths()):
        yield RemoveFile(
            path,
            times[row],
            changes[row],
            partitions[row],
            sizes[row],
            encoded_path=encoded_path,
            vector=vectors[row],
        )


_READERS: Final[Mapping[str, Callable[[_Columns], Iterable[Action]]]] = {
    "protocol": _read_protocol,
    "metaData": _read_metadata,
    "txn": _read_txns,
    "domainMetadata": _read_domains,
    "add": _read_adds,
    "remove": _read_removes,
}
