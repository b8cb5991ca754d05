"""How much log publications leave: bytes for each file, and how often ``auto`` publishes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest

from benchmarks.tables import SCHEMA, random_rows
from compaction import automatic
from compaction.automatic import after_write
from compaction.plan.auto import Decision
from compaction.plan.loads import FileSliceLoad
from compaction.publish import FILE_LOG_BYTES, WEEK_LOG_BYTES, is_too_early, pause_ms
from lakemerge import LakeTable
from lakemerge.format.schedule import Auto
from lakemerge.layout.published import published_of
from tests.unit.faults import create, frame

BUCKETS = 64
ROWS = 6_400
WEEK_MS = 7 * 86_400_000


def age(path: Path, milliseconds: int) -> None:
    """Let so much time pass, by the store's clock."""
    for file in (path / "_delta_log").iterdir():
        stat = file.stat()
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns - milliseconds * 10**6))


@pytest.mark.long
def test_what_a_publication_writes_for_each_file(tmp_path: Path) -> None:
    """Ten columns, eight of which have bounds; every file changes in each publication."""
    properties = {"lakemerge.publish": "deletionVectors", "lakemerge.maintenance": "off"}
    table = LakeTable.create(tmp_path / "t", SCHEMA, key=["k"], ordering=["ts"], buckets=BUCKETS, properties=properties)
    rng = np.random.default_rng(7)
    table.upsert(random_rows(rng, np.arange(ROWS), 0))
    sizes = []
    for number in range(8):
        table.upsert(random_rows(rng, np.arange(number % 10, ROWS, 10), 100 + 100 * number))
        files = len(table.opened.view.snapshot.files) + BUCKETS
        spent = WEEK_LOG_BYTES * pause_ms(table.opened.view) / WEEK_MS
        result = table.compact(minor=True)
        assert result.file_slices > BUCKETS - 4
        size = (tmp_path / f"t/_delta_log/{result.version:020d}.json").stat().st_size
        sizes.append(size / files)
        assert size <= spent * 1.05, "a week of such publications leaves no more than it may"
    assert len(table.opened.view.snapshot.files) > 2 * BUCKETS, "there are winner files"
    assert max(sizes) < FILE_LOG_BYTES * 1.05, sizes
    assert max(sizes) > FILE_LOG_BYTES / 2, "the bound is no guess"


def test_small_tables_do_not_wait(tmp_path: Path) -> None:
    for buckets, waits in ((32, False), (64, True)):
        table = create(tmp_path / str(buckets), buckets=buckets, properties={"lakemerge.publish": "deletionVectors"})
        table.upsert(frame([(k, 1, "x") for k in range(1_000)]))
        assert len(table.opened.view.base_files) == buckets
        assert (pause_ms(table.opened.view) > 0) is waits


def test_auto_waits_and_then_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = create(path, buckets=BUCKETS, properties={"lakemerge.publish": "deletionVectors"})
    table.upsert(frame([(k, 1, "x") for k in range(1_000)]))
    pause = pause_ms(table.opened.view)
    assert len(table.opened.view.base_files) == BUCKETS

    def minor(auto: Auto, loads: Sequence[FileSliceLoad], **_: Any) -> Decision:
        parts = frozenset((load.bucket_id, load.file) for load in loads if not load.is_clean)
        return Decision(service="minor compaction", parts=parts, why="a test")

    monkeypatch.setattr(automatic, "decide", minor)

    def decided() -> str:
        opened = LakeTable.open(path).opened
        auto = Auto(reads_per_write=1_000, logs_after_commits=3)
        found = after_write(opened.handle, opened.view, auto, version=opened.view.version, chance=lambda: 0.0)
        assert found is not None
        return found.service

    table.upsert(frame([(1, 2, "new")]))
    assert decided() == "nothing"
    table.upsert(frame([(2, 2, "new")]))
    table.upsert(frame([(3, 2, "new")]))
    assert decided() == "log compaction", "readers of LakeMerge need not wait"
    age(path, pause - 60_000)
    assert decided() == "nothing"
    age(path, 120_000)
    assert decided() == "minor compaction"
    table = LakeTable.open(path)
    assert published_of(table.opened.view).oldest is None
    table.upsert(frame([(1, 3, "again")]))
    assert decided() == "nothing", "the next one waits as long"
    table.alter(properties={"lakemerge.publish.maxLag": "1h"})
    opened = LakeTable.open(path).opened
    assert not is_too_early(opened.handle, opened.view), "the table says how far others may lag"


def test_removes_of_a_publication_say_which_file_it_is(tmp_path: Path) -> None:
    """And readers take the files for what they are, also after a checkpoint."""
    path = tmp_path / "t"
    table = create(path, properties={"lakemerge.publish": "deletionVectors"})
    table.upsert(frame([(k, 1, "x") for k in range(100)]))
    for o in range(2, 6):
        table.upsert(frame([(k, o, "y") for k in range(o)]))
        table.compact(minor=True)
    lines = [json.loads(line) for line in (path / f"_delta_log/{table.version:020d}.json").read_text().splitlines()]
    removes = [line["remove"] for line in lines if "remove" in line]
    assert removes
    assert {name for remove in removes for name in remove} <= {"path", "dataChange", "size", "deletionVector"}
    table.opened.handle.log.checkpoint(table.opened.view.snapshot)
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path)))
    theirs = pa.table(builder.execute("SELECT k, o, v FROM t ORDER BY k").read_all())
    assert theirs.to_pylist() == table.to_arrow().sort_by("k").to_pylist()
