"""What LakeMerge reads and writes does not depend on settings of the session, whatever Spark plans with them."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial, reduce
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import lakemerge
from lakemerge import LakeMergeError, LakeTable, ReadPolicy, Settings
from lakemerge.schema.schema import to_arrow_schema
from lakemerge.spark.reader import COMPUTED, PARSED
from tests.property.effort import some
from tests.spark.settings.sql_settings import FAILING, OTHER_PARTS, settings_of, values_of

Answers = dict[str, Any]

SCHEMA = to_arrow_schema(
    "id BIGINT NOT NULL, i INT, f DOUBLE, d DECIMAL(10,2), s STRING, b BOOLEAN, day DATE, at TIMESTAMP, "
    "nt TIMESTAMP_NTZ, bin BINARY, `Odd Name` SMALLINT, st STRUCT<X: INT, y: STRUCT<z: STRING>>, li ARRAY<INT>, "
    "m MAP<STRING, INT>"
)
NOON = dt.datetime(2020, 3, 8, 12, 30, 0, 123456, tzinfo=dt.UTC)
OLD = dt.datetime(1500, 1, 1, tzinfo=dt.UTC)
STATES = {
    "merged in tasks": Settings(row_group_rows=8, reads=ReadPolicy(premerge=False), driver_bytes=1),
    "premerged": Settings(
        row_group_rows=8,
        reads=ReadPolicy(premerge_from_bytes=0, premerge_stored_per_place=0.01, premerge_stored_per_record=0.01),
    ),
    "minor": Settings(row_group_rows=8, reads=ReadPolicy(driver_rows=0, driver_files=0), driver_bytes=1),
    "clean": Settings(row_group_rows=8),
    "partitions": Settings(reads=ReadPolicy(premerge=False)),
}
FILTERS = [
    "i = 9", "f = 0 OR f <> f", 's = "apple"', r"s = 'a\\b'", r"s LIKE 'A\\%b%'", "day NOT IN ('2020-3-8')",
    "at >= TIMESTAMP '2020-03-08 12:00:00'", "d > 1e0", "ST.X IS NULL", "`odd name` + 1 > 20", "i NOT IN ('09')",
    "i IN (3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36)", "NOT b", "!b = true", "s = 'a' 'pple'", "size(li) = 1",
    "upper(s) = 'APPLE'", "year(at) = 2020", "try_cast(s AS INT) IS NULL AND i < 20", "i / 3 * 3.0 = i",
    "s = '${spark.sql.shuffle.partitions}' OR i = 12",
]  # fmt: skip
SEEN = {
    "parsed otherwise": {name: "true" for name, value in PARSED.items() if value == "false"}
    | {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.ansi.enforceReservedKeywords": "true"}
    | {"spark.sql.caseSensitive": "true", "spark.sql.files.ignoreMissingFiles": "true"},
    "computed otherwise": {
        name: {"true": "false", "false": "true"}[value]
        for name, value in COMPUTED.items()
        if value in ("true", "false")
    }
    | {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "America/New_York"}
    | {"spark.sql.sources.useV1SourceList": "", "spark.sql.execution.arrow.maxRecordsPerBatch": "0"}
    | {"spark.sql.execution.arrow.maxRecordsPerOutputBatch": "10"},
}
UNLIMITED = ("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
"""With it, Spark's own Python sources fail."""


def row(number: int, change: int) -> dict[str, Any]:
    texts = [None, "", "apple", "A%b_c", "it's", "a\\b", 'q"q']
    return {
        "id": number, "i": None if number % 7 == 3 else number * 3 + change,
        "f": [0.5, float("nan"), -0.0, 0.0, None][number % 5], "d": Decimal(number * 7 + change) / 100,
        "s": texts[number % 7], "b": [True, False, None][number % 3],
        "day": [OLD.date(), NOON.date(), None][number % 3], "at": [OLD, NOON, None][number % 3],
        "nt": [OLD.replace(tzinfo=None), NOON.replace(tzinfo=None), None][number % 3],
        "bin": [b"\x00\xff", b"", None][number % 3], "Odd Name": number % 40,
        "st": [{"X": number, "y": {"z": "a"}}, None, {"X": None, "y": None}][number % 3],
        "li": [[number, None], [], None][number % 3], "m": [[("k", number)], [], None][number % 3],
    }  # fmt: skip


def rows(numbers: Sequence[int], change: int = 0) -> pa.Table:
    return pa.Table.from_pylist([row(number, change) for number in numbers], SCHEMA)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in each state."""
    root = tmp_path_factory.mktemp("settings")
    for state, settings in STATES.items():
        key, by = (["id", "b"], ["b"]) if state == "partitions" else (["id"], [])
        table = LakeTable.create(
            root / state, SCHEMA, key=key, partition_by=by, buckets=2, settings=settings,
            properties={"lakemerge.maintenance": "off"},
        )  # fmt: skip
        given = [number for number in range(40) if number % 3 != 2 or not by]
        table.upsert(rows(given))
        table.compact()
        table.upsert(rows(given[20::3], 1))
        if state in ("minor", "clean"):
            table.compact(minor=state == "minor")
    return root


@pytest.fixture(autouse=True)
def _active_as_before(spark: SparkSession) -> Iterator[None]:
    """``createDataFrame`` makes its session the active one, whose settings later tests would get."""
    yield
    SparkSession._activeSession = spark
    cast("Any", spark)._jvm.SparkSession.setActiveSession(spark._jsparkSession)


def plain(value: Any) -> Any:
    """A value as Python compares it. Settings say whether binary comes as ``bytearray``."""
    if isinstance(value, bytearray | bytes):
        return bytes(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, dict):
        return sorted((key, plain(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def collected(frame: DataFrame) -> list[list[Any]]:
    # Times of a session's zone come in Python's; these tests run in UTC, so they come as instants.
    shown = frame.withColumn("at", F.expr("unix_micros(at)")) if "at" in frame.columns else frame
    return sorted((plain(list(found)) for found in shown.collect()), key=repr)


def held(path: Path) -> list[list[Any]]:
    return sorted((plain(list(found.values())) for found in LakeTable.open(path).to_arrow().to_pylist()), key=repr)


def reads(spark: SparkSession, root: Path) -> Answers:
    tables = {state: LakeTable.open(root / state, spark=spark, settings=how) for state, how in STATES.items()}
    found: Answers = {state: collected(table.to_df()) for state, table in tables.items()}
    source = spark.read.format("lakemerge").option("columns", "id,i,s,bin,st").load(str(root / "minor"))
    found["source"] = collected(source)
    found["earlier"] = collected(LakeTable.open(root / "minor", version=1, spark=spark).to_df(columns=["id", "i"]))
    premerged = tables["premerged"]
    joined = premerged.to_df().alias("a").join(premerged.to_df(columns=["id", "i"]).alias("b"), F.expr("a.id = b.id"))
    found["join"] = collected(joined.selectExpr("a.id", "b.i", "a.s"))
    return found


def writes(spark: SparkSession, root: Path) -> Answers:
    """A first load, an upsert, a delete and both compactions."""
    path = root / "written"
    given = LakeTable.open(root / "clean", spark=spark).to_df()
    try:
        table = LakeTable.create(path, SCHEMA, key=["id"], buckets=2, spark=spark, settings=Settings(driver_bytes=1))
        found: Answers = {"mode": table.upsert(given).mode, "loaded": held(path)}
        table.upsert(given.where(F.col("id") < 20).withColumn("i", F.lit(7)))
        table.compact(minor=True)
        found["minor compacted"] = held(path), collected(table.to_df(columns=["id", "i"]))
        table.delete_where("id = 5")
        table.compact()
        return found | {"compacted": (held(path), collected(table.to_df(columns=["id", "i"])))}
    finally:
        shutil.rmtree(path, ignore_errors=True)


def filtered(spark: SparkSession, root: Path) -> list[str]:
    """The filters that keep other rows than Spark does in the same session."""
    table = LakeTable.open(root / "premerged", spark=spark, settings=STATES["premerged"])
    # Some sessions take a quoted name for a pattern, which no condition may have. A plain word is a name in all.
    whole = table.to_df().withColumnRenamed("Odd Name", "Odd_Name")
    theirs = kept([partial(whole.where, text.replace("`odd name`", "odd_name")) for text in FILTERS])
    ours = kept([partial(table.to_df, filter=text) for text in FILTERS])
    found = zip(FILTERS, theirs, ours, strict=True)
    return [f"{text}: {ours} and not {theirs}" for text, theirs, ours in found if theirs != ours]


def kept(frames: Sequence[Callable[[], DataFrame]]) -> list[list[int] | None]:
    """The ids in each frame; ``None`` if it fails. One job is tried for all, which takes a quarter of the time."""
    planned: dict[int, DataFrame] = {}
    for number, frame in enumerate(frames):
        with suppress(PySparkException, LakeMergeError):
            planned[number] = frame().select(F.lit(number).alias("number"), "id")
    found: list[list[int] | None] = [[] if number in planned else None for number in range(len(frames))]
    try:
        for number, key in reduce(DataFrame.union, planned.values()).collect() if planned else ():
            cast("list[int]", found[number]).append(key)
    except PySparkException:
        if len(frames) == 1:
            return [None]
        return [ids for frame in frames for ids in kept([frame])]
    return [None if ids is None else sorted(ids) for ids in found]


def session_with(spark: SparkSession, values: Mapping[str, str]) -> SparkSession:
    session = spark.newSession()
    conf = session._jsparkSession.sessionState().conf()
    for name, value in values.items():
        conf.setConfString(name, value)
    return session


def answers(spark: SparkSession, root: Path, values: Mapping[str, str]) -> Answers:
    session = session_with(spark, values)
    lakemerge.register(session)
    found = writes(session, root)
    try:
        return found | reads(session, root)
    except PySparkException:
        if UNLIMITED in values.items():
            return found
        raise


@pytest.fixture(scope="module")
def wanted(spark: SparkSession, folder: Path) -> Answers:
    found = answers(spark, folder, {})
    assert found["mode"] == "load"
    return found


def differing(spark: SparkSession, root: Path, values: Mapping[str, str], wanted: Answers) -> dict[str, Any]:
    try:
        found = answers(spark, root, values)
        wrong = filtered(session_with(spark, values), root)
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {getattr(error, 'java_exception', error)}"[:500]}
    differing = {name: answer for name, answer in found.items() if answer != wanted[name]}
    return differing | ({"filters": wrong} if wrong else {})


def first_of(
    spark: SparkSession, root: Path, values: Sequence[tuple[str, str]], wanted: Answers
) -> tuple[Sequence[tuple[str, str]], dict[str, Any]] | None:
    """The first few settings that make a difference, and how; ``None`` if none does."""
    found = differing(spark, root, dict(values), wanted)
    if not found:
        return None
    half = len(values) // 2
    parts = (values[:half], values[half:]) if half else ()
    return next((of_part for part in parts if (of_part := first_of(spark, root, part, wanted))), (values, found))


@pytest.mark.long
@pytest.mark.parametrize("seen", SEEN)
def test_settings_that_once_made_a_difference(seen: str, spark: SparkSession, folder: Path, wanted: Answers) -> None:
    assert differing(spark, folder, SEEN[seen], wanted) == {}


@pytest.mark.long
def test_filters_with_the_defaults(spark: SparkSession, folder: Path) -> None:
    assert filtered(spark, folder) == []


@pytest.mark.long
@pytest.mark.parametrize("name", some([*PARSED, *COMPUTED]))
def test_each_setting_of_filters(name: str, spark: SparkSession, folder: Path) -> None:
    """Each alone. In a group one may leave the text to Spark, which hides what the others do."""
    values = values_of(spark, name, {**PARSED, **COMPUTED}[name])
    assert values
    for value in values:
        assert filtered(session_with(spark, {name: value}), folder) == [], value


@pytest.mark.long
@pytest.mark.parametrize("place", some(range(8)))
def test_no_setting_makes_a_difference(place: int, spark: SparkSession, folder: Path, wanted: Answers) -> None:
    """All settings of Spark's SQL, many at a time."""
    cases = [
        (name, value)
        for name, default in settings_of(spark).items()
        if not name.startswith(OTHER_PARTS)
        for value in values_of(spark, name, default)
        if (name, value) != UNLIMITED and value not in FAILING.get(name, ())
    ]
    groups: list[dict[str, str]] = []
    for name, value in cases:
        group = next((group for group in groups if name not in group and len(group) < 45), None)
        if group is None:
            groups.append(group := {})
        group[name] = value
    assert len(groups) > 8
    for group in groups[place::8]:
        assert first_of(spark, folder, list(group.items()), wanted) is None
