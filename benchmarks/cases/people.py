"""Tables of people for the benchmark of merge sources, and a union-find that says who is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge import LakeTable

__all__ = ["RULES", "SCHEMAS", "People", "union_find"]

Ints = npt.NDArray[np.int64]

SCHEMAS: Mapping[str, str] = {
    "a": "id BIGINT, name STRING, city STRING, amount DOUBLE, email STRING",
    "b": "id BIGINT, source STRING, visits INT, mail STRING, phone STRING",
    "c": "id BIGINT, note STRING, score DOUBLE, phone STRING",
}
RULES = ("a.email = b.mail", "b.phone = c.phone")
_COLUMNS = {"a": ("email",), "b": ("mail", "phone"), "c": ("phone",)}
_JOINED = (("a", "email", "b", "mail"), ("b", "phone", "c", "phone"))
_CITIES = 500
_CHUNK_ROWS = 500_000


@dataclass
class People:
    """Who each row of the three tables is: two of three people are in any one of them."""

    rows: int
    who: dict[str, dict[str, Ints]]
    """By table and column, the person of each row; below 0 for values that no other table has."""
    rng: np.random.Generator

    @staticmethod
    def drawn(rows: int, *, alone: Literal["one", "each"] | None = None, seed: int = 1) -> People:
        """:param alone: whether the rows of the first table hold values that no other table has, and so are alone: all
        rows one and the same value, or each its own."""
        rng = np.random.default_rng(seed)
        who = {}
        for name, columns in _COLUMNS.items():
            person = rng.permutation(rows * 3 // 2)[:rows].astype(np.int64)
            who[name] = {column: person.copy() for column in columns}
        if alone is not None:
            who["a"]["email"][:] = -1 if alone == "one" else -1 - np.arange(rows)
        return People(rows, who, rng)

    def create(self, folder: Path) -> dict[str, LakeTable]:
        """The tables, with all rows."""
        tables = {}
        for name, schema in SCHEMAS.items():
            tables[name] = LakeTable.create(folder / name, schema, key=["id"])
            first = next(chunks := self._chunks(name))
            tables[name].upsert(pa.RecordBatchReader.from_batches(first.schema, _chained(first, chunks)))
        return tables

    def change(self, tables: Mapping[str, LakeTable], rows: int) -> None:
        """Give so many rows, spread over the tables, other values: some come together with others, some part."""
        share = rows // len(tables)
        for name, table in tables.items():
            count = rows - share * (len(tables) - 1) if name == "a" else share
            chosen = np.sort(self.rng.choice(self.rows, count, replace=False))
            for column in _COLUMNS[name]:
                self.who[name][column][chosen] = self.rng.integers(0, self.rows * 3 // 2, count)
            table.upsert(self._frame(name, chosen))

    def _chunks(self, name: str) -> Iterator[pa.RecordBatch]:
        for first in range(0, self.rows, _CHUNK_ROWS):
            rows = np.arange(first, min(self.rows, first + _CHUNK_ROWS))
            yield from self._frame(name, rows).combine_chunks().to_batches()

    def _frame(self, name: str, rows: Ints) -> pa.Table:
        texts = pa.array(rows).cast(pa.string())
        own = {column: _texts(column, who[rows]) for column, who in self.who[name].items()}
        payload = {
            "a": lambda: {
                "name": _with("Name ", texts),
                "city": _with("City ", pa.array(rows % _CITIES).cast(pa.string())),
                "amount": pa.array(rows * 0.25),
            },
            "b": lambda: {
                "source": _with("source ", pa.array(rows % 7).cast(pa.string())),
                "visits": pa.array((rows % 1000).astype(np.int32)),
            },
            "c": lambda: {"note": _with("a note of ", texts), "score": pa.array(rows % 101 / 4)},
        }[name]()
        return pa.table({"id": pa.array(rows), **payload, **own})


def union_find(people: People) -> dict[str, Ints]:
    """By table, a number for each row: the same for rows that are the same."""
    starts = {name: place * people.rows for place, name in enumerate(_COLUMNS)}
    parent = list(range(people.rows * len(starts)))

    def find(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for left, column, right, other in _JOINED:
        holders: dict[int, list[int]] = {}
        for place, person in enumerate(people.who[right][other].tolist()):
            holders.setdefault(person, []).append(starts[right] + place)
        for place, person in enumerate(people.who[left][column].tolist()):
            for holder in holders.get(person, ()):
                parent[find(holder)] = find(starts[left] + place)
    roots = np.array([find(item) for item in range(len(parent))], dtype=np.int64)
    return {name: roots[start : start + people.rows] for name, start in starts.items()}


def _texts(column: str, who: Ints) -> pa.Array:
    numbers = pa.array(who).cast(pa.string())
    return _with("+47 ", numbers) if column == "phone" else pc.binary_join_element_wise("p", numbers, "@mail.org", "")


def _with(start: str, texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(start, texts, "")


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
