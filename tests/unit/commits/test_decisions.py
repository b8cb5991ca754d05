"""Decisions of one line in commits: each with the input that tells it from its opposite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable
from lakemerge.commits.consumers import known_consumer
from lakemerge.commits.footprint import _is_of, _may_meet
from lakemerge.commits.forget import commit_forget
from lakemerge.commits.past import read_commits
from lakemerge.commits.provenance import Along, DomainChangedError, DomainIs
from lakemerge.commits.restore import _files
from lakemerge.delta import AddFile, DomainMetadata, Metadata, Protocol, RemoveFile, Snapshot
from lakemerge.delta.snapshot import SnapshotBuilder
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from tests.unit.faults import create, frame


def block(low: int | None, high: int | None) -> LogBlock:
    file = LogFile("f", 1, ())
    bounds = ((low,) if low is not None else None, (high,) if high is not None else None)
    return LogBlock(file, 0, 1, BucketId((), 0), 1, 1, 1, *bounds)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ((1, 3), (4, 6), False),
        ((4, 6), (1, 3), False),
        ((1, 3), (3, 6), True),
        ((3, 6), (1, 3), True),
        ((1, 9), (4, 5), True),
        ((None, 3), (4, 6), False),
        ((4, 6), (None, 3), False),
        ((4, None), (1, 3), False),
        ((1, 3), (4, None), False),
        ((None, None), (1, 3), True),
        ((1, 3), (None, None), True),
        ((None, 3), (None, 6), True),
        ((4, None), (6, None), True),
    ],
)
def test_blocks_meet_as_far_as_their_bounds_say(
    one: tuple[int | None, int | None], other: tuple[int | None, int | None], meet: bool
) -> None:
    assert _may_meet(block(*one), block(*other)) is meet


def test_which_domains_hold_records_of_a_version(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(1, 1, "x")]))
    table.upsert(frame([(1, 2, "x")]))
    view = table.opened.view
    (log,) = [domain for name, domain in view.snapshot.domains.items() if name.startswith("lakemerge.log.")]
    assert [_is_of(log, version) for version in (1, 2, 3)] == [False, True, False]
    assert not _is_of(DomainMetadata(log.domain, log.configuration, True), 2)
    assert not _is_of(view.snapshot.domains["lakemerge.state"], 2)


def test_what_goes_along_is_valid_only_if_the_tip_is_as_required(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    tip = table.opened.view.snapshot
    state = tip.domains["lakemerge.state"].configuration
    note = DomainMetadata("custom.note", "1")
    assert Along((note,), (DomainIs("lakemerge.state", state), DomainIs("custom.note", None))).at(tip) == (note,)
    for requires in (
        DomainIs("lakemerge.state", None),
        DomainIs("lakemerge.state", "{}"),
        DomainIs("custom.note", "1"),
    ):
        with pytest.raises(DomainChangedError):
            Along((note,), (requires,)).at(tip)


def test_a_replacement_knows_when_the_table_was_vacuumed_and_nothing_else(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "x")]), txn=("mine", 3))
    table.maintain()
    before = table.opened.view.snapshot.txns
    assert set(before) == {"mine", "lakemerge.vacuum"}
    table = create(tmp_path / "t", replace=True)
    after = table.opened.view.snapshot.txns
    assert after == {"lakemerge.vacuum": before["lakemerge.vacuum"]}


def test_a_replacement_says_what_it_removed(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "x")]))
    (file,) = (path for path in (tmp_path / "t" / "base").rglob("*.parquet"))
    table = create(tmp_path / "t", replace=True)
    metrics = table.history(limit=1)[0].metrics
    assert {name: int(str(metrics[name])) for name in ("numRemovedFiles", "removedFilesSize")} == {
        "numRemovedFiles": 1,
        "removedFilesSize": file.stat().st_size,
    }


def test_a_restore_adds_what_is_not_there_as_it_was() -> None:
    def of(*files: AddFile) -> Snapshot:
        builder = SnapshotBuilder()
        builder.apply([Protocol(1, 2), Metadata("id", None, None, "{}", (), {}, None), *files])
        return builder.finish(1, 0, None)

    same, retagged, gone, new = (AddFile(name, {}, 1, 0, True, tags={"t": "1"}) for name in "abcd")
    tip = of(same, replace(retagged, tags={"t": "2"}), new)
    actions = list(_files(tip, of(same, retagged, gone), 7))
    assert [(type(action), action.path) for action in actions if isinstance(action, AddFile | RemoveFile)] == [
        (RemoveFile, "d"),
        (AddFile, "b"),
        (AddFile, "c"),
    ]
    assert [action.tags for action in actions if isinstance(action, AddFile)] == [{"t": "1"}] * 2


def test_the_consumers_that_there_are_are_told(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    with pytest.raises(InputError, match="no consumer 'x'; there are: none"):
        known_consumer(table.opened.view.snapshot, "x")
    table.consumers.register("y", version=0)
    with pytest.raises(InputError, match="no consumer 'x'; there are: y"):
        known_consumer(LakeTable.open(tmp_path / "t").opened.view.snapshot, "x")


@pytest.mark.parametrize(("hold", "message"), [(True, "has the hold 'kept'"), (False, "has the savepoints 'kept'")])
def test_what_was_to_be_kept_meanwhile_refuses_an_erasure(tmp_path: Path, hold: bool, message: str) -> None:
    """Its commit is made for the tip, whatever the caller saw."""
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(1, 1, "x")]))
    handle, begin = table.opened.handle, table.opened.view
    LakeTable.open(tmp_path / "t").savepoint("kept", hold=hold)
    with pytest.raises(InputError, match=message) as raised:
        commit_forget(handle, begin, keys=1, digest="d", fenced=True, drop_savepoints=False)
    assert raised.value.savepoints == ("kept",)
    there = LakeTable.open(tmp_path / "t")
    assert (there.version, [savepoint.name for savepoint in there.savepoints()]) == (2, ["kept"])


def test_what_an_overwrite_took_is_said_in_words(tmp_path: Path) -> None:
    table = create(
        tmp_path / "t",
        schema="p STRING, k BIGINT",
        key=["p", "k"],
        ordering=[],
        partition_by=["p"],
        properties={"lakemerge.maintenance": "off"},
    )
    rows = frame([(name, 1) for name in "abc"], ["p", "k"], p=pa.string())
    table.upsert(rows)
    for taken in (1, 2):
        table.overwrite(rows.slice(0, taken), partition_mode="dynamic")
    table.overwrite(rows)
    commits = read_commits(table.opened.handle, since=0, until=table.version)
    assert [commit.overwritten for commit in commits if commit.overwrites] == [
        "the rows of 1 partition",
        "the rows of 2 partitions",
        "all rows",
    ]
