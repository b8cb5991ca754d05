"""What the commits of a log say about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lakemerge.delta.actions import CommitInfo, decode_commit_info
from lakemerge.delta.listing import Listing, fetch, list_log, log_exists, no_log, read_hint
from lakemerge.delta.log_replay import timestamp_of
from lakemerge.errors import InputError, TableDamagedError
from lakemerge.storage.base import Store
from mergers.wording import argument

__all__ = ["HistoryEntry", "read_history"]

_MOST_LISTINGS: Final = 5


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    version: int
    timestamp_ms: int
    operation: str | None
    parameters: Mapping[str, object]
    metrics: Mapping[str, object]
    info: Mapping[str, object]
    """Everything else that the commit says about itself."""


def read_history(store: Store, *, limit: int | None = None, known: int = 0) -> list[HistoryEntry]:
    """The commits that are kept, newest first. It works even if the library does not understand the table's
    features.

    With a limit, only the end of the log is listed, from so many commits before a version that the log surely has:
    ``known``, or the one that ``_last_checkpoint`` names.
    """
    given: object = limit
    if given is not None and not (isinstance(given, int) and given >= 0):
        raise InputError(f"{argument('limit')} must be a number of commits, not {given!r}")
    for _ in range(_MOST_LISTINGS):
        stats = sorted(_listed(store, limit, known).commits.items(), reverse=True)[:limit]
        if not stats and limit != 0 and not log_exists(store):
            raise no_log(store)
        try:
            files = list(fetch(store, [stat.path for _, stat in stats]))
        except FileNotFoundError as error:
            # A clean-up ran between listing and reading, or the table was dropped. So the log is listed anew.
            vanished = error
            continue
        return [
            _entry(version, stat.modified_ms, decode_commit_info(data, stat.path))
            for (version, stat), data in zip(stats, files, strict=True)
        ]
    raise TableDamagedError(
        f"commits of the log at {store.url} are listed, but not there: {vanished}", url=store.url
    ) from vanished


def _listed(store: Store, limit: int | None, known: int) -> Listing:
    if limit is not None:
        since = max(known, read_hint(store) or 0) - limit + 1
        if since > 0:
            end = list_log(store, since=since)
            if len(end.commits) >= limit:
                return end
            # Commits are missing, or the hint is wrong.
    return list_log(store)


def _entry(version: int, modified_ms: int, info: CommitInfo | None) -> HistoryEntry:
    fields = {} if info is None else dict(info.fields)
    operation = fields.pop("operation", None)
    parameters = fields.pop("operationParameters", None)
    metrics = fields.pop("operationMetrics", None)
    return HistoryEntry(
        version=version,
        timestamp_ms=timestamp_of(info, modified_ms, in_commit=True),
        operation=operation if isinstance(operation, str) else None,
        parameters=parameters if isinstance(parameters, dict) else {},
        metrics=metrics if isinstance(metrics, dict) else {},
        info=fields,
    )
