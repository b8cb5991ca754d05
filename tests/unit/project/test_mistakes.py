"""Mistakes that people make: the text of each error names the problem, the place and the remedy.

Those with buckets are in ``tests/s3/test_mistakes_s3.py``.
"""

from __future__ import annotations

import datetime as dt
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakemerge import LakeTable, Settings
from lakemerge.cli import one_line
from lakemerge.errors import (
    CompactFirstError,
    DependencyMissingError,
    FilterError,
    FrameError,
    InputError,
    MergerConfigurationError,
    MergerMissingError,
    NotATableError,
    SchemaError,
    StoreError,
    TableDamagedError,
    TableExistsError,
    TableReplacedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.ingest import Files
from lakemerge.testing.faults import Fault, Refuse
from tests.relink import relink
from tests.unit.faults import open_over

DDL = "id BIGINT, v STRING, seq BIGINT, n INT NOT NULL"


class Mistake(NamedTuple):
    what: str
    make: Callable[[Path], object]
    """Given a folder that holds the table ``t``."""
    error: type[Exception]
    problem: str
    place: str
    remedy: str


def row(**values: Any) -> pa.Table:
    """A frame of one row that fits; ``None`` leaves a column out."""
    given = {"id": 1, "v": "a", "seq": 1, "n": pa.scalar(1, pa.int32())} | values
    return pa.table({name: pa.array([value]) for name, value in given.items() if value is not None})


def table(folder: Path, **which: Any) -> LakeTable:
    return LakeTable.open(folder / "t", **which)


def create(folder: Path, schema: Any = DDL, **options: Any) -> LakeTable:
    return LakeTable.create(folder / "new", schema, **{"key": ["id"], **options})


def null(kind: pa.DataType) -> pa.Array:
    return pa.array([None], kind)


def with_column(name: str, values: pa.Array) -> pa.Table:
    frame = row(**{name: None})
    return frame.append_column(name, values)


def plain_delta(folder: Path) -> LakeTable:
    write_deltalake(folder / "plain", pa.table({"k": [1]}))
    return LakeTable.open(folder / "plain")


def edited(folder: Path, old: str, new: str) -> LakeTable:
    """The table, with other words in its first commit."""
    commit = folder / "t/_delta_log" / f"{0:020d}.json"
    text = commit.read_text()
    assert old in text
    commit.write_text(text.replace(old, new))
    relink(folder / "t")
    return table(folder)


def without(folder: Path, pattern: str) -> LakeTable:
    for path in (folder / "t").rglob(pattern):
        path.unlink()
    return table(folder)


def replaced(folder: Path) -> object:
    opened = table(folder)
    shutil.rmtree(folder / "t")
    return opened.upsert(row())


def uncompacted(folder: Path) -> object:
    opened = table(folder)
    opened.upsert(row(seq=2))
    return opened.alter(merger="commit-time")


def sums(folder: Path) -> LakeTable:
    made = LakeTable.create(
        folder / "sums", "id BIGINT, n BIGINT", key=["id"], merger="aggregate", options={"aggregates": {"n": "sum"}}
    )
    made.upsert(pa.table({"id": [1], "n": [1]}))
    return made


def twice(act: Callable[[], object]) -> object:
    act()
    return act()


CREATING = [
    Mistake("wrong key column", lambda f: create(f, key=["idd"]), SchemaError,
        "not in the schema", "key column 'idd'", "did you mean 'id'?"),
    Mistake("no key", lambda f: create(f, key=[]), SchemaError,
        "at least one", "key column", "such as ['id']"),
    Mistake("key as a text", lambda f: create(f, key="id"), InputError,
        "must be a list", "key", "did you mean ['id']?"),
    Mistake("wrong ordering", lambda f: create(f, ordering=["sq"]), SchemaError,
        "not in the schema", "ordering column 'sq'", "did you mean 'seq'?"),
    Mistake("ordering is the key", lambda f: create(f, ordering=["id"]), SchemaError,
        "is a key column", "ordering column 'id'", "all records of a key would be equal"),
    Mistake("ordering without an order", lambda f: create(f, "id INT, m MAP<STRING,INT>", ordering=["m"]), SchemaError,
        "has no order", "'m'", "use another column"),
    Mistake("partition column outside the key", lambda f: create(f, partition_by=["v"]), SchemaError,
        "must be a key column", "partition column 'v'", "add it to the key"),
    Mistake("three buckets", lambda f: create(f, buckets=3), SchemaError,
        "not 3", "buckets", "a power of two from 1 to"),
    Mistake("misspelled merger", lambda f: create(f, merger="event_time"), MergerMissingError,
        "no merger", "'event_time'", "Did you mean 'event-time'?"),
    Mistake("event-time without ordering", lambda f: create(f, merger="event-time"), MergerConfigurationError,
        "needs ordering columns", "event-time", "use commit-time"),
    Mistake("unknown merger option",
        lambda f: create(f, merger="aggregate", options={"agregates": {}}), MergerConfigurationError,
        "unknown option", "aggregate: ", "aggregate has: aggregates"),
    Mistake("unknown function",
        lambda f: create(f, merger="aggregate", options={"aggregates": {"v": "summ"}}), MergerConfigurationError,
        "unknown function 'summ'", "column 'v'", "there are: sum, "),
    Mistake("sum of a text",
        lambda f: create(f, merger="aggregate", options={"aggregates": {"v": "sum"}}), MergerConfigurationError,
        "the column is STRING", "column 'v'", "sum takes numbers"),
    Mistake("options as a list", lambda f: create(f, merger="aggregate", options=["x"]), InputError,
        "not ['x']", "options", "a mapping of names to values"),
    Mistake("one name twice", lambda f: create(f, "id INT, ID STRING"), SchemaError,
        "are one name", "'ID' and 'id'", "rename one"),
    Mistake("reserved name", lambda f: create(f, "id INT, _lm_x INT"), SchemaError,
        "reserved", "'_lm_x'", "rename the column"),
    Mistake("unknown type", lambda f: create(f, "id BIGNT"), SchemaError,
        "unknown type 'BIGNT'", "column 'id'", "did you mean BIGINT?"),
    Mistake("comma forgotten", lambda f: create(f, "id INT v STRING"), SchemaError,
        "found 'v'", "position 8", "expected ','"),
    Mistake("type that no table holds", lambda f: create(f, "id INT, v VARIANT"), SchemaError,
        "cannot hold VARIANT", "column 'v'", "keep it as STRING"),
    Mistake("schema as a dictionary", lambda f: create(f, {"id": "INT"}), SchemaError,
        "not dict", "a schema is", "a DDL string"),
    Mistake("misspelled property of Delta", lambda f: create(f, properties={"delta.logRetention": "1"}), SchemaError,
        "not one that users set", "'delta.logRetention'", "did you mean 'delta.logRetentionDuration'?"),
    Mistake("misspelled property", lambda f: create(f, properties={"lakemerge.compaction.ration": "2"}), SchemaError,
        "not one that users set", "'lakemerge.compaction.ration'", "did you mean 'lakemerge.compaction.ratio'?"),
    Mistake("property of a wrong value",
        lambda f: create(f, properties={"lakemerge.compaction.ratio": "often"}), SchemaError,
        "not 'often'", "'lakemerge.compaction.ratio'", "a number from 0 on or 'off'"),
    Mistake("property as a number", lambda f: create(f, properties={"lakemerge.compaction.ratio": 2}), SchemaError,
        "not 2", "'lakemerge.compaction.ratio'", "must be a string"),
    Mistake("a table is there", lambda f: LakeTable.create(f / "t", DDL, key=["id"]), TableExistsError,
        "there is already a table", "/t;", "replace it by an empty one (replace=True), or use another path"),
    Mistake("inside of a file", lambda f: LakeTable.create(f / "file/x", DDL, key=["id"]), InputError,
        "is a file", "/file'", "a table needs a folder"),
    Mistake("folder that cannot be made", lambda f: LakeTable.create("/proc/t", DDL, key=["id"]), StoreError,
        "was not created", "/proc/t/_delta_log", "see to the file system and try again"),
    Mistake("impossible setting", lambda f: Settings(threads=0), InputError,
        "not 0", "Settings.threads", "a positive integer"),
]  # fmt: skip

OPENING = [
    Mistake("no table there", lambda f: LakeTable.open(f / "typo"), NotATableError,
        "there is no Delta log", "/typo", "check the path"),
    Mistake("a folder of other files", LakeTable.open, NotATableError,
        "there is no Delta log", "", "make a table there with LakeTable.create"),
    Mistake("a plain Delta table", plain_delta, NotATableError,
        "not a LakeMerge table", "/plain", "a conversion makes it one in place (LakeTable.convert)"),
    Mistake("a newer format", lambda f: edited(f, 'formatVersion":"1"', 'formatVersion":"2"'), UnsupportedFeatureError,
        "format version 2", "/t ", "Install a newer lakemerge"),
    Mistake("a newer feature",
        lambda f: edited(f, '"invariants"', '"invariants","futureFeature"').upsert(row()), UnsupportedFeatureError,
        "cannot be written", "futureFeature", "a newer lakemerge may know it"),
    Mistake("a version to come", lambda f: table(f, version=99), VersionNotFoundError,
        "not in the table's history", "version 99", "reaches from 0 to 1"),
    Mistake("a time to come", lambda f: table(f, timestamp="2999-01-01"), VersionNotFoundError,
        "no version is known", "2999-01-01T00:00:00.000+00:00", "for the latest version name no timestamp"),
    Mistake("a time before the table", lambda f: table(f, timestamp="1999-01-01"), VersionNotFoundError,
        "no version is known", "1999-01-01T", "the history reaches from 2"),
    Mistake("no time", lambda f: table(f, timestamp="yesterday"), InputError,
        "is not an ISO 8601", "timestamp 'yesterday'", "such as '2026-07-01T12:00:00'"),
    Mistake("a version and a time", lambda f: table(f, version=1, timestamp="2026-01-01"), InputError,
        "not for several", "a version, a timestamp or a savepoint", "ask for"),
    Mistake("an unknown savepoint", lambda f: table(f, savepoint="x"), InputError,
        "there is no savepoint", "'x'", "there are: none"),
    Mistake("a misspelled storage option",
        lambda f: LakeTable.open("s3://bucket/x", storage_options={"acess_key": 1}), InputError,
        "is unknown", "'acess_key'", "Known are: AWS_ACCESS_KEY_ID"),
    Mistake("a URL through pathlib", lambda f: LakeTable.open(Path("s3://b/t")), InputError,
        "pathlib, which drops a slash", "'s3:/b/t'", "pass it as a string"),
    Mistake("credentials in the URL", lambda f: LakeTable.open("s3://key:secret@b/t"), InputError,
        "a plain bucket name", "s3://bucket/prefix", "credentials go into storage_options"),
    Mistake("an unknown store", lambda f: LakeTable.open("ftpx://b/t"), InputError,
        "Protocol not known", "'ftpx://b/t'", "Correct the URL"),
    Mistake("a store without its package", lambda f: LakeTable.open("oss://b/t"), DependencyMissingError,
        "needs another package", "'oss://b/t'", "install ossfs"),
    Mistake("a lost commit", lambda f: without(f, f"{0:020d}.json"), TableDamagedError,
        "commit 0 is missing", f"_delta_log/{0:020d}.json", "from a backup"),
    Mistake("a lost file", lambda f: without(f, "*.parquet").to_arrow(), TableDamagedError,
        "is missing", "'base/", "restore the file from a backup"),
]  # fmt: skip

WRITING = [
    Mistake("to an earlier version", lambda f: table(f, version=0).upsert(row()), InputError,
        "read-only", "version 0", "open it without a version"),
    Mistake("without the key", lambda f: table(f).upsert(row(id=None)), FrameError,
        "is missing", "key column 'id'", "the frame has v, seq, n"),
    Mistake("without the ordering", lambda f: table(f).upsert(row(seq=None)), FrameError,
        "does not fit", "need the ordering column(s) seq", "the frame has id, v, n"),
    Mistake("without a NOT NULL column", lambda f: table(f).upsert(row(n=None)), FrameError,
        "does not fit", "NOT NULL column(s) n", "the frame has id, v, seq"),
    Mistake("a null key", lambda f: table(f).upsert(with_column("id", null(pa.int64()))), FrameError,
        "null in 1 row", "key column 'id'", "leave such rows out"),
    Mistake("a null that may not be", lambda f: table(f).upsert(with_column("n", null(pa.int32()))), FrameError,
        "NOT NULL and null in 1", "column 'n'", "fill it, or let it be null (table.alter(nullable=['n']))"),
    Mistake("an unknown column", lambda f: table(f).upsert(row(x=1)), FrameError,
        "unknown column", "'x'; the table has id, v", "upsert with merge_schema=True"),
    Mistake("a misspelled key", lambda f: table(f).upsert(row().rename_columns(["ID_", "v", "seq", "n"])), FrameError,
        "does not fit the table: key column 'id' is missing", "the frame has ID_, v, seq, n", "did you mean 'ID_'?"),
    Mistake("the key as the kind", lambda f: create(f, "id STRING, v STRING").upsert(
            pa.table({"id": ["+I"], "v": ["x"]}), kind_column="id"), FrameError,
        "does not fit the table: key column 'id' is missing", "key column 'id'", "the frame has id, v"),
    Mistake("a misspelled column", lambda f: table(f).upsert(row(n=None, nn=pa.scalar(1, pa.int32()))), FrameError,
        "unknown column", "'nn'", "did you mean 'n'?"),
    Mistake("times without a zone",
        lambda f: create(f, "at TIMESTAMP", key=["at"]).upsert(pa.table({"at": pa.array([0], pa.timestamp("us"))})),
        FrameError, "is TIMESTAMP_NTZ, the table's is TIMESTAMP", "column 'at'",
        "say of which zone its times are: .dt.tz_localize('UTC') in pandas"),
    Mistake("a wrong type", lambda f: table(f).upsert(row(id="one")), FrameError,
        "is STRING, the table's is BIGINT", "column 'id'", "cast it first"),
    Mistake("a key with a fraction", lambda f: table(f).upsert(row(id=1.5)), FrameError,
        "is DOUBLE", "column 'id'", "cast it to integers first"),
    Mistake("a number too large", lambda f: table(f).upsert(row(n=2**40)), FrameError,
        "does not fit", "'n' is BIGINT, the table has INT: 1099511627776 in row 0", "give the column a wider type"),
    Mistake("a column twice", lambda f: table(f).upsert(row().append_column("ID", pa.array([2]))), FrameError,
        "are both 'id'", "'id' and 'ID'", "drop or rename one"),
    Mistake("no kind column", lambda f: table(f).upsert(row(), kind_column="op"), FrameError,
        "not in the frame", "kind column 'op'", "the frame has id, v, seq, n"),
    Mistake("unknown kinds", lambda f: table(f).upsert(row(op="U"), kind_column="op"), FrameError,
        "holds ['U']", "kind column 'op'", "row kinds are +I, -U, +U, -D"),
    Mistake("a dictionary", lambda f: table(f).upsert({"id": 1}), FrameError,
        "cannot write", "a dict", "pyarrow.table(columns) makes one"),
    Mistake("a list of rows", lambda f: table(f).upsert([{"id": 1}]), FrameError,
        "cannot write", "a list", "pyarrow.Table.from_pylist(rows"),
    Mistake("a txn without a number", lambda f: table(f).upsert(row(), txn="app"), FrameError,  # type: ignore[arg-type]
        "not 'app'", "txn", "such as ('nightly-load', 42)"),
    Mistake("a txn of the library", lambda f: table(f).upsert(row(), txn=("lakemerge.x", 1)), FrameError,
        "is not yours", "'lakemerge.x'", "take another name"),
    Mistake("an update of the key", lambda f: sums(f).update_where("id = 1", {"id": 2}), FrameError,
        "'id' is a key column", "which stays", "delete the row and upsert it anew"),
    Mistake("a merge without the key",
        lambda f: sums(f).merge(pa.table({"n": [1]}), "target.n = source.n").whenMatchedDelete().execute(), FilterError,
        "does not compare the whole key", "id is missing", "target.id = source.id"),
    Mistake("to a table that was removed", replaced, TableReplacedError,
        "was removed or re-created", "/t ", "Open it again"),
    Mistake("another merger over logs", uncompacted, CompactFirstError,
        "not compacted yet", "'event-time'", "compact first"),
    Mistake("a column that is there", lambda f: table(f).alter(add_columns="v STRING"), SchemaError,
        "is there already", "'v'", "take another name"),
    Mistake("a column that may not be null", lambda f: table(f).alter(add_columns="w INT NOT NULL"), SchemaError,
        "earlier rows have no value", "for w", "must be nullable"),
    Mistake("a key of another type", lambda f: table(f).alter(widen={"id": "DOUBLE"}), SchemaError,
        "cannot get another type", "key column 'id'", "Make a table with that type"),
    Mistake("nothing to alter", lambda f: table(f).alter(), InputError,
        "nothing to alter", "give", "add_columns, nullable"),
]  # fmt: skip

READING = [
    Mistake("a look-up by another name", lambda f: table(f).get({"idd": 1}), FrameError,
        "not in the key: idd", "missing: id", "needs the key column(s) id and no others"),
    Mistake("a look-up by a value", lambda f: table(f).get(7), FrameError,
        "not int", "keys are", "a mapping of key columns to values"),
    Mistake("an unknown column", lambda f: table(f).to_arrow(columns=["vv"]), InputError,
        "unknown column", "'vv'", "the table has id, v, seq, n"),
    Mistake("columns as a text", lambda f: table(f).to_arrow(columns="v"), InputError,
        "must be a list", "columns", "did you mean ['v']?"),
    Mistake("a filter on no column", lambda f: table(f).to_arrow(filter="vv = 1"), FilterError,
        "no column", "'vv'", "it has id, v, seq, n"),
    Mistake("a filter that is no SQL", lambda f: table(f).to_arrow(filter="v = = 1"), FilterError,
        "is not SQL", "Line 1, Col: 5", "something is missing"),
    Mistake("a filter of another type", lambda f: table(f).to_arrow(filter="id = 'x'"), FilterError,
        "'x' is not such a value", "column 'id' is BIGINT", "compare it with a value of its type"),
    Mistake("a function that is not there", lambda f: table(f).to_arrow(filter="soundexx(v) = 'x'"), FilterError,
        "not supported", "SOUNDEXX(v)", "supported are columns"),
    Mistake("an unknown mode", lambda f: table(f).to_arrow(mode="fast"), InputError,  # type: ignore[arg-type]
        "not 'fast'", "mode", "one of 'merged', 'base'"),
    Mistake("SQL over no column", lambda f: table(f).query("SELECT vv FROM self"), InputError,
        'Referenced column "vv"', "called self", "its columns are id, v, seq, n"),
    Mistake("SQL over another name", lambda f: table(f).query("SELECT 1 FROM t"), InputError,
        "does not exist", "Table with name t", "The table is called self"),
    Mistake("changes after the end", lambda f: table(f).changes(99), InputError,
        "not 99", "since", "a version up to 1"),
    Mistake("changes before the table", lambda f: table(f).changes(-1), VersionNotFoundError,
        "not in the table's history", "version -1", "reaches from 0 to 1"),
    Mistake("an unknown consumer", lambda f: list(table(f).follow("nobody")), InputError,
        "there is no consumer", "'nobody'", "table.consumers.register('nobody'"),
    Mistake("a consumer and a version", lambda f: table(f).follow("c", since=1), InputError,
        "not both", "a consumer has its own position", "give a consumer or a version"),
    Mistake("an explanation of a value", lambda f: table(f).explain(7), InputError,  # type: ignore[arg-type]
        "not 7", "key", "a mapping of names to values"),
]  # fmt: skip

SERVICES = [
    Mistake("compaction by a row", lambda f: table(f).compact(where="id = 1"), FilterError,
        "names id", "'id = 1'", "partition columns are: none"),
    Mistake("no bytes", lambda f: table(f).compact(max_bytes=0), InputError,
        "not 0", "max_bytes", "from 1 on"),
    Mistake("an unknown order",
        lambda f: table(f).compact(strategy="newest"), InputError,  # type: ignore[call-overload]
        "not 'newest'", "order", "one of oldest"),
    Mistake("vacuum of all history", lambda f: table(f).vacuum(retention=dt.timedelta(0)), InputError,
        "shorter than the table's", "delta.deletedFileRetentionDuration",
        "Pass enforce_retention=False if there are none"),
    Mistake("retention as a text", lambda f: table(f).vacuum(retention="7d"), InputError,  # type: ignore[arg-type]
        "not '7d'", "retention", "a datetime.timedelta"),
    Mistake("a rescale to three", lambda f: table(f).rescale(buckets=3), InputError,
        "not 3", "buckets", "a power of two"),
    Mistake("a savepoint twice",
        lambda f: twice(lambda: table(f).savepoint("a", version=len(table(f).savepoints()))), InputError,
        "names version", "savepoint 'a'", "drop it first, or choose another name"),
    Mistake("a restore to nowhere", lambda f: table(f).restore(), InputError,
        "restore needs", "a version, a timestamp", "or a savepoint"),
    Mistake("a consumer twice", lambda f: twice(lambda: table(f).consumers.register("c")), InputError,
        "already", "consumer 'c'", "drop it first"),
    Mistake("an unknown format", lambda f: Files(f, format="xml"), InputError,
        "not 'xml'", "format", "one of avro, csv, json"),
    Mistake("a source as a text", lambda f: table(f).ingest("j", "/landing"), InputError,  # type: ignore[arg-type]
        "not '/landing'", "the source", "must be Files(...)"),
    Mistake("a job without files", lambda f: table(f).ingest("j").run(), InputError,
        "say which files", "'j'", "Files('s3://landing/orders/', format='json')"),
    Mistake("a replay into itself", lambda f: table(f).replay(f / "t"), InputError,
        "into itself", "a table", "give another path"),
]  # fmt: skip

MISTAKES = [
    pytest.param(mistake, id=f"{name}: {mistake.what}")
    for name, group in (
        ("creating", CREATING), ("opening", OPENING), ("writing", WRITING), ("reading", READING),
        ("services", SERVICES),
    )
    for mistake in group
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    LakeTable.create(tmp_path / "t", DDL, key=["id"], ordering=["seq"], buckets=1).upsert(row())
    (tmp_path / "file").write_text("x")
    return tmp_path


def test_there_are_many() -> None:
    assert len(MISTAKES) >= 60


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_text_names_problem_place_and_remedy(mistake: Mistake, folder: Path) -> None:
    with pytest.raises(mistake.error) as caught:
        mistake.make(folder)
    assert type(caught.value) is mistake.error
    text = str(caught.value)
    for part in (mistake.problem, mistake.place, mistake.remedy):
        assert part in text
    for noise in ("<class", "object at 0x", "Traceback", "\x1b"):
        assert noise not in text


@pytest.mark.parametrize(
    ("code", "error", "remedy"),
    [
        (errno.ENOSPC, OSError, "Make room there, and run the command again"),
        (errno.EACCES, PermissionError, "Give this user the right"),
        (errno.EROFS, OSError, "Mount it for writing"),
    ],
    ids=["full disk", "folder of somebody else", "read-only disk"],
)
def test_what_the_system_refuses_is_told_with_the_file(
    folder: Path, code: int, error: type[OSError], remedy: str
) -> None:
    """It stays the error that Python has for it; the command line adds what to do. Nothing was committed."""
    opened, _ = open_over(folder / "t", Fault(action=Refuse(code), method="open_output"))
    with pytest.raises(error) as caught:
        opened.upsert(row(v="lost"))
    assert caught.value.errno == code
    told = one_line(caught.value, command="upsert")
    assert "_lakemerge/log/" in told
    assert remedy in told
    assert table(folder).get({"id": 1}, columns=["v"]) == {"v": "a"}
