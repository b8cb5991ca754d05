"""Tombstone expiry: which tombstones are forgotten, and from which version on.

Source: docs/table-format.md, section 6; docs/merge-semantics.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.errors import TableDamagedError
from lakemerge.format.names import EXPIRY_DOMAIN
from lakemerge.format.values import whole_number

__all__ = ["Expiry", "expiries_of", "expiry_domain"]


@dataclass(frozen=True, slots=True)
class Expiry:
    """One expiry. Once all records of versions up to and including ``version`` are folded, tombstones that were set by
    records of versions up to and including ``horizon`` are gone. No log at or below the horizon was live at
    ``version``, so all such tombstones are in tombstone files."""

    version: int
    horizon: int


def expiry_domain(expiries: Sequence[Expiry]) -> DomainMetadata:
    """The domain that holds all expiries that some file slice may still have to fold."""
    body = {"expiries": [[expiry.version, expiry.horizon] for expiry in expiries]}
    return DomainMetadata(EXPIRY_DOMAIN, orjson.dumps(body).decode(), False)


def expiries_of(snapshot: Snapshot) -> tuple[Expiry, ...]:
    """The table's expiries. Versions and horizons ascend."""
    domain = snapshot.domains.get(EXPIRY_DOMAIN)
    if domain is None:
        return ()
    try:
        pairs = orjson.loads(domain.configuration)["expiries"]
        return tuple(Expiry(whole_number(version), whole_number(horizon)) for version, horizon in pairs)
    except (KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error
