"""The page of errors: what each class means, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lakemerge import errors
from lakemerge.cli import EXIT_CODES
from lakemerge.errors import LakeMergeError
from scripts.docs.markdown import paragraph, table

__all__ = ["REMEDIES", "error_classes", "errors_page"]

REMEDIES: Final[Mapping[str, str]] = {
    "CommitConflictError": "Run the operation again: it reads the table as it is now.",
    "CompactFirstError": "Call `table.compact()`, then try again.",
    "DatasetsMissingError": "Put the table back, or remove the dataset from the configuration and run the merge "
    "source in full.",
    "DatasetsRemovedError": "Put the dataset back, or run the merge source in full.",
    "DatasetsReorderedError": "Restore the order, put new datasets at the end, or run the merge source in full.",
    "DependencyMissingError": "Install the extra that the message names.",
    "FilterError": "Correct the SQL condition. [Filters](../guides/filters.md) lists what it may contain.",
    "FrameError": "Correct the frame. The message names the column and, for a bad value, the row.",
    "FullRunNeededError": "Run the merge source in full.",
    "IdCollisionError": "Give the entities ids that differ, or change the rules that merge them.",
    "InputError": "Correct what was passed in.",
    "InstallError": "Install or register what the message names.",
    "LakeMergeError": "Catch it to catch every error of LakeMerge.",
    "MaxMergedError": "Look at the value that so many entities share. Correct the data or the rule, raise "
    '`max_merged`, or let `oversize="leave_out"` leave it out.',
    "MaxRetiredError": "Find out why the rows are gone. If that is intended, raise `max_retired` for this run.",
    "MergeConfigError": "Correct every problem that the message lists.",
    "MergeOverflowError": "Write a record that brings the total back into range, gives the value anew, or deletes "
    "the row.",
    "MergeValueError": "Write a record with a good value for the key. `key` and `column` say where.",
    "MergerConfigurationError": "Correct the merger's options. Every problem is listed.",
    "MergerContractError": "Correct the merger. [User mergers](../guides/user-mergers.md) explains the contract.",
    "MergerMissingError": "Pass the class as `mergers=[...]`, register it, or install the package that has it.",
    "MergerRegistrationError": "Give the merger class its own id and name.",
    "NotATableError": "Correct the path, or create the table. A plain Delta table can be "
    "[converted](../guides/bring-a-delta-table.md), or loaded into a new one.",
    "OutcomeUnknownError": "Check whether the commit landed (`version` and `txn_id` say where) before you write "
    "again. A write with `txn=` may simply be repeated.",
    "RecordRefusedError": "Leave out records of this kind, or choose a [merger](../which-merger.md) that accepts them.",
    "RetryError": "Try again, as the message says.",
    "SchemaError": "Correct the schema. Every problem is listed.",
    "StoreError": "Try again if the text tells of a time-out or a connection. Otherwise keep the table in another "
    "store. [Object stores](../guides/stores.md) lists which can be written.",
    "TableDamagedError": "Run `lakemerge check PATH`. Restore the file from a backup, or go back with `table.restore`.",
    "TableError": "Repair or move the table, as the message says.",
    "TableExistsError": 'Use `LakeTable.open`, `create(if_exists="open")`, `create(replace=True)`, or another path.',
    "TableReplacedError": "Open the table again with `LakeTable.open`.",
    "UnsupportedFeatureError": "Install a newer lakemerge. If another program added the feature, drop it there.",
    "VersionNotFoundError": "Ask for a version that the message allows. Keep versions longer with "
    "`delta.deletedFileRetentionDuration` or a savepoint.",
}
"""What to do, by class."""
_INTRODUCTION = """
This page lists every class of error to catch, with its cause and what to do. Every error is a
`lakemerge.LakeMergeError`. Its text begins with its code in brackets, such as `[frame]`. Some errors are of a subclass
with a code of its own, such as `[multiple-matches]` of an `InputError`. The code stays the same across versions.
`error.facts` has the particulars, and each is an attribute, too: `error.key`, `error.column`. All errors can be
pickled, so they keep their facts on the way from Spark's executors.

A group says what to do: correct the input (`InputError`), repair the table (`TableError`), install something
(`InstallError`), or try again (`RetryError`). Catch a group to handle all of its errors.

## Errors on Spark

Calls of a table raise these errors themselves, also where the work runs in Spark's tasks. Spark's own actions
(`df.collect()`, `df.count()`, `df.toPandas()`), `format("lakemerge")` and streaming queries raise an exception of
Spark, such as `PythonException`, `AnalysisException` or `StreamingQueryException`. LakeMerge's error is the last line
of the Python traceback in its text:

```
mergers.errors.MergeOverflowError: [merge-overflow] the sum of column 'n' for key {'id': 7} does not fit TINYINT, ...
[merge-overflow] facts: {"key": {"id": 7}, "column": "n", "keys": 1}
```

`unwrap_errors` raises that error in place of Spark's, with its attributes:

```python
import lakemerge

try:
    with lakemerge.unwrap_errors():
        rows = table.to_df().collect()
except lakemerge.MergeOverflowError as error:
    print(error.column, error.key)
```

It is a decorator, too. `lakemerge.unwrap_error(exception)` returns the error, or `None`; for a streaming query:
`lakemerge.unwrap_error(query.exception())`.

## Other exceptions

A public call raises these, and no others:

- **`OSError`**: the file system or the network fails while files are read, or local source files are listed.
- **What your own code raises**: iterators and frames that you pass, mergers, `transform`, `stop`, functions that list
  files, signal handlers. A write that such an exception interrupts has committed nothing and leaves no file.
- **`KeyboardInterrupt`**, **`SystemExit`**, **`MemoryError`** and **`RecursionError`**: of Python itself.
- **`TypeError`** if a parameter does not exist or an argument is missing, as for any function of Python. A value of the
  wrong kind is an `InputError` that names the parameter. Integers, numbers, flags and text of numpy and pandas count as
  Python's.
- Spark's exceptions, from Spark's own actions (see above).

Control characters of names and values are escaped in the text of an error; `error.facts` has them as they are. No error
shows the value of a storage option.

## Groups and exit codes
"""


def error_classes() -> list[type[LakeMergeError]]:
    return [getattr(errors, name) for name in errors.__all__]


def errors_page() -> str:
    parts = [
        "# Errors\n",
        _INTRODUCTION,
        "| group | exit code of the command line |\n| --- | --- |\n"
        + "\n".join(f"| `{group.__name__}` | {code} |" for group, code in EXIT_CODES)
        + "\n",
    ]
    for group in _groups():
        members = [kind for kind in error_classes() if issubclass(kind, group) and kind is not group]
        parts.append(f"## {group.__name__}\n")
        parts.append(table(["class", "code", "cause", "remedy"], map(_row, [group, *members])))
    rest = [kind for kind in error_classes() if not issubclass(kind, tuple(_groups()))]
    parts.append("## Errors of merging, and the root\n")
    parts.append(table(["class", "code", "cause", "remedy"], map(_row, rest)))
    return "\n".join(parts)


def _groups() -> list[type[LakeMergeError]]:
    """The classes that other errors of the list are kinds of, but for the root."""
    classes = error_classes()
    return [
        kind for kind in classes if kind is not LakeMergeError and any(kind in other.__bases__ for other in classes)
    ]


def _row(kind: type[LakeMergeError]) -> list[str]:
    return [f"`{kind.__name__}`", f"`{kind.code}`", paragraph(kind.__doc__), REMEDIES[kind.__name__]]
