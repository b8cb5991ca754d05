"""The version of the library that runs."""

from __future__ import annotations

import functools
import importlib.metadata

__all__ = ["library_version"]


@functools.cache
def library_version() -> str:
    """The result is kept, because to find it takes milliseconds: the metadata of the installed package is parsed."""
    try:
        return importlib.metadata.version("lakemerge")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
