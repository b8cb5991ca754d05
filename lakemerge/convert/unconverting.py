"""A LakeMerge table becomes a plain Delta table: one commit takes away what LakeMerge added to its log.

Other engines see the files alone, so no log may be live then: logs are compacted before, or published where the table
publishes. Source: docs/table-format.md, section 15.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import orjson

from compaction import compact_open
from lakemerge.commits.base import commit_to, landed
from lakemerge.delta import Action, AddFile, Attempt, DomainMetadata, Metadata, Protocol, Snapshot
from lakemerge.errors import CommitConflictError, InputError
from lakemerge.format.consumers import registrations_of
from lakemerge.format.ingests import ingests_of
from lakemerge.format.names import WRITER_FEATURE
from lakemerge.format.operations import Operation
from lakemerge.format.publish import Publish
from lakemerge.format.savepoint import savepoints_of
from lakemerge.layout.references import check_domains
from lakemerge.layout.view import TableView
from lakemerge.results.conversion import UnconversionResult
from lakemerge.table.open_table import OpenTable

__all__ = ["unconvert_table"]

_TRIES = 10
_OF_LAKEMERGE = "lakemerge."
_TIMES = "delta.enableInCommitTimestamps"
_ENABLEMENT = "delta.inCommitTimestampEnablement"
_ENDS = frozenset({WRITER_FEATURE, "domainMetadata", "inCommitTimestamp"})
"""Features that nothing needs without LakeMerge. Some writers do not know them."""


class _LiveLogsError(CommitConflictError):
    """Records have to be merged into files first."""

    code = "live-logs"


def unconvert_table(opened: OpenTable) -> UnconversionResult:
    """See :meth:`lakemerge.LakeTable.unconvert`."""
    started = time.monotonic()
    compacted = False
    for _ in range(_TRIES):
        view = opened.writable()
        _check_unneeded(opened.url, view)
        if not _is_merged(view):
            compacted = True
            published = Publish.of(view.snapshot.metadata.configuration).by_vectors
            result = compact_open(opened, minor=published, strategy=None, where=None, max_bytes=None)
            if result.skipped:
                raise InputError(
                    f"{len(result.skipped)} part(s) of the table have keys whose merge fails, so their records would "
                    "be lost: `lakemerge failed-keys` lists them",
                    skipped=tuple(result.skipped),
                )
            continue
        try:
            after = _committed(opened, view)
        except _LiveLogsError:
            continue
        jobs = tuple(ingests_of(view.snapshot))
        return UnconversionResult(
            url=opened.url,
            version=after.version,
            rows=_rows(after.files.values()),
            compacted=compacted,
            features=tuple(sorted(after.protocol.writer_features)),
            dropped_jobs=jobs,
            seconds=time.monotonic() - started,
        )
    raise CommitConflictError(
        f"records were written to {opened.url} again and again while it was compacted: stop its writers, and try again"
    )


def _check_unneeded(url: str, view: TableView) -> None:
    """Raise :class:`InputError` if somebody needs earlier versions of the table, or follows it, and
    :class:`UnsupportedFeatureError` if it has what this library does not know."""
    check_domains(view.snapshot)
    points, consumers = list(savepoints_of(view.snapshot)), list(registrations_of(view.snapshot))
    if points:
        raise InputError(
            f"the table at {url} has the savepoints {', '.join(map(repr, points))}, which end with it: drop them first",
            savepoints=tuple(points),
        )
    if consumers:
        raise InputError(
            f"the table at {url} has the consumers {', '.join(map(repr, consumers))}, which could not go on: let them "
            "read to the end, and drop them first",
            consumers=tuple(consumers),
        )


def _is_merged(view: TableView) -> bool:
    """Whether the files of the version, and their deletion vectors, have all rows."""
    return all(part.is_merged and (part.minor is None or part.minor.published) for part in view.file_slices)


def _committed(opened: OpenTable, begin: TableView) -> Snapshot:
    def build(tip: TableView) -> Attempt:
        _check_unneeded(opened.url, tip)
        if not _is_merged(tip):
            raise _LiveLogsError("records were written meanwhile")
        actions: list[Action] = [
            _protocol(tip.snapshot.protocol),
            _metadata(tip.snapshot.metadata),
            *(DomainMetadata(name, "", True) for name in tip.snapshot.domains if name.startswith(_OF_LAKEMERGE)),
        ]
        return Attempt(actions, {"numFiles": len(tip.snapshot.files)})

    outcome = commit_to(opened.handle, begin, build, operation=Operation.UNCONVERT, parameters={})
    return landed(outcome).snapshot


def _protocol(present: Protocol) -> Protocol:
    """Features that readers need stay, because earlier versions stay in the log."""
    return Protocol(
        present.min_reader,
        present.min_writer,
        present.reader_features,
        present.writer_features - _ENDS,
        extra=present.extra,
    )


def _metadata(present: Metadata) -> Metadata:
    kept = {
        name: value
        for name, value in present.configuration.items()
        if not name.startswith((_OF_LAKEMERGE, _ENABLEMENT)) and name != _TIMES
    }
    return Metadata(
        id=present.id,
        name=present.name,
        description=present.description,
        schema_string=present.schema_string,
        partition_columns=present.partition_columns,
        configuration=kept,
        created_time_ms=present.created_time_ms,
        extra=present.extra,
    )


def _rows(adds: Iterable[AddFile]) -> int | None:
    """``None``: a file does not say how many rows it has."""
    total = 0
    for add in adds:
        count = None if add.stats is None else orjson.loads(add.stats).get("numRecords")
        if not isinstance(count, int):
            return None
        total += count - (0 if add.vector is None else add.vector.cardinality)
    return total
