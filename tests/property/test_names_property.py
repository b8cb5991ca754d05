"""Random histories with renamed and dropped columns, beside a twin whose columns keep names that no other column had.

The twin knows nothing of names: a renamed column is the same column of it, a dropped one is forgotten here, and one
that comes again is a new column there. So whatever the two differ in is a matter of names. Each version that other
engines see whole is also read by deltalake's SQL and DuckDB. polars reads it too, or says that it cannot.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from lakemerge import LakeTable, Settings
from tests.property.effort import some
from tests.property.publishing import READERS

STEPS = 12
KEYS = 12
SMALL = Settings(target_file_bytes=2_000, row_group_rows=4)

# Merger -> its options, by columns of the twin.
MERGERS: dict[str, dict[str, Any]] = {
    "event-time": {"delete_when": {"column": "c2", "values": ["x"]}},
    "commit-time": {"delete_when": {"column": "c0", "values": [7]}},
    "first-row": {},
    "partial-update": {"sequence_groups": {"o,c0": ["c1"]}, "aggregates": {"c1": "max"}},
    "aggregate": {"aggregates": {"c0": "sum", "c1": {"function": "max"}}, "default_aggregate": "last_value",
                  "ignore_retract": ["c1"]},
    "overwrite-non-defaults": {"defaults": {"c0": 3, "c2": "y"}},
    "expression": {"columns": {"c0": "greatest(old.c0, new.c0) + old.c1 * 0", "c1": "coalesce(new.c1, old.c1)"},
                   "remove_when": "new.c2 = 'x'"},
}  # fmt: skip
NAMED = {
    "event-time": ["c2"], "commit-time": ["c0"], "first-row": [], "partial-update": ["c0", "c1"],
    "aggregate": ["c0", "c1"], "overwrite-non-defaults": ["c0", "c2"], "expression": ["c0", "c1", "c2"],
}  # fmt: skip
"""The columns that options name, which cannot be dropped."""
KINDS = {"c0": pa.int64(), "c1": pa.int64(), "c2": pa.string(), "c3": pa.string()}


def with_deltalake(path: Path) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())


def with_polars(path: Path) -> pa.Table:
    return pl.scan_delta(str(path)).collect().to_arrow()


class Story:
    def __init__(self, path: Path, merger: str, seed: int) -> None:
        self.readers: list[Callable[[Path], pa.Table]] = [with_deltalake, READERS["duckdb"]]
        self.rng = random.Random(f"{merger}/{seed}")
        self.merger = merger
        without = merger in ("overwrite-non-defaults", "partial-update")
        self.names = {"p": "p", "k": "k", "o": "o", **{name: name for name in KINDS}}
        """Column of the twin -> its name in the table."""
        self.types = {"p": pa.string(), "k": pa.int64(), "o": pa.int64(), **KINDS}
        schema = pa.schema(list(self.types.items()))
        self.ordering = [] if without or merger == "commit-time" else ["o"]
        buckets = self.rng.choice([1, 2])
        self.path = path / "table"
        publish = self.rng.choice(["off", "deletionVectors"])
        self.table, self.twin = (
            LakeTable.create(
                place,
                schema,
                key=["p", "k"],
                ordering=self.ordering,
                partition_by=["p"],
                merger=merger,
                options=MERGERS[merger],
                buckets=buckets,
                settings=SMALL,
                properties={"lakemerge.maintenance": "off", "lakemerge.publish": publish},
            )
            for place in (self.path, path / "twin")
        )
        self.versions: list[tuple[int, int, dict[str, str]]] = []
        self.made = 0

    def step(self) -> None:
        weights = {"upsert": 8, "delete": 2, "rename": 4, "drop": 1, "add": 2, "compact": 3, "pack": 1, "restore": 1,
                   "update": 1, "vacuum": 1}  # fmt: skip
        (chosen,) = self.rng.choices(list(weights), list(weights.values()))
        getattr(self, chosen)()

    def both(self, call: Any) -> None:
        call(self.table, self.names)
        call(self.twin, {name: name for name in self.names})

    def rows(self, names: list[str]) -> pa.Table:
        count = self.rng.randint(1, 6)
        values: dict[str, list[Any]] = {}
        for name in names:
            if name == "p":
                values[name] = [self.rng.choice(["a", "b"]) for _ in range(count)]
            elif name in ("k", "o"):
                values[name] = [self.rng.randrange(KEYS) for _ in range(count)]
            elif pa.types.is_string(self.types[name]):
                values[name] = [self.rng.choice(["x", "y", "z", None]) for _ in range(count)]
            else:
                values[name] = [self.rng.choice([1, 3, 7, None]) for _ in range(count)]
        return pa.table({name: pa.array(found, self.types[name]) for name, found in values.items()})

    def others(self) -> list[str]:
        return [name for name in self.names if name not in ("p", "k", "o")]

    def upsert(self) -> None:
        others = self.others()
        carried = others if self.rng.random() < 0.5 else self.rng.sample(others, self.rng.randint(1, len(others)))
        sequence = ["c0"] if self.merger == "partial-update" else []  # a frame carries all of a sequence, or none
        rows = self.rows(list(dict.fromkeys(["p", "k", "o", *sequence, *carried])))
        self.both(lambda table, names: table.upsert(rows.rename_columns([names[name] for name in rows.column_names])))

    def delete(self) -> None:
        if self.merger in ("first-row", "partial-update", "overwrite-non-defaults"):
            return
        rows = self.rows(["p", "k", *self.ordering])
        self.both(lambda table, names: table.delete(rows.rename_columns([names[name] for name in rows.column_names])))

    def rename(self) -> None:
        changed = self.rng.sample(list(self.names), self.rng.randint(1, 3))
        if len(changed) > 1 and self.rng.random() < 0.3:  # names change hands
            turned = [self.names[name] for name in changed]
            new = dict(zip(changed, [*turned[1:], turned[0]], strict=True))
        else:
            new = dict(zip(changed, self.fresh(), strict=False))
        self.table.alter(rename_columns={self.names[name]: now for name, now in new.items()})
        self.names |= new

    def fresh(self) -> list[str]:
        """Names that no column has, but some may have had."""
        known = {name.lower() for name in self.names.values()}
        free = [name for name in ("n one", "N.two", "c3", "`q`", "k", "o", "n3", "c0") if name.lower() not in known]
        return self.rng.sample(free, len(free))

    def drop(self) -> None:
        free = [name for name in self.others() if name not in NAMED[self.merger]]
        if not free or len(self.others()) < 2:
            return
        gone = self.rng.choice(free)
        self.table.alter(drop_columns=[self.quoted(self.names.pop(gone))])

    def add(self) -> None:
        free = self.fresh()
        if not free:
            return
        self.made += 1
        name, twin = free[0], f"new{self.made}"
        self.types[twin] = pa.string()
        self.table.alter(add_columns=pa.schema([(name, pa.string())]))
        self.twin.alter(add_columns=f"{twin} STRING")
        self.names[twin] = name

    def compact(self) -> None:
        minor = self.rng.random() < 0.5
        self.both(lambda table, _: table.compact(minor=minor))

    def pack(self) -> None:
        self.both(lambda table, _: table.compact_logs())

    def update(self) -> None:
        value = self.rng.choice(["y", "z"])
        column = next((n for n in self.others() if pa.types.is_string(self.types[n])), None)
        if column is not None:
            self.both(
                lambda table, names: table.update_where(
                    f"{self.quoted(names['k'])} < 4", set={names[column]: f"'{value}'"}
                )
            )

    def vacuum(self) -> None:
        self.both(lambda table, _: table.vacuum())

    def restore(self) -> None:
        if not self.versions:
            return
        version, twin, names = self.rng.choice(self.versions)
        if version == self.table.version or twin == self.twin.version or set(names) - set(self.twin.schema.names):
            return
        self.table.restore(version=version)
        # The twin keeps the columns that it has meanwhile: what they hold is compared by the names of then.
        self.twin.restore(version=twin)
        self.names = dict(names)

    @staticmethod
    def quoted(name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def check(self) -> None:
        known = list(self.names)
        wanted = self.twin.to_arrow(columns=known)
        found = self.table.to_arrow(columns=[self.names[name] for name in known])
        assert sorted(self.table.schema.names) == sorted(self.names.values())
        assert ordered(found.rename_columns(known)) == ordered(wanted)
        column, value = self.rng.choice(known), self.rng.choice([1, 3, 7, "x", "y", "a"])
        if pa.types.is_string(self.types[column]) == isinstance(value, str):
            text = repr(value)
            part = self.table.to_arrow(filter=f"{self.quoted(self.names[column])} = {text}")
            same = self.twin.to_arrow(filter=f"{column} = {text}")
            assert ordered(part.select([self.names[n] for n in known]).rename_columns(known)) == ordered(
                same.select(known)
            )
        key = {"p": "a", "k": self.rng.randrange(KEYS)}
        row = self.table.get({self.names[name]: value for name, value in key.items()})
        twin = self.twin.get(key)
        shown = None if twin is None else {self.names[name]: twin[name] for name in known}
        assert row == shown
        if self.table.detail().log_commits == 0 and self.twin.detail().log_commits == 0:
            base = self.table.to_arrow(mode="base")
            for read in self.readers:
                assert ordered(read(self.path).select(base.column_names)) == ordered(base)
            if "columnMapping" not in self.table.opened.view.snapshot.protocol.reader_features:
                assert ordered(with_polars(self.path).select(base.column_names)) == ordered(base)
            else:
                with pytest.raises(Exception, match="columnMapping"):
                    with_polars(self.path)
        self.versions.append((self.table.version, self.twin.version, dict(self.names)))


def ordered(rows: pa.Table) -> list[str]:
    return sorted(str(list(row.values())) for row in rows.to_pylist())


@pytest.mark.parametrize("seed", some(range(10)))
@pytest.mark.parametrize("merger", MERGERS)
def test_names_are_no_matter_of_rows(merger: str, seed: int, tmp_path: Path) -> None:
    story = Story(tmp_path, merger, seed)
    for _ in range(STEPS):
        story.step()
        story.check()
    report = LakeTable.check(story.path)
    assert not report.findings, report
    for version, twin, names in story.versions[::5]:
        then = LakeTable.open(story.path, version=version).to_arrow(columns=list(names.values()))
        wanted = LakeTable.open(tmp_path / "twin", version=twin).to_arrow(columns=list(names))
        assert ordered(then) == ordered(wanted)
