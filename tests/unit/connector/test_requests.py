"""Requests of the jar, without a jar and without Spark."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.connector.jar import jar_version
from lakemerge.connector.requests import answer
from lakemerge.delta import DeltaLog, Snapshot
from lakemerge.storage import FileStat, LocalStore
from lakemerge.table.kept import forget_tables


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


def planned(path: Path, loaded: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"path": str(path), "tableId": loaded["id"], "version": loaded["version"]}
    return ask(None, "plan", **about, **{"conditions": [], "options": {}, "tasks": 2, **more})


def rows_in(plan: dict[str, Any]) -> int:
    return sum(plan["files"]["wanted"])


def test_a_version_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same query of the same version looks for newer commits, and no more."""
    path = tmp_path / "t"
    table = LakeTable.create(path, "k BIGINT, v STRING", key=["k"], buckets=4)
    table.upsert(pa.table({"k": range(100), "v": ["a"] * 100}))
    forget_tables()
    calls: Counter[str] = Counter()

    class Counted(LocalStore):
        def __init__(self, url: str, _: object) -> None:
            super().__init__(url)

        def get(self, path: str) -> bytes:
            calls["get"] += 1
            return super().get(path)

        def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
            calls["list"] += 1
            return super().list(folder, start_after=start_after)

    def requests() -> dict[str, int]:
        found = dict(calls)
        calls.clear()
        return found

    monkeypatch.setattr("lakemerge.table.opening.open_store", Counted)
    loaded = ask(None, "load", name=str(path))
    assert requests()["get"] > 0
    whole = planned(path, loaded)
    assert rows_in(whole) == 100
    assert requests() == {"list": 1}, "load and plan share what was opened"
    with monkeypatch.context() as patched:
        patched.setattr("lakemerge.spark.native.plan_json", None)
        assert planned(path, loaded) == whole
    assert requests() == {"list": 1}
    assert len(planned(path, loaded, conditions=["k = 3"])["files"]["urls"]) == 1
    assert "refused" in planned(path, loaded, options={"strange": "1"})
    table.upsert(pa.table({"k": [200], "v": ["b"]}))
    assert rows_in(planned(path, loaded)) == 100, "the version stays"
    later = ask(None, "load", name=str(path))
    assert later["version"] == loaded["version"] + 1
    assert rows_in(planned(path, later)) == 101


def test_a_version_that_was_brought_back(tmp_path: Path) -> None:
    """A folder from a backup has other commits under the same numbers."""
    path, backup = tmp_path / "t", tmp_path / "backup"
    table = LakeTable.create(path, "k BIGINT", key=["k"])
    shutil.copytree(path, backup)
    table.upsert(pa.table({"k": [1, 2, 3]}))
    before = ask(None, "load", name=str(path))
    assert rows_in(planned(path, before)) == 3
    shutil.rmtree(path)
    shutil.move(backup, path)
    LakeTable.open(path).upsert(pa.table({"k": [4]}))
    after = ask(None, "load", name=str(path))
    assert (after["id"], after["version"]) == (before["id"], before["version"])
    assert rows_in(planned(path, after)) == 1


def test_a_load_of_a_version_and_its_plan_decode_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = LakeTable.create(path, "k BIGINT", key=["k"])
    for key in range(3):
        table.upsert(pa.table({"k": [key]}))
    forget_tables()
    seen: list[int | None] = []
    snapshot = DeltaLog.snapshot

    def counted(self: DeltaLog, **named: Any) -> Snapshot:
        seen.append(named.get("version"))
        return snapshot(self, **named)

    monkeypatch.setattr(DeltaLog, "snapshot", counted)
    loaded = ask(None, "load", name=str(path), version="1")
    assert (loaded["version"], rows_in(planned(path, loaded))) == (1, 1)
    assert seen == [None, 1]
