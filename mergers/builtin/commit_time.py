"""``commit-time``: the record that arrives last wins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from mergers.builtin.delete_when import DeleteWhen
from mergers.builtin.options import OptionReader
from mergers.builtin.overlay import Overlay
from mergers.contract import Bools, Groups, Merged, Merger, RowKind, TableShape
from mergers.laws import Laws

__all__ = ["CommitTime"]


@dataclass(frozen=True, slots=True)
class CommitTime(Merger):
    """Set columns overwrite in commit order; a delete leaves nothing; ordering columns are data.

    Semantics and options: docs/merge-semantics.md, section 5. The strategy id is that of Hudi's
    ``COMMIT_TIME_ORDERING``, which means the same.
    """

    id = "ce9acb64-bde0-424c-9b91-f6ebba25356d"
    name = "commit-time"

    delete_when: DeleteWhen | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls.name, options, shape, ("delete_when",))
        delete_when = DeleteWhen.parse(reader)
        reader.finish()
        return cls(delete_when)

    def options(self) -> Mapping[str, object]:
        return {} if self.delete_when is None else {"delete_when": self.delete_when.option()}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(associative=True, selective=full_frames)

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        marker = () if self.delete_when is None else (self.delete_when.column,)
        return frozenset((*columns, *marker))

    def uses_ordering(self, shape: TableShape) -> bool:
        return False

    def lone_upsert_is_row(self, shape: TableShape) -> bool:
        return True

    def delete_marks(self, shape: TableShape) -> Mapping[str, pa.Array]:
        return {} if self.delete_when is None else {self.delete_when.column: self.delete_when.array(shape)}

    def bare_delete_removes(self, shape: TableShape) -> bool:
        return True

    def only_picks(self, shape: TableShape) -> bool:
        return self.delete_when is None

    def merge_groups(self, groups: Groups) -> Merged:
        return self._overlay(groups).fold()

    def combine(self, groups: Groups) -> Bools:
        return self._overlay(groups).combine()

    def _overlay(self, groups: Groups) -> Overlay:
        deletes = groups.kinds == RowKind.DELETE
        if self.delete_when is not None:
            deletes = deletes | self.delete_when.matches(groups)
        codes = np.zeros(len(deletes), dtype=np.int64)
        return Overlay(groups, codes=codes, deletes=deletes, resets=deletes)
