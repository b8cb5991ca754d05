"""Random histories read in parts, down to one row group each: the rows are those of the plain-Python model.

``LAKEMERGE_EXAMPLES`` sets how many (60 in ``make test-deep``).
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from tests.conformance.arrow_engine import ArrowEngine, ArrowHandle
from tests.conformance.runner import TableCase
from tests.property.effort import examples, thorough
from tests.property.histories import History, check_history, histories


class _SplittingEngine(ArrowEngine):
    """Tables whose files have row groups of a few rows, and that are read in parts of so many bytes."""

    def __init__(self, folder: Path, *, group_rows: int, part_bytes: int) -> None:
        super().__init__(folder)
        self._split = partial(replace, row_group_rows=group_rows, target_task_bytes=part_bytes, threads=2)

    def create(self, table: TableCase, *, buckets: int, spread: bool) -> ArrowHandle:
        made = super().create(table, buckets=buckets, spread=spread)
        return ArrowHandle(made.path, self._split(made.settings))


@thorough(examples(60))
@given(histories(max_steps=6), st.sampled_from([1, 2, 3]), st.sampled_from([150, 400, 1000]))
def test_the_same_rows_at_any_split(history: History, group_rows: int, part_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_history(history, _SplittingEngine(Path(folder), group_rows=group_rows, part_bytes=part_bytes))
