"""What the merger benchmark folds by functions of arrays, wide products, sketches and bitmaps, with records
that are taken back: configurations, and generated records of 12 columns on the data shapes of ``merger_records``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyroaring

from benchmarks.cases.merger_records import HOT_KEY, Case, Inputs
from mergers import RowKind
from mergers.contract import Bools, Ints

__all__ = ["CASES", "POOL", "SCHEMA", "changes", "numbers_of", "versions"]

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("s", pa.int64()),
        pa.field("i", pa.int64()),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("lists", pa.list_(pa.list_(pa.int64()))),
        pa.field("structs", pa.list_(pa.struct([("a", pa.int64()), ("v", pa.int64())]))),
        pa.field("wide", pa.decimal128(38, 10)),
        pa.field("whole", pa.int64()),
        pa.field("float", pa.float64()),
        pa.field("hll", pa.binary()),
        pa.field("theta", pa.binary()),
        pa.field("bitmap", pa.binary()),
    ]
)
POOL = 1000
"""There are so many different sketches and bitmaps; column ``i`` says which one a record has."""
_LISTS: dict[str, Any] = {"list": "collect", "lists": {"function": "collect", "distinct": True}}
_STRUCTS: dict[str, Any] = {"structs": {"function": "nested_update", "nested_key": ["a"]}}
_PRODUCTS = dict.fromkeys(("wide", "whole", "float"), "product")
_SKETCHES = {"hll": "hll_sketch", "theta": "theta_sketch"}
_BITMAPS = {"bitmap": "roaring_bitmap"}


def _aggregate(name: str, functions: dict[str, Any], *, target: float | None = 2.0, retracts: bool = True) -> Case:
    ignored = {"ignore_retract": [column for column in SCHEMA.names[1:] if column not in functions]} if retracts else {}
    back = RowKind.UPDATE_BEFORE if retracts else None
    return Case(name, "aggregate", target, (), {"aggregates": functions, **ignored}, SCHEMA, back)


CASES = (
    _aggregate("collect", _LISTS, retracts=False),
    _aggregate("collect, retracted", _LISTS),
    _aggregate("nested_update", _STRUCTS, retracts=False),
    _aggregate("nested_update, retracted", _STRUCTS),
    _aggregate("product, retracted", _PRODUCTS),
    Case(
        "partial-update, removals",
        "partial-update",
        2.0,
        (),
        {"sequence_groups": {"s": ["i", "whole"]}, "remove_record_on_sequence_group": ["s"]},
        SCHEMA,
        RowKind.DELETE,
    ),
    # The library is called once a value, which is what these take.
    _aggregate("sketches", _SKETCHES, target=None, retracts=False),
    _aggregate("bitmaps", _BITMAPS, target=None, retracts=False),
)


def changes(scale: float, *, seed: int) -> Inputs:
    """2 M stored rows, and 200,000 changes to them in four commits. Half of the second and of the last
    commit take back what is stored."""
    rng = np.random.default_rng(seed)
    count = max(40, int(2_000_000 * scale))
    base = _rows(rng, np.arange(count))
    frames, masks = [], []
    for number in range(4):
        keys = np.sort(rng.integers(0, count, count // 40))
        back = (rng.random(len(keys)) < 0.5) & (number % 2 == 1)
        frames.append(_replaced(rng, _rows(rng, keys), base.take(pa.array(keys)), back))
        masks.append(back)
    return Inputs("functions", base, frames, masks)


def versions(scale: float, *, seed: int) -> Inputs:
    """1 M records of five versions a key in five commits, a tenth of them of one key. Half of the second
    and the fourth commit take back what the commit before brought."""
    rng = np.random.default_rng(seed)
    keys, hot = max(9, int(180_000 * scale)), max(1, int(20_000 * scale))
    numbers = np.sort(np.concatenate([np.full(hot, HOT_KEY), np.arange(1, keys + 1)]))
    frames, masks = [_rows(rng, numbers)], [np.zeros(len(numbers), dtype=np.bool_)]
    for number in range(1, 5):
        back = (rng.random(len(numbers)) < 0.5) & (number % 2 == 1)
        frames.append(_replaced(rng, _rows(rng, numbers), frames[-1], back))
        masks.append(back)
    return Inputs("functions", SCHEMA.empty_table(), frames, masks)


def numbers_of(entry: int) -> range:
    """The numbers in a sketch or bitmap of the pool."""
    return range(3 * entry, 3 * entry + 3)


def _replaced(rng: np.random.Generator, rows: pa.Table, earlier: pa.Table, back: Bools) -> pa.Table:
    """``rows`` with the values of ``earlier`` in the mask; sequences stay."""
    picks = pa.array(np.arange(rows.num_rows) + rows.num_rows * back)
    kept = pa.concat_tables([rows, earlier]).take(picks)
    return kept.set_column(1, SCHEMA.field("s"), rows.column("s")).combine_chunks()


def _rows(rng: np.random.Generator, keys: Ints) -> pa.Table:
    count = len(keys)
    entries = rng.integers(0, POOL, count)
    columns = {
        "k": pa.array(keys),
        "s": pa.array(rng.integers(0, 1000, count)),
        "i": pa.array(entries),
        "list": _lists(rng, count, lambda n: pa.array(rng.integers(0, 1000, n))),
        "lists": _lists(rng, count, lambda n: _lists(rng, n, lambda m: pa.array(rng.integers(0, 30, m)))),
        "structs": _lists(
            rng,
            count,
            lambda n: pa.StructArray.from_arrays(
                [pa.array(rng.integers(0, 1000, n)), pa.array(rng.integers(0, 10**6, n))], ["a", "v"]
            ),
        ),
        # From 0.9 to 1.1, in steps of a millionth: the product of two has more digits than a step in 64 bits takes.
        "wide": pc.multiply(
            pa.array(rng.integers(900_000, 1_100_000, count)).cast(pa.decimal128(19, 0)),
            pa.scalar("0.000001").cast(pa.decimal128(6, 6)),
        ).cast(pa.decimal128(38, 10)),
        "whole": pa.array(rng.choice(np.array([1, -1]), count)),
        "float": pa.array(rng.random(count) + 0.5),
    }
    columns |= {name: pool.take(pa.array(entries)) for name, pool in _pools().items()}
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _lists(rng: np.random.Generator, count: int, make: Callable[[int], pa.Array]) -> pa.Array:
    """Arrays of up to two elements."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 3, count))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), make(int(offsets[-1])))


@cache
def _pools() -> dict[str, pa.Array]:
    pools: dict[str, list[bytes]] = {"hll": [], "theta": [], "bitmap": []}
    for entry in range(POOL):
        hll, theta = datasketches.hll_sketch(12), datasketches.update_theta_sketch(12)
        for number in numbers_of(entry):
            hll.update(number)
            theta.update(number)
        pools["hll"].append(hll.serialize_compact())
        pools["theta"].append(theta.compact().serialize())
        pools["bitmap"].append(pyroaring.BitMap(numbers_of(entry)).serialize())
    return {name: pa.array(values, pa.binary()) for name, values in pools.items()}
