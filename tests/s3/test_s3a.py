"""Tables on S3 through Spark's own Parquet reader, in an application that has Hadoop's S3A on its class path.

The jars come by Spark's own ``spark.jars.packages``. Of the AWS SDK they are the modules that reading takes; S3A's own
choice, all of AWS in one jar, is forty times as much.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

from lakemerge import LakeTable, ReadPolicy, Settings
from lakemerge.spark import access
from lakemerge.storage import Store, open_store
from tests.model import ModelTable
from tests.s3.servers import INTRUDER, SECRET, Endpoint, S3Server
from tests.spark.application import Application

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HADOOP = "3.5.0"
AWS_SDK = "2.35.4"
PACKAGES = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    f"software.amazon.awssdk:s3:{AWS_SDK}",
    f"software.amazon.awssdk:s3-transfer-manager:{AWS_SDK}",
    f"software.amazon.awssdk:sts:{AWS_SDK}",
)
LEFT_OUT = "software.amazon.awssdk:bundle"
UNREACHABLE = re.compile(r"(Server access error at url|Host) (?!\S*spark-packages).*")
"""What Spark prints of its first repository; it asks a second one for what the first does not have."""
ARRIVED = ":: retrieving ::"

REFUSED = "Status Code: 403|PATH_NOT_FOUND"
"""What a stranger hears: the latter where the server, as versitygw does, says 404 of a key that it does not know."""
TOKEN = "swordfish"  # noqa: S105 - of a server in this process
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ts", pa.int64())])
NAMES = SCHEMA.names
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def application(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    config = {
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.jars.excludes": LEFT_OUT,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    with Application(tmp_path_factory.mktemp("s3a") / "spark", config=config) as application:
        try:
            application.run(_versions)
        except AssertionError as error:
            printed = application.output.read_text(errors="replace")
            found = UNREACHABLE.search(printed)
            why = found[0] if found else "no answer in ten minutes" if "no answer" in str(error) else None
            if why is not None and ARRIVED not in printed:
                pytest.skip(f"the jars of Hadoop's S3A cannot be downloaded: {why}")
            raise
        yield application


def _versions(spark: SparkSession) -> str:
    return spark.version


class Table:
    """A table and the model of what it holds."""

    def __init__(self, url: str, options: dict[str, object], *, buckets: int) -> None:
        self.url, self.options = url, options
        self.table = LakeTable.create(
            url, SCHEMA, key=["id"], ordering=["ts"], buckets=buckets, storage_options=options
        )
        self.model = ModelTable(SCHEMA, key=["id"], ordering=["ts"])

    def upsert(self, rows: Rows) -> None:
        self.table.upsert(pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in rows], SCHEMA))
        self.model.write(NAMES, [dict(zip(NAMES, row, strict=True)) for row in rows], ["+U"] * len(rows))

    @property
    def rows(self) -> Rows:
        """As the model has them; the same as those that Arrow reads."""
        expected = sorted(tuple(row.values()) for row in self.model.rows())
        read = LakeTable.open(self.url, storage_options=self.options).to_arrow()
        assert sorted(tuple(row.values()) for row in read.to_pylist()) == expected
        return expected


def _read(
    spark: SparkSession,
    url: str,
    options: dict[str, object],
    asked: dict[str, Any],
    policy: ReadPolicy = ReadPolicy(),  # noqa: B008 - it is frozen
) -> tuple[Rows, str, Any]:
    """Rows, the plan of a read by unions of Spark's scans, and why all of it went through Arrow. LakeMerge's own scan
    reads the same rows."""
    table = LakeTable.open(url, storage_options=options, settings=Settings(reads=policy), spark=spark)
    rows = sorted(map(tuple, table.to_df(**asked).collect()))
    spark.conf.set("spark.lakemerge.nativeReads", "off")
    try:
        frame = table.to_df(**asked)
        assert sorted(map(tuple, frame.collect())) == rows
        return rows, _plan(frame), table.explain_read().through_arrow
    finally:
        spark.conf.unset("spark.lakemerge.nativeReads")


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def natively(plan: str) -> bool:
    return "FileScan parquet" in plan and "InArrow" not in plan


def test_the_jars_are_those_of_the_hadoop_in_spark_and_of_the_guide() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    assert [jar.name for jar in jars.glob("hadoop-client-api-*.jar")] == [f"hadoop-client-api-{HADOOP}.jar"]
    guide = (Path(__file__).resolve().parents[2] / "docs/guides/stores.md").read_text()
    told = [PACKAGES[0], f"`{AWS_SDK}`", LEFT_OUT, *(f"`{package.split(':')[1]}`" for package in PACKAGES[1:])]
    assert [text for text in told if text not in guide] == []


def test_what_needs_no_merge_is_read_by_spark(endpoint: Endpoint, place: str, application: Application) -> None:
    """Clean, minor-compacted, dirty in one part of four; under a name that Hadoop would take for a pattern."""
    table = Table(f"{place}/la ke/[t]*ble", endpoint.options, buckets=4)

    def read(**asked: object) -> tuple[Rows, str, str | None]:
        found: tuple[Rows, str, str | None] = application.run(_read, table.url, table.options, asked)
        return found

    table.upsert([(key, f"base {key}", 50) for key in range(300)])
    rows, plan, why = read()
    assert (rows, natively(plan), why) == (table.rows, True, None)

    table.upsert([(key, f"{key % 3}", 60 - 20 * (key % 3)) for key in range(200, 320)])
    assert table.table.compact(minor=True).file_slices == 4
    rows, plan, why = read()
    assert (rows, natively(plan), why) == (table.rows, True, None)
    assert "row_index" in plan
    rows, plan, _ = read(columns=["ts"], filter="id BETWEEN 198 AND 205")
    assert (rows, natively(plan)) == (sorted((ts,) for key, _, ts in table.rows if 198 <= key <= 205), True)
    rows, plan, _ = application.run(_read_with_bitmaps_from_there, table.url, table.options)
    assert (rows, natively(plan)) == (table.rows, True)

    table.upsert([(7, "latest", 70)])
    rows, plan, why = read()
    assert (rows, "FileScan parquet" in plan, "InArrow" in plan, why) == (table.rows, True, True, None)
    rows, plan, _ = application.run(_read_merging_first, table.url, table.options)
    assert (rows, natively(plan)) == (table.rows, True), "the logs' records, too"


def _read_with_bitmaps_from_there(spark: SparkSession, url: str, options: dict[str, object]) -> tuple[Rows, str, Any]:
    return _read(spark, url, options, {}, ReadPolicy(driver_rows=0))


def _read_merging_first(spark: SparkSession, url: str, options: dict[str, object]) -> tuple[Rows, str, Any]:
    return _read(spark, url, options, {}, ReadPolicy(premerge_from_bytes=0))


def test_many_files_which_spark_is_given_a_list_of(endpoint: Endpoint, place: str, application: Application) -> None:
    table = Table(f"{place}/ma ny%/[t]*", endpoint.options, buckets=64)
    table.upsert([(key, "a", 1) for key in range(400)])
    assert len(table.table.buckets()) > 32
    rows, plan, _ = application.run(_read, table.url, table.options, {})
    assert (rows, natively(plan), "MetadataLogFileIndex" in plan) == (table.rows, True, True)


def test_options_that_it_does_not_know_go_through_arrow(
    endpoint: Endpoint, place: str, application: Application
) -> None:
    table = Table(f"{place}/t", endpoint.options, buckets=1)
    table.upsert([(1, "a", 1)])
    options = {**table.options, "config_kwargs": {"signature_version": "s3v4"}}
    rows, plan, why = application.run(_read, table.url, options, {})
    assert rows == table.rows
    assert "FileScan" not in plan
    assert why == "Hadoop's S3A has no counterpart of signature_version in the storage options"


def test_each_store_has_a_client_of_its_own(endpoint: Endpoint, place: str, application: Application) -> None:
    """What one is opened with serves no other in the same bucket, nor what the session reads by itself; what the
    session says of the bucket serves itself, and is afterwards as before."""
    table = Table(f"{place}/t", endpoint.options, buckets=1)
    table.upsert([(1, "a", 1)])
    assert application.run(_read_as_several, table.url, table.options) == {
        "stranger first": True,
        "owner": (table.rows, None),
        "stranger again": True,
        "stranger by another table": True,
        "session by itself": True,
        "session as before": True,
        "nobody there": True,
    }


def _read_as_several(spark: SparkSession, url: str, options: dict[str, object]) -> dict[str, object]:
    bucket = url.split("/")[2]
    own = {
        f"fs.s3a.bucket.{bucket}.endpoint": str(options["AWS_ENDPOINT_URL"]),
        f"fs.s3a.bucket.{bucket}.endpoint.region": "us-east-1",
        f"fs.s3a.bucket.{bucket}.path.style.access": "true",
        f"fs.s3a.bucket.{bucket}.access.key": INTRUDER,
        f"fs.s3a.bucket.{bucket}.secret.key": "of no use",
    }
    for name, value in own.items():
        spark.conf.set(name, value)
    try:
        return _as_several(spark, url, options)
    finally:
        for name in own:
            spark.conf.unset(name)


def _as_several(spark: SparkSession, url: str, options: dict[str, object]) -> dict[str, object]:
    def refused(store: Store, how: str = REFUSED) -> bool:
        access._answers.clear()  # so that it is tried again
        return bool(re.search(how, str(access.why_through_arrow(spark, store, file_slices))))

    def by_itself() -> bool:
        path = f"{url.replace('s3:', 's3a:')}/{file_slices[0].base.add.path}" if file_slices[0].base else ""
        with pytest.raises(Exception, match=REFUSED):
            spark.read.parquet(path)
        return True

    file_slices = LakeTable.open(url, storage_options=options).opened.view.file_slices
    stranger = {**options, "AWS_ACCESS_KEY_ID": INTRUDER}
    before = dict(spark.conf.getAll)
    return {
        "stranger first": refused(open_store(url, stranger)),
        "owner": _read(spark, url, options, {})[::2],
        "stranger again": refused(open_store(url, stranger)),
        "stranger by another table": refused(open_store(url, {**stranger, "AWS_SECRET_ACCESS_KEY": "another"})),
        "session by itself": by_itself(),
        "session as before": dict(spark.conf.getAll) == before,
        "nobody there": refused(
            open_store(url, {**options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}), "Connection refused"
        ),
    }


def test_credentials_show_nowhere(server: S3Server, bucket: str, application: Application, events: Path) -> None:
    """Though both sides log all they can, short of the AWS SDK's session tokens, and Spark its events."""
    table = Table(f"s3://{bucket}/t", {**server.options, "AWS_SESSION_TOKEN": TOKEN}, buckets=2)
    table.upsert([(key, "a", 1) for key in range(9)])
    table.upsert([(key, "b", key) for key in range(5)])
    table.table.compact(minor=True)
    told = application.run(_tell_all, table.url, table.options)
    logged = application.output.read_text(errors="replace")
    for expected in ("Command to send", rf"fs\.s3a\.bucket\.{bucket}\.session\.token\ns\*\*\*\n", "S3AFileSystem"):
        assert re.search(expected, logged), expected
    noted = "".join(path.read_text(errors="replace") for path in events.rglob("*") if path.is_file())
    assert "BatchScan" in told
    assert f"{bucket}/t" in noted
    for secret in (SECRET, TOKEN):
        assert secret not in told + logged + noted


def _tell_all(spark: SparkSession, url: str, options: dict[str, object]) -> str:
    logging.basicConfig(level=logging.DEBUG)
    spark.sparkContext.setLogLevel("DEBUG")
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    for logger in ("software.amazon.awssdk", "org.apache.http"):
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.INFO)
    try:
        table = LakeTable.open(url, storage_options=options, spark=spark)
        frame = table.to_df()
        frame.explain("formatted")
        frame.explain(True)
        assert len(frame.collect()) == 9
        table.create_temp_view("told")
        spark.sql("SELECT count(*) FROM told").collect()
        said = [table, table.explain_read(), table.opened.handle, frame._jdf.queryExecution().toString()]
        return "\n".join(map(str, said))
    finally:
        logging.getLogger().setLevel(logging.WARNING)
        spark.sparkContext.setLogLevel("WARN")
