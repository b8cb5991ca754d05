"""Words of a message that depend on who reads it.

A library's errors name its parameters: "pass enforce_retention=False". A program around it has other names for them,
such as options of a command line. So :func:`argument` marks parameters in a message, and :func:`in_python` marks
clauses that only help callers from Python. :func:`worded` spells both. Callers from Python need to do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["Speller", "argument", "in_python", "plain", "worded"]

Speller = Callable[[str, str | None], str]
"""Gives the words for a parameter, from its name and the value that a message gives it."""

# Control characters. repr() escapes them, so no quoted text of a user can hold a mark.
_BEGIN, _VALUE, _END = "\x0e", "\x1f", "\x0f"
_MARK = re.compile(f"{_BEGIN}([a-z_]*)(?:{_VALUE}([^{_END}]*))?{_END}")


def argument(name: str, value: object = None) -> str:
    """A parameter of a public function for a message, with or without a value.

    :param value: the value; text as Python writes it. ``None``: the parameter alone.
    """
    return f"{_BEGIN}{name}{_END}" if value is None else f"{_BEGIN}{name}{_VALUE}{value}{_END}"


def in_python(clause: str) -> str:
    """A clause of a message that only a caller from Python can follow. Other readers do not see it."""
    return f"{_BEGIN}{_VALUE}{clause}{_END}"


def worded(text: str, spell: Speller) -> str:
    """The text for a reader who has other names for parameters, and does not write Python."""
    return _MARK.sub(lambda mark: spell(mark[1], mark[2]) if mark[1] else "", text)


def plain(text: str) -> str:
    """The text for a caller from Python."""
    return _MARK.sub(lambda mark: _assigned(mark[1], mark[2]), text)


def _assigned(name: str, value: str | None) -> str:
    if value is None:
        return name
    return f"{name}={value}" if name else value
