"""What a write asks for, beside its frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["WriteRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """See :meth:`lakemerge.LakeTable.upsert` for what users can ask for."""

    kind_column: str | None = None
    deletes: bool = False
    """Whether each row is a key to delete."""
    txn: tuple[str, int] | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    only_onto_begin: bool = False
    """Whether the records hold only for the rows of the version that the write began at."""
    merge_schema: bool = False
