"""``lakemerge.maxPendingCommits``: writers who outrun maintenance maintain first."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from lakemerge import InputError, LakeTable, SchemaError
from lakemerge._internal.pools import thread_pool
from lakemerge.format.schedule import max_pending
from lakemerge.ingest import Files
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, open_over, rows_of, state_of

LIMIT = "lakemerge.maxPendingCommits"
QUIET = {
    "lakemerge.maintenance": "off",
    "lakemerge.minorCompaction.afterCommits": "off",
    "lakemerge.compaction.ratio": "off",
}


def loaded(path: Path, limit: str | None = "3", **options: Any) -> LakeTable:
    properties = QUIET if limit is None else QUIET | {LIMIT: limit}
    table = create(path, properties=properties, **options)
    table.upsert(frame([(k, 0, "base") for k in range(100)]))
    return table


def pending(path: Path) -> int:
    return LakeTable.open(path).detail().log_commits


def operations(path: Path) -> list[str | None]:
    return [entry.operation for entry in reversed(LakeTable.open(path).history())]


def test_no_write_leaves_more_commits_pending_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    state = {k: (k, 0, "base") for k in range(100)}
    seen = []
    for number in range(1, 12):
        row = (number % 5, number, f"v{number}")
        table.upsert(frame([row]))
        state[row[0]] = row
        seen.append(pending(path))
    assert seen == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]
    assert operations(path).count("COMPACT") == 3
    assert "VACUUM" not in operations(path)
    assert state_of(path) == rows_of(frame(list(state.values())))
    assert not LakeTable.check(path).findings


def test_without_a_limit_nothing_happens_and_nothing_is_asked(tmp_path: Path) -> None:
    requests = {}
    for limit in (None, "off", "1000"):
        path = tmp_path / str(limit)
        loaded(path, limit)
        table, store = open_over(path)
        for number in range(1, 12):
            table.upsert(frame([(1, number, "x")]))
        assert pending(path) == 11
        requests[limit] = len(store.calls)
    assert requests[None] == requests["off"]
    assert requests["1000"] == requests["off"] + 11, "one look at the end of the log for each write"


def test_all_file_slices_are_merged_and_not_only_those_that_the_write_touches(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, properties=QUIET | {LIMIT: "2"}, buckets=4).upsert(frame([(k, 0, "base") for k in range(100)]))
    for number in range(1, 3):
        LakeTable.open(path).upsert(frame([(k, number, "all") for k in range(100)]))
    LakeTable.open(path).upsert(frame([(5, 9, "one")]))
    assert pending(path) == 1


def test_what_the_schedule_says_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path, "2").alter(properties={"lakemerge.compaction.ratio": "0"})
    for number in range(1, 4):
        LakeTable.open(path).upsert(frame([(1, number, "x")]))
    modes = [
        str(entry.parameters.get("mode")) for entry in LakeTable.open(path).history() if entry.operation == "COMPACT"
    ]
    assert modes == ["full"]


@pytest.mark.parametrize("door", ["delete", "update_where", "delete_where", "merge", "ingest", "replay"])
def test_every_door_has_it(tmp_path: Path, door: str) -> None:
    path = tmp_path / "t"
    table = loaded(path, "2")
    table.upsert(frame([(1, 1, "x")]))
    table.upsert(frame([(2, 1, "x")]))
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "a.json").write_text(json.dumps({"k": 7, "o": 7, "v": "file"}))
    if door == "replay":
        source = loaded(tmp_path / "source", None)
        source.replay(path)
        assert operations(path).count("COMPACT") >= 1
        return
    match door:
        case "delete":
            table.delete(frame([(3, 9)], ["k", "o"]))
        case "update_where":
            table.update_where("k = 3", {"v": "upper(v)"})
        case "delete_where":
            table.delete_where("k = 3")
        case "merge":
            merge = table.merge(frame([(3, 9, "m")]), "target.k = source.k")
            merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        case "ingest":
            table.ingest("job", Files(landing, format="json")).run()
    assert operations(path).count("COMPACT") == 1
    assert pending(path) == 1


def test_an_overwrite_does_not_compact_what_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path, "1")
    table.upsert(frame([(1, 1, "x")]))
    table.overwrite(frame([(5, 5, "all")]))
    assert "COMPACT" not in operations(path)
    assert state_of(path) == [(5, 5, "all")]


def test_an_explanation_compacts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path, "1")
    table.upsert(frame([(1, 1, "x")]))
    version = table.version
    table.delete_where("k = 3", explain=True)
    assert LakeTable.open(path).version == version


def test_two_writers_at_once_compact_and_both_land(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    for number in range(1, 4):
        table.upsert(frame([(number, number, "x")]))

    def overtake(call: Call) -> None:
        LakeTable.open(path).upsert(frame([(50, 99, "other")]))

    mine, _ = open_over(path, Fault(action=overtake, method="open_output", path="_lakemerge/merged/"))
    mine.upsert(frame([(60, 99, "mine")]))
    assert operations(path).count("COMPACT") == 1, "the second to commit deletes its files"
    assert {(50, 99, "other"), (60, 99, "mine")} <= set(state_of(path))
    assert pending(path) == 2, "the limit, and one more for each writer beside"
    assert not LakeTable.check(path).findings


def test_many_writers_at_once_stay_at_the_limit_and_two_more_for_each(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    writers, times = 3, 8

    def work(number: int) -> list[int]:
        table, found = LakeTable.open(path), []
        for turn in range(times):
            table.upsert(frame([(1000 * number + turn, 1, "w")]))
            found.append(pending(path))
        return found

    with thread_pool(writers) as pool:
        most = [count for found in pool.map(work, range(1, writers + 1)) for count in found]
    # A writer counts again, after its own maintenance, what others landed during it, and each may land one more.
    assert max(most) <= 3 - 1 + 2 * writers
    assert len(state_of(path)) == 100 + writers * times


def test_a_failing_maintenance_lets_the_write_go_on_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    for number in range(1, 4):
        table.upsert(frame([(number, number, "x")]))

    def full(call: Call) -> None:
        raise OSError("no room")

    mine, store = open_over(path, Fault(action=full, method="open_output", path="_lakemerge/merged/"))
    with caplog.at_level(logging.WARNING):
        mine.upsert(frame([(60, 60, "landed")]))
    assert "maintenance of" in caplog.text
    assert "before a write failed, and the write goes on" in caplog.text
    assert (60, 60, "landed") in state_of(path)
    for number in range(61, 63):
        mine.upsert(frame([(number, number, "landed")]))
    assert store.injected["open_output"] == 1, "no write after it pays for the same failure at once"
    assert pending(path) == 6
    for number in range(63, 66):
        mine.upsert(frame([(number, number, "landed")]))
    assert pending(path) <= 4, "as many commits came as the limit says, and it was tried again"


def test_a_key_that_cannot_be_merged_does_not_keep_its_correction_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t"
    table = LakeTable.create(
        path,
        "k BIGINT, n BIGINT",
        key=["k"],
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        buckets=1,
        properties=QUIET | {LIMIT: "2"},
    )
    table.upsert(frame([(1, 2**62)], ["k", "n"], n=frame([(1, 1, "")]).schema.field("o").type))
    kinds = {"n": frame([(1, 1, "")]).schema.field("o").type}
    for _ in range(2):
        table.upsert(frame([(1, 2**62)], ["k", "n"], **kinds))
    with caplog.at_level(logging.WARNING):
        table.upsert(frame([(1, -(2**62))], ["k", "n"], **kinds))
    assert "are pending after maintenance, and the limit is 2: the write goes on" in caplog.text
    LakeTable.open(path).upsert(frame([(1, -(2**62))], ["k", "n"], **kinds))
    assert state_of(path) == [(1, 2**62)]
    LakeTable.open(path).upsert(frame([(2, 1)], ["k", "n"], **kinds))
    assert pending(path) == 1


def test_an_interrupt_comes_out_before_anything_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = loaded(path, "1")
    table.upsert(frame([(1, 1, "x")]))
    version = table.version

    def interrupted(*args: object, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("compaction.pressure.maintain_open", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        table.upsert(frame([(2, 2, "y")]))
    assert "nothing was committed" in raised.value.__notes__[0]
    assert LakeTable.open(path).version == version


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", ""])
def test_wrong_values_are_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(SchemaError, match=r"'lakemerge\.maxPendingCommits' is an integer from 1 on or 'off'"):
        create(tmp_path / "t", properties={LIMIT: value})
    table = create(tmp_path / "u")
    with pytest.raises(InputError, match=r"maxPendingCommits"):
        table.alter(properties={LIMIT: value})
    assert table.version == 0


def test_the_value() -> None:
    assert [max_pending({}), max_pending({LIMIT: "off"}), max_pending({LIMIT: "7"})] == [None, None, 7]
