"""A property that is computed once for each object. Threads of different objects never wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")

_LOCK = "_working_out"


class cached_property(Generic[T]):  # noqa: N801 - what everybody calls it
    """As :func:`functools.cached_property`, but with one lock for each object, so that it cannot be pickled.

    The property of Python 3.11 has one lock for all objects of a class. The plan of one table would wait for the store
    of another, and for ever if that waits for it. In later versions it has no lock: each thread that reads a version
    would ask the store for its logs.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        self.func = func
        self.__doc__ = func.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> T | cached_property[T]:
        if instance is None:
            return self
        # A value in the object's dictionary is found before this descriptor, so the descriptor is called only once.
        values: dict[str, Any] = instance.__dict__
        with values.setdefault(_LOCK, threading.RLock()):
            if self._name not in values:
                values[self._name] = self.func(instance)
            return values[self._name]
