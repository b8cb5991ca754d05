"""The first read of a session, each in a process of its own. Its Spark has started, and has read nothing.

A program that starts, reads and ends pays for what is cold: Spark's and LakeMerge's code in the JVM, Python's imports,
and the merge of the logs. Plain Parquet files are the floor, and they are read in the same way.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare import on_spark
from benchmarks.elsewhere import Elsewhere
from benchmarks.measure import Report
from benchmarks.tpch import LINEITEM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Session", "first_reads"]


class Session:
    """A session in this process. Files are named by folder, as plain Parquet or as a table."""

    def __init__(self, folder: str) -> None:
        self._spark = on_spark.session(Path(folder), {})
        self._spark.range(2, numPartitions=2).count()

    def scan(self, path: str, *, is_plain: bool) -> tuple[float, float]:
        """Read all rows with all columns. Seconds until there is a frame, and then until its rows are read."""
        started = time.perf_counter()
        frame = self._frame(path, is_plain=is_plain)
        planned = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return planned - started, time.perf_counter() - planned

    def digest(self, path: str, *, is_plain: bool) -> tuple[object, ...]:
        """A number of rows and a sum of hashes. They are the same for the same rows in any order."""
        hashes = f"xxhash64({', '.join(LINEITEM.names)})"
        frame = self._frame(path, is_plain=is_plain)
        return tuple(frame.selectExpr("count(1)", f"sum(CAST({hashes} AS DECIMAL(20, 0)))").collect()[0])

    def _frame(self, path: str, *, is_plain: bool) -> DataFrame:
        if is_plain:
            return self._spark.read.schema(LINEITEM.ddl).parquet(path)
        from lakemerge import LakeTable

        return LakeTable.open(path, spark=self._spark).to_df()


def first_reads(report: Report, scratch: Path, plain: str, dirty: str, *, rounds: int) -> None:
    """A session's first scan of a table, and its second one by a table that is opened anew.

    :param plain: the folder of plain Parquet files with the rows of ``dirty``.
    """
    paths = {"plain": plain, "dirty": dirty}
    first: dict[str, list[float]] = {name: [] for name in paths}
    again: dict[str, list[float]] = {name: [] for name in paths}
    planned: list[float] = []
    for number in range(rounds):
        digests: dict[str, object] = {}
        for name in sorted(paths, reverse=number % 2 == 0):  # each goes first in turn
            path, is_plain = paths[name], name == "plain"
            with Elsewhere("benchmarks.cases.first_reads:Session", scratch) as session:
                os.sync()
                parts = session.ask("scan", path, is_plain=is_plain)
                first[name].append(sum(parts))
                again[name].append(sum(session.ask("scan", path, is_plain=is_plain)))
                digests[name] = session.ask("digest", path, is_plain=is_plain)
            if not is_plain:
                planned.append(parts[0])
        wrong = [] if digests["dirty"] == digests["plain"] else [f"{digests['dirty']}, expected {digests['plain']}"]
        report.check(f"first: rows in round {number}", wrong)
    report.timed("first", "first full scan of a session, dirty / plain", first["dirty"], first["plain"], target=1.6)
    report.timed("first", "the time until it has a frame, logs merged", planned)
    report.timed(
        "first", "second one, the table opened anew, dirty / plain", again["dirty"], again["plain"], target=1.1
    )
