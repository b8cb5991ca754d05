"""``make test`` runs a sample of variants, and every test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.variants import sample


def _items(*ids: str, mark: object = None) -> list[pytest.Item]:
    return cast(list[pytest.Item], [SimpleNamespace(nodeid=node, get_closest_marker=lambda _: mark) for node in ids])


def test_the_first_and_every_fourth_variant_are_kept_and_all_tests() -> None:
    items = _items(
        "tests/a.py::test_many[0]",
        "tests/a.py::test_two[x]",
        "tests/a.py::test_many[1]",
        "tests/a.py::test_many[2-[]]",
        "tests/a.py::test_two[y]",
        "tests/a.py::test_one",
        "tests/a.py::test_many[3]",
        "tests/a.py::test_many[4]",
        "tests/b.py::test_many[0]",
    )
    kept, left_out = sample(items, 4)
    assert [item.nodeid for item in left_out] == [
        "tests/a.py::test_many[1]",
        "tests/a.py::test_many[2-[]]",
        "tests/a.py::test_two[y]",
        "tests/a.py::test_many[3]",
    ]
    assert [item.nodeid for item in kept] == [item.nodeid for item in items if item not in left_out]


def test_a_whole_is_not_cut() -> None:
    items = _items("tests/a.py::test_orders[0]", "tests/a.py::test_orders[1]", mark=pytest.mark.every_variant)
    assert sample(items, 4) == (items, [])
