"""What Spark's Python workers need not look for again."""

from __future__ import annotations

import gc
import os
import sys
import zipimport
from collections.abc import Mapping
from typing import Final

__all__ = ["forget_archives"]

_FULL: Final = 2
"""The generation of a search of the whole process."""


def forget_archives() -> None:
    """Let Python forget the importers of archives after each task and each plan of a Spark worker. Call it once.

    Before the next one, Spark 4.0 and 4.1 call ``importlib.invalidate_caches``. Up to Python 3.12 this reads the
    directories of archives anew: of Spark's own once for each package in them, half a second in all, and of each jar
    that came with ``spark.jars.packages``. Spark 4.2 does so only if there are new archives. Any later import of a new
    module makes importers again, from the directory that Python keeps. So they are forgotten whenever the worker
    searches all of its objects for garbage, which it does after each task and each plan.
    """
    if "SPARK_REUSE_WORKER" in os.environ and _forget not in gc.callbacks:
        gc.callbacks.append(_forget)


def _forget(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == _FULL:
        for path, importer in list(sys.path_importer_cache.items()):
            if isinstance(importer, zipimport.zipimporter):
                sys.path_importer_cache.pop(path, None)  # another thread may have taken it out
