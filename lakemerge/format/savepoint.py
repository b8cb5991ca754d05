"""Savepoints: names of versions that stay readable whatever is vacuumed.

Source: docs/table-format.md, section 7. A savepoint is a domain of its own, so that savers of different
names do not conflict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson

from lakemerge.delta import DomainMetadata, Snapshot
from lakemerge.errors import InputError, TableDamagedError
from lakemerge.format.names import SAVEPOINT_DOMAIN_PREFIX
from lakemerge.format.values import whole_number
from mergers.wording import in_python

__all__ = ["Savepoint", "check_no_holds", "check_savepoint_name", "savepoints_of"]


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A named version; :meth:`lakemerge.LakeTable.savepoint`."""

    name: str
    version: int
    created_ms: int
    """UTC epoch milliseconds."""
    hold: bool = False
    """Whether it is a hold: as long as it is there, no file of the table is deleted."""

    @property
    def domain_name(self) -> str:
        return SAVEPOINT_DOMAIN_PREFIX + self.name

    def domain(self) -> DomainMetadata:
        body: dict[str, object] = {"version": self.version, "created": self.created_ms}
        if self.hold:
            body["hold"] = True
        return DomainMetadata(self.domain_name, orjson.dumps(body).decode(), False)


def check_savepoint_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"a savepoint's name has up to 100 letters, digits, '.', '_' and '-', and starts with one of the former "
            f"two, not {name!r}"
        )
    return name


def check_no_holds(snapshot: Snapshot, what: str) -> None:
    """Raises :class:`InputError` if the table has holds.

    :param what: what cannot be done, such as ``"a vacuum"``.
    """
    names = [savepoint.name for savepoint in savepoints_of(snapshot).values() if savepoint.hold]
    if names:
        raise InputError(
            f"{what} deletes files, and the table has the hold {', '.join(map(repr, names))}: nothing of the table is "
            f"deleted until the hold is released{in_python(' (table.drop_savepoint(name, hold=True))')}",
            savepoints=tuple(names),
        )


def savepoints_of(snapshot: Snapshot) -> dict[str, Savepoint]:
    """By name, oldest version first."""
    domains = [d for name, d in snapshot.domains.items() if name.startswith(SAVEPOINT_DOMAIN_PREFIX)]
    found = sorted(map(_decode, domains), key=lambda savepoint: (savepoint.version, savepoint.name))
    return {savepoint.name: savepoint for savepoint in found}


def _decode(domain: DomainMetadata) -> Savepoint:
    try:
        body = orjson.loads(domain.configuration)
        name = domain.domain.removeprefix(SAVEPOINT_DOMAIN_PREFIX)
        version, created = whole_number(body["version"]), whole_number(body["created"])
        hold = body.get("hold", False)
        if not isinstance(hold, bool):
            raise TypeError("hold")
        return Savepoint(name, version, created, hold)
    except (KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error
