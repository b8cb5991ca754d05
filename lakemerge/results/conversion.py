"""What conversions of tables did, or would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakemerge.results.display import Shown

__all__ = ["ConversionPlan", "ConversionResult", "UnconversionResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlan(Shown):
    """What a conversion would do. Nothing was written."""

    url: str
    version: int
    """The version of the Delta table that was read."""
    rows: int
    files: int
    """Files that would be read and removed from the table."""
    bytes: int
    """Their sizes. About as much is written twice: as packed rows, which are deleted again, and as base files."""
    steps: int
    """How many parts of the table are done one after the other. A conversion that was interrupted goes on with the
    first one that was not done."""
    buckets: int
    """Buckets of each partition."""
    partition_by: tuple[str, ...]
    null_keys: int
    """Rows with a null in their key. With any, the table is not converted."""
    repeated_rows: int
    """Rows whose key another row has, too, but for one row of each key. Without an ordering the table is not converted
    with any; with one they are left out, and the row with the highest ordering stays."""
    repeated_keys: tuple[Mapping[str, object], ...]
    """Some of the keys that several rows have."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionResult(Shown):
    """What a conversion did."""

    url: str
    version: int
    """The first version of the LakeMerge table."""
    rows: int
    """Rows of the table."""
    merged_rows: int
    """Rows that were left out, because another row of their key has a higher ordering."""
    files: int
    """Base files that were written."""
    bytes: int
    """Their sizes."""
    former_files: int
    """Files that are in the table no more. Vacuum deletes them, and those of earlier versions, after the retention."""
    steps_done_before: int
    """Parts of the table that an earlier call had done."""
    repeated: bool
    """Whether an earlier call had converted the table already. The numbers of rows and files are 0 then."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconversionResult(Shown):
    """What ended a LakeMerge table."""

    url: str
    version: int
    """The first version of the plain Delta table."""
    rows: int | None
    """Rows of the table, if its files say how many they have."""
    compacted: bool
    """Whether logs had to be merged into files before."""
    features: tuple[str, ...]
    """The writer features that the table has now."""
    dropped_jobs: tuple[str, ...]
    """Ingest jobs whose ledgers ended. Under the same name they would load all files again."""
    seconds: float
