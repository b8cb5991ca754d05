"""Values that say who commits and why, what a commit carries in addition to rows, and what it needs at the tip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

import orjson

from lakemerge._internal.arguments import shown
from lakemerge.delta import Action, Snapshot, Transaction, check_info
from lakemerge.errors import CommitConflictError, InputError
from mergers.wording import argument

__all__ = ["Along", "DomainChangedError", "DomainIs", "Isolation", "Precondition", "Provenance", "caller_info"]

Isolation = Literal["snapshot", "serializable"]
"""``snapshot``: a transaction conflicts with commits that wrote one of its keys. ``serializable``: also with commits
that wrote any other record."""

_OURS: Final = frozenset(
    {"clauses", "forget", "ingest", "isBlindAppend", "isolationLevel", "predicate", "replay", "sent", "set"}
)
"""Entries of ``commitInfo`` that operations of the library write, beside those of the log itself, and
``isolationLevel``, which Delta defines."""
_OUR_PREFIX: Final = "lakemerge."


def caller_info(info: Mapping[str, object] | None) -> Mapping[str, object]:
    """The entries of ``commitInfo`` that a caller gives.

    :raises InputError: they do not fit into JSON, or one has a name that is the library's.
    """
    if info is None:
        return {}
    given: object = info
    try:
        fits = isinstance(given, Mapping) and isinstance(orjson.loads(orjson.dumps(dict(given))), dict)
    except TypeError as error:
        raise InputError(f"{argument('info')} must be a mapping that JSON can hold: {error}") from error
    if not fits:
        raise InputError(f"{argument('info')} must be a mapping of names to JSON values, not {shown(info)}")
    check_info(info)
    taken = sorted(name for name in info if name in _OURS or name.startswith(_OUR_PREFIX))
    if taken:
        raise InputError(f"commit info keys {taken} are the library's own; choose other names", keys=tuple(taken))
    return info


class DomainChangedError(CommitConflictError):
    """Somebody else changed a domain that the commit would change."""

    code = "domain-changed"


class Precondition(Protocol):
    """A condition on the tip for a commit to be valid. It is checked anew at every attempt."""

    def check(self, tip: Snapshot) -> None:
        """Raises :class:`CommitConflictError` if the condition does not hold."""


@dataclass(frozen=True, slots=True)
class DomainIs:
    """The condition that a domain is as it was read; ``None``: that there is none."""

    name: str
    configuration: str | None

    def check(self, tip: Snapshot) -> None:
        domain = tip.domains.get(self.name)
        if (None if domain is None else domain.configuration) != self.configuration:
            raise DomainChangedError(f"{self.name!r} was changed by somebody else meanwhile", domain=self.name)


@dataclass(frozen=True, slots=True)
class Along:
    """Actions of a commit in addition to its records. They are valid only if all of ``requires`` hold at the tip."""

    actions: tuple[Action, ...] = ()
    requires: tuple[Precondition, ...] = ()

    def at(self, tip: Snapshot) -> tuple[Action, ...]:
        """The actions. Raises :class:`CommitConflictError` if the tip is not as required."""
        for precondition in self.requires:
            precondition.check(tip)
        return self.actions


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who commits and why; the same for every attempt."""

    operation: str
    parameters: Mapping[str, object]
    transaction: Transaction
    app_txn: tuple[str, int] | None = None
    """``(appId, version)`` that makes a repeated write a no-op."""
    info: Mapping[str, object] = field(default_factory=dict)
    """Further keys of ``commitInfo``, from the caller."""
    isolation: Isolation | None = None
    """For a transaction: what must not have been committed since the version at which it read."""
    merge_schema: bool = False
    """Whether the commit adds the columns that its beginning's schema has and the tip's lacks."""
    along: Along = Along()

    def with_parameters(self, **parameters: object) -> Provenance:
        return replace(self, parameters={**self.parameters, **parameters})
