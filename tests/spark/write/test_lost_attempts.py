"""What a lost attempt leaves in the folder of a load in the JVM is no file of the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakemerge import LakeTable
from lakemerge.spark import load
from tests.clusters.test_failures import CHANGES, changes, check_and_clean, files_named
from tests.unit.faults import create

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakemerge.write.start import Write


def test_what_a_lost_attempt_still_writes_is_no_file_of_a_load_in_the_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    create(path, buckets=2)
    check = load._check

    def overtaken(write: Write, session: SparkSession, folder: str) -> object:
        write.handle.store.put(f"{folder}/_temporary/0/_temporary/attempt_1/part-00000.parquet", b"half of a file")
        return check(write, session, folder)

    monkeypatch.setattr(load, "_check", overtaken)
    result = LakeTable.open(path, spark=spark).upsert(changes(spark))
    assert (result.mode, result.rows, result.files) == ("load", 10, 3)
    assert all(name.rpartition("/")[2].startswith("part-") for name in files_named(path))
    check_and_clean(path, CHANGES, orphans=1)
