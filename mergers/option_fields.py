"""Options of a merger as the fields of a dataclass: read from JSON values, and written as such.

A field may be ``bool``, ``int``, ``float``, ``str``, ``Literal[...]``, ``X | None``, ``tuple[X, ...]`` or
``Mapping[str, X]``. A class with other types reads its options itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import math
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["REQUIRED", "Required", "defaults_of", "read_options", "resolve_option_types", "written_options"]


class Required(enum.Enum):
    """The type of :data:`REQUIRED`."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED
"""Stands for the default of an option that has none."""


class Named(Protocol):
    """A class of options with a name."""

    name: ClassVar[str]


M = TypeVar("M", bound=Named)

_TYPES = "_option_types"


class _MismatchError(Exception):
    """A value does not have the type of its field."""


def resolve_option_types(cls: type[Named]) -> None:
    """Remember the types of a class's fields. This happens when the class is made: if the class is sent by value, the
    module to which its annotations refer may be missing there."""
    with contextlib.suppress(NameError):  # a name that only type checkers import; read_options reports it
        setattr(cls, _TYPES, get_type_hints(cls))


def read_options(cls: type[M], options: Mapping[str, object]) -> tuple[M | None, tuple[str, ...]]:
    """The merger with these options, or every problem with them."""
    problems = list(_class_problems(cls))
    if problems:
        return None, tuple(problems)
    fields = {field.name: field for field in _fields(cls)}
    known = ", ".join(sorted(fields)) or "none"
    problems += [f"unknown option {name!r}; {cls.name} has: {known}" for name in options if name not in fields]
    kinds, values = getattr(cls, _TYPES), dict[str, Any]()
    for name, field in fields.items():
        if name in options:
            try:
                values[name] = _parsed(options[name], kinds[name])
            except _MismatchError:
                problems.append(f"option {name!r} must be {_described(kinds[name])}, not {options[name]!r}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"option {name!r} is missing; it is {_described(kinds[name])}")
    if problems:
        return None, tuple(problems)
    try:
        return cls(**values), ()
    except ValueError as error:  # from the class's own __post_init__
        return None, (str(error),)


def defaults_of(cls: type[Named]) -> dict[str, object]:
    """Each option of a class with its default as a JSON value, or :data:`REQUIRED`."""
    return {field.name: _default(field) for field in _fields(cls)}


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return _json(field.default)
    return REQUIRED if field.default_factory is dataclasses.MISSING else _json(field.default_factory())


def written_options(merger: Named) -> dict[str, object]:
    """The fields as JSON values."""
    return {field.name: _json(getattr(merger, field.name)) for field in _fields(type(merger))}


def _fields(cls: type[Named]) -> tuple[dataclasses.Field[Any], ...]:
    own: Any = cls  # a merger without options need not be a dataclass
    return tuple(f for f in dataclasses.fields(own) if f.init) if dataclasses.is_dataclass(own) else ()


def _class_problems(cls: type[Named]) -> list[str]:
    """Mistakes in the class that would silently lose options."""
    where = f"class {cls.__qualname__}"
    kinds: dict[str, Any] | None = getattr(cls, _TYPES, None)
    names = {field.name for field in _fields(cls)}
    if kinds is None or not names <= kinds.keys():
        return [f"{where} has option types that are not known where it is defined; import them before the class"]
    bare = [name for name, kind in kinds.items() if name not in names and get_origin(kind) is not ClassVar]
    if bare:
        return [f"{where} annotates {', '.join(bare)}, which is no dataclass field; add @dataclass(frozen=True)"]
    if names and not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return [f"{where} must be @dataclass(frozen=True): mergers are immutable"]
    unusable = [name for name in sorted(names) if not _usable(kinds[name])]
    return [
        f"option {name!r} of {where} is {_described(kinds[name])}; options are bool, int, float, str, Literal, tuple, "
        "Mapping and None of these, or the class defines from_options and options"
        for name in unusable
    ]


def _usable(kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return all(argument is types.NoneType or _usable(argument) for argument in arguments)
    if origin is Literal:
        return all(isinstance(argument, str | int | bool) for argument in arguments)
    if origin is tuple:
        return len(arguments) == 2 and arguments[1] is Ellipsis and _usable(arguments[0])
    if origin is Mapping:
        return arguments[0] is str and _usable(arguments[1])
    return kind in (bool, int, float, str)


def _parsed(value: object, kind: Any) -> object:
    """The JSON value as the type; raises :class:`_MismatchError`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for argument in arguments:
            with contextlib.suppress(_MismatchError):
                return _parsed(value, argument)
    elif kind is types.NoneType and value is None:
        return None
    elif origin is Literal:
        if any(type(value) is type(argument) and value == argument for argument in arguments):
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_parsed(item, arguments[0]) for item in value)
    elif origin is Mapping and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _parsed(item, arguments[1]) for key, item in value.items()}
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    elif kind in (bool, int, str) and type(value) is kind:
        return value
    raise _MismatchError


def _described(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return text.replace("typing.", "").replace("collections.abc.", "")


def _json(value: object) -> object:
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    return value
