"""Which rows of several tables are the same, and a table with one merged entity of each.

Guide: docs/guides/merge-source.md.
"""

from __future__ import annotations

from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.datasets import Dataset
from lakemerge.merge_source.results import (
    ClusterLink,
    ColumnOrigin,
    EntityExplanation,
    EntityFinding,
    IdChanges,
    LeftOutValue,
    Override,
    Pending,
    Report,
    RunResult,
    SourceCheck,
    WideValue,
)
from lakemerge.merge_source.source import MergeSource

__all__ = [
    "ClusterLink",
    "ColumnOrigin",
    "Dataset",
    "EntityExplanation",
    "EntityFinding",
    "IdChanges",
    "LeftOutValue",
    "MergeConfig",
    "MergeSource",
    "Override",
    "Pending",
    "Report",
    "RunResult",
    "SourceCheck",
    "WideValue",
]
