"""What tasks of a native scan read through the data source: the parts of file slices that the plan has."""

from __future__ import annotations

import base64
import json
import pickle
import re
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from lakemerge import InputError, LakeTable, OutcomeUnknownError, ReadPolicy, Settings, StoreError
from lakemerge.datasource.partitions import KernelPartition
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.layout.view import FileSlice
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.filter.prune import prune_parts
from lakemerge.read.splits import split_file_slices
from lakemerge.spark.native import KernelRead
from lakemerge.spark.transport.sending import pickled
from lakemerge.table.kept import forget_tables
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import open_over

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("st", pa.struct([("a", pa.string()), ("b", pa.string())])),
    ]
)
SPARK = StructType(
    [
        StructField("id", LongType()),
        StructField("n", LongType()),
        StructField("at", TimestampType()),
        StructField("st", StructType([StructField("b", StringType())])),
    ]
)


def made(path: Path) -> LakeTable:
    table = LakeTable.create(
        path, SCHEMA, key=["id"], merger="aggregate", options={"aggregates": {"n": "sum"}}, buckets=4
    )
    for step in (1, 2):
        rows = [(key, key * step, key * 3_600_000_000, {"a": f"a{key}", "b": f"b{step}"}) for key in range(100)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        table.upsert(
            pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
        )
    return table


def unpacked(text: str) -> bytes:
    size, compressed = text.split(" ")
    return pa.decompress(base64.b64decode(compressed), int(size), codec="zstd", asbytes=True) if int(size) else b""


def told_by(table: LakeTable, *conditions: str) -> StructType:
    about = {"path": table.url, "tableId": table.opened.view.snapshot.metadata.id, "version": table.version}
    request = about | {"conditions": conditions, "options": {}, "tasks": 2, "storage": {}}
    told = LakeMergeDataSource({"lakemerge.request": json.dumps(request)}).schema()
    assert isinstance(told, StructType)
    return told


def parts_of(table: LakeTable, *conditions: str) -> list[bytes | int]:
    """The parts in the plan of a native scan, as the jar tells a task of them."""
    kernel = orjson.loads(told_by(table, *conditions)[0].metadata["answer"])["kernel"]
    joined = unpacked(kernel["fileSlices"])
    ends = [sum(kernel["lengths"][:count]) for count in range(len(kernel["lengths"]) + 1)]
    file_slices = [joined[begin:end] for begin, end in pairwise(ends)]
    counted = zip(file_slices, kernel["counts"], strict=True)
    return [told for file_slice, count in counted for number in range(count) for told in (file_slice, number, count)]


def read(
    table: LakeTable, parts: Sequence[bytes | int], told_filter: str | None = None, by: KernelRead | None = None
) -> pa.Table:
    told = {
        "path": table.url,
        "version": str(table.version),
        "lakemerge.columns": json.dumps([[name, name] for name in SCHEMA.names]),
        "lakemerge.kernel": (by or KernelRead(Settings())).to_json(),
    }
    if told_filter is not None:
        told["lakemerge.filter"] = told_filter
    reader = LakeMergeDataSource(told).reader(SPARK)
    batches: list[Any] = list(reader.read(KernelPartition(*parts)))
    return pa.Table.from_batches([*batches], batches[0].schema if batches else SCHEMA).sort_by("id")


def test_parts_of_a_plan(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    parts = parts_of(table)
    assert len(parts) == 4 * 3
    found = read(table, parts)
    assert found["n"].to_pylist() == [key * 3 for key in range(100)]
    assert found["st"].to_pylist() == [{"b": "b2"}] * 100, "fields that nobody wants are left out"
    one, others = read(table, parts[:3]), read(table, parts[3:])
    assert one.num_rows
    assert others.num_rows
    assert sorted(pa.concat_tables([one, others])["id"].to_pylist()) == list(range(100))
    assert read(table, parts, "`id` >= 98")["id"].to_pylist() == [98, 99]
    assert read(table, []).num_rows == 0


def test_a_plan_for_keys(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    parts = parts_of(table, "`id` = 7")
    assert len(parts) == 3
    assert read(table, parts, "`id` = 7")["n"].to_pylist() == [21]


def test_a_plan_after_a_commit_pickles_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, made_now = made(tmp_path / "t"), list[FileSlice]()
    before = parts_of(table)

    def counted(file_slice: FileSlice) -> bytes:
        made_now.append(file_slice)
        return pickled(file_slice)

    monkeypatch.setattr("lakemerge.spark.transport.sending.pickled", counted)
    table.upsert(pa.table({"id": [7], "n": [1000]}))
    assert len(parts_of(table, "`id` = 7")) == 3
    del made_now[:]
    after = parts_of(table)
    assert len(made_now) == 1
    assert len(set(before[::3]) - set(after[::3])) == 1
    assert read(table, after)["n"].to_pylist() == [key * 3 + (1000 if key == 7 else 0) for key in range(100)]


def test_a_filter_in_the_zone_of_the_session(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    noon = KernelRead(Settings(), "at = TIMESTAMP '1970-01-01 05:00:00' -- noon", "America/New_York")
    assert read(table, parts_of(table), by=noon)["id"].to_pylist() == [10]
    assert read(table, parts_of(table), "`n` > 900", noon).num_rows == 0


def test_the_reader_of_tasks_makes_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at no file of the table, and neither do tasks at any but theirs."""
    table = made(tmp_path / "t")
    parts = parts_of(table)
    forget_tables()
    monkeypatch.setattr("lakemerge.layout.view.BaseFile.of", None)
    monkeypatch.setattr("lakemerge.layout.view._file_slices_of", None)
    assert read(table, parts, "`id` = 98")["id"].to_pylist() == [98]
    decoded: list[object] = []
    monkeypatch.setattr("lakemerge.delta.log_replay.decode", lambda *_: decoded.append(1))
    assert read(table, parts, "`id` >= 98")["id"].to_pylist() == [98, 99]
    assert decoded == [], "a second scan finds the version"


def test_a_pickle_that_the_jar_writes(tmp_path: Path) -> None:
    """The jar knows the name of the class, and a few bytes of the format."""
    [file_slice, number, count] = parts_of(made(tmp_path / "t"), "`id` = 7")
    assert isinstance(file_slice, bytes)
    text = (ROOT / "connector/src/lakemerge/spark/KernelParts.java").read_text()
    [call] = re.findall(r'CALL =\s+"([^"]+)"', text)
    [called] = re.findall(r'CALLED = "([^"]+)"', text)
    head, tail = (each.encode().decode("unicode_escape").encode("latin-1") for each in (call, called))
    told = struct.pack("<ci", b"B", len(file_slice)) + file_slice
    told += b"".join(struct.pack("<ci", b"J", each) for each in (number, count))
    sent = pickle.loads(head + told + tail)
    assert isinstance(sent, KernelPartition)
    assert sent.parts() == KernelPartition(file_slice, number, count).parts()
    assert pickle.loads(head + tail).parts() == []


def test_a_long_answer_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(tmp_path / "t")
    short = told_by(table)[0].metadata["answer"]
    monkeypatch.setattr("lakemerge.spark.transport.answers._LONG_BYTES", 1)
    monkeypatch.setattr("lakemerge.spark.transport.answers._TEXT", 100)
    texts = told_by(table)[0].metadata["packed"]
    assert len(texts) > 10
    assert max(map(len, texts)) == 100
    assert unpacked("".join(texts)).decode() == short
    monkeypatch.setattr("lakemerge.spark.transport.answers._LIMIT_BYTES", 100)
    with pytest.raises(InputError, match="the plan of a read takes"):
        told_by(table)


def test_how_parts_are_read_is_told_in_json() -> None:
    settings = Settings(merge_budget_bytes=7, reads=ReadPolicy(premerge=False, premerge_rows=3))
    told = KernelRead(settings, "a = 1", "UTC", computed=False)
    assert KernelRead.of_json(told.to_json()) == told


Cell = tuple[object, ...]


def states(path: Path, *, partitioned: bool) -> Iterator[tuple[str, LakeTable]]:
    """A table with logs: over one row group a file, over several, and in the middle of a rescale."""
    table = LakeTable.create(
        path, "day STRING, k BIGINT, v BIGINT", key=["day", "k"], buckets=2,
        partition_by=["day"] if partitioned else [], merger="aggregate", options={"aggregates": {"v": "sum"}},
    )  # fmt: skip
    keys = [(day, k) for k in range(200) for day in ("mon", "tue", "wed")]
    rows = pa.table({"day": [day for day, _ in keys], "k": [k for _, k in keys], "v": [1] * len(keys)})
    table.upsert(rows)
    table.upsert(rows)
    yield "one row group", table
    small = Settings(target_commit_bytes=1, target_task_bytes=1, threads=1, row_group_rows=20)
    LakeTable.open(path, settings=small).compact()
    table.upsert(rows)
    assert max(part.count for part in split_file_slices(table.opened.view.file_slices, 500)) > 1
    yield "several row groups", table

    def fail(_: Call) -> None:
        raise StoreError("out of order")

    halfway, _ = open_over(path, Fault(action=fail, method="put_if_absent", at=2, lasting=True), settings=small)
    with pytest.raises(OutcomeUnknownError, match="out of order"):
        halfway.rescale(buckets=4)
    table = LakeTable.open(path)
    assert table.opened.view.layout.counts == (2,)
    table.upsert(rows)
    yield "two numbers of buckets", table


@pytest.mark.parametrize("partitioned", [False, True], ids=["one partition", "partitions"])
def test_parts_that_a_condition_rules_out(tmp_path: Path, *, partitioned: bool) -> None:
    """A task leaves out parts, and blocks of these, as planning does. No row is lost, and none comes twice."""
    kinds = StructType([StructField("day", StringType()), StructField("k", LongType()), StructField("v", LongType())])
    for name, table in states(tmp_path / "t", partitioned=partitioned):
        config = table.opened.view.config
        parts = split_file_slices(table.opened.view.file_slices, 500)
        of_wed = sum(part.file_slice.bucket_id.partition == ("wed",) for part in parts) if partitioned else len(parts)
        assert (of_wed < len(parts)) == partitioned
        for text, least, most in (
            ("day = 'tue' AND k = 7", 1, 1),
            ("day IN ('mon', 'wed') AND k IN (1, 50, 199)", 1, 6),
            ("day = '' AND k = 1", 0, 1),
            ("k = 7", len(parts), len(parts)),
            ("day = 'wed'", of_wed, of_wed),
            ("v > 1", len(parts), len(parts)),
        ):
            condition = parse_filter(text, config.schema)
            assert condition is not None
            assert least <= len(prune_parts(parts, condition, config)) <= most, (name, text)
            told = {
                "path": table.url,
                "version": str(table.version),
                "lakemerge.columns": json.dumps([[column, column] for column in config.schema.names]),
                "lakemerge.kernel": KernelRead(Settings()).to_json(),
                "lakemerge.filter": text,
            }
            source: Any = LakeMergeDataSource(told)
            batches = list(source.reader(kinds).read(KernelPartition.of(parts)))
            found: list[Cell] = sorted(
                row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)
            )
            expected: list[Cell] = sorted(zip(*table.to_arrow(filter=text).to_pydict().values(), strict=True))
            assert found == expected, (name, text)
            assert len(found) == len(set(found))
