"""Random histories: tables, rules, batches of changes and changes of configuration, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemerge import LakeMergeError
from tests.merge_source.model import Model, Refused
from tests.merge_source.world import World

__all__ = ["History"]

COLUMNS = {
    "x": "BIGINT",
    "y": "STRING",
    "t": "ARRAY<BIGINT>",
    "d": "DOUBLE",
    "p": "ARRAY<STRUCT<q: STRING, r: BIGINT>>",
}
"""Columns that a table may have; ``x`` may be an INT, and ``y`` a list."""


class History:
    """One random history, driven in the product and in the model side by side."""

    def __init__(self, seed: int, folder: Path, spark: SparkSession | None = None) -> None:
        self.lots = random.Random(seed)
        self.world = World(folder, spark)
        self.model = Model()
        self.tables: dict[str, str] = {}
        self.columns: dict[str, dict[str, str]] = {}
        self.keys = ["k0", "k1", "k2", "K1", "ø", "k|1"][: self.lots.randint(3, 6)]
        self.spread = self.lots.randint(2, 6)
        for number in range(self.lots.randint(2, 3)):
            self.add_table(f"T{number}")
        self.config = self.draw_config()

    def add_table(self, name: str) -> None:
        lots = self.lots
        columns = {column: kind for column, kind in COLUMNS.items() if lots.random() < 0.7}
        columns["x"] = lots.choice(["BIGINT", "INT"])
        if "y" in columns and lots.random() < 0.3:
            columns["y"] = "ARRAY<STRING>"
        if lots.random() < 0.2:
            columns["$ids"] = "ARRAY<STRING>"
        schema = ", ".join(["_id STRING NOT NULL", *(f"`{n}` {k}" for n, k in columns.items()), "_deleted BOOLEAN"])
        self.world.create(name, schema)
        self.tables[name], self.columns[name] = name, columns

    def draw_config(self) -> dict[str, Any]:
        lots, names = self.lots, list(self.tables)
        aliases = {name: f"a{place}" for place, name in enumerate(names)}
        pairs = []
        for _ in range(lots.randint(1, 4)):
            if len(names) > 1:
                one, other = lots.sample(names, 2)
                pairs.append(["eq", self.expression(one, aliases), self.expression(other, aliases)])
            if lots.random() < 0.2:
                one = self.expression(lots.choice(names), aliases)
                pairs.append(["eq", one, one])
        sets = []
        if lots.random() < 0.5:
            sets.append([self.expression(name, aliases) for name in lots.sample(names, lots.randint(1, len(names)))])
        config: dict[str, Any] = {
            "type": "merge",
            "version": 2,
            "datasets": [f"{name} {alias}" for name, alias in aliases.items()],
            "equality": pairs,
            "equality_sets": sets,
            "identity": lots.choice(["composite", "composite", "first"]),
            "strategy": lots.choice(["default", "compact", "list"]),
            "max_merged": lots.choice([50_000, 6, 3, 2]),
            "oversize": lots.choice(["leave_out", "leave_out", "fail"]),
            "max_retired": lots.choice([1, 1, 1, 0.2]),
            "deleted_retention": lots.choice([None, None, 0]),
            # A table that nobody filled is as good as an empty one.
            "initial_datasets": [],
        }
        if config["identity"] == "first" and lots.random() < 0.8:
            sets.append([f"{alias}.{lots.choice(['_id', '$ids'])}" for alias in aliases.values()])
        if lots.random() < 0.15:
            config["transitive"] = "entities"
        return config

    def expression(self, name: str, aliases: dict[str, str]) -> Any:
        lots, alias, columns = self.lots, aliases[name], self.columns[name]
        paths = [f"{alias}.{column}" for column in columns if column not in ("p", "$ids")]
        paths += [f"{alias}.p.q", f"{alias}.p.r"] if "p" in columns else []
        path = lots.choice([*paths, f"{alias}.x", f"{alias}._id"])
        return lots.choice(
            [
                path,
                path,
                path,
                ["lower", path],
                ["upper", path],
                ["string", path],
                ["concat", path, "-", f"{alias}._id"],
                ["coalesce", path, f"{alias}.x"],
                ["list", path, f"{alias}.x"],
                ["tuples", path, f"{alias}.x"],
                ["strip", path],
                ["nullif", path, lots.choice([1, "a", "A"])],
            ]
        )

    def row(self, name: str, key: str) -> dict[str, Any]:
        lots = self.lots
        row: dict[str, Any] = {"_id": key}
        for column, kind in self.columns[name].items():
            if lots.random() < 0.35:
                continue
            row[column] = self.value(column, kind)
        if lots.random() < 0.12:
            row["_deleted"] = True
        return row

    def value(self, column: str, kind: str) -> Any:
        lots = self.lots
        one: Callable[[], Any] = {
            "x": lambda: lots.randrange(self.spread),
            "t": lambda: lots.choice([None, *range(self.spread)]),
            "y": lambda: lots.choice(["", "A", "a", " a", "Å", "1"]),
            "d": lambda: lots.choice([0.0, 1.0, 2.5, float(lots.randrange(self.spread))]),
            "p": lambda: {
                name: value
                for name, value in (("q", lots.choice([None, "a", "B"])), ("r", lots.choice([None, 1, 2])))
                if value is not None
            },
            "$ids": lambda: lots.choice([*self.keys, "z"]),
        }[column]
        if not kind.startswith("ARRAY"):
            return one()
        return [one() for _ in range(lots.choice([0, 1, 1, 2, 3]))] or ([] if column != "$ids" else ["z"])

    def change(self) -> None:
        """A batch of changes in some of the tables, and now and then a service of a table."""
        lots = self.lots
        for name in lots.sample(list(self.tables), lots.randint(0, len(self.tables))):
            for _ in range(lots.choice([1, 1, 2])):
                keys = lots.sample(self.keys, lots.randint(1, min(3, len(self.keys))))
                changes: list[dict[str, Any]] = []
                for key in keys:
                    if lots.random() < 0.25:
                        changes.append({"delete": key})
                        self.model.delete(self.tables[name], key)
                    else:
                        row = self.row(name, key)
                        changes.append({"upsert": row})
                        self.model.put(self.tables[name], row)
                self.world.apply(name, changes)
            if lots.random() < 0.1:
                self.world.table(name).compact()

    def reconfigure(self) -> bool:
        """Change the configuration, rarely; whether the run must be a full one."""
        lots, chance = self.lots, self.lots.random()
        if chance < 0.08 and len(self.tables) < 4:
            self.add_table(f"T{len(self.world.paths)}")
        elif chance < 0.12:
            old = lots.choice(list(self.tables))
            new = f"{old}'"
            self.world.rename(old, new)
            self.tables = {new if name == old else name: table for name, table in self.tables.items()}
            self.columns[new] = self.columns[old]
            was = self.config["datasets"]
            self.config = {
                **self.config,
                "datasets": [f"{new} {i.split()[1]}" if i.split()[0] == old else i for i in was],
            }
            return False
        elif chance < 0.16 and len(self.tables) > 2:
            gone = lots.choice(list(self.tables))
            del self.tables[gone]
            self.config = self.draw_config()
            return True
        elif chance > 0.2:
            return False
        self.config = self.draw_config()
        return False

    def step(self) -> None:
        """Changes and a run, in the product and in the model."""
        self.change()
        last = self.config
        full = self.reconfigure() or self.lots.random() < 0.1
        expected = self.expected(full=full)
        if isinstance(expected, Refused):
            with pytest.raises(LakeMergeError) as caught:
                self.world.run(self.config, full=full)
            assert caught.value.code == str(expected)
            self.config = last if set(self.tables) == {item.split()[0] for item in last["datasets"]} else self.config
        else:
            assert numbered(self.world.run(self.config, full=full)) == numbered(expected)
        if self.world.source is not None:
            assert numbered(self.world.source.entities()) == numbered(self.model.state)
            assert self.world.source.check().findings == ()

    def expected(self, *, full: bool) -> list[dict[str, Any]] | Refused:
        try:
            return self.model.run(self.config, self.tables, full=full)
        except Refused as refused:
            return refused

    def finish(self) -> None:
        """A full run does what is due, and the next one finds nothing left to do."""
        assert self.world.source is not None
        expected = self.expected(full=True)
        if not isinstance(expected, Refused):
            assert numbered(self.world.run(self.config, full=True)) == numbered(expected)
            assert self.world.run(self.config, full=True) == []


def numbered(entities: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Only the order of ``_updated`` counts."""
    return [{**entity, "_updated": place} for place, entity in enumerate(entities)]
