"""How the applications of these tests run on their cluster."""

from __future__ import annotations

__all__ = ["CONFIG"]

CONFIG = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "2",
    # A task that is told to stop may go on for this long: what it still writes must do no harm.
    "spark.python.task.killTimeout": "600s",
}
