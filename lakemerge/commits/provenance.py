"""Who commits and why, what the commit carries beside the rows, and what it needs at the tip, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from lakemerge.delta import Action, Snapshot
from lakemerge.errors import CommitConflictError

__all__ = ["Along", "DomainChangedError", "DomainIs", "Precondition", "Provenance"]


class DomainChangedError(CommitConflictError):
    """Somebody else changed a domain that the commit was to change."""

    code = "domain-changed"


class Precondition(Protocol):
    """What must be true of the tip for a commit to be valid. Judged anew at every attempt."""

    def check(self, tip: Snapshot) -> None:
        """Raises :class:`CommitConflictError` where it is not."""


@dataclass(frozen=True, slots=True)
class DomainIs:
    """A domain is as it was read; ``None``: there is none."""

    name: str
    configuration: str | None

    def check(self, tip: Snapshot) -> None:
        domain = tip.domains.get(self.name)
        if (None if domain is None else domain.configuration) != self.configuration:
            raise DomainChangedError(f"{self.name!r} was changed by somebody else meanwhile", domain=self.name)


@dataclass(frozen=True, slots=True)
class Along:
    """What a commit of records carries beside them, valid only where all of ``requires`` is true of the tip."""

    actions: tuple[Action, ...] = ()
    requires: tuple[Precondition, ...] = ()

    def at(self, tip: Snapshot) -> tuple[Action, ...]:
        """The actions. Raises :class:`CommitConflictError` where the tip is not as required."""
        for precondition in self.requires:
            precondition.check(tip)
        return self.actions


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who commits and why; the same for every attempt."""

    operation: str
    parameters: Mapping[str, object]
    txn_id: str
    app_txn: tuple[str, int] | None = None
    """``(appId, version)`` that makes a repeated write a no-op."""
    info: Mapping[str, object] = field(default_factory=dict)
    """Further keys of ``commitInfo``, from the caller."""
    only_onto_begin: bool = False
    """Whether the records hold only for the rows of the version the write began at."""
    merge_schema: bool = False
    """Whether the commit adds the columns that the schema at its beginning has and the tip's has not."""
    along: Along = Along()

    def with_parameters(self, **parameters: object) -> Provenance:
        return replace(self, parameters={**self.parameters, **parameters})
