"""A kind column may hold the words of Delta's and Spark's change feeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemerge import FrameError
from tests.unit.faults import create, frame, rows_of


def test_the_words_of_a_change_feed(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]))
    told = [
        (1, 1, "a", "update_preimage"), (1, 2, "A", "update_postimage"), (2, 1, "b", "delete"), (4, 1, "d", "insert"),
    ]  # fmt: skip
    table.upsert(frame(told, ["k", "o", "v", "op"]), kind_column="op")
    assert rows_of(table.to_arrow()) == [(1, 2, "A"), (3, 1, "c"), (4, 1, "d")]
    with pytest.raises(FrameError, match=r"holds \['upsert'\]; row kinds are \+I, -U, \+U, -D, or insert"):
        table.upsert(frame([(1, 3, "x", "upsert")], ["k", "o", "v", "op"]), kind_column="op")


def test_words_of_a_sum_take_back_what_they_say(tmp_path: Path) -> None:
    options = {"aggregates": {"o": "sum"}}
    table = create(tmp_path / "t", schema="k BIGINT, o BIGINT", ordering=[], merger="aggregate", options=options)
    told = [(1, 5, "insert"), (1, 5, "update_preimage"), (1, 7, "update_postimage")]
    table.upsert(frame(told, ["k", "o", "op"]), kind_column="op")
    assert rows_of(table.to_arrow()) == [(1, 7)]
