"""Damage to the files of a table, by lot, and what everybody makes of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakemerge import LakeMergeError, LakeTable, Settings

__all__ = ["EVERYBODY", "READERS", "damaged", "leaves", "make_whole", "outcome", "targets", "with_value"]

HOSTILE: tuple[Any, ...] = (
    None, -1, 0, 7, 2**31, 2**63, 2**64, 10**40, 1e308, True, "", "x", "0", "../../etc/passwd", "/etc/passwd",
    "file:///etc/passwd", "s3://other/key", "a\x00b", "%2e%2e/x", "é" * 300, [], {}, [[]], [None], {"": None},
    "[" * 2000,
)  # fmt: skip


def make_whole(path: Path, *, sliced: bool = True) -> None:
    """Base files, winners, tombstones, live logs inline and in an index, a checkpoint and commits after it; in two
    partitions of two buckets, or all in one bucket."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("at", pa.int64()), ("v", pa.string())])
    table = LakeTable.create(
        path, schema, key=["id", "part"], ordering=["at"],
        partition_by=["part"] if sliced else [], buckets=2 if sliced else 1,
        settings=Settings(inline_blocks=2), properties={"delta.checkpointInterval": "4"},
    )  # fmt: skip

    def rows(ids: range, at: int) -> pa.Table:
        parts = ["a" if i % 2 else "b" for i in ids]
        return pa.table({"id": list(ids), "part": parts, "at": [at] * len(ids), "v": [f"{at}.{i}" for i in ids]})

    table.upsert(rows(range(40), 1))
    table.upsert(rows(range(0, 30, 3), 2))
    table.delete(rows(range(5, 8), 9).select(["id", "part", "at"]))
    table.compact(minor=True)
    table.upsert(rows(range(10, 14), 3))
    table.upsert(rows(range(100, 104), 4), txn=("app", 1))


def damaged(file: Path, dice: random.Random) -> bytes:
    """What the file could hold instead."""
    data = file.read_bytes()
    return change_json(data, dice) if file.suffix == ".json" and dice.random() < 0.75 else change_bytes(data, dice)


def leaves(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a JSON value are, the nested ones and what they are in: as keys and indices from its root."""
    found = [at] if at else []
    if isinstance(value, dict):
        return found + [leaf for key, item in value.items() for leaf in leaves(item, (*at, key))]
    if isinstance(value, list):
        return found + [leaf for key, item in enumerate(value) for leaf in leaves(item, (*at, key))]
    return found


def with_value(body: Any, path: tuple[Any, ...], new: Any) -> None:
    for step in path[:-1]:
        body = body[step]
    body[path[-1]] = new


def change_json(data: bytes, dice: random.Random) -> bytes:
    """One value of one action, or of the JSON text inside a domain, a tag or a property, becomes a hostile one."""
    lines = [json.loads(line) for line in data.decode().splitlines()]
    line = dice.choice(lines)
    path = dice.choice(leaves(line))
    holder = line
    for step in path:
        holder = holder[step]
    if isinstance(holder, str) and holder[:1] in ("{", "[") and dice.random() < 0.9:
        inner = json.loads(holder)
        inside = leaves(inner)
        if inside:
            with_value(inner, dice.choice(inside), dice.choice(HOSTILE))
            with_value(line, path, json.dumps(inner))
    else:
        with_value(line, path, dice.choice(HOSTILE))
    return "\n".join(map(json.dumps, lines)).encode()


def change_bytes(data: bytes, dice: random.Random) -> bytes:
    """Some bytes flipped, cut out, doubled or put in; in a Parquet file, in its footer."""
    start = len(data) * 2 // 3 if data[:4] == b"PAR1" else 0
    at = dice.randrange(start, len(data))
    end = min(len(data), at + dice.choice((1, 2, 8, 64)))
    middle = dice.choice(
        (bytes(dice.randrange(256) for _ in range(end - at)), b"", data[at:end] * 2, b"\xff" * 8, b"\x00")
    )
    return data[:at] + middle + data[end:]


READERS: Mapping[str, Callable[[Path], Any]] = {
    "rows": lambda path: LakeTable.open(path).to_arrow(),
    "filtered": lambda path: LakeTable.open(path).to_arrow(filter="at > 1 AND v > '1' AND id > 5"),
    "row": lambda path: LakeTable.open(path).get({"id": 3, "part": "a"}),
    "buckets": lambda path: LakeTable.open(path).buckets(),
    "detail": lambda path: LakeTable.open(path).detail(),
    "history": lambda path: LakeTable.open(path).history(),
    "check": LakeTable.check,
}
EVERYBODY: Mapping[str, Callable[[Path], Any]] = {
    **READERS,
    "compaction": lambda path: LakeTable.open(path).compact(),
    "vacuum": lambda path: LakeTable.open(path).vacuum(),
}


def outcome(path: Path, who: Iterable[str] = EVERYBODY) -> list[str]:
    """What they make of the table."""
    told = []
    for name in who:
        try:
            EVERYBODY[name](path)
            told.append("answer")
        except LakeMergeError as error:
            told.append(f"{type(error).__name__}: {error.message}")
    return told


def targets(path: Path) -> list[Path]:
    """Metadata: all of the log, and the small files beside it."""
    return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
