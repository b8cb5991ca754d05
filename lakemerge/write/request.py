"""The options of a write: everything except its frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lakemerge.commits.provenance import Isolation

__all__ = ["WriteRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The options of a write. :meth:`lakemerge.LakeTable.upsert` describes those that users can set."""

    kind_column: str | None = None
    deletes: bool = False
    """Whether each row is a key to delete."""
    txn: tuple[str, int] | None = None
    info: Mapping[str, object] = field(default_factory=dict)
    states: bool = False
    """Whether the records are those of a transaction: the frame has the column ``KIND_COLUMN``, of sets and clears."""
    isolation: Isolation | None = None
    """For a transaction: which later commits it conflicts with."""
    merge_schema: bool = False
    operation: str | None = None
    """The name of the operation in the history, if not that of an upsert or delete."""

    def merging_schema(self) -> WriteRequest:
        """The same, and the frame's new columns are added to the table."""
        return replace(self, merge_schema=True)
