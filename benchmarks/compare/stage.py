"""What cases have in common: where tables are, plain files of the merged rows, and right answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.compare.book import Arena
from benchmarks.compare.engine import Place
from benchmarks.compare.queries import Answer, Query
from benchmarks.compare.workload import Workload
from benchmarks.tpch import Entity

__all__ = ["new_places", "plain_files", "right_answers"]

_FILES_PER_TABLE = 4
"""Files that engines with a target size should make of a table, so that two cores have even work."""
_SMALLEST_FILE_BYTES = 1 << 20


def right_answers(work: Workload, state: Path, asked: Sequence[Query]) -> Mapping[Query, Answer]:
    return {query: work.answer(state, query) for query in asked}


def new_places(
    arena: Arena, entity: Entity, rows: Path, *, name: str = "table", properties: Mapping[str, str] | None = None
) -> tuple[Place, Place]:
    """Where a table of the engine and the plain files of its floor will be; nothing is there."""
    file_bytes = max(_SMALLEST_FILE_BYTES, rows.stat().st_size // _FILES_PER_TABLE)
    table, appended = (
        Place(arena.fresh(f"{name}_{who}"), entity, file_bytes, properties or {}) for who in ("engine", "floor")
    )
    return table, appended


def plain_files(arena: Arena, state: Path, entity: Entity) -> Place:
    """The merged rows as the floor writes them."""
    place = Place(arena.fresh("merged"), entity, state.stat().st_size)
    arena.floor.load(place, state)
    return place
