"""Table services, which keep a table cheap to read. They know tables; tables import them in one place only."""

from __future__ import annotations

from compaction.automatic import after_write, told
from compaction.check.check import check_table
from compaction.logs.logs import compact_logs
from compaction.maintain import maintain
from compaction.plan.plan import plan_compaction
from compaction.rescale.rescale import rescale
from compaction.retention import expire_tombstones
from compaction.run.run import compact
from compaction.vacuum import vacuum

__all__ = [
    "after_write",
    "check_table",
    "compact",
    "compact_logs",
    "expire_tombstones",
    "maintain",
    "plan_compaction",
    "rescale",
    "told",
    "vacuum",
]
