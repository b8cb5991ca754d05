"""The names that a table uses on disk: features, domains, tags, folders and columns (docs/table-format.md)."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BASE_FOLDER",
    "CONVERT_FOLDER",
    "DROPPED",
    "EXPIRY_DOMAIN",
    "FILE_COLUMN",
    "FORMAT_VERSION",
    "FORMER_FOLDER",
    "KIND_COLUMN",
    "LOG_DOMAIN_PREFIX",
    "LOG_FOLDER",
    "MAX_BUCKETS",
    "MERGED_FOLDER",
    "MINOR_DOMAIN_PREFIX",
    "RECORDS_COLUMN",
    "RESET_DOMAIN",
    "SAVEPOINT_DOMAIN_PREFIX",
    "SLICE_TAG",
    "STATE_DOMAIN",
    "TOMBSTONE_FOLDER",
    "VACUUM_APPLICATION",
    "VECTOR_PREFIX",
    "WINNER_TAG",
    "WRITER_FEATURE",
]

FORMAT_VERSION: Final = 1
WRITER_FEATURE: Final = "lakemerge"
"""The table feature that keeps other writers out."""
MAX_BUCKETS: Final = 2**16

STATE_DOMAIN: Final = "lakemerge.state"
"""Every version has this domain."""
EXPIRY_DOMAIN: Final = "lakemerge.expiry"
"""Which old deletes are forgotten."""
RESET_DOMAIN: Final = "lakemerge.reset"
"""Which log records an overwrite made dead."""
LOG_DOMAIN_PREFIX: Final = "lakemerge.log."
"""Followed by the id of a write: the log blocks that it added."""
MINOR_DOMAIN_PREFIX: Final = "lakemerge.minor."
"""Followed by an id: a base file's winner files and superseded positions."""
SAVEPOINT_DOMAIN_PREFIX: Final = "lakemerge.savepoint."
"""Followed by the savepoint's name."""
VACUUM_APPLICATION: Final = "lakemerge.vacuum"
"""The application of the transaction that says when a schedule last asked for a vacuum."""
SLICE_TAG: Final = "lakemerge.slice"
"""The tag of each base file's ``add``."""
WINNER_TAG: Final = "lakemerge.winner"
"""The tag of each published winner file's ``add``."""

CONVERT_FOLDER: Final = "_lakemerge/convert"
"""The folder of what a conversion has done so far. It is deleted when the conversion has ended."""
FORMER_FOLDER: Final = "_lakemerge/former"
"""The folder of the lists of files that a table had before it was converted."""
DROPPED: Final = "lakemerge.dropped"
"""The property of a table that was dropped, until its files are deleted."""

BASE_FOLDER: Final = "base"
"""The folder of base files."""
LOG_FOLDER: Final = "_lakemerge/log"
"""The folder of log files and block indexes."""
MERGED_FOLDER: Final = "_lakemerge/merged"
"""The folder of winner and positions files."""
VECTOR_PREFIX: Final = "dv"
"""How the names of the folders of deletion vectors begin. A version of 20 digits follows. Other readers take only
letters and digits there."""
TOMBSTONE_FOLDER: Final = "_lakemerge/tombstones"
"""The folder of the tombstones of base files."""

FILE_COLUMN: Final = "_lm_file"
"""Physical column of base and winner files that is not in the Delta schema: the file's ordinal, INT32."""
RECORDS_COLUMN: Final = "_lm_records"
"""Physical column of log files with records that stand for several: for how many, INT32."""
KIND_COLUMN: Final = "_lm_kind"
"""Physical column of log files that hold anything but upserts: values of ``RowKind``."""
