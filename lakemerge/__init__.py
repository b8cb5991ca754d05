"""LakeMerge: upserts as logs on a Delta timeline, merged by pluggable record mergers."""

from __future__ import annotations

# isort: off
import lakemerge._internal.shadow  # noqa: F401 - checks before the first import from another package of ours
# isort: on

from lakemerge._internal.version import library_version
from lakemerge.errors import (
    CommitConflictError,
    CompactFirstError,
    DatasetsMissingError,
    DatasetsRemovedError,
    DatasetsReorderedError,
    DependencyMissingError,
    FilterError,
    FrameError,
    FullRunNeededError,
    IdCollisionError,
    InputError,
    InstallError,
    LakeMergeError,
    MaxMergedError,
    MaxRetiredError,
    MergeConfigError,
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
from lakemerge.format.savepoint import Savepoint
from lakemerge.options import ReadPolicy, Settings
from lakemerge.results.events import Event, listen
from lakemerge.results.failures import FailedKey, FailedKeys, FailedRecord
from lakemerge.results.findings import CheckResult, Finding
from lakemerge.results.plans import CompactionPlan, CompactionStrategy
from lakemerge.results.results import (
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
from lakemerge.results.unwrap import unwrap_error, unwrap_errors
from lakemerge.spark.registration import register
from lakemerge.table import LakeTable
from lakemerge.table.earlier import know_earlier_names
from mergers import DELETE, Delete, Laws, Merger, Record, RowKind, RowMerger, Traits, register_merger

__all__ = [
    "DELETE",
    "CheckResult",
    "CommitConflictError",
    "CompactFirstError",
    "CompactionPlan",
    "CompactionResult",
    "CompactionStrategy",
    "DatasetsMissingError",
    "DatasetsRemovedError",
    "DatasetsReorderedError",
    "Delete",
    "DependencyMissingError",
    "Event",
    "ExpiryResult",
    "FailedKey",
    "FailedKeys",
    "FailedRecord",
    "FilterError",
    "Finding",
    "FrameError",
    "FullRunNeededError",
    "IdCollisionError",
    "InputError",
    "InstallError",
    "LakeMergeError",
    "LakeTable",
    "Laws",
    "LogCompactionResult",
    "MaintenanceResult",
    "MaxMergedError",
    "MaxRetiredError",
    "MergeConfigError",
    "MergeOverflowError",
    "MergeValueError",
    "Merger",
    "MergerConfigurationError",
    "MergerContractError",
    "MergerMissingError",
    "MergerRegistrationError",
    "NotATableError",
    "OutcomeUnknownError",
    "ReadPolicy",
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
    "Traits",
    "UnsupportedFeatureError",
    "UpsertResult",
    "VacuumResult",
    "VersionNotFoundError",
    "listen",
    "register",
    "register_merger",
    "unwrap_error",
    "unwrap_errors",
]

__version__ = library_version()
"""The version of the library, such as ``0.1.0``."""

know_earlier_names()
