"""The laws that built-ins declare are those of the table in docs/merge-semantics.md, 6.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.mergers.folds import build, shape_of

PLAIN = shape_of({"n": pa.int64(), "f": pa.float64(), "b": pa.binary(), "g": pa.int64()})
ORDERED = shape_of({"o": pa.int64(), "n": pa.int64(), "f": pa.float64(), "g": pa.int64()}, ordering=["o"])
FULL = {"associative": "full", "commutative": "full", "selective": "full"}
LAST: Mapping[str, str] = {"associative": "always", "selective": "full"}
GROUPS = {"sequence_groups": {"g": ["n"]}}


def by(**functions: str) -> dict[str, Any]:
    """Every column but these has ``max``."""
    return {"default_aggregate": "max", "aggregates": {"b": "roaring_bitmap", **functions}}


@pytest.mark.parametrize(
    ("name", "options", "ordered", "laws"),
    [
        ("event-time", {}, True, FULL),
        ("commit-time", {}, False, LAST),
        ("first-row", {}, False, {"associative": "always", "replay_safe": "always", "selective": "full"}),
        ("first-row", {}, True, {**FULL, "replay_safe": "always"}),
        ("partial-update", {}, False, {"associative": "always"}),
        ("partial-update", {}, True, {}),
        ("partial-update", GROUPS, False, {}),
        ("aggregate", by(), False, {"associative": "always", "commutative": "always"}),
        ("aggregate", by(n="last_value"), False, {"associative": "always"}),
        ("aggregate", by(n="count"), False, {}),
        ("aggregate", by(n="product"), False, {}),
        ("aggregate", by(f="sum"), False, {}),
        ("aggregate", {**by(), "remove_record_on_delete": True}, False, {"associative": "always"}),
        ("aggregate", {"default_aggregate": "max"}, True, {}),
        ("expression", {}, True, FULL),
        ("expression", {}, False, LAST),
        ("expression", {"columns": {"n": "old.n + new.n"}}, False, {}),
        ("expression", {"default": "keep"}, False, {}),
    ],
    ids=str,
)
def test_declared_laws(name: str, options: Mapping[str, Any], ordered: bool, laws: Mapping[str, str]) -> None:
    shape = ORDERED if ordered else PLAIN
    merger = build(name, dict(options), shape)
    for full in (False, True):
        declared = merger.laws(shape, full_frames=full)
        found = {law for law in ("associative", "commutative", "replay_safe", "selective") if getattr(declared, law)}
        assert found == {law for law, when in laws.items() if full or when == "always"}


def test_extremes_are_replay_safe() -> None:
    shape = shape_of({"n": pa.int64(), "t": pa.bool_()})
    functions = {"n": "min", "t": "bool_or"}
    assert build("aggregate", {"aggregates": functions}, shape).laws(shape, full_frames=False).replay_safe
    removing = {"aggregates": functions, "remove_record_on_delete": True}
    assert not build("aggregate", removing, shape).laws(shape, full_frames=False).replay_safe


def test_a_column_that_the_frame_lacks_counts_for_uniting_as_well() -> None:
    shape = shape_of({"n": pa.int64(), "m": pa.int64()})
    merger = build("aggregate", {"aggregates": {"n": "sum", "m": "count"}}, shape)
    assert merger.unites(shape, ["k", "n"])
    assert not merger.laws(shape, full_frames=False).associative  # so nothing is united
