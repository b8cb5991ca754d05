"""The errors of tables and stores. Grouped by remedy; see :mod:`mergers.errors` for the root."""

from __future__ import annotations

from mergers.errors import (
    InputError,
    InstallError,
    LakeMergeError,
    MergeOverflowError,
    MergerConfigurationError,
    MergerContractError,
    MergerMissingError,
    MergerRegistrationError,
    MergeValueError,
    RecordRefusedError,
    RetryError,
    TableError,
)

__all__ = [
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
    "MergeValueError",
    "MergerConfigurationError",
    "MergerContractError",
    "MergerMissingError",
    "MergerRegistrationError",
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
]


class FrameError(InputError):
    """A frame given to a write does not fit the table: columns, types, null keys, row kinds."""

    code = "frame"


class FilterError(InputError):
    """A filter cannot be understood, names an unknown column, or cannot be evaluated on a row."""

    code = "filter"


class SchemaError(InputError):
    """A schema cannot be used for a table: unknown types, unusable key or ordering columns."""

    code = "schema"


class TableExistsError(InputError):
    """``create`` found a table at the path."""

    code = "table-exists"


class NotATableError(InputError):
    """There is no LakeMerge table at the path: nothing there, or a plain Delta table."""

    code = "not-a-table"


class MergeConfigError(InputError):
    """A merge source's configuration cannot be used; every problem is listed in ``problems``."""

    code = "merge-config"


class DatasetsReorderedError(InputError):
    """A merge source's datasets are in another order than in its last run, or one was put before others."""

    code = "datasets-reordered"


class DatasetsRemovedError(InputError):
    """A dataset left a merge source's configuration, or its table was made anew; only a full run can take that up."""

    code = "datasets-removed"


class DatasetsMissingError(InputError):
    """A merge source has taken up a dataset whose table is missing now."""

    code = "datasets-missing"


class FullRunNeededError(InputError):
    """A merge source does not know what changed since its last run. A full run finds out."""

    code = "full-run-needed"


class MaxMergedError(InputError):
    """More entities would become one than ``max_merged`` allows; ``rule``, ``value`` and ``count`` say which."""

    code = "max-merged"


class MaxRetiredError(InputError):
    """A run would delete or retire more of the output's entities than ``max_retired`` allows; ``count``, ``entities``
    and ``dataset`` say how many and where."""

    code = "max-retired"


class IdCollisionError(InputError):
    """Two merged entities would have one id."""

    code = "id-collision"


class VersionNotFoundError(InputError):
    """The table's history does not have the version or timestamp, or does not have it any more."""

    code = "version-not-found"


class TableDamagedError(TableError):
    """A file of the table is missing, truncated or contradicts another one."""

    code = "table-damaged"


class TableReplacedError(TableError):
    """The table was removed, re-created or replaced after it was opened. This object does not read or write the new
    table. Open the table again. Changes across a replacement are refused with this error, too."""

    code = "table-replaced"


class UnsupportedFeatureError(TableError):
    """The table uses a feature or a format version that this library does not understand."""

    code = "unsupported-feature"


class StoreError(TableError):
    """The store cannot do what a table needs, such as an atomic put-if-absent, or a request to it failed."""

    code = "store"


class DependencyMissingError(InstallError):
    """An optional package is not installed; the message names the extra to install."""

    code = "dependency-missing"


class CommitConflictError(RetryError):
    """Another commit made this one invalid. Nothing was written; read again and retry."""

    code = "commit-conflict"


class CompactFirstError(RetryError):
    """The merger cannot change while there are logs only the present one can fold. Compact, then try again."""

    code = "compact-first"


class OutcomeUnknownError(RetryError):
    """The store did not say whether a commit landed. ``version`` and ``txn_id`` say where to look."""

    code = "outcome-unknown"
