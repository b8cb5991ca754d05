"""Times every built-in merger against reading and writing the same rows as Parquet, on one core.

Run as ``python -m benchmarks.mergers [--scale 1.0] [--rounds 3]``. At scale 1: 2 M base rows with
10 % log rows, of 12 columns; and 1 M log-only rows with 5 versions a key, 100,000 of them of one key.
The floor is the time to read and write, with pyarrow and zstd, the rows that the merge takes in.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.measure import Contender, interleave
from mergers import Frame, Merger, TableShape, default_registry, fold
from mergers.kernel import overlay_rows, tombstone_schema

__all__ = ["CASES", "Case", "Inputs", "base_and_logs", "logs_only", "main", "merged"]

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("ts", pa.int64()),
        *(pa.field(f"i{n}", pa.int64()) for n in range(3)),
        *(pa.field(f"f{n}", pa.float64()) for n in range(2)),
        *(pa.field(f"d{n}", pa.decimal128(15, 2)) for n in range(2)),
        *(pa.field(f"s{n}", pa.string()) for n in range(3)),
    ]
)
_HOT_KEY = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration. ``target``: how many times the floor the merge may take."""

    name: str
    merger: str
    target: float
    ordering: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> TableShape:
        return TableShape(SCHEMA, ("k",), self.ordering)

    def built(self) -> Merger:
        return default_registry().resolve(self.merger).from_options(dict(self.options), self.shape)


_SUMS = {"i0": "sum", "i1": "count", "i2": "max", "f0": "sum", "f1": "min", "d0": "sum", "s0": "first_value"}
CASES = (
    Case("event-time", "event-time", 1.0, ("ts",)),
    Case("commit-time", "commit-time", 1.0),
    Case("first-row", "first-row", 1.0),
    Case("first-row, ordered", "first-row", 1.0, ("ts",)),
    Case("partial-update", "partial-update", 2.0),
    Case("partial-update, ordered", "partial-update", 2.0, ("ts",)),
    Case(
        "partial-update, groups",
        "partial-update",
        2.0,
        (),
        {"sequence_groups": {"ts": ["i0", "i1", "f0", "d0", "s0"]}, "aggregates": {"i0": "sum"}},
    ),
    Case("aggregate", "aggregate", 2.0, (), {"aggregates": _SUMS}),
    Case("aggregate, ordered", "aggregate", 2.0, ("ts",), {"aggregates": {**_SUMS, "d1": "product"}}),
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Stored rows, sorted by key, and log frames in commit order."""

    name: str
    base: pa.Table
    frames: Sequence[pa.Table]

    @property
    def rows(self) -> int:
        return self.base.num_rows + sum(frame.num_rows for frame in self.frames)


def base_and_logs(scale: float, *, seed: int) -> Inputs:
    """2 M keys, and 200,000 changes to them in four commits."""
    rng = np.random.default_rng(seed)
    keys = int(2_000_000 * scale)
    logs = [_rows(rng, np.sort(rng.integers(0, keys, keys // 40))) for _ in range(4)]
    return Inputs("base + 10 % logs", _rows(rng, np.arange(keys)), logs)


def logs_only(scale: float, *, seed: int) -> Inputs:
    """1 M rows of five versions a key in five commits, a tenth of them of one key."""
    rng = np.random.default_rng(seed)
    keys, hot = int(180_000 * scale), int(20_000 * scale)
    columns = np.sort(np.concatenate([np.full(hot, _HOT_KEY), np.arange(1, keys + 1)]))
    return Inputs("5 versions a key, one hot key", SCHEMA.empty_table(), [_rows(rng, columns) for _ in range(5)])


def merged(case: Case, inputs: Inputs) -> pa.Table:
    """The rows after the merge, sorted by key."""
    frames = [Frame(rows, None, version) for version, rows in enumerate(inputs.frames)]
    tombstones = tombstone_schema(case.shape).empty_table()
    columns = SCHEMA.names
    folded = fold(case.built(), case.shape, base=inputs.base, tombstones=tombstones, frames=frames, columns=columns)
    return overlay_rows(inputs.base, folded, columns, sort=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    pa.set_cpu_count(1)
    console = Console(highlight=False)
    for inputs in (base_and_logs(given.scale, seed=given.seed), logs_only(given.scale, seed=given.seed)):
        for case in CASES:
            _check(case, inputs)
        files = [_parquet(table) for table in (inputs.base, *inputs.frames)]
        floor = Contender("parquet", partial(_floor, files))
        runs = [Contender(case.name, partial(merged, case, inputs)) for case in CASES]
        seconds = {name: min(times) for name, times in interleave([floor, *runs], rounds=given.rounds).items()}
        console.print(f"{inputs.name}: {inputs.rows:,} rows; Parquet read and write {seconds['parquet']:.2f} s")
        for case in CASES:
            ratio = seconds[case.name] / seconds["parquet"]
            verdict = "ok" if ratio <= case.target else "MISSED"
            console.print(
                f"  {case.name:26} {seconds[case.name]:7.2f} s  {ratio:5.2f}x  target {case.target:.1f}x  {verdict}"
            )


def _floor(files: Sequence[bytes]) -> None:
    for data in files:
        _parquet(pq.read_table(io.BytesIO(data), use_threads=False))


def _parquet(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd", compression_level=1, store_decimal_as_integer=True)
    return sink.getvalue()


def _check(case: Case, inputs: Inputs) -> None:
    """Every key once, and a column whose meaning is the same as a plain group-by of all records."""
    rows = merged(case, inputs)
    records = pa.concat_tables([inputs.base, *inputs.frames])
    by_key = records.group_by("k").aggregate([("ts", "max"), ("ts", "min"), ("i0", "sum")]).sort_by("k")
    if not rows.column("k").equals(by_key.column("k")):
        raise AssertionError(f"{case.name}: keys differ")
    if case.name in ("event-time", "partial-update, ordered", "aggregate, ordered", "partial-update, groups"):
        same = rows.column("ts").equals(by_key.column("ts_max"))
    elif case.name == "first-row, ordered":
        same = rows.column("ts").equals(by_key.column("ts_min"))
    else:
        same = True
    if "i0" in case.options.get("aggregates", {}):
        same = same and rows.column("i0").equals(by_key.column("i0_sum"))
    if not same:
        raise AssertionError(f"{case.name}: wrong rows")


def _rows(rng: np.random.Generator, keys: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
    count = len(keys)
    columns: dict[str, Any] = {"k": keys, "ts": rng.integers(0, 2**40, count)}
    for number in range(3):
        columns[f"i{number}"] = rng.integers(-(10**6), 10**6, count)
        texts = pc.cast(pa.array(rng.integers(0, 10**5, count)), pa.string())
        columns[f"s{number}"] = pc.binary_join_element_wise(pa.scalar("customer"), texts, "-")
    for number in range(2):
        columns[f"f{number}"] = rng.random(count)
        # One or minus one, so that a product of any number of versions stays in range.
        units = pa.array(np.where(rng.random(count) < 0.5, 1, -1))
        columns[f"d{number}"] = units.cast(pa.decimal128(19, 0)).cast(pa.decimal128(15, 2))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


if __name__ == "__main__":
    main()
