"""Which worker of pytest-xdist runs what, so that few of them start Spark, and all end at about the same time.

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
LAST = "the last of them"
OF_LAST = tuple(f"tests/{folder}/" for folder in ("interop", "spark/merge_source", "spark/mergers", "spark/schema"))
OF_SPARK = ("spark", "lake", "by_unions")
"""The session, and fixtures in ``conftest.py`` that take it."""


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Most files that take the Spark session are one unit of work, which comes first. The others that take it are one
    that comes last. Each other file is one.

    A worker that is free takes the next unit, in the order of the tests.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def sort(items: list[pytest.Item]) -> None:
    """The unit that takes longest comes first. The worker that is free first takes the last one: the one that has Spark
    already, or another one, whose start of Spark costs less than to wait."""
    order = {SPARK: 0, LAST: 2}
    items.sort(key=lambda item: (order.get(_unit(item.nodeid), 1), not item.nodeid.startswith("tests/spark/")))


def _unit(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if not _takes_spark(file):
        return file
    return LAST if file.startswith(OF_LAST) else SPARK


@functools.cache
def _takes_spark(file: str) -> bool:
    """Whether a test or a fixture of the file takes the session, or a fixture of all files that does."""
    return any(
        isinstance(node, ast.FunctionDef)
        and (node.name.startswith("test_") or node.decorator_list)
        and any(argument.arg in OF_SPARK for argument in node.args.args)
        for node in ast.parse((ROOT / file).read_text()).body
    )
