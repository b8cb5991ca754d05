"""Table services: what keeps a table cheap to read. Knows tables; tables know it by one door only."""

from __future__ import annotations

from compaction.run import compact

__all__ = ["compact"]
