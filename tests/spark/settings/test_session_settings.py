"""Settings that jobs of ours hold in a session: shared, put back, and nothing that anybody waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeTable
from lakemerge.spark.sessions import session_settings

TYPE = "spark.sql.parquet.outputTimestampType"
UNSET = "spark.lakemerge.test.unset"
SECONDS = 120


def test_two_first_loads_of_one_process_do_not_wait_for_each_other(spark: SparkSession, tmp_path: Path) -> None:
    """The first load's rows are there only once the second load has ended."""
    before = spark.conf.get(TYPE)
    started, go_on = tmp_path / "started", tmp_path / "go on"

    def waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        started.touch()
        for _ in range(10 * SECONDS):
            if go_on.exists():
                break
            time.sleep(0.1)
        else:
            raise TimeoutError("the second load waits for the first")
        yield from batches

    slow, quick = (
        LakeTable.create(tmp_path / name, "id BIGINT NOT NULL, t TIMESTAMP", key=["id"], spark=spark)
        for name in ("slow", "quick")
    )
    rows = spark.sql("SELECT id, TIMESTAMP'2020-01-01' AS t FROM range(0, 10, 1, 1)")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.upsert, rows.mapInArrow(waiting, "id BIGINT, t TIMESTAMP"))
        while not started.exists() and not first.done():
            time.sleep(0.1)
        try:
            quick.upsert(rows)
        finally:
            go_on.touch()
        first.result()
    assert slow.to_arrow().num_rows == quick.to_arrow().num_rows == 10
    assert spark.conf.get(TYPE) == before


@pytest.mark.parametrize("before", [None, "mine"])
def test_the_last_block_puts_back_what_was_there_before_the_first(spark: SparkSession, before: str | None) -> None:
    if before is not None:
        spark.conf.set(UNSET, before)
    try:
        with ExitStack() as second:
            with session_settings(spark, {UNSET: "ours"}):
                second.enter_context(session_settings(spark, {UNSET: "ours"}))
                assert spark.conf.get(UNSET, None) == "ours"
            assert spark.conf.get(UNSET, None) == "ours"
        assert spark.conf.get(UNSET, None) == before
        with session_settings(spark, {UNSET: "ours"}, only_unset=True):
            assert spark.conf.get(UNSET, None) == (before or "ours")
        assert spark.conf.get(UNSET, None) == before
    finally:
        spark.conf.unset(UNSET)


def test_other_sessions_keep_their_settings(spark: SparkSession) -> None:
    other = spark.newSession()
    with session_settings(spark, {UNSET: "ours"}):
        assert other.conf.get(UNSET, None) is None
        with session_settings(other, {UNSET: "theirs"}):
            assert (spark.conf.get(UNSET, None), other.conf.get(UNSET, None)) == ("ours", "theirs")
    assert (spark.conf.get(UNSET, None), other.conf.get(UNSET, None)) == (None, None)


@pytest.mark.parametrize("state", ["clean", "minor"])
@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_a_lost_file_is_an_error_in_a_session_that_ignores_lost_files(
    fault: str, state: str, spark: SparkSession, tmp_path: Path
) -> None:
    session = spark.newSession()
    for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):
        session.conf.set(f"spark.sql.files.{name}", "true")
    table = LakeTable.create(
        tmp_path, "id BIGINT, v BIGINT", key=["id"], buckets=2, spark=session,
        properties={"lakemerge.maintenance": "off"},
    )  # fmt: skip
    table.upsert(pa.table({"id": range(100), "v": range(100)}))
    table.compact()
    if state == "minor":
        table.upsert(pa.table({"id": range(10), "v": range(10)}))
        table.compact(minor=True)
    planned = table.to_df()
    assert planned.count() == 100
    path = next((tmp_path / "base").rglob("*.parquet"))
    size = path.stat().st_size
    path.unlink()
    if fault == "damaged":
        path.write_bytes(b"\0" * size)
    for frame in (planned, LakeTable.open(tmp_path, spark=session).to_df):
        with pytest.raises(Exception, match=r"(?i)FILE_NOT_EXIST|CANNOT_READ_FILE|PATH_NOT_FOUND|not.*Parquet|damaged"):
            (frame() if callable(frame) else frame).collect()
