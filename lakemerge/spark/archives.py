"""What Spark's Python workers need not look for again."""

from __future__ import annotations

import os
import sys
import zipimport

__all__ = ["forget_archives"]


def forget_archives() -> None:
    """Let Python forget the importers of archives, in a Spark worker that does one task after the other.

    Before each task and each plan, Spark 4.0 and 4.1 call ``importlib.invalidate_caches``. Up to Python 3.12 this reads
    the directories of archives anew: of Spark's own once for each package in them, half a second in all, and of each
    jar that came with ``spark.jars.packages``. Spark 4.2 does so only if there are new archives. An importer that is
    needed again is made again, from the directory that Python keeps.
    """
    if "SPARK_REUSE_WORKER" not in os.environ:
        return
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
