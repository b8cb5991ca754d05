"""Writers, services, vacuum, savepoints and restores, each overtaken by another at any call to the store.

The plain model is told what landed, in the order of the log; after every step each version that is promised
still reads as it did then, each other one is refused, and every savepoint holds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from tests.property.effort import examples, thorough
from tests.property.world import Step, play, steps


@thorough(examples(10, variable="LAKEMERGE_RETENTION_EXAMPLES"))
@given(st.lists(steps, min_size=6, max_size=14))
def test_no_promised_version_is_ever_lost(drawn: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder) / "t", drawn)
