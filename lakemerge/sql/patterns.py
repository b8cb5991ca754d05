"""``LIKE``, ``RLIKE`` and functions that search for a text. The pattern is one for all rows, or a column."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql.nodes import Constant, Node, RowError, assembled, call

__all__ = ["java_regex", "like", "like_regex", "matched", "pattern_call"]

_WILDCARDS = frozenset("%_")


def pattern_call(
    kernel: Callable[[pa.Array, str], pa.Array], texts: Node, pattern: Node, text: str, *, fails: bool = False
) -> Node:
    """Whether each of ``texts`` matches its pattern. ``kernel`` is called once for each distinct pattern of a batch."""
    if isinstance(pattern, Constant):
        if pattern.value is None:
            return Constant(None, pa.bool_(), text)
        return call(partial(_for_one, kernel=kernel, pattern=pattern.value), [texts], pa.bool_(), text, fails=fails)
    return call(partial(_for_each, kernel=kernel), [texts, pattern], pa.bool_(), text, fails=fails)


def like(texts: pa.Array, pattern: str, *, escape: str) -> pa.Array:
    try:
        regex, _ = like_regex(pattern, escape)
    except FilterError as error:
        raise RowError(error.message) from error
    return matched(texts, regex)


def like_regex(pattern: str, escape: str) -> tuple[str, str]:
    """The whole pattern as an RE2 expression, and the literal text that it starts with."""
    parts: list[str] = []
    prefix: list[str] | None = []
    fixed = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, "")
            if literal not in _WILDCARDS | {escape}:
                raise FilterError(f"the escape in the LIKE pattern {pattern!r} is not before a wildcard")
        elif character in _WILDCARDS:
            fixed = "".join(prefix) if prefix is not None else fixed
            prefix = None
            parts.append(".*" if character == "%" else ".")
            continue
        else:
            literal = character
        parts.append(re.escape(literal))
        if prefix is not None:
            prefix.append(literal)
    return rf"(?s)\A{''.join(parts)}\z", "".join(prefix) if prefix is not None else fixed


def matched(texts: pa.Array, regex: str) -> pa.Array:
    return pc.match_substring_regex(texts, regex)


def _for_one(texts: pa.Array, *, kernel: Callable[[pa.Array, str], pa.Array], pattern: str) -> pa.Array:
    return kernel(texts, pattern)


def _for_each(texts: pa.Array, patterns: pa.Array, *, kernel: Callable[[pa.Array, str], pa.Array]) -> pa.Array:
    encoded = pc.dictionary_encode(patterns)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    parts = []
    for code, pattern in enumerate(encoded.dictionary.to_pylist()):
        places = order[bounds[code] : bounds[code + 1]]
        parts.append((places, kernel(texts.take(pa.array(places)), pattern)))
    return assembled(parts, len(texts), pa.bool_())


# Regular expressions: Arrow has RE2's, and Spark has Java's. A part that means the same in both is passed on. A part
# that means something else in RE2 is rewritten. A part that RE2 does not know, or may read in another way, is refused.

_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
"""Java takes all of these for ends of lines, RE2 only the first."""
_CLASS_ESCAPES = {"d": r"0-9", "w": r"0-9A-Za-z_", "s": r" \t\n\x{0B}\f\r"}
_SAME_ESCAPES = frozenset("tnrf")
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_OPENS = ("(", "(?:")
_PUNCTUATION = frozenset("\\^$.[]{}()|*+?-/,:;!\"#%&'<=>@_`~ ")


def java_regex(pattern: str) -> str | None:
    """The RE2 expression that finds what Java finds with ``pattern``. ``None`` if that is not certain."""
    parts: list[str] = []
    at, depth = 0, 0
    while at < len(pattern):
        found = _atom(pattern, at)
        if found is None:
            return None
        text, at, repeats = found
        depth += (text in _OPENS) - (text == ")")
        parts.append(text)
        if depth < 0:
            return None
        quantifier = _QUANTIFIER.match(pattern, at)
        if quantifier is not None:
            at = quantifier.end()
            lazy = pattern[at : at + 1] == "?"
            if not repeats or pattern[at : at + 1] == "+":
                return None
            parts.append(quantifier.group() + "?" * lazy)
            at += lazy
    return None if depth else "".join(parts)


def _atom(pattern: str, at: int) -> tuple[str, int, bool] | None:
    """One element, where it ends, and whether it may be repeated."""
    character = pattern[at]
    if character == "\\":
        return _escape(pattern, at)
    if character == "[":
        return _set(pattern, at)
    if character == "(":
        if pattern.startswith("(?:", at):
            return "(?:", at + 3, False
        return None if pattern.startswith("(?", at) else ("(", at + 1, False)
    if character in "^|":
        return ("|" if character == "|" else r"\A"), at + 1, False
    if character == "$":
        # In Java $ also matches before a line end that ends the text. $ comes last here, so the match may include it.
        last = at + 1 == len(pattern) or pattern[at + 1] in "|)"
        return (rf"(?:\r\n|[{_ENDS}])?\z", at + 1, False) if last else None
    if character == ".":
        return rf"[^{_ENDS}]", at + 1, True
    if character in "*+?{}])":
        return (")", at + 1, True) if character == ")" else None
    return character, at + 1, True


def _escape(pattern: str, at: int) -> tuple[str, int, bool] | None:
    escaped = pattern[at + 1 : at + 2]
    if escaped.lower() in _CLASS_ESCAPES and escaped:
        inside = _CLASS_ESCAPES[escaped.lower()]
        return f"[{'^' if escaped.isupper() else ''}{inside}]", at + 2, True
    if escaped and (escaped in _SAME_ESCAPES or escaped in _PUNCTUATION):
        return (re.escape(escaped) if escaped in _PUNCTUATION else "\\" + escaped), at + 2, True
    return None


def _set(pattern: str, at: int) -> tuple[str, int, bool] | None:
    """``[abc]``, ``[^a-z]``: no sets within sets, no intersections."""
    parts = ["["]
    at += 1
    if pattern[at : at + 1] == "^":
        parts.append("^")
        at += 1
    first = at
    while at < len(pattern) and pattern[at] != "]":
        character = pattern[at]
        if character == "[" or pattern.startswith("&&", at) or (character == "^" and at == first):
            return None
        if character == "\\":
            escaped = pattern[at + 1 : at + 2]
            if escaped in _CLASS_ESCAPES and escaped:
                if parts[-1] == "-" or pattern[at + 2 : at + 3] == "-":
                    return None
                parts.append(_CLASS_ESCAPES[escaped])
            elif escaped and (escaped in _SAME_ESCAPES or escaped in _PUNCTUATION):
                parts.append("\\" + escaped)
            else:
                return None
            at += 2
            continue
        parts.append(character)
        at += 1
    if at == len(pattern) or at == first:
        return None
    return "".join(parts) + "]", at + 1, True
