"""An S3 that is asked too often: the client waits and asks again, a bounded number of times; then it is an error."""

from __future__ import annotations

import pytest

from lakemerge.errors import StoreError
from lakemerge.storage import S3Store
from tests.s3.servers import S3Server, answering

SLOW = answering("503 Slow Down", "SlowDown")


def test_a_throttled_write_is_repeated(server: S3Server, bucket: str) -> None:
    store = S3Store(f"s3://{bucket}/t", server.options)
    server.faults += [SLOW, SLOW]
    store.put("file", b"x")
    assert server.requests == [f"PUT /{bucket}/t/file"] * 3
    assert store.get("file") == b"x"


@pytest.mark.long
def test_a_store_that_throttles_for_good_is_an_error_after_a_few_requests(server: S3Server, bucket: str) -> None:
    attempts = 2
    retries = {"total_max_attempts": attempts, "mode": "standard"}
    store = S3Store(f"s3://{bucket}/t", {**server.options, "config_kwargs": {"retries": retries}})
    server.faults += [SLOW] * 1000
    with pytest.raises(StoreError, match=r"reduce your request rate|as told") as caught, store.open_output("f") as file:
        file.write(b"x")
    assert caught.value.store_code == "SlowDown"
    assert len(server.requests) <= attempts * 5
    server.faults.clear()
    assert store.stat("f") is None
