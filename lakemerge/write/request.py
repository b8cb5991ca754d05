"""The options of a write: everything except its frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["WriteRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The options of a write. :meth:`lakemerge.LakeTable.upsert` describes those that users can set."""

    kind_column: str | None = None
    deletes: bool = False
    """Whether each row is a key to delete."""
    txn: tuple[str, int] | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    only_onto_begin: bool = False
    """Whether the write may commit only if no rows changed since the version that it began at."""
    merge_schema: bool = False
