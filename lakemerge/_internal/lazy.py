"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

__all__ = ["lazy"]


def lazy(
    package: str, homes: Mapping[str, Sequence[str]], *, packages: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package.

    :param homes: modules, and the names of the package that come from them.
    :param packages: packages and modules inside of it that need no import of their own.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name in packages:
            return import_module(f"{package}.{name}")
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *packages})

    return get, names
