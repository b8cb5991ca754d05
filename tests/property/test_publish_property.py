"""What other engines read of a table that publishes: after each step of a random history deltalake, polars and DuckDB
have the rows that LakeMerge shows them, and these are the rows of the version that it says.

The rows of each version are in a dictionary that the test keeps.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.property.effort import examples, thorough
from tests.property.publishing import READERS, Published, Step

KINDS = (
    "upsert", "upsert", "upsert", "delete", "transaction", "minor", "minor", "minor", "full", "logs", "rescale",
    "savepoint", "restore", "vacuum", "overwrite", "checkpoint", "deltalake_checkpoint", "switch", "reopen",
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


@pytest.mark.parametrize("history", [TWO_GENERATIONS, OFF_AND_ON], ids=["two generations", "off and on"])
@pytest.mark.parametrize("partition_by", [[], ["p"]], ids=["plain", "partitioned"])
def test_other_engines_read_what_is_published(history: list[Step], partition_by: list[str]) -> None:
    run(history, partition_by)


@thorough(examples(25))
@given(steps, st.booleans())
@example([("load", 0), ("minor", 0), ("upsert", 1), ("minor", 0), ("delete", 1), ("minor", 0)], False)
def test_every_history_is_published(history: list[Step], partitioned: bool) -> None:
    run(history, ["p"] if partitioned else [])
