"""Arguments of public calls: checked at the door against the annotations of the call, so that a value of a wrong kind
is an error that names the parameter, before anything is read or written.

Values that stand for the right kind are taken as it: integers of numpy as ``int``, text of numpy as ``str``, any
iterable of names as a tuple.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from lakemerge.errors import InputError
from mergers.wording import argument

__all__ = [
    "check_fields",
    "check_of",
    "checked",
    "flag",
    "items",
    "know",
    "mapping",
    "names",
    "number",
    "shown",
    "whole",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Check = Callable[[Any, str], Any]
_MOST_SHOWN = 80
_LARGEST = 2**63
_SECRET = frozenset({"storage_options", "properties"})


def shown(value: object) -> str:
    """A value for a message: short, on one line, and whatever its class does."""
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - the class is the caller's
        written = f"an object of type {type(value).__name__}"
    if "\n" in written or len(written) > _MOST_SHOWN:
        return f"a value of type {type(value).__name__}"
    return written


def whole(value: Any, name: str) -> int:
    """An integer of 64 bits. Raises :class:`InputError`, as all of these do."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = int(operator.index(value))
    except (TypeError, ValueError):
        raise InputError(f"{argument(name)} must be an integer, not {shown(value)}") from None
    if not -_LARGEST <= found < _LARGEST:
        raise InputError(f"{argument(name)} must be an integer of 64 bits, not {shown(found)}")
    return found


def number(value: Any, name: str) -> float:
    """A number that is not NaN."""
    try:
        if not (_is_number_of_numpy(value) if hasattr(value, "ndim") else hasattr(value, "__float__")):
            raise TypeError  # text, or an array, which may have one number
        if isinstance(value, bool):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    if found != found:
        raise InputError(f"{argument(name)} must be a number, not {shown(value)}")
    return found


def _is_number_of_numpy(value: object) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return type(value).__module__ == "numpy" and type(value).__name__ != "ndarray" and kind in ("i", "u", "f")


def flag(value: Any, name: str) -> bool:
    """True or False."""
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise InputError(f"{argument(name)} must be True or False, not {shown(value)}")


def text(value: Any, name: str) -> str:
    """Text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise InputError(f"{argument(name)} must be text, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{argument(name)} holds half a surrogate pair, which UTF-8 cannot encode") from None
    return str(value)


def names(value: Any, name: str) -> tuple[str, ...]:
    """A list of names."""
    if isinstance(value, str):
        raise InputError(f"{argument(name)} must be a list of names; did you mean {[str(value)]!r}?")
    found = items(value, name, "a list of names such as ['id']")
    for one in found:
        if not isinstance(one, str):
            raise InputError(f"{argument(name)} must be a list of names, and {shown(one)} is not a name")
    return tuple(text(one, name) for one in found)


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """A mapping of names. What may hold secrets is not shown."""
    if not isinstance(value, Mapping):
        given = f"a value of type {type(value).__name__}" if name in _SECRET else shown(value)
        raise InputError(f"{argument(name)} must be a mapping of names to values, not {given}")
    for one in value:
        if not isinstance(one, str):
            raise InputError(f"the names in {argument(name)} must be text; one is of the type {type(one).__name__}")
        text(one, name)
    return value


def span(value: Any, name: str) -> dt.timedelta:
    """A ``timedelta``."""
    if not isinstance(value, dt.timedelta) or value != value:
        raise InputError(f"{argument(name)} must be a datetime.timedelta, not {shown(value)}")
    return value


def instant(value: Any, name: str) -> dt.datetime | str:
    """A ``datetime`` or text."""
    if isinstance(value, str):
        return text(value, name)
    if not isinstance(value, dt.datetime) or value != value:  # pandas' NaT is a datetime
        raise InputError(f"{argument(name)} must be a datetime or an ISO 8601 string, not {shown(value)}")
    return value


def items(value: Any, name: str, what: str) -> list[Any]:
    """The items of something that can be gone through, and is neither text nor a mapping.

    :param what: what it must be, for the error.
    """
    if not isinstance(value, str | bytes | bytearray | Mapping) and isinstance(value, Iterable):
        with contextlib.suppress(TypeError):  # an array without dimensions
            return list(value)
    raise InputError(f"{argument(name)} must be {what}, not {shown(value)}")


def _merger_classes(value: Any, name: str) -> tuple[Any, ...]:
    found = tuple(items(value, name, "a list of merger classes"))
    for one in found:
        if not isinstance(one, type):
            raise InputError(f"{argument(name)} must be a list of merger classes, and {shown(one)} is not a class")
    return found


def _transaction(value: Any, name: str) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and _is_number_of_numpy(value[1]):
        return value[0], whole(value[1], name)
    return value  # one of the library's own, or what a write judges


def _callable(value: Any, name: str) -> Any:
    if not callable(value):
        raise InputError(f"{argument(name)} must be a function, not {shown(value)}")
    return value


_CHECKS: dict[str, _Check] = {
    "int": whole,
    "float": number,
    "bool": flag,
    "str": text,
    "dt.timedelta": span,
    "dt.datetime | str": instant,
    "Sequence[str]": names,
    "Sequence[type[Merger]]": _merger_classes,
    "tuple[str, int]": _transaction,
}
"""By annotation. Modules above this one add their own classes."""
_MAPPING = re.compile(r"Mapping\[str, .*\]")
_CALLABLE = re.compile(r"Callable\[\[.*\], .*\]")
_LITERAL = re.compile(r"Literal\[((?:['\"][^'\"]*['\"](?:, )?)+)\]")


def know(kind: type) -> None:
    """Check parameters that are annotated with this class by its name."""

    def check(value: Any, name: str) -> Any:
        if not isinstance(value, kind):
            raise InputError(f"{argument(name)} must be {kind.__name__}(...), not {shown(value)}")
        return value

    _CHECKS[kind.__name__] = check


def check_of(annotation: object) -> _Check | None:
    """The check for a parameter with this annotation; ``None`` if the call itself has to judge the value."""
    if not isinstance(annotation, str):
        return None
    plain = annotation.removesuffix(" | None")
    check = _CHECKS.get(plain)
    if check is None and _MAPPING.fullmatch(plain):
        check = mapping
    if check is None and _CALLABLE.fullmatch(plain):
        check = _callable
    if check is None and (words := _LITERAL.fullmatch(plain)):
        check = functools.partial(_one_of, re.findall(r"['\"]([^'\"]*)['\"]", words[1]))
    if check is None or plain == annotation:
        return check
    return functools.partial(_optional, check)


def _one_of(words: list[str], value: Any, name: str) -> str:
    if not isinstance(value, str) or value not in words:
        known = ", ".join(map(repr, words[:-1])) + (" or " if len(words) > 1 else "") + repr(words[-1])
        raise InputError(f"{argument(name)} must be {known}, not {shown(value)}")
    return str(value)


def _optional(check: _Check, value: Any, name: str) -> Any:
    return None if value is None else check(value, name)


def checked(function: _Function) -> _Function:
    """The function, with its arguments checked by their annotations. See the module's docstring."""
    parameters = inspect.signature(function).parameters
    checks = {name: check for name, one in parameters.items() if (check := check_of(one.annotation)) is not None}
    positional = [name for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY]

    def judged(name: str, value: object) -> object:
        return checks[name](value, name) if name in checks else value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        known = [judged(name, value) for name, value in zip(positional, args, strict=False)]
        given = {name: judged(name, value) for name, value in kwargs.items()}
        # Arguments that are too many are left for Python to refuse.
        return function(*known, *args[len(known) :], **given)

    call.__checked__ = tuple(checks)  # type: ignore[attr-defined]
    return cast("_Function", call)


def check_fields(instance: Any) -> None:
    """Check the fields of a frozen dataclass by their annotations, and put those of equal meaning in their place."""
    for field in dataclasses.fields(instance):
        check = check_of(field.type)
        if check is not None:
            value = getattr(instance, field.name)
            found = check(value, field.name)
            if found is not value:
                object.__setattr__(instance, field.name, found)
