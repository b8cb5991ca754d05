"""Which worker of pytest-xdist runs what, so that one of them alone starts Spark.

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
OF_SPARK = ("spark", "lake", "by_unions")
"""The session, and fixtures in ``conftest.py`` that take it."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """All files that take the Spark session are one unit of work, each other file is one.

    A worker that is free takes the next unit, in the order of the tests.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def sort(items: list[pytest.Item]) -> None:
    """Units that take longest come first, so that no worker is left with one at the end: Spark's."""
    items.sort(key=lambda item: (_unit(item.nodeid) != SPARK, not item.nodeid.startswith("tests/spark/")))


def _unit(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return SPARK if _takes_spark(file) else file


@functools.cache
def _takes_spark(file: str) -> bool:
    """Whether a test or a fixture of the file takes the session, or a fixture of all files that does."""
    return any(
        isinstance(node, ast.FunctionDef)
        and (node.name.startswith("test_") or node.decorator_list)
        and any(argument.arg in OF_SPARK for argument in node.args.args)
        for node in ast.parse((ROOT / file).read_text()).body
    )
