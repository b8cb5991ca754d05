"""Change capture into a table, as Spark's and Databricks' AUTO CDC describe it (docs/streaming.md, "Flows")."""

from __future__ import annotations

from lakemerge.flows.auto_cdc import auto_cdc
from lakemerge.flows.history import history, history_df
from lakemerge.flows.snapshots import auto_cdc_from_snapshot

__all__ = ["auto_cdc", "auto_cdc_from_snapshot", "history", "history_df"]
