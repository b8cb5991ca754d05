"""Random histories of sketches and bitmaps: whatever is late, unset or compacted in between, a key has the
numbers of all its records. Theta sketches and bitmaps say so exactly, and HLL sketches as long as they hold few."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import datasketches
import pyarrow as pa
import pyroaring
import pytest

from tests.unit.mergers.folds import build, fold_frames, shape_of

FUNCTIONS: dict[str, Any] = {
    "hll": "hll_sketch",
    "theta": {"function": "theta_sketch", "lg_k": 10},
    "bitmap": "roaring_bitmap",
    "wide": {"function": "roaring_bitmap", "bits": 64},
}


def packed(name: str, numbers: set[int]) -> bytes:
    match name:
        case "hll":
            hll = datasketches.hll_sketch(12)
            for number in numbers:
                hll.update(number)
            return bytes(hll.serialize_compact())
        case "theta":
            theta = datasketches.update_theta_sketch(12)
            for number in numbers:
                theta.update(number)
            return bytes(theta.compact().serialize())
        case "bitmap":
            return bytes(pyroaring.BitMap(numbers).serialize())
        case _:
            return bytes(pyroaring.BitMap64(number << 40 for number in numbers).serialize())


def same_numbers(name: str, value: bytes, numbers: set[int]) -> bool:
    match name:
        case "hll":
            estimate = datasketches.hll_sketch.deserialize(value).get_estimate()
            return bool(estimate == pytest.approx(len(numbers), rel=1e-4))
        case "theta":
            return bool(datasketches.compact_theta_sketch.deserialize(value).get_estimate() == len(numbers))
        case "bitmap":
            return set(pyroaring.BitMap.deserialize(value)) == numbers
        case _:
            return {number >> 40 for number in pyroaring.BitMap64.deserialize(value)} == numbers


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_unions_of_random_histories(seed: int, ordered: bool, compact: bool) -> None:
    rng = random.Random(seed)
    shape = shape_of(
        ({"o": pa.int64()} if ordered else {}) | dict.fromkeys(FUNCTIONS, pa.binary()), ordering=["o"] * ordered
    )
    merger = build("aggregate", {"aggregates": FUNCTIONS}, shape)
    expected: dict[int, dict[str, set[int] | None]] = defaultdict(lambda: dict.fromkeys(FUNCTIONS))
    commits = []
    for _ in range(6):
        rows: list[tuple[Any, ...]] = []
        for _ in range(20):
            key, values = rng.randrange(8), []
            for name, union in expected[key].items():
                numbers = None if rng.random() < 0.4 else set(rng.sample(range(40), rng.randrange(5)))
                values.append(None if numbers is None else packed(name, numbers))
                if numbers is not None:
                    expected[key][name] = (union or set()) | numbers
            rows.append(("+U", key, *([rng.randrange(9)] if ordered else []), *values))
        commits.append(rows)
    found = {
        row[0]: dict(zip(FUNCTIONS, row[-4:], strict=True))
        for row in fold_frames(merger, shape, *commits, compact=compact)
    }
    assert found.keys() == expected.keys()
    for key, unions in expected.items():
        for name, numbers in unions.items():
            value = found[key][name]
            assert (value is None) == (numbers is None)
            assert value is None or numbers is None or same_numbers(name, value, numbers), (key, name)
