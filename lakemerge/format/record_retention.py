"""From which version on a table keeps the records of its commits, beyond what reads need.

Source: docs/table-format.md, section 7.
"""

from __future__ import annotations

from typing import Final

import orjson

from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.errors import TableDamagedError
from lakemerge.format.state import State
from lakemerge.format.values import whole_number

__all__ = ["RECORDS_DOMAIN", "records_domain", "records_from"]

RECORDS_DOMAIN: Final = "lakemerge.records"


def records_domain(version: int) -> DomainMetadata:
    """The domain that says from which version on records are kept."""
    return DomainMetadata(RECORDS_DOMAIN, orjson.dumps({"version": version}).decode(), False)


def records_from(snapshot: Snapshot) -> int:
    """The version from which on all records are kept: its own files, and the logs of later commits."""
    oldest = State.of(snapshot).oldest_version
    domain = snapshot.domains.get(RECORDS_DOMAIN)
    if domain is None:
        return oldest
    try:
        return min(oldest, whole_number(orjson.loads(domain.configuration)["version"]))
    except (KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error
