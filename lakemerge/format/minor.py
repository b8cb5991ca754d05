"""Minor entries: the domain with the result of a minor compaction.

A *minor entry* belongs to one base file. It names the positions of superseded rows (of the base file and of the entry's
own earlier winner files), the *winner files* with the merged rows in their place, and the tombstones. The base file
without superseded rows, together with the winner files, is the file slice as of version ``through``.

In a table that publishes, the entry has no positions. Base and winner files are Delta ``add`` actions, and their
deletion vectors tell the superseded rows. Everybody here asks :func:`read_superseded`, which knows both.
Source: docs/table-format.md, sections 8 and 11.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge._internal.parquet import parquet_table
from lakemerge.delta import AddFile, DeletionVector, DomainMetadata, read_vector
from lakemerge.errors import TableDamagedError
from lakemerge.format.names import MINOR_DOMAIN_PREFIX, WINNER_TAG
from lakemerge.format.values import INT32_LIMIT, optional_path, stored_path, whole_number
from lakemerge.storage.base import Store
from mergers.interrupts import is_foreign

__all__ = [
    "POSITIONS_SCHEMA",
    "Minor",
    "Positions",
    "RowFile",
    "packed_positions",
    "positions_table",
    "read_positions",
    "read_superseded",
    "superseded_table",
    "winner_of",
    "winner_tag",
    "write_positions",
]


POSITIONS_SCHEMA = pa.schema([("file", pa.int32()), ("bits", pa.list_(pa.int64()))])
"""Positions files: one row for each file ordinal. Bit ``p & 63`` of ``bits[p >> 6]`` is set if row ``p`` is superseded.
Files without such rows are left out, and so are words after the last set bit."""

Positions = Mapping[int, npt.NDArray[np.bool_]]
"""File ordinal -> whether each row is superseded. Rows past the end are not."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A base or winner file: rows of a file slice, sorted by key, with the hidden columns of base files."""

    path: str
    size_bytes: int
    ordinal: int
    rows: int


@dataclass(frozen=True, slots=True)
class Minor:
    """The minor entry of one base file."""

    base: str
    """The path of the base file for which it is valid."""
    base_ordinal: int
    through: int
    """Logs of versions up to and including this one are merged."""
    positions: str | None
    """The path of the positions file; ``None`` if no row is superseded."""
    winners: tuple[RowFile, ...]
    """The winner files, oldest first. A key has a row that is not superseded in at most one file."""
    tombstones: str | None
    """The path of the tombstones, which replace those of the base file."""
    tombstone_bytes: int = 0
    """The size of that file."""
    published: bool = False
    """Whether base and winner files are adds with deletion vectors. Then there is no positions file."""
    vectors: tuple[tuple[int, DeletionVector], ...] = ()
    """The vectors of the adds, by the ordinal of their file; files of which no row is superseded have none. They are
    not part of the domain."""

    @property
    def domain_name(self) -> str:
        return f"{MINOR_DOMAIN_PREFIX}{self.base_ordinal}"

    @property
    def paths(self) -> frozenset[str]:
        """Every file to which the entry refers, without the base file."""
        named = (self.positions, self.tombstones, *(winner.path for winner in self.winners))
        return frozenset(path for path in named if path is not None) | {vector.path for _, vector in self.vectors}

    def with_adds(self, files: Mapping[str, AddFile]) -> Minor:
        """A published entry, with the vectors of its files, and any other entry as it is.

        :param files: the adds of the version, by path.
        :raises TableDamagedError: base or winner files are not there as the entry says.
        """
        if not self.published:
            return self
        vectors: list[tuple[int, DeletionVector]] = []
        for path, ordinal in ((self.base, self.base_ordinal), *((w.path, w.ordinal) for w in self.winners)):
            add = files.get(path)
            if add is None or (path != self.base and winner_of(add) != (self.base_ordinal, ordinal)):
                raise TableDamagedError(
                    f"domain {self.domain_name!r} names {path!r}, which is not in the table as its file; another "
                    "writer than LakeMerge must have changed it",
                    domain=self.domain_name,
                    path=path,
                )
            if add.vector is not None:
                vectors.append((ordinal, add.vector))
        return replace(self, vectors=tuple(vectors))

    @property
    def superseded_key(self) -> tuple[str, ...]:
        """What tells its superseded positions from all others, with the paths of the files that hold them."""
        told = () if self.positions is None else (self.positions,)
        return (*told, *(text for _, vector in self.vectors for text in (vector.path, vector.id)))

    def domain(self) -> DomainMetadata:
        body: dict[str, object] = {
            "base": self.base,
            "ordinal": self.base_ordinal,
            "through": self.through,
            **({"published": True} if self.published else {"positions": self.positions}),
            "winners": [[w.path, w.size_bytes, w.ordinal, w.rows] for w in self.winners],
        }
        if self.tombstones is not None or not self.published:
            body |= {"tombstones": self.tombstones, "tombstoneBytes": self.tombstone_bytes}
        return DomainMetadata(self.domain_name, orjson.dumps(body).decode(), False)

    def removal(self) -> DomainMetadata:
        return DomainMetadata(self.domain_name, "", True)

    @staticmethod
    def of(domain: DomainMetadata) -> Minor:
        try:
            body = orjson.loads(domain.configuration)
            if not isinstance(body, dict):
                raise ValueError("it is no JSON object")
            published = body.get("published", False)
            if not isinstance(published, bool) or (published and "positions" in body):
                raise ValueError("it has positions, or it is published")
            return Minor(
                base=stored_path(body["base"]),
                base_ordinal=whole_number(body["ordinal"], below=INT32_LIMIT),
                through=whole_number(body["through"]),
                positions=None if published else optional_path(body["positions"]),
                winners=tuple(_winner(*entry) for entry in body["winners"]),
                tombstones=optional_path(body.get("tombstones") if published else body["tombstones"]),
                tombstone_bytes=whole_number(body.get("tombstoneBytes", 0)),
                published=published,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error


def _winner(path: object, size: object, ordinal: object, rows: object) -> RowFile:
    return RowFile(
        stored_path(path),
        whole_number(size),
        whole_number(ordinal, below=INT32_LIMIT),
        whole_number(rows, below=INT32_LIMIT),
    )


def winner_tag(base_ordinal: int, winner: RowFile) -> str:
    """The value of :data:`WINNER_TAG`."""
    return orjson.dumps({"base": base_ordinal, "ordinal": winner.ordinal, "rows": winner.rows}).decode()


def winner_of(add: AddFile) -> tuple[int, int] | None:
    """The ordinals of the base file of a published winner file, and its own; ``None`` for other files.

    Raises :class:`TableDamagedError` if its tag cannot be read.
    """
    if WINNER_TAG not in add.tags:
        return None
    try:
        body = orjson.loads(add.tags[WINNER_TAG])
        ordinals = (whole_number(body[name], below=INT32_LIMIT) for name in ("base", "ordinal"))
        return next(ordinals), next(ordinals)
    except (KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(f"the tag of file {add.path!r} is damaged: {error!r}", path=add.path) from error


def read_superseded(store: Store, minor: Minor | None) -> dict[int, npt.NDArray[np.bool_]]:
    """The superseded rows of a file slice, by ordinal, wherever its minor entry keeps them. Files without any are left
    out."""
    if minor is None:
        return {}
    rows = {winner.ordinal: winner.rows for winner in minor.winners}
    vectors = {ordinal: read_vector(store, vector, rows=rows.get(ordinal)) for ordinal, vector in minor.vectors}
    return vectors or read_positions(store, minor.positions)


def superseded_table(store: Store, minor: Minor) -> pa.Table:
    """The same as a table of :data:`POSITIONS_SCHEMA`."""
    if minor.positions is not None:
        return positions_table(store, minor.positions)
    return packed_positions(read_superseded(store, minor))


def write_positions(store: Store, path: str, positions: Positions) -> int:
    """Write a positions file; returns its size in bytes."""
    table = packed_positions(positions)
    with store.open_output(path) as sink:
        pq.write_table(table, sink, compression="zstd", use_dictionary=False, write_statistics=False)
        return int(sink.tell())


def packed_positions(positions: Positions) -> pa.Table:
    """Positions as a table of :data:`POSITIONS_SCHEMA`."""
    rows = [(ordinal, _words(bits)) for ordinal, bits in sorted(positions.items()) if bits.any()]
    return pa.table([[n for n, _ in rows], [words for _, words in rows]], schema=POSITIONS_SCHEMA)


def read_positions(store: Store, path: str | None) -> dict[int, npt.NDArray[np.bool_]]:
    """The positions that :func:`write_positions` wrote; empty for ``None``."""
    return {} if path is None else dict(_unpacked(positions_table(store, path)))


def positions_table(store: Store, path: str) -> pa.Table:
    """A positions file as it is, of :data:`POSITIONS_SCHEMA`."""
    try:
        data = store.get(path)  # All of it is needed, and to open it would ask for its size first.
    except FileNotFoundError as error:
        raise TableDamagedError(f"positions file {path!r} cannot be read: it is missing", path=path) from error
    try:
        table = parquet_table(data, POSITIONS_SCHEMA)
    except (KeyError, pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if is_foreign(error):
            raise
        raise TableDamagedError(f"positions file {path!r} cannot be read: {error}", path=path) from error
    lists = table.column("bits").combine_chunks()
    if table.column("file").null_count or lists.null_count or lists.flatten().null_count:
        raise TableDamagedError(f"positions file {path!r} has nulls, which say no positions", path=path)
    return table


def _unpacked(table: pa.Table) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    for ordinal, bits in zip(table.column("file").to_pylist(), _lists(table.column("bits")), strict=True):
        yield ordinal, np.unpackbits(bits.view(np.uint8), bitorder="little").astype(np.bool_)


def _lists(column: pa.ChunkedArray) -> Iterable[npt.NDArray[np.int64]]:
    for chunk in column.chunks:
        for i in range(len(chunk)):
            yield np.ascontiguousarray(chunk[i].values.to_numpy(zero_copy_only=False), dtype="<i8")


def _words(bits: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    used = int(np.flatnonzero(bits)[-1]) + 1
    packed = np.packbits(bits[:used], bitorder="little")
    words = np.zeros(-(-len(packed) // 8) * 8, dtype=np.uint8)
    words[: len(packed)] = packed
    return words.view("<i8")
