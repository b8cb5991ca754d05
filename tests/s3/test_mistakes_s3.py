"""Mistakes that people make with buckets: the text names the problem, the place and the remedy."""

from __future__ import annotations

import os

import pytest

from lakemerge import LakeTable, StoreError
from tests.s3.servers import KEY, SECRET, S3Server, answering


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        ("403 Forbidden", "InvalidAccessKeyId", "Check that key and secret are those of this account"),
        ("403 Forbidden", "SignatureDoesNotMatch", "Check that key and secret are those of this account"),
        ("403 Forbidden", "AccessDenied", "Let this account list, read, write and delete there"),
        ("400 Bad Request", "ExpiredToken", "get new credentials"),
        ("404 Not Found", "NoSuchBucket", "create the bucket first"),
    ],
)
def test_what_s3_refuses(server: S3Server, bucket: str, status: str, code: str, remedy: str) -> None:
    server.faults.extend([answering(status, code)] * 3)
    with pytest.raises(StoreError) as caught:
        LakeTable.create(f"s3://{bucket}/t", "id BIGINT", key=["id"], storage_options=server.options)
    for part in (code, f"s3://{bucket}/t", remedy):
        assert part in str(caught.value)


def test_no_credentials(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    options = {name: value for name, value in server.options.items() if value not in (KEY, SECRET)}
    with pytest.raises(StoreError) as caught:
        LakeTable.create(f"s3://{bucket}/t", "id BIGINT", key=["id"], storage_options=options)
    for part in ("nable to locate credentials", f"s3://{bucket}/", "Give credentials in storage_options"):
        assert part in str(caught.value)
