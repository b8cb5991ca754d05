"""Files that land in a bucket of Google Cloud Storage or a container of Azure."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lakemerge import InputError, LakeTable
from lakemerge.errors import StoreError
from lakemerge.ingest.places import Places, whole_path
from lakemerge.ingest.source import FileUnreadableError, Outcome
from lakemerge.ingest.source_cloud import CloudSource
from tests.bucket_suite import BucketSuite, Landing
from tests.stores.servers import Place
from tests.unit.ingest.landing import FEED, numbered, rows


@pytest.fixture
def landing(server: Place, place: str) -> Landing:
    return Landing(place, server.options)


class TestFilesOfABucket(BucketSuite):
    pass


def test_files_move_to_another_bucket(landing: Landing, server: Place, tmp_path: Path) -> None:
    """Read and written in pieces, and pickled on the way to a task."""
    other = f"{landing.place}-archive"
    server.make_bucket(other.partition("://")[2])
    data = bytes(range(256)) * (17 << 12)  # 17 MiB
    landing.store.put("l/a", data)
    source = pickle.loads(pickle.dumps(landing.source))
    assert isinstance(source, CloudSource)
    found = source.stat(f"{landing.place}/l/a")
    assert found is not None
    assert source.move(found, f"{other}/done/a") is Outcome.DONE
    assert Landing(other, server.options).store.get("done/a") == data
    assert landing.store.stat("l/a") is None
    landing.store.put("l/empty", b"")
    empty = source.stat(f"{landing.place}/l/empty")
    assert empty is not None
    assert source.move(empty, f"{other}/done/empty") is Outcome.DONE
    assert Landing(other, server.options).store.get("done/empty") == b""


def test_a_refusal_is_of_one_file(landing: Landing) -> None:
    source, path = landing.source, f"{landing.place}/l/a"
    landing.store.put("l/a", b"there")
    file = source.stat(path)
    assert file is not None
    with pytest.raises(FileUnreadableError, match="cannot be read: BlobArchived"), source.open(file):
        raise StoreError("read az://c/a: BlobArchived", store_code="BlobArchived")
    with pytest.raises(StoreError, match="ServerBusy") as told, source.open(file):
        raise StoreError("read az://c/a: ServerBusy", store_code="ServerBusy")
    assert not isinstance(told.value, FileUnreadableError)


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("gcs://bucket/l/", "gs://bucket/l/"),
        ("gs://bucket", "gs://bucket/"),
        ("az://container/a", "az://container/a"),
        ("abfs://container@one.dfs.core.windows.net/a/", "abfss://container@one.dfs.core.windows.net/a/"),
    ],
)
def test_urls(given: str, whole: str) -> None:
    assert whole_path(given) == whole


@pytest.mark.parametrize(
    "given", ["gs://user:secret@bucket/a", "az://c@user:secret@host/a", "gs:/bucket/a", "abfss://@/a"]
)
def test_urls_that_are_none(given: str) -> None:
    with pytest.raises(InputError) as told:
        whole_path(given)
    assert "secret" not in str(told.value)


def test_a_job_reads_from_a_bucket_into_a_local_table(landing: Landing, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])
    landing.land("landing/a.json", numbered(0, 5))
    assert landing.job(table, f"{landing.place}/landing").run().rows == 5
    assert rows(table) == [(k, 1, "x") for k in range(5)]
    assert isinstance(Places(landing.options).of(f"{landing.place}/x"), CloudSource)
