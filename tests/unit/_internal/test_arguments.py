"""Whatever kind of value a public call gets, the outcome is an answer or an error of this library.

The calls are found by introspection: one that is added without an entry here fails the test. What goes out besides,
such as a caller's own exceptions, is in docs/reference/errors.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import inspect
import itertools
import math
import shutil
import threading
import traceback
import zoneinfo
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lakemerge
from lakemerge import CompactionStrategy, LakeTable, ReadPolicy, Settings
from lakemerge._internal.arguments import check_of
from lakemerge.errors import LakeMergeError
from lakemerge.feed.consumers import Consumers
from lakemerge.flows import auto_cdc, auto_cdc_from_snapshot, history
from lakemerge.ingest import Archive, Bins, Files, Fragments, IngestJob
from lakemerge.merge_source import Dataset, MergeConfig, MergeSource
from lakemerge.report import report_html
from mergers import register_merger
from tests.property.effort import some
from tests.unit.project.test_architecture import PUBLIC


class Rude:
    """An object that answers nothing."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "zero": lambda: 0,
    "minus": lambda: -1,
    "seven": lambda: 7,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "2**200": lambda: 2**200,
    "a float": lambda: 1.5,
    "a whole float": lambda: 2.0,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "complex": lambda: 1j,
    "a fraction": lambda: Fraction(1, 3),
    "a decimal": lambda: Decimal("1.5"),
    "no decimal": lambda: Decimal("sNaN"),
    "text": lambda: "x",
    "no text": lambda: "",
    "long text": lambda: "x" * 5000,
    "a null character": lambda: "a\0b",
    "half a pair": lambda: "\ud800",
    "digits": lambda: "7",
    "words": lambda: "x; DROP TABLE y --",
    "bytes": lambda: b"x",
    "a bytearray": lambda: bytearray(b"x"),
    "a list": list,
    "a list of numbers": lambda: [1],
    "a list of None": lambda: [None],
    "a mixed list": lambda: ["id", None],
    "nested lists": lambda: [["id"]],
    "a list of bytes": lambda: [b"id"],
    "a tuple": lambda: ("id",),
    "twice the same": lambda: ["id", "id"],
    "a set": lambda: {"id"},
    "a dict": dict,
    "a dict of text": lambda: {"x": "y"},
    "a dict of numbers": lambda: {1: 2},
    "a dict of None": lambda: {None: None},
    "a dict of a list": lambda: {"id": [1]},
    "a key": lambda: {"id": 1},
    "a range": lambda: range(3),
    "a generator": lambda: (one for one in ["id"]),
    "an object": object,
    "a rude object": Rude,
    "a class": lambda: int,
    "a function": lambda: lambda *args, **kwargs: None,
    "a function that fails not": lambda: print,
    "a path": lambda: Path("x"),
    "a date": lambda: dt.date(2026, 1, 1),
    "a datetime": lambda: dt.datetime(2026, 1, 1),  # noqa: DTZ001 - it has no zone
    "a datetime with a zone": lambda: dt.datetime(9999, 12, 31, tzinfo=zoneinfo.ZoneInfo("America/Lima")),
    "the first datetime": lambda: dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14))),
    "a time": lambda: dt.time(1),
    "a timedelta": lambda: dt.timedelta(1),
    "a negative timedelta": lambda: dt.timedelta(-1),
    "the longest timedelta": lambda: dt.timedelta.max,
    "np.int64": lambda: np.int64(1),
    "np.uint8": lambda: np.uint8(1),
    "np.float64": lambda: np.float64(1.5),
    "np.float32": lambda: np.float32("nan"),
    "np.bool": lambda: np.bool_(True),
    "np.str": lambda: np.str_("x"),
    "np.bytes": lambda: np.bytes_(b"x"),
    "np.datetime64": lambda: np.datetime64("2026-01-01"),
    "np.datetime64 NaT": lambda: np.datetime64("NaT"),
    "np.timedelta64": lambda: np.timedelta64(1, "D"),
    "np.array": lambda: np.array([1, 2]),
    "np.array of text": lambda: np.array(["id"]),
    "np.array of objects": lambda: np.array([object()], dtype=object),
    "np.array of one": lambda: np.array(1),
    "np.void": lambda: np.zeros(1, dtype=[("a", "i4")])[0],
    "pd.NA": lambda: pd.NA,
    "pd.NaT": lambda: pd.NaT,
    "pd.Timestamp": lambda: pd.Timestamp("2026-01-01", tz="UTC"),
    "pd.Timedelta": lambda: pd.Timedelta("1D"),
    "pd.Series": lambda: pd.Series(["id"]),
    "pd.Index": lambda: pd.Index(["id"]),
    "pd.DataFrame": lambda: pd.DataFrame({"id": [1], "v": [object()]}),
    "pd.DataFrame of columns twice": lambda: pd.DataFrame([[1, 2]], columns=["id", "id"]),
    "pd.DataFrame of numbered columns": lambda: pd.DataFrame([[1, 2]]),
    "pa.Scalar": lambda: pa.scalar(1),
    "pa.Array": lambda: pa.array(["id"]),
    "pa.Table": lambda: pa.table({"id": [1], "v": ["x"]}),
    "pa.Table of columns twice": lambda: pa.table([[1], [2]], names=["id", "id"]),
    "pa.Schema": lambda: pa.schema([("id", pa.int64())]),
    "pa.DataType": pa.int64,
    "pa.Expression": lambda: pc.field("id") > 1,
    "no pa.Expression": lambda: pc.field(99) == 1,
}
"""A new value each time, because some can be gone through once."""


@dataclasses.dataclass(frozen=True)
class Call:
    """How a public call is made."""

    made: Callable[[Path], Callable[..., object]]
    """Given a folder that holds the table ``t`` and more: the function."""
    right: Callable[[], dict[str, Any]] = dict
    """Arguments that do."""
    writes: bool = False


def table(folder: Path) -> LakeTable:
    return LakeTable.open(folder / "t")


def needed_by_nobody(folder: Path) -> LakeTable:
    found = table(folder)
    if found.savepoints():
        found.drop_savepoint("kept")
    for consumer in found.consumers.list():
        found.consumers.drop(consumer.name)
    return found


def of_table(name: str, writes: bool = False, /, **right: Any) -> Call:
    return Call(lambda folder: getattr(table(folder), name), lambda: dict(right), writes)


def plain(folder: Path) -> Path:
    """A plain Delta table."""
    place = folder / "plain"
    if not place.exists():
        deltalake.write_deltalake(place, pa.table({"id": [1], "v": ["x"], "at": [1]}))
    return place


def at_path(function: Callable[..., object], place: Path) -> Callable[..., object]:
    """A call whose path is ``place`` if none is given."""
    return lambda path=None, **how: function(place if path is None else path, **how)


def drained(function: Callable[..., Any]) -> Callable[..., object]:
    """A call whose result is gone through, so that nothing is left for later."""

    def call(*args: Any, **kwargs: Any) -> object:
        return list(itertools.islice(function(*args, **kwargs), 100))

    return call


def of_files(**_: Any) -> Call:
    def made(folder: Path) -> Callable[..., object]:
        def files(*locations: Any, **how: Any) -> object:
            return (
                list(Files(*locations, **how).locations()) if not callable(locations[0]) else Files(*locations, **how)
            )

        return files

    return Call(made, lambda: {"format": "json"})


def followed(folder: Path) -> Callable[..., object]:
    stop = threading.Event()
    stop.set()

    def call(**how: Any) -> object:
        return list(MergeSource.open(folder / "out").follow(**({"stop": stop} | how)))

    return call


FRAME = pa.table({"id": [9], "v": ["x"], "at": [9]})
SPARK = {
    "to_df": "needs a session",
    "create_temp_view": "needs a session",
    "changes_df": "needs a session",
    "register": "needs a session",
    "write_stream": "needs a session",
    "batch_writer": "gives a function for a session",
}
"""Their arguments are checked by the same decorator; ``tests/spark`` has their own checks."""
SPARK_ARGUMENTS = frozenset({"spark"})
CALLS: dict[str, Call] = {
    "LakeTable.create": Call(
        lambda folder: (
            lambda path=None, schema="id BIGINT, v STRING, at BIGINT", **how: LakeTable.create(
                folder / "new" if path is None else path, schema, **how
            )
        ),
        lambda: {"path": None, "schema": "id BIGINT, v STRING, at BIGINT", "key": ["id"]},
        True,
    ),
    "LakeTable.open": Call(lambda folder: at_path(LakeTable.open, folder / "t")),
    "LakeTable.exists": Call(lambda folder: at_path(LakeTable.exists, folder / "t")),
    "LakeTable.drop": Call(lambda folder: at_path(LakeTable.drop, folder / "none")),
    "LakeTable.convert": Call(
        lambda folder: at_path(LakeTable.convert, plain(folder)), lambda: {"key": ["id"], "dry_run": True}
    ),
    "LakeTable.unconvert": Call(lambda folder: needed_by_nobody(folder).unconvert, writes=True),
    "LakeTable.check": Call(lambda folder: at_path(LakeTable.check, folder / "t")),
    "LakeTable.detail": of_table("detail"),
    "LakeTable.buckets": of_table("buckets"),
    "LakeTable.gauges": of_table("gauges"),
    "LakeTable.upsert": of_table("upsert", True, frame=FRAME),
    "LakeTable.delete": of_table("delete", True, keys=FRAME.select(["id"])),
    "LakeTable.delete_where": of_table("delete_where", True, condition="id = 1"),
    "LakeTable.update_where": of_table("update_where", True, condition="id = 1", set={"v": "v"}),
    "LakeTable.overwrite": of_table("overwrite", True, frame=FRAME),
    "LakeTable.merge": of_table("merge", False, source=None, on="target.id = source.id"),
    "LakeTable.ingest": of_table("ingest", name="job"),
    "LakeTable.to_arrow": of_table("to_arrow"),
    "LakeTable.scan": Call(lambda folder: drained(table(folder).scan)),
    "LakeTable.get": of_table("get", key={"id": 1}),
    "LakeTable.query": of_table("query", sql="SELECT 1"),
    "LakeTable.explain_read": of_table("explain_read"),
    "LakeTable.changes": Call(lambda folder: drained(table(folder).changes), lambda: {"since": 0}),
    "LakeTable.follow": Call(lambda folder: drained(table(folder).follow), lambda: {"poll": None, "until": 2}),
    "LakeTable.explain": of_table("explain", key={"id": 1}),
    "LakeTable.lineage": of_table("lineage"),
    "LakeTable.failed_keys": of_table("failed_keys"),
    "LakeTable.record_send": of_table("record_send", True, to="elsewhere"),
    "LakeTable.associate": of_table("associate", True, uri="ticket:1"),
    "LakeTable.what_if": Call(lambda folder: lambda **how: table(folder).what_if(**how).to_arrow()),
    "LakeTable.verify_merger": of_table("verify_merger"),
    "LakeTable.replay": Call(
        lambda folder: lambda into=None, **how: table(folder).replay(folder / "other" if into is None else into, **how)
    ),
    "LakeTable.alter": of_table("alter", True, properties={"lakemerge.maintenance": "off"}),
    "LakeTable.history": of_table("history"),
    "LakeTable.savepoint": of_table("savepoint", True, name="one"),
    "LakeTable.savepoints": of_table("savepoints"),
    "LakeTable.drop_savepoint": of_table("drop_savepoint", True, name="kept"),
    "LakeTable.restore": of_table("restore", True, version=1),
    "LakeTable.compact": of_table("compact", True),
    "LakeTable.compact_logs": of_table("compact_logs", True),
    "LakeTable.rescale": of_table("rescale", True, buckets=2),
    "LakeTable.expire_tombstones": of_table("expire_tombstones", True),
    "LakeTable.vacuum": of_table("vacuum"),
    "LakeTable.forget": of_table("forget", True, keys=FRAME.select(["id"]), drop_history=True),
    "LakeTable.maintain": of_table("maintain", True),
    "LakeTable.copy_to": Call(lambda folder: at_path(table(folder).copy_to, folder / "copy")),
    "Consumers.register": Call(lambda folder: table(folder).consumers.register, lambda: {"name": "another"}, True),
    "Consumers.advance": Call(lambda folder: table(folder).consumers.advance, lambda: {"name": "reader", "version": 2}),
    "Consumers.list": Call(lambda folder: table(folder).consumers.list),
    "Consumers.expire": Call(lambda folder: table(folder).consumers.expire),
    "Consumers.drop": Call(lambda folder: table(folder).consumers.drop, lambda: {"name": "reader"}, True),
    "IngestJob.run": Call(lambda folder: lambda **how: stopped(folder).run(**how)),
    "IngestJob.trigger": Call(lambda folder: job(folder).trigger),
    "IngestJob.stop": Call(lambda folder: job(folder).stop),
    "IngestJob.status": Call(lambda folder: job(folder).status),
    "IngestJob.files": Call(lambda folder: job(folder).files),
    "IngestJob.rejects": Call(lambda folder: job(folder).rejects),
    "IngestJob.retry": Call(lambda folder: job(folder).retry),
    "IngestJob.reset": Call(lambda folder: job(folder).reset),
    "IngestJob.replay": Call(lambda folder: job(folder).replay),
    "MergeSource.create": Call(
        lambda folder: (
            lambda output_path=None, config=None, **how: MergeSource.create(
                folder / "new" if output_path is None else output_path,
                config if "config" in how or config is not None else merge_config(folder),
                **how,
            )
        )
    ),
    "MergeSource.preview": Call(
        lambda folder: (
            lambda output_path=None, config=None, **how: MergeSource.preview(
                folder / "not-there" if output_path is None else output_path,
                merge_config(folder) if config is None else config,
                **how,
            )
        )
    ),
    "MergeSource.open": Call(
        lambda folder: (
            lambda output_path=None, **how: MergeSource.open(
                folder / "out" if output_path is None else output_path, **how
            )
        )
    ),
    "MergeSource.run": Call(lambda folder: MergeSource.open(folder / "out").run),
    "MergeSource.pending": Call(lambda folder: MergeSource.open(folder / "out").pending),
    "MergeSource.follow": Call(followed),
    "MergeSource.entities": Call(lambda folder: MergeSource.open(folder / "out").entities),
    "MergeSource.explain": Call(lambda folder: MergeSource.open(folder / "out").explain, lambda: {"output_id": "a"}),
    "MergeSource.current_ids": Call(
        lambda folder: MergeSource.open(folder / "out").current_ids, lambda: {"output_id": "a"}
    ),
    "MergeSource.findings": Call(lambda folder: MergeSource.open(folder / "out").findings),
    "MergeSource.check": Call(lambda folder: MergeSource.open(folder / "out").check),
    "MergeSource.report": Call(lambda folder: MergeSource.open(folder / "out").report),
    "MergeConfig": Call(lambda folder: MergeConfig, lambda: {"datasets": {"a": "x"}}),
    "MergeConfig.from_sesam": Call(
        lambda folder: MergeConfig.from_sesam, lambda: {"source": {"type": "merge"}, "tables": {"a": "x"}}
    ),
    "Dataset": Call(lambda folder: Dataset, lambda: {"table": "x"}),
    "Files": of_files(),
    "Bins": Call(lambda folder: Bins),
    "Fragments": Call(lambda folder: Fragments),
    "Archive": Call(lambda folder: Archive),
    "Settings": Call(lambda folder: Settings),
    "ReadPolicy": Call(lambda folder: ReadPolicy),
    "CompactionStrategy": Call(lambda folder: CompactionStrategy),
    "auto_cdc": Call(
        lambda folder: auto_cdc,
        lambda: {"source": FRAME, "target": "nowhere", "keys": ["id"], "sequence_by": "at"},
    ),
    "auto_cdc_from_snapshot": Call(
        lambda folder: auto_cdc_from_snapshot,
        lambda: {"source": FRAME, "target": "nowhere", "keys": ["id"], "version": 1},
    ),
    "history": Call(lambda folder: history, lambda: {"target": None}),
    "report_html": Call(lambda folder: lambda **how: report_html(**({"table": table(folder)} | how))),
    "listen": Call(lambda folder: lambda **how: lakemerge.listen(**how)(), lambda: {"listener": print}),
    "register_merger": Call(lambda folder: register_merger, lambda: {"merger": None}),
    "unwrap_error": Call(lambda folder: lakemerge.unwrap_error, lambda: {"error": ValueError()}),
}


def merge_config(folder: Path) -> MergeConfig:
    return MergeConfig(datasets={"a": str(folder / "t")})


def job(folder: Path) -> IngestJob:
    return table(folder).ingest("job", Files(folder / "landing", format="json"))


def stopped(folder: Path) -> IngestJob:
    """A job that ends with ``every``, too."""
    found = job(folder)
    found.stop()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    made = LakeTable.create(
        folder / "t", "id BIGINT, v STRING, at BIGINT", key=["id"], ordering=["at"], buckets=1,
        properties={"lakemerge.maintenance": "off"},
    )  # fmt: skip
    for at in range(2):
        made.upsert(pa.table({"id": [1, 2], "v": ["a", "b"], "at": [at, at]}))
    made.savepoint("kept")
    made.consumers.register("reader", version=1)
    (folder / "landing").mkdir()
    (folder / "landing/one.json").write_text('{"id": 3, "v": "c", "at": 1}\n')
    made.ingest("job", Files(folder / "landing", format="json")).run()
    MergeSource.create(folder / "out", merge_config(folder)).run()
    return folder


def parameters_of(function: Callable[..., object]) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.name not in SPARK_ARGUMENTS | {"self"} and one.kind != one.VAR_KEYWORD]


@cache
def public() -> dict[str, Callable[..., object]]:
    """Every public call by name."""
    found: dict[str, Callable[..., object]] = {}
    for kind in (LakeTable, Consumers, IngestJob, MergeSource):
        for name, member in inspect.getmembers(kind):
            if (
                not name.startswith("_")
                and callable(member)
                and not isinstance(inspect.getattr_static(kind, name), property)
            ):
                found[f"{kind.__name__}.{name}"] = member
    for module in ("lakemerge", "lakemerge.flows", "lakemerge.ingest", "lakemerge.merge_source", "lakemerge.report"):
        owner = __import__(module, fromlist=["x"])
        for name in owner.__all__:
            member = getattr(owner, name)
            is_made_by_users = member in (Settings, ReadPolicy, CompactionStrategy, Files, Bins, Fragments, Archive)
            is_made_by_users = is_made_by_users or member in (MergeConfig, Dataset)
            if inspect.isfunction(member) or is_made_by_users:
                found[name] = member
    found["MergeConfig.from_sesam"] = MergeConfig.from_sesam
    return found


OWN = {
    ("LakeTable.replay", "transform", "a class"): "the caller's own function fails",
    ("MergeSource.follow", "stop", "None"): "it follows for ever",
}
JUDGE_THEMSELVES = ("listen", "register", "register_merger", "unwrap_error", "MergeConfig.from_sesam")
"""They list all problems, or have errors of their own."""
NOT_CALLED = {
    **{f"LakeTable.{name}": why for name, why in SPARK.items()},
    "LakeTable.opened_anew": "not public, see its docstring",
    "Consumers.move": "not public, see its docstring",
    "Consumers.position": "not public, see its docstring",
    "catalog": "needs a session",
    "history_df": "needs a session",
    "register": "needs a session",
    "unwrap_errors": "takes nothing",
}


def test_every_public_call_has_an_entry() -> None:
    assert set(public()) == CALLS.keys() | NOT_CALLED.keys()
    assert {name for names in PUBLIC.values() for name in names} >= {"LakeTable", "Files", "Settings"}


def test_every_public_call_checks_its_arguments_at_the_door() -> None:
    """So a parameter that is added is checked, too. Dataclasses check their fields."""
    for name, function in public().items():
        own = NOT_CALLED.get(name, "").startswith("not public")
        if own or inspect.isclass(function) or name in JUDGE_THEMSELVES:
            continue
        wanted = {
            one.name for one in inspect.signature(function).parameters.values() if check_of(one.annotation) is not None
        }
        assert set(getattr(function, "__checked__", ())) == wanted, name


@pytest.mark.parametrize(
    ("annotation", "value", "taken"),
    [
        ("int", np.int64(7), 7),
        ("int | None", None, None),
        ("float", np.float32(0.5), 0.5),
        ("float", Decimal("0.5"), 0.5),
        ("bool", np.bool_(True), True),
        ("str", np.str_("x"), "x"),
        ("Sequence[str]", pd.Index(["a", "b"]), ("a", "b")),
        ("Sequence[str]", np.array(["a"]), ("a",)),
        ("Sequence[str] | None", (name for name in "ab"), ("a", "b")),
        ("tuple[str, int]", ("app", np.uint8(3)), ("app", 3)),
        ("Literal['a', 'b']", np.str_("b"), "b"),
        ("dt.timedelta", pd.Timedelta("1D"), dt.timedelta(1)),
    ],
)
def test_values_that_stand_for_the_right_kind(annotation: str, value: Any, taken: Any) -> None:
    check = check_of(annotation)
    assert check is not None
    found = check(value, "x")
    assert found == taken
    assert type(found) is type(taken) or isinstance(value, dt.timedelta)


def test_numbers_of_numpy_and_pandas_do_what_plain_ones_do(whole: Path) -> None:
    made = LakeTable.open(whole / "t", version=np.int64(1))  # type: ignore[arg-type]
    assert made.version == 1
    rows = pd.DataFrame({"since": [0], "until": [1]})
    found = made.changes(rows["since"][0], rows["until"].iloc[0]).read_all()
    assert found.equals(made.changes(0, 1).read_all())
    assert Settings(threads=np.int32(2)) == Settings(threads=2)  # type: ignore[arg-type]
    assert type(Settings(threads=np.int32(2)).threads) is int  # type: ignore[arg-type]
    assert made.to_arrow(columns=pd.Index(["v"])).column_names == ["v"]  # type: ignore[arg-type]


def attempted(name: str, call: Call, folder: Path, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with the outcome of a call; ``None``: it is an answer or an error of ours."""
    positional = [arguments["locations"]] if "locations" in arguments else ["x"] if "format" in arguments else []
    given = {name: value for name, value in arguments.items() if name != "locations"}
    try:
        with contextlib.chdir(folder):
            call.made(folder)(*positional, **given) if positional else call.made(folder)(**given)
    except LakeMergeError as error:
        if not error.message or ("\n" in error.message.strip() and name != "LakeTable.query"):  # DuckDB's has lines
            return f"a message of {len(error.message)} characters: {error.message[:200]}"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return "".join(traceback.format_exception_only(error)).strip() + " at " + place_of(error)
    return None


def place_of(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/lakemerge/" in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[::-1][:3])


@pytest.mark.parametrize("name", CALLS)
def test_wrong_kinds(name: str, whole: Path, tmp_path: Path) -> None:
    call, bad = CALLS[name], []
    folder = shutil.copytree(whole, tmp_path / "w")
    before = table(folder).version
    for parameter in parameters_of(public()[name]):
        for what, make in some([*WRONG.items()]):
            if (name, parameter, what) in OWN:
                continue
            problem = attempted(name, call, folder, call.right() | {parameter: make()})
            if problem is not None:
                bad.append(f"{parameter} = {what}: {problem}")
            if table(folder).version != before or any((folder / one).exists() for one in ("new", "other")):
                shutil.rmtree(folder)
                shutil.copytree(whole, folder)
    assert not bad, f"{len(bad)} of {name}:\n" + "\n".join(bad)


def test_the_right_arguments_do(whole: Path, tmp_path: Path) -> None:
    """Else the test above would see one error all the time."""
    refused = {
        "IngestJob.replay",
        "history",
        "register_merger",
        "MergeConfig.from_sesam",
        "MergeSource.current_ids",
        "MergeSource.explain",
        "LakeTable.replay",
    }
    for name, call in CALLS.items():
        folder = shutil.copytree(whole, tmp_path / name)
        try:
            positional = ["x"] if name == "Files" else []
            with contextlib.chdir(folder):
                call.made(folder)(*positional, **call.right())
        except LakeMergeError:
            assert name in refused
