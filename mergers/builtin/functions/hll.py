"""Unions of HLL sketches whose bytes depend on nothing but what the sketches hold.

A sketch of Apache DataSketches holds few hashes as they are, which it calls coupons, or else a register for each of its
``2 ** lg_k`` slots with the highest value that came there. Coupons and registers are united here, in whatever order.
The library reads what comes, and finds damage. What a sketch knows of the order of its additions is left out: the
estimator that needs it ("HIP") cannot be used after a union anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HllContent", "hll_content", "hll_union"]

_MOST_LG_K = 21
_COMPACT, _EMPTY, _OUT_OF_ORDER = 8, 4, 16
"""Flags of a serialised sketch."""
_LIST, _SET, _REGISTERS = 0, 1, 2
"""How a serialised sketch holds what it has."""
_SIX_BITS, _EIGHT_BITS = 1, 2
"""How many bits a register has; 0: four."""
_SHORT, _LG_SHORT = 8, 3
"""From so many coupons on a sketch keeps a set of them, and before a list."""
_LG_LEAST_SET = 5
_SLOT_BITS = 26
_SLOT_MASK = (1 << _SLOT_BITS) - 1
"""A coupon has its slot in these bits and its value above them. So has a register that stands by itself."""
_HEAD = 40
"""How many bytes stand before registers."""
_TOO_HIGH = 15
"""Of a register with four bits: it stands by itself."""
_LG_HIGH = (0, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 11, 12, 13)
"""By ``lg_k``, the smallest table in which a reader keeps registers that stand by themselves, as a binary logarithm."""
_WEIGHTS = 0.5 ** np.arange(64)


@dataclass(frozen=True, slots=True)
class HllContent:
    """What a sketch holds: coupons, or registers."""

    coupons: npt.NDArray[np.uint32] | None = None
    registers: npt.NDArray[np.uint8] | None = None


def hll_content(library: Any, value: bytes) -> HllContent:
    """What a serialised sketch holds, in any of its forms.

    Raises a ``ValueError`` or an error of the library if the bytes are no sketch.
    """
    sketch = library.hll_sketch.deserialize(value)
    data = bytes(sketch.serialize_compact())
    mode, bits = data[7] & 3, data[7] >> 2 & 3
    if mode != _REGISTERS:
        return HllContent(coupons=np.frombuffer(data, "<u4", offset=_start(mode)).astype(np.uint32))
    if bits == _SIX_BITS:
        # A union of one sketch that is as large as there are is a copy of it, with a byte for each register.
        alone = library.hll_union(_MOST_LG_K)
        alone.update(sketch)
        data, bits = bytes(alone.get_result(library.HLL_8).serialize_compact()), _EIGHT_BITS
    slots = 1 << data[3]
    packed = bits != _EIGHT_BITS
    registers = _unpacked(data, slots) if packed else np.frombuffer(data, np.uint8, slots, _HEAD)
    if registers.max() >= len(_WEIGHTS):
        raise ValueError("a register is higher than any hash gives")
    return HllContent(registers=registers)


def hll_union(lg_k: int, contents: Iterable[HllContent]) -> bytes:
    """The union as a compact sketch.

    Its size is ``lg_k``, or that of the smallest sketch with registers: what is not known of one cannot be told of all.
    """
    given = list(contents)
    coupons = np.unique(np.concatenate([np.empty(0, np.uint32), *(c.coupons for c in given if c.coupons is not None)]))
    arrays = [content.registers for content in given if content.registers is not None]
    if not arrays and len(coupons) <= _most_coupons(lg_k):
        return _of_coupons(coupons, lg_k)
    slots = min([1 << lg_k, *map(len, arrays)])
    registers = np.zeros(slots, dtype=np.uint8)
    if len(coupons):
        np.maximum.at(registers, coupons & np.uint32(slots - 1), (coupons >> np.uint32(_SLOT_BITS)).astype(np.uint8))
    for array in arrays:
        np.maximum(registers, array if len(array) == slots else array.reshape(-1, slots).max(axis=0), out=registers)
    return _of_registers(registers)


def _most_coupons(lg_k: int) -> int:
    """How many coupons a sketch keeps as such: fewer than a list is long, or three quarters of the largest set."""
    largest = lg_k - 3
    return _SHORT - 1 if largest < _LG_LEAST_SET else 3 << largest >> 2


def _start(mode: int) -> int:
    """Where coupons begin."""
    return 8 if mode == _LIST else 12


def _of_coupons(coupons: npt.NDArray[np.uint32], lg_k: int) -> bytes:
    """A sketch of few coupons, in their order."""
    count = len(coupons)
    if count < _SHORT:
        flags = _COMPACT if count else _COMPACT | _EMPTY
        head = struct.pack("8B", 2, 1, 7, lg_k, _LG_SHORT, flags, count, _LIST)
    else:
        size = _LG_LEAST_SET
        while 4 * count > 3 << size:
            size += 1
        head = struct.pack("<8Bi", 3, 1, 7, lg_k, size, _COMPACT, 0, _SET, count)
    return head + coupons.astype("<u4").tobytes()


def _unpacked(data: bytes, slots: int) -> npt.NDArray[np.uint8]:
    """The registers of a sketch that has four bits for each."""
    packed = np.frombuffer(data, np.uint8, slots // 2, _HEAD)
    registers = np.empty(slots, dtype=np.uint8)
    registers[0::2], registers[1::2] = packed & 15, packed >> 4
    registers += data[6]
    (count,) = struct.unpack_from("<i", data, 36)
    high = np.frombuffer(data, "<u4", count, _HEAD + slots // 2)
    registers[high & np.uint32(_SLOT_MASK)] = high >> np.uint32(_SLOT_BITS)
    return registers


def _of_registers(registers: npt.NDArray[np.uint8]) -> bytes:
    """A sketch with four bits for each register: how far it is above the lowest one. Those that are too high for that
    stand by themselves, by slot."""
    counts = np.bincount(registers, minlength=64)
    weights = counts * _WEIGHTS
    lowest = int(registers.min())
    above = registers - np.uint8(lowest)
    slots = np.flatnonzero(above >= _TOO_HIGH).astype(np.uint32)
    high = registers[slots].astype(np.uint32) << np.uint32(_SLOT_BITS) | slots
    above = np.minimum(above, np.uint8(_TOO_HIGH))
    lg_k = len(registers).bit_length() - 1
    size = 0
    if len(high):
        size = _LG_HIGH[lg_k]
        while 4 * len(high) > 3 << size:
            size += 1
    head = struct.pack("<8B", 10, 1, 7, lg_k, size, _COMPACT | _OUT_OF_ORDER, lowest, _REGISTERS)
    # The sums have at most 53 binary digits, so they are exact.
    told = struct.pack("<3d2i", 0.0, weights[:32].sum(), weights[32:].sum(), counts[lowest], len(high))
    return head + told + (above[0::2] | above[1::2] << np.uint8(4)).tobytes() + high.astype("<u4").tobytes()
