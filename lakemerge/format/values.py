"""Numbers and paths in JSON. Each is checked before anything relies on it."""

from __future__ import annotations

from lakemerge.errors import InputError
from lakemerge.format.names import MAX_BUCKETS
from lakemerge.storage.base import check_path

__all__ = ["INT32_LIMIT", "bucket_count", "optional_path", "stored_path", "whole_number"]

INT32_LIMIT = 2**31
"""Ordinals of files and positions in them are INT32."""


def whole_number(value: object, *, below: int = 2**63) -> int:
    """A stored number. Raises ``ValueError`` if it is not whole, is negative, or is not below ``below``."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"a number must be whole, not negative and below {below}, not {value!r}")
    return value


def bucket_count(value: object) -> int:
    """A stored bucket count. Raises ``ValueError`` if it is no power of two that a table may have."""
    if type(value) is not int or not 1 <= value <= MAX_BUCKETS or value & (value - 1):
        raise ValueError(f"a bucket count must be a power of two from 1 to {MAX_BUCKETS}, not {value!r}")
    return value


def stored_path(value: object) -> str:
    """A path in JSON. Raises :class:`TypeError` or :class:`ValueError` if it is no clean path inside the table."""
    if not isinstance(value, str):
        raise TypeError(f"a path must be a string, not {value!r}")
    try:
        return check_path(value)
    except InputError as error:
        raise ValueError(error.message) from None


def optional_path(value: object) -> str | None:
    """As :func:`stored_path`, or null."""
    return None if value is None else stored_path(value)
