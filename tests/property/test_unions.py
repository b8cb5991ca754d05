"""Random histories of sketches and bitmaps: whatever is late, unset or compacted in between, a key has the
numbers of all its records. Theta sketches and bitmaps say so exactly, and HLL sketches as long as they hold few."""

from __future__ import annotations

import functools
import random
import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import datasketches
import pyarrow as pa
import pyroaring
import pytest

from mergers.builtin.functions.hll import hll_content, hll_union
from tests.property.effort import some
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


KINDS = (datasketches.HLL_4, datasketches.HLL_6, datasketches.HLL_8)
MOST_COUPONS = {7: 7, 8: 24, 10: 96, 12: 384}
"""By ``lg_k``, how many hashes a sketch keeps before it has registers."""


def hll(numbers: Iterable[int], lg_k: int, kind: Any) -> bytes:
    sketch = datasketches.hll_sketch(lg_k, kind)
    for number in numbers:
        sketch.update(number)
    return bytes(sketch.serialize_compact())


@functools.cache
def hashed(number: int) -> tuple[int, int]:
    """The slot and the value of a number: the one hash of a sketch that holds nothing else."""
    (told,) = struct.unpack("<I", hll([number], 12, datasketches.HLL_8)[8:])
    return told & (1 << 26) - 1, told >> 26


def has_registers(sketch: bytes) -> bool:
    return sketch[7] & 3 == 2


def content(sketch: bytes) -> list[int] | set[tuple[int, int]]:
    """The registers of a sketch, as the library tells them, or its slots and values."""
    copy = datasketches.hll_union(21)
    copy.update(datasketches.hll_sketch.deserialize(sketch))
    wide = bytes(copy.get_result(datasketches.HLL_8).serialize_compact())
    if has_registers(sketch):
        return list(wide[40:])
    told = struct.unpack(f"<{(len(wide) - 8) // 4}I", wide[8:])
    return {(one & (1 << 26) - 1, one >> 26) for one in (told[1:] if wide[7] & 3 else told)}


@pytest.mark.parametrize("mixed", [False, True], ids=["one size", "several sizes"])
@pytest.mark.parametrize("seed", some(range(16)))
def test_the_bytes_of_hll_unions_depend_on_the_sketches_alone(seed: int, mixed: bool) -> None:
    """Not on their order, nor on where a state was stored in between. A union holds what the numbers give."""
    rng = random.Random(seed)
    lg_k = rng.choice(sorted(MOST_COUPONS))
    most = 1 << lg_k
    shape = shape_of({"h": pa.binary()})
    merger = build("aggregate", {"aggregates": {"h": {"function": "hll_sketch", "lg_k": lg_k}}}, shape)
    for _ in range(8):
        counts = [rng.choice([0, 1, 7, 8, 9, most // 16, most // 8, most // 3, 5 * most]) for _ in "12345"]
        sets = [set(rng.sample(range(30_000), count)) for count in counts[: rng.randint(2, 5)]]
        sizes = [rng.choice([4, 7, 10, 12, 14]) if mixed else lg_k for _ in sets]
        sketches = [hll(one, size, rng.choice(KINDS)) for one, size in zip(sets, sizes, strict=True)]
        records = [("+U", 1, sketch) for sketch in sketches]
        [(_, union)] = fold_frames(merger, shape, records)
        at = rng.randrange(1, len(records))
        turned = rng.sample(records, len(records))
        for commits in ([records[:at], records[at:]], [[one] for one in records], [turned], [records, records]):
            assert fold_frames(merger, shape, *commits, compact=True) == [(1, union)]
        hashes = {hashed(number) for number in set().union(*sets)}
        limits = [size for size, sketch in zip(sizes, sketches, strict=True) if has_registers(sketch)]
        if not limits and len(hashes) <= MOST_COUPONS[lg_k]:
            assert content(union) == hashes
            continue
        expected = [0] * (1 << min([lg_k, *limits]))
        for slot, value in hashes:
            place = slot % len(expected)
            expected[place] = max(expected[place], value)
        assert content(union) == expected
        estimate = datasketches.hll_sketch.deserialize(union).get_estimate()
        assert estimate == pytest.approx(len(hashes), rel=5 * 1.04 / len(expected) ** 0.5, abs=2)


def test_a_union_of_one_size_has_the_registers_that_the_library_writes() -> None:
    """All but the estimate of additions in their order, and the flag that says that there is one."""
    for lg_k in range(7, 16):
        for count in (3, 40, 1 << lg_k, 30 << lg_k):
            pair = [hll(range(start, start + count), lg_k, datasketches.HLL_4) for start in (0, count // 2)]
            union = datasketches.hll_union(lg_k)
            for one in pair:
                union.update(datasketches.hll_sketch.deserialize(one))
            theirs = bytes(union.get_result().serialize_compact())
            ours = hll_union(lg_k, [hll_content(datasketches, one) for one in pair])
            if has_registers(theirs):
                at = 40 + (1 << lg_k) // 2
                assert (ours[:5], ours[6:8], ours[16:at]) == (theirs[:5], theirs[6:8], theirs[16:at])
                assert (ours[5], ours[8:16]) == (8 | 16, bytes(8))
                assert sorted(struct.iter_unpack("<I", ours[at:])) == sorted(struct.iter_unpack("<I", theirs[at:]))
            else:
                assert (len(ours), ours[:8], content(ours)) == (len(theirs), theirs[:8], content(theirs))


def in_any_groups(rng: random.Random, choice: Any, values: list[bytes]) -> bytes:
    """The bytes that a fold of the values gives in one commit, which are those of any other order and grouping."""
    shape = shape_of({"u": pa.binary()})
    merger = build("aggregate", {"aggregates": {"u": choice}}, shape)
    records = [("+U", 1, value) for value in values]
    [(_, union)] = fold_frames(merger, shape, records)
    at = rng.randrange(1, len(records))
    for commits in ([records[:at], records[at:]], [[one] for one in records], [rng.sample(records, len(records))]):
        assert fold_frames(merger, shape, *commits, compact=True) == [(1, union)]
    assert fold_frames(merger, shape, records, records, compact=True) == [(1, union)]
    return bytes(union)


@pytest.mark.parametrize("seed", some(range(12)))
def test_the_bytes_of_theta_unions_depend_on_the_sketches_alone(seed: int) -> None:
    """The lowest hashes of all, of which there are at most 2^lg_k, below the lowest theta."""
    rng = random.Random(seed)
    for _ in range(6):
        lg_k = rng.choice([5, 10, 12])
        sketches = []
        for _ in range(rng.randint(2, 5)):
            sketch = datasketches.update_theta_sketch(rng.choice([5, 8, 10, 12, 14]))
            for number in rng.sample(range(30_000), rng.choice([0, 1, 5, 40, 900, 6000])):
                sketch.update(number)
            sketches.append(sketch.compact(ordered=rng.random() < 0.5))
        union = in_any_groups(
            rng, {"function": "theta_sketch", "lg_k": lg_k}, [bytes(one.serialize()) for one in sketches]
        )
        theta = min(one.theta64 for one in sketches)
        hashes = sorted({told for one in sketches for told in one if told < theta})
        if len(hashes) > 1 << lg_k:
            theta = hashes[1 << lg_k]
        found = datasketches.compact_theta_sketch.deserialize(union)
        assert (list(found), found.theta64) == (hashes[: 1 << lg_k], theta)


def portable(numbers: Iterable[int], runs: str) -> bytes:
    """A bitmap in the portable format of Roaring, container by container.

    :param runs: which containers have runs: ``fewer``: those that take fewer bytes so, or ``all`` or ``none``.
    """
    containers: dict[int, list[int]] = defaultdict(list)
    for number in sorted(numbers):
        containers[number >> 16].append(number & 0xFFFF)
    flags, bodies = [], []
    for low in containers.values():
        pairs: list[list[int]] = []
        for number in low:
            if pairs and number == sum(pairs[-1]) + 1:
                pairs[-1][1] += 1
            else:
                pairs.append([number, 0])
        spread = struct.pack(f"<H{2 * len(pairs)}H", len(pairs), *(one for pair in pairs for one in pair))
        if len(low) <= 4096:
            plain = struct.pack(f"<{len(low)}H", *low)
        else:
            plain = sum(1 << number for number in low).to_bytes(8192, "little")
        flags.append(runs == "all" or (runs == "fewer" and len(spread) < len(plain)))
        bodies.append(spread if flags[-1] else plain)
    if any(flags):
        bits = sum(flag << place for place, flag in enumerate(flags))
        head = struct.pack("<HH", 12347, len(bodies) - 1) + bits.to_bytes((len(bodies) + 7) // 8, "little")
    else:
        head = struct.pack("<II", 12346, len(bodies))
    head += b"".join(struct.pack("<HH", key, len(low) - 1) for key, low in containers.items())
    places = b""
    if not any(flags) or len(bodies) >= 4:
        start = len(head) + 4 * len(bodies)
        places = b"".join(struct.pack("<I", start + sum(map(len, bodies[:at]))) for at in range(len(bodies)))
    return head + places + b"".join(bodies)


def portable_wide(numbers: Iterable[int], runs: str) -> bytes:
    halves: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        halves[number >> 32].append(number & 0xFFFFFFFF)
    parts = [struct.pack("<I", high) + portable(halves[high], runs) for high in sorted(halves)]
    return struct.pack("<Q", len(parts)) + b"".join(parts)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("seed", some(range(12)))
def test_the_bytes_of_bitmap_unions_depend_on_the_numbers_alone(seed: int, bits: int) -> None:
    """Whatever containers the values have: a union has runs where they take fewer bytes."""
    rng = random.Random(f"{seed} {bits}")
    written = portable if bits == 32 else portable_wide
    for _ in range(12):
        sets = []
        for _ in range(rng.randint(2, 4)):
            numbers: set[int] = set()
            for _ in range(rng.choice([0, 1, 2, 3, 3, 6])):
                start = rng.randrange(6) << 16 | rng.choice([0, 2, 4, 8, 60_000])
                start |= (rng.choice([0, 1, 7]) << 32) * (bits == 64)
                numbers.update(range(start, start + rng.choice([1, 2, 3, 3, 4, 9, 5000]), rng.choice([1, 1, 1, 2])))
            sets.append(numbers)
        values = [written(one, rng.choice(["fewer", "all", "none"])) for one in sets]
        union = in_any_groups(rng, {"function": "roaring_bitmap", "bits": bits}, values)
        assert union == written(set().union(*sets), "fewer")


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
