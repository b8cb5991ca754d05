"""Reads as DataFrames: every state of a table, filters, columns, versions.

Expected rows come from polars over a dictionary that the test keeps of what it wrote.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lakemerge import InputError, LakeTable, VersionNotFoundError

DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery"
DDL = "id BIGINT, at INT, country STRING, amount DOUBLE, note STRING"
NAMES = ["id", "at", "country", "amount", "note"]
State = dict[int, tuple[Any, ...]]


def base_rows() -> State:
    countries = ("NO", "SE", None)
    return {i: (i, 10, countries[i % 3], i / 4, None if i % 5 == 0 else f"n{i}") for i in range(60)}


def frame(spark: SparkSession, rows: State) -> DataFrame:
    return spark.createDataFrame(list(rows.values()), DDL)


def changed(ids: list[int]) -> State:
    """Newer rows that differ in every column, so that a stale one is on the other side of any filter."""
    return {i: (i, 11, "DK", -1.0 - i, "changed") for i in ids}


def jobs_of(spark: SparkSession) -> set[int]:
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def in_one_bucket(spark: SparkSession, bucket: int) -> list[int]:
    found = spark.sql(f"SELECT id FROM range(60) WHERE pmod(xxhash64(id), 4) = {bucket}").collect()
    return [row.id for row in found]


class Played:
    """A table and what is in it."""

    def __init__(self, spark: SparkSession, path: Path, kind: str) -> None:
        self.table = LakeTable.create(path, DDL, key=["id"], ordering=["at"], buckets=4, spark=spark)
        self.rows: State = {}
        self.gone: set[int] = set()
        if kind == "empty":
            return
        self.rows = base_rows()
        if kind == "log only":
            # A first write that deletes nobody leaves one base file; the other buckets have logs alone.
            self.table.delete(spark.createDataFrame([(-1, 1)], "id BIGINT, at INT"))
        self.table.upsert(frame(spark, self.rows))
        if kind == "dirty":
            self.change(spark, list(range(0, 60, 2)), deleted=list(range(1, 60, 6)))
        if kind == "mixed":
            ids = in_one_bucket(spark, 0)
            self.change(spark, ids[::2], deleted=ids[1::4])
        if kind == "minor":
            self.change(spark, list(range(0, 60, 3)), deleted=[1, 2, 3])
            self.table.compact(minor=True)
            self.change(spark, [9, 10, 99], deleted=[60])
            self.table.compact(minor=True)
        if kind == "compacted":
            self.change(spark, list(range(0, 60, 7)), deleted=[1, 2, 3])
            self.table.compact()

    def change(self, spark: SparkSession, ids: list[int], *, deleted: list[int]) -> None:
        self.table.upsert(frame(spark, changed(ids)))
        # Deletes here are newer than every row, so nothing brings their keys back.
        self.rows |= changed([i for i in ids if i not in self.gone])
        self.table.delete(spark.createDataFrame([(i, 99) for i in deleted], "id BIGINT, at INT"))
        self.gone |= set(deleted)
        self.rows = {i: row for i, row in self.rows.items() if i not in self.gone}

    def expected(self, sql: str, columns: list[str]) -> list[tuple[Any, ...]]:
        kinds = [pl.Int64, pl.Int32, pl.String, pl.Float64, pl.String]
        data = pl.DataFrame(list(self.rows.values()), schema=dict(zip(NAMES, kinds, strict=True)), orient="row")
        return in_order(data.sql(f"SELECT {', '.join(columns)} FROM self WHERE {sql}").rows())


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


def collected(found: DataFrame) -> list[tuple[Any, ...]]:
    return in_order([tuple(row) for row in found.collect()])


KINDS = ("empty", "clean", "dirty", "mixed", "log only", "minor", "compacted")


@pytest.fixture(scope="module")
def played(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Played]:
    made: dict[str, Played] = {}

    def play(kind: str) -> Played:
        if kind not in made:
            made[kind] = Played(spark, tmp_path_factory.mktemp("table"), kind)
        return made[kind]

    return play


@pytest.mark.long
def test_the_tables_are_what_they_are_called(played: Callable[[str], Played]) -> None:
    states = {}
    for kind in KINDS:
        file_slices = played(kind).table.opened.view.file_slices
        states[kind] = {
            (file_slice.base is not None, file_slice.is_clean, file_slice.is_merged) for file_slice in file_slices
        }
    assert states == {
        "empty": set(),
        "clean": {(True, True, True)},
        "dirty": {(True, False, False)},
        "mixed": {(True, True, True), (True, False, False)},
        "log only": {(True, False, False), (False, False, False)},
        "minor": {(True, False, True)},
        "compacted": {(True, True, True)},
    }


FILTERS: list[tuple[str, Callable[[], Column] | None, list[str]]] = [
    ("TRUE", None, NAMES),
    ("country = 'DK'", lambda: F.col("country") == "DK", ["id", "amount"]),
    ("country = 'NO' AND amount < 7", None, ["note", "id"]),
    ("amount < 0 OR note IS NULL", lambda: (F.col("amount") < 0) | F.col("note").isNull(), ["id"]),
    ("id BETWEEN 10 AND 13", None, ["country", "at"]),
    ("id = 1000", None, NAMES),
]


@pytest.mark.parametrize("kind", KINDS)
def test_filters_and_columns(played: Callable[[str], Played], kind: str) -> None:
    table = played(kind).table
    for sql, column, names in FILTERS:
        expected = played(kind).expected(sql, names)
        found = table.to_df(columns=names, filter=sql)
        assert found.columns == names
        assert collected(found) == expected, sql
        arrow = table.to_arrow(columns=names, filter=sql)
        assert arrow.column_names == names
        assert in_order(list(zip(*(c.to_pylist() for c in arrow.columns), strict=True))) == expected, sql
        if column is not None:
            assert collected(table.to_df(columns=names, filter=column())) == expected, sql


def test_a_filter_that_only_spark_understands(played: Callable[[str], Played]) -> None:
    found = played("mixed").table.to_df(columns=["id"], filter="levenshtein(note, 'n1x') <= 1")
    notes = {row[0]: row[4] for row in played("mixed").rows.values()}
    expected = [(i,) for i, note in notes.items() if note is not None and near(note, "n1x")]
    assert collected(found) == sorted(expected)
    assert len(expected) > 5


def near(left: str, right: str) -> bool:
    """Whether one insertion, deletion or replacement at most makes the two equal."""
    if left == right:
        return True
    cuts = range(max(len(left), len(right)) + 1)
    return any(
        left[:i] + left[i + 1 :] == right
        or right[:i] + right[i + 1 :] == left
        or (i < len(left) == len(right) and left[:i] + right[i] + left[i + 1 :] == right)
        for i in cuts
    )


def test_columns_by_any_case_and_none(played: Callable[[str], Played]) -> None:
    table, rows = played("mixed").table, played("mixed").rows
    assert table.to_df(columns=["NOTE", "Id"]).columns == ["note", "id"]
    assert table.to_df(columns=[]).columns == []
    assert table.to_df(columns=[]).count() == len(rows)
    assert table.to_df(columns=[], filter="country = 'DK'").count() == len(
        played("mixed").expected("country = 'DK'", ["id"])
    )
    for columns, message in ((["id", "x"], "unknown column.*'x'"), (["id", "ID"], "twice"), ("id", "list of names")):
        with pytest.raises(InputError, match=message):
            table.to_df(columns=columns)


def test_no_hidden_columns_and_the_tables_types(spark: SparkSession, played: Callable[[str], Played]) -> None:
    schema = spark.createDataFrame([], DDL).schema
    for kind in KINDS:
        assert played(kind).table.to_df().schema == schema


@pytest.mark.usefixtures("by_unions")
def test_a_filter_opens_only_files_that_may_match(played: Callable[[str], Played]) -> None:
    table = played("clean").table
    files = {path: pq.read_table(Path(table.url) / path)["id"].to_pylist() for path in table.opened.view.snapshot.files}
    assert len(files) == 4
    limit = sorted(min(ids) for ids in files.values())[1]
    for sql, wanted in ((f"id <= {limit}", 2), (f"id < {limit}", 1), ("id < 0", 0), ("at > 10", 0), ("id >= 0", 4)):
        opened = {name for name in files if any(path.endswith(name) for path in table.to_df(filter=sql).inputFiles())}
        assert len(opened) == wanted, sql
        assert wanted in (0, 4) or opened == {name for name, ids in files.items() if min(ids) < limit + wanted - 1}


def test_views_and_sql(spark: SparkSession, played: Callable[[str], Played]) -> None:
    played("mixed").table.create_temp_view("lm_read_view")
    found = spark.sql("SELECT country, count(*), sum(amount) FROM lm_read_view GROUP BY country")
    groups: dict[Any, list[float]] = {}
    for row in played("mixed").rows.values():
        groups.setdefault(row[2], []).append(row[3])
    assert collected(found) == in_order([(c, len(amounts), sum(amounts)) for c, amounts in groups.items()])
    played("mixed").table.create_temp_view("lm_read_view", columns=["id"])
    assert spark.table("lm_read_view").columns == ["id"]
    joined = spark.table("lm_read_view").join(spark.range(5), "id")
    assert collected(joined) == [(i,) for i in range(5) if i in played("mixed").rows]


@pytest.fixture
def in_new_york(spark: SparkSession) -> Iterator[None]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.usefixtures("by_unions")
def test_times_in_conditions_are_the_sessions(spark: SparkSession, in_new_york: None, tmp_path: Path) -> None:
    """Row n is at n o'clock in UTC, and n - 5 in New York. Files are pruned by it, rows deleted by it."""
    ddl = "id BIGINT, day DATE, at TIMESTAMP"
    table = LakeTable.create(tmp_path, ddl, key=["id", "day"], partition_by=["day"], buckets=1, spark=spark)
    hours = spark.range(96).selectExpr(
        "id", "date_add(DATE '2021-01-01', int(id div 24)) AS day", "timestamp_seconds(1609459200 + id * 3600) AS at"
    )
    table.upsert(hours)
    for dirty in (False, True):
        if dirty:
            table.upsert(hours.where("id % 7 = 0"))
        for sql, expected in (
            ("at = TIMESTAMP '2021-01-01 20:00:00'", [25]),
            ("at > '2021-01-04 17:00:00'", [95]),
            ("at < DATE '2021-01-01'", [0, 1, 2, 3, 4]),
            ("at = '2021-01-01T20:00:00Z'", [20]),
            ("day = DATE '2021-01-02' AND at < '2021-01-01 20:00'", [24]),
            ("day >= TIMESTAMP '2021-01-04 00:00:00' AND id > 93", [94, 95]),
        ):
            found = table.to_df(columns=["id"], filter=sql)
            assert collected(found) == [(n,) for n in expected], sql
        assert len(table.to_df(filter="at = TIMESTAMP '2021-01-01 20:00:00'").inputFiles()) == int(not dirty)
        # Without Spark there is no session: UTC.
        without = LakeTable.open(tmp_path).to_arrow(filter="at = TIMESTAMP '2021-01-01 20:00:00'")
        assert without["id"].to_pylist() == [20]
    assert table.delete_where("at >= TIMESTAMP '2021-01-01 20:00:00'").rows == 71
    assert collected(table.to_df(columns=["id"])) == [(n,) for n in range(25)]


def test_a_dataframe_keeps_its_version(spark: SparkSession, tmp_path: Path) -> None:
    table = Played(spark, tmp_path, "mixed")
    before, frames = in_order(list(table.rows.values())), [table.table.to_df()]
    table.change(spark, list(range(20)), deleted=[50])
    after = in_order(list(table.rows.values()))
    frames.append(table.table.to_df())
    table.table.compact()
    frames.append(table.table.to_df())
    table.change(spark, list(range(60)), deleted=[])
    assert [collected(found) for found in frames] == [before, after, after]
    assert before != after != in_order(list(table.rows.values()))


def test_time_travel(spark: SparkSession, tmp_path: Path) -> None:
    writer = Played(spark, tmp_path, "clean")
    states = {writer.table.version: dict(writer.rows)}
    writer.change(spark, [1, 2], deleted=[])
    states[writer.table.version - 1] = dict(writer.rows)
    states[writer.table.version] = dict(writer.rows)
    writer.table.compact()
    states[writer.table.version] = dict(writer.rows)
    times = {entry.version: entry.timestamp_ms for entry in writer.table.history()}
    assert len(set(times.values())) == len(times)
    follower = LakeTable.open(tmp_path, spark=spark)
    for version, state in states.items():
        expected = in_order(list(state.values()))
        instant = dt.datetime.fromtimestamp(times[version] / 1000, dt.UTC)
        for table in (
            LakeTable.open(tmp_path, version=version, spark=spark),
            LakeTable.open(tmp_path, timestamp=instant, spark=spark),
            LakeTable.open(tmp_path, timestamp=instant.isoformat(), spark=spark),
        ):
            assert table.version == version
            assert collected(table.to_df()) == expected
    old = LakeTable.open(tmp_path, version=0, spark=spark)
    assert old.to_df().count() == 0
    with pytest.raises(InputError, match="read-only"):
        old.upsert(frame(spark, {1: base_rows()[1]}))
    with pytest.raises(VersionNotFoundError, match="reaches from 0 to"):
        LakeTable.open(tmp_path, version=99)
    # One opened without a version follows the tip; one opened at a version stays.
    writer.change(spark, [30], deleted=[31])
    assert collected(follower.to_df()) == in_order(list(writer.rows.values()))
    assert (old.version, old.to_df().count()) == (0, 0)


def test_a_table_whose_last_row_went(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, DDL, key=["id"], ordering=["at"], buckets=1, spark=spark)
    table.upsert(frame(spark, {1: (1, 1, "NO", 1.0, "a")}))
    table.delete_where("true")
    for _ in range(2):  # with the delete in a log, then in an empty base file
        assert table.to_df().collect() == []
        assert table.to_df(columns=["note"], filter="id = 1").collect() == []
        assert table.to_df().schema == spark.createDataFrame([], DDL).schema
        table.compact()
    table.upsert(frame(spark, {1: (1, 0, "NO", 1.0, "late"), 2: (2, 0, "SE", 2.0, "b")}))
    assert collected(table.to_df()) == [(2, 0, "SE", 2.0, "b")]


def test_a_column_that_was_added_later(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT, at INT", key=["id"], ordering=["at"], buckets=1, spark=spark)
    table.upsert(spark.createDataFrame([(1, 1), (2, 1)], "id BIGINT, at INT"))
    table.alter(add_columns="late STRING")
    assert collected(table.to_df()) == [(1, 1, None), (2, 1, None)]
    table.upsert(spark.createDataFrame([(2, 2, "x")], "id BIGINT, at INT, late STRING"))
    table.upsert(spark.createDataFrame([(2, 3)], "id BIGINT, at INT"))
    expected = [(1, 1, None), (2, 3, "x")]
    assert collected(table.to_df()) == expected
    assert collected(table.to_df(filter="late = 'x'")) == expected[1:]
    table.compact()
    assert collected(table.to_df()) == expected
    assert collected(table.to_df(columns=["late"], filter="late IS NULL")) == [(None,)]


@pytest.mark.usefixtures("by_unions")
def test_spark_asks_for_none_of_many_files(spark: SparkSession, tmp_path: Path) -> None:
    """What the table knows of them it is told; by itself it would ask for their sizes, of more than 32 in a job."""
    root = tmp_path / "a=1 %41{b}"
    table = LakeTable.create(root, "id BIGINT", key=["id"], buckets=64, spark=spark)
    table.upsert(pa.table({"id": range(1000)}))
    assert len(table.opened.view.base_files) == 64
    before = jobs_of(spark)
    found = table.to_df()
    assert (jobs_of(spark) - before, found.columns) == (set(), ["id"])
    assert sorted(row.id for row in found.collect()) == list(range(1000))
    table.upsert(pa.table({"id": range(990, 1010)}))
    table.compact(minor=True)
    assert sorted(row.id for row in table.to_df().collect()) == list(range(1010))
    missing = root / table.opened.view.base_files[0].add.path
    missing.rename(tmp_path / "elsewhere")
    unread = LakeTable.open(root, spark=spark).to_df()
    with pytest.raises(Exception, match=missing.name):
        unread.collect()


@pytest.mark.usefixtures("by_unions")
def test_a_session_that_takes_no_list_asks_for_files_itself(spark: SparkSession, tmp_path: Path) -> None:
    """The driver then asks for them, unless the session says otherwise."""
    table = LakeTable.create(tmp_path, "id BIGINT", key=["id"], buckets=64, spark=spark)
    table.upsert(pa.table({"id": range(1000)}))
    ignored, setting = "spark.sql.streaming.fileStreamSink.ignoreMetadata", f"{DISCOVERY}.threshold"
    spark.conf.set(ignored, "true")
    try:
        before = jobs_of(spark)
        found = table.to_df()
        assert (jobs_of(spark) - before, spark.conf.get(setting, None)) == (set(), None)
        assert found.count() == 1000
        spark.conf.set(setting, "33")
        before = jobs_of(spark)
        LakeTable.open(tmp_path, spark=spark).to_df()  # this one knows no files yet
        assert (len(jobs_of(spark) - before), spark.conf.get(setting)) == (1, "33")
    finally:
        spark.conf.unset(ignored)
        spark.conf.unset(setting)


@pytest.mark.usefixtures("by_unions")
def test_files_are_named_to_spark_in_one_call(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in one call for each file: 50,000 calls take seconds."""
    client = cast("Any", spark)._sc._gateway._gateway_client
    send, sent = client.send_command, list[str]()

    def counted(command: str, *given: object, **named: object) -> object:
        if not command.startswith("m\n"):  # py4j has objects collected that Python has no longer
            sent.append(command)
        return send(command, *given, **named)

    monkeypatch.setattr(client, "send_command", counted)
    counts = []
    for buckets in (2, 32):  # of more files Spark is given a list
        table = LakeTable.create(tmp_path / str(buckets), "id BIGINT", key=["id"], buckets=buckets, spark=spark)
        table.upsert(pa.table({"id": range(1000)}))
        sent.clear()
        found = table.to_df()
        counts.append(len(sent))
        assert found.count() == 1000
    assert counts[0] == counts[1] > 0
