"""``lakemerge.maintenance = auto`` on real tables: what happens after writes, and what does not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lakemerge import InputError, LakeTable, SchemaError
from lakemerge.format.schedule import Auto, Schedule
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, open_over, rows_of, state_of

AUTO = {"lakemerge.maintenance": "auto"}


def loaded(path: Path, **properties: str) -> LakeTable:
    table = create(path, properties=AUTO | properties)
    table.upsert(frame([(k, 0, "base") for k in range(1000)]))
    return table


def operations(path: Path) -> list[str | None]:
    return [entry.operation for entry in reversed(LakeTable.open(path).history())]


def write(path: Path, times: int) -> None:
    for _ in range(times):
        table = LakeTable.open(path)
        table.upsert(frame([(table.version % 7, table.version, "new")]))


def test_short_jobs_are_followed_by_a_compaction_when_reads_have_paid_for_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    write(path, 7)
    assert "COMPACT" not in operations(path)
    before = state_of(path)
    write(path, 1)
    assert operations(path).count("COMPACT") == 1
    assert LakeTable.open(path).detail().log_commits == 0
    (why,) = {str(e.parameters["why"]) for e in LakeTable.open(path).history() if e.operation == "COMPACT"}
    assert "auto: it takes" in why
    assert len(state_of(path)) == len(before)


@pytest.mark.long
def test_every_answer_is_right_over_many_commits(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    state = {k: (k, 0, "base") for k in range(1000)}
    for number in range(1, 60):
        table = LakeTable.open(path)
        rows = [(number * 31 % 1000, number, f"v{number}"), (1000 + number, number, "added")]
        table.upsert(frame(rows))
        state |= {row[0]: row for row in rows}
        if number % 5 == 0:
            table.delete(frame([(number, 10**6)], ["k", "o"]))
            state.pop(number, None)
        assert state_of(path) == rows_of(frame(list(state.values())))
    assert operations(path).count("COMPACT") >= 5
    assert "VACUUM" not in operations(path)
    assert not LakeTable.check(path).findings


@pytest.mark.parametrize(
    "properties",
    [
        {"lakemerge.maintenance": "off"},
        {"lakemerge.maintenance.readsPerWrite": "0"},
        {"lakemerge.compaction.ratio": "off", "lakemerge.minorCompaction.afterCommits": "1000"},
    ],
    ids=["off", "nobody reads", "thresholds of its own"],
)
def test_nothing_happens(tmp_path: Path, properties: dict[str, str]) -> None:
    path = tmp_path / "t"
    create(path, properties=AUTO | properties).upsert(frame([(k, 0, "base") for k in range(100)]))
    write(path, 20)
    assert "COMPACT" not in operations(path)


def test_properties() -> None:
    assert Schedule.of({}).auto is None
    assert Schedule.of(AUTO).auto == Auto(reads_per_write=1, learns=True, logs_after_commits=100)
    told = {"lakemerge.maintenance.readsPerWrite": "1"}
    assert Schedule.of(AUTO | told).auto == Auto(reads_per_write=1, logs_after_commits=100)
    assert Schedule.of(AUTO | {"lakemerge.maintenance.inline": "true"}).auto is None
    own = {"lakemerge.compaction.ratio": "0.5", "lakemerge.logCompaction.afterCommits": "7"}
    assert Schedule.of(AUTO | own).auto == Auto(reads_per_write=1, learns=True, full=False)
    assert Schedule.of(AUTO | {"lakemerge.minorCompaction.ratio": "1"}).auto == Auto(
        reads_per_write=1, learns=True, minor=False, logs_after_commits=100
    )


def test_writers_learn_from_the_reads_of_their_process(tmp_path: Path) -> None:
    """The number after each write is a mean, which takes an eighth of its new value from the reads since the last."""
    path = tmp_path / "t"
    loaded(path)
    table = LakeTable.open(path)
    table.upsert(frame([(1, 1, "nothing was read")]))
    assert "for 1 read per write" in str(table.detail().maintenance)
    expected = 1.0
    for number, reads in enumerate((3, 0, 8, 1, 1), start=2):
        for _ in range(reads):
            table.to_arrow()
        table.upsert(frame([(number, number, "x")]))
        expected += (reads - expected) / 8
        assert f"for {round(expected, 2):g} reads per write" in str(table.detail().maintenance)
    for _ in range(200):
        table.upsert(frame([(1, 2, "only written")]))
    assert "for 0 reads per write" in str(LakeTable.open(path).detail().maintenance)
    table.alter(properties={"lakemerge.maintenance.readsPerWrite": "10"})
    assert "for 10 reads per write" in str(table.detail().maintenance), "the property takes precedence"


def test_a_look_up_is_a_part_of_a_read(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path, properties=AUTO, buckets=4).upsert(frame([(k, 0, "base") for k in range(1000)]))
    table = LakeTable.open(path)
    for _ in range(4):
        table.to_arrow(filter="k = 5")
    table.upsert(frame([(1, 1, "x")]))
    assert "for 1 read per write" in str(table.detail().maintenance), "four look-ups in one of four buckets"


def test_a_table_that_is_read_often_is_compacted_sooner(tmp_path: Path) -> None:
    for name in ("read", "written"):
        loaded(tmp_path / name)
        table = LakeTable.open(tmp_path / name)
        for number in range(1, 24):
            table.upsert(frame([(number, number, "x")]))
            if name == "read":
                for _ in range(5):
                    table.to_arrow()
    assert operations(tmp_path / "read").count("COMPACT") > operations(tmp_path / "written").count("COMPACT")


def test_wrong_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="'auto' or 'off', not 'on'"):
        create(tmp_path / "t", properties={"lakemerge.maintenance": "on"})
    with pytest.raises(InputError, match="readsPerWrite"):
        create(tmp_path / "u").alter(properties={"lakemerge.maintenance.readsPerWrite": "-1"})


def test_a_failure_is_logged_and_the_write_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    loaded(path)
    write(path, 7)

    def full(call: Call) -> None:
        raise OSError("no room")

    table, _ = open_over(path, Fault(action=full, method="open_output", path="_lakemerge/merged/"))
    with caplog.at_level(logging.WARNING):
        result = table.upsert(frame([(5, 99, "landed")]))
    assert "maintenance of" in caplog.text
    assert (5, 99, "landed") in state_of(path)
    assert LakeTable.open(path).version >= result.version
    write(path, 8)
    assert "COMPACT" in operations(path), "it is due still"


def test_an_interrupt_says_that_the_write_landed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = loaded(path)

    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("compaction.automatic.after_write", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        table.upsert(frame([(5, 99, "landed")]))
    assert "the write before it has landed, as version 2" in raised.value.__notes__[0]
    assert (5, 99, "landed") in state_of(path)


def test_of_two_at_once_one_is_lost_and_the_rows_are_right(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    write(path, 7)

    def overtake(call: Call) -> None:
        LakeTable.open(path).compact(minor=True)

    table, _ = open_over(path, Fault(action=overtake, method="open_output", path="_lakemerge/merged/"))
    table.upsert(frame([(5, 99, "landed")]))
    assert operations(path).count("COMPACT") == 1
    assert (5, 99, "landed") in state_of(path)
    assert not LakeTable.check(path).findings


def test_detail_and_report_tell_what_would_be_decided(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = loaded(path)
    write(path, 5)
    told = table.detail().maintenance
    assert told.startswith("auto, for 1 read per write: ")
    assert "reads have paid" in told
    table.alter(properties={"lakemerge.maintenance": "off"})
    assert table.detail().maintenance == "off: maintain() does what is due"
    table.alter(properties={"lakemerge.maintenance.inline": "true"})
    assert table.detail().maintenance.startswith("inline: ")


def test_deletes_of_rows_by_a_condition_count_too(tmp_path: Path) -> None:
    path = tmp_path / "t"
    loaded(path)
    write(path, 7)
    LakeTable.open(path).delete_where("k = 999")
    assert "COMPACT" in operations(path)
    assert len(state_of(path)) == 999


def test_a_new_table_has_it_as_long_as_the_property_is_set(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    assert Schedule.of(table.opened.view.snapshot.metadata.configuration).auto == Auto(
        reads_per_write=1, learns=True, logs_after_commits=100
    )
    table.alter(properties={"lakemerge.maintenance": None})
    assert Schedule.of(table.opened.view.snapshot.metadata.configuration).auto is None
    table.upsert(frame([(k, 0, "base") for k in range(100)]))
    write(tmp_path / "t", 20)
    assert "COMPACT" not in operations(tmp_path / "t")
