"""The rows that the cases of ``merger_functions`` must give: each key that a log names is folded record by
record in plain Python, as docs/merge-semantics.md, section 5, has it; all other rows are the stored ones.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from itertools import pairwise
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyroaring

from benchmarks.cases.merger_functions import SCHEMA, numbers_of
from benchmarks.cases.merger_records import Case, Inputs
from mergers.contract import Bools, Ints

__all__ = ["Folds"]

Record = tuple[bool, Any]
"""Whether the value is taken back, and the value."""


def _collected(records: Sequence[Record]) -> list[Any]:
    """What is taken back goes first come, first out."""
    items: list[Any] = []
    places: dict[Any, deque[int]] = defaultdict(deque)
    for back, values in records:
        for value in values:
            if not back:
                places[value].append(len(items))
                items.append(value)
            elif places[value]:
                items[places[value].popleft()] = None
    return [item for item in items if item is not None]


def _distinct(records: Sequence[Record]) -> list[Any]:
    items: dict[tuple[Any, ...], None] = {}
    for back, values in records:
        for value in map(tuple, values):
            if back:
                items.pop(value, None)
            else:
                items.setdefault(value)
    return [list(item) for item in items]


def _updated(records: Sequence[Record]) -> list[Any]:
    items: dict[int, dict[str, int]] = {}
    for back, values in records:
        for value in values:
            if back:
                items.pop(value["a"], None)
            else:
                items[value["a"]] = value
    return list(items.values())


def _multiplied(records: Sequence[Record]) -> Any:
    (_, total), *rest = records
    for back, value in rest:
        if isinstance(value, Decimal):
            exact = total / value if back else total * value
            total = exact.quantize(Decimal("1e-10"), ROUND_HALF_UP)
        elif isinstance(value, int):
            total *= value  # one or minus one, which is its own inverse
        else:
            total = total / value if back else total * value
    return total


_FOLDS: Mapping[str, Mapping[str, Callable[[Sequence[Record]], Any]]] = {
    "collect": {"list": _collected, "lists": _distinct},
    "collect, retracted": {"list": _collected, "lists": _distinct},
    "nested_update": {"structs": _updated},
    "nested_update, retracted": {"structs": _updated},
    "product, retracted": {"wide": _multiplied, "whole": _multiplied, "float": _multiplied},
    "partial-update, removals": {},
    "sketches": {},
    "bitmaps": {},
}


class Folds:
    """What the cases must give for some inputs."""

    def __init__(self, inputs: Inputs) -> None:
        logged = pc.unique(pa.chunked_array([c for f in inputs.frames for c in f.column("k").chunks]))
        mask = pc.is_in(inputs.base.column("k"), value_set=logged)
        self._untouched = inputs.base.filter(pc.invert(mask))
        records = pa.concat_tables([inputs.base.filter(mask), *inputs.frames]).combine_chunks()
        first = np.zeros(records.num_rows - inputs.log_rows, dtype=np.bool_)
        order = np.argsort(records.column("k").to_numpy(), kind="stable")
        self._records = records.take(pa.array(order))
        self._back: Bools = np.concatenate([first, *inputs.taken_back])[order]
        keys = self._records.column("k").to_numpy()
        self._starts: Ints = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))

    def problems(self, case: Case, rows: pa.Table) -> list[str]:
        """How rows sorted by key differ from what the case must give; nothing if they do not."""
        expected = self._expected(case)
        if not rows.column("k").equals(expected.column("k")):
            return [f"{rows.num_rows} rows, expected {expected.num_rows}, or other keys"]
        united = {"sketches": ("hll", "theta"), "bitmaps": ("bitmap",)}.get(case.name, ())
        compared = [name for name in SCHEMA.names if name not in united]
        wrong = [name for name in compared if not rows.column(name).equals(expected.column(name))]
        touched = pc.is_in(rows.column("k"), value_set=self._records.column("k"))
        for name in united:
            stored, unions = (rows.column(name).filter(mask) for mask in (pc.invert(touched), touched))
            as_stored = stored.equals(self._untouched.column(name))
            wrong += [] if as_stored and self._are_unions(name, unions.to_pylist()) else [name]
        return [f"column {name} differs" for name in wrong]

    def _expected(self, case: Case) -> pa.Table:
        """Sorted by key. Columns that no function folds hold what was added last."""
        if case.name == "partial-update, removals":
            rows = self._after_removals()
        else:
            back = self._back if case.takes_back is not None else np.zeros_like(self._back)
            last = np.maximum.reduceat(np.where(back, -1, np.arange(len(back))), self._starts)
            rows = self._records.take(pa.array(last))
            for name, fold in _FOLDS[case.name].items():
                rows = rows.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), self._folded(name, back, fold))
        return pa.concat_tables([self._untouched, rows]).sort_by("k").combine_chunks()

    def _folded(self, name: str, back: Bools, fold: Callable[[Sequence[Record]], Any]) -> pa.Array:
        records = list(zip(back.tolist(), self._records.column(name).to_pylist(), strict=True))
        with localcontext(prec=100):
            values = [fold(records[start:end]) for start, end in pairwise([*self._starts.tolist(), len(records)])]
        return pa.array(values, SCHEMA.field(name).type)

    def _after_removals(self) -> pa.Table:
        """Deletes that are not older remove the row, and records that are older than one make none; each column has its
        own last record after that."""
        sequences, back = self._records.column("s").to_pylist(), self._back.tolist()
        rows: list[tuple[int, int]] = []
        for start, end in pairwise([*self._starts.tolist(), len(back)]):
            newest: int | None = None
            last, highest = -1, sequences[start]
            for record in range(start, end):
                late = sequences[record] < highest
                highest = max(highest, sequences[record])
                if not late:
                    newest = None if back[record] else record
                if not back[record] and newest is not None:
                    last = record
            if newest is not None:
                rows.append((newest, last))
        newest_of, last_of = (pa.array([row[side] for row in rows], pa.int64()) for side in (0, 1))
        grouped, others = self._records.take(newest_of), self._records.take(last_of)
        return pa.table(
            [(grouped if name in ("s", "i", "whole") else others).column(name) for name in SCHEMA.names], schema=SCHEMA
        )

    def _are_unions(self, name: str, values: Sequence[bytes]) -> bool:
        """Whether each holds the numbers of its key's records; of a sketch, whether its estimate says so."""
        entries = self._records.column("i").to_pylist()
        edges = pairwise([*self._starts.tolist(), len(entries)])
        for (start, end), value in zip(edges, values, strict=True):
            numbers = [number for entry in set(entries[start:end]) for number in numbers_of(entry)]
            if name == "bitmap":
                if pyroaring.BitMap.deserialize(value) != pyroaring.BitMap(numbers):
                    return False
                continue
            kind = datasketches.hll_sketch if name == "hll" else datasketches.compact_theta_sketch
            # Theta sketches count exactly below their size, and the others nearly so while they hold few.
            allowed = 0.0 if name == "theta" else 1e-4 if len(numbers) < 100 else 0.06
            if abs(kind.deserialize(value).get_estimate() - len(numbers)) > allowed * len(numbers):
                return False
        return True
