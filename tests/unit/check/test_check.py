"""What a check finds: nothing in whole tables, and each kind of damage, made by hand."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, NotATableError, Settings
from lakemerge.check.check import check_table
from lakemerge.delta import Action, Attempt, DeltaLog, DomainMetadata
from lakemerge.format.block_index import DecodedLogs
from lakemerge.format.ingests import ingests_of
from lakemerge.ingest import Files
from lakemerge.results.findings import CheckResult
from lakemerge.testing.counting import CountingStore
from tests.golden.make import FOLDER as GOLDEN
from tests.relink import relink

SMALL = Settings(merge_budget_bytes=4096, row_group_rows=64)


def rows(*ids: int, at: int, note: str) -> pa.Table:
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "at": pa.array([at] * len(ids), pa.int64()), "v": [note] * len(ids)}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with everything: base files of two buckets, winners, tombstones, live logs, a checkpoint."""
    path: Path = tmp_path_factory.mktemp("whole") / "t"
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("v", pa.string())])
    table = LakeTable.create(
        path, schema, key=["id"], ordering=["at"], buckets=2, properties={"delta.checkpointInterval": "4"}
    )
    table.upsert(rows(*range(200), at=1, note="first"))
    table.upsert(rows(*range(0, 60, 3), at=2, note="second"))
    table.delete(pa.table({"id": [5, 6], "at": [9, 9]}))
    table.compact(minor=True)
    table.upsert(rows(7, 8, 500, at=3, note="third"))
    table.upsert(rows(9, at=3, note="fourth"))
    return path


def test_a_whole_table_has_no_findings(whole: Path) -> None:
    result = LakeTable.check(whole, settings=SMALL)
    assert result.ok
    assert result.findings == ()
    table = LakeTable.open(whole)
    assert (result.version, result.checkpoints) == (table.version, 1)
    assert result.commits == table.version + 1
    # Stored rows, winners of the 20 multiples of three below 60 but for 6, which was deleted, and live records.
    assert result.rows == 200 + 19 + 4
    assert "nothing is wrong" in str(result)


@pytest.mark.parametrize(
    "path", sorted(p for p in GOLDEN.iterdir() if p.is_dir() and p.name != "__pycache__"), ids=lambda p: p.name
)
def test_golden_tables_are_whole(path: Path, tmp_path: Path) -> None:
    found = [folder for folder in [path, *path.rglob("*")] if (folder / "_delta_log").is_dir()]
    assert found
    for number, folder in enumerate(found):
        copy = shutil.copytree(folder, tmp_path / str(number))
        assert str(LakeTable.check(copy)).endswith("nothing is wrong")


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(NotATableError):
        LakeTable.check(tmp_path)


def one(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


def base(folder: Path) -> Path:
    return one(folder, "base/*/*.parquet")


def checkpoint(folder: Path) -> Path:
    return one(folder, "_delta_log/*.checkpoint.parquet")


def log(folder: Path) -> Path:
    return max(folder.glob("_lakemerge/log/*.parquet"))


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a file's rows and keep its size in the log true: the commits that name it are patched."""
    before = path.stat().st_size
    pq.write_table(change(pq.read_table(path)), path)
    root = next(parent for parent in path.parents if (parent / "_delta_log").is_dir())
    for commit in (root / "_delta_log").glob("*.json"):
        text = commit.read_text()
        if path.name in text:  # which may hold the same digits
            commit.write_text(re.sub(rf"(?<![\w-]){before}(?![\w-])", str(path.stat().st_size), text))
    relink(root)


def swapped(table: pa.Table) -> pa.Table:
    return table.take([1, 0, *range(2, table.num_rows)])


def doubled(table: pa.Table) -> pa.Table:
    return table.take([0, 0, *range(2, table.num_rows)])


def shifted(table: pa.Table) -> pa.Table:
    """Another number of a key of each: they hash elsewhere."""
    return table.set_column(table.column_names.index("id"), "id", pa.array(range(1000, 1000 + table.num_rows)))


def numbered(table: pa.Table) -> pa.Table:
    ordinal = pa.array([77] * table.num_rows, pa.int32())
    return table.set_column(table.column_names.index("_lm_file"), "_lm_file", ordinal)


def without_key(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("id"), "id", pa.nulls(table.num_rows, pa.int64()))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a base file is gone": (lambda t: base(t).unlink(), "this file is missing"),
    "a log file is gone": (lambda t: log(t).unlink(), "this file is missing"),
    "a winner file is gone": (lambda t: one(t, "_lakemerge/merged/*/*.parquet").unlink(), "this file is missing"),
    "tombstones are gone": (lambda t: one(t, "_lakemerge/tombstones/*").unlink(), "this file is missing"),
    "tombstones are cut": (
        lambda t: (file := one(t, "_lakemerge/tombstones/*")).write_bytes(file.read_bytes()[:-9]),
        "bytes; the log says",
    ),
    "a base file is cut": (lambda t: base(t).write_bytes(base(t).read_bytes()[:-9]), "bytes; the log says"),
    "a log file is no Parquet": (
        lambda t: log(t).write_bytes(b"x" * log(t).stat().st_size),
        "is not a readable Parquet file",
    ),
    "rows are not sorted": (lambda t: rewrite(base(t), swapped), "not sorted by key"),
    "a key twice": (lambda t: rewrite(base(t), doubled), "a key is in it more than once"),
    "keys of elsewhere": (lambda t: rewrite(base(t), shifted), "keys of other buckets"),
    "another ordinal": (lambda t: rewrite(base(t), numbered), "column _lm_file holds [77]"),
    "keys that are null": (lambda t: rewrite(base(t), without_key), "key column 'id' holds nulls"),
    "a row less": (lambda t: rewrite(base(t), lambda rows: rows.slice(1)), "rows; the log says"),
    "other bounds": (lambda t: rewrite(base(t), lambda rows: rows.slice(1)), "minValues of 'id' is"),
    "a log's rows less": (lambda t: rewrite(log(t), lambda rows: rows.slice(0, 0)), "a block of it has 0 rows"),
    "a commit is gone": (
        lambda t: (t / "_delta_log" / f"{LakeTable.open(t).version - 1:020d}.json").unlink(),
        "commit 6 is missing from the log",
    ),
    "a commit is no JSON": (
        lambda t: (t / "_delta_log" / f"{LakeTable.open(t).version:020d}.json").write_text("{"),
        "line 1, cannot be read",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(kind: str, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "t")
    damage, message = DAMAGE[kind]
    damage(folder)
    result = LakeTable.check(folder, settings=SMALL)
    assert not result.ok
    assert message in str(result), str(result)
    assert all(finding.remedy for finding in result.findings)


def lose_domains(folder: Path) -> None:
    path = checkpoint(folder)
    table = pq.read_table(path)
    domains = table.column_names.index("domainMetadata")
    pq.write_table(
        table.set_column(domains, "domainMetadata", pa.nulls(table.num_rows, table.schema.field(domains).type)), path
    )


@pytest.mark.parametrize(
    "damage",
    [lambda t: checkpoint(t).write_bytes(b"PAR1 and no more"), lose_domains],
    ids=["unreadable", "domains lost"],
)
def test_damaged_checkpoints_are_built_anew(damage: Callable[[Path], Any], whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "t")
    before = pq.read_table(checkpoint(folder)).column_names
    damage(folder)
    result = LakeTable.check(folder)
    assert {finding.path for finding in result.findings} == {f"_delta_log/{checkpoint(folder).name}"}
    assert LakeTable.check(folder, repair=True).ok
    assert pq.read_table(checkpoint(folder)).column_names == before
    for commit in range(LakeTable.open(folder).version - 2):
        (folder / "_delta_log" / f"{commit:020d}.json").unlink()
    rows_of: Callable[[Path], Any] = lambda t: LakeTable.open(t).to_arrow().sort_by("id")  # noqa: E731
    assert rows_of(folder).equals(rows_of(whole))


def test_a_checkpoint_that_cannot_be_built_anew_is_deleted_if_a_newer_one_stands_in(
    whole: Path, tmp_path: Path
) -> None:
    """Its commits are gone; the table lives on a newer checkpoint, which is whole and not blamed."""
    folder = shutil.copytree(whole, tmp_path / "t")
    table = LakeTable.open(folder)
    table.opened.handle.log.checkpoint(table.opened.view.snapshot)
    for commit in range(4):
        (folder / "_delta_log" / f"{commit:020d}.json").unlink()
    first = folder / "_delta_log" / f"{4:020d}.checkpoint.parquet"
    first.write_bytes(b"x")
    result = LakeTable.check(folder)
    assert [finding.path for finding in result.findings] == [f"_delta_log/{first.name}"]
    result = LakeTable.check(folder, repair=True)
    assert result.ok
    assert result.repaired == (f"deleted _delta_log/{first.name}, which no version needs",)
    assert not first.exists()
    assert LakeTable.open(folder).to_arrow().num_rows == LakeTable.open(whole).to_arrow().num_rows


def test_a_merger_that_is_missing_is_no_damage_of_files(whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "t")
    for commit in (folder / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            if "metaData" in line:
                line["metaData"]["configuration"]["lakemerge.merger.id"] = "00000000-0000-4000-8000-000000000000"
        commit.write_text("\n".join(map(json.dumps, lines)) + "\n")
    relink(folder)
    result: CheckResult = LakeTable.check(folder)
    assert [finding.path for finding in result.findings] == [None]
    assert "00000000-0000-4000-8000-000000000000" in str(result)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with each kind of file, and a log of several checkpoints."""
    root = tmp_path_factory.mktemp("rich")
    path: Path = root / "t"
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("v", pa.string())])
    table = LakeTable.create(
        path, schema, key=["id"], ordering=["at"], buckets=2, settings=Settings(inline_blocks=1),
        properties={"delta.checkpointInterval": "4", "lakemerge.maintenance": "off"},
    )  # fmt: skip
    table.upsert(rows(*range(200), at=1, note="first"))
    table.upsert(rows(*range(0, 60, 3), at=2, note="second"))
    table.delete(pa.table({"id": [5, 6, 7, 8], "at": [9, 9, 9, 9]}))
    table.compact(minor=True)
    (root / "in").mkdir()
    (root / "in" / "1.csv").write_text("id,at,v\n300,3,x\n301,3,y\n302,3,z\n303,3,z\n")
    table.ingest("feed", Files(str(root / "in"), format="csv")).run()
    for at in range(4, 8):
        table.upsert(rows(*range(10), 500, at=at, note="late"))
    return path


def one_of_each(folder: Path) -> dict[str, Path]:
    """A file of each kind. A checkpoint after the damaged commit stays whole, so the latest version can be read."""
    view = LakeTable.open(folder).opened.view
    minors = [*view.minors.values()]
    assert minors[0].positions is not None
    tombstones = next(file_slice.tombstones for file_slice in reversed(view.file_slices) if file_slice.tombstones)
    (job,) = ingests_of(view.snapshot).values()
    indexed = [commit for commit in view.log_commits if commit.index is not None]
    first, last = indexed[0], indexed[-1]
    assert last.index is not None
    return {
        "base": folder / view.base_files[0].add.path,
        "log": folder / first.blocks[0].file.path,
        "index": folder / last.index,
        "winners": folder / minors[-1].winners[0].path,
        "positions": folder / minors[0].positions,
        "tombstones": folder / tombstones,
        "ledger": folder / job.ledger[0].path,
        "commit": folder / "_delta_log" / f"{2:020d}.json",
        "checkpoint": folder / "_delta_log" / f"{4:020d}.checkpoint.parquet",
    }


def garbled(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def named(result: CheckResult) -> set[str | None]:
    return {finding.path for finding in result.findings}


def paths_of(folder: Path, files: Iterable[Path]) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in files}


def test_all_damage_is_found_at_once(rich: Path, tmp_path: Path) -> None:
    assert LakeTable.check(rich).findings == ()
    damages: list[Callable[[Path], None]] = [garbled, Path.unlink]
    for number, damage in enumerate(damages):
        folder = shutil.copytree(rich, tmp_path / str(number))
        files = one_of_each(folder)
        for file in files.values():
            damage(file)
        if number:
            files.pop("checkpoint")  # a checkpoint that is not there is no damage
        result = LakeTable.check(folder)
        assert named(result) == paths_of(folder, files.values()), str(result)
        assert result.version == LakeTable.open(rich).version


@pytest.mark.parametrize("kept", ["base", "log", "index", "winners", "positions", "tombstones", "ledger", "commit"])
def test_each_is_found_beside_all_others(kept: str, rich: Path, tmp_path: Path) -> None:
    """One that is left whole is not blamed."""
    folder = shutil.copytree(rich, tmp_path / "t")
    files = one_of_each(folder)
    whole = files.pop(kept)
    for file in files.values():
        garbled(file)
    result = LakeTable.check(folder)
    assert named(result) == paths_of(folder, files.values()), str(result)
    assert whole.exists()


def test_several_of_a_kind(rich: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(rich, tmp_path / "t")
    view = LakeTable.open(folder).opened.view
    bad = {file.add.path for file in view.base_files} | {c.index for c in view.log_commits if c.index is not None}
    bad |= {path for minor in view.minors.values() for path in minor.paths}
    bad |= {f"_delta_log/{version:020d}.json" for version in (0, 1, 3)}
    assert len(bad) >= 2 + 5 + 4 + 3
    for path in bad:
        garbled(folder / path)
    assert named(LakeTable.check(folder)) == bad


def test_damage_of_domains_and_tags_hides_nothing_else(rich: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(rich, tmp_path / "t")
    files = one_of_each(folder)
    table = LakeTable.open(folder)
    minor = next(name for name in table.opened.view.snapshot.domains if name.startswith("lakemerge.minor."))
    add = next(iter(table.opened.view.snapshot.files.values()))
    broken: list[Action] = [
        DomainMetadata("lakemerge.log.broken", "{}"),
        DomainMetadata("lakemerge.ingest.feed", "[]"),
        DomainMetadata("lakemerge.savepoint.old", "7"),
        DomainMetadata("lakemerge.expiry", "{}"),
        DomainMetadata("lakemerge.converted", "7"),
        DomainMetadata(minor, '{"base": 7}'),
        replace(add, tags={"lakemerge.slice": "{"}),
    ]
    table.opened.handle.log.commit(table.opened.view.snapshot, lambda _: Attempt(broken), operation="W", parameters={})
    for kind in ("log", "index"):
        garbled(files[kind])
    told = str(LakeTable.check(folder))
    for name in (
        "log.broken",
        "ingest.feed",
        "savepoint.old",
        "lakemerge.expiry",
        "lakemerge.converted",
        minor,
        add.path,
    ):
        assert name in told
    for path in paths_of(folder, (files["log"], files["index"])):
        assert path in told


def test_what_is_behind_a_damaged_tip_is_checked(rich: Path, tmp_path: Path) -> None:
    """The latest commits cannot be read. The version before them can, and its files are checked."""
    folder = shutil.copytree(rich, tmp_path / "t")
    files = one_of_each(folder)
    latest = LakeTable.open(folder).version
    assert latest % 4, "there is a commit after the last checkpoint"
    tip = folder / "_delta_log" / f"{latest:020d}.json"
    bad = [tip, files["base"], files["winners"], files["ledger"]]
    for file in bad:
        garbled(file)
    result = LakeTable.check(folder)
    assert named(result) == paths_of(folder, bad), str(result)
    assert result.version == latest - 1
    assert f"version {latest - 1} can be read, and its files were checked" in str(result)


class Denied(CountingStore):
    """A store that may not open some files."""

    denied: frozenset[str] = frozenset()

    def get(self, path: str) -> bytes:
        self._check(path)
        return super().get(path)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        self._check(path)
        return super().open_input(path, size_bytes=size_bytes)

    def _check(self, path: str) -> None:
        if path in self.denied:
            raise PermissionError(errno.EACCES, "Permission denied", path)


def test_files_that_may_not_be_read_are_findings(rich: Path) -> None:
    table = LakeTable.open(rich)
    store = Denied(table.opened.handle.store)
    store.denied = frozenset(paths_of(rich, one_of_each(rich).values()))
    handle = replace(table.opened.handle, store=store, log=DeltaLog(store), decoded=DecodedLogs())
    result = check_table(handle, repair=False)
    assert named(result) == store.denied, str(result)
    assert str(result).count("Permission denied") >= len(store.denied)
