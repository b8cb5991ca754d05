"""Credentials show nowhere: not in logs of any level, errors, plans, Spark's event log, nor in the table's files."""

from __future__ import annotations

import logging
import pickle
import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings, StoreError
from lakemerge.storage import S3Store, open_store
from tests.s3.servers import INTRUDER, KEY, REFUSED, SECRET, Endpoint, S3Server, answering
from tests.spark.application import Application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "swordfish"  # noqa: S105 - of a server in this process
DDL = "id BIGINT, name STRING, ts BIGINT"


def rows(first: int, last: int) -> pa.Table:
    ids = range(first, last + 1)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids], "ts": [1 for _ in ids]})


def test_not_in_the_log_at_its_most_talkative(server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    """A token goes along with every request, and botocore logs requests."""
    options = {
        **server.options,
        "AWS_SESSION_TOKEN": TOKEN,
        "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": TOKEN},
    }
    shown = []
    with caplog.at_level(logging.DEBUG):
        store = open_store(f"s3://{bucket}/t", options)
        store.put("a", b"x")
        store.put_if_absent("b", b"x")
        store.put_if_absent("b", b"x")
        server.faults.append(answering("403 Forbidden", "AccessDenied"))
        with pytest.raises(StoreError) as caught:
            store.put_if_absent("c", b"x")
        shown += [repr(store), store.url, store.spark_url("x"), repr(caught.value.facts)]
        shown += traceback.format_exception(caught.value)
    assert "X-Amz-Security-Token" in caplog.text, "botocore no longer logs what this test is about"
    assert "x-amz-server-side-encryption-customer-key" in caplog.text.lower()
    for secret in (SECRET, TOKEN):
        assert secret not in caplog.text + "".join(shown)


def test_answers_that_hold_credentials_are_not_logged_whole(
    server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of AWS's token service, in the words in which botocore logs them."""
    S3Store(f"s3://{bucket}/t", server.options)
    answers = (
        f"<Credentials><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{TOKEN}</SessionToken></Credentials>",
        f'{{"roleCredentials": {{"secretAccessKey": "{SECRET}", "sessionToken":"{TOKEN}"}}}}',
    )
    with caplog.at_level(logging.DEBUG):
        for answer in answers:
            logging.getLogger("botocore.parsers").debug("Response body:\n%s", answer)
            logging.getLogger("botocore.parsers").debug("Response body:\n%r", answer.encode())
    assert caplog.text.count("***") == 8
    assert SECRET not in caplog.text
    assert TOKEN not in caplog.text


def test_not_in_the_table_nor_in_what_is_said_of_it(endpoint: Endpoint, place: str) -> None:
    table = LakeTable.create(
        f"{place}/t", DDL, key=["id"], ordering=["ts"], buckets=2, storage_options=endpoint.options,
        properties={"delta.checkpointInterval": "2"},
    )  # fmt: skip
    table.upsert(rows(1, 3))
    table.upsert(rows(2, 4), info={"why": "because"})
    table.compact(minor=True)
    store = table.opened.handle.store
    files = [stat.path for stat in store.list("")]
    assert any("checkpoint" in path for path in files)
    assert not [path for path in files if SECRET.encode() in store.get(path)]
    said = [
        table,
        table.opened.handle,
        table.history(),
        table.detail(),
        table.buckets(),
        table.vacuum(),
        table.opened.view.config,
    ]
    assert SECRET not in "".join(map(repr, said))
    assert SECRET not in repr(LakeTable.check(table.url, storage_options=endpoint.options))
    assert pickle.loads(pickle.dumps(store)).url == table.url


def test_not_in_the_error_of_credentials_that_are_wrong(
    endpoint: Endpoint, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**endpoint.options, "AWS_ACCESS_KEY_ID": INTRUDER}
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError, match=REFUSED) as caught:
        LakeTable.create(f"{place}/t", DDL, key=["id"], storage_options=options)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.facts) + caplog.text
    assert INTRUDER in shown, "who was refused may be said"
    assert SECRET not in shown


def _use_everything(spark: SparkSession, url: str, options: dict[str, str]) -> str:
    """In an application that logs all it can: both doors of Spark, plans, and a write that is refused."""
    logging.basicConfig(level=logging.DEBUG)
    # py4j logs at DEBUG whatever a program says to Spark, here the options of a writer, before any of it reaches us.
    logging.getLogger("py4j").setLevel(logging.INFO)
    spark.sparkContext.setLogLevel("DEBUG")
    table = LakeTable.create(
        url, DDL, key=["id"], ordering=["ts"], buckets=1, storage_options=options, spark=spark,
        settings=Settings(driver_bytes=1),
    )  # fmt: skip
    frame = spark.range(1, 5).selectExpr("id", "'a' AS name", "1L AS ts")
    table.upsert(frame)
    frame.selectExpr("id", "'b' AS name", "2L AS ts").write.format("lakemerge").options(**options).mode("append").save(
        url
    )
    source = spark.read.format("lakemerge").options(**options).load(url)
    for read in (source, table.to_df()):
        read.explain("formatted")
        read.explain(True)
        assert sorted(row.id for row in read.collect()) == [1, 2, 3, 4]
    table.compact()
    wrong = {**options, "AWS_ACCESS_KEY_ID": INTRUDER}
    try:
        frame.write.format("lakemerge").options(**wrong).mode("append").save(url)
    except Exception as error:  # noqa: BLE001 - whatever Spark makes of it
        traceback.print_exception(error)
        return str(error)
    raise AssertionError("a stranger may write")


@pytest.mark.long
def test_not_in_what_spark_says(endpoint: Endpoint, place: str, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    config = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    options = {name: str(value) for name, value in endpoint.options.items()}
    with Application(tmp_path / "spark", config=config) as application:
        refused = application.run(_use_everything, f"{place}/t", options)
    assert re.search(REFUSED, refused)
    logged = application.output.read_text(errors="replace")
    for expected in ("DEBUG", "botocore", KEY, "== Physical Plan ==", REFUSED):
        assert re.search(expected, logged)
    written = [path for path in (tmp_path / "spark", events) for path in path.rglob("*") if path.is_file()]
    assert any(events in path.parents for path in written)
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
