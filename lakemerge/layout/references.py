"""Finds the files to which the actions of a log refer. They must not be deleted while a version is readable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from lakemerge.delta import Action, AddFile, DomainMetadata, Snapshot
from lakemerge.errors import UnsupportedFeatureError
from lakemerge.format.base_file import paths_of
from lakemerge.format.block_index import log_paths
from lakemerge.format.consumers import CONSUMER_DOMAIN_PREFIX
from lakemerge.format.conversion import CONVERSION_DOMAIN
from lakemerge.format.ingests import INGEST_DOMAIN_PREFIX, Ingest
from lakemerge.format.minor import Minor
from lakemerge.format.names import (
    EXPIRY_DOMAIN,
    LOG_DOMAIN_PREFIX,
    MINOR_DOMAIN_PREFIX,
    RESET_DOMAIN,
    SAVEPOINT_DOMAIN_PREFIX,
    SLICE_TAG,
    STATE_DOMAIN,
)
from lakemerge.format.record_retention import RECORDS_DOMAIN
from lakemerge.storage.base import Store

__all__ = ["check_domains", "references", "snapshot_references"]

_OURS: Final = "lakemerge."
_WITHOUT_FILES: Final = (STATE_DOMAIN, EXPIRY_DOMAIN, RESET_DOMAIN, RECORDS_DOMAIN, CONVERSION_DOMAIN)
_WITH_NAMES: Final = (
    LOG_DOMAIN_PREFIX,
    MINOR_DOMAIN_PREFIX,
    INGEST_DOMAIN_PREFIX,
    SAVEPOINT_DOMAIN_PREFIX,
    CONSUMER_DOMAIN_PREFIX,
)
"""Beginnings of domains of which a table has any number."""


def snapshot_references(snapshot: Snapshot, store: Store) -> set[str]:
    """The paths of all files that a version needs."""
    return set(references([*snapshot.files.values(), *snapshot.domains.values()], store))


def check_domains(snapshot: Snapshot) -> None:
    """Raise :class:`UnsupportedFeatureError` for a domain of LakeMerge's that this library does not know. What gives up
    versions or files, or ends a table, cannot know what that one needs."""
    for name in snapshot.domains:
        _check_domain(name)


def _check_domain(name: str) -> None:
    known = name in _WITHOUT_FILES or name.startswith(_WITH_NAMES)
    if name.startswith(_OURS) and not known:
        raise UnsupportedFeatureError(
            f"the table has the domain {name!r}, which this library does not know, so it cannot tell what that needs; "
            "install a newer lakemerge",
            domain=name,
        )


def references(actions: Iterable[Action], store: Store) -> Iterator[str]:
    """The paths of all files to which adds and domains refer. Block indexes are read.

    Raises :class:`UnsupportedFeatureError` for a domain of LakeMerge's that this library does not know, because it may
    refer to files.
    """
    for action in actions:
        if isinstance(action, AddFile):
            # A tag is decoded only if it names tombstones. Files that other writers added have no tag.
            tells = '"tombstones"' in action.tags.get(SLICE_TAG, "")
            yield from paths_of(action) if tells else (action.path,)
            if action.vector is not None and not tells:
                yield action.vector.path
        elif isinstance(action, DomainMetadata) and not action.removed:
            yield from _of_domain(action, store)


def _of_domain(domain: DomainMetadata, store: Store) -> Iterable[str]:
    name = domain.domain
    _check_domain(name)
    if name.startswith(LOG_DOMAIN_PREFIX):
        return log_paths(domain, store)
    if name.startswith(MINOR_DOMAIN_PREFIX):
        return Minor.of(domain).paths
    if name.startswith(INGEST_DOMAIN_PREFIX):
        return Ingest.of(domain).paths
    return ()
