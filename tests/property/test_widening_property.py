"""Random histories in which types get wider, against the plain-Python model, which has the widest from the start.

Python compares an integer, a decimal and a double by value, so what the model has and what the table shows
are equal at any age of the types.
"""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from tests.conformance.model_mergers import ALL_MERGERS
from tests.model import ModelTable
from tests.property.effort import some

STEPS = 20
KEYS = 12
TYPES = {
    "o": [pa.int16(), pa.int32(), pa.decimal128(12, 1)],
    "n": [pa.int8(), pa.int64(), pa.decimal128(22, 2)],
    "d": [pa.decimal128(4, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)],
    "f": [pa.float32(), pa.float64()],
}
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, -128],
    pa.int16(): [1, 2, 3],
    pa.int32(): [2, 3, 70_000],
    pa.int64(): [1, 2**62],
    pa.float32(): [0.5, 2.0],
    pa.float64(): [0.5, 0.1],
    pa.decimal128(4, 2): [Decimal("1.00"), Decimal("-99.99")],
    pa.decimal128(8, 4): [Decimal("1.0000"), Decimal("0.0001")],
    pa.decimal128(12, 1): [Decimal("2.0"), Decimal("2.5")],
    pa.decimal128(12, 4): [Decimal("1.0000"), Decimal("12345678.0001")],
    pa.decimal128(22, 2): [Decimal("1.00"), Decimal("0.01")],
}
SMALL = Settings(row_group_rows=3, target_task_bytes=1_500)
"""Read in several parts."""


class Story:
    def __init__(self, path: Path, merger: str, seed: int) -> None:
        self.rng = random.Random(f"{merger}/{seed}")
        self.age = dict.fromkeys(TYPES, 0)
        schema = pa.schema([("k", pa.int64()), *((name, kinds[0]) for name, kinds in TYPES.items())])
        widest = pa.schema([("k", pa.int64()), *((name, kinds[-1]) for name, kinds in TYPES.items())])
        options = {"ignore_delete": True} if merger in ("first-row", "partial-update") else {}
        self.table = LakeTable.create(
            path, schema, key=["k"], ordering=["o"], merger=merger, options=options, buckets=2, settings=SMALL
        )
        self.model = ModelTable(widest, key=["k"], ordering=["o"], merger=merger, options=options, mergers=ALL_MERGERS)
        self.seen: dict[int, list[dict[str, Any]]] = {}

    def write(self) -> None:
        """Columns come in the type that the table has, or in an earlier one."""
        names = ["k", "o", *(name for name in ("n", "d", "f") if self.rng.random() < 0.8)]
        kinds = {name: TYPES[name][self.rng.randint(0, self.age[name])] for name in names[1:]}
        rows = [
            {"k": self.rng.randrange(KEYS)} | {name: self.rng.choice(VALUES[kind]) for name, kind in kinds.items()}
            for _ in range(self.rng.randint(1, 8))
        ]
        if self.rng.random() < 0.2:
            rows[0] |= dict.fromkeys(names[2:])
        kind_of = [self.rng.choice(["+U", "+U", "-D"]) for _ in rows]
        columns = {"k": pa.int64(), **kinds}
        frame = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in columns.items()})
        self.table.upsert(frame.append_column("op", pa.array(kind_of)), kind_column="op")
        self.model.write(names, rows, kind_of)

    def widen(self) -> None:
        name = self.rng.choice([name for name, kinds in TYPES.items() if self.age[name] + 1 < len(kinds)] or ["n"])
        self.age[name] = min(self.age[name] + 1, len(TYPES[name]) - 1)
        self.table.alter(widen={name: TYPES[name][self.age[name]]})

    def compact(self) -> None:
        match self.rng.randrange(3):
            case 0:
                self.table.compact()
            case 1:
                self.table.compact(minor=True)
            case _:
                self.table.compact_logs(size_ratio=1e9)

    def step(self) -> None:
        self.rng.choice([self.write, self.write, self.write, self.widen, self.widen, self.compact])()
        self.seen[self.table.version] = self.expected()
        self.check()

    def expected(self) -> list[dict[str, Any]]:
        return sorted(self.model.rows(), key=lambda row: row["k"])

    def check(self) -> None:
        expected = self.expected()
        assert by_key(self.table.to_arrow()) == expected
        key = self.rng.randrange(KEYS)
        assert self.table.get({"k": key}) == next((row for row in expected if row["k"] == key), None)
        for condition, meets in (
            ("o >= 2.5", lambda row: row["o"] >= 2.5),
            ("d < 1", lambda row: row["d"] is not None and row["d"] < 1),
            ("n is null or f = 0.5", lambda row: row["n"] is None or row["f"] == 0.5),
        ):
            assert by_key(self.table.to_arrow(filter=condition)) == list(filter(meets, expected)), condition


def by_key(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["k"])


@pytest.mark.parametrize("seed", some(range(5)))
@pytest.mark.parametrize("merger", ["event-time", "commit-time", "partial-update", "first-row"])
def test_types_get_wider_under_files_of_every_age(merger: str, seed: int, tmp_path: Path) -> None:
    story = Story(tmp_path, merger, seed)
    for _ in range(STEPS):
        story.step()
    for version in story.rng.sample(sorted(story.seen), 5):
        earlier = LakeTable.open(tmp_path, version=version, settings=SMALL)
        assert by_key(earlier.to_arrow()) == story.seen[version], version
    assert sum(story.age.values()) >= 2, "types that hardly change teach little"
    story.table.compact()
    story.check()
    assert LakeTable.check(tmp_path).findings == ()
