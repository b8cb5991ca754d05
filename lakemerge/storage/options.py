"""Storage options as a caller gives them. They hold secrets, so no message shows a value, whatever is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lakemerge._internal.near import did_you_mean
from lakemerge.errors import InputError
from mergers.wording import argument

__all__ = ["check_no_password", "checked_options", "secret_options", "shown_name", "without_values"]

_NAME = re.compile(r"[a-z][a-z_.-]*[0-9]?|[A-Z][A-Z_]*")
_LONGEST_NAME = 64
_SHORTEST_SECRET = 4
"""Shorter values are flags and numbers, and words of any message."""
_PLAIN = frozenset(
    {"endpoint_url", "profile", "region_name", "project", "account_name", "account_host", "location_mode"}
)
_USER = re.compile(r"[^/@:]*://?[^/@?#]*@")
_PASSWORD = re.compile(r"://?[^/@?#]*:(?!\d+(/|$))[^?#]*@")
"""A slash in the password is not allowed in a URL, but people paste secrets as they are."""
_SIGNATURE = re.compile(r"[?&](sig|sv|token|password|secret|x-amz-[a-z]+|[a-z_-]*key[a-z_-]*)=", re.IGNORECASE)


def checked_options(given: object) -> dict[str, object]:
    """The options by name. ``None`` is none of them. Raises :class:`InputError` if they are no mapping of names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(
            f"{argument('storage_options')} must be a mapping of names to values such as "
            f"{{'endpoint_url': '...'}}, and not of the type {type(given).__name__}"
        )
    for name in given:
        if not isinstance(name, str):
            raise InputError(
                f"the names of {argument('storage_options')} must be text; one is of the type {type(name).__name__}"
            )
    return dict(given)


def shown_name(name: str, known: Mapping[str, object] | frozenset[str] | set[str]) -> str:
    """A name that is not known, for a message. If it does not look like a name, it may be a secret that was put in the
    wrong place, and is not shown."""
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        hint = did_you_mean(name, tuple(known))
        near = f" ({hint.removeprefix('; ')})" if hint else ""
        return f"a name of {len(name)} characters{near}"
    return repr(name)


def secret_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options, at any depth, whose values messages about a store do not need: all but a few."""
    return {
        name: secret_options(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if name not in _PLAIN
    }


def without_values(text: str, options: object) -> str:
    """The text of another package's error, without the values of the options."""
    for value in sorted(set(_texts(options)), key=len, reverse=True):
        text = text.replace(value, "***").replace(repr(value)[1:-1], "***")
    return text


def check_no_password(url: str) -> None:
    """Refuse a URL that holds a password or a signature, because URLs are in logs, errors and metadata. The error does
    not show the URL."""
    held = "a password" if _PASSWORD.search(url) else "a signature or a key" if _SIGNATURE.search(url) else None
    if held is None and _USER.match(url) and url.lower().startswith("http"):
        held = "a user's name or token"
    if held is not None:
        raise InputError(
            f"the URL holds {held}, which would be in logs and metadata: use {argument('storage_options')}"
        )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _texts(part)
    elif not isinstance(value, bool) and value is not None:
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if len(text) >= _SHORTEST_SECRET:
            yield text
