"""Sends user mergers to executors with the job.

Tasks cannot import a class that a user wrote in a notebook, a script or a module beside it. So such a class is sent by
value. Classes of installed packages and our own are sent by name, as Spark does with everything else.
"""

from __future__ import annotations

import pickle
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from pyspark import cloudpickle

from mergers import Merger

__all__ = ["carried", "portable"]

T = TypeVar("T")

_cloudpickle: Any = cloudpickle  # it has no types
_OURS = frozenset({"mergers", "lakemerge", "compaction"})
_INSTALLED = tuple(
    {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_registering = threading.Lock()
"""A lock, because cloudpickle has one list of modules to send by value for the whole process."""


def portable(value: T) -> T:
    """A box for ``value``, which may hold mergers. A function for executors captures the box instead of the value.

    Here it is an opaque box; unpickled, it is the value. The classes in it are pickled now, so it does not matter when
    Spark pickles the function.
    """
    return cast("T", _Box(carried(value)))


class _Box:
    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return pickle.loads, (self._payload,)


def carried(value: object) -> bytes:
    """The value, which may hold mergers, as bytes for ``pickle.loads``."""
    with _registering:
        listed = set(_cloudpickle.list_registry_pickle_by_value())
        ours = [module for module in _modules_of_users() if module.__name__ not in listed]
        for module in ours:
            _cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(_cloudpickle.dumps(value))
        except (pickle.PicklingError, TypeError):
            # The module refers to something that cannot be pickled, such as a lock. Then it is sent by name, which
            # works if the executors have the module (--py-files).
            for module in ours:
                _cloudpickle.unregister_pickle_by_value(module)
            ours = []
            return bytes(_cloudpickle.dumps(value))
        finally:
            for module in ours:
                _cloudpickle.unregister_pickle_by_value(module)


def _modules_of_users() -> list[ModuleType]:
    """The modules of merger classes and their bases that executors may not have."""
    names = {base.__module__ for cls in _subclasses(Merger) for base in cls.__mro__}
    modules = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in modules if not _is_everywhere(module)]


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    children: list[type[Any]] = cls.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)


def _is_everywhere(module: ModuleType) -> bool:
    if module.__name__ == "__main__" or module.__name__.partition(".")[0] in _OURS:
        return True  # cloudpickle sends __main__ by value anyway
    file = getattr(module, "__file__", None)
    return file is None or any(Path(file).resolve().is_relative_to(folder) for folder in _INSTALLED)
