"""What Spark's Python workers need not look for again."""

from __future__ import annotations

import sys
import zipimport

from lakemerge._internal.collector import watch_searches

__all__ = ["forget_archives"]


def forget_archives() -> None:
    """Let Python forget the importers of archives after each task and each plan of a Spark worker.

    Before the next one, Spark 4.0 and 4.1 call ``importlib.invalidate_caches``. Up to Python 3.12 this reads the
    directories of archives anew: of Spark's own once for each package in them, half a second in all, and of each jar
    that came with ``spark.jars.packages``. Spark 4.2 does so only if there are new archives. Any later import of a new
    module makes importers again, from the directory that Python keeps. So they are forgotten whenever the worker
    searches all of its objects for garbage, which it does after each task and each plan.
    """
    watch_searches(_forget)


def _forget(phase: str) -> None:
    if phase == "stop":
        for path, importer in list(sys.path_importer_cache.items()):
            if isinstance(importer, zipimport.zipimporter):
                sys.path_importer_cache.pop(path, None)  # another thread may have taken it out
