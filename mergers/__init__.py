"""What merging means: the merger contract, laws, the registry, built-ins, and the one kernel.

This package knows Arrow, but no files, versions or engines.
"""

from __future__ import annotations

from mergers.builtin.commit_time import CommitTime
from mergers.builtin.event_time import EventTime
from mergers.contract import Groups, Merged, Merger, RowKind, Status, TableShape
from mergers.errors import LakeMergeError
from mergers.kernel import Folded, Frame, fold
from mergers.laws import Laws
from mergers.registry import MergerRegistry, default_registry, register_merger
from mergers.row import DELETE, Delete, Record, RowMerger
from mergers.traits import Traits

__all__ = [
    "DELETE",
    "CommitTime",
    "Delete",
    "EventTime",
    "Folded",
    "Frame",
    "Groups",
    "LakeMergeError",
    "Laws",
    "Merged",
    "Merger",
    "MergerRegistry",
    "Record",
    "RowKind",
    "RowMerger",
    "Status",
    "TableShape",
    "Traits",
    "default_registry",
    "fold",
    "register_merger",
]
