"""Random histories read as a minor compaction in memory leaves them: stored rows, but for superseded positions,
and merged ones beside, or the places of log records that are the merged ones. The rows are those of the plain-Python
model.

``LAKEMERGE_EXAMPLES`` sets how many (60 in ``make test-deep``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from lakemerge.layout.view import FileSlice
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.merge import MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.premerge import premerge
from tests.conformance.arrow_engine import ArrowEngine, ArrowHandle
from tests.conformance.runner import Filter, TableCase
from tests.property.effort import examples, thorough
from tests.property.histories import History, check_history, histories


class _Handle(ArrowHandle):
    """Reads every file slice that has a base file and logs by merging the logs first."""

    pick: ClassVar[bool] = False

    def read(
        self,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        form: Literal["sql", "expression"] = "sql",
    ) -> pa.Table:
        table = self.table if version is None else self._at(version)
        view, condition = table.opened.view, None if filter is None else filter.sql()
        spec = MergeSpec(table.opened.handle.store, view.config, table.opened.handle.merger(view), self.settings)
        parsed = parse_filter(condition, table.schema)
        wanted = set(table.schema.names if columns is None else columns) | (parsed.columns if parsed else set())
        names = [name for name in table.schema.names if name in wanted]
        schema = pa.schema([table.schema.field(name).with_nullable(True) for name in names])
        parts = [
            part
            for file_slice in view.file_slices
            for part in _rows_of(file_slice, spec, names, table.url, pick=self.pick)
        ]
        rows = pa.concat_tables([schema.empty_table(), *(part.select(names).cast(schema) for part in parts)])
        rows = rows if parsed is None else rows.filter(parsed.expression)
        return rows.select(table.schema.names if columns is None else list(columns))


class _PickingHandle(_Handle):
    """Takes records of the logs where places tell all."""

    pick: ClassVar[bool] = True


def _rows_of(
    file_slice: FileSlice, spec: MergeSpec, names: Sequence[str], url: str, *, pick: bool
) -> Iterator[pa.Table]:
    if file_slice.base is None or not file_slice.blocks:
        with ParquetFiles(spec.store) as files:
            yield from [
                part.rows for part in merge_file_slice(spec, file_slice, columns=names, sort=False, files=files)
            ]
        return
    found = premerge(file_slice, spec, names, pick=pick)
    assert not (found.picked and found.rows)
    words = dict(zip(*found.positions.to_pydict().values(), strict=True))
    for file in file_slice.row_files:
        gone = [
            place * 64 + bit
            for place, word in enumerate(words.get(file.ordinal, []))
            for bit in range(64)
            if word >> bit & 1
        ]
        stored = pq.read_table(Path(url, file.path))
        missing = [name for name in names if name not in stored.column_names]
        for name in missing:
            kind = spec.config.schema.field(name).type
            stored = stored.append_column(name, pa.nulls(stored.num_rows, kind))
        yield stored.take(pa.array(np.setdiff1d(np.arange(file.rows), gone)))
    for path, places in found.records.items():
        yield pq.read_table(Path(url, path)).take(pa.array(places))
    if found.rows:
        yield pa.ipc.open_stream(found.rows).read_all()


class _Engine(ArrowEngine):
    def __init__(self, root: Path, handle: type[_Handle]) -> None:
        super().__init__(root)
        self._handle = handle

    def create(self, table: TableCase, *, buckets: int, spread: bool) -> ArrowHandle:
        made = super().create(table, buckets=buckets, spread=spread)
        return self._handle(made.path, replace(made.settings, merge_budget_bytes=2_000))


@pytest.mark.parametrize("handle", [_Handle, _PickingHandle])
@thorough(examples(60))
@given(history=histories(max_steps=6))
def test_the_same_rows_premerged(handle: type[_Handle], history: History) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_history(history, _Engine(Path(folder), handle))
