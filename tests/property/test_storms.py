"""Random histories over a store that fails at any call, in every way a store can, on hosts with wrong clocks.

Everybody is overtaken by somebody else at any call, too. Every read at every version is checked against the
plain-Python model: what was acknowledged is there once, what failed is not there at all.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from tests.property.effort import examples, thorough
from tests.property.world import Step, play, stormy_steps


@thorough(examples(10, variable="LAKEMERGE_STORM_EXAMPLES"))
@given(st.lists(stormy_steps, min_size=6, max_size=14))
def test_no_storm_loses_a_record(drawn: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder) / "t", drawn)
