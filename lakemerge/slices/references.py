"""Which files the actions of a log refer to: what must not be deleted while a version is readable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import orjson

from lakemerge.config import LOG_DOMAIN_PREFIX, STATE_DOMAIN
from lakemerge.errors import TableDamagedError, UnsupportedFeatureError
from lakemerge.log import Action, AddFile, DomainMetadata, Snapshot
from lakemerge.slices.blocks import log_paths
from lakemerge.slices.expiry import EXPIRY_DOMAIN
from lakemerge.slices.minor import MINOR_DOMAIN_PREFIX, Minor
from lakemerge.slices.model import SLICE_TAG
from lakemerge.slices.savepoints import SAVEPOINT_DOMAIN_PREFIX
from lakemerge.storage.base import Store

__all__ = ["references", "snapshot_references"]

_WITHOUT_FILES: Final = (STATE_DOMAIN, EXPIRY_DOMAIN)


def snapshot_references(snapshot: Snapshot, store: Store) -> set[str]:
    """The paths of all files that a version needs."""
    return set(references([*snapshot.files.values(), *snapshot.domains.values()], store))


def references(actions: Iterable[Action], store: Store) -> Iterator[str]:
    """The paths of all files that adds and domains refer to; block indexes are read.

    Raises :class:`UnsupportedFeatureError` for a domain of ours that this library does not know: it may
    refer to files.
    """
    for action in actions:
        if isinstance(action, AddFile):
            yield action.path
            tag = action.tags.get(SLICE_TAG, "")
            if '"tombstones"' in tag:
                yield _tombstones(action, tag)
        elif isinstance(action, DomainMetadata) and not action.removed and action.domain.startswith("lakemerge."):
            yield from _of_domain(action, store)


def _tombstones(add: AddFile, tag: str) -> str:
    try:
        path = orjson.loads(tag)["tombstones"]
        if not isinstance(path, str):
            raise TypeError(f"a path must be a string, not {path!r}")
        return path
    except (KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(
            f"the {SLICE_TAG!r} tag of file {add.path!r} is damaged: {error!r}", path=add.path
        ) from error


def _of_domain(domain: DomainMetadata, store: Store) -> Iterable[str]:
    name = domain.domain
    if name.startswith(LOG_DOMAIN_PREFIX):
        return log_paths(domain, store)
    if name.startswith(MINOR_DOMAIN_PREFIX):
        return Minor.of(domain).paths
    if name in _WITHOUT_FILES or name.startswith(SAVEPOINT_DOMAIN_PREFIX):
        return ()
    raise UnsupportedFeatureError(
        f"the table has the domain {name!r}, which this library does not know, so it cannot tell which files are in "
        "use; install a newer lakemerge",
        domain=name,
    )
