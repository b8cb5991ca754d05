"""Who won and why, where a row came from, what another merger would say, and replay.

Over what a table keeps anyway: its log, log files and base files. Source: docs/guides/provenance.md.
"""

from __future__ import annotations

from lakemerge.provenance.explanation import Explanation, Step

__all__ = ["Explanation", "Step"]
