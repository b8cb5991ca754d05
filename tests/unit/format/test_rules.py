"""Rules of the table format that no other test holds by itself. The numbers are those of docs/table-format.md."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pyarrow as pa
import pytest

import compaction
import lakemerge
from lakemerge import InputError, LakeTable
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import open_over

SCHEMA = "p STRING NOT NULL, k BIGINT NOT NULL, o BIGINT, v STRING"


def partitioned(path: Path) -> LakeTable:
    """A table of two partitions, with a log of each of them in one commit."""
    table = LakeTable.create(
        path, SCHEMA, key=["p", "k"], ordering=["o"], partition_by=["p"], buckets=2,
        properties={"lakemerge.maintenance": "off"},
    )  # fmt: skip
    table.upsert(rows(0))
    table.compact()
    table.upsert(rows(1))
    return table


def rows(time: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{"p": p, "k": k, "o": time, "v": f"{p}{k}@{time}"} for p in "ab" for k in range(20)],
        schema=pa.schema([("p", pa.string()), ("k", pa.int64()), ("o", pa.int64()), ("v", pa.string())]),
    )


def actions(path: Path) -> list[dict[str, dict[str, object]]]:
    """The actions of the last commit."""
    last = max((path / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in last.read_text().splitlines()]


def log_domains(path: Path) -> set[str]:
    """Domains of log files that are there, by what the commits say, in their order."""
    there: dict[str, object] = {}
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if (domain := json.loads(line).get("domainMetadata")) is not None:
                there[domain["domain"]] = domain["removed"]
    return {name for name, removed in there.items() if not removed and name.startswith("lakemerge.log.")}


def test_1_9_a_compaction_says_that_data_change(tmp_path: Path) -> None:
    partitioned(tmp_path).compact()
    files = [action[kind] for action in actions(tmp_path) for kind in ("add", "remove") if kind in action]
    assert len(files) == 8, "two partitions of two buckets, each with a new file and an old one"
    assert all(file["dataChange"] is True for file in files)


def test_1_10_underscored_folders_stand_at_the_root_alone(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    table.compact(minor=True)
    table.delete(pa.table({"p": ["a"], "k": pa.array([3], pa.int64()), "o": pa.array([5], pa.int64())}))
    table.upsert(rows(6))
    table.rescale(buckets=4)
    table.upsert(rows(7))
    table.compact_logs()
    table.compact()
    table.vacuum(dry_run=False)
    folders = [folder.relative_to(tmp_path) for folder in tmp_path.rglob("_*") if folder.is_dir()]
    below = {str(folder) for folder in folders if folder.parts[0] not in ("_delta_log", "_lakemerge")}
    assert below == set()
    assert {"_delta_log", "_lakemerge"} <= {str(folder) for folder in folders}


def test_4_3_no_writer_uses_a_check_followed_by_a_write() -> None:
    """fsspec's modes of creation. Writers of local files use ``os.link``, those of S3 a conditional put."""
    for package in (lakemerge, compaction):
        for file in Path(*package.__path__).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    assert not any(keyword.arg == "mode" and _is_create(keyword.value) for keyword in node.keywords), (
                        file
                    )
                if isinstance(node, ast.ImportFrom):
                    assert "fsspec.implementations" not in (node.module or ""), file


def _is_create(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value in ("create", "x", "xb")


def test_4_10_removals_of_domains_are_computed_at_each_attempt(tmp_path: Path) -> None:
    """One compaction folds the log's part in ``a``; meanwhile another one folds that in ``b``. So the log has no live
    part when the first one lands, and only its second attempt can know that."""
    partitioned(tmp_path)
    assert len(log_domains(tmp_path)) == 1

    def overtake(call: Call) -> None:
        LakeTable.open(tmp_path).compact(where="p = 'b'")
        assert len(log_domains(tmp_path)) == 1, "the part in a is live"

    table, _ = open_over(tmp_path, Fault(action=overtake, method="put_if_absent", path="_delta_log/"))
    table.compact(where="p = 'a'")
    assert log_domains(tmp_path) == set()
    assert sorted(LakeTable.open(tmp_path).to_arrow()["v"].to_pylist()) == sorted(rows(1)["v"].to_pylist())


@pytest.mark.parametrize("name", ["lakemerge.key", "lakemerge.ordering", "lakemerge.buckets", "lakemerge.merger.id"])
def test_5_10_what_a_table_is_cannot_be_altered(name: str, tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    before = table.version
    with pytest.raises(InputError, match=name):
        table.alter(properties={name: "o"})
    assert (table.version, table.key, table.ordering) == (before, ("p", "k"), ("o",))


def test_16_1_a_table_has_one_version_of_the_format(tmp_path: Path) -> None:
    """From the first commit on, whatever commits follow."""
    path = tmp_path / "t"
    table = partitioned(path)
    table.compact()
    commits = sorted((path / "_delta_log").glob("*.json"))
    made = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    domains = [action["domainMetadata"] for action in made if "domainMetadata" in action]
    states = [json.loads(one["configuration"]) for one in domains if one["domain"] == "lakemerge.state"]
    assert len(states) > 2
    assert {state["formatVersion"] for state in states} == {1}
    given = [action["metaData"]["configuration"] for action in made if "metaData" in action]
    assert {fields["lakemerge.formatVersion"] for fields in given} == {"1"}
