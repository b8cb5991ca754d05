"""Retention as users state it, and tombstone expiry by it.

Ages are measured by the store's clock alone: its time now, against the times that it gave to commit files.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from lakemerge.commits.retention import commit_expiry
from lakemerge.delta import AlreadyDone, Metadata, duration_ms, tip_at
from lakemerge.errors import InputError
from lakemerge.format.expiries import expiries_of
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.quantities import byte_count
from lakemerge.results.maintenance import ExpiryResult
from lakemerge.storage.clock import store_time_ms
from mergers.wording import argument

__all__ = [
    "FILE_RETENTION",
    "LOG_RETENTION",
    "MAX_BYTES",
    "RECORD_RETENTION",
    "TOMBSTONE_RETENTION",
    "expire_tombstones",
    "max_history_bytes",
    "property_ms",
    "record_retention_ms",
    "retention_ms",
]

FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
LOG_RETENTION: Final = "delta.logRetentionDuration"
TOMBSTONE_RETENTION: Final = "lakemerge.tombstoneRetention"
RECORD_RETENTION: Final = "lakemerge.recordRetention"
MAX_BYTES: Final = "lakemerge.retention.maxBytes"

_DAY_MS: Final = 86_400_000
_DEFAULTS_MS: Final = {
    FILE_RETENTION: 7 * _DAY_MS,
    LOG_RETENTION: 30 * _DAY_MS,
    TOMBSTONE_RETENTION: 7 * _DAY_MS,
    RECORD_RETENTION: 0,
}


def expire_tombstones(handle: Handle, view: TableView, *, retention: dt.timedelta | None) -> ExpiryResult:
    """Forget old deletes; see :meth:`lakemerge.LakeTable.expire_tombstones`."""
    age_ms = retention_ms(view.snapshot.metadata, TOMBSTONE_RETENTION, retention)
    nothing = ExpiryResult(version=view.version, horizon=None)
    if all(file_slice.tombstones is None for file_slice in view.file_slices):
        return nothing
    now_ms = store_time_ms(handle.store)
    horizon = tip_at(handle.store, now_ms - age_ms, now_ms=now_ms)
    if horizon is None:
        return nothing
    outcome = commit_expiry(handle, view, horizon=horizon)
    if isinstance(outcome, AlreadyDone):
        return nothing
    return ExpiryResult(version=outcome.version, horizon=expiries_of(outcome.snapshot)[-1].horizon)


def retention_ms(metadata: Metadata, name: str, given: object) -> int:
    """The retention in milliseconds: as given, or else from the table property ``name`` or its default.

    Raises :class:`InputError` if it is negative, or if the property cannot be read.
    """
    if given is None:
        return property_ms(metadata, name)
    if not isinstance(given, dt.timedelta) or given < dt.timedelta(0):
        raise InputError(f"{argument('retention')} must be a datetime.timedelta that is not negative, not {given!r}")
    return given // dt.timedelta(milliseconds=1)


def record_retention_ms(metadata: Metadata) -> int | None:
    """How long records are kept, even if reads do not need them; ``None`` if the table does not say."""
    return property_ms(metadata, RECORD_RETENTION) if RECORD_RETENTION in metadata.configuration else None


def max_history_bytes(metadata: Metadata) -> int | None:
    """How many bytes the files may have that only history needs; ``None`` if the table does not say."""
    text = metadata.configuration.get(MAX_BYTES)
    if text is None:
        return None
    try:
        return byte_count(text)
    except InputError as error:
        raise InputError(f"table property {MAX_BYTES!r}: {error.message}", property=MAX_BYTES) from error


def property_ms(metadata: Metadata, name: str) -> int:
    """A duration that is a table property, or its default, in milliseconds."""
    found = duration_ms(metadata, name, default=_DEFAULTS_MS[name])
    if found is None:
        raise InputError(
            f"table property {name!r} is {metadata.configuration[name]!r}, which is not a duration such as "
            "'interval 7 days'",
            property=name,
        )
    return found
