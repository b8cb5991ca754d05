"""Minor entries: the domain with the result of a minor compaction.

A *minor entry* belongs to one base file. It names the positions of superseded rows (of the base file and of the entry's
own earlier winner files), the *winner files* with the merged rows in their place, and the tombstones. The base file
without superseded rows, together with the winner files, is the file slice as of version ``through``.
Source: docs/table-format.md, section 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakemerge.delta import DomainMetadata
from lakemerge.errors import TableDamagedError
from lakemerge.format.names import MINOR_DOMAIN_PREFIX
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

    @property
    def domain_name(self) -> str:
        return f"{MINOR_DOMAIN_PREFIX}{self.base_ordinal}"

    @property
    def paths(self) -> frozenset[str]:
        """Every file to which the entry refers, without the base file."""
        named = (self.positions, self.tombstones, *(winner.path for winner in self.winners))
        return frozenset(path for path in named if path is not None)

    def domain(self) -> DomainMetadata:
        body = {
            "base": self.base,
            "ordinal": self.base_ordinal,
            "through": self.through,
            "positions": self.positions,
            "winners": [[w.path, w.size_bytes, w.ordinal, w.rows] for w in self.winners],
            "tombstones": self.tombstones,
            "tombstoneBytes": self.tombstone_bytes,
        }
        return DomainMetadata(self.domain_name, orjson.dumps(body).decode(), False)

    def removal(self) -> DomainMetadata:
        return DomainMetadata(self.domain_name, "", True)

    @staticmethod
    def of(domain: DomainMetadata) -> Minor:
        try:
            body = orjson.loads(domain.configuration)
            return Minor(
                base=stored_path(body["base"]),
                base_ordinal=whole_number(body["ordinal"], below=INT32_LIMIT),
                through=whole_number(body["through"]),
                positions=optional_path(body["positions"]),
                winners=tuple(_winner(*entry) for entry in body["winners"]),
                tombstones=optional_path(body["tombstones"]),
                tombstone_bytes=whole_number(body.get("tombstoneBytes", 0)),
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
        with store.open_input(path) as source:
            table = pq.read_table(source, schema=POSITIONS_SCHEMA)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
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
