"""What tests of ingest share: a landing folder, jobs over it, and looks at what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakemerge import LakeTable
from lakemerge.ingest import Files, IngestJob
from lakemerge.ingest.formats.base import Format, Piece, WindowSchema
from lakemerge.ingest.source import SourceFile
from tests.unit.faults import Row

__all__ = [
    "FEED",
    "feed_files",
    "frame_of",
    "land",
    "landed",
    "numbered",
    "parsed_rows",
    "read_blocks",
    "rows",
    "states",
    "windows_of",
]

FEED = "k BIGINT, o BIGINT, v STRING"


def land(folder: Path, name: str, records: Iterable[Mapping[str, Any]], *, at: int | None = None) -> Path:
    """A file of JSON lines. ``at``: its time of change, seconds after a fixed moment."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    return landed(folder / name, text.encode(), at=at)


def landed(path: Path, data: bytes, *, at: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if at is not None:
        os.utime(path, ns=(0, (1_700_000_000 + at) * 10**9))
    return path


def rows(table: LakeTable) -> list[Row]:
    found = [tuple(row.values()) for row in table.to_arrow().to_pylist()]
    return sorted(found, key=lambda row: [(value is None, value) for value in row])


def states(job: IngestJob) -> dict[str, str]:
    """By name of the file, what became of its last version."""
    return {Path(file.path).name: str(file.state) for file in job.files()}


def windows_of(table: LakeTable) -> list[dict[str, Any]]:
    """What the commits of jobs say of themselves, oldest first."""
    infos = [entry.info.get("ingest") for entry in reversed(table.history())]
    return [dict(info) for info in infos if isinstance(info, dict)]


def frame_of(schema: pa.Schema, *, rescued: str | None = None, ignores: bool = False) -> WindowSchema:
    return WindowSchema.of(schema, rescued=rescued, ignores=ignores)


def read_blocks(
    data: bytes, chosen: Format, frame: WindowSchema, *, block_bytes: int = 1 << 20, name: str = "file"
) -> tuple[list[Row], list[tuple[int | None, str]]]:
    """A file read block by block: good rows in their order, and bad records (byte offset, text)."""
    file = SourceFile(name, len(data), "token", 0)
    peek = chosen.peek(pa.BufferReader(data), file) if chosen.describes_itself else None
    size = block_bytes if chosen.splits(name) else max(1, len(data))
    good: list[Row] = []
    bad: list[tuple[int | None, str]] = []
    for number, offset in enumerate(range(0, max(1, len(data)), size)):
        piece = Piece(file, number, 1, offset, min(size, len(data) - offset), peek)
        parsed_rows(chosen, data, piece, frame, good, bad)
    return good, bad


def parsed_rows(
    chosen: Format, data: bytes, piece: Piece, frame: WindowSchema, good: list[Row], bad: list[tuple[int | None, str]]
) -> None:
    for parsed in chosen.parsed(pa.BufferReader(data), piece, frame):
        assert parsed.rows.schema.equals(frame.schema)
        parsed.rows.validate(full=True)
        for place, row in enumerate(parsed.rows.to_pylist()):
            if place in parsed.problems:
                origin = parsed.origin(place)
                bad.append((origin.offset, origin.text))
            else:
                good.append(tuple(row.values()))
        bad += [(origin.offset, origin.text) for origin, _ in parsed.unread]


def feed_files(folder: Path, *, format: str = "json", **more: Any) -> Files:  # noqa: A002 - as Files has it
    return Files(folder, format=format, **more)


def numbered(start: int, stop: int, *, o: int = 1, v: str = "x") -> Sequence[Mapping[str, Any]]:
    return [{"k": k, "o": o, "v": v} for k in range(start, stop)]
