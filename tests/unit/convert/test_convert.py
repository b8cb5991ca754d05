"""A plain Delta table becomes a LakeMerge table: what stays, what is refused, and wherever it is cut, it goes on."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import (
    CommitConflictError,
    FrameError,
    InputError,
    LakeTable,
    NotATableError,
    SchemaError,
    Settings,
    TableExistsError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge._internal.pools import inline_pools
from lakemerge.convert.converting import ConvertRequest, convert_table
from lakemerge.convert.refusals import check_exclusive
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.results.conversion import ConversionPlan, ConversionResult
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Call, Fault, FaultStore
from mergers import default_registry
from tests.property.effort import some

DAY = dt.timedelta(days=1)


def rows(keys: range, part: str = "a", **more: Any) -> pa.Table:
    return pa.table(
        {
            "p": [part] * len(keys),
            "k": pa.array(keys, pa.int64()),
            "o": pa.array(keys, pa.int64()),
            "v": pa.array([f"v{k}" if k % 3 else None for k in keys], pa.string()),
            **more,
        }
    )


def plain(path: Path, *, partitioned: bool = True) -> Path:
    """Three partitions, two commits, made by deltalake."""
    by = ["p"] if partitioned else None
    deltalake.write_deltalake(path, pa.concat_tables([rows(range(10), "a"), rows(range(5), "b")]), partition_by=by)
    deltalake.write_deltalake(
        path, pa.concat_tables([rows(range(10, 14), "a"), rows(range(3), "c")]), partition_by=by, mode="append"
    )
    return path


def of_delta(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    return listed(deltalake.DeltaTable(path, version=version).to_pyarrow_table())


def listed(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.select(sorted(table.column_names)).to_pylist(), key=lambda row: json.dumps(row, default=str))


def converted(path: Path, **arguments: Any) -> ConversionResult:
    result = LakeTable.convert(path, **{"key": ["p", "k"], **arguments})
    assert isinstance(result, ConversionResult)
    return result


def planned(path: Path, **arguments: Any) -> ConversionPlan:
    result = LakeTable.convert(path, **{"key": ["p", "k"], "dry_run": True, **arguments})
    assert isinstance(result, ConversionPlan)
    return result


def log_entries(path: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()]


@pytest.mark.parametrize("partitioned", [True, False])
def test_rows_and_identity_stay(tmp_path: Path, partitioned: bool) -> None:
    path = plain(tmp_path / "t", partitioned=partitioned)
    before, old = of_delta(path), deltalake.DeltaTable(path).metadata()
    result = converted(path)
    assert (result.version, result.rows, result.merged_rows, result.repeated) == (2, 22, 0, False)
    table = LakeTable.open(path)
    assert listed(table.to_arrow()) == before == of_delta(path)
    assert LakeTable.check(path).findings == ()
    assert deltalake.DeltaTable(path).metadata().id == old.id
    assert table.key == ("p", "k")
    assert deltalake.DeltaTable(path).metadata().partition_columns == (["p"] if partitioned else [])
    # It is written like any other, and compacted.
    table.upsert(rows(range(3), "a", v=["x", "y", "z"]))
    table.delete(pa.table({"p": ["b"], "k": pa.array([4], pa.int64())}))
    changed = [row for row in before if (row["p"], row["k"]) not in {("a", 0), ("a", 1), ("a", 2), ("b", 4)}]
    changed += rows(range(3), "a", v=["x", "y", "z"]).to_pylist()
    table.compact()
    assert listed(table.to_arrow()) == listed(pa.Table.from_pylist(changed)) == of_delta(path)


def test_what_the_commit_says(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")
    old = {add["path"] for v in (0, 1) for e in log_entries(path, v) if (add := e.get("add"))}
    converted(path)
    entries = log_entries(path, 2)
    first_ms = entries[0]["commitInfo"]["inCommitTimestamp"]
    assert entries[0]["commitInfo"]["operation"] == "CONVERT"
    (protocol,) = (e["protocol"] for e in entries if "protocol" in e)
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (1, 7)
    # Writer version 2 implies appendOnly and invariants, so both are listed from now on.
    assert sorted(protocol["writerFeatures"]) == [
        "appendOnly", "domainMetadata", "inCommitTimestamp", "invariants", "lakemerge"
    ]  # fmt: skip
    (metadata,) = (e["metaData"] for e in entries if "metaData" in e)
    has = metadata["configuration"]
    assert has["delta.inCommitTimestampEnablementVersion"] == "2"
    assert has["delta.inCommitTimestampEnablementTimestamp"] == str(first_ms)
    removes, adds = ([e[kind] for e in entries if kind in e] for kind in ("remove", "add"))
    assert {each["path"] for each in removes} == old
    assert len(adds) == 3
    assert not any(each["dataChange"] for each in (*removes, *adds))
    state = json.loads(next(e["domainMetadata"]["configuration"] for e in entries
                            if e.get("domainMetadata", {}).get("domain") == "lakemerge.state"))  # fmt: skip
    assert (state["oldestVersion"], state["fenceBeginVersion"]) == (2, 2)


def test_earlier_versions_are_for_other_engines(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")
    before = of_delta(path, 0)
    converted(path)
    with pytest.raises(VersionNotFoundError, match="before the table was converted, in version 2"):
        LakeTable.open(path, version=0)
    with pytest.raises(VersionNotFoundError, match="before the table was converted"):
        LakeTable.open(path).restore(version=1)
    assert of_delta(path, 0) == before
    assert LakeTable.open(path, version=2).to_arrow().num_rows == 22


def test_partition_columns_outside_the_key_become_columns(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = pa.concat_tables([rows(range(5), "a"), rows(range(5, 9), "b")])
    deltalake.write_deltalake(path, table, partition_by=["p"])
    converted(path, key=["k"])
    assert deltalake.DeltaTable(path).metadata().partition_columns == []
    assert listed(LakeTable.open(path).to_arrow()) == listed(table) == of_delta(path)


PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int32(), [-5, 7]),
    "bool": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "decimal": (pa.decimal128(10, 2), [-1, 250]),
    "double": (pa.float64(), [1.5, -0.25]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC), dt.datetime(1999, 1, 1, 0, 0, 0, 123456, dt.UTC)],
    ),
    "text": (pa.string(), ["a b/c=d%e", "ü:x"]),
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_partition_values_of_all_types_and_null(tmp_path: Path, kind: str) -> None:
    arrow, values = PARTITIONS[kind]
    table = pa.table({"k": pa.array(range(6), pa.int64()), "p": pa.array([*values, *values, None, values[0]], arrow)})
    deltalake.write_deltalake(tmp_path, table, partition_by=["p"])
    converted(tmp_path, key=["k"])
    assert listed(LakeTable.open(tmp_path).to_arrow()) == listed(table)
    again = tmp_path / "kept"
    if kind == "double":
        return  # no key
    whole = table.filter(pa.compute.is_valid(table["p"]))
    deltalake.write_deltalake(again, whole, partition_by=["p"])
    converted(again, key=["p", "k"])
    assert listed(LakeTable.open(again).to_arrow()) == listed(whole) == of_delta(again)
    found = LakeTable.open(again).get([{"p": whole["p"][0].as_py(), "k": 0}])
    assert found.num_rows == 1


def test_rows_that_share_a_key(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")
    deltalake.write_deltalake(
        path, rows(range(2, 4), "a").set_column(2, "o", pa.array([100, -100], pa.int64())), mode="append"
    )
    plan = planned(path)
    assert (plan.rows, plan.repeated_rows, plan.null_keys, plan.version) == (24, 2, 0, 2)
    assert {key["k"] for key in plan.repeated_keys} == {2, 3}
    with pytest.raises(FrameError, match=r"several rows have the key \{'p': 'a', 'k': [23]\}.*ordering"):
        converted(path)
    assert not [*path.glob("base/*/*"), *path.glob("_lakemerge/convert/**/*.json"), *path.glob("_lakemerge/log/*")]
    assert DeltaLog(LocalStore(path)).snapshot().version == 2
    result = converted(path, ordering=["o"])
    assert (result.rows, result.merged_rows) == (22, 2)
    found = {row["k"]: row["o"] for row in LakeTable.open(path).to_arrow().to_pylist() if row["p"] == "a"}
    assert (found[2], found[3]) == (100, 3)  # the highest ordering of each
    entries = log_entries(path, 3)
    assert all(each["dataChange"] for e in entries if (each := e.get("add") or e.get("remove")))


@pytest.mark.parametrize("passes", [1, 3])
def test_a_dry_run_compares_keys_in_bounded_memory(tmp_path: Path, passes: int) -> None:
    keys = [*range(300), *range(0, 300, 7), 5]
    table = pa.table({"k": pa.array([*keys, None, None], pa.int64()), "s": [str(k) for k in [*keys, 0, 0]]})
    deltalake.write_deltalake(tmp_path, table)
    settings = Settings(merge_budget_bytes=24 * len(keys) // passes + 24)
    plan = planned(tmp_path, key=["k"], settings=settings)
    assert (plan.rows, plan.null_keys, plan.repeated_rows) == (len(keys) + 2, 2, len(keys) - 300)
    assert {key["k"] for key in plan.repeated_keys} <= {*range(0, 300, 7), 5}
    assert len(plan.repeated_keys) == 5
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        {*(p.name for p in tmp_path.glob("part*")), "_delta_log"}
    )


def test_rows_are_states_whatever_the_merger(tmp_path: Path) -> None:
    """The merger would make other rows of these as upserts: a total, or a delete."""
    table = pa.table({"k": pa.array([1, 2], pa.int64()), "total": pa.array([5, 7], pa.int64()), "gone": [True, False]})
    deltalake.write_deltalake(tmp_path / "sum", table)
    converted(tmp_path / "sum", key=["k"], merger="aggregate", options={"aggregates": {"total": "sum"}})
    made = LakeTable.open(tmp_path / "sum")
    assert listed(made.to_arrow()) == listed(table)
    made.upsert(table)
    assert sorted(row["total"] for row in made.to_arrow().to_pylist()) == [10, 14]
    deltalake.write_deltalake(tmp_path / "gone", table)
    converted(tmp_path / "gone", key=["k"], options={"delete_when": {"column": "gone", "values": [True]}})
    assert listed(LakeTable.open(tmp_path / "gone").to_arrow()) == listed(table)


def test_null_keys_are_refused(tmp_path: Path) -> None:
    table = pa.table({"p": ["a", None], "k": pa.array([1, None], pa.int64())})
    deltalake.write_deltalake(tmp_path / "plain", table)
    with pytest.raises(FrameError, match="key column 'k' is null in 1 row"):
        converted(tmp_path / "plain", key=["k"])
    deltalake.write_deltalake(tmp_path / "by", table, partition_by=["p"])
    with pytest.raises(FrameError, match="key column 'p' is null in the partition"):
        converted(tmp_path / "by", key=["p"])
    assert of_delta(tmp_path / "by") == listed(table)


def test_definitions_that_cannot_be(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"k": pa.array([1], pa.int64()), "f": [1.5], "l": [[1]]}))
    for key, told in (
        (["f"], "key column 'f' is DOUBLE"),
        (["l"], "key column 'l' is ARRAY"),
        (["x"], "'x' is not in"),
    ):
        with pytest.raises(SchemaError, match=told):
            converted(tmp_path, key=key)
    with pytest.raises(SchemaError, match="partition column 'f' must be a key column"):
        converted(tmp_path, key=["k"], partition_by=["f"])
    with pytest.raises(NotATableError, match="no Delta log"):
        converted(tmp_path / "nothing")


def with_entries(path: Path, version: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the entries of a commit of another engine."""
    entries = log_entries(path, version)
    for entry in entries:
        change(entry)
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (path / "_delta_log" / f"{version:020d}.json").write_text(text)


def features(*names: str, reader: bool = False) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        if "protocol" in entry:
            read = {"readerFeatures": list(names)} if reader else {}
            version = 3 if reader else 1
            entry["protocol"] = {
                "minReaderVersion": version,
                "minWriterVersion": 7,
                "writerFeatures": list(names),
                **read,
            }

    return change


def properties(**given: str) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        if "metaData" in entry:
            entry["metaData"]["configuration"] |= {name.replace("__", "."): value for name, value in given.items()}

    return change


def noted(**entries: Any) -> Callable[[dict[str, Any]], None]:
    def change(entry: dict[str, Any]) -> None:
        if "metaData" in entry:
            schema = json.loads(entry["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] = {name.replace("__", "."): value for name, value in entries.items()}
            entry["metaData"]["schemaString"] = json.dumps(schema)

    return change


def absolute(entry: dict[str, Any]) -> None:
    if "add" in entry:
        entry["add"]["path"] = "s3://other/" + entry["add"]["path"]


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "catalogManaged": (features("catalogManaged", reader=True), "catalogManaged"),
    "coordinated": (features("coordinatedCommits-preview"), "a coordinator makes its commits"),
    "coordinator": (
        properties(**{"delta__coordinatedCommits__commitCoordinator-preview": "dynamodb"}),
        "coordinator makes its commits",
    ),
    "appendOnly": (properties(delta__appendOnly="true"), "appendOnly"),
    "row tracking": (features("rowTracking", "domainMetadata"), "tracks rows"),
    "iceberg": (features("icebergCompatV2", "columnMapping"), "icebergCompatV2"),
    "uniform": (properties(delta__universalFormat__enabledFormats="iceberg"), "Iceberg or Hudi"),
    "change feed": (properties(delta__enableChangeDataFeed="true"), "change data feed"),
    "identity": (noted(delta__identity__start=1), r"identity columns \(p\)"),
    "generated": (noted(delta__generationExpression="k + 1"), r"generated columns \(p\)"),
    "invariant": (noted(delta__invariants='{"expression":{"expression":"k > 0"}}'), r"invariants of columns \(p\)"),
    "default": (noted(CURRENT_DEFAULT="'x'"), r"default values \(p\)"),
    "protected": (features("checkpointProtection"), "checkpointProtection"),
    "unknown": (features("somethingNew"), "somethingNew, which this library does not know"),
    "variant": (features("variantType", reader=True), "variantType"),
    "absolute paths": (absolute, "absolute path"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_get_lost_is_refused_by_name(tmp_path: Path, name: str) -> None:
    change, told = REFUSED[name]
    deltalake.write_deltalake(tmp_path, rows(range(3)))
    with_entries(tmp_path, 0, change)
    before = sorted(tmp_path.rglob("*"))
    for dry_run in (True, False):
        with pytest.raises(UnsupportedFeatureError, match=told):
            LakeTable.convert(tmp_path, key=["k"], dry_run=dry_run)
    assert sorted(tmp_path.rglob("*")) == before


def test_all_reasons_are_told_at_once(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, rows(range(3)))
    with_entries(tmp_path, 0, properties(delta__appendOnly="true", delta__enableChangeDataFeed="true"))
    (tmp_path / "_delta_log" / "_staged_commits").mkdir()
    (tmp_path / "_delta_log" / "_staged_commits" / f"{1:020d}.x.json").write_text("{}")
    with pytest.raises(UnsupportedFeatureError, match=r"appendOnly.*change data feed.*staged commits") as caught:
        LakeTable.convert(tmp_path, key=["k"])
    assert caught.value.features == ("appendOnly", "changeDataFeed", "staged commits")


def test_features_that_are_not_used_are_no_hindrance(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, rows(range(3)))
    with_entries(
        tmp_path,
        0,
        features("appendOnly", "changeDataFeed", "generatedColumns", "identityColumns", "allowColumnDefaults",
                 "clustering", "domainMetadata", "materializePartitionColumns"),
    )  # fmt: skip
    converted(tmp_path, key=["k"])
    table = LakeTable.open(tmp_path)
    table.upsert(rows(range(2, 5)))
    assert table.to_arrow().num_rows == 5
    kept = DeltaLog(LocalStore(tmp_path)).snapshot().protocol.writer_features
    assert {"changeDataFeed", "identityColumns"} <= kept
    assert not {"clustering", "materializePartitionColumns"} & kept


def test_constraints_stay_where_the_merger_can_keep_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        deltalake.write_deltalake(tmp_path / name, rows(range(3)))
        deltalake.DeltaTable(tmp_path / name).alter.add_constraint({"low": "k < 100"})
    converted(tmp_path / "a", key=["k"])
    with pytest.raises(FrameError, match="violate the constraint 'low'"):
        LakeTable.open(tmp_path / "a").upsert(rows(range(100, 101)))
    with pytest.raises(SchemaError, match=r"constraint\(s\) 'low'.*'partial-update' cannot keep"):
        converted(tmp_path / "b", key=["k"], merger="partial-update", ordering=["o"])


def test_object_stores_need_the_callers_word() -> None:
    class Far(LocalStore):
        url = "s3://bucket/table"

    with pytest.raises(InputError, match="exclusive"):
        check_exclusive(Far(Path("/x")), exclusive=False)
    check_exclusive(Far(Path("/x")), exclusive=True)
    check_exclusive(LocalStore(Path("/x")), exclusive=False)


def over(path: Path, *faults: Fault, settings: Settings | None = None) -> tuple[Handle, FaultStore]:
    store = FaultStore(LocalStore(path), *faults)
    return Handle(
        store, DeltaLog(store, sleep=lambda _: None), default_registry(), settings or Settings(threads=1)
    ), store


REQUEST = ConvertRequest(key=["p", "k"])
SMALL = Settings(threads=1, target_file_bytes=64)
"""Each partition is a step."""


def test_a_writer_that_commits_meanwhile_ends_it_by_name(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")

    def write(_: Call) -> None:
        deltalake.write_deltalake(path, rows(range(50, 52), "a"), mode="append")

    handle, _ = over(path, Fault(action=write, method="put_if_absent", path="_lakemerge/convert"))
    with pytest.raises(CommitConflictError, match=r"committed version 2 .* while version 1 was converted"):
        convert_table(handle, REQUEST, dry_run=False)
    assert len(of_delta(path)) == 24
    result = converted(path)
    assert (result.rows, result.version) == (24, 3)
    assert listed(LakeTable.open(path).to_arrow()) == of_delta(path)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")

    class Stopped(BaseException):
        pass

    def stop(_: Call) -> None:
        raise Stopped

    handle, _ = over(
        path, Fault(action=stop, method="put_if_absent", path="convert", at=3, lasting=True), settings=SMALL
    )
    with pytest.raises(Stopped):
        convert_table(handle, REQUEST, dry_run=False)
    notes = sorted(path.glob("_lakemerge/convert/*/*.json"))
    assert len(notes) == 2
    handle, store = over(path, settings=SMALL)
    result = convert_table(handle, REQUEST, dry_run=False)
    assert isinstance(result, ConversionResult)
    assert (result.steps_done_before, result.rows) == (2, 22)
    read = {
        call.path.split("/")[0] for call in store.calls if call.method == "open_input" and call.path.startswith("p=")
    }
    assert read == {"p=c"}
    assert not (path / "_lakemerge" / "convert").exists()
    assert listed(LakeTable.open(path).to_arrow()) == of_delta(path)


def test_files_that_another_engine_vacuumed_are_written_again(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")
    handle, _ = over(
        path, Fault(action=raising, method="put_if_absent", path="_delta_log", lasting=True), settings=SMALL
    )
    with pytest.raises(RuntimeError):
        convert_table(handle, REQUEST, dry_run=False)
    next(path.glob("base/*/*.parquet")).unlink()
    result = converted(path, settings=SMALL)
    assert (result.steps_done_before, result.rows) == (2, 22)
    assert LakeTable.check(path).findings == ()


def raising(_: Call) -> None:
    raise RuntimeError("the end")


def test_other_arguments_begin_anew(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")
    handle, _ = over(
        path, Fault(action=raising, method="put_if_absent", path="_delta_log", lasting=True), settings=SMALL
    )
    with pytest.raises(RuntimeError):
        convert_table(handle, REQUEST, dry_run=False)
    result = converted(path, ordering=["o"], settings=SMALL)
    assert result.steps_done_before == 0
    assert not (path / "_lakemerge" / "convert").exists()
    assert LakeTable.open(path).ordering == ("o",)


def test_called_again_it_is_done_and_other_definitions_are_told(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")
    converted(path)
    again = converted(path)
    assert (again.repeated, again.version) == (True, 2)
    LakeTable.open(path).upsert(rows(range(2)))
    assert converted(path).version == 2
    with pytest.raises(TableExistsError, match="another definition: its key is p, k, not k; it is part"):
        converted(path, key=["k"])
    LakeTable.create(tmp_path / "own", "k INT", key=["k"])
    with pytest.raises(TableExistsError, match="LakeMerge table already"):
        converted(tmp_path / "own", key=["k"])


def test_of_two_at_once_one_makes_it_and_both_are_done(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")

    def other(_: Call) -> None:
        assert converted(path, settings=SMALL).repeated is False

    handle, _ = over(path, Fault(action=other, method="put_if_absent", path="convert", at=2), settings=SMALL)
    result = convert_table(handle, REQUEST, dry_run=False)
    assert isinstance(result, ConversionResult)
    assert result.repeated
    assert LakeTable.check(path).findings == ()
    assert listed(LakeTable.open(path).to_arrow()) == of_delta(path, 1)


class Killed(BaseException):
    """The process ends here."""


def kill(_: Call) -> None:
    raise Killed


def conversions_cut(tmp_path: Path, path: Path, before: list[dict[str, Any]], *, after: bool) -> int:
    """Cut at each call in turn, with or without its effect. Returns the number of calls."""
    import shutil

    calls = 0
    while True:
        calls += 1
        copy = tmp_path / f"cut{calls}"
        shutil.copytree(path, copy)
        handle, _ = over(copy, Fault(action=kill, at=calls, after=after, lasting=True), settings=SMALL)
        try:
            with inline_pools():
                convert_table(handle, REQUEST, dry_run=False)
        except Killed:
            snapshot = DeltaLog(LocalStore(copy)).snapshot()
            assert snapshot.version in (1, 2)
            assert of_delta(copy) == before, calls
            converted(copy, settings=SMALL)
            assert listed(LakeTable.open(copy).to_arrow()) == before == of_delta(copy), calls
            assert LakeTable.check(copy).findings == (), calls
            assert not (copy / "_lakemerge" / "convert").exists(), calls
            LakeTable.open(copy).vacuum(retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
            left = {str(p.relative_to(copy)) for p in copy.rglob("*.parquet") if "_delta_log" not in p.parts}
            assert left == set(DeltaLog(LocalStore(copy)).snapshot().files), calls
            shutil.rmtree(copy)
            continue
        return calls


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True])
def test_wherever_it_is_cut_it_goes_on(tmp_path: Path, after: bool) -> None:
    path = tmp_path / "t"
    table = pa.concat_tables([rows(range(4), "a"), rows(range(3), "b")])
    deltalake.write_deltalake(path, table, partition_by=["p"])
    deltalake.write_deltalake(path, rows(range(4, 6), "a"), mode="append")
    assert conversions_cut(tmp_path, path, of_delta(path), after=after) > 25


def test_vacuum_takes_former_files_after_the_retention(tmp_path: Path) -> None:
    path = plain(tmp_path / "t", partitioned=False)
    table = deltalake.DeltaTable(path)
    table.optimize.compact()  # so that there are files of earlier versions, too
    former = {p.name for p in path.glob("part-*")}
    assert len(former) == 3
    converted(path)
    lake = LakeTable.open(path)
    assert "former" not in lake.vacuum(dry_run=False).files
    assert {p.name for p in path.glob("part-*")} == former
    assert LakeTable.check(path).findings == ()
    result = lake.vacuum(retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
    assert result.files["former"] == 3
    assert not [*path.glob("part-*"), *path.glob("_lakemerge/former/*")]
    assert "former" not in lake.vacuum(retention=dt.timedelta(0), enforce_retention=False).files
    assert listed(lake.to_arrow()) == of_delta(path)


def test_an_empty_table_and_columns_that_came_later(tmp_path: Path) -> None:
    empty = deltalake.DeltaTable.create(tmp_path / "empty", rows(range(1)).schema)
    assert empty.version() == 0
    result = converted(tmp_path / "empty", key=["k"])
    assert (result.rows, result.files) == (0, 0)
    table = LakeTable.open(tmp_path / "empty")
    table.upsert(rows(range(5)))
    assert table.to_arrow().num_rows == 5
    path = tmp_path / "grown"
    deltalake.write_deltalake(path, rows(range(3)))
    more = rows(range(3, 6), n=pa.array([{"x": 1, "y": "a"}] * 3))
    deltalake.write_deltalake(path, more, mode="append", schema_mode="merge")
    wider = rows(range(6, 8), n=pa.array([{"x": 2, "y": "b", "z": 1.5}] * 2))
    deltalake.write_deltalake(path, wider, mode="append", schema_mode="merge")
    before = of_delta(path)
    converted(path, key=["k"])
    assert listed(LakeTable.open(path).to_arrow()) == before == of_delta(path)


def test_histories_and_feeds_begin_at_the_conversion(tmp_path: Path) -> None:
    path = plain(tmp_path / "t")
    converted(path)
    table = LakeTable.open(path)
    table.upsert(rows(range(2), "a", v=["x", "y"]))
    changes = table.changes(since=2).read_all()
    assert changes.num_rows >= 2
    with pytest.raises(VersionNotFoundError):
        table.changes(since=0).read_all()
    assert [entry.operation for entry in table.history()][:2] == ["UPSERT", "CONVERT"]
    assert "x" in str(table.explain({"p": "a", "k": 0}))


@pytest.mark.parametrize("seed", some(range(6)))
def test_splitting_the_work_changes_no_row(tmp_path: Path, seed: int) -> None:
    """Budgets of any size, several threads."""
    import random

    draw = random.Random(seed)
    path = tmp_path / "t"
    model: dict[int, str] = {}
    for number in range(draw.randint(1, 4)):
        keys = draw.sample(range(2000), draw.randint(1, 800))
        fresh = [k for k in keys if k not in model]
        model |= {k: f"{number}/{k}" for k in fresh}
        if fresh:
            table = pa.table({"k": pa.array(fresh, pa.int64()), "v": [model[k] for k in fresh]})
            deltalake.write_deltalake(path, table, mode="append", target_file_size=draw.choice([None, 2000]))
    settings = Settings(
        threads=draw.choice([1, 3]),
        write_budget_bytes=draw.choice([1, 5000, 2**20]),
        merge_budget_bytes=draw.choice([2000, 2**20]),
        target_file_bytes=draw.choice([500, 2**20]),
    )
    converted(path, key=["k"], settings=settings, buckets=draw.choice([None, 1, 8]))
    found = {row["k"]: row["v"] for row in LakeTable.open(path).to_arrow().to_pylist()}
    assert found == model
    assert LakeTable.check(path).findings == ()


def test_files_of_spark_2_are_told(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, pa.table({"k": pa.array([1], pa.int64()), "d": [dt.date(1500, 1, 1)]}))
    (file,) = tmp_path.glob("*.parquet")
    old = pq.read_table(file)
    marked = old.replace_schema_metadata({**(old.schema.metadata or {}), "org.apache.spark.version": "2.4.0"})
    pq.write_table(marked, file)
    with_entries(tmp_path, 0, lambda e: e.get("add", {}).update(size=file.stat().st_size) if "add" in e else None)
    with pytest.raises(UnsupportedFeatureError, match="calendar of Spark 2"):
        converted(tmp_path, key=["k"])
