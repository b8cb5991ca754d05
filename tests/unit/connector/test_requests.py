"""Requests of the jar, without a jar and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from lakemerge import LakeTable
from lakemerge.connector.jar import jar_version
from lakemerge.connector.requests import answer


def ask(warehouse: Path | None, what: str, **more: Any) -> dict[str, Any]:
    request = {"do": what, "connector": jar_version(), "storage": {}, "namespace": [], **more}
    if warehouse is not None:
        request["warehouse"] = str(warehouse)
    found: dict[str, Any] = orjson.loads(answer(orjson.dumps(request).decode()))
    return found


def test_a_rename_moves_a_table_between_namespaces(tmp_path: Path) -> None:
    for name in ("a", "b"):
        ask(tmp_path, "create namespace", namespace=[name], properties={})
    LakeTable.create(tmp_path / "a" / "t", "k BIGINT", key=["k"]).upsert(pa.table({"k": [1]}))
    before = ask(tmp_path, "load", namespace=["a"], name="t")
    named = {"namespace": ["a"], "name": "t"}
    for target, code in ((["c"], "no-such-namespace"), ([], "input"), (["a", "b"], "input")):
        refused = ask(tmp_path, "rename", **named, toNamespace=target, to="u")
        assert refused["error"]["code"] == code
    assert ask(tmp_path, "rename", **named, toNamespace=["b"], to="u") == {}
    assert ask(tmp_path, "load", **named)["error"]["code"] == "no-such-table"
    after = ask(tmp_path, "load", namespace=["b"], name="u")
    assert (after["id"], after["version"]) == (before["id"], before["version"])
    assert ask(tmp_path, "rename", **named, toNamespace=["b"], to="v")["error"]["code"] == "no-such-table"
    refused = ask(None, "rename", name=str(tmp_path / "b" / "u"), toNamespace=[], to="x")
    assert "move the folder" in refused["error"]["message"]


def test_the_changes_of_a_table_have_columns_of_their_own(tmp_path: Path) -> None:
    LakeTable.create(tmp_path / "a" / "t", "k BIGINT", key=["k"])
    asked = [
        ask(tmp_path, "load", namespace=["a"], name="t$changes"),
        ask(tmp_path, "load", namespace=["a"], name="t", changes=True),
        ask(None, "load", name=str(tmp_path / "a" / "t"), changes=True),
    ]
    for found in asked:
        names = [field["name"] for field in orjson.loads(found["schema"])["fields"]]
        assert names == ["k", "_change_type", "_commit_version", "_commit_timestamp"]
        assert found["changes"]["path"] == str(tmp_path / "a" / "t")
    missing = ask(tmp_path, "load", namespace=["a"], name="u$changes")
    assert missing["error"]["code"] == "no-such-table"
