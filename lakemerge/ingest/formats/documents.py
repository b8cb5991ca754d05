"""JSON over several lines: documents one after the other, and arrays whose elements are the records.

Where a record begins and ends is decided by brackets outside of strings, so a record is whole whatever is in it. What
stands between records where nothing may stand is a record of its own, which no parser takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lakemerge.ingest.formats.lines import MARK, MAX_RECORD_BYTES, PORTION_BYTES, Bounds, Lines, filled
from lakemerge.ingest.source import FileUnreadableError

__all__ = ["cut_documents"]

_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("{"), ord("[")]] = 1
_STEPS[[ord("}"), ord("]")]] = -1
_SIGNS = _STEPS != 0
_SIGNS[ord(",")] = True


def cut_documents(file: pa.NativeFile, *, portion_bytes: int | None = None) -> Iterator[Lines]:
    """All records of a stream, in portions.

    :raises FileUnreadableError: brackets do not match, an array is not closed, or a record is too long.
    """
    portion = portion_bytes or PORTION_BYTES
    position, held, in_array, ends = 0, b"", False, False
    while not ends:
        # As much as is held already, so that a long record is not looked at more often than its length doubles.
        wanted = max(portion, len(held), len(MARK))
        data = filled(file, wanted)
        ends = len(data) < wanted
        held = held + data if held else data
        if position == 0 and held.startswith(MARK):
            held, position = held[len(MARK) :], len(MARK)
        found, cut, in_array = _documents(held, position, in_array=in_array)
        if ends:
            if in_array:
                raise FileUnreadableError(
                    f"the array that its records are in is not closed after byte {position + cut}: was it truncated?"
                )
            found += _stripped(held, cut, len(held))
            cut = len(held)
        if found:
            starts, stops = (np.array(part, np.int64) for part in zip(*found, strict=True))
            none = np.zeros(len(starts), np.bool_)
            yield Lines(held[:cut], position, bounds=Bounds(starts, stops, stops, none, none))
        held, position = held[cut:], position + cut
        if len(held) > MAX_RECORD_BYTES:
            raise FileUnreadableError(
                f"the record at byte {position} has more than {MAX_RECORD_BYTES:,} bytes: is a bracket or a quote of "
                "it not closed?",
                offset=position,
            )


def _documents(data: bytes, position: int, *, in_array: bool) -> tuple[list[tuple[int, int]], int, bool]:
    """Where records begin and end, where the first begins that does not end in the data, and whether it is in an
    array."""
    text = re.sub(rb"\\[\s\S]", b"..", data) if b"\\" in data else data
    values = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(_SIGNS[values])
    quotes = np.flatnonzero(values == ord('"'))
    places = places[np.searchsorted(quotes, places) % 2 == 0]
    steps = _STEPS[values[places]].astype(np.int64)
    depths = np.cumsum(steps) + in_array
    # A sign counts if it begins or ends a document, or ends an element of an array.
    outer = ((steps > 0) & (depths == 1)) | ((steps < 0) & (depths <= 0)) | ((steps == 0) & (depths == 1))
    found: list[tuple[int, int]] = []
    start = 0
    for place, depth in zip(places[outer].tolist(), depths[outer].tolist(), strict=True):
        sign = text[place : place + 1]
        if depth < 0 or (in_array and sign == b"}"):
            raise FileUnreadableError(f"the bracket at byte {position + place} does not match the one that it closes")
        if sign == b",":
            if in_array:
                found += _stripped(data, start, place) or [(place, place + 1)]
                start = place + 1
        elif sign == b"]" and in_array:
            found += _stripped(data, start, place)
            start, in_array = place + 1, False
        elif sign in b"}]":
            found.append((start, place + 1))
            start = place + 1
        else:
            found += _stripped(data, start, place)
            start, in_array = (place + 1, True) if sign == b"[" else (place, False)
    return found, start, in_array


def _stripped(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """The bounds without white space around them; none for white space alone."""
    part = data[start:end]
    inner = part.strip()
    if not inner:
        return []
    start += len(part) - len(part.lstrip())
    return [(start, start + len(inner))]
