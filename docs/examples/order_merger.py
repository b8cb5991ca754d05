"""An order row that two services fill: the order service and the payment service.

The example of Hudi's page on record mergers, as a LakeMerge user merger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakemerge import Record, RowMerger
from mergers import TableShape

__all__ = ["OrderMerger"]


@dataclass(frozen=True)
class OrderMerger(RowMerger):
    """An event that is ahead of the row overwrites what it holds; any other only fills gaps.

    So the state never moves back, and an event that comes late or twice changes nothing that a later
    state has set. A state that is not in ``states`` counts as behind all others.
    """

    id = "0f3c2b56-7a0e-4a9c-9d53-4be4f2a6c1d7"
    name = "order"

    states: tuple[str, ...] = ("CREATED", "PAID", "SHIPPED", "CANCELLED")

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        ahead = self._step(newer) > self._step(older)
        first, second = (newer, older) if ahead else (older, newer)
        return {name: second[name] if value is None else value for name, value in first.items()}

    def problems(self, shape: TableShape) -> list[str]:
        if "state" in shape.values and shape.schema.field("state").type == pa.string():
            return []
        return ["the table needs a string column 'state' that is not part of the key"]

    def _step(self, order: Record) -> int:
        return self.states.index(order["state"]) if order["state"] in self.states else -1
