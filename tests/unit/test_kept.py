"""What is kept of files is bounded, and what was used longest ago goes first."""

from __future__ import annotations

import pickle

from lakemerge._internal.kept import Kept


def test_values_are_kept_up_to_a_limit() -> None:
    kept: Kept[str, list[int]] = Kept(10)
    values = {name: [number] for number, name in enumerate("abc")}
    kept.keep("a", values["a"], 4)
    kept.keep("b", values["b"], 4)
    assert kept.get("a") is values["a"]
    kept.keep("c", values["c"], 6)
    assert [name for name in "abc" if kept.get(name) is None] == ["b"]
    kept.keep("d", [3], 11)
    assert kept.get("d") is None
    assert kept.get("a") is values["a"]


def test_a_value_counts_once() -> None:
    kept: Kept[str, int] = Kept(10)
    for _ in range(3):
        kept.keep("a", 1, 5)
    kept.keep("b", 2, 5)
    assert (kept.get("a"), kept.get("b")) == (1, 2)


def test_a_pickle_is_empty_and_keeps_again() -> None:
    kept: Kept[str, int] = Kept(10)
    kept.keep("a", 1, 5)
    copy = pickle.loads(pickle.dumps(kept))
    assert copy.get("a") is None
    copy.keep("b", 2, 10)
    assert copy.get("b") == 2
    copy.keep("c", 3, 11)
    assert copy.get("c") is None
