"""Which worker of pytest-xdist runs what, so that two of them alone start Spark.

pytest-xdist 3.8 has ``--dist loadgroup`` for this, but it sets an attribute of tests that pytest 9.2 no longer reads.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["Scheduler", "sort"]

ROOT = Path(__file__).resolve().parent.parent
SPARK = "files that take the fixture spark"
_HALF = "tests/spark/test_n"
"""Files of Spark before this name, and those from it on, take about as long."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """The files that take the Spark session are two units of work, each other file is one.

    A worker that is free takes the next unit, in the order of the tests.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def sort(items: list[pytest.Item]) -> None:
    """Units that take longest come first, so that no worker is left with one at the end: Spark's two."""
    items.sort(key=lambda item: (not _unit(item.nodeid).startswith(SPARK), not item.nodeid.startswith("tests/spark/")))


def _unit(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if not _takes_spark(file):
        return file
    return f"{SPARK}, {'first' if file < _HALF else 'second'} half"


@functools.cache
def _takes_spark(file: str) -> bool:
    """Whether a test or a fixture of the file has an argument ``spark``."""
    return any(
        isinstance(node, ast.FunctionDef)
        and (node.name.startswith("test_") or node.decorator_list)
        and any(argument.arg == "spark" for argument in node.args.args)
        for node in ast.parse((ROOT / file).read_text()).body
    )
