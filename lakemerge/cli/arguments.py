"""Values that people type: sizes, durations, storage options."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Sequence

import orjson

from lakemerge.errors import InputError

__all__ = ["OPTIONS_VARIABLE", "byte_count", "duration", "storage_options"]

OPTIONS_VARIABLE = "LAKEMERGE_STORAGE_OPTIONS"
"""The environment variable that holds storage options as a JSON object."""

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def duration(text: str) -> dt.timedelta:
    """``90s``, ``5m``, ``1.5h`` or ``7d``. Raises :class:`InputError`."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[2].lower() not in _SECONDS:
        raise InputError(f"{text!r} is no duration; write a number and s, m, h or d, such as 5m")
    try:
        return dt.timedelta(seconds=float(found[1]) * _SECONDS[found[2].lower()])
    except OverflowError as error:
        raise InputError(f"{text!r} is too long a duration") from error


def byte_count(text: str) -> int:
    """``1000000``, ``64MiB``, ``1.5GB``. Raises :class:`InputError`."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[2].lower() not in _BYTES:
        raise InputError(f"{text!r} is no size; write a number of bytes, or a unit as in 64MiB or 10GB")
    try:
        return int(float(found[1]) * _BYTES[found[2].lower()])
    except OverflowError as error:
        raise InputError(f"{text!r} is too large a size") from error


def storage_options(given: Sequence[str]) -> dict[str, object]:
    """Those of the environment, and ``NAME=VALUE`` ones over them. ``true``, ``false``
    and JSON objects and lists are taken as such, all else as text. Raises :class:`InputError`."""
    text = os.environ.get(OPTIONS_VARIABLE, "{}")
    try:
        options = orjson.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise InputError(f'{OPTIONS_VARIABLE} is no JSON object; write it as {{"endpoint_url": "..."}}')
    for pair in given:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise InputError(f"storage option {pair!r} is not NAME=VALUE")
        options[name] = _value(value)
    return options


def _value(text: str) -> object:
    # A key or a secret may be all digits: what is no flag, object or list is text.
    if text in ("true", "false") or text[:1] in ("{", "["):
        try:
            return orjson.loads(text)
        except ValueError:
            return text
    return text
