"""Words of a message that depend on who reads it.

A library's errors name its parameters: "pass enforce_retention=False". A program around it has other names for them,
such as options of a command line. So :func:`argument` marks parameters in a message, and :func:`in_python` marks
clauses that only help callers from Python. :func:`worded` spells both. Callers from Python need to do nothing.

Values, names and paths come from strangers, and a terminal obeys the control characters in them. :func:`printable`
escapes these in all text that people read: messages of errors, lines of logs, tables of commands, reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["Speller", "argument", "in_python", "plain", "printable", "worded"]

Speller = Callable[[str, str | None], str]
"""Gives the words for a parameter, from its name and the value that a message gives it."""

# Control characters. repr() escapes them, so no quoted text of a user can hold a mark.
_BEGIN, _VALUE, _END = "\x0e", "\x1f", "\x0f"
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of ASCII and of Latin-1, which terminals obey; characters that turn the direction of text round,
so that it reads as another text; separators of lines; and halves of surrogate pairs, which no output can encode."""
_MARK = re.compile(f"{_BEGIN}([a-z_]*)(?:{_VALUE}([^{_END}]*))?{_END}")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with its control characters as escapes, such as ``\\x1b``, ``\\n`` and ``\\u202e``.

    :param lines: leave line feeds and tabs as they are. Use this only for text whose lines are the program's own.
    """
    if not _UNSAFE.search(text):
        return text
    return _UNSAFE.sub(lambda found: found[0] if lines and found[0] in "\n\t" else repr(found[0])[1:-1], text)


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
