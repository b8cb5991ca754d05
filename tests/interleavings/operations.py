"""The operations that the scheduler orders, each with what it means in plain Python, and the tables they start from.

An operation that is new in the product gets its place in :data:`OPERATIONS`: a name, what it does, and its effect on
rows. Everything else (faults, crashes, exceptions, pairs with all others) follows from that.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
from pyspark.sql.types import StructType

import lakemerge.connector.requests as requests
from compaction.publish import publish
from lakemerge import LakeTable, Settings
from lakemerge.cli.service import run_maintenance
from lakemerge.connector.jar import jar_version
from lakemerge.datasource.stream_batches import RowSum
from lakemerge.datasource.stream_sink import StreamWriter, _Message
from lakemerge.ingest import Files
from lakemerge.merge_source import MergeConfig, MergeSource
from lakemerge.spark.writer import pack_rows
from lakemerge.table.kept import forget_tables
from lakemerge.testing.memory import Bucket
from tests.interleavings.turns import outside, still, unseen

__all__ = ["OPERATIONS", "WORLDS", "Operation", "Rows", "State", "World", "convert", "operations_of", "rows_of", "url"]

Rows = Mapping[int, Any]
"""Key to value; ``None`` where the column of values was dropped."""

ONE: Final = Settings(threads=1)
NAME: Final = "w"
NOW: Final = dt.timedelta(0)
QUIET: Final = {
    "lakemerge.maintenance": "off",
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hour",
    "delta.deletedFileRetentionDuration": "interval 1 hour",
}
_HOURS_2: Final = 7_200_000


def url(table: str = "t") -> str:
    return f"memory://{NAME}/s/{table}"


@dataclass(frozen=True, slots=True)
class State:
    """What tables hold, as far as operations change it."""

    rows: Rows
    notes: frozenset[str] = frozenset()
    """What lands once: batches with a number, windows of an ingest job."""
    others: Mapping[str, Rows] = field(default_factory=dict)
    """The rows of other tables."""
    made: int = 0
    """How often the table was made anew or replaced."""
    bare: bool = False
    """Whether the column of values was dropped. Rows then have their keys alone."""

    def having(self, rows: Rows) -> State:
        return replace(self, rows={**self.rows, **rows})

    def lacking(self, *keys: int) -> State:
        return replace(self, rows={key: value for key, value in self.rows.items() if key not in keys})

    def seen(self) -> State:
        """The same, with the values that readers see."""
        return replace(self, rows=dict.fromkeys(self.rows)) if self.bare else self

    def once(self, note: str, rows: Rows) -> State:
        return self if note in self.notes else replace(self.having(rows), notes=self.notes | {note})


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """Something that a process does to tables."""

    name: str
    prepare: Callable[[str], Callable[[], object]]
    """Opens what the operation needs, and returns it. The text tells two of one kind apart: A or B."""
    effect: Callable[[State, str], State] = lambda state, _: state
    sees: Callable[[object], Rows] | None = None
    """For a reader: the rows that it saw."""
    worlds: frozenset[str] = frozenset({"filled"})
    first: Callable[[State, str], State] | None = None
    """The effect of the first of several commits. A failure may leave that alone. If it is the whole effect, the later
    commits change no row."""
    again: bool = True
    """Whether it can be done once more."""
    copies: Rows | None = None
    """What the other table holds after it, whatever comes of this one."""
    drops: bool = False
    """Whether there is no table after it."""
    undone: Callable[[Any], bool] = lambda _: False
    """Whether its answer says that it left the rows as they were."""
    plain: bool = False
    """Whether it makes a plain Delta table of the table, at its end or on its way."""
    settles: bool = False
    """Whether it completes, before anything else, what the last one of its kind left when it was cut short."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Tables to start from."""

    name: str
    build: Callable[[], None]
    state: State
    versions: Mapping[int, Rows]
    """What versions of the table hold."""

    @property
    def bucket(self) -> Bucket:
        """A copy of the tables."""
        return _built(self.name).copy()


def value_of(row: Mapping[str, Any]) -> Any:
    """The value of a row, whether its column was renamed or not."""
    new, old = row.get("w"), row.get("v")
    return old if new is None else new


def rows_of(table: pa.Table) -> Rows:
    found = {row["k"]: value_of(row) for row in table.to_pylist()}
    if len(found) != table.num_rows:
        raise AssertionError(f"a key is there twice: {sorted(table['k'].to_pylist())}")
    return found


def frame(rows: Rows) -> pa.Table:
    """All records have the same ordering, so that the later one counts, and deletes are remembered."""
    same = pa.array([5] * len(rows), pa.int64())
    return pa.table({"k": pa.array(rows.keys(), pa.int64()), "o": same, "v": pa.array(rows.values(), pa.string())})


def keys(*named: int) -> pa.Table:
    return pa.table({"k": pa.array(named, pa.int64()), "o": pa.array([5] * len(named), pa.int64())})


def opened(table: str = "t") -> LakeTable:
    return LakeTable.open(url(table), settings=ONE)


def make(table: str = "t", **options: Any) -> LakeTable:
    properties = {**QUIET, **options.pop("properties", {})}
    given = {"key": ["k"], "ordering": ["o"], "buckets": 1, "settings": ONE, "properties": properties, **options}
    return LakeTable.create(url(table), "k BIGINT, o BIGINT, v STRING", **given)


# The tables to start from


def _fill(*, checkpoint: bool = False, consumer: bool = True, **options: Any) -> None:
    table = make(**options)
    table.upsert(frame({1: "a", 2: "a", 3: "a", 4: "a"}))
    table.delete(keys(4))
    table.compact()
    if consumer and not checkpoint:
        table.consumers.register("c")
    table.upsert(frame({1: "b"}))
    table.compact(minor=True)
    if checkpoint:
        table.opened.handle.log.checkpoint(table.opened.view.snapshot)
        table.consumers.register("c")
    table.upsert(frame({2: "c"}))
    table.upsert(frame({3: "d"}))
    table.delete(keys(1))


_FIRST: Final = {1: "a", 2: "a", 3: "a"}
_LAST: Final = {2: "c", 3: "d"}


def _filled() -> None:
    _fill()
    make("copy", buckets=2)
    failing = opened().ingest("bad", Files(_files() / "bad", format="json"))
    failing.run()


def _logged() -> None:
    """With a checkpoint before what is old, and the next commit is due to write one."""
    _fill(checkpoint=True, properties={"delta.checkpointInterval": "12"})


def _landed() -> None:
    """With a window of a job."""
    _fill()
    make("copy", buckets=2)
    opened().ingest("done", Files(_files() / "done", format="json")).run()


WINDOW: Final = {40: "l", 2: "l"}


def _empty() -> None:
    make(buckets=1)


def _published() -> None:
    _fill(consumer=False, properties={"lakemerge.publish": "deletionVectors"})


def _alone() -> None:
    """Nobody follows it, so that its history may end."""
    _fill(consumer=False)


def _made_anew() -> None:
    """More versions than the old table has, and objects of the same names."""
    table = make()
    table.consumers.register("c")
    for number in range(16):
        table.upsert(frame({100 + number % 3: "new"}))
    table.consumers.advance("c", 9)


_NEW: Final = {100: "new", 101: "new", 102: "new"}


def _sources() -> None:
    for name, rows in (("a", {"a1": 1, "a2": 2}), ("b", {"b1": 1, "b2": 5})):
        make_dataset(name).upsert(_entities(rows))
    config = MergeConfig(datasets={"a": url("a"), "b": url("b")}, equality=["a.x = b.x"])
    MergeSource.create(url(), config, settings=ONE)
    MergeSource.open(url(), settings=ONE).run()
    LakeTable.open(url("b"), settings=ONE).upsert(_entities({"b2": 2}))  # two ids of the output become one


def _unmerged() -> None:
    """As :func:`_sources`, and no id is retired by what the next run finds."""
    _sources()
    MergeSource.open(url(), settings=ONE).run()
    LakeTable.open(url("b"), settings=ONE).upsert(_entities({"b3": 7}))


def _stable() -> None:
    """Entities with numbers that stay, and a table of people's decisions, which says nothing yet."""
    for name, rows in (("a", {"a1": 1, "a2": 2}), ("b", {"b1": 1, "b2": 5})):
        make_dataset(name).upsert(_entities(rows))
    LakeTable.create(url("o"), _OVERRIDES, key=["nr"], buckets=1, settings=ONE, properties=QUIET)
    config = MergeConfig(
        datasets={"a": url("a"), "b": url("b")},
        equality=["a.x = b.x"],
        identity="stable",
        overrides=url("o"),
        one_per_dataset=["a", "b"],
        survivorship={"x": "longest"},
    )
    MergeSource.create(url(), config, settings=ONE)
    MergeSource.open(url(), settings=ONE).run()
    LakeTable.open(url("b"), settings=ONE).upsert(_entities({"b2": 2}))


_OVERRIDES: Final = (
    "nr BIGINT, left_dataset STRING, left_id STRING, right_dataset STRING, right_id STRING, verdict STRING, "
    "who STRING, at TIMESTAMP, why STRING"
)


def _apart(table: LakeTable, _: str) -> object:
    """Somebody decides that two rows with the same value are different."""
    told = {"nr": 1, "left_dataset": "a", "left_id": "a2", "right_dataset": "b", "right_id": "b2"}
    at = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    row = {**told, "verdict": "different", "who": "me", "at": at, "why": "x"}
    return table.upsert(pa.Table.from_pylist([row], schema=table.schema))


def make_dataset(name: str) -> LakeTable:
    return LakeTable.create(url(name), "_id STRING, x BIGINT", key=["_id"], buckets=1, settings=ONE, properties=QUIET)


def _entities(rows: Mapping[str, int]) -> pa.Table:
    return pa.table({"_id": pa.array(rows.keys(), pa.string()), "x": pa.array(rows.values(), pa.int64())})


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lakemerge-interleavings-")


@cache
def _files() -> Path:
    """Files that ingest jobs take up. Nobody changes them."""
    folder = Path(_folder().name)
    for name, text in (
        ("good", '{"k": 20, "o": 5, "v": "i"}\n{"k": 2, "o": 5, "v": "i"}\n'),
        ("done", '{"k": 40, "o": 5, "v": "l"}\n{"k": 2, "o": 5, "v": "l"}\n'),
        ("bad", '{"k": 30, "o": 5, "v": "r"}\n{"k": "x'),
    ):
        (folder / name).mkdir()
        (folder / name / "a.json").write_text(text)
    return folder


WORLDS: Final[Mapping[str, World]] = {
    world.name: world
    for world in (
        World("filled", _filled, State(_LAST, others={"copy": {}}), {}),
        World("logged", _logged, State(_LAST), {}),
        World("empty", _empty, State({}), {0: {}}),
        World("published", _published, State(_LAST), {}),
        World("alone", _alone, State(_LAST), {}),
        World("new", _made_anew, State(_NEW), {}),
        World("sources", _sources, State({}), {}),
        World("unmerged", _unmerged, State({}), {}),
        World("stable", _stable, State({}), {}),
        World("landed", _landed, State({**_LAST, **WINDOW}), {}),
    )
}


@cache
def _built(name: str) -> Bucket:
    bucket = Bucket(NAME)
    with still(bucket):
        WORLDS[name].build()
        forget_tables()
    bucket.age(_HOURS_2)  # old enough for a vacuum and a clean-up of the log
    return bucket


# Operations


def _on_table(do: Callable[[LakeTable, str], object]) -> Callable[[str], Callable[[], object]]:
    """The table is opened before the operation begins, as a process does that lives long."""

    def prepare(tag: str) -> Callable[[], object]:
        table = opened()
        return lambda: do(table, tag)

    return prepare


def _vacuum(table: LakeTable, _: str) -> object:
    return table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)


def _kept_up(table: LakeTable, tag: str) -> None:
    table.upsert(frame({7: tag}))
    _vacuum(table, tag)


def _batches(table: LakeTable, _: str) -> None:
    """As a stream that was killed and started again: it repeats its last batch, and goes on."""
    table.upsert(frame({30: "s"}), txn=("stream", 3))
    table.upsert(frame({30: "t"}), txn=("stream", 4))


def _sunk(table: LakeTable, number: int, rows: Rows) -> None:
    """A micro-batch of ``df.writeStream.format("lakemerge")`` without Spark: planned, packed as a task packs it, and
    committed by its number, with the marks of its rows."""
    schema = StructType.fromJson(
        {"type": "struct", "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("k", "long"), ("o", "long"), ("v", "string"))
        ]}
    )  # fmt: skip
    writer = StreamWriter(table.opened, schema, {})
    told = RowSum()
    task, packed = pack_rows(told.passing(iter(frame(rows).to_batches())), writer._plan.pack)
    writer.commit([_Message(task, packed, writer._plan, "q", (told.rows, told.total))], number)


def _sunk_twice(table: LakeTable, _: str) -> None:
    _sunk(table, 3, {50: "s"})
    _sunk(table, 4, {50: "t"})


def _merge(table: LakeTable, tag: str) -> object:
    source = frame({3: tag, 8: tag})
    merge = table.merge(source, "target.k = source.k", retries=0)
    return merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _followed(table: LakeTable, _: str) -> Rows:
    """A copy of the table that is at the version of the consumer, after the changes that the consumer reads."""
    copy: dict[int, Any] = dict(_FIRST)
    for batch in table.follow("c", poll=None):
        for row in batch.to_pylist():
            if row["_row_kind"] in ("+I", "+U"):
                copy[row["k"]] = value_of(row)
            elif row["_row_kind"] == "-D":
                del copy[row["k"]]
    return copy


def _changed(table: LakeTable, _: str) -> Rows:
    copy: dict[int, Any] = dict(_FIRST)
    for row in table.changes(4, net=True).read_all().to_pylist():
        if row["_row_kind"] in ("+I", "+U"):
            copy[row["k"]] = value_of(row)
        elif row["_row_kind"] == "-D":
            del copy[row["k"]]
    return copy


def _make_anew(_: str) -> Callable[[], object]:
    """The folder is removed, and another table is made in it, by somebody whom nothing fails."""
    new = _built("new")
    world = opened().opened.handle.store

    def do() -> object:
        with outside(world) as bucket:
            for path in bucket.paths("s/t/"):
                bucket.remove(path)
            for path in new.paths("s/t/"):
                found = new.read(path)
                assert found is not None
                bucket.write(path, found.data)
        return None

    return do


def _replace(_: str) -> Callable[[], object]:
    return lambda: make(replace=True)


def _ingest(table: LakeTable, _: str) -> object:
    return table.ingest("job", Files(_files() / "good", format="json")).run()


def _retry(table: LakeTable, _: str) -> object:
    job = table.ingest("bad", Files(_files() / "bad", format="json"))
    return job.retry()


def _replay_window(table: LakeTable, _: str) -> object:
    return table.ingest("done", Files(_files() / "done", format="json")).replay(into=url("copy"))


CONSTRAINT: Final = "nine"


def _constraint_goes(tag: str) -> Callable[[], object]:
    """A constraint is added before the operation begins, and dropped by it."""
    table, name = opened(), f"goes{tag}"
    with unseen():
        table.alter(add_constraints={name: "k <> 99"})
    return lambda: table.alter(drop_constraints=[name])


def _publish(table: LakeTable, _: str) -> object:
    """What maintenance does once other engines lag behind by more than they may."""
    return publish(table.opened.handle, table.opened.view, spark=None)


def convert() -> object:
    """Nobody else writes a bucket in memory, as far as is known."""
    return LakeTable.convert(url(), key=["k"], ordering=["o"], buckets=1, exclusive=True, settings=ONE)


def _there_and_back(table: LakeTable, _: str) -> None:
    table.unconvert()
    convert()


def _drop(_: str) -> Callable[[], object]:
    return lambda: LakeTable.drop(url())


def _replay(table: LakeTable, _: str) -> object:
    return table.replay(url("copy"))


def _daemon(_: str) -> Callable[[], object]:
    """Maintenance that runs on, three times. From the second run on that finds one table, it maintains that one."""
    table = opened()

    def do() -> object:
        runs: list[object] = []
        seen: list[tuple[str, int]] = []

        class ThreeTimes(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                with unseen():
                    seen.append((opened().opened.view.snapshot.metadata.id, len(runs)))
                if len(seen) == 4:
                    self.set()
                return True

        stop = ThreeTimes()
        stop.wait()
        run_maintenance(table, every=dt.timedelta(seconds=1), stop=stop, show=runs.append)
        for (first, _), (second, before), (third, after) in zip(seen, seen[1:], seen[2:], strict=False):
            if first == second == third and before == after:
                raise NotMaintainedError("a table was not maintained")
        return None

    return do


def _statement(do: str, **request: Any) -> Callable[[str], Callable[[], object]]:
    """A statement of SQL, as far as the driver's Python answers it."""

    def prepare(tag: str) -> Callable[[], object]:
        table = opened()
        about = {
            "connector": jar_version(),
            "do": do,
            "warehouse": f"memory://{NAME}",
            "storage": {},
            "namespace": ["s"],
            "name": "t",
            "path": url(),
            "tableId": table.opened.view.snapshot.metadata.id,
            "version": table.version,
            "isolation": "serializable",
            **request,
        }

        def run() -> object:
            forget_tables()  # as in a process of its own
            found = orjson.loads(requests.answer(orjson.dumps(about).decode()))
            forget_tables()
            if "error" in found:
                raise StatementError(found["error"]["code"], found["error"]["message"])
            return found

        return run

    return prepare


class NotMaintainedError(Exception):
    """Maintenance that goes on passes a table over."""


class StatementError(Exception):
    """A statement failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def _run_source(full: bool = False) -> Callable[[str], Callable[[], object]]:
    def prepare(_: str) -> Callable[[], object]:
        source = MergeSource.open(url(), settings=ONE)
        return lambda: source.run(full=full)

    return prepare


def _on_dataset(name: str, do: Callable[[LakeTable, str], object]) -> Callable[[str], Callable[[], object]]:
    def prepare(tag: str) -> Callable[[], object]:
        table = LakeTable.open(url(name), settings=ONE)
        return lambda: do(table, tag)

    return prepare


def _upkeep_of_dataset(table: LakeTable, tag: str) -> None:
    """The files that the last run read are replaced and deleted."""
    table.upsert(_entities({"a1": 1}))
    _upkeep(table, tag)


def _upkeep(table: LakeTable, tag: str) -> None:
    table.compact()
    _vacuum(table, tag)


def _updated(state: State, tag: str) -> State:
    return replace(state, rows={key: f"{value}!" if key == 3 else value for key, value in state.rows.items()})


def _anew(rows: Rows) -> Callable[[State, str], State]:
    return lambda state, _: State(rows, state.notes & frozenset(), state.others, state.made + 1)


def _kept(state: State, tag: str) -> State:
    return state.having({7: tag})


def _loaded(state: State, _: str) -> State:
    return state.once("job", {20: "i", 2: "i"})


def _only(rows: Rows) -> Callable[[State, str], State]:
    return lambda state, tag: replace(state, rows={key: value or tag for key, value in rows.items()})


FILLED: Final = frozenset({"filled"})
ALL: Final = frozenset({"filled", "logged", "empty", "published"})
SOURCES: Final = frozenset({"sources", "unmerged", "stable"})
LANDED: Final = frozenset({"landed"})
LOGGED: Final = frozenset({"logged"})
ALONE: Final = frozenset({"alone"})
_PAIRED: Final = frozenset({"filled", "logged", "published"})

OPERATIONS: Final[Sequence[Operation]] = (
    # Writers
    Operation(
        "append",
        _on_table(lambda table, tag: table.upsert(frame({2: tag, 9: tag}))),
        lambda state, tag: state.having({2: tag, 9: tag}),
        worlds=ALL | LANDED | ALONE,
    ),
    Operation("delete_where", _on_table(lambda table, _: table.delete_where("k = 2")), lambda s, _: s.lacking(2)),
    Operation(
        "update_where",
        _on_table(lambda table, _: table.update_where("k = 3", {"v": "concat(v, '!')"})),
        _updated,
    ),
    Operation("merge", _on_table(_merge), lambda state, tag: state.having({3: tag, 8: tag})),
    Operation(
        "overwrite",
        _on_table(lambda table, tag: table.overwrite(frame({5: tag}))),
        lambda state, tag: replace(state, rows={5: tag}),
        worlds=ALL,
    ),
    Operation(
        "batch of a stream",
        _on_table(lambda table, _: table.upsert(frame({30: "s"}), txn=("stream", 3))),
        lambda state, _: state.once("stream", {30: "s"}),
    ),
    Operation(
        "stream that goes on",
        _on_table(_batches),
        lambda state, _: state.once("stream", {30: "s"}).once("later", {30: "t"}),
        first=lambda state, _: state.once("stream", {30: "s"}),
    ),
    Operation(
        "batch of a sink",
        _on_table(lambda table, _: _sunk(table, 3, {50: "s"})),
        lambda state, _: state.once("sink", {50: "s"}),
    ),
    Operation(
        "sink that goes on",
        _on_table(_sunk_twice),
        lambda state, _: state.once("sink", {50: "s"}).once("later sink", {50: "t"}),
        first=lambda state, _: state.once("sink", {50: "s"}),
        again=False,
    ),
    Operation(
        "upkeep",
        _on_table(_kept_up),
        _kept,
        first=_kept,
        worlds=frozenset({"published"}),
    ),
    # Services
    Operation("compaction", _on_table(lambda table, _: table.compact()), worlds=ALL | LANDED),
    Operation("minor compaction", _on_table(lambda table, _: table.compact(minor=True)), worlds=_PAIRED),
    Operation("log compaction", _on_table(lambda table, _: table.compact_logs(size_ratio=float("inf")))),
    Operation("rescale", _on_table(lambda table, _: table.rescale(buckets=2)), worlds=ALL),
    Operation("expiry", _on_table(lambda table, _: table.expire_tombstones(retention=NOW))),
    Operation("vacuum", _on_table(_vacuum), worlds=_PAIRED | LANDED | ALONE),
    Operation("vacuum of what is old", _on_table(lambda table, _: table.vacuum(dry_run=False)), worlds=LOGGED),
    Operation(
        "checkpoint",
        _on_table(lambda table, _: table.opened.handle.log.checkpoint(table.opened.view.snapshot)),
        worlds=LOGGED,
    ),
    Operation("maintenance", _on_table(lambda table, _: table.maintain())),
    Operation("maintenance that goes on", _daemon, worlds=LOGGED),
    # History and definition
    Operation(
        "restore",
        _on_table(lambda table, _: table.restore(version=3)),
        lambda s, _: replace(s, rows=_FIRST, bare=False),
        worlds=FILLED | LOGGED,
    ),
    Operation("alter", _on_table(lambda table, tag: table.alter(add_columns=f"x{tag} INT"))),
    Operation("rename of a column", _on_table(lambda table, _: table.alter(rename_columns={"v": "w"})), again=False),
    Operation(
        "drop of a column",
        _on_table(lambda table, _: table.alter(drop_columns=["v"])),
        lambda state, _: replace(state, bare=True),
        again=False,
    ),
    # A row that an append brings does not meet it.
    Operation(
        "constraint",
        _on_table(lambda table, _: table.alter(add_constraints={CONSTRAINT: "k <> 9"})),
        again=False,
    ),
    Operation("constraint goes", _constraint_goes, worlds=FILLED, again=False),
    Operation(
        "publishing begins",
        _on_table(lambda table, _: table.alter(properties={"lakemerge.publish": "deletionVectors"})),
    ),
    Operation(
        "publishing ends",
        _on_table(lambda table, _: table.alter(properties={"lakemerge.publish": None})),
        worlds=frozenset({"published"}),
    ),
    Operation("publication", _on_table(_publish), worlds=frozenset({"published"})),
    Operation("savepoint", _on_table(lambda table, tag: table.savepoint(f"of-{tag}"))),
    Operation("create anew", _make_anew, _anew(_NEW), worlds=FILLED | LOGGED),
    Operation("replace", _replace, _anew({}), worlds=FILLED | LOGGED),
    Operation("drop", _drop, worlds=FILLED | LOGGED, drops=True, again=False),
    # Ingest
    # A file whose columns the table does not have is set aside.
    Operation("ingest", _on_table(_ingest), _loaded, undone=lambda result: result.to_retry == 1),
    Operation("retry of a file", _on_table(_retry), again=False),
    Operation("replay of a window", _on_table(_replay_window), worlds=LANDED, copies=WINDOW),
    # Readers
    Operation("read", _on_table(lambda table, _: table.to_arrow()), sees=rows_of),
    Operation("changes", _on_table(_changed), sees=lambda found: found),  # type: ignore[arg-type,return-value]
    Operation("follower", _on_table(_followed), sees=lambda found: found),  # type: ignore[arg-type,return-value]
    Operation("consumer", _on_table(lambda table, tag: table.consumers.register(f"of-{tag}")), worlds=FILLED | LOGGED),
    Operation(
        "consumer moves",
        _on_table(lambda table, _: table.consumers.advance("c", 7)),
        worlds=FILLED | LOGGED,
        again=False,
    ),
    Operation(
        "consumer goes", _on_table(lambda table, _: table.consumers.drop("c")), worlds=FILLED | LOGGED, again=False
    ),
    Operation(
        "replay", _on_table(_replay), lambda state, _: replace(state, others={"copy": {-1: "replayed"}}), again=True
    ),
    # Statements of SQL
    Operation("TRUNCATE TABLE", _statement("truncate"), lambda state, _: replace(state, rows={})),
    Operation("DELETE FROM", _statement("delete all"), lambda state, _: replace(state, rows={})),
    Operation("CALL compact", _statement("call", name="compact", arguments={"table": "s.t", "minor": False})),
    # Merge source
    Operation("merge source", _run_source(), worlds=SOURCES, settles=True),
    Operation("merge source, full", _run_source(full=True), worlds=SOURCES, settles=True),
    Operation(
        "upsert of a dataset",
        _on_dataset("a", lambda table, _: table.upsert(_entities({"a9": 9}))),
        lambda state, _: replace(state, notes=state.notes | {"a9"}),
        worlds=SOURCES,
    ),
    Operation(
        "override",
        _on_dataset("o", _apart),
        lambda state, _: replace(state, notes=state.notes | {"apart"}),
        worlds=frozenset({"stable"}),
    ),
    Operation("upkeep of a dataset", _on_dataset("a", _upkeep_of_dataset), worlds=SOURCES),
    Operation("upkeep of the output", _on_table(_upkeep), worlds=SOURCES),
    # The end of a history
    Operation(
        "forget",
        _on_table(lambda table, _: table.forget([{"k": 2}])),
        lambda state, _: state.lacking(2),
        worlds=ALONE,
        first=lambda state, _: state.lacking(2),
    ),
    Operation("unconvert", _on_table(lambda table, _: table.unconvert()), worlds=ALONE, plain=True),
    Operation("there and back", _on_table(_there_and_back), worlds=ALONE, plain=True),
)


def operations_of(world: str) -> list[Operation]:
    return [operation for operation in OPERATIONS if world in operation.worlds]
