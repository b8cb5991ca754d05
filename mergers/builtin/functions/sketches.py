"""Unions of sketches and bitmaps. They take one library call for each value, because Arrow has no such function.

Both libraries come with the extra ``lakemerge[sketches]`` and load on first use. Sketches are in the
serialised forms of Apache DataSketches, bitmaps in the portable format of Roaring.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa

from mergers.builtin.functions.base import ColumnEvents, Function
from mergers.builtin.functions.hll import HllContent, hll_content, hll_union
from mergers.builtin.functions.picks import take
from mergers.builtin.functions.roaring import canonical
from mergers.errors import InstallError

__all__ = ["HllSketch", "RoaringBitmap", "ThetaSketch"]

_DAMAGED = (ValueError, RuntimeError, IndexError, MemoryError)
"""The errors that the libraries raise for bytes that they cannot read."""


@functools.cache
def _library(name: str) -> Any:
    try:
        if name == "datasketches":
            import datasketches

            return datasketches
        import pyroaring
    except ImportError as error:
        raise InstallError(
            f"this table merges sketches or bitmaps and needs the package {name!r}: pip install 'lakemerge[sketches]'",
            package=name,
            extra="sketches",
        ) from error
    return pyroaring


@dataclass(frozen=True, slots=True)
class _Union(Function):
    """A value that has no other stays as it came, and united with itself it is written anew. So no union is idempotent:
    its bytes may change. From two values on they depend on nothing but what is united."""

    types = "binary"
    commutative = True
    unites = True
    keeps_lone = False

    @classmethod
    def takes(cls, kind: pa.DataType) -> bool:
        return pa.types.is_binary(kind)

    @abstractmethod
    def parse(self, value: bytes) -> object:
        """Parse a value. Raises one of ``_DAMAGED`` if the bytes are no such value."""

    @abstractmethod
    def unite(self, values: Iterable[object]) -> bytes:
        """The union of parsed values."""

    def check(self, value: bytes) -> None:
        """Raise one of ``_DAMAGED`` if the bytes are no such value."""
        self.parse(value)

    def check_additions(self, values: pa.Array) -> str | None:
        for value in _bytes(values):
            try:
                self.check(value)
            except _DAMAGED as error:
                return f"a value is no {self.name}: {error}"
        return None

    def fold(self, events: ColumnEvents) -> pa.Array:
        part, records, groups = events.segments.within(events.adds & events.filled)
        picks = np.full(len(events.segments.sizes), -1, dtype=np.int64)
        picks[groups] = records[part.starts]
        several = np.flatnonzero(part.sizes > 1)
        picks[groups[several]] = len(events.values) + np.arange(len(several))
        chosen = np.repeat(part.sizes > 1, part.sizes)
        values, records = list(_bytes(events.values.take(pa.array(records[chosen])))), records[chosen]
        edges = [0, *np.cumsum(part.sizes[several]).tolist()]
        unions = [
            self.unite(self._parsed(events, values[start:end], records[start:end].tolist()))
            for start, end in pairwise(edges)
        ]
        return take(pa.concat_arrays([events.values, pa.array(unions, type=self.kind)]), picks)

    def _parsed(self, events: ColumnEvents, values: Sequence[bytes], records: Sequence[int]) -> Iterator[object]:
        for value, record in zip(values, records, strict=True):
            try:
                yield self.parse(value)
            except _DAMAGED as error:
                raise events.unusable(record, f"it is no {self.name}: {error}") from error


def _bytes(values: pa.Array) -> Iterator[bytes]:
    yield from (value for value in values.to_pylist() if value is not None)


def _lg_k(name: str, options: Mapping[str, object], low: int, high: int) -> int:
    unknown = sorted(set(options) - {"lg_k"})
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(map(repr, unknown))}")
    value = options.get("lg_k", 12)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"the lg_k of {name} is a whole number from {low} to {high}, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class HllSketch(_Union):
    """``lg_k``: the binary logarithm of the size of a union.

    The library's own union depends on order: in its bytes, and where sketches of three sizes meet it loses numbers.
    So sketches are united here, and the library only reads them.
    """

    name = "hll_sketch"

    lg_k: int = 12

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> Self:
        return cls(kind, _lg_k(cls.name, options, 7, 21))

    def check(self, value: bytes) -> None:
        _library("datasketches").hll_sketch.deserialize(value)

    def parse(self, value: bytes) -> object:
        return hll_content(_library("datasketches"), value)

    def unite(self, values: Iterable[object]) -> bytes:
        return hll_union(self.lg_k, cast("Iterable[HllContent]", values))


@dataclass(frozen=True, slots=True)
class ThetaSketch(_Union):
    """``lg_k``: the binary logarithm of the size of a union."""

    name = "theta_sketch"

    lg_k: int = 12

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> Self:
        return cls(kind, _lg_k(cls.name, options, 5, 26))

    def parse(self, value: bytes) -> object:
        return _library("datasketches").compact_theta_sketch.deserialize(value)

    def unite(self, values: Iterable[object]) -> bytes:
        return _unite(_library("datasketches").theta_union(self.lg_k), values, "serialize")


def _unite(union: Any, values: Iterable[object], serialise: str) -> bytes:
    for value in values:
        union.update(value)
    return bytes(getattr(union.get_result(), serialise)())


@dataclass(frozen=True, slots=True)
class RoaringBitmap(_Union):
    """``bits``: 32 (the default) or 64, the width of the numbers in the bitmap."""

    name = "roaring_bitmap"

    bits: int = 32

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> Self:
        unknown = sorted(set(options) - {"bits"})
        if unknown:
            raise ValueError(f"roaring_bitmap has no option {', '.join(map(repr, unknown))}")
        bits = options.get("bits", 32)
        if isinstance(bits, bool) or bits not in (32, 64):
            raise ValueError(f"the bits of roaring_bitmap are 32 or 64, not {bits!r}")
        return cls(kind, int(str(bits)))

    def _class(self) -> Any:
        library = _library("pyroaring")
        return library.BitMap if self.bits == 32 else library.BitMap64

    def parse(self, value: bytes) -> object:
        return self._class().deserialize(value)

    def unite(self, values: Iterable[object]) -> bytes:
        union = self._class()()
        for value in values:
            union |= value
        return canonical(union, wide=self.bits == 64)
