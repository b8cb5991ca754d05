"""Sizes and durations as people write them."""

from __future__ import annotations

import datetime as dt
import re

from lakemerge._internal.arguments import number, shown, whole
from lakemerge.errors import InputError

__all__ = ["byte_count", "bytes_of", "duration", "milliseconds_of"]

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def duration(text: str) -> dt.timedelta:
    """``90s``, ``5m``, ``1.5h`` or ``7d``. Raises :class:`InputError`."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[2].lower() not in _SECONDS:
        raise InputError(f"{text!r} is not a duration; write a number and s, m, h or d, such as 5m")
    try:
        return dt.timedelta(seconds=float(found[1]) * _SECONDS[found[2].lower()])
    except OverflowError as error:
        raise InputError(f"{text!r} is too long a duration") from error


def byte_count(text: str) -> int:
    """``1000000``, ``64MiB``, ``1.5GB``. Raises :class:`InputError`."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[2].lower() not in _BYTES:
        raise InputError(f"{text!r} is not a size; write a number of bytes, or a unit as in 64MiB or 10GB")
    try:
        return int(float(found[1]) * _BYTES[found[2].lower()])
    except OverflowError as error:
        raise InputError(f"{text!r} is too large a size") from error


def milliseconds_of(value: object, what: str) -> int:
    """A duration that a caller gave as text, as a ``timedelta`` or as seconds. Raises :class:`InputError`."""
    if isinstance(value, str):
        value = duration(value)
    if isinstance(value, dt.timedelta) and value == value:  # pandas has one that is none
        value = value.total_seconds()
    try:
        seconds = number(value, what)
    except InputError:
        seconds = -1
    if not 0 <= seconds < 2**40:
        raise InputError(f"{what} must be a duration such as '5m', a timedelta or seconds, not {shown(value)}")
    return round(seconds * 1000)


def bytes_of(value: object, what: str) -> int:
    """A size that a caller gave as text or as a number. Raises :class:`InputError`."""
    if isinstance(value, str):
        return byte_count(value)
    try:
        count = whole(value, what)
    except InputError:
        count = -1
    if count < 0:
        raise InputError(f"{what} must be a size such as '64MiB' or a number of bytes, not {shown(value)}")
    return count
