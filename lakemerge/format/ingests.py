"""The state of the jobs that fill a table from files: a domain for each job, and the files that the domain names.

Source: docs/table-format.md, section 9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.errors import InputError, TableDamagedError
from lakemerge.format.values import stored_path, whole_number

__all__ = ["INGEST_DOMAIN_PREFIX", "INGEST_FOLDER", "Ingest", "NamedFile", "check_job_name", "ingests_of"]

INGEST_DOMAIN_PREFIX: Final = "lakemerge.ingest."
INGEST_FOLDER: Final = "_lakemerge/ingest"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A ledger file or rejects file (Parquet)."""

    path: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Ingest:
    """One job at one version of the table."""

    name: str
    table_id: str
    """The id of the table that the ledger is about."""
    generation: int = 1
    """Raised when the job is reset."""
    window: int = 0
    """The last window that was committed. It is never set back."""
    restore_epoch: int = 0
    """The table's restore epoch when the job began or was last reset. While the two are equal, the ledger says what is
    in the table."""
    ledger: tuple[NamedFile, ...] = ()
    """The ledger files, oldest first. For each piece of a source file, the latest file counts."""
    rejects: tuple[NamedFile, ...] = ()
    source: Mapping[str, Any] | None = None
    """Locations and format of the source, for people. Options of a store are not kept."""

    @property
    def domain_name(self) -> str:
        return INGEST_DOMAIN_PREFIX + self.name

    @property
    def paths(self) -> Iterator[str]:
        return (file.path for file in (*self.ledger, *self.rejects))

    def domain(self) -> DomainMetadata:
        body = {
            "tableId": self.table_id,
            "generation": self.generation,
            "window": self.window,
            "restoreEpoch": self.restore_epoch,
            "ledger": [[file.path, file.size_bytes, file.rows] for file in self.ledger],
            "rejects": [[file.path, file.size_bytes, file.rows] for file in self.rejects],
            "source": self.source,
        }
        return DomainMetadata(self.domain_name, orjson.dumps(body).decode(), False)

    @staticmethod
    def of(domain: DomainMetadata) -> Ingest:
        try:
            body = orjson.loads(domain.configuration)
            source = body.get("source")
            if not isinstance(body["tableId"], str) or not isinstance(source, dict | None):
                raise TypeError("tableId or source")
            return Ingest(
                name=domain.domain.removeprefix(INGEST_DOMAIN_PREFIX),
                table_id=body["tableId"],
                generation=whole_number(body["generation"]),
                window=whole_number(body["window"]),
                restore_epoch=whole_number(body["restoreEpoch"]),
                ledger=tuple(_file(*entry) for entry in body["ledger"]),
                rejects=tuple(_file(*entry) for entry in body["rejects"]),
                source=source,
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error


def check_job_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"an ingest job's name has up to 100 letters, digits, '.', '_' and '-', and starts with one of the former "
            f"two, not {name!r}"
        )
    return name


def ingests_of(snapshot: Snapshot) -> dict[str, Ingest]:
    """The jobs by name."""
    domains = [d for name, d in snapshot.domains.items() if name.startswith(INGEST_DOMAIN_PREFIX)]
    return {job.name: job for job in sorted(map(Ingest.of, domains), key=lambda job: job.name)}


def _file(path: object, size: object, rows: object) -> NamedFile:
    return NamedFile(stored_path(path), whole_number(size), whole_number(rows))
