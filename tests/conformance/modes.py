"""The modes that the conformance cases run in."""

from __future__ import annotations

from tests.conformance.runner import Mode

__all__ = ["ALONE", "COMBINED", "MODES"]

ALONE = (
    Mode("as-written"),
    Mode("never-compacted", compaction="never"),
    Mode("compacted-always", compaction="always"),
    Mode("minor-compacted", compaction="minor"),
    Mode("logs-compacted", compaction="logs"),
    Mode("rescaled", compaction="rescale"),
    Mode("compacted-at-random", compaction="random", seed=1),
    Mode("row-by-row", batching="rows"),
    Mode("joined", batching="joined"),
    Mode("spread", spread=True),
    Mode("pushed-sql", reads="sql"),
    Mode("pushed-expression", reads="expression"),
    Mode("kind-column", calls="kinds"),
    Mode("delete-calls", calls="deletes"),
)
"""One thing varied at a time."""

COMBINED = (
    Mode("never-joined-spread-sql", compaction="never", batching="joined", spread=True, reads="sql", buckets=1),
    Mode(
        "always-rows-expression", compaction="always", batching="rows", reads="expression", calls="deletes", buckets=4
    ),
    Mode("random-joined-sql", compaction="random", batching="joined", reads="sql", calls="kinds", buckets=4, seed=2),
    Mode("random-rows-spread", compaction="random", batching="rows", spread=True, reads="sql", buckets=1, seed=3),
    Mode("always-joined-spread", compaction="always", batching="joined", spread=True, reads="expression", buckets=1),
    Mode("minor-rows-sql", compaction="minor", batching="rows", reads="sql", calls="deletes", buckets=1),
    Mode("minor-joined-spread", compaction="minor", batching="joined", spread=True, reads="expression", buckets=4),
    Mode("logs-rows-sql", compaction="logs", batching="rows", reads="sql", calls="deletes", buckets=1),
    Mode("logs-joined-spread", compaction="logs", batching="joined", spread=True, reads="expression", buckets=4),
    Mode("never-rows-sql", compaction="never", batching="rows", reads="sql", calls="kinds"),
)
"""Several at once; every pair of a compaction, a batching and spreading stands in one of them."""

MODES = ALONE + COMBINED
