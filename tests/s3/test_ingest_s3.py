"""Files that land in a bucket of S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakemerge import LakeTable
from lakemerge.ingest.source import SourceFile
from lakemerge.ingest.source_s3 import S3Source
from tests.bucket_suite import BucketSuite, Landing
from tests.s3.servers import Endpoint, S3Server
from tests.unit.ingest.landing import FEED, numbered, rows


class TestFilesOfABucket(BucketSuite):
    @pytest.fixture
    def landing(self, endpoint: Endpoint, place: str) -> Landing:
        return Landing(place, endpoint.options)


def test_a_file_that_may_not_be_read_fails_and_the_others_go_on(server: S3Server, bucket: str, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", FEED, key=["k"], ordering=["o"])
    landing = Landing(f"s3://{bucket}", server.options)
    for number in range(2):
        landing.land(f"landing/{number}.json", numbered(number, number + 1))
    feed = landing.job(table, f"{landing.place}/landing", blocks_per_window=1)
    opened = S3Source.open

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
