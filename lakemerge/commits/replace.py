"""Replace: a commit in a table's own log that gives the table a new definition and no rows.

Source: docs/table-format.md, section 4. What describes the old rows goes: files, logs, minor entries, expiries, the
jobs that filled the table, and the transactions of applications. What keeps earlier versions readable, and what must
never be used twice, stays: savepoints, consumers, the fence of vacuum, reserved ordinals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lakemerge.commits.compaction import removal
from lakemerge.delta import Action, Attempt, DomainMetadata, Metadata, Protocol, RemoveFile, Snapshot, Txn
from lakemerge.format.ingests import INGEST_DOMAIN_PREFIX
from lakemerge.format.names import (
    EXPIRY_DOMAIN,
    LOG_DOMAIN_PREFIX,
    MINOR_DOMAIN_PREFIX,
    RESET_DOMAIN,
    VACUUM_APPLICATION,
)
from lakemerge.format.state import State
from lakemerge.layout.references import check_domains
from lakemerge.layout.view import TableView

__all__ = ["replacement"]

_OF_ROWS = (LOG_DOMAIN_PREFIX, MINOR_DOMAIN_PREFIX, INGEST_DOMAIN_PREFIX)
_ENABLEMENT = "delta.inCommitTimestampEnablement"
"""The beginning of the properties that say since when commits carry their times. The log keeps its earlier commits."""


def replacement(view: TableView, metadata: Metadata, protocol: Protocol, now_ms: int) -> Attempt:
    """The commit that makes the table at ``view`` the one that ``metadata`` and ``protocol`` define, without rows. It
    is valid at any tip: whatever was committed before is replaced.

    :param metadata: with an id of its own, by which everybody tells the two tables apart.
    :raises UnsupportedFeatureError: a newer library keeps something in the table that this one does not know.
    """
    tip = view.snapshot
    kept = {name: value for name, value in tip.metadata.configuration.items() if name.startswith(_ENABLEMENT)}
    defined = dataclasses.replace(metadata, configuration={**metadata.configuration, **kept})
    grown = _joined(tip.protocol, protocol)
    files = [removal(add, now_ms) for add in tip.files.values()]
    return Attempt(
        [
            *([] if grown == tip.protocol else [grown]),
            defined,
            _state(view.state).domain(),
            *files,
            *_ended_domains(tip),
            *_forgotten(tip, now_ms),
        ],
        _metrics(files),
    )


def _joined(present: Protocol, wanted: Protocol) -> Protocol:
    """The protocol that allows what both allow. Earlier versions stay in the log, so it is never lowered."""
    return dataclasses.replace(
        present,
        min_reader=max(present.min_reader, wanted.min_reader),
        min_writer=max(present.min_writer, wanted.min_writer),
        reader_features=present.reader_features | wanted.reader_features,
        writer_features=present.writer_features | wanted.writer_features,
    )


def _state(present: State) -> State:
    """All epochs are raised, so that nothing that began before can land. No ordinal is given twice."""
    return dataclasses.replace(
        present,
        merger_epoch=present.merger_epoch + 1,
        layout_epoch=present.layout_epoch + 1,
        schema_epoch=present.schema_epoch + 1,
        restore_epoch=present.restore_epoch + 1,
        overwrite_epoch=present.overwrite_epoch + 1,
    )


def _ended_domains(tip: Snapshot) -> Iterator[Action]:
    check_domains(tip)
    for name in tip.domains:
        if name in (EXPIRY_DOMAIN, RESET_DOMAIN) or name.startswith(_OF_ROWS):
            yield DomainMetadata(name, "", True)


def _forgotten(tip: Snapshot, now_ms: int) -> Iterator[Action]:
    """What applications wrote is gone, so what they write again is no repetition. When the table was last vacuumed is
    still known."""
    return (Txn(app, Txn.FORGOTTEN, now_ms) for app in tip.txns if app != VACUUM_APPLICATION)


def _metrics(files: list[RemoveFile]) -> dict[str, object]:
    return {"numRemovedFiles": len(files), "removedFilesSize": sum(file.size_bytes or 0 for file in files)}
