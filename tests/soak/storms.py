"""Random histories over a store that fails, drawn by hypothesis from a seed; see ``tests/property/world.py``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, seed, settings

from tests.property.world import Step, play, stormy_steps

__all__ = ["Weathered", "weather"]


@dataclass
class Weathered:
    faults: int = 0
    commit_faults: int = 0
    """Those of them that met a put-if-absent."""
    rows: int = 0
    """Read at some version and compared with the model's."""


def weather(folder: Path, number: int, histories: int) -> Weathered:
    """Play so many histories of a seed. Raises what failed, with the shortest such history in its notes."""
    seen = Weathered()

    @seed(number)
    @settings(max_examples=histories, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(st.lists(stormy_steps, min_size=15, max_size=30))
    def tell(drawn: Sequence[Step]) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            world = play(Path(place) / "t", drawn, check_every=15)
        seen.faults += world.faults.total()
        seen.commit_faults += world.faults["put_if_absent"]
        seen.rows += world.verified

    tell()
    return seen
