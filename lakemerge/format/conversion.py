"""That a table was converted, and which files it had before. Source: docs/table-format.md, section 15."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge._internal.parquet import ParquetFile
from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.errors import TableDamagedError
from lakemerge.format.names import FORMER_FOLDER
from lakemerge.format.values import whole_number
from lakemerge.storage.base import Store, check_path

__all__ = ["CONVERSION_DOMAIN", "Conversion", "FormerFile", "former_path", "read_former", "write_former"]

CONVERSION_DOMAIN: Final = "lakemerge.converted"

_SCHEMA: Final = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
_ROWS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class FormerFile:
    """A file that the table had before it was converted."""

    path: str
    size_bytes: int
    """0 if nobody noted it."""
    kind: str
    """``data`` or ``vectors``."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the domain says."""

    version: int
    """The version that the conversion made, the oldest one that LakeMerge reads."""
    former: str
    """The list of the former files. It is deleted with the last of these."""

    def domain(self) -> DomainMetadata:
        body = {"version": self.version, "former": self.former}
        return DomainMetadata(CONVERSION_DOMAIN, orjson.dumps(body).decode(), False)

    @staticmethod
    def of(snapshot: Snapshot) -> Conversion | None:
        """``None``: the table was not converted."""
        domain = snapshot.domains.get(CONVERSION_DOMAIN)
        if domain is None:
            return None
        try:
            body = orjson.loads(domain.configuration)
            return Conversion(whole_number(body["version"]), check_path(str(body["former"])))
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error


def former_path(version: int, transaction_id: str) -> str:
    """Where a conversion that makes a version keeps its list."""
    return f"{FORMER_FOLDER}/{version:020d}-{transaction_id}.parquet"


def write_former(store: Store, path: str, files: Iterable[FormerFile]) -> None:
    """Write the list, as a new file."""
    with store.open_output(path) as sink, pq.ParquetWriter(sink, _SCHEMA, compression="zstd") as writer:
        rows: list[dict[str, object]] = []
        for file in files:
            rows.append({"path": file.path, "size": file.size_bytes, "kind": file.kind})
            if len(rows) == _ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))


def read_former(store: Store, path: str) -> Iterator[FormerFile]:
    """The list. Raises :class:`FileNotFoundError` if it is gone, and :class:`TableDamagedError` if it is none."""
    with store.open_input(path) as source:
        try:
            for batch in ParquetFile(source).iter_batches(_ROWS, columns=_SCHEMA.names):
                for row in batch.to_pylist():
                    yield FormerFile(check_path(row["path"]), int(row["size"]), str(row["kind"]))
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"the list {path!r} of former files cannot be read: {error}", path=path) from error
