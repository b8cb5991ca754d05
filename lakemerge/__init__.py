"""LakeMerge: upserts as logs on a Delta timeline, merged by pluggable record mergers."""

from __future__ import annotations

# isort: off
import lakemerge.shadow  # noqa: F401 - checks before the first import from another package of ours
# isort: on

from lakemerge.errors import (
    CommitConflictError,
    CompactFirstError,
    DependencyMissingError,
    FilterError,
    FrameError,
    InputError,
    InstallError,
    LakeMergeError,
    MergeOverflowError,
    MergerConfigurationError,
    MergerContractError,
    MergerMissingError,
    MergerRegistrationError,
    MergeValueError,
    NotATableError,
    OutcomeUnknownError,
    RecordRefusedError,
    RetryError,
    SchemaError,
    StoreError,
    TableDamagedError,
    TableError,
    TableExistsError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.options import Settings
from lakemerge.registration import register
from lakemerge.results import CompactionResult, SkippedTile, UpsertResult
from lakemerge.table import LakeTable
from mergers import DELETE, Delete, Laws, Merger, Record, RowKind, RowMerger, register_merger

__all__ = [
    "DELETE",
    "CommitConflictError",
    "CompactFirstError",
    "CompactionResult",
    "Delete",
    "DependencyMissingError",
    "FilterError",
    "FrameError",
    "InputError",
    "InstallError",
    "LakeMergeError",
    "LakeTable",
    "Laws",
    "MergeOverflowError",
    "MergeValueError",
    "Merger",
    "MergerConfigurationError",
    "MergerContractError",
    "MergerMissingError",
    "MergerRegistrationError",
    "NotATableError",
    "OutcomeUnknownError",
    "Record",
    "RecordRefusedError",
    "RetryError",
    "RowKind",
    "RowMerger",
    "SchemaError",
    "Settings",
    "SkippedTile",
    "StoreError",
    "TableDamagedError",
    "TableError",
    "TableExistsError",
    "UnsupportedFeatureError",
    "UpsertResult",
    "VersionNotFoundError",
    "register",
    "register_merger",
]
