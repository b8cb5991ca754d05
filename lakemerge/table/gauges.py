"""Numbers about a table for a scraper, as OpenMetrics text (https://prometheus.io/docs/specs/om/open_metrics_spec)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lakemerge.delta import Snapshot
from lakemerge.delta.listing import commit_path
from lakemerge.format.names import VACUUM_APPLICATION
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.storage import Store
from lakemerge.table.describe import detail_of

__all__ = ["TableGauges", "gauges_of", "openmetrics"]

_HELP: Final = {
    "version": "The latest version of the table.",
    "commit_timestamp_seconds": "When the latest version was committed.",
    "rows": "Rows in base files, with those that newer records supersede.",
    "base_files": "Base files.",
    "base_bytes": "Bytes of base files.",
    "winner_files": "Files that minor compactions have written since the last full one.",
    "winner_bytes": "Bytes of those files.",
    "pending_commits": "Commits with records that no compaction has taken up.",
    "pending_rows": "Records that no compaction has taken up.",
    "pending_bytes": "Uncompressed bytes of those records.",
    "oldest_pending_timestamp_seconds": "When the oldest of those commits was made, by the store's clock.",
    "dirty_buckets": "Buckets with such records.",
    "buckets": "Buckets with rows or records.",
    "read_amplification": "Bytes that a full read reads, per byte of base file.",
    "compaction_timestamp_seconds": "When the newest base or winner file was written.",
    "vacuum_timestamp_seconds": "When maintenance last ran a vacuum.",
    "consumer_version": "The version up to which a consumer has read.",
}
_PREFIX: Final = "lakemerge_"


@dataclass(frozen=True, slots=True)
class TableGauges:
    """The numbers of one table. A number that the table does not have (yet) is left out."""

    url: str
    values: Mapping[str, float]
    """Name, as in ``_HELP`` -> value."""
    consumers: Mapping[str, int]
    """Consumer -> the version up to which it has read."""

    def __str__(self) -> str:
        """OpenMetrics text."""
        return openmetrics([self])


def gauges_of(handle: Handle, view: TableView, consumers: Mapping[str, int]) -> TableGauges:
    """The numbers of a version. Metadata alone is read: the snapshot, and the time of the oldest pending commit."""
    detail, snapshot = detail_of(handle, view), view.snapshot
    values: dict[str, float | None] = {
        "version": detail.version,
        "commit_timestamp_seconds": snapshot.timestamp_ms / 1000,
        "rows": detail.base_rows,
        "base_files": detail.base_files,
        "base_bytes": detail.base_bytes,
        "winner_files": detail.winner_files,
        "winner_bytes": detail.winner_bytes,
        "pending_commits": detail.log_commits,
        "pending_rows": detail.log_rows,
        "pending_bytes": detail.log_bytes,
        "oldest_pending_timestamp_seconds": _oldest_pending(handle.store, view),
        "dirty_buckets": detail.dirty_buckets,
        "buckets": detail.filled_buckets,
        "read_amplification": detail.read_amplification,
        "compaction_timestamp_seconds": _last_written(snapshot),
        "vacuum_timestamp_seconds": _last_vacuum(snapshot),
    }
    return TableGauges(
        detail.url, {name: value for name, value in values.items() if value is not None}, dict(consumers)
    )


def _oldest_pending(store: Store, view: TableView) -> float | None:
    """Seconds since 1970; ``None`` if nothing is pending, or if the log no longer has that commit."""
    live = (file_slice.oldest_live for file_slice in view.file_slices)
    oldest = min((version for version in live if version is not None), default=None)
    if oldest is None:
        return None
    commit = store.stat(commit_path(oldest))
    return None if commit is None else commit.modified_ms / 1000


def _last_written(snapshot: Snapshot) -> float | None:
    times = [add.modification_time_ms for add in snapshot.files.values()]
    return max(times) / 1000 if times else None


def _last_vacuum(snapshot: Snapshot) -> float | None:
    noted = snapshot.txns.get(VACUUM_APPLICATION)
    return None if noted is None or noted.last_updated_ms is None else noted.last_updated_ms / 1000


def openmetrics(tables: Sequence[TableGauges]) -> str:
    """OpenMetrics text with the numbers of some tables. Each metric is a gauge with the label ``table``."""
    return "".join(f"{line}\n" for line in _lines(tables))


def _lines(tables: Sequence[TableGauges]) -> Iterator[str]:
    for name, text in _HELP.items():
        samples = [(_labels(table=table.url), table.values[name]) for table in tables if name in table.values]
        if name == "consumer_version":
            samples = [
                (_labels(table=table.url, consumer=consumer), version)
                for table in tables
                for consumer, version in table.consumers.items()
            ]
        if samples:
            yield f"# TYPE {_PREFIX}{name} gauge"
            yield f"# HELP {_PREFIX}{name} {text}"
            for labels, value in samples:
                yield f"{_PREFIX}{name}{labels} {value!r}"
    yield "# EOF"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
