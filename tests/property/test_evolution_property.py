"""Random histories of schemas that grow, by ``alter`` and by frames that bring columns, against the plain-Python model.

Writers of every age go on writing: with the columns and fields they know, and some from a version they opened
long ago. The model knows top-level columns alone; a field that a struct of its lacks is null.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemerge import LakeTable
from lakemerge.layout.view import TableView
from lakemerge.write.start import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from tests.conformance.model_mergers import ALL_MERGERS
from tests.model import ModelTable
from tests.property.effort import some

STEPS = 18
KEYS = 8
Fields = Mapping[str, pa.DataType]
"""The fields of a struct, by name."""


class Story:
    """A table and its model. The struct ``s``, and the one in the list ``l``, have the same fields."""

    def __init__(self, path: Path, merger: str, seed: int) -> None:
        self.rng = random.Random(f"{merger}/{seed}")
        self.merger = merger
        self.path = path
        self.fields: dict[str, pa.DataType] = {"f0": pa.int32()}
        self.extra: list[str] = []
        schema = pa.schema({"k": pa.int64(), "o": pa.int64(), **self.nested(self.fields)})
        buckets = self.rng.choice([1, 2])
        self.table = LakeTable.create(path, schema, key=["k"], ordering=["o"], merger=merger, buckets=buckets)
        self.model = ModelTable(schema, key=["k"], ordering=["o"], merger=merger, options={}, mergers=ALL_MERGERS)
        self.stale = [self.table.opened.view]
        self.seen: dict[int, dict[int, dict[str, Any]]] = {}
        self.landed_late = 0

    @staticmethod
    def nested(fields: Fields) -> dict[str, pa.DataType]:
        kind = pa.struct(list(fields.items()))
        return {"s": kind, "l": pa.list_(pa.field("element", kind))}

    def frame(
        self, fields: Fields, columns: list[str], *, whole: bool = False
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        types = {"k": pa.int64(), "o": pa.int64(), **self.nested(fields), **dict.fromkeys(columns, pa.string())}
        names = ["k", "o", *columns, *(name for name in ("s", "l") if whole or self.rng.random() < 0.8)]
        self.rng.shuffle(names)
        rows = [{name: self.value(name, fields) for name in names} for _ in range(self.rng.randint(1, 5))]
        return pa.table({name: pa.array([row[name] for row in rows], types[name]) for name in names}), rows

    def value(self, name: str, fields: Fields) -> Any:
        if name in ("k", "o"):
            return self.rng.randrange(KEYS)
        if self.rng.random() < 0.2:
            return None
        if name == "l":
            return [self.value("s", fields) for _ in range(self.rng.randrange(3))]
        if name == "s":
            drawn = {field: self.rng.choice([None, 1, 2]) for field in fields}
            order = self.rng.sample(list(drawn), len(drawn))
            return {field: drawn[field] for field in order}
        return self.rng.choice("abc")

    def known(self, fields: Fields, columns: list[str]) -> tuple[dict[str, pa.DataType], list[str]]:
        """What a writer of some age knows: the first so many fields, in an order of its own, and some columns."""
        some = self.rng.sample(list(fields)[: self.rng.randint(1, len(fields))], 1) + list(fields)
        names = list(dict.fromkeys(some))[: self.rng.randint(1, len(fields))]
        return {name: fields[name] for name in names}, self.rng.sample(columns, self.rng.randint(0, len(columns)))

    def write(self) -> None:
        frame, rows = self.frame(*self.known(self.fields, self.extra))
        self.table.upsert(frame)
        self.told(frame, rows)

    def write_from_an_earlier_version(self) -> None:
        begin: TableView = self.rng.choice(self.stale)
        inner = begin.config.schema.field("s").type
        fields = {field.name: field.type for field in inner}
        columns = [name for name in begin.config.schema.names if name not in ("k", "o", "s", "l")]
        frame, rows = self.frame(*self.known(fields, columns))
        # A load that finds the table changed becomes an append, so this lands from any version.
        upsert_arrow(self.table.opened.handle, begin, frame, WriteRequest())
        self.landed_late += begin.config.schema != self.table.schema
        self.told(frame, rows)

    def write_new_columns(self) -> None:
        fields, columns = self.known(self.fields, self.extra)
        if self.rng.random() < 0.6:
            fields[f"f{len(self.fields)}"] = pa.int32()
        if self.rng.random() < 0.6:
            columns = [*columns, f"c{len(self.extra)}"]
        frame, rows = self.frame(fields, columns, whole=True)
        before = self.table.version
        self.table.upsert(frame, merge_schema=True)
        assert self.table.version == before + 1, "one commit, with the data"
        self.grow(fields, columns)
        self.told(frame, rows)

    def alter(self) -> None:
        field, column = f"f{len(self.fields)}", f"c{len(self.extra)}"
        match self.rng.randrange(4):
            case 0:
                self.table.alter(add_columns=f"s.{field} INT, l.element.{field} INT, {column} STRING")
                self.grow({field: pa.int32()}, [column])
            case 1:
                self.table.alter(add_columns=pa.schema(self.nested({field: pa.int32()})))
                self.grow({field: pa.int32()}, [])
            case 2:
                self.table.alter(order=self.rng.sample(self.table.schema.names, 2))
            case _:
                self.table.alter(comments={"s.f0": str(self.rng.random())})

    def grow(self, fields: Fields, columns: list[str]) -> None:
        self.fields.update(fields)
        new = [name for name in columns if name not in self.extra]
        self.extra += new
        if new:
            self.model.add_columns([pa.field(name, pa.string()) for name in new])
            self.model.change_merger(self.merger, {})  # the same, but told of the columns

    def compact(self) -> None:
        self.table.compact(minor=self.rng.random() < 0.5)

    def compact_logs(self) -> None:
        self.table.compact_logs(size_ratio=10**9)

    def told(self, frame: pa.Table, rows: list[dict[str, Any]]) -> None:
        self.model.write(frame.column_names, rows, ["+U"] * len(rows))

    def step(self) -> None:
        actions = [self.write, self.write_from_an_earlier_version, self.write_new_columns, self.alter]
        self.rng.choice([*actions, self.write, self.compact, self.compact_logs])()
        self.check()
        if self.rng.random() < 0.3:
            self.stale.append(self.table.opened.view)

    def check(self) -> None:
        schema = self.table.schema
        expected = {row["k"]: {f.name: shown(row[f.name], f.type) for f in schema} for row in self.model.rows()}
        self.seen[self.table.version] = expected
        found = by_key(self.table.to_arrow())
        assert found == expected
        key = self.rng.randrange(KEYS)
        assert self.table.get({"k": key}) == expected.get(key)
        filtered = self.table.to_arrow(filter="o >= 4")
        assert by_key(filtered) == {k: row for k, row in expected.items() if row["o"] >= 4}


def shown(value: Any, kind: pa.DataType) -> Any:
    """A value as a type shows it: fields that it lacks are null."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_list(kind):
        return [shown(part, kind.value_type) for part in value]
    return {field.name: value.get(field.name) for field in kind}


def by_key(table: pa.Table) -> dict[int, dict[str, Any]]:
    rows = table.to_pylist()
    found = {row["k"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("seed", some(range(4)))
@pytest.mark.parametrize("merger", ["event-time", "commit-time", "partial-update"])
def test_schemas_grow_under_writers_of_every_age(merger: str, seed: int, tmp_path: Path) -> None:
    story = Story(tmp_path, merger, seed)
    for _ in range(STEPS):
        story.step()
    for version in story.rng.sample(sorted(story.seen), min(6, len(story.seen))):
        assert by_key(LakeTable.open(tmp_path, version=version).to_arrow()) == story.seen[version], version
    story.table.compact()
    story.check()
    assert by_key(story.table.to_arrow(mode="base")) == by_key(pa.table(DeltaTable(tmp_path).to_pyarrow_table()))
    assert LakeTable.check(tmp_path).findings == ()
    assert len(story.fields) + len(story.extra) > 1, "a schema that hardly grows teaches little"


def test_writers_of_other_ages_are_among_them(tmp_path: Path) -> None:
    story = Story(tmp_path, "event-time", 0)
    for _ in range(STEPS):
        story.step()
    assert story.landed_late
