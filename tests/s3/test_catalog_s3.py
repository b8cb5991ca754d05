"""Namespaces and tables of a catalog whose warehouse is in a bucket, and the drop of such a table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.connector.places import NoSuchNamespaceError, Places
from tests.s3.servers import S3Server


@pytest.mark.long
def test_a_warehouse_in_a_bucket(server: S3Server, bucket: str) -> None:
    found = Places(f"s3://{bucket}/lake", server.options)
    assert found.namespaces() == ["default"]
    found.create(["shop"], {"comment": "all"})
    assert found.namespaces() == ["default", "shop"]
    assert found.properties(["shop"])["comment"] == "all"
    path = found.path(["shop"], "orders")
    table = LakeTable.create(path, "k BIGINT", key=["k"], storage_options=server.options)
    table.upsert(pa.table({"k": [1]}))
    assert found.tables(["shop"]) == ["orders"]
    with pytest.raises(InputError, match="has files, such as shop/orders/"):
        found.remove(["shop"])
    assert LakeTable.drop(path, storage_options=server.options)
    assert not LakeTable.exists(path, storage_options=server.options)
    assert found.tables(["shop"]) == []
    assert found.remove(["shop"])
    with pytest.raises(NoSuchNamespaceError):
        found.tables(["shop"])
