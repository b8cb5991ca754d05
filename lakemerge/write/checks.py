"""Constraints on rows, as writes check them: ``CHECK`` in SQL, Delta's ``delta.constraints.*``.

A blind write knows nothing of the row that its record meets. So a table has constraints only where the record alone
decides: every upsert carries all columns of the constraint, and the merger takes these from one record together
(:attr:`mergers.Traits.whole_records`). Source: docs/table-format.md, section 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemerge.errors import FilterError, FrameError, SchemaError
from lakemerge.read.filter.filter import Filter, parse_filter
from mergers.contract import Bools

__all__ = ["Check", "checks_of"]

_PLACE = "_lm_place"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One constraint. Picklable."""

    name: str
    text: str
    condition: Filter

    @property
    def columns(self) -> frozenset[str]:
        return self.condition.columns

    def violating(self, rows: pa.Table) -> pa.Table:
        """The rows for which the condition is not true. Null is not true."""
        placed = rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        left = np.ones(rows.num_rows, dtype=np.bool_)
        left[self.condition.kept(placed).column(_PLACE).to_numpy()] = False
        return rows.filter(pa.array(left))

    def apply(self, rows: pa.RecordBatch, which: Bools | None) -> None:
        """Raise :class:`FrameError` for rows that violate the constraint.

        :param which: the rows that are upserts; ``None``: all are.
        """
        found = pa.Table.from_batches([rows])
        if which is not None:
            found = found.filter(pa.array(which))
        if not found.num_rows:
            return
        if lacking := sorted(self.columns.difference(rows.schema.names)):
            raise FrameError(
                f"upserts need the column(s) {', '.join(lacking)}, because the constraint {self.name!r} "
                f"({self.text}) is judged by each record alone",
                columns=tuple(lacking),
            )
        bad = self.violating(found)
        if bad.num_rows:
            shown = bad.select(sorted(self.columns)).slice(0, _SHOWN).to_pylist()
            raise FrameError(
                f"{bad.num_rows} row(s) violate the constraint {self.name!r} ({self.text}), such as "
                f"{', '.join(map(str, shown))}",
                constraint=self.name,
            )


def checks_of(constraints: Mapping[str, str], schema: pa.Schema) -> Sequence[Check]:
    """The constraints of a table. Raises :class:`SchemaError` for texts that cannot be judged on its columns."""
    found = []
    for name, text in constraints.items():
        try:
            condition = parse_filter(text, schema)
        except FilterError as error:
            raise SchemaError(f"the constraint {name!r} ({text}) cannot be judged: {error.message}") from error
        if condition is None:
            raise AssertionError("a text makes a filter")
        found.append(Check(name, text, condition))
    return tuple(found)
