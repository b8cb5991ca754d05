"""Makes a table of rows in one commit, as ``CREATE TABLE ... AS SELECT`` does, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from lakemerge import LakeTable
from lakemerge.results.writes import UpsertResult
from lakemerge.table.create import define_table
from lakemerge.table.opening import open_handle
from lakemerge.table.staging import StagedTable
from lakemerge.write.pack import pack
from lakemerge.write.start import Write, WriteRequest
from lakemerge.write.upsert import load_in_process

__all__ = ["made_of"]


def made_of(path: Path, rows: pa.Table, *, key: list[str], replace: bool = True, **definition: Any) -> LakeTable:
    """The table of these rows, in the place of the one that is there."""
    handle = open_handle(path, None, (), None)
    options: dict[str, Any] = {
        "ordering": [],
        "merger": None,
        "options": None,
        "partition_by": [],
        "buckets": None,
        "name": None,
        "description": None,
        "properties": None,
        **definition,
    }
    defined = define_table(handle, rows.schema, key=key, **options)
    staged = StagedTable.of(handle, defined, replace=replace, must_exist=False)
    write = Write.start(handle, staged.begin, rows.schema, WriteRequest(), estimated_bytes=None)
    assert not isinstance(write, UpsertResult)
    packed = [pack(rows.to_batches(), write.pack, 0)]
    staged.finish(write, packed, begun=staged.begin.version, load=load_in_process)
    return LakeTable.open(path)
