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
    TableReplacedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.findings import CheckResult, Finding
from lakemerge.options import Settings
from lakemerge.plans import CompactionPlan, CompactionStrategy
from lakemerge.registration import register
from lakemerge.results import (
    CompactionResult,
    ExpiryResult,
    LogCompactionResult,
    MaintenanceResult,
    RescaleResult,
    RestoreResult,
    SkippedTile,
    UpsertResult,
    VacuumResult,
)
from lakemerge.slices.savepoints import Savepoint
from lakemerge.table import LakeTable
from mergers import DELETE, Delete, Laws, Merger, Record, RowKind, RowMerger, register_merger

__all__ = [
    "DELETE",
    "CheckResult",
    "CommitConflictError",
    "CompactFirstError",
    "CompactionPlan",
    "CompactionResult",
    "CompactionStrategy",
    "Delete",
    "DependencyMissingError",
    "ExpiryResult",
    "FilterError",
    "Finding",
    "FrameError",
    "InputError",
    "InstallError",
    "LakeMergeError",
    "LakeTable",
    "Laws",
    "LogCompactionResult",
    "MaintenanceResult",
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
    "RescaleResult",
    "RestoreResult",
    "RetryError",
    "RowKind",
    "RowMerger",
    "Savepoint",
    "SchemaError",
    "Settings",
    "SkippedTile",
    "StoreError",
    "TableDamagedError",
    "TableError",
    "TableExistsError",
    "TableReplacedError",
    "UnsupportedFeatureError",
    "UpsertResult",
    "VacuumResult",
    "VersionNotFoundError",
    "register",
    "register_merger",
]
