"""The soak runs, counts what it did, and sees what it looks for when it is there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.storage import Put
from lakemerge.testing.faults import Answer, Fault
from tests.property import world
from tests.property.batches import batch_of
from tests.property.damage import EVERYBODY
from tests.property.world import Step, Weather, Work
from tests.soak import parts
from tests.soak.__main__ import main
from tests.soak.crowd import Crowd
from tests.soak.damage import fuzz
from tests.soak.doors import DOORS, Doors, rows_after
from tests.soak.intake import Intake, text_of
from tests.soak.parts import Part, Tally


@pytest.mark.serial
def test_a_short_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(parts, "HISTORIES", 2)
    monkeypatch.setattr(parts, "INPUTS", 5)
    few = [
        "--faults",
        "10",
        "--kills",
        "3",
        "--records",
        "2000",
        "--inputs",
        "10",
        "--ingest-faults",
        "0",
        "--door-faults",
        "0",
        "--door-kills",
        "0",
        "--door-records",
        "0",
        "--seed",
        "7",
    ]
    assert main([*few, "--path", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "seeds: 7"
    figures = dict(figure.split(" ")[:2] for figure in told[-1].split(" s  ")[1].split(", "))
    done = {name: int(figure.replace(",", "")) for name, figure in figures.items()}
    assert done.pop("losses") == 0
    wanted = {"faults": 10, "kills": 3, "records": 2000, "inputs": 10, "commit_faults": 1, "rows_compared": 1}
    assert all(done[name] >= figure for name, figure in wanted.items()), told[-1]
    assert not [*tmp_path.iterdir()]


@pytest.mark.serial
def test_a_short_soak_of_ingest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally({"ingest_faults": 4})
    Part(tally, seed=7, folder=tmp_path, jobs=1, deadline=float("inf")).intake()
    assert not tally.failures
    assert tally.done["ingest_faults"] >= 4
    assert tally.done["ingest_records"] > 0


@pytest.mark.long
@pytest.mark.serial
def test_a_short_soak_of_every_door(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally({"door_faults": 2, "door_kills": 4, "door_records": 4000})
    Part(tally, seed=7, folder=tmp_path, jobs=1, deadline=float("inf")).doors()
    assert not tally.failures, tally.failures
    assert {name: tally.done[name] >= wanted for name, wanted in tally.wanted.items()} == dict.fromkeys(
        tally.wanted, True
    )
    tally.tell_doors()
    told = capsys.readouterr().out
    for door in (*DOORS, "publish", "copy"):
        assert tally.by_door[door]["records"] > 0, door
        assert f" {door}: records {tally.by_door[door]['records']:,}, kills " in told


def test_a_record_that_is_lost_or_doubled_at_a_door_is_found(tmp_path: Path) -> None:
    doors = Doors(tmp_path, seed=7, size=4)
    table = LakeTable.open(tmp_path / "table")
    for number in range(3):
        rows = {f"upsert 0.{number} {line}": f"{number}" for line in range(4)}
        table.upsert(pa.table({"k": list(rows), "v": list(rows.values())}), txn=("upsert 0", number))
    doors.verify()
    assert doors.by_door["upsert"]["records"] == 12
    table.delete(pa.table({"k": ["upsert 0.1 2"]}))
    with pytest.raises(AssertionError, match=r"1 rows lost, such as .*upsert 0\.1 2"):
        doors.verify()
    table.upsert(pa.table({"k": ["upsert 0.1 2", "nobody"], "v": ["1", "1"]}))
    with pytest.raises(AssertionError, match=r"1 rows that nobody wrote, such as .*nobody"):
        doors.verify()
    table.delete(pa.table({"k": ["nobody"]}))
    doors.verify()
    table.upsert(pa.table({"k": [], "v": []}, schema=table.schema), txn=("upsert 0", 7))
    with pytest.raises(AssertionError, match=r"upsert 0 has the numbers \[0, 1, 2, 7\]"):
        doors.verify()


def test_the_model_of_doors() -> None:
    assert rows_after("delete", 0, 2, 2) == {"delete 0.0 1": "0"}
    assert rows_after("update", 0, 3, 1) == {"update 0.0 0": "updated", "update 0.2 0": "2"}
    assert rows_after("merge", 1, 2, 1) == {"merge 1.0 0": "merged", "merge 1.1 0": "1"}
    assert rows_after("stream", 0, 1, 1) == {"stream 0.0 0": "0"}


def test_a_record_that_is_ingested_twice_or_never_is_found(tmp_path: Path) -> None:
    intake = Intake(tmp_path, seed=7)
    table = LakeTable.open(tmp_path / "table")
    for number in range(2):
        name = f"0-0-{number}.json"
        (tmp_path / "landing" / name).write_text(text_of(name, intake.size))
    (tmp_path / "desk" / "landed").write_text("0-0-0.json\n")
    intake.verify()  # the second one landed with nobody left to tell
    twice = pa.table({"id": ["own 0-0-0.json 5"], "n": [1]})
    table.upsert(twice)
    with pytest.raises(AssertionError, match=r"1 rows lost, such as .*own 0-0-0.json 5', 1"):
        intake.verify()
    (tmp_path / "desk" / "landed").write_text("0-0-0.json\n0-0-7.json\n")
    with pytest.raises(AssertionError, match=r"landed, and not in the ledger: \['0-0-7.json'\]"):
        intake.verify()


def test_a_failure_ends_a_soak_and_names_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(part: Part) -> None:
        part.tally.failures.append(f"storms, task 1 of seed {part.seed}")

    monkeypatch.setattr(Part, "storms", fail)
    assert main(["--seed", "7", "--path", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "losses 1" in told.out
    assert "make soak ARGS='--seed 7'" in told.err


def test_time_ends_a_soak(tmp_path: Path) -> None:
    tally = Tally({"inputs": 10**9})
    Part(tally, seed=7, folder=tmp_path, jobs=1, deadline=0.0).damage()
    assert not tally.done


def test_a_commit_that_a_store_forgets_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful() -> tuple[Fault, ...]:
        return (Fault(action=lambda _: Answer(lambda _: Put.CREATED), method="put_if_absent"),)

    monkeypatch.setattr(world, "store_faults", forgetful)
    weather = Weather(seed=7, method=None, rate=1.0, skew_hours=0, tries=1)
    step = Step(Work("write", ((1, 1, "+U"),)), None, 1, after=False, weather=weather)
    with pytest.raises(AssertionError, match=r"1 is 0 times in the log"):
        world.play(tmp_path / "t", [step])


def test_a_record_that_is_gone_is_a_loss(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, seed=7, size=5)
    table = LakeTable.open(tmp_path / "table")
    table.upsert(batch_of(0, 0, size=5), info={"batch": "0.0"})
    crowd.verify()
    (tmp_path / "desk" / "acknowledged-0").write_text("0.0\n")
    crowd.verify()
    (tmp_path / "desk" / "acknowledged-0").write_text("0.0\n0.1\n")
    with pytest.raises(AssertionError, match=r"writer 0: 2, \[0\]"):
        crowd.verify()
    (tmp_path / "desk" / "acknowledged-0").write_text("0.0\n")
    table.delete(batch_of(0, 0, size=5).slice(3, 1).select(["k"]))
    with pytest.raises(AssertionError, match=r"1 rows lost, such as .*own 0\.0 3"):
        crowd.verify()
    table.upsert(batch_of(0, 0, size=5), info={"batch": "0.0"})
    with pytest.raises(AssertionError, match="committed more than once"):
        crowd.verify()


def test_an_outcome_that_nobody_expects_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprised(path: Path) -> None:
        raise KeyError("surprise")

    monkeypatch.setitem(EVERYBODY, "rows", surprised)
    with pytest.raises(AssertionError, match="input 0: "):
        fuzz(tmp_path, 7, 3)
