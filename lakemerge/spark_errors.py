"""Finds an error of this library in an error of Spark.

Spark sends the text of an exception from its Python processes to the driver, and nothing else. So whoever runs in such
a process adds the facts of an error to that text (:func:`carrying`), and the driver makes the error again from it. The
facts are JSON: nothing in the text of an exception is executed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from lakemerge.errors import LakeMergeError

__all__ = ["carrying", "unwrap_error", "unwrap_errors"]

_HEAD = re.compile(r"^(?:[\w.]+\.)?(?P<kind>\w+): \[(?P<code>[\w-]+)\] ", re.MULTILINE)
"""How Python begins the last line of a traceback, with the text of one of our errors."""
_SPARK = ("pyspark", "py4j")
_VALUES: dict[str, tuple[type, Callable[[Any], str], Callable[[str], object]]] = {
    "decimal": (Decimal, str, Decimal),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),  # a datetime is a date, too
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
}
"""Values that JSON lacks: the name of the type, the type, to text and back."""


def unwrap_error(error: BaseException) -> LakeMergeError | None:
    """The error of LakeMerge that an exception of Spark holds, with its attributes; ``None`` if it holds none.

    Spark's own actions, such as ``collect()``, and streaming queries (``query.exception()``) raise an exception of
    Spark. Its text has the error that was raised in a task.
    """
    if isinstance(error, LakeMergeError):
        return error
    if type(error).__module__.partition(".")[0] not in _SPARK:
        return None
    kinds = {kind.__name__: kind for kind in _kinds(LakeMergeError)}
    text = str(error)
    for head in reversed(list(_HEAD.finditer(text))):  # the last one is the error that came out
        kind = kinds.get(head["kind"])
        if kind is not None and kind.code == head["code"]:
            message, facts = _read(text[head.end() :], head["code"])
            return kind(message, **facts)
    return None


@contextlib.contextmanager
def unwrap_errors() -> Iterator[None]:
    """Raise the error of LakeMerge in place of the exception of Spark that holds it::

        with lakemerge.unwrap_errors():
            rows = table.to_df().collect()

    It is a decorator, too. Spark's exception is the ``__cause__``. Other exceptions stay what they are.
    """
    try:
        yield
    except Exception as error:
        found = unwrap_error(error)
        if found is None or found is error:
            raise
        raise found from error


@contextlib.contextmanager
def carrying() -> Iterator[None]:
    """Use this around work in a Python process of Spark's. An error of this library gets a note with its facts."""
    try:
        yield
    except LakeMergeError as error:
        if (error.facts or "\n" in error.message) and not hasattr(error, "__notes__"):
            facts = json.dumps(error.facts, default=_stored, ensure_ascii=False)
            error.add_note(f"{_mark(error.code)}{facts}")
        raise


def _mark(code: str) -> str:
    return f"[{code}] facts: "


def _read(text: str, code: str) -> tuple[str, dict[str, Any]]:
    """The message and the facts, from the text that follows the code."""
    message, found, rest = text.partition(f"\n{_mark(code)}")
    facts, *_ = rest.splitlines() or [""]
    try:
        read = json.loads(facts, object_hook=_value) if found else None
    except (ValueError, ArithmeticError):  # a number that is none is an ArithmeticError for decimals
        read = None
    if not isinstance(read, dict):
        message, read = text.partition("\n")[0], {}
    return message, {name: _as_fact(fact) for name, fact in read.items()}


def _stored(value: object) -> object:
    for name, (kind, to_text, _) in _VALUES.items():
        if isinstance(value, kind):
            return {f"${name}": to_text(value)}
    return repr(value)


def _value(body: dict[str, Any]) -> object:
    if len(body) == 1:
        ((name, text),) = body.items()
        if name[:1] == "$" and name[1:] in _VALUES and isinstance(text, str):
            return _VALUES[name[1:]][2](text)
    return body


def _as_fact(value: object) -> object:
    """Facts hold tuples and no lists."""
    return tuple(map(_as_fact, value)) if isinstance(value, list) else value


def _kinds(kind: type[LakeMergeError]) -> Iterator[type[LakeMergeError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
