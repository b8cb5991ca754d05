"""The operations of commits, as ``commitInfo`` names them and ``history`` shows them.

Source: docs/table-format.md, section 4.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["CHANGING", "REPLACING", "WRITING", "Operation", "parts_of"]


class Operation(StrEnum):
    """What a commit did. A change of several parts of a definition has their names, joined by ``", "``."""

    CREATE = "CREATE TABLE"
    REPLACE = "CREATE OR REPLACE TABLE"
    CREATE_AS_SELECT = "CREATE TABLE AS SELECT"
    REPLACE_AS_SELECT = "CREATE OR REPLACE TABLE AS SELECT"
    CONVERT = "CONVERT"
    """Makes a plain Delta table a LakeMerge table."""
    UNCONVERT = "UNCONVERT"
    DROP = "DROP TABLE"
    UPSERT = "UPSERT"
    DELETE = "DELETE"
    UPDATE = "UPDATE"
    MERGE = "MERGE"
    OVERWRITE = "OVERWRITE"
    TRUNCATE = "TRUNCATE"
    INGEST = "INGEST"
    REPLAY = "REPLAY"
    COMPACT = "COMPACT"
    COMPACT_LOGS = "COMPACT LOGS"
    RESCALE = "RESCALE"
    RESERVE_ORDINALS = "RESERVE FILE NUMBERS"
    """Takes ordinals for base files, before they are written."""
    VACUUM_FENCE = "VACUUM FENCE"
    """Says from which version on files may still be needed, before a vacuum deletes others."""
    MAINTENANCE = "MAINTENANCE"
    ERASE = "ERASE ROWS"
    """Clears the keys that somebody wants forgotten."""
    FORGET = "FORGET"
    """Says that no version from this one on has the keys, and that no earlier one is kept."""
    EXPIRE_TOMBSTONES = "EXPIRE TOMBSTONES"
    RESTORE = "RESTORE"
    SAVEPOINT = "SAVEPOINT"
    DROP_SAVEPOINT = "DROP SAVEPOINT"
    REGISTER_CONSUMER = "REGISTER CONSUMER"
    DROP_CONSUMER = "DROP CONSUMER"
    EXPIRE_CONSUMERS = "EXPIRE CONSUMERS"
    ADD_COLUMNS = "ADD COLUMNS"
    CHANGE_COLUMNS = "CHANGE COLUMNS"
    RENAME_COLUMN = "RENAME COLUMN"
    DROP_COLUMNS = "DROP COLUMNS"
    CHANGE_MERGER = "CHANGE MERGER"
    ADD_CONSTRAINT = "ADD CONSTRAINT"
    DROP_CONSTRAINT = "DROP CONSTRAINT"
    SET_PROPERTIES = "SET PROPERTIES"
    SET_DESCRIPTION = "SET DESCRIPTION"
    SEND = "SEND"
    ADD_INFO = "ADD INFO"


REPLACING: Final = frozenset({Operation.REPLACE, Operation.REPLACE_AS_SELECT})
"""Those that replace a table by another one, with its own definition. None of the rows before it is left."""
WRITING: Final = frozenset(
    {
        Operation.CREATE_AS_SELECT,
        Operation.REPLACE_AS_SELECT,
        Operation.UPSERT,
        Operation.DELETE,
        Operation.UPDATE,
        Operation.MERGE,
        Operation.OVERWRITE,
        Operation.TRUNCATE,
        Operation.INGEST,
        Operation.REPLAY,
        Operation.ERASE,
    }
)
"""Those that bring rows or records. A commit of an ingest job or a replay may bring none, and only note how far it
is."""
CHANGING: Final = frozenset(
    {
        Operation.ADD_COLUMNS,
        Operation.CHANGE_COLUMNS,
        Operation.RENAME_COLUMN,
        Operation.DROP_COLUMNS,
        Operation.CHANGE_MERGER,
        Operation.ADD_CONSTRAINT,
        Operation.DROP_CONSTRAINT,
        Operation.SET_PROPERTIES,
        Operation.SET_DESCRIPTION,
    }
)
"""Those that change a part of a table's definition. One commit may have several of them."""


def parts_of(operation: str) -> tuple[str, ...]:
    """The operations that a commit has, as ``commitInfo`` names them."""
    return tuple(operation.split(", "))
