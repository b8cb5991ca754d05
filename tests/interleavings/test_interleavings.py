"""Orders of events, over the real code. ``make test`` plays some of single operations, test-all more, and
``make interleavings`` all.

Each test prints what it covered and what it cut off. A bad schedule is printed with what is wrong; to play it again,
pass it to ``python -m tests.interleavings --replay``, and add it to ``test_schedules.py``.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.interleavings.explore import KINDS, Explorer, alone, singles
from tests.interleavings.operations import WORLDS, operations_of
from tests.interleavings.turns import MUTATING

EFFORT = os.environ.get("LAKEMERGE_EFFORT", "few")
_SECONDS: dict[str, dict[str, float]] = {
    "few": {"one operation, one fault": 12},
    "many": {
        "one operation, one fault": 150,
        "one operation, an exception at a line": 15,
        "one operation, an exception at a bytecode": 6,
        "two operations, one switch": 40,
        "two operations, one fault": 15,
        "two operations, two switches": 12,
    },
    "all": dict.fromkeys(KINDS, 600.0),
}
SECONDS = _SECONDS[EFFORT]
"""Of CPU, for all worlds together."""
OPERATIONS = sum(len(operations_of(world)) for world in WORLDS)


# An exception between two lines may leave a file open, and its reader without a reader. Python says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.every_variant
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


@pytest.mark.parametrize("world", [name for name in WORLDS if operations_of(name)])
def test_each_operation_meets_each_fault_at_each_call(world: str) -> None:
    """What is to be gone through, without playing it: of each operation each call, and of each call each fault."""
    for operation in operations_of(world):
        told = {str(case.schedule) for case in singles(WORLDS[world], [operation])}
        touches = alone(WORLDS[world], operation).touches
        assert touches, operation
        for at, touch in enumerate(touches, start=1):
            faults = {text.partition("!")[2] for text in told if text.startswith(f"A{at}!")} - {"kill"}
            changes = touch.method in MUTATING
            commits = touch.method == "put_if_absent" and "/_delta_log/" in touch.paths[0]
            expected = {"fail", "gone", *(("lost", "late", "gone-after", "gone-late", "kill-after") if changes else ())}
            assert faults == (expected | {"stuck"} if commits else expected), f"{operation}: {touch}"
