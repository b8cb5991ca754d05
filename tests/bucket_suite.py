"""What holds of files that land in a bucket: the same as in a folder, and each read is bound to the version listed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable
from lakemerge.ingest import Archive, Files, IngestJob
from lakemerge.ingest.places import Places
from lakemerge.ingest.source import FileChangedError, FileGoneError, Outcome, Source
from lakemerge.storage import Store, open_store
from tests.unit.ingest.landing import FEED, numbered, rows

__all__ = ["BucketSuite", "Landing"]


@dataclass(frozen=True)
class Landing:
    """A bucket of one test."""

    place: str
    """Its URL."""
    options: Mapping[str, Any]

    @property
    def store(self) -> Store:
        return open_store(self.place, self.options)

    @property
    def source(self) -> Source:
        return Places(self.options).of(f"{self.place}/l")

    def land(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        self.store.put(name, "".join(json.dumps(record) + "\n" for record in records).encode())

    def job(self, table: LakeTable, folder: str, **more: Any) -> IngestJob:
        files = Files(folder, format="json", block_bytes=200, storage_options=self.options)
        return table.ingest("feed", files, **more)


class BucketSuite:
    """A subclass has the fixture ``landing``."""

    def test_a_bucket_is_listed_in_order_without_what_is_hidden(self, landing: Landing) -> None:
        names = ["l/b", "l/a/2", "l/a.x", "l/_tmp/x", "l/.h", "l/c.tmp", "l/_day=1/z", "m/other", "l/é"]
        for name in names:
            landing.store.put(name, name.encode())
        found = list(landing.source.list(f"{landing.place}/l", recursive=True))
        expected = sorted(["l/b", "l/a/2", "l/a.x", "l/_day=1/z", "l/é"])
        assert [file.path for file in found] == [f"{landing.place}/{name}" for name in expected]
        assert [file.size for file in found] == [len(name.encode()) for name in expected]
        flat = landing.source.list(f"{landing.place}/l/", recursive=False)
        assert [file.path for file in flat] == [f"{landing.place}/{name}" for name in ("l/a.x", "l/b", "l/é")]
        assert list(landing.source.list(f"{landing.place}/nothing", recursive=True)) == []
        assert landing.source.stat(f"{landing.place}/l/b") == next(f for f in found if f.path.endswith("/b"))
        assert landing.source.stat(f"{landing.place}/l") is None

    def test_a_version_is_read_or_nothing(self, landing: Landing) -> None:
        store, path = landing.store, f"{landing.place}/l/a"
        store.put("l/a", b"first version")
        source = landing.source
        first = source.stat(path)
        assert first is not None
        with source.open(first) as data:
            assert data.read(5) == b"first"
        store.put("l/a", b"other version")
        with pytest.raises(FileChangedError), source.open(first) as data:
            data.read()
        assert source.delete(first) is Outcome.CHANGED
        assert source.move(first, f"{landing.place}/_archive/a") is Outcome.CHANGED
        second = source.stat(path)
        assert second is not None
        assert source.move(second, f"{landing.place}/_archive/a") is Outcome.DONE
        assert store.get("_archive/a") == b"other version"
        with pytest.raises(FileGoneError), source.open(second) as data:
            data.read()
        assert source.delete(second) is Outcome.GONE
        assert source.move(second, f"{landing.place}/_archive/b") is Outcome.GONE
        assert [file.path for file, _ in source.archived(f"{landing.place}/_archive/")] == [
            f"{landing.place}/_archive/a"
        ]

    def test_from_a_bucket_into_a_table_of_the_bucket(self, landing: Landing) -> None:
        table = LakeTable.create(
            f"{landing.place}/table", FEED, key=["k"], ordering=["o"], buckets=1, storage_options=landing.options
        )
        for number in range(3):
            landing.land(f"landing/{number}.json", numbered(number * 20, number * 20 + 20))
        feed = landing.job(table, f"{landing.place}/landing/", blocks_per_window=4)
        assert feed.run().files == 3
        assert rows(table) == [(k, 1, "x") for k in range(60)]
        assert feed.run().files == 0
        landing.land("landing/0.json", [{"k": 0, "o": 2, "v": "again"}])
        assert feed.run().files == 1
        assert rows(table)[0] == (0, 2, "again")

    def test_files_of_a_bucket_are_archived_and_deleted(self, landing: Landing, tmp_path: Path) -> None:
        table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])
        landing.land("landing/a.json", numbered(0, 5))
        landing.job(table, f"{landing.place}/landing", after=Archive(max_bytes=10_000)).run()
        names = [file.path for file in landing.store.list("")]
        assert names == [f"landing/_archive/{1:020d}/a.json"]
        other = LakeTable.create(tmp_path / "other", FEED, key=["k"], ordering=["o"])
        assert landing.job(table, f"{landing.place}/landing", after="archive").replay(into=other).rows == 5
        landing.land("landing/b.json", numbered(5, 6))
        landing.job(table, f"{landing.place}/landing", after="delete").run()
        assert [file.path for file in landing.store.list("")] == names
        assert len(rows(table)) == 6

    def test_parquet_of_a_bucket_by_row_groups(self, landing: Landing, tmp_path: Path) -> None:
        table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])
        with landing.store.open_output("landing/a.parquet") as sink:
            pq.write_table(pa.table({"k": range(3000), "o": [1] * 3000, "v": ["x"] * 3000}), sink, row_group_size=100)
        files = Files(f"{landing.place}/landing", format="parquet", block_bytes=5000, storage_options=landing.options)
        result = table.ingest("feed", files, blocks_per_window=3).run()
        assert (result.rows, result.windows > 1) == (3000, True)
        assert rows(table) == [(k, 1, "x") for k in range(3000)]
