"""A property that is worked out once for each object, where threads of different objects never wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - what everybody calls it
    """As :func:`functools.cached_property` is since Python 3.12. Before, all objects of a class shared one lock, so
    that the plan of one table waited for the store of another, and for ever where that waited for it.

    Two threads that ask the same object at once may both work it out; of equal values one is kept.
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
        # What stands in the instance is found before this descriptor, which therefore is asked once.
        return instance.__dict__.setdefault(self._name, self.func(instance))
