"""An erasure that is killed: at each call to the store, and finished by the next one."""

from __future__ import annotations

import bz2
import gzip
import shutil
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, StoreError
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Call, Fault
from tests.grep import grep
from tests.unit.compaction.test_forget import HOUR, PERSON, age, as_records, forgotten, key, left_of, people, rows
from tests.unit.faults import open_over, rows_of


class Killed(BaseException):
    """Ends the call at once, as the end of its process would."""


@pytest.mark.long
@pytest.mark.parametrize("publish", ["off", "deletionVectors"])
def test_killed_at_each_call_it_is_finished_by_the_next(tmp_path: Path, publish: str) -> None:
    """Before and after each call that changes the folder, for a call that clears and for one that deletes the log."""
    original = tmp_path / "original"
    table = people(original, properties={"lakemerge.publish": publish})
    as_records(table)
    table.compact(minor=True)
    table.upsert(rows([PERSON], 8))
    expected = [row for row in rows_of(table.to_arrow()) if row[0] != PERSON]
    second = tmp_path / "second"
    shutil.copytree(original, second)
    LakeTable.open(second).forget(key())
    age(second)
    cases = 0
    for begin in (original, second):
        for after in (False, True):
            number = 0
            while True:
                number += 1
                path = tmp_path / "work"
                shutil.rmtree(path, ignore_errors=True)
                shutil.copytree(begin, path)
                opened, store = open_over(path, *_faults(number, after=after))
                try:
                    opened.forget(key())
                except Killed:
                    pass
                else:
                    break
                cases += 1
                left = [row for row in rows_of(LakeTable.open(path).to_arrow()) if row[0] != PERSON]
                assert left == expected, (begin.name, number, after, store.calls[-1])
                forgotten(path)
                assert left_of(path) == [], (begin.name, number, after, store.calls[-1])
                assert rows_of(LakeTable.open(path).to_arrow()) == expected
                assert LakeTable.check(path).ok
    assert cases > 30


CHANGES = ("put_if_absent", "put", "publish", "open_output", "delete", "delete_exact", "replace_exact", "clean_up")


def _faults(number: int, *, after: bool) -> list[Fault]:
    """Killed at the call with that number among those that change the folder."""
    seen = 0

    def counted(call: Call) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            raise Killed(call.method)

    return [Fault(action=counted, method=method, lasting=True, after=after) for method in CHANGES]


def test_who_may_not_see_half_written_files_is_never_told_that_all_is_done(tmp_path: Path) -> None:
    path = tmp_path / "t"
    as_records(people(path))

    def refused(call: Call) -> None:
        raise StoreError("not for you")

    LakeTable.open(path).forget(key())
    age(path)
    table, _ = open_over(path, Fault(action=refused, method="clean_up", lasting=True))
    told = table.forget(key())
    assert told.state == "found"
    assert ["half-written" in left.reason for left in told.left] == [True]
    assert LakeTable.open(path).forget(key()).state == "done"


def test_grep_finds_what_the_folder_holds(tmp_path: Path) -> None:
    """The judge of these tests, judged: each kind of file, and its name."""
    pq.write_table(pa.table({"x": [PERSON]}), tmp_path / "a.parquet", compression="zstd")
    pq.write_table(pa.table({"x": [[{"deep": PERSON}]]}), tmp_path / "b.parquet")
    (tmp_path / "c.json").write_text('{"x": "{\\"y\\": \\"' + PERSON.replace("@", "\\\\u0040") + '\\"}"}\n')
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(PERSON.encode()))
    (tmp_path / "e.bz2").write_bytes(bz2.compress(PERSON.encode()))
    (tmp_path / f"{PERSON}.txt").write_text("nothing")
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]}
    with (tmp_path / "f.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"x": PERSON}], codec="deflate")
    assert len(grep(tmp_path, PERSON)) == 7
    assert grep(tmp_path, "nobody") == []


def test_what_a_killed_writer_left_half_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "t"
    as_records(people(path))
    writer = LocalStore(path).open_output("base/left.parquet")
    sink = writer.__enter__()
    sink.write(PERSON.encode())
    sink.flush()
    table = LakeTable.open(path)
    assert {wait.path for wait in table.forget(key()).waits} == {"_delta_log", "."}
    age(path)
    told = table.forget(key())
    assert (told.state, [wait.path for wait in told.waits]) == ("waiting", ["."])
    assert told.until is not None
    assert len(grep(path, PERSON)) == 1, "no reader sees it"
    age(path, 24 * HOUR)
    assert table.forget(key()).state == "done"
    assert grep(path, PERSON) == []
