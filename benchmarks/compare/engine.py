"""What the comparison asks of an engine. Frames and tables are given by their folders, so that an
engine reads its input by its own means, in its own interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.compare.queries import Answer, Query
from benchmarks.compare.workload import Frame
from benchmarks.tpch import Entity

__all__ = ["Engine", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """A table: where it is, and what its rows are."""

    path: Path
    entity: Entity
    file_bytes: int
    """The size of files to aim for where an engine wants one named: small enough that all cores have work."""


class Engine(Protocol):
    """One engine, configured as its documentation recommends for upserts that are merged on read.

    Every method that changes a table returns when the change is committed.
    """

    @property
    def configuration(self) -> Mapping[str, str]:
        """Every setting that differs from the engine's defaults, and the statements it runs."""

    @property
    def versions(self) -> Mapping[str, str | None]:
        """Packages and jars."""

    @property
    def cannot(self) -> Mapping[str, str]:
        """Those of ``delete``, ``compact`` and ``wide`` that the engine cannot do, and why."""

    def load(self, place: Place, rows: Path) -> None:
        """Make the table, with the rows of one Parquet file."""

    def upsert(self, place: Place, frame: Frame) -> None:
        """Rows whose time is not before that of the stored row replace it; others with a stored key are ignored."""

    def delete(self, place: Place, frame: Frame) -> None:
        """Remove the rows with these keys; all frames delete at a time after the rows they meet."""

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        """Set these columns and the ordering column in rows that exist; the frame has no others but the key."""

    def compact(self, place: Place) -> None:
        """Fold all changes into the table's base files."""

    def answer(self, place: Place, query: Query) -> Answer:
        """Run a query, planning included."""

    def dump(self, place: Place, target: Path) -> None:
        """All rows as Parquet files in a new folder."""

    def close(self) -> None:
        """End what the engine started."""
