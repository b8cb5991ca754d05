"""Large files go up in parts, a part in memory at a time; an upload that does not end leaves nothing to see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge.errors import StoreError
from lakemerge.storage import S3Store
from lakemerge.storage.clock import store_time_ms
from tests.s3.servers import Endpoint, S3Server, answering

PART = 16 << 20
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(endpoint: Endpoint, place: str) -> S3Store:
    return S3Store(f"{place}/t", endpoint.options)


def unfinished(store: S3Store) -> list[str]:
    """Keys of uploads that were begun and neither completed nor ended."""
    return [upload["Key"] for upload in store._client.call("list_multipart_uploads").get("Uploads", ())]


def in_a_process(endpoint: Endpoint, store: S3Store, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code``, in which ``store`` is the store."""
    opened = f"from lakemerge.storage import S3Store\nstore = S3Store({store.url!r}, {endpoint.options!r})\n"
    command = [sys.executable, "-c", opened + code]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)


@pytest.mark.parametrize(("size_bytes", "parts"), [(0, 0), (PART - 1, 0), (PART, 0), (PART + 1, 2), (3 * PART, 3)])
def test_the_requests_of_an_upload(server: S3Server, bucket: str, size_bytes: int, parts: int) -> None:
    store = S3Store(f"s3://{bucket}/t", server.options)
    content = memoryview(bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]
    with store.open_output("file") as file:
        for start in range(0, size_bytes, 5 << 20):
            file.write(pa.py_buffer(content[start : start + (5 << 20)]))
    asked = [re.sub("uploadId=[^&]*", "uploadId", request) for request in server.requests]
    whole = [f"PUT /{bucket}/t/file"]
    in_parts = [f"PUT /{bucket}/t/file?uploadId&partNumber={number}" for number in range(1, parts + 1)]
    begun, ended = f"POST /{bucket}/t/file?uploads", f"POST /{bucket}/t/file?uploadId"
    assert asked == ([begun, *in_parts, ended] if parts else whole)
    assert store.get("file") == content


MEASURED = """
import tracemalloc
import pyarrow as pa
large = pa.py_buffer(bytes(6 * {part}))
with store.open_output("warm") as file:
    file.write(b"x" * {part} + b"x")
tracemalloc.start()
with store.open_output("large") as file:
    for start in range(0, 6 * {part}, 1 << 20):
        file.write(large.slice(start, 1 << 20))
    file.write(large)
print(tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.long
def test_an_upload_holds_two_parts(endpoint: Endpoint, store: S3Store) -> None:
    """The one that goes up and, while its memory is not yet free, the next; however large the file, and the writes."""
    done = in_a_process(endpoint, store, MEASURED.format(part=PART))
    assert done.returncode == 0, done.stderr
    assert PART < int(done.stdout) < 3 * PART
    found = store.stat("large")
    assert found is not None
    assert found.size_bytes == 12 * PART


def test_an_upload_that_fails_leaves_no_parts(store: S3Store) -> None:
    with pytest.raises(ValueError, match="stop"), store.open_output("large") as file:  # noqa: PT012
        file.write(b"x" * (PART + 1))
        assert unfinished(store) == ["t/large"]
        raise ValueError("stop")
    assert unfinished(store) == []
    assert [*store.list("")] == []


def test_a_part_that_is_refused_ends_the_upload(server: S3Server, bucket: str) -> None:
    store = S3Store(f"s3://{bucket}/t", server.options)
    with pytest.raises(StoreError, match="as told"), store.open_output("large") as file:  # noqa: PT012
        server.faults.append(answering("403 Forbidden", "AccessDenied"))
        file.write(b"x" * (PART + 1))
    assert unfinished(store) == []
    assert [*store.list("")] == []


KILLED = """
import os
with store.open_output("large") as file:
    file.write(b"x" * (2 * {part} + 1))
    os._exit(77)
"""


def test_an_upload_of_a_killed_process_is_not_seen_and_a_clean_up_ends_it(endpoint: Endpoint, store: S3Store) -> None:
    done = in_a_process(endpoint, store, KILLED.format(part=PART))
    assert done.returncode == 77, done.stderr
    assert [*store.list("")] == []
    assert store.stat("large") is None
    assert unfinished(store) == ["t/large"]
    later_ms = store_time_ms(store) + 60_000
    assert [left.path for left in store.clean_up(before_ms=later_ms, dry_run=False)] == ["large"]
    assert unfinished(store) == []


def test_an_upload_that_somebody_ended_says_so(server: S3Server, bucket: str) -> None:
    """A clean-up of uploads that seemed forgotten, or a rule of the bucket; the answer is that of Amazon's S3."""
    store = S3Store(f"s3://{bucket}/t", server.options)
    with pytest.raises(StoreError, match="the upload is gone"), store.open_output("large") as file:  # noqa: PT012
        file.write(b"x" * (PART + 1))
        server.faults.append(answering("404 Not Found", "NoSuchUpload"))
        file.write(b"y" * PART)
    assert [*store.list("")] == []
