"""The values that the calls of a table return."""

from lakemerge.results.findings import (
    CheckResult,
    Finding,
)
from lakemerge.results.plans import (
    CompactionGroup,
    CompactionPlan,
    CompactionStrategy,
    Order,
    PlannedBucket,
    TransactionPlan,
    readable_bytes,
)
from lakemerge.results.results import (
    CompactionResult,
    ExpiryResult,
    LogCompactionResult,
    LostGroup,
    MaintenanceResult,
    RescaleResult,
    RestoreResult,
    SkippedFileSlice,
    UpsertResult,
    VacuumResult,
)
from lakemerge.results.schedule import (
    SCHEDULE_DEFAULTS,
    Schedule,
    schedule_problems,
)

__all__ = [
    "SCHEDULE_DEFAULTS",
    "CheckResult",
    "CompactionGroup",
    "CompactionPlan",
    "CompactionResult",
    "CompactionStrategy",
    "ExpiryResult",
    "Finding",
    "LogCompactionResult",
    "LostGroup",
    "MaintenanceResult",
    "Order",
    "PlannedBucket",
    "RescaleResult",
    "RestoreResult",
    "Schedule",
    "SkippedFileSlice",
    "TransactionPlan",
    "UpsertResult",
    "VacuumResult",
    "readable_bytes",
    "schedule_problems",
]
