"""LakeMerge: upserts as logs on a Delta timeline, merged by pluggable record mergers.

Names are imported when they are first used, so that a program loads only what it needs.
"""

from __future__ import annotations

# isort: off
import lakemerge._internal.shadow  # noqa: F401 - checks before the first import from another package of ours
# isort: on

from typing import TYPE_CHECKING

from lakemerge._internal.lazy import lazy
from lakemerge._internal.version import library_version

if TYPE_CHECKING:
    from lakemerge.connector.session import catalog
    from lakemerge.datasource.registration import register
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
    from lakemerge.events import Event, listen
    from lakemerge.format.savepoint import Savepoint
    from lakemerge.options import ReadPolicy, Settings
    from lakemerge.results.compactions import (
        CompactionPlan,
        CompactionResult,
        CompactionStrategy,
        LogCompactionResult,
        RescaleResult,
        SkippedFileSlice,
    )
    from lakemerge.results.conversion import ConversionPlan, ConversionResult, UnconversionResult
    from lakemerge.results.findings import CheckResult, FailedKey, FailedKeys, FailedRecord, Finding
    from lakemerge.results.forgetting import ForgetResult
    from lakemerge.results.maintenance import CopyResult, ExpiryResult, MaintenanceResult, VacuumResult
    from lakemerge.results.writes import RestoreResult, TransactionPlan, UpsertResult
    from lakemerge.spark_errors import unwrap_error, unwrap_errors
    from lakemerge.table.table import LakeTable
    from mergers import DELETE, Delete, Laws, Merger, Record, RowKind, RowMerger, Traits, register_merger

__all__ = [
    "DELETE",
    "CheckResult",
    "CommitConflictError",
    "CompactFirstError",
    "CompactionPlan",
    "CompactionResult",
    "CompactionStrategy",
    "ConversionPlan",
    "ConversionResult",
    "CopyResult",
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
    "ForgetResult",
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
    "SkippedFileSlice",
    "StoreError",
    "TableDamagedError",
    "TableError",
    "TableExistsError",
    "TableReplacedError",
    "Traits",
    "TransactionPlan",
    "UnconversionResult",
    "UnsupportedFeatureError",
    "UpsertResult",
    "VacuumResult",
    "VersionNotFoundError",
    "catalog",
    "listen",
    "register",
    "register_merger",
    "unwrap_error",
    "unwrap_errors",
]

__version__ = library_version()
"""The version of the library, such as ``0.1.0``."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "lakemerge.connector.session": ("catalog",),
            "lakemerge.datasource.registration": ("register",),
            "lakemerge.errors": (
                "CommitConflictError",
                "CompactFirstError",
                "DatasetsMissingError",
                "DatasetsRemovedError",
                "DatasetsReorderedError",
                "DependencyMissingError",
                "FilterError",
                "FrameError",
                "FullRunNeededError",
                "IdCollisionError",
                "InputError",
                "InstallError",
                "LakeMergeError",
                "MaxMergedError",
                "MaxRetiredError",
                "MergeConfigError",
                "MergeOverflowError",
                "MergerConfigurationError",
                "MergerContractError",
                "MergerMissingError",
                "MergerRegistrationError",
                "MergeValueError",
                "NotATableError",
                "OutcomeUnknownError",
                "RecordRefusedError",
                "RetryError",
                "SchemaError",
                "StoreError",
                "TableDamagedError",
                "TableError",
                "TableExistsError",
                "TableReplacedError",
                "UnsupportedFeatureError",
                "VersionNotFoundError",
            ),
            "lakemerge.events": ("Event", "listen"),
            "lakemerge.format.savepoint": ("Savepoint",),
            "lakemerge.options": ("ReadPolicy", "Settings"),
            "lakemerge.results.compactions": (
                "CompactionPlan",
                "CompactionResult",
                "CompactionStrategy",
                "LogCompactionResult",
                "RescaleResult",
                "SkippedFileSlice",
            ),
            "lakemerge.results.findings": ("CheckResult", "FailedKey", "FailedKeys", "FailedRecord", "Finding"),
            "lakemerge.results.forgetting": ("ForgetResult",),
            "lakemerge.results.conversion": ("ConversionPlan", "ConversionResult", "UnconversionResult"),
            "lakemerge.results.maintenance": ("CopyResult", "ExpiryResult", "MaintenanceResult", "VacuumResult"),
            "lakemerge.results.writes": ("RestoreResult", "TransactionPlan", "UpsertResult"),
            "lakemerge.spark_errors": ("unwrap_error", "unwrap_errors"),
            "lakemerge.table.table": ("LakeTable",),
            "mergers": (
                "DELETE",
                "Delete",
                "Laws",
                "Merger",
                "Record",
                "RowKind",
                "RowMerger",
                "Traits",
                "register_merger",
            ),
        },
        packages=("errors", "flows", "ingest", "merge_source", "provenance", "report", "testing"),
    )
