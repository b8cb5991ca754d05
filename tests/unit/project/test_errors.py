"""Errors: one tree, stable codes, pickles; and tables that are damaged, foreign or ahead of us."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import lakemerge.errors
from lakemerge import (
    InputError,
    LakeMergeError,
    LakeTable,
    MergerMissingError,
    NotATableError,
    Settings,
    TableDamagedError,
    UnsupportedFeatureError,
)
from lakemerge.delta import Attempt, DomainMetadata
from lakemerge.testing.faults import Fail, Fault
from mergers import Groups, Merged, Merger, TableShape
from mergers.builtin.commit_time import CommitTime
from tests.relink import relink
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of

ALL = [getattr(lakemerge.errors, name) for name in lakemerge.errors.__all__]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_errors_survive_pickling(kind: type[LakeMergeError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what went wrong", version=7, problems=("a", "b"))))
    assert type(error) is kind
    assert str(error) == f"[{kind.code}] what went wrong"
    assert (error.version, error.problems, error.message) == (7, ("a", "b"), "what went wrong")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = error.nothing


def test_codes_tell_errors_apart() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)
    assert all(issubclass(kind, LakeMergeError) for kind in ALL)


class Custom(Merger):
    """Takes the last record, like ``commit-time``."""

    id = "5f0f3f0c-55f1-4f43-9a0e-2f6c0a3a7d11"
    name = "custom"

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        return cls()

    def options(self) -> Mapping[str, object]:
        return {}

    def merge_groups(self, groups: Groups) -> Merged:
        return CommitTime().merge_groups(groups)


def dirty(path: Path) -> LakeTable:
    """A base file, a tombstone file and a log."""
    table = create(path, settings=Settings(inline_blocks=1), buckets=2)
    table.upsert(frame([(k, 1, "a") for k in range(9)]))
    table.delete(frame([(k, 2) for k in (1, 20, 21, 22)], ["k", "o"]))
    table.compact()
    table.upsert(frame([(k, 3, "b") for k in range(5)]))
    return table


def test_an_unknown_merger_opens_for_metadata(tmp_path: Path) -> None:
    table = create(tmp_path, merger=Custom.id, mergers=[Custom])
    table.upsert(frame([(1, 1, "x")]))
    table.upsert(frame([(1, 0, "y")]))
    assert rows_of(table.to_arrow()) == [(1, 0, "y")]
    before = listing(tmp_path)
    stranger = LakeTable.open(tmp_path)
    assert (stranger.version, stranger.schema.names, len(stranger.history())) == (2, ["k", "o", "v"], 3)
    assert "merger='custom'" in repr(stranger)
    uses: list[Callable[[], object]] = [
        stranger.to_arrow,
        stranger.scan,
        stranger.compact,
        lambda: stranger.upsert(frame([(1, 1, "x")])),
        lambda: stranger.delete(frame([(1,)], ["k"])),
        lambda: stranger.delete_where("true"),
    ]
    for use in uses:
        with pytest.raises(MergerMissingError, match=rf"{Custom.id} \(named 'custom'.*@register_merger.*mergers="):
            use()
    assert listing(tmp_path) == before
    assert rows_of(LakeTable.open(tmp_path, mergers=[Custom]).to_arrow()) == [(1, 0, "y")]


def test_another_class_of_the_same_name_is_not_taken(tmp_path: Path) -> None:
    """The id decides, never the name."""
    create(tmp_path, merger="custom", mergers=[Custom])
    other = type("Other", (Custom,), {"id": "5f0f3f0c-55f1-4f43-9a0e-2f6c0a3a7d12"})
    with pytest.raises(MergerMissingError, match=Custom.id):
        LakeTable.open(tmp_path, mergers=[other]).to_arrow()


def test_a_plain_delta_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"k": [1]}))
    before = listing(tmp_path)
    with pytest.raises(NotATableError, match=r"is a Delta table, but not a LakeMerge table.*LakeTable\.convert"):
        LakeTable.open(tmp_path)
    with pytest.raises(LakeMergeError, match="there is already a plain Delta table at"):
        create(tmp_path)
    assert listing(tmp_path) == before


def rewrite(path: Path, version: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Let ``change`` edit every action of a commit."""
    file = path / f"_delta_log/{version:020d}.json"
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    for action in actions:
        change(action)
    file.write_text("\n".join(map(json.dumps, actions)) + "\n")
    relink(path)


def configured(name: str, value: str | None) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["configuration"].pop(name)
            if value is not None:
                action["metaData"]["configuration"][name] = value

    return change


def schema_string(text: str) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["schemaString"] = text

    return change


def without_field(name: str) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            body = json.loads(action["metaData"]["schemaString"])
            body["fields"] = [field for field in body["fields"] if field["name"] != name]
            action["metaData"]["schemaString"] = json.dumps(body)

    return change


def with_field(kind: str) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            body = json.loads(action["metaData"]["schemaString"])
            body["fields"].append({"name": "x", "type": kind, "nullable": True, "metadata": {}})
            action["metaData"]["schemaString"] = json.dumps(body)

    return change


def state_body(**entries: Any) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if action.get("domainMetadata", {}).get("domain") == "lakemerge.state":
            body = json.loads(action["domainMetadata"]["configuration"]) | entries
            action["domainMetadata"]["configuration"] = json.dumps(body)

    return change


def feature(action: dict[str, Any]) -> None:
    if "protocol" in action:
        action["protocol"]["writerFeatures"].append("rowTracking")


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (
            configured("lakemerge.formatVersion", "2"),
            UnsupportedFeatureError,
            "format version 2.*understands 1.*newer lakemerge",
        ),
        (configured("lakemerge.key", "k"), TableDamagedError, "table properties of .* are damaged"),
        (configured("lakemerge.merger.id", None), TableDamagedError, "table properties .*merger.id"),
        (configured("lakemerge.merger.options", "[1]"), TableDamagedError, "table properties"),
        (configured("lakemerge.buckets", "many"), TableDamagedError, "table properties"),
        (schema_string("{"), TableDamagedError, "schema in the log of .* is damaged: .*not JSON"),
        (schema_string('{"type":"struct","fields":[1]}'), TableDamagedError, "schema in the log of .* is damaged"),
        (schema_string("[" * 100_000), TableDamagedError, "schema in the log of .* is damaged: .*too deeply"),
        (with_field("decimal"), UnsupportedFeatureError, "needs a newer lakemerge: .*x: the type 'decimal'"),
        (with_field("variant"), UnsupportedFeatureError, "needs a newer lakemerge: .*x: the type 'variant'"),
        (without_field("k"), TableDamagedError, r"table properties .*no columns \['k'\]"),
        (without_field("o"), TableDamagedError, r"table properties .*no columns \['o'\]"),
        (state_body(formatVersion=2), UnsupportedFeatureError, "format version 2.*newer lakemerge"),
        (state_body(nextOrdinal="x"), TableDamagedError, "'lakemerge.state' is damaged"),
        (feature, UnsupportedFeatureError, "rowTracking; with that it cannot be written"),
    ],
    ids=[
        "newer format",
        "key",
        "no merger",
        "options",
        "buckets",
        "no JSON",
        "schema",
        "deep schema",
        "unknown type",
        "newer type",
        "no key column",
        "no ordering column",
        "newer state",
        "state",
        "feature",
    ],
)
def test_tables_we_do_not_understand(
    change: Callable[[dict[str, Any]], None], kind: type[Exception], says: str, tmp_path: Path
) -> None:
    create(tmp_path)
    rewrite(tmp_path, 0, change)
    before = listing(tmp_path)
    with pytest.raises(kind, match=says):
        LakeTable.open(tmp_path).upsert(frame([(1, 1, "x")]))
    after = listing(tmp_path)
    assert {file for file in after if file.startswith("_delta_log")} == set(before)


def test_a_damaged_commit(tmp_path: Path) -> None:
    dirty(tmp_path)
    commit = tmp_path / f"_delta_log/{5:020d}.json"
    whole = commit.read_bytes()
    for damage in (whole[:-20], b"", b"\xff\xfe", whole.replace(b'"domainMetadata"', b'"domainMetadata'), b"[]\n"):
        commit.write_bytes(damage)
        with pytest.raises(TableDamagedError, match=f"{5:020d}"):
            LakeTable.open(tmp_path)
        assert LakeTable.open(tmp_path, version=4).version == 4
    commit.unlink()
    assert LakeTable.open(tmp_path).version == 4
    commit.with_name(f"{6:020d}.json").write_bytes(whole)
    with pytest.raises(TableDamagedError, match=rf"commit 5 is missing.*restore _delta_log/{5:020d}\.json"):
        LakeTable.open(tmp_path)


@pytest.mark.parametrize("what", ["base/", "_lakemerge/log/", "_lakemerge/tombstones/", "-index.parquet"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "other bytes"])
def test_a_damaged_file_is_named(
    what: str, damage: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Reading, writing by condition and compacting refuse; what is fine still works."""
    table = dirty(tmp_path)
    expected = state_of(tmp_path)
    paths = {base.add.path for base in table.opened.view.base_files}
    paths |= {base.tombstones for base in table.opened.view.base_files if base.tombstones is not None}
    paths |= {path for commit in table.opened.view.log_commits for path in commit.paths}
    broken = [path for path in paths if what in path and ("index" in what) == ("index" in path)]
    assert broken
    saved = tmp_path_factory.mktemp("saved") / "table"
    shutil.copytree(tmp_path, saved)
    for path in broken:
        if damage == "missing":
            (tmp_path / path).unlink()
        else:
            content = (tmp_path / path).read_bytes()
            (tmp_path / path).write_bytes(
                content[: len(content) // 2] if damage == "truncated" else b"x" * len(content)
            )
    before = listing(tmp_path)
    for use in (LakeTable.to_arrow, LakeTable.compact, lambda table: table.delete_where("true")):
        with pytest.raises(TableDamagedError) as caught:
            use(LakeTable.open(tmp_path))
        assert any(path in str(caught.value) for path in broken)
    left = {path: size for path, size in listing(tmp_path).items() if not path.startswith("_delta_log/")}
    assert left == {path: size for path, size in before.items() if not path.startswith("_delta_log/")}
    for path in broken:
        shutil.copy(saved / path, tmp_path / path)
    assert state_of(tmp_path) == expected


def test_a_file_that_another_writer_added(tmp_path: Path) -> None:
    dirty(tmp_path)

    def untag(action: dict[str, Any]) -> None:
        if "add" in action:
            del action["add"]["tags"]

    rewrite(tmp_path, 4, untag)
    with pytest.raises(TableDamagedError, match=r"base/.*without a readable 'lakemerge.slice' tag.*another writer"):
        LakeTable.open(tmp_path).to_arrow()


def test_a_log_domain_that_is_damaged(tmp_path: Path) -> None:
    dirty(tmp_path)

    def shorten(action: dict[str, Any]) -> None:
        if action.get("domainMetadata", {}).get("domain", "").startswith("lakemerge.log."):
            action["domainMetadata"]["configuration"] = action["domainMetadata"]["configuration"][:-1]

    rewrite(tmp_path, 5, shorten)
    with pytest.raises(TableDamagedError, match=r"log domain 'lakemerge\.log\..*damaged"):
        LakeTable.open(tmp_path).to_arrow()


@pytest.mark.parametrize("what", ["index", "file"])
@pytest.mark.parametrize("odd", ["../x", "/etc/passwd", "", 7])
def test_a_path_in_a_log_domain_that_is_none(what: str, odd: object, tmp_path: Path) -> None:
    """It is the table that is damaged, not what the caller asked for."""
    table = create(tmp_path, settings=Settings(inline_blocks=1 if what == "index" else 99), buckets=2)
    for o in (1, 2):
        table.upsert(frame([(k, o, "a") for k in range(9)]))

    def change(action: dict[str, Any]) -> None:
        if action.get("domainMetadata", {}).get("domain", "").startswith("lakemerge.log."):
            body = json.loads(action["domainMetadata"]["configuration"])
            if what == "index":
                assert body["index"]
                body["index"] = odd
            else:
                body["files"][0][0] = odd
            action["domainMetadata"]["configuration"] = json.dumps(body)

    rewrite(tmp_path, 2, change)
    for use in (LakeTable.to_arrow, LakeTable.compact, LakeTable.vacuum):
        with pytest.raises(TableDamagedError, match=r"log domain 'lakemerge\.log\..*damaged"):
            use(LakeTable.open(tmp_path))


ONE = pa.scalar(Decimal(1), pa.decimal128(10, 2))


@pytest.mark.parametrize(
    "stats",
    [
        {"numRecords": 3, "minValues": {"o": "x"}, "maxValues": {"o": 1}, "nullCount": {}},
        {"numRecords": 3, "minValues": {"o": 0}, "maxValues": {"o": 10**30}, "nullCount": {}},
        {"numRecords": 3, "minValues": {"d": "x"}, "maxValues": {"d": "y"}, "nullCount": {}},
        {"numRecords": "many", "minValues": {"o": 1}, "maxValues": {"o": 1}, "nullCount": {}},
        {"numRecords": 3, "minValues": [], "maxValues": {}, "nullCount": {}},
        [],
    ],
)
@pytest.mark.parametrize("wanted", ["o > 1 AND d > 1", (pa.compute.field("o") > 1) & (pa.compute.field("d") > ONE)])
def test_statistics_that_are_no_values_of_the_column(wanted: object, stats: object, tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "k BIGINT, o BIGINT, d DECIMAL(10, 2)", key=["k"], buckets=1)
    table.upsert(pa.table({"k": range(3), "o": range(3), "d": pa.array([5] * 3, pa.decimal128(10, 2))}))

    def change(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["stats"] = json.dumps(stats)

    rewrite(tmp_path, 1, change)
    with pytest.raises(TableDamagedError, match=r"the statistics of file 'base/.*damaged"):
        LakeTable.open(tmp_path).to_arrow(filter=wanted)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"columns": "k"}, r"did you mean \['k'\]"),
        ({"columns": ["zz"]}, "unknown column.s. 'zz'; the table has k, o, v"),
        ({"columns": ["k", "K"]}, "asked for twice"),
        ({"columns": ["k", 1]}, "columns must be a list of names, and 1 is not a name"),
        ({"filter": 5}, "SQL text or a pyarrow.compute.Expression"),
        ({"filter": "zz = 1"}, "zz"),
        ({"filter": "k = = 1"}, "k = = 1"),
        ({"filter": pa.compute.field("zz") == 1}, "zz"),
        (
            {"filter": pa.compute.match_substring_regex(pa.compute.field("v"), "(")},
            "filter cannot be judged: .*missing",
        ),
    ],
)
def test_reads_that_ask_for_what_is_not_there(arguments: dict[str, Any], says: str, tmp_path: Path) -> None:
    table = create(tmp_path)
    for read in (table.to_arrow, table.scan):
        with pytest.raises(InputError, match=says):
            read(**arguments)


def test_base_files_that_do_not_tile(tmp_path: Path) -> None:
    """Two files that both claim the start of a bucket: which rows count could not be told."""
    table = create(tmp_path)
    table.upsert(frame([(1, 1, "a")]))
    table.upsert(frame([(2, 1, "b")]))
    table.compact()

    def keep(action: dict[str, Any]) -> None:
        if "remove" in action:
            action["txn"] = {"appId": "x", "version": 1}
            del action["remove"]

    rewrite(tmp_path, 4, keep)
    with pytest.raises(TableDamagedError, match="do not divide its keys"):
        LakeTable.open(tmp_path).to_arrow()
    assert pq.read_table(tmp_path / "base").num_rows == 3


@pytest.mark.parametrize(
    "error", [ConnectionError("gone"), PermissionError(13, "no"), OSError(5, "I/O error")], ids=repr
)
def test_a_store_that_fails_is_no_damaged_table(error: OSError, tmp_path: Path) -> None:
    """The store's own error comes out; restoring files from a backup would not help."""
    dirty(tmp_path)
    for method, path in (("open_input", "base/"), ("open_input", "/log/"), ("get", "-index")):
        table, _ = open_over(tmp_path, Fault(action=Fail(error), method=method, path=path))
        with pytest.raises(type(error), match=str(error.args[-1])):
            table.to_arrow()


def test_a_version_whose_state_somebody_removed(tmp_path: Path) -> None:
    """No checkpoint is to blame: the commits say so. Nothing is written onto it; what was before is whole."""
    log = create(tmp_path).opened.handle.log
    without = Attempt([DomainMetadata("lakemerge.state", "", removed=True)])
    log.commit(log.snapshot(), lambda tip: without, operation="OTHER", parameters={})
    with pytest.raises(TableDamagedError, match=r"version 1 has no domain 'lakemerge\.state'.*Versions before"):
        LakeTable.open(tmp_path).upsert(frame([(1, 1, "x")]))
    assert LakeTable.open(tmp_path, version=0).to_arrow().num_rows == 0
