"""Erasing keys: what goes, what is refused, what waits, and that nothing of the folder holds a key afterwards."""

from __future__ import annotations

import datetime as dt
import decimal
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import (
    CommitConflictError,
    FrameError,
    InputError,
    LakeTable,
    Settings,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.testing.faults import Call, Fault
from tests.grep import grep
from tests.unit.faults import UNKNOWN, Row, commit_domains, open_over, rows_of

PERSON = "ann@example.org"
NAME = "Ann Zzyzx"
OTHERS = [f"p{number:02}@example.org" for number in range(20)]
TINY = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, threads=1)
HOUR = 3_600


def people(path: Path, *, settings: Settings | None = None, **options: Any) -> LakeTable:
    arguments: dict[str, Any] = {"key": ["email"], "ordering": ["o"], "buckets": 2, **options}
    schema = arguments.pop("schema", "email STRING, o BIGINT, name STRING")
    return LakeTable.create(path, schema, settings=settings, **arguments)


def rows(emails: Sequence[str], o: int, name: str = "somebody") -> pa.Table:
    return pa.table({"email": list(emails), "o": pa.array([o] * len(emails), pa.int64()), "name": [name] * len(emails)})


def everybody(o: int = 1) -> pa.Table:
    return pa.concat_tables([rows(OTHERS, o), rows([PERSON], o, NAME)])


def key(*emails: str) -> pa.Table:
    return pa.table({"email": list(emails or (PERSON,))})


def age(path: Path, seconds: int = 2 * HOUR) -> None:
    """Make all files older, as if so much time had passed."""
    for file in path.rglob("*"):
        if file.is_file():
            stat = file.stat()
            os.utime(file, (stat.st_atime - seconds, stat.st_mtime - seconds))


def forgotten(path: Path, *emails: str, **options: Any) -> LakeTable:
    """The table after all calls that it takes, with two hours between them."""
    for _ in range(4):
        table = LakeTable.open(path)
        result = table.forget(key(*emails), **options)
        if result.state == "done":
            return table
        assert result.state == "waiting", str(result)
        age(path)
    raise AssertionError(str(result))


def test_what_a_newer_library_keeps_is_not_guessed_at(tmp_path: Path) -> None:
    table = people(tmp_path)
    table.upsert(everybody())
    last = commit_domains(tmp_path, UNKNOWN)
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge\.newer\.thing'.*install a newer lakemerge"):
        LakeTable.open(tmp_path).forget(key())
    assert LakeTable.open(tmp_path).version == last, "nothing was committed"


def test_what_a_newer_library_keeps_may_come_at_the_last_moment(tmp_path: Path) -> None:
    """Nothing has the keys, so the first commit is that of the erasure itself."""
    people(tmp_path).upsert(rows(OTHERS, 1))
    table, _ = open_over(tmp_path, Fault(action=lambda call: commit_domains(tmp_path, UNKNOWN), method="put_if_absent"))
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge\.newer\.thing'"):
        table.forget(key())
    view = LakeTable.open(tmp_path).opened.view
    assert (UNKNOWN.domain in view.snapshot.domains, view.state.oldest_version) == (True, 0)


def left_of(path: Path) -> list[str]:
    return [*grep(path, PERSON), *grep(path, NAME)]


# Each history leaves the person somewhere else.


def as_a_row(table: LakeTable) -> None:
    table.upsert(everybody())
    table.compact()


def as_records(table: LakeTable) -> None:
    table.upsert(rows(OTHERS, 1))
    table.upsert(pa.concat_tables([rows([PERSON], 2, NAME), rows(OTHERS[:3], 2)]))
    table.upsert(rows([PERSON], 3, NAME))


def as_a_winner(table: LakeTable) -> None:
    table.upsert(everybody())
    table.upsert(rows([PERSON], 2, NAME))
    table.compact(minor=True)


def as_a_superseded_row(table: LakeTable) -> None:
    table.upsert(everybody())
    table.delete(rows([PERSON], 2).select(["email", "o"]))
    table.compact(minor=True)


def as_a_delete(table: LakeTable) -> None:
    table.upsert(everybody())
    table.delete(rows([PERSON], 2).select(["email", "o"]))
    table.compact()


def as_a_delete_in_an_empty_file(table: LakeTable) -> None:
    table.upsert(pa.concat_tables([rows([PERSON], 1, NAME), rows(OTHERS[:1], 1)]))
    table.delete(rows([PERSON, OTHERS[0]], 2).select(["email", "o"]))
    table.compact()
    table.upsert(rows(OTHERS, 3))


def as_a_condition(table: LakeTable) -> None:
    table.upsert(everybody())
    table.delete_where(f"email = '{PERSON}' OR name = '{NAME}'")
    table.compact()
    table.expire_tombstones(retention=dt.timedelta(0))
    table.compact()


def in_packed_logs(table: LakeTable) -> None:
    table.upsert(rows(OTHERS, 1))
    for o in range(2, 6):
        table.upsert(pa.concat_tables([rows([PERSON], o, NAME), rows(OTHERS[o : o + 1], o)]))
    table.compact_logs()


def in_a_checkpoint(table: LakeTable) -> None:
    as_records(table)
    table.opened.handle.log.checkpoint(table.opened.view.snapshot)
    table.upsert(rows([PERSON], 9, NAME))


HISTORIES: dict[str, Callable[[LakeTable], None]] = {
    name: made
    for name, made in globals().items()
    if name.startswith(("as_", "in_")) and callable(made) and getattr(made, "__module__", "") == __name__
}


@pytest.mark.parametrize("publish", ["off", "deletionVectors"])
@pytest.mark.parametrize("history", HISTORIES)
def test_nothing_of_the_folder_holds_the_key(tmp_path: Path, history: str, publish: str) -> None:
    path = tmp_path / "t"
    table = people(path, properties={"lakemerge.publish": publish})
    HISTORIES[history](table)
    expected = [row for row in rows_of(table.to_arrow()) if row[0] != PERSON]
    assert left_of(path), "the test has something to find"
    first = table.forget(key())
    assert first.state == "waiting"
    assert rows_of(table.to_arrow()) == expected
    assert {name.partition("/")[0] for name in left_of(path)} == {"_delta_log"}, "only the log is too young"
    table = forgotten(path)
    assert left_of(path) == []
    assert rows_of(table.to_arrow()) == expected
    assert LakeTable.check(path).ok
    table.upsert(rows([OTHERS[0]], 50, "later"))
    assert table.get({"email": OTHERS[0]}) == {"email": OTHERS[0], "o": 50, "name": "later"}


@pytest.mark.parametrize("publish", ["off", "deletionVectors"])
def test_boundaries_move_off_the_key(tmp_path: Path, publish: str) -> None:
    """Each row is a boundary in turn, and each is gone from the tags."""
    path = tmp_path / "t"
    table = people(path, settings=TINY, buckets=1, properties={"lakemerge.publish": publish})
    table.upsert(rows(OTHERS, 1))
    table.compact()
    lowers = [base.lower[0] for base in table.opened.view.base_files if base.lower is not None]
    assert len(lowers) > 5
    gone = [str(lower) for lower in lowers[1:4]]
    table.delete(rows(gone[:1], 9).select(["email", "o"]))
    table.compact()
    forgotten(path, *gone)
    assert [grep(path, each) for each in gone] == [[], [], []]
    assert [row[0] for row in rows_of(LakeTable.open(path).to_arrow())] == sorted({*OTHERS} - {*gone})
    assert LakeTable.check(path).ok


def test_what_the_call_says_and_what_the_log_says(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    before = table.version
    result = table.forget(key(PERSON, "nobody@example.org"), salt="pepper")
    assert (result.state, result.keys, result.rows) == ("waiting", 2, 1)
    assert result.oldest_version > before
    assert [wait.path for wait in result.waits] == ["_delta_log"]
    assert result.until is not None
    assert dt.timedelta(minutes=50) < result.until - dt.datetime.now(dt.UTC) <= dt.timedelta(minutes=61)
    told = str(result) + repr(result) + str(result.report())
    assert PERSON not in told
    assert "pepper" not in told
    again = table.forget(key("nobody@example.org", PERSON), salt="pepper")
    assert again.digest == result.digest, "whoever has the salt finds the digest again"
    assert again.version == result.version, "there was nothing to commit"
    assert table.forget(key(PERSON), salt="pepper").digest != result.digest
    assert table.forget(key(PERSON)).salt != table.forget(key(PERSON)).salt
    newest = next(entry for entry in table.history() if entry.operation == "FORGET")
    assert newest.parameters == {"keys": "2", "digest": f'"{result.digest}"'} or newest.parameters == {
        "keys": "2",
        "digest": result.digest,
    }
    assert grep(path, "pepper") == []
    assert {part.path: part.files for part in result.searched}["base"] == len(list(path.glob("base/*/*.parquet")))
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(path, version=before)


def test_what_needs_earlier_versions_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    table.savepoint("saved")
    table.consumers.register("billing", version=0)
    table.alter(properties={"lakemerge.recordRetention": "interval 30 days"})
    version = table.version
    with pytest.raises(InputError) as told:
        table.forget(key())
    assert str(told.value).count(";") == 2, "a list of three"
    assert PERSON not in str(told.value.facts)
    for part in ("savepoint 'saved'", "consumer 'billing'", "lakemerge.recordRetention", "drop_history=True"):
        assert part in str(told.value)
    assert PERSON not in str(told.value)
    assert table.version == version, "nothing was committed"
    assert table.get({"email": PERSON}) is not None
    assert table.forget(key(), drop_history=True).state == "waiting"
    assert table.savepoints() == []
    forgotten(path, drop_history=True)
    assert left_of(path) == []
    assert LakeTable.open(path).forget(key()).state == "done", "nothing needs history any more"


def test_a_hold_is_never_given_up(tmp_path: Path) -> None:
    table = people(tmp_path / "t")
    as_a_row(table)
    table.savepoint("case", hold=True)
    for drop_history in (False, True):
        with pytest.raises(InputError, match="hold 'case'"):
            table.forget(key(), drop_history=drop_history)
    table.drop_savepoint("case", hold=True)
    assert table.forget(key()).rows == 1


def test_consumers_read_the_deletes_first(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    table.consumers.register("billing")
    first = table.forget(key())
    assert (first.state, first.rows) == ("waiting", 1)
    assert next(wait.path for wait in first.waits) == "consumer 'billing'"
    assert table.get({"email": PERSON}) is None
    seen: list[Row] = []
    for batch in table.follow("billing", until=table.version, poll=None):
        seen += rows_of(batch.select(["email", "name", "_row_kind"]))
    assert seen == [(PERSON, NAME, "-D")]
    second = table.forget(key())
    assert [wait.path for wait in second.waits] == ["_delta_log"]
    assert second.rows == 0
    age(path)
    assert table.forget(key()).state == "done"
    assert left_of(path) == []


def test_a_key_that_comes_again_is_erased_again(tmp_path: Path) -> None:
    """A clear remembers nothing, so a late record brings the key back, and so does forgetting only its row."""
    path = tmp_path / "t"
    table = people(path)
    as_a_delete(table)
    forgotten(path)
    table = LakeTable.open(path)
    table.upsert(rows([PERSON], 1, NAME))
    assert table.get({"email": PERSON}) == {"email": PERSON, "o": 1, "name": NAME}
    again = table.forget(key())
    assert (again.state, again.rows) == ("waiting", 1)
    forgotten(path)
    assert left_of(path) == []


def test_a_record_that_lands_meanwhile_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t"
    as_a_row(people(path))

    def late(call: Call) -> None:
        LakeTable.open(path).upsert(rows([PERSON], 77, NAME))

    for at in (2, 3, 4):
        table, _ = open_over(path, Fault(action=late, at=at, method="put_if_absent", path="_delta_log/"))
        result = table.forget(key())
        assert result.state == "waiting"
        assert table.get({"email": PERSON}) is None
        assert {name.partition("/")[0] for name in left_of(path)} <= {"_delta_log"}
    forgotten(path)
    assert left_of(path) == []


def test_a_write_that_began_before_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    as_a_row(people(path))

    def erased(call: Call) -> None:
        LakeTable.open(path).forget(key())

    table, _ = open_over(path, Fault(action=erased, method="put_if_absent", path="_delta_log/"))
    with pytest.raises(CommitConflictError):
        table.upsert(rows([PERSON], 5, NAME))
    assert {name.partition("/")[0] for name in left_of(path)} == {"_delta_log"}


def test_what_are_no_keys(tmp_path: Path) -> None:
    table = people(tmp_path / "t")
    as_a_row(table)
    version = table.version
    with pytest.raises(FrameError):
        table.forget(pa.table({"name": ["x"]}))
    with pytest.raises(InputError, match="at most 1,000 keys"):
        table.forget(pa.table({"email": [str(number) for number in range(1001)]}))
    assert table.forget([]).state == "done"
    assert table.version == version


def test_other_traces_are_found_and_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    (path / "note.txt").write_text(f"do not lose {PERSON}")
    (path / "copy.parquet").parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"anything": [PERSON]}), path / "copy.parquet")
    table.forget(key())
    age(path)
    result = table.forget(key())
    assert result.state == "found"
    assert sorted(left.path for left in result.left) == ["copy.parquet", "note.txt"]
    (path / f"{PERSON}.txt").write_text("")
    named = table.forget(key())
    assert "./(a name with a key)".removeprefix(".") in {left.path for left in named.left} or any(
        "(a name with a key)" in left.path for left in named.left
    )
    assert PERSON not in str(named)
    for file in ("note.txt", "copy.parquet", f"{PERSON}.txt"):
        (path / file).unlink()
    assert table.forget(key()).state == "done"


def test_a_condition_after_it_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    forgotten(path)
    LakeTable.open(path).delete_where(f"email = '{PERSON}'")
    assert grep(path, PERSON)
    forgotten(path)
    assert grep(path, PERSON) == []


def test_names_of_the_table_are_found_and_told(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    table.alter(description=f"all people but {PERSON}")
    table.forget(key())
    age(path)
    told = table.forget(key())
    assert told.state == "found"
    assert all("change it" in left.reason for left in told.left)
    table.alter(description="all people")
    forgotten(path)
    assert left_of(path) == []


@pytest.mark.parametrize(
    ("merger", "options", "without"),
    [
        ("expression", {"columns": {"name": f"if(new.email = '{PERSON}', old.name, new.name)"}}, {"default": "last"}),
        ("expression", {"remove_when": f"new.name = '{PERSON}'"}, {}),
        ("partial-update", {"unset": "default", "defaults": {"name": PERSON}}, {}),
    ],
)
def test_options_of_the_merger_are_found_and_told(
    merger: str, options: dict[str, object], without: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "t"
    people(path, merger=merger, options=options).upsert(everybody())
    LakeTable.open(path).forget(key())
    age(path)
    told = LakeTable.open(path).forget(key())
    assert told.state == "found"
    assert all("an option of its merger, has a key" in left.reason for left in told.left)
    LakeTable.open(path).alter(merger=merger, options=without)
    forgotten(path)
    assert grep(path, PERSON) == []


def test_a_column_that_an_option_names_is_no_key(tmp_path: Path) -> None:
    path, options = tmp_path / "t", {"sequence_groups": {"o": ["name"]}}
    people(path, ordering=[], merger="partial-update", options=options).upsert(rows(["name"], 1))
    assert forgotten(path, "name").to_arrow().num_rows == 0


def test_a_constraint_that_was_dropped_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_a_row(table)
    forgotten(path)
    table = LakeTable.open(path)
    table.alter(add_constraints={"others": f"email <> '{PERSON}'"})
    table.alter(drop_constraints=["others"])
    assert grep(path, PERSON)
    forgotten(path)
    assert grep(path, PERSON) == []


def test_records_that_cannot_be_merged_refuse_it(tmp_path: Path) -> None:
    """Their logs would stay, and the key with them. The other key's records are told, and its row stays."""
    path = tmp_path / "t"
    table = people(
        path,
        schema="email STRING, n TINYINT",
        ordering=[],
        buckets=1,
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        properties={"lakemerge.maintenance": "off"},
    )
    emails = [OTHERS[0], PERSON]
    for _ in range(2):
        table.upsert(pa.table({"email": emails, "n": pa.array([100, 1], pa.int8())}))
    with pytest.raises(InputError, match="cannot be merged"):
        table.forget(key())
    assert table.get({"email": PERSON}) is None
    table.upsert(pa.table({"email": OTHERS[:1], "n": pa.array([-100], pa.int8())}))
    forgotten(path)
    assert grep(path, PERSON) == []
    assert rows_of(LakeTable.open(path).to_arrow()) == [(OTHERS[0], 100)]


def test_a_partition_value_stays(tmp_path: Path) -> None:
    """And the rest of the key goes."""
    path = tmp_path / "t"
    table = people(
        path, schema="country STRING, email STRING, o BIGINT", key=["country", "email"], partition_by=["country"]
    )
    given = pa.table({"country": ["NO", "SE"], "email": [PERSON, PERSON], "o": pa.array([1, 1], pa.int64())})
    table.upsert(given)
    table.upsert(given)
    table.compact()
    for _ in range(2):
        assert table.forget([{"country": "NO", "email": PERSON}]).state in ("waiting", "done")
        age(path)
    assert rows_of(LakeTable.open(path).to_arrow()) == [("SE", PERSON, 1)]
    assert '"country":"NO"' in "".join(file.read_text() for file in path.glob("_delta_log/*.json")) or any(
        "NO" in str(pq.read_table(file).to_pylist()) for file in path.glob("_delta_log/*.checkpoint.parquet")
    )
    table.forget([{"country": "SE", "email": PERSON}])
    age(path)
    assert table.forget([{"country": "SE", "email": PERSON}]).state == "done"
    assert grep(path, PERSON) == []


PARTITIONED: dict[str, tuple[str, list[str], dict[str, Any], dict[str, Any], str]] = {
    "a text": ("email STRING, o BIGINT", ["email"], {"email": PERSON}, {"email": "bob"}, PERSON),
    "a number": ("n BIGINT, o BIGINT", ["n"], {"n": 7_313_131_313}, {"n": 5}, "7313131313"),
    "two columns": (
        "country STRING, born DATE, o BIGINT",
        ["country", "born"],
        {"country": "NO", "born": dt.date(1931, 7, 13)},
        {"country": "NO", "born": dt.date(2000, 1, 1)},
        "1931-07-13",
    ),
}


@pytest.mark.parametrize("name", PARTITIONED)
def test_a_key_of_partition_columns_alone_is_found(tmp_path: Path, name: str) -> None:
    """The partition of the key stays, and with it the key. It goes once the table is written anew."""
    schema, columns, one, other, text = PARTITIONED[name]
    path = tmp_path / "t"
    table = people(path, schema=schema, key=columns, partition_by=columns)
    given = pa.Table.from_pylist([{**one, "o": 1}, {**other, "o": 1}], schema=table.schema)
    for _ in range(2):
        table.upsert(given)
    table.compact()
    for state in ("waiting", "found", "found"):
        result = table.forget([one])
        assert result.state == state
        age(path)
    assert result.left
    for left in result.left:
        assert left.path.startswith("_delta_log/")
        assert left.reason.startswith("the key is the value of a partition")
        assert text not in str(result)
    assert grep(path, text) == [left.path for left in result.left], "and nowhere else"
    assert table.to_arrow().to_pylist() == [{**other, "o": 1}]
    table.overwrite(table.to_arrow())
    table.forget([one])
    age(path)
    assert table.forget([one]).state == "done"
    assert grep(path, text) == []
    assert table.to_arrow().to_pylist() == [{**other, "o": 1}]


def test_a_key_of_partition_columns_alone_that_was_never_compacted_goes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path, schema="email STRING, o BIGINT", partition_by=["email"])
    table.upsert(pa.table({"email": ["bob"], "o": pa.array([1], pa.int64())}))
    assert table.forget([{"email": PERSON}]).state in ("waiting", "done")
    age(path)
    assert table.forget([{"email": PERSON}]).state == "done"
    assert grep(path, PERSON) == []


TYPED: dict[str, tuple[str, Any, Any, list[str]]] = {
    "BIGINT": ("BIGINT", 7_313_131_313, 5, ["7313131313"]),
    "BINARY": ("BINARY", b"ann@example.org!", b"bob", ["ann@example.org!", "YW5uQGV4YW1wbGUub3JnIQ"]),
    "DATE": ("DATE", dt.date(1931, 7, 13), dt.date(2000, 1, 1), ["1931-07-13", "datetime.date(1931, 7, 13)"]),
    "TIMESTAMP": (
        "TIMESTAMP",
        dt.datetime(1931, 7, 13, 3, 31, 13, 313131, dt.UTC),
        dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
        ["1931-07-13", "datetime.datetime(1931, 7, 13"],
    ),
    "DECIMAL": ("DECIMAL(20,3)", decimal.Decimal("7313131313.131"), decimal.Decimal(5), ["7313131313.131"]),
}


@pytest.mark.parametrize("name", TYPED)
def test_keys_of_other_types(tmp_path: Path, name: str) -> None:
    kind, one, other, texts = TYPED[name]
    path = tmp_path / "t"
    table = LakeTable.create(path, f"k {kind}, o BIGINT", key=["k"], ordering=["o"], buckets=1)
    types = table.schema.field("k").type
    for o in (1, 2):
        table.upsert(pa.table({"k": pa.array([one, other], types), "o": pa.array([o, o], pa.int64())}))
    table.compact()
    table.upsert(pa.table({"k": pa.array([one], types), "o": pa.array([3], pa.int64())}))
    assert any(grep(path, text) for text in texts)
    assert table.forget([{"k": one}]).rows == 1
    age(path)
    assert table.forget([{"k": one}]).state == "done"
    assert [grep(path, text) for text in texts] == [[] for _ in texts]
    assert table.get({"k": other}) == {"k": other, "o": 2}


def test_after_a_rescale_and_a_rename(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_records(table)
    table.rescale(buckets=8)
    table.alter(rename_columns={"name": "title"})
    table.upsert(pa.table({"email": [PERSON], "o": pa.array([9], pa.int64()), "title": [NAME]}))
    table.rescale(buckets=2)
    forgotten(path)
    assert left_of(path) == []
    assert len(rows_of(LakeTable.open(path).to_arrow())) == len(OTHERS)


def test_after_a_restore_and_an_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_records(table)
    version = table.version
    table.overwrite(everybody(5))
    table.restore(version=version)
    forgotten(path)
    assert left_of(path) == []
    again = LakeTable.open(path)
    again.overwrite(everybody(7))
    assert again.forget(key()).rows == 1
    age(path)
    assert again.forget(key()).state == "done"
    assert left_of(path) == []


def test_long_keys_have_no_bounds_and_go(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    long = PERSON * 40
    table.upsert(rows([*OTHERS, long], 1))
    table.upsert(rows([long], 2))
    forgotten(path, long)
    assert grep(path, PERSON) == []


@pytest.mark.parametrize("word", ["1", "0", "minor", "log", "lakemerge", "email", "full", "base", "forget", "vacuum"])
def test_keys_that_are_words_of_the_library(tmp_path: Path, word: str) -> None:
    """A text that stands in each table's log for other reasons does not keep a call from its end."""
    path = tmp_path / "t"
    table = people(path)
    as_records(table)
    table.upsert(rows([word], 3, "Only Wordy"))
    table.compact(minor=True)
    table.consumers.register("billing")
    assert table.forget(key(word), drop_history=True).rows == 1
    age(path)
    result = table.forget(key(word))
    assert result.state == "done", str(result)
    assert grep(path, "Only Wordy") == []
    assert table.get({"email": word}) is None
    assert table.get({"email": PERSON}) is not None


@pytest.mark.parametrize("number", [0, 1, 2, 7])
def test_keys_that_are_small_numbers(tmp_path: Path, number: int) -> None:
    path = tmp_path / "t"
    table = LakeTable.create(path, "k BIGINT, o BIGINT, name STRING", key=["k"], ordering=["o"], buckets=2)
    for o in range(1, 4):
        names = [NAME if k == number else "x" for k in range(10)]
        table.upsert(pa.table({"k": range(10), "o": [o] * 10, "name": names}))
    table.compact(minor=True)
    table.consumers.register("billing")
    assert table.forget([{"k": number}], drop_history=True).rows == 1
    age(path)
    result = table.forget([{"k": number}])
    assert result.state == "done", str(result)
    assert grep(path, NAME) == []
    table.delete_where(f"k = {number} OR k = 99")
    assert table.forget([{"k": number}]).state == "waiting", "a condition names it"
    assert table.forget([{"k": 55}]).state in ("waiting", "done")


def test_notes_about_a_key_go(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = people(path)
    as_records(table)
    forgotten(path, OTHERS[0])
    table = LakeTable.open(path)
    table.record_send("warehouse", keys=[{"email": PERSON}], info={"ticket": f"about {PERSON}"})
    table.associate(f"mailto:{PERSON}")
    forgotten(path)
    assert left_of(path) == []
