"""A copy of a table is the table: every version, savepoint and consumer; wherever it is cut, it goes on."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import deltalake
import pytest

from compaction import copy_table
from lakemerge import InputError, LakeMergeError, LakeTable, Settings, TableDamagedError, UnsupportedFeatureError
from lakemerge.cli import main
from lakemerge.errors import NotATableError
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Call, Fault, FaultStore, Short
from tests.unit.faults import UNKNOWN, commit_domains, create, frame, listing, open_over, rows_of, state_of

OFF = {"lakemerge.maintenance": "off", "delta.checkpointInterval": "3"}
ONE_THREAD = Settings(threads=1)


def test_what_a_newer_library_keeps_is_not_guessed_at(tmp_path: Path) -> None:
    create(tmp_path / "t").upsert(frame([(1, 1, "a")]))
    commit_domains(tmp_path / "t", UNKNOWN)
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge\.newer\.thing'.*install a newer lakemerge"):
        LakeTable.open(tmp_path / "t").copy_to(tmp_path / "copy")
    assert not LakeTable.exists(tmp_path / "copy")


class Cut(BaseException):
    """The process ends here."""


def cut(call: Call) -> None:
    raise Cut


def history(path: Path, **properties: str) -> LakeTable:
    """Loads, logs, deletes, a minor and a full compaction, checkpoints, a savepoint, a consumer."""
    table = create(path, buckets=2, properties={**OFF, **properties}, settings=ONE_THREAD)
    table.upsert(frame([(k, 1, "loaded") for k in range(20)]))
    table.upsert(frame([(k, 2, "changed") for k in range(0, 20, 3)]))
    table.savepoint("month")
    table.consumers.register("mirror", version=2)
    table.delete(frame([(4, 3), (5, 3)], ["k", "o"]))
    table.compact(minor=True)
    table.upsert(frame([(k, 4, "again") for k in range(3)]))
    table.compact()
    table.upsert(frame([(30, 5, "last")]))
    return table


def versions(path: Path) -> dict[int, list[tuple[object, ...]]]:
    return {
        number: rows_of(LakeTable.open(path, version=number).to_arrow())
        for number in range(LakeTable.open(path).version + 1)
    }


@pytest.mark.parametrize("publish", ["off", "deletionVectors"])
def test_a_copy_has_every_version(tmp_path: Path, publish: str) -> None:
    source, target = tmp_path / "t", tmp_path / "copy"
    table = history(source, **{"lakemerge.publish": publish})
    result = table.copy_to(target)
    assert (result.version, result.oldest_version, result.files_there) == (table.version, 0, 0)
    assert result.files > 0
    assert versions(target) == versions(source)
    assert LakeTable.check(target).ok
    copied = LakeTable.open(target)
    assert [point.name for point in copied.savepoints()] == ["month"]
    assert [(known.name, known.version) for known in copied.consumers.list()] == [
        (known.name, known.version) for known in table.consumers.list()
    ]
    theirs, ours = deltalake.DeltaTable(str(target)), deltalake.DeltaTable(str(source))
    assert (theirs.version(), sorted(Path(uri).name for uri in theirs.file_uris())) == (
        ours.version(),
        sorted(Path(uri).name for uri in ours.file_uris()),
    )
    copied.upsert(frame([(1, 9, "in the copy")]))
    assert copied.get({"k": 1}) == {"k": 1, "o": 9, "v": "in the copy"}
    assert table.get({"k": 1}) == {"k": 1, "o": 4, "v": "again"}


def test_a_copy_has_what_a_vacuum_left(tmp_path: Path) -> None:
    source, target = tmp_path / "t", tmp_path / "copy"
    table = history(source)
    table.consumers.drop("mirror")
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    result = table.copy_to(target)
    oldest = result.oldest_version
    assert oldest == LakeTable.open(source).opened.view.state.oldest_version > 0
    assert rows_of(LakeTable.open(target, version=oldest).to_arrow()) == rows_of(
        LakeTable.open(source, version=oldest).to_arrow()
    )
    LakeTable.open(target).restore(savepoint="month")
    table.restore(savepoint="month")
    assert state_of(target) == state_of(source)
    assert LakeTable.check(target).ok


def contents(path: Path) -> dict[str, bytes]:
    return {file: (path / file).read_bytes() for file in listing(path)}


@pytest.mark.long
def test_wherever_it_is_cut_it_goes_on(tmp_path: Path) -> None:
    """Before it is finished there is no table, or an earlier version, whole."""
    source = tmp_path / "t"
    table = history(source)
    expected, handle, view = versions(source), table.opened.handle, table.opened.view
    counted = FaultStore(LocalStore(tmp_path / "counted"))
    files = copy_table(handle, view, counted).files
    whole, calls = contents(tmp_path / "counted"), len(counted.calls)
    assert versions(tmp_path / "counted") == expected
    assert calls > 20
    seen: set[int | None] = set()
    for number in range(1, calls + 1):
        for after in (False, True):
            target = tmp_path / f"copy-{number}-{after}"
            with pytest.raises(Cut):
                copy_table(handle, view, FaultStore(LocalStore(target), Fault(action=cut, at=number, after=after)))
            try:
                there = LakeTable.open(target)
            except NotATableError:
                seen.add(None)
            else:
                seen.add(there.version)
                assert rows_of(there.to_arrow()) == expected[there.version]
            again = table.copy_to(target)
            assert again.files + again.files_there == files
            assert contents(target) == whole
    assert seen == {None, *expected}


def test_a_later_version_is_copied_over_an_earlier_one(tmp_path: Path) -> None:
    source, target = tmp_path / "t", tmp_path / "copy"
    table = history(source)
    first = table.copy_to(target)
    table.upsert(frame([(40, 1, "later")]))
    table.compact()
    second = table.copy_to(target)
    assert second.files_there == first.files
    assert 0 < second.files < first.files
    assert versions(target) == versions(source)
    with pytest.raises(InputError, match="which is later than"):
        LakeTable.open(source, version=first.version).copy_to(target)


def test_an_older_version_with_its_consumers(tmp_path: Path) -> None:
    """A consumer that went on does not skip what will be committed anew after a restore."""
    source, target = tmp_path / "t", tmp_path / "copy"
    table = history(source)
    pinned = LakeTable.open(source, version=5)
    table.consumers.advance("mirror", table.version)
    pinned.copy_to(target)
    copied = LakeTable.open(target)
    assert copied.version == 5
    assert [known.version for known in copied.consumers.list()] == [5]
    assert rows_of(copied.to_arrow()) == versions(source)[5]


def test_folders_that_no_copy_may_take(tmp_path: Path) -> None:
    table = history(tmp_path / "t")
    with pytest.raises(InputError, match="give another folder"):
        table.copy_to(tmp_path / "t")
    history(tmp_path / "other")
    before = listing(tmp_path / "other")
    with pytest.raises(InputError, match="has another table"):
        table.copy_to(tmp_path / "other")
    assert listing(tmp_path / "other") == before


def test_a_file_that_is_gone_or_cut_short(tmp_path: Path) -> None:
    source = tmp_path / "t"
    history(source)
    short, _ = open_over(source, Fault(action=Short(), method="read", after=True, path=".parquet", lasting=True))
    with pytest.raises(LakeMergeError):
        short.copy_to(tmp_path / "copy")
    assert not any(file.endswith(".parquet") for file in listing(tmp_path / "copy"))
    gone = next((source / "_lakemerge" / "log").rglob("*.parquet"))
    gone.unlink()
    with pytest.raises(TableDamagedError, match="lacks _lakemerge/log/"):
        LakeTable.open(source).copy_to(tmp_path / "copy")
    with pytest.raises(NotATableError):
        LakeTable.open(tmp_path / "copy")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, backup, restored = tmp_path / "t", tmp_path / "backup", tmp_path / "restored"
    history(source)
    assert main(["copy", str(source), str(backup), "--version", "3", "--quiet"]) == 0
    assert "version" in capsys.readouterr().out
    assert main(["copy", str(backup), str(restored), "--quiet"]) == 0
    assert state_of(restored) == versions(source)[3]
