"""Bytes of bitmaps that depend on nothing but their numbers.

The portable format of Roaring has for each 65,536 numbers a container: an array, bits, or runs. The library keeps runs
or an array by what was done before where both take as many bytes. Here runs are kept only where they take fewer.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["canonical"]

_PLAIN, _WITH_RUNS = 12346, 12347
"""The first number of a bitmap without runs, and the lower half of that of a bitmap with runs."""
_PLACES_FROM = 4
"""A bitmap with runs says where its containers begin if it has so many."""
_LONGEST_ARRAY = 4096
_BITS = 8192
"""How many bytes a container of bits has."""

_Numbers = npt.NDArray[np.int64]


def canonical(bitmap: Any, *, wide: bool) -> bytes:
    """The bytes of a bitmap of the library. Its containers may change their form.

    :param wide: whether its numbers have 64 bits.
    """
    bitmap.run_optimize()
    data = bytes(bitmap.serialize())
    if not wide:
        return _rewritten(data, 0)[0]
    (count,) = struct.unpack_from("<Q", data)
    parts, at = [data[:8]], 8
    for _ in range(count):
        parts.append(data[at : at + 4])
        part, at = _rewritten(data, at + 4)
        parts.append(part)
    return b"".join(parts)


def _rewritten(data: bytes, start: int) -> tuple[bytes, int]:
    """The bitmap that begins at a place, without runs that save nothing, and the place where it ends."""
    (cookie,) = struct.unpack_from("<I", data, start)
    has_runs = cookie & 0xFFFF == _WITH_RUNS
    count = (cookie >> 16) + 1 if has_runs else struct.unpack_from("<I", data, start + 4)[0]
    at = start + 4 + ((count + 7) // 8 if has_runs else 4)
    heads = np.frombuffer(data, "<u2", 2 * count, at).reshape(-1, 2).astype(np.int64)
    keys, sizes = heads[:, 0], heads[:, 1] + 1
    at += 4 * count + (4 * count if not has_runs or count >= _PLACES_FROM else 0)
    if not has_runs:
        end = at + int(_plain_bytes(sizes).sum())
        return data[start:end], end
    flags = np.unpackbits(np.frombuffer(data, np.uint8, (count + 7) // 8, start + 4), bitorder="little")[:count] > 0
    bodies = []
    for place, size in enumerate(sizes.tolist()):
        length = int(_plain_bytes(sizes[place : place + 1])[0])
        if flags[place]:
            (runs,) = struct.unpack_from("<H", data, at)
            length = 2 + 4 * runs
        body = data[at : at + length]
        at += length
        if flags[place] and length >= 2 * size:
            body, flags[place] = _as_array(body), False
        bodies.append(body)
    return _written(keys, sizes, flags, bodies), at


def _plain_bytes(sizes: _Numbers) -> _Numbers:
    """How long containers without runs are."""
    return np.where(sizes <= _LONGEST_ARRAY, 2 * sizes, _BITS)


def _as_array(runs: bytes) -> bytes:
    """The numbers of a container of runs, one by one."""
    pairs = np.frombuffer(runs, "<u2", offset=2).reshape(-1, 2).astype(np.int64)
    lengths = pairs[:, 1] + 1
    before = np.cumsum(lengths) - lengths
    return (np.repeat(pairs[:, 0] - before, lengths) + np.arange(lengths.sum())).astype("<u2").tobytes()


def _written(keys: _Numbers, sizes: _Numbers, flags: npt.NDArray[np.bool_], bodies: list[bytes]) -> bytes:
    count = len(bodies)
    heads = np.stack([keys, sizes - 1], axis=1).astype("<u2").tobytes()
    has_runs = bool(flags.any())
    if has_runs:
        head = struct.pack("<I", _WITH_RUNS | (count - 1) << 16) + np.packbits(flags, bitorder="little").tobytes()
    else:
        head = struct.pack("<II", _PLAIN, count)
    places = b""
    if not has_runs or count >= _PLACES_FROM:
        lengths = np.array([len(body) for body in bodies])
        places = (len(head) + 8 * count + np.cumsum(lengths) - lengths).astype("<u4").tobytes()
    return b"".join([head, heads, places, *bodies])
