"""What other engines read of a table that publishes: after each step of a random history deltalake, polars and DuckDB
have the rows that LakeMerge shows them, and these are the rows of the version that it says.

The rows of each version are in a dictionary that the test keeps.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakemerge import CommitConflictError, LakeTable
from lakemerge.testing.faults import Call, Fault
from tests.property.effort import examples, some, thorough
from tests.property.publishing import READERS, Published, Step
from tests.unit.faults import open_over

KINDS = (
    "upsert", "upsert", "upsert", "delete", "transaction", "minor", "minor", "minor", "full", "logs", "rescale",
    "savepoint", "restore", "vacuum", "overwrite", "checkpoint", "deltalake_checkpoint", "switch", "reopen", "replace",
)  # fmt: skip

steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 60)), min_size=3, max_size=14)

TWO_GENERATIONS: list[Step] = [
    ("load", 0), ("upsert", 3), ("minor", 0), ("deltalake_checkpoint", 0), ("upsert", 4), ("delete", 11), ("minor", 0),
    ("deltalake_checkpoint", 0), ("checkpoint", 0), ("upsert", 6), ("minor", 0), ("restore", 1), ("minor", 0),
    ("vacuum", 0), ("upsert", 8), ("minor", 0), ("full", 0),
]  # fmt: skip
OFF_AND_ON: list[Step] = [
    ("load", 0), ("upsert", 3), ("minor", 0), ("switch", 0), ("upsert", 9), ("minor", 0), ("upsert", 13), ("minor", 0),
    ("switch", 1), ("minor", 0), ("upsert", 20), ("minor", 0), ("rescale", 2), ("upsert", 21), ("minor", 0),
    ("overwrite", 5), ("upsert", 6), ("minor", 0),
]  # fmt: skip


def run(history: list[Step], partition_by: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = Published(
            Path(folder) / "t",
            partition_by=partition_by,
            properties={"lakemerge.publish": "deletionVectors"},
            readers=READERS,
        )
        for step in history:
            found.do(step)
            found.check()
        found.check_all()


@pytest.mark.long
@pytest.mark.parametrize("history", [TWO_GENERATIONS, OFF_AND_ON], ids=["two generations", "off and on"])
@pytest.mark.parametrize("partition_by", [[], ["p"]], ids=["plain", "partitioned"])
def test_other_engines_read_what_is_published(history: list[Step], partition_by: list[str]) -> None:
    run(history, partition_by)


@thorough(examples(25))
@given(steps, st.booleans())
@example([("load", 0), ("minor", 0), ("upsert", 1), ("minor", 0), ("delete", 1), ("minor", 0)], False)
def test_every_history_is_published(history: list[Step], partitioned: bool) -> None:
    run(history, ["p"] if partitioned else [])


OTHERS: list[Step] = [
    ("upsert", 9), ("delete", 4), ("minor", 0), ("full", 0), ("overwrite", 5), ("restore", 1), ("vacuum", 0),
    ("rescale", 2), ("switch", 0),
]  # fmt: skip
BEFORE: list[Step] = [("load", 0), ("upsert", 3), ("minor", 0), ("upsert", 13), ("delete", 11)]


def begun(path: Path) -> Published:
    readers = {"deltalake": READERS["deltalake"]}
    found = Published(path, partition_by=[], properties={"lakemerge.publish": "deletionVectors"}, readers=readers)
    for step in BEFORE:
        found.do(step)
    return found


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many calls of the store a publication makes."""
    path = tmp_path_factory.mktemp("calls") / "t"
    begun(path)
    table, store = open_over(path)
    table.compact(minor=True)
    return len(store.calls)


@pytest.mark.parametrize("other", OTHERS, ids=[kind for kind, _ in OTHERS])
def test_somebody_else_at_every_call_of_a_publication(tmp_path: Path, other: Step, calls: int) -> None:
    for number in some(range(1, calls + 1)):
        found = begun(tmp_path / str(number))
        found.table = LakeTable.open(found.path)

        def overtake(call: Call, found: Published = found) -> None:
            found.do(other)

        table, _ = open_over(found.path, Fault(action=overtake, at=number))
        with contextlib.suppress(CommitConflictError):
            table.compact(minor=True)
        found.table = LakeTable.open(found.path)
        found.check()
        found.do(("minor", 0))
        found.check()
        found.check_all()
