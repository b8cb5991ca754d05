"""One page about a table: its state, its history, what it costs to read, what maintenance would do."""

from __future__ import annotations

from lakemerge.report.page import report_html

__all__ = ["report_html"]
