"""What each Python process of Spark's does first in tests: this folder is in their ``PYTHONPATH``.

Spark puts an archive of PySpark before the installed package, and Python compiles anew what it imports from an archive.
Spark's daemons, of which there is one for each kind of work, fork a worker for each task and each question to a data
source. They import this library before they fork, or each worker would. Together that takes a second. Nothing that is
imported is garbage, so workers need not search it after each task.
"""

from __future__ import annotations

import gc
import sys

sys.path[:] = [path for path in sys.path if not path.endswith("/pyspark.zip")]

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    import lakemerge.datasource.source  # noqa: F401

    gc.freeze()
