"""Explains why a row is what it is and where it came from, shows other mergers' answers, tries a
merger's laws on the table's own records, and replays records.

It reads only what a table keeps anyway: its log, log files and base files. Source: docs/guides/provenance.md.
"""

from __future__ import annotations

from lakemerge.provenance.explanation import Explanation, Step
from lakemerge.provenance.lineage_events import Lineage, LineageEvent
from lakemerge.provenance.replay import ReplayResult
from lakemerge.provenance.verification import DeliveryCheck, MergerVerification, RefutedLaw
from lakemerge.provenance.what_if import WhatIf

__all__ = [
    "DeliveryCheck",
    "Explanation",
    "Lineage",
    "LineageEvent",
    "MergerVerification",
    "RefutedLaw",
    "ReplayResult",
    "Step",
    "WhatIf",
]
