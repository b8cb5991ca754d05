"""A power cut after an acknowledged write of a DataFrame loses nothing of it, also where Spark wrote the files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from tests.unit.storage.durable import Disk


def test_a_first_load_by_sparks_own_writer_is_durable(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    disk = Disk(monkeypatch, tmp_path / "disk")
    path = tmp_path / "disk" / "lake" / "t"
    table = LakeTable.create(path, "id BIGINT, v STRING", key=["id"], buckets=4, spark=spark)
    result = table.upsert(spark.sql("SELECT id, CAST(id AS STRING) AS v FROM range(1000)"))
    assert result.mode == "load"
    written = [name for name in table.opened.view.snapshot.files if name.rpartition("/")[2].startswith("part-")]
    assert len(written) == 4, "Spark's own writer wrote the files"
    assert {name: lost for name, lost in disk.commits.items() if lost} == {}
    assert disk.lost() == []
    after = disk.cut(tmp_path / "after") / "lake" / "t"
    assert LakeTable.check(after).ok
    assert sorted(LakeTable.open(after).to_arrow()["id"].to_pylist()) == [*range(1000)]
