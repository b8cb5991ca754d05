"""Orders of events, over the real code. ``make test`` plays some, test-all more, and ``make interleavings`` all.

Each test prints what it covered and what it cut off. A bad schedule is printed with what is wrong; to play it again,
pass it to ``python -m tests.interleavings --replay``, and add it to ``test_schedules.py``.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.interleavings.explore import KINDS, Explorer
from tests.interleavings.operations import WORLDS, operations_of

EFFORT = os.environ.get("LAKEMERGE_EFFORT", "few")
SECONDS = {
    "few": {
        "one operation, one fault": 18,
        "one operation, an exception at a line": 5,
        "two operations, one switch": 15,
    },
    "many": {
        "one operation, one fault": 40,
        "one operation, an exception at a line": 15,
        "one operation, an exception at a bytecode": 6,
        "two operations, one switch": 40,
        "two operations, one fault": 15,
        "two operations, two switches": 12,
    },
    "all": dict.fromkeys(KINDS, 600),
}[EFFORT]
"""Of CPU, for all worlds together."""
OPERATIONS = sum(len(operations_of(world)) for world in WORLDS)


# An exception between two lines may leave a file open, and its reader without a reader. Python says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("world", [name for name in WORLDS if operations_of(name)])
@pytest.mark.parametrize("kind", SECONDS)
def test_orders(kind: str, world: str, capsys: pytest.CaptureFixture[str]) -> None:
    operations = operations_of(world)
    explorer = Explorer()
    seconds = SECONDS[kind] * len(operations) / OPERATIONS
    # The same cases first in each run, so that a failure is seen again; make test-deep draws others.
    seed = random.randrange(10**6) if EFFORT == "all" else 1
    explorer.explore(f"{world}, {kind}", KINDS[kind](WORLDS[world], operations), seconds=seconds, seed=seed)
    with capsys.disabled():
        print(f"\n{explorer.coverage}")  # noqa: T201
    assert not explorer.coverage.bad, str(explorer.coverage)
