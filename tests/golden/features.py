"""Golden tables of what is no merger: one for each part of the format. The rows after each step are written by hand.

Each ends with logs that are not compacted yet, as those of :mod:`tests.golden.cases` do.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from lakemerge import LakeTable, Settings
from lakemerge.ingest import Files, IngestJob
from lakemerge.merge_source import MergeConfig, MergeSource
from tests.conformance.values import arrow_schema

__all__ = ["FEATURES", "Feature", "Step", "job_of", "land", "merge_source", "put", "sources_of"]

Rows = Sequence[Sequence[Any]]
KOV = "k BIGINT, o BIGINT, v STRING"
QUIET = {"delta.checkpointInterval": "3", "lakemerge.maintenance": "off"}


@dataclass(frozen=True)
class Step:
    """What is done with the table at a path, and its rows afterwards. What belongs to it is beside it."""

    do: Callable[[Path], object]
    rows: Rows | None = None
    """``None``: as before."""
    ddl: str = ""
    """The columns from here on, where they are others."""


@dataclass(frozen=True)
class Feature:
    name: str
    ddl: str
    steps: Sequence[Step]
    begin: Callable[[Path], object] | None = None
    """What comes before the steps. ``None``: the table is made, with nothing in it."""
    began: str = ""
    """The columns then, where they are others."""
    domains: Sequence[str] = ()
    """How names of domains begin that the last version has."""
    features: Sequence[str] = ()
    """Table features that its protocol names."""
    operations: Sequence[str] = ()
    """Operations of its history."""
    key: Sequence[str] = ("k",)
    ordering: Sequence[str] = ("o",)
    partition_by: Sequence[str] = ()
    merger: str = "event-time"
    options: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    def make(self, path: Path) -> object:
        """What comes before the steps."""
        if self.begin is not None:
            return self.begin(path)
        return LakeTable.create(
            path,
            self.ddl,
            key=self.key,
            ordering=self.ordering,
            partition_by=self.partition_by,
            merger=self.merger,
            options=self.options,
            buckets=1,
            properties={**QUIET, **self.properties},
        )


def _make(ddl: str) -> Callable[[Path], object]:
    return lambda path: LakeTable.create(path, ddl, key=["k"], ordering=["o"], buckets=1, properties=QUIET)


def _write(ddl: str, *rows: Sequence[Any]) -> Callable[[Path], object]:
    """Records of some columns; ``op`` is the column of kinds."""
    schema = arrow_schema(ddl)
    frame = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    kind = "op" if "op" in schema.names else None
    return _on(lambda table: table.upsert(frame, kind_column=kind))


def _on(call: Callable[[LakeTable], object]) -> Callable[[Path], object]:
    return lambda path: call(LakeTable.open(path, settings=Settings(threads=1)))


def _overwrite(partition: str, order: int, value: str, **which: str) -> Callable[[Path], object]:
    """The rows of a partition by one row."""
    rows = pa.table({"p": [partition], "k": [1], "o": [order], "v": [value]})
    return _on(lambda table: table.overwrite(rows, **which))  # type: ignore[arg-type]


_compact = _on(lambda table: table.compact())
_minor = _on(lambda table: table.compact(minor=True))


def _divide(path: Path) -> object:
    """A compaction that gives each key a base file of its own."""
    tiny = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, threads=1)
    return LakeTable.open(path, settings=tiny).compact()


def _vacuum(path: Path) -> object:
    """A vacuum of a table of which each commit is eight days older than the next one."""
    commits = sorted((path / "_delta_log").glob("*.json"))
    for age, commit in enumerate(reversed(commits)):
        made = commit.stat().st_mtime - (4 + 8 * age) * 86_400
        os.utime(commit, (made, made))
    return LakeTable.open(path).vacuum(dry_run=False)


def _delta_table(path: Path) -> object:
    """A table of two partitions, which deltalake made, is converted."""
    for keys in ((1, 2, 3), (4, 5)):
        rows = pa.table(
            {
                "k": pa.array(keys, pa.int64()),
                "o": pa.array([10] * len(keys), pa.int64()),
                "v": [f"v{key}" for key in keys],
                "p": [f"p{key % 2}" for key in keys],
            }
        )
        deltalake.write_deltalake(path, rows, mode="append", partition_by=["p"])
    return LakeTable.convert(path, key=["k"], ordering=["o"], buckets=1)


def land(path: Path, name: str, text: str) -> None:
    """Put a file into the landing folder beside a table."""
    file = path.parent / "landing" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def job_of(path: Path) -> IngestJob:
    """The job that takes files of the landing folder."""
    files = Files(path.parent / "landing", format="json")
    return LakeTable.open(path).ingest("feed", files, bad_records="quarantine", max_bad_records=1)


def _landed(name: str, text: str) -> Callable[[Path], object]:
    def take(path: Path) -> object:
        land(path, name, text)
        return job_of(path).run()

    return take


def sources_of(path: Path) -> MergeConfig:
    """The configuration of a merge source over the two tables beside its output."""
    datasets = {name: LakeTable.open(path.parent / name) for name in "ab"}
    return MergeConfig(datasets=datasets, equality=["a.x = b.x"], identity="stable", initial_datasets=[])


def merge_source(path: Path) -> None:
    """A merge source over two tables, after three runs: entities came, two were joined, and one was split."""
    path.parent.mkdir()
    for name in "ab":
        LakeTable.create(path.parent / name, "_id STRING, x BIGINT", key=["_id"], buckets=1, properties=QUIET)
    source = MergeSource.create(path, sources_of(path))
    for rows in (
        {"a": [("a1", 1), ("a2", 2), ("a3", 3)], "b": [("b1", 1), ("b2", 2)]},
        {"a": [("a3", 2)]},
        {"b": [("b1", 7)]},
    ):
        for name, given in rows.items():
            put(path, name, given)
        source.run()


def put(path: Path, name: str, rows: Sequence[tuple[str, int]]) -> None:
    """Rows of a table that a merge source reads."""
    frame = pa.table({"_id": [key for key, _ in rows], "x": [x for _, x in rows]})
    LakeTable.open(path.parent / name).upsert(frame)


_OLD = [[k, 1 + (k < 3), "ab"[k < 3]] for k in range(8)]
_DELTA = [[k, 10, f"v{k}", f"p{k % 2}"] for k in range(1, 6)]
_PKOV = f"p STRING, {KOV}"
_KN = "k BIGINT, n BIGINT"
_FIRST = "k BIGINT, o BIGINT, v STRING, n INT, c STRING"
_RENAMED = "k BIGINT, o BIGINT, word STRING, n INT"

FEATURES = (
    Feature(
        "transactions",
        _KN,
        ordering=(),
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        operations=("UPDATE", "DELETE"),
        steps=(
            Step(_write(_KN, (1, 5), (2, 7), (3, 1)), [[1, 5], [2, 7], [3, 1]]),
            Step(_write(_KN, (1, -2)), [[1, 3], [2, 7], [3, 1]]),
            Step(_on(lambda table: table.update_where("k = 1", {"n": 10})), [[1, 10], [2, 7], [3, 1]]),
            Step(_on(lambda table: table.delete_where("n = 1")), [[1, 10], [2, 7]]),
            Step(_write(_KN, (1, 1), (3, 4)), [[1, 11], [2, 7], [3, 4]]),
            Step(_divide),
            Step(_on(lambda table: table.update_where("k > 1", {"n": "n * 2"})), [[1, 11], [2, 14], [3, 8]]),
            Step(_write(_KN, (2, 5), (4, 1)), [[1, 11], [2, 19], [3, 8], [4, 1]]),
        ),
    ),
    Feature(
        "published",
        KOV,
        properties={"lakemerge.publish": "deletionVectors"},
        domains=("lakemerge.minor.", "lakemerge.log."),
        features=("deletionVectors",),
        steps=(
            Step(_write(KOV, (1, 1, "a"), (2, 1, "b"), (3, 1, "c")), [[1, 1, "a"], [2, 1, "b"], [3, 1, "c"]]),
            Step(_write(KOV + ", op STRING", (1, 2, "A", "+U"), (2, 2, None, "-D")), [[1, 2, "A"], [3, 1, "c"]]),
            Step(_minor),
            Step(_write(KOV, (3, 2, "C"), (2, 1, "stale")), [[1, 2, "A"], [3, 2, "C"]]),
            Step(_minor),
            Step(_write(KOV, (4, 1, "d"), (2, 3, "back")), [[1, 2, "A"], [2, 3, "back"], [3, 2, "C"], [4, 1, "d"]]),
        ),
    ),
    Feature(
        "columns",
        "k BIGINT, o BIGINT, word STRING, n BIGINT, t TIMESTAMP, v DATE",
        begin=_make("k BIGINT, o BIGINT, v STRING, n INT, c VARCHAR(3)"),
        began=_FIRST,
        features=("columnMapping", "typeWidening", "checkConstraints"),
        steps=(
            Step(
                _write(_FIRST, (1, 1, "a", 1, "x"), (2, 1, "b", 2, "abc  ")),
                [[1, 1, "a", 1, "x"], [2, 1, "b", 2, "abc"]],
            ),
            Step(
                _on(lambda table: table.alter(rename_columns={"v": "word"}, drop_columns=["c"])),
                [[1, 1, "a", 1], [2, 1, "b", 2]],
                _RENAMED,
            ),
            Step(_write(_RENAMED, (1, 2, "A", 3), (3, 1, None, 4)), [[1, 2, "A", 3], [2, 1, "b", 2], [3, 1, None, 4]]),
            Step(
                _on(lambda table: table.alter(widen={"n": "BIGINT"}, add_columns="t TIMESTAMP")),
                [[1, 2, "A", 3, None], [2, 1, "b", 2, None], [3, 1, None, 4, None]],
                "k BIGINT, o BIGINT, word STRING, n BIGINT, t TIMESTAMP",
            ),
            Step(
                _on(lambda table: table.alter(add_constraints={"positive": "n > 0"}, add_columns="v DATE")),
                [[1, 2, "A", 3, None, None], [2, 1, "b", 2, None, None], [3, 1, None, 4, None, None]],
                "k BIGINT, o BIGINT, word STRING, n BIGINT, t TIMESTAMP, v DATE",
            ),
            Step(_compact),
            Step(
                _write("k BIGINT, o BIGINT, n BIGINT, v DATE", (2, 2, 2**40, dt.date(2026, 2, 28))),
                [[1, 2, "A", 3, None, None], [2, 2, "b", 2**40, None, "2026-02-28"], [3, 1, None, 4, None, None]],
            ),
        ),
    ),
    Feature(
        "converted",
        KOV + ", p STRING",
        begin=lambda path: None,
        domains=("lakemerge.converted",),
        steps=(
            Step(_delta_table, _DELTA),
            Step(
                _write(KOV + ", p STRING", (1, 11, "new", "q"), (2, 9, "late", "q")),
                [[1, 11, "new", "q"], *_DELTA[1:]],
            ),
            Step(_on(lambda table: table.alter(properties=QUIET))),
            Step(
                _write("k BIGINT, o BIGINT, op STRING", (3, 12, "-D")),
                [[1, 11, "new", "q"], _DELTA[1], *_DELTA[3:]],
            ),
        ),
    ),
    Feature(
        "kept",
        _PKOV,
        key=("p", "k"),
        partition_by=("p",),
        domains=("lakemerge.savepoint.", "lakemerge.consumer.", "lakemerge.reset"),
        operations=("RESTORE", "OVERWRITE"),
        steps=(
            Step(_write(_PKOV, ("a", 1, 1, "x"), ("b", 1, 1, "y")), [["a", 1, 1, "x"], ["b", 1, 1, "y"]]),
            Step(_on(lambda table: table.savepoint("first"))),
            Step(_on(lambda table: table.consumers.register("follower", version=1))),
            Step(
                _write(_PKOV, ("a", 1, 3, "late"), ("a", 2, 1, "z")),
                [["a", 1, 3, "late"], ["a", 2, 1, "z"], ["b", 1, 1, "y"]],
            ),
            Step(_overwrite("a", 2, "over", partition_mode="dynamic"), [["a", 1, 2, "over"], ["b", 1, 1, "y"]]),
            Step(
                _write(_PKOV, ("a", 3, 1, "after"), ("b", 1, 2, "Y")),
                [["a", 1, 2, "over"], ["a", 3, 1, "after"], ["b", 1, 2, "Y"]],
            ),
            Step(_on(lambda table: table.restore(version=1)), [["a", 1, 1, "x"], ["b", 1, 1, "y"]]),
            Step(_overwrite("b", 5, "again", where="p = 'b'"), [["a", 1, 1, "x"], ["b", 1, 5, "again"]]),
            Step(_on(lambda table: table.savepoint("kept", hold=True))),
            Step(_write(_PKOV, ("a", 1, 2, "X"), ("b", 1, 4, "late")), [["a", 1, 2, "X"], ["b", 1, 5, "again"]]),
        ),
    ),
    Feature(
        "rescaled",
        KOV,
        operations=("RESCALE", "COMPACT LOGS"),
        steps=(
            Step(_write(KOV, *((k, 1, "a") for k in range(8))), [[k, 1, "a"] for k in range(8)]),
            Step(_write(KOV, *((k, 2, "b") for k in range(3))), _OLD),
            Step(_on(lambda table: table.rescale(buckets=4))),
            Step(_write(KOV, *((k, 0, "old") for k in range(9))), [*_OLD, [8, 0, "old"]]),
            Step(_write(KOV, (8, 1, "c"), (9, 1, "c")), [*_OLD, [8, 1, "c"], [9, 1, "c"]]),
            Step(_write(KOV, (9, 0, "late"))),
            Step(_on(lambda table: table.compact_logs(size_ratio=100))),
            Step(_write(KOV, (9, 2, "d"), (0, 3, "d")), [[0, 3, "d"], *_OLD[1:], [8, 1, "c"], [9, 2, "d"]]),
        ),
    ),
    Feature(
        "recorded",
        KOV,
        properties={"lakemerge.recordRetention": "interval 22 days"},
        domains=("lakemerge.records",),
        steps=(
            Step(_write(KOV, (1, 1, "a"), (2, 1, "b"))),
            Step(_write(KOV, (1, 3, "A"))),
            Step(_compact),
            Step(_write(KOV, (1, 2, "late"), (2, 2, "B"))),
            Step(_compact),
            Step(_vacuum, [[1, 3, "A"], [2, 2, "B"]]),
            Step(_write(KOV, (2, 1, "old"), (1, 4, "AA")), [[1, 4, "AA"], [2, 2, "B"]]),
        ),
    ),
    Feature(
        "forgotten",
        KOV,
        operations=("FORGET",),
        steps=(
            Step(_write(KOV, (1, 1, "a"), (2, 1, "b"), (3, 1, "c"))),
            Step(_write(KOV + ", op STRING", (2, 5, "B", "+U"), (3, 5, None, "-D"))),
            Step(_on(lambda table: table.forget([{"k": 2}])), [[1, 1, "a"]]),
            Step(_write(KOV, (3, 4, "stale"), (2, 1, "anew")), [[1, 1, "a"], [2, 1, "anew"]]),
        ),
    ),
    Feature(
        "expired",
        KOV,
        domains=("lakemerge.expiry",),
        steps=(
            Step(_write(KOV, (1, 1, "a"), (2, 1, "b")), [[1, 1, "a"], [2, 1, "b"]]),
            Step(_write("k BIGINT, o BIGINT, op STRING", (2, 5, "-D")), [[1, 1, "a"]]),
            Step(_compact),
            Step(_on(lambda table: table.expire_tombstones(retention=dt.timedelta(0)))),
            Step(_write(KOV, (2, 4, "older")), [[1, 1, "a"], [2, 4, "older"]]),
        ),
    ),
    Feature(
        "replaced",
        "id STRING, w DOUBLE",
        key=("id",),
        ordering=(),
        merger="commit-time",
        begin=_make(KOV),
        began=KOV,
        operations=("CREATE OR REPLACE TABLE",),
        steps=(
            Step(_write(KOV, (1, 1, "a"), (2, 1, "b")), [[1, 1, "a"], [2, 1, "b"]]),
            Step(
                lambda path: LakeTable.create(
                    path, "id STRING, w DOUBLE", key=["id"], buckets=2, replace=True, properties=QUIET
                ),
                (),
                "id STRING, w DOUBLE",
            ),
            Step(_write("id STRING, w DOUBLE", ("x", 0.5), ("y", None)), [["x", 0.5], ["y", None]]),
            Step(_write("id STRING, w DOUBLE", ("y", 1.5)), [["x", 0.5], ["y", 1.5]]),
        ),
    ),
    Feature(
        "ingest",
        KOV,
        domains=("lakemerge.ingest.",),
        steps=(
            Step(
                _landed("a.json", '{"k": 1, "o": 1, "v": "a"}\n{"k": "no number"}\n{"k": 2, "o": 1, "v": "b"}\n'),
                [[1, 1, "a"], [2, 1, "b"]],
            ),
            Step(_landed("b.json", '{"k": 2, "o": 2, "v": "B"}\n'), [[1, 1, "a"], [2, 2, "B"]]),
            Step(_compact),
            Step(
                _landed("c.json", '{"k": 3, "o": 1, "v": "c"}\n{"k": 1, "o": 0, "v": "late"}\n'),
                [[1, 1, "a"], [2, 2, "B"], [3, 1, "c"]],
            ),
        ),
    ),
)
