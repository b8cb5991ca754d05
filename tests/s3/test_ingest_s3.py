"""Files that land in a bucket: the same as in a folder, each read bound to the version that was listed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable
from lakemerge.ingest import Archive, Files, IngestJob
from lakemerge.ingest.source import FileChangedError, FileGoneError, Outcome, SourceFile
from lakemerge.ingest.source_s3 import S3Source
from lakemerge.storage import S3Store
from tests.s3.servers import Endpoint, S3Server
from tests.unit.ingest.landing import FEED, numbered, rows


def store(endpoint: Endpoint, place: str) -> S3Store:
    return S3Store(place, endpoint.options)


def source(endpoint: Endpoint, place: str) -> S3Source:
    return S3Source(place.removeprefix("s3://"), endpoint.options)


def land(endpoint: Endpoint, place: str, name: str, records: Iterable[Mapping[str, Any]]) -> None:
    store(endpoint, place).put(name, "".join(json.dumps(record) + "\n" for record in records).encode())


def job(table: LakeTable, endpoint: Endpoint, folder: str, **more: Any) -> IngestJob:
    files = Files(folder, format="json", block_bytes=200, storage_options=endpoint.options)
    return table.ingest("feed", files, **more)


def test_a_bucket_is_listed_in_order_without_what_is_hidden(endpoint: Endpoint, place: str) -> None:
    names = ["l/b", "l/a/2", "l/a.x", "l/_tmp/x", "l/.h", "l/c.tmp", "l/_day=1/z", "m/other", "l/é"]
    for name in names:
        store(endpoint, place).put(name, name.encode())
    found = list(source(endpoint, place).list(f"{place}/l", recursive=True))
    expected = sorted(["l/b", "l/a/2", "l/a.x", "l/_day=1/z", "l/é"])
    assert [file.path for file in found] == [f"{place}/{name}" for name in expected]
    assert [file.size for file in found] == [len(name.encode()) for name in expected]
    flat = source(endpoint, place).list(f"{place}/l/", recursive=False)
    assert [file.path for file in flat] == [f"{place}/{name}" for name in ("l/a.x", "l/b", "l/é")]
    assert list(source(endpoint, place).list(f"{place}/nothing", recursive=True)) == []
    assert source(endpoint, place).stat(f"{place}/l/b") == next(f for f in found if f.path.endswith("/b"))
    assert source(endpoint, place).stat(f"{place}/l") is None


def test_a_version_is_read_or_nothing(endpoint: Endpoint, place: str) -> None:
    target, path = store(endpoint, place), f"{place}/l/a"
    target.put("l/a", b"first version")
    landing = source(endpoint, place)
    first = landing.stat(path)
    assert first is not None
    with landing.open(first) as data:
        assert data.read(5) == b"first"
    target.put("l/a", b"other version")
    with pytest.raises(FileChangedError), landing.open(first) as data:
        data.read()
    assert landing.delete(first) is Outcome.CHANGED
    assert landing.move(first, f"{place}/_archive/a") is Outcome.CHANGED
    second = landing.stat(path)
    assert second is not None
    assert landing.move(second, f"{place}/_archive/a") is Outcome.DONE
    assert target.get("_archive/a") == b"other version"
    with pytest.raises(FileGoneError), landing.open(second) as data:
        data.read()
    assert landing.delete(second) is Outcome.GONE
    assert landing.move(second, f"{place}/_archive/b") is Outcome.GONE
    assert [file.path for file, _ in landing.archived(f"{place}/_archive/")] == [f"{place}/_archive/a"]


def test_from_a_bucket_into_a_table_of_the_bucket(endpoint: Endpoint, place: str) -> None:
    table = LakeTable.create(
        f"{place}/table", FEED, key=["k"], ordering=["o"], buckets=1, storage_options=endpoint.options
    )
    for number in range(3):
        land(endpoint, place, f"landing/{number}.json", numbered(number * 20, number * 20 + 20))
    feed = job(table, endpoint, f"{place}/landing/", blocks_per_window=4)
    assert feed.run().files == 3
    assert rows(table) == [(k, 1, "x") for k in range(60)]
    assert feed.run().files == 0
    land(endpoint, place, "landing/0.json", [{"k": 0, "o": 2, "v": "again"}])
    assert feed.run().files == 1
    assert rows(table)[0] == (0, 2, "again")


def test_files_of_a_bucket_are_archived_and_deleted(endpoint: Endpoint, place: str, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])
    land(endpoint, place, "landing/a.json", numbered(0, 5))
    job(table, endpoint, f"{place}/landing", after=Archive(max_bytes=10_000)).run()
    names = [file.path for file in store(endpoint, place).list("")]
    assert names == [f"landing/_archive/{1:020d}/a.json"]
    other = LakeTable.create(tmp_path / "other", FEED, key=["k"], ordering=["o"])
    assert job(table, endpoint, f"{place}/landing", after="archive").replay(into=other).rows == 5
    land(endpoint, place, "landing/b.json", numbered(5, 6))
    job(table, endpoint, f"{place}/landing", after="delete").run()
    assert [file.path for file in store(endpoint, place).list("")] == names
    assert len(rows(table)) == 6


def test_parquet_of_a_bucket_by_row_groups(endpoint: Endpoint, place: str, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])
    with store(endpoint, place).open_output("landing/a.parquet") as sink:
        pq.write_table(pa.table({"k": range(3000), "o": [1] * 3000, "v": ["x"] * 3000}), sink, row_group_size=100)
    files = Files(f"{place}/landing", format="parquet", block_bytes=5000, storage_options=endpoint.options)
    result = table.ingest("feed", files, blocks_per_window=3).run()
    assert (result.rows, result.windows > 1) == (3000, True)
    assert rows(table) == [(k, 1, "x") for k in range(3000)]


def test_a_file_that_may_not_be_read_fails_and_the_others_go_on(server: S3Server, bucket: str, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])
    place = f"s3://{bucket}"
    for number in range(2):
        land(server, place, f"landing/{number}.json", numbered(number, number + 1))
    feed = job(table, server, f"{place}/landing", blocks_per_window=1)
    landing = feed._needed().files.places.of(f"{place}/landing")
    opened = type(landing).open

    def refuse(self: S3Source, file: SourceFile) -> Any:
        if file.path.endswith("0.json"):
            gone = file._replace(path=f"s3://{bucket}/landing/0.json")
            return _Refused(gone)
        return opened(self, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Source, "open", refuse)
        assert feed.run().failed == 1
    assert "cannot be read: AccessDenied" in str(feed.files(state="failed")[0].reason)
    assert len(rows(table)) == 1


class _Refused:
    """What a read is refused with, as the store reports it."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def __enter__(self) -> Any:
        from lakemerge.errors import StoreError
        from lakemerge.ingest.source_s3 import _readable

        with _readable(self._file.path):
            raise StoreError("get_object: AccessDenied", store_code="AccessDenied")

    def __exit__(self, *arguments: object) -> None:
        pass
