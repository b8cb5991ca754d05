"""What the comparison asks of an engine. Frames and tables are given by their folders, so that an
engine reads its input by its own means, in its own interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.compare.queries import Answer, Query
from benchmarks.compare.workload import Frame
from benchmarks.tpch import Entity

__all__ = ["Engine", "Place", "Upkeep"]


@dataclass(frozen=True, slots=True)
class Place:
    """A table: where it is, and what its rows are."""

    path: Path
    entity: Entity
    file_bytes: int
    """The size of files to aim for where an engine wants one named: small enough that all cores have work."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of the table, in addition to those that the engine gives each table."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A way to keep a table in order while it is written, as an engine's documentation recommends it."""

    title: str
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of the table."""
    every: int | None = None
    """After so many commits :meth:`Engine.tidy` is called; ``None``: never."""
    reads_per_write: float | None = None
    """The mix for which it is meant; ``None``: any."""
    counts: bool = False
    """Whether the engine counts reads, and decides by their number. The day then tells it by :meth:`Engine.note_reads`
    of the reads of the mix that it leaves out, and nothing has to be set."""


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
        """Those of ``delete``, ``merge``, ``compact`` and ``wide`` that the engine cannot do, and why."""

    def load(self, place: Place, rows: Path) -> None:
        """Make the table, with the rows of one Parquet file."""

    def upsert(self, place: Place, frame: Frame) -> None:
        """Rows whose time is not before that of the stored row replace it; others with a stored key are ignored."""

    def merge(self, place: Place, frame: Frame) -> None:
        """The same as :meth:`upsert` by a transaction that reads the rows; no key is twice in the frame."""

    def delete(self, place: Place, frame: Frame) -> None:
        """Remove the rows with these keys; all frames delete at a time after the rows they meet."""

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        """Set these columns and the ordering column in rows that exist; the frame has no others but the key."""

    @property
    def upkeeps(self) -> Sequence[Upkeep]:
        """The first is the default; none where nothing is measured."""

    def compact(self, place: Place) -> None:
        """Fold all changes into the table's base files."""

    def tidy(self, place: Place) -> None:
        """The maintenance that :attr:`Upkeep.every` asks for."""

    def note_reads(self, place: Place, reads: int) -> None:
        """Count so many full reads of the table, as if they had been asked."""

    def answer(self, place: Place, query: Query) -> Answer:
        """Run a query, planning included."""

    def dump(self, place: Place, target: Path) -> None:
        """All rows as Parquet files in a new folder."""

    def close(self) -> None:
        """End what the engine started."""
