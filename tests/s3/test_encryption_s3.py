"""Keys of AWS's service and of the caller's own, by options of the store: each request that needs them has them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.storage import Store, open_store
from tests.s3.wire import WireS3, s3_wire_server

KMS = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "arn:aws:kms:us-east-1:1:key/of-ours"}
OWN = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
KMS_HEADERS = {
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-server-side-encryption-aws-kms-key-id": KMS["SSEKMSKeyId"],
}
OWN_HEADER = "x-amz-server-side-encryption-customer-key"


@pytest.fixture(scope="module")
def wire() -> Iterator[WireS3]:
    with s3_wire_server() as running:
        yield running


def used(wire: WireS3, options: dict[str, str]) -> list[tuple[str, str, dict[str, str]]]:
    """The requests of every kind of write and read of a store."""
    wire.begin({}, [], [])
    store: Store = open_store("s3://bucket/t", {**wire.options, "s3_additional_kwargs": options})
    store.put_if_absent("first", b"")  # with it the endpoint is tried out
    wire.heard.clear()
    store.put_if_absent("commit", b"x")
    store.put("file", b"x")
    listed = store.stat("file")
    assert listed is not None
    assert store.replace_exact(listed, b"y")
    for size_bytes in (10, 17 << 20):
        with store.open_output(f"output/{size_bytes}") as file:
            file.write(bytes(size_bytes))
    assert store.get("file") == b"y"
    with store.open_input("output/10", size_bytes=10) as opened:
        assert opened.read() == bytes(10)
    assert len([*store.list("")]) == 5
    return [(method, path, dict(headers)) for method, path, headers in wire.heard]


def test_a_key_of_the_service_is_named_by_each_write(wire: WireS3) -> None:
    found = used(wire, KMS)
    begun = [
        headers
        for method, path, headers in found
        if (method == "PUT" and "uploadId" not in path) or (method == "POST" and "uploads" in path)
    ]
    assert len(begun) == 5
    for headers in begun:
        assert {name: headers.get(name) for name in KMS_HEADERS} == KMS_HEADERS


def test_a_key_of_the_callers_own_goes_along_with_each_read_and_write(wire: WireS3) -> None:
    found = used(wire, OWN)
    needing = [
        (method, path, headers)
        for method, path, headers in found
        if "list-type" not in path and not (method == "POST" and "uploadId" in path)
    ]
    assert {method for method, _, _ in needing} == {"PUT", "POST", "GET", "HEAD"}
    assert [(method, path) for method, path, headers in needing if OWN_HEADER not in headers] == []


@pytest.mark.parametrize("options", [KMS, OWN], ids=["kms", "own"])
def test_a_table_lives_with_them(wire: WireS3, options: dict[str, str]) -> None:
    wire.begin({}, [], [])
    given = {**wire.options, "s3_additional_kwargs": options}
    table = LakeTable.create("s3://bucket/t", "id BIGINT, v STRING", key=["id"], storage_options=given)
    for number in range(3):
        table.upsert(pa.table({"id": [1, number], "v": ["x", "y"]}))
    table.compact()
    assert LakeTable.open("s3://bucket/t", storage_options=given).to_arrow().num_rows == 3
    assert LakeTable.check("s3://bucket/t", storage_options=given).ok
