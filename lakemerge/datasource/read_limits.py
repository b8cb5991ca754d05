"""How much of a stream Spark wants in a micro-batch. Spark 4.1 does not say: there a batch is all that is there."""

from __future__ import annotations

__all__ = [
    "IS_LIMITED",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
]

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )

    IS_LIMITED = True
    """Whether Spark knows limits."""
except ModuleNotFoundError:
    IS_LIMITED = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands for Spark's class of this name, and so do the others. Spark 4.1 calls nothing that makes one."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class ReadMaxFiles(ReadLimit):  # type: ignore[no-redef]
        def __init__(self, max_files: int) -> None:
            self.max_files = max_files

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass
