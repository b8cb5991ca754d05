"""``commit-time``: the record that arrives last wins."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mergers.builtin.latest import Latest
from mergers.builtin.overlay import Overlay
from mergers.contract import Groups, RowKind, TableShape
from mergers.laws import Laws
from mergers.traits import Traits

__all__ = ["CommitTime"]


@dataclass(frozen=True, slots=True)
class CommitTime(Latest):
    """Set columns overwrite in commit order; a delete leaves nothing; ordering columns are data.

    Semantics and options: docs/merge-semantics.md, section 5. The strategy id is that of Hudi's
    ``COMMIT_TIME_ORDERING``, which means the same.
    """

    id = "ce9acb64-bde0-424c-9b91-f6ebba25356d"
    name = "commit-time"

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(associative=True, selective=full_frames)

    def traits(self, shape: TableShape) -> Traits:
        return replace(Latest.traits(self, shape), uses_ordering=False)

    def overlay(self, groups: Groups) -> Overlay:
        deletes = groups.kinds == RowKind.DELETE
        if self.delete_when is not None:
            deletes = deletes | self.delete_when.matches(groups)
        codes = np.zeros(len(deletes), dtype=np.int64)
        return Overlay(groups, codes=codes, deletes=deletes, resets=deletes)
