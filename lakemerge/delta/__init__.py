"""A Delta log: reader and commit path. Knows the Delta protocol, no buckets and no mergers."""

from lakemerge.delta.actions import (
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    decode,
    encode,
)
from lakemerge.delta.cleanup import TRUSTED_AGE_MS, dead_log_files, earliest_version, old_through, tip_at
from lakemerge.delta.commit import LOG_INFO, AlreadyDone, Attempt, Committed, check_info
from lakemerge.delta.identity import check_same_table, check_table_id
from lakemerge.delta.log import DeltaLog, HistoryEntry
from lakemerge.delta.protocol import (
    READER_FEATURES,
    WRITER_FEATURES,
    check_readable,
    check_writable,
    duration_ms,
    parse_checkpoint_interval,
    parse_duration_ms,
    writer_features,
)
from lakemerge.delta.snapshot import TXN_RETENTION, Snapshot
from lakemerge.delta.transaction import Transaction
from lakemerge.delta.vectors import DeletionVector, EncodedVector, encode_vector, read_vector, write_vectors

__all__ = [
    "LOG_INFO",
    "READER_FEATURES",
    "TRUSTED_AGE_MS",
    "TXN_RETENTION",
    "WRITER_FEATURES",
    "Action",
    "AddFile",
    "AlreadyDone",
    "Attempt",
    "CommitInfo",
    "Committed",
    "DeletionVector",
    "DeltaLog",
    "DomainMetadata",
    "EncodedVector",
    "HistoryEntry",
    "Metadata",
    "Protocol",
    "RemoveFile",
    "Snapshot",
    "Transaction",
    "Txn",
    "check_info",
    "check_readable",
    "check_same_table",
    "check_table_id",
    "check_writable",
    "dead_log_files",
    "decode",
    "duration_ms",
    "earliest_version",
    "encode",
    "encode_vector",
    "old_through",
    "parse_checkpoint_interval",
    "parse_duration_ms",
    "read_vector",
    "tip_at",
    "write_vectors",
    "writer_features",
]
