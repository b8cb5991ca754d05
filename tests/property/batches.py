"""What processes write that share one table, and what it then holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lakemerge import Settings

__all__ = ["BATCH", "DDL", "SETTINGS", "batch_of", "fold"]

DDL = "k STRING, o BIGINT, batch STRING, size INT"
SETTINGS = Settings(threads=1, row_group_rows=4, write_budget_bytes=400, inline_blocks=6)
BATCH = 7
SHARED = 5
ORDERINGS = 10


def batch_of(writer: int, number: int, *, size: int = BATCH) -> pa.Table:
    """``size`` rows of keys nobody else writes, and one record for each of a few keys that all writers share.
    The ordering of shared keys rises and falls from batch to batch, with ties between writers."""
    name = f"{writer}.{number}"
    own = [(f"own {name} {i}", 0, name, size) for i in range(size)]
    shared = [(f"shared {i}", number * 7 % ORDERINGS, name, size) for i in range(SHARED)]
    columns = [[row[i] for row in own + shared] for i in range(4)]
    types = [pa.string(), pa.int64(), pa.string(), pa.int32()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=["k", "o", "batch", "size"])


def fold(names: Iterable[str], *, size: int = BATCH) -> list[tuple[Any, ...]]:
    """The sorted rows after the batches of these names (``writer.number``) in the order of their commits."""
    expected: dict[str, tuple[Any, ...]] = {}
    for name in names:
        writer, number = map(int, name.split("."))
        for row in batch_of(writer, number, size=size).to_pylist():
            if row["k"] not in expected or row["o"] >= expected[row["k"]][1]:
                expected[row["k"]] = tuple(row.values())
    return sorted(expected.values())
