"""Values that people type: sizes, durations, storage options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import orjson

from lakemerge.errors import InputError
from lakemerge.quantities import byte_count, duration
from lakemerge.storage.options import shown_name

__all__ = ["OPTIONS_VARIABLE", "byte_count", "duration", "named_values", "storage_options"]

OPTIONS_VARIABLE = "LAKEMERGE_STORAGE_OPTIONS"
"""The environment variable that holds storage options as a JSON object."""


def storage_options(given: Sequence[str]) -> dict[str, object]:
    """The storage options of the environment, overridden by the given ``NAME=VALUE`` pairs. ``true``, ``false``, JSON
    objects and JSON lists are read as such, and all other values as text. Raises :class:`InputError`."""
    text = os.environ.get(OPTIONS_VARIABLE, "{}")
    try:
        options = orjson.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise InputError(f'{OPTIONS_VARIABLE} is not a JSON object; write it as {{"endpoint_url": "..."}}')
    for number, pair in enumerate(given, start=1):
        name, equals, value = pair.partition("=")
        if not (name and equals):
            # It may be a secret, so it is not shown.
            raise InputError(f"storage option number {number} is not NAME=VALUE, such as endpoint_url=...")
        options[name] = _value(value)
    return options


def named_values(given: Sequence[str] | None) -> dict[str, Any]:
    """``NAME=VALUE`` pairs. Values that are JSON are read as JSON, all others as text. Raises :class:`InputError`."""
    options: dict[str, Any] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise InputError(f"option {shown_name(pair, frozenset())} is not NAME=VALUE")
        try:
            options[name] = orjson.loads(value)
        except ValueError:
            options[name] = value
    return options


def _value(text: str) -> object:
    # A key or a secret may be all digits, so a value that is no flag, object or list is text.
    if text in ("true", "false") or text[:1] in ("{", "["):
        try:
            return orjson.loads(text)
        except ValueError:
            return text
    return text
