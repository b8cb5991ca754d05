"""Table services, which keep a table cheap to read. They know tables; tables import them in one place only."""

from __future__ import annotations

from compaction.automatic import after_write, maintain_after_write, maintain_landed, told
from compaction.copy import copy_table
from compaction.forget.forget import ForgetOptions, forget_open
from compaction.logs.logs import compact_logs
from compaction.maintain import maintain, maintain_open
from compaction.plan.plan import plan_compaction
from compaction.pressure import make_room
from compaction.rescale.rescale import rescale
from compaction.retention import expire_tombstones
from compaction.run.run import compact, compact_open
from compaction.vacuum import vacuum

__all__ = [
    "ForgetOptions",
    "after_write",
    "compact",
    "compact_logs",
    "compact_open",
    "copy_table",
    "expire_tombstones",
    "forget_open",
    "maintain",
    "maintain_after_write",
    "maintain_landed",
    "maintain_open",
    "make_room",
    "plan_compaction",
    "rescale",
    "told",
    "vacuum",
]
