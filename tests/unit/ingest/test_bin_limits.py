"""Bins after NiFi's MergeRecord: each reason to close one by hand, and the laws over any items and limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemerge import InputError
from lakemerge.bins import Bin, BinItem, BinLimits, Closed, fill


def items(*sizes: int, key: str = "a", start: int = 0) -> list[BinItem[str]]:
    """Items of so many bytes and as many records as tens of bytes, one a millisecond, named by their place."""
    return [
        BinItem(value=f"{key}{place}", records=size // 10, bytes=size, at_ms=start + place, key=key)
        for place, size in enumerate(sizes)
    ]


def shown(bins: Sequence[Bin[str]]) -> list[tuple[list[str], Closed | None]]:
    return [(list(part.values), part.closed) for part in bins]


def test_a_maximum_of_either_kind_closes_a_bin() -> None:
    by_bytes = fill(items(30, 30, 40, 10), BinLimits(max_bytes=100, max_records=99), now_ms=9)
    assert shown(by_bytes.closed) == [(["a0", "a1", "a2"], Closed.FULL), (["a3"], Closed.MINIMUM)]
    by_records = fill(items(30, 30, 40, 10), BinLimits(max_bytes=999, max_records=6), now_ms=9)
    assert shown(by_records.closed) == [(["a0", "a1"], Closed.FULL), (["a2", "a3"], Closed.MINIMUM)]


def test_what_would_go_beyond_a_maximum_begins_a_bin() -> None:
    filled = fill(items(60, 60, 30), BinLimits(max_bytes=100), now_ms=9)
    assert shown(filled.closed) == [(["a0"], Closed.FULL), (["a1", "a2"], Closed.MINIMUM)]


def test_what_is_too_large_is_placed_alone() -> None:
    filled = fill(items(30, 500, 30), BinLimits(max_bytes=100), now_ms=9)
    assert shown(filled.closed) == [(["a0"], Closed.FULL), (["a1"], Closed.FULL), (["a2"], Closed.MINIMUM)]


def test_both_minima_are_needed() -> None:
    for limits in (BinLimits(min_records=7, min_bytes=10), BinLimits(min_records=1, min_bytes=61)):
        filled = fill(items(30, 30), limits, now_ms=9)
        assert (filled.closed, shown(filled.open)) == ((), [(["a0", "a1"], None)])
    filled = fill(items(30, 30), BinLimits(min_records=6, min_bytes=60), now_ms=9)
    assert shown(filled.closed) == [(["a0", "a1"], Closed.MINIMUM)]


def test_an_open_bin_goes_on_where_it_was() -> None:
    limits = BinLimits(min_bytes=100)
    first = fill(items(30, 30), limits, now_ms=9)
    second = fill(items(50, start=5, key="a"), limits, now_ms=9, open=first.open)
    assert shown(second.closed) == [(["a0", "a1", "a0"], Closed.MINIMUM)]


def test_age_closes_what_has_not_reached_its_minimum() -> None:
    limits = BinLimits(min_bytes=100, max_age_ms=50)
    both = items(30, key="old") + items(30, key="new", start=10)
    filled = fill(both, limits, now_ms=50)
    assert shown(filled.closed) == [(["old0"], Closed.TOO_OLD)]
    assert shown(filled.open) == [(["new0"], None)]


def test_the_oldest_bin_makes_room_for_another_key() -> None:
    three = [item for place, key in enumerate("abc") for item in items(30, key=key, start=place)]
    filled = fill([*three, *items(30, key="a", start=7)], BinLimits(min_bytes=100, max_bins=2), now_ms=9)
    assert shown(filled.closed) == [(["a0"], Closed.TOO_MANY), (["b0"], Closed.TOO_MANY)]
    assert shown(filled.open) == [(["c0"], None), (["a0"], None)]


def test_a_set_waits_for_its_last_item_whatever_its_size() -> None:
    parts = [BinItem(value=n, records=1, bytes=80, at_ms=n, key="set", of=3) for n in range(3)]
    limits = BinLimits(max_bytes=100, max_age_ms=90)
    waiting = fill(parts[:2], limits, now_ms=50)
    assert (waiting.closed, [part.values for part in waiting.open]) == ((), [(0, 1)])
    (whole,) = fill(parts[2:], limits, now_ms=50, open=waiting.open).closed
    assert (whole.values, whole.closed) == ((0, 1, 2), Closed.COMPLETE)
    (given_up,) = fill([], limits, now_ms=90, open=waiting.open).closed
    assert given_up.closed is Closed.TOO_OLD


def test_the_end_of_the_input_closes_the_rest() -> None:
    filled = fill(items(30), BinLimits(min_bytes=100), now_ms=9, force=True)
    assert (shown(filled.closed), filled.open) == ([(["a0"], Closed.FORCED)], ())


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"min_bytes": 5, "max_bytes": 4}, "5 to 4 bytes"),
        ({"max_records": 0}, "1 to 0 records"),
        ({"min_records": -1}, "-1 to None records"),
        ({"max_bins": 0}, "max_bins must be at least 1"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(limits: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        BinLimits(**limits)


ITEMS = st.lists(
    st.builds(
        lambda records, size, at, key: (records, size, at, key),
        st.integers(0, 20),
        st.integers(0, 200),
        st.integers(0, 100),
        st.sampled_from("abcd"),
    ),
    max_size=40,
)


@st.composite
def limits(draw: st.DrawFn) -> BinLimits:
    min_records, min_bytes = draw(st.integers(0, 30)), draw(st.integers(0, 300))
    return BinLimits(
        min_records=min_records,
        max_records=draw(st.none() | st.integers(max(1, min_records), 60)),
        min_bytes=min_bytes,
        max_bytes=draw(st.none() | st.integers(max(1, min_bytes), 500)),
        max_age_ms=draw(st.none() | st.integers(0, 120)),
        max_bins=draw(st.none() | st.integers(1, 4)),
    )


@given(ITEMS, limits(), st.integers(0, 40), st.booleans())
def test_nothing_is_lost_or_doubled_and_maxima_hold(
    drawn: list[tuple[int, int, int, str]], limits: BinLimits, cut: int, force: bool
) -> None:
    given_items = [
        BinItem(value=number, records=records, bytes=size, at_ms=at, key=key)
        for number, (records, size, at, key) in enumerate(sorted(drawn, key=lambda item: item[2]))
    ]
    first = fill(given_items[:cut], limits, now_ms=100)
    second = fill(given_items[cut:], limits, now_ms=100, open=first.open, force=force)
    closed = [*first.closed, *second.closed]
    everything = [*closed, *second.open]
    assert sorted(value for part in everything for value in part.values) == list(range(len(given_items)))
    by_key: dict[object, list[int]] = defaultdict(list)
    for part in everything:
        assert part.items
        assert {item.key for item in part.items} == {part.key}
        by_key[part.key] += part.values
    assert all(values == sorted(values) for values in by_key.values()), "the bins of a key hold its items in order"
    for part in everything:
        if len(part.items) > 1:
            assert limits.max_records is None or part.records <= limits.max_records
            assert limits.max_bytes is None or part.bytes <= limits.max_bytes
    for part in closed:
        if part.closed is Closed.MINIMUM:
            assert part.records >= limits.min_records
            assert part.bytes >= limits.min_bytes
        if part.closed is Closed.TOO_OLD:
            assert limits.max_age_ms is not None
            assert 100 - part.oldest_ms >= limits.max_age_ms
    assert not (force and second.open)
    assert len(second.open) == len({part.key for part in second.open})
    assert limits.max_bins is None or len(second.open) <= limits.max_bins
    for part in second.open:
        assert part.records < limits.min_records or part.bytes < limits.min_bytes


def one(value: str, records: int, size: int, at: int = 0, key: str = "a", **more: int) -> BinItem[str]:
    return BinItem(value=value, records=records, bytes=size, at_ms=at, key=key, **more)


def test_the_example_of_nifis_documentation() -> None:
    """Files of 1, 2, 1 and 1 records, at least 3 and at most 5: one bin; of 8 files of one record each, two bins."""
    limits = BinLimits(min_records=3, max_records=5, fit=True)
    files = [one(str(number), records, 9, at=number) for number, records in enumerate((1, 2, 1, 1), 1)]
    assert shown(fill(files, limits, now_ms=9).closed) == [(["1", "2", "3", "4"], Closed.FULL)]
    eight = [one(str(number), 1, 9, at=number) for number in range(8)]
    five, three = fill(eight, limits, now_ms=9).closed
    assert (five.records, five.closed, three.records, three.closed) == (5, Closed.FULL, 3, Closed.MINIMUM)
    few = fill(files[:2], limits, now_ms=9)
    assert [part.records for part in few.closed] == [3]


def test_as_nifi_records_are_a_soft_maximum_and_bytes_a_hard_one() -> None:
    soft = fill([one("a", 3, 1), one("b", 4, 1), one("c", 1, 1)], BinLimits(max_records=5, fit=True), now_ms=9)
    assert shown(soft.closed) == [(["a", "b"], Closed.FULL), (["c"], Closed.MINIMUM)]
    sizes = [("a", 60), ("b", 70), ("c", 40), ("d", 30), ("e", 500), ("f", 9)]
    hard = fill([one(name, 1, size) for name, size in sizes], BinLimits(max_bytes=100, fit=True), now_ms=9)
    assert shown(hard.closed) == [
        (["a", "c"], Closed.FULL),
        (["b", "d"], Closed.FULL),
        (["e"], Closed.FULL),
        (["f"], Closed.MINIMUM),
    ]


def test_several_open_bins_of_a_key_go_on_where_they_were() -> None:
    limits = BinLimits(min_bytes=90, max_bytes=100, fit=True, max_bins=2)
    first = fill([one("a", 1, 60, 1), one("b", 1, 70, 2)], limits, now_ms=9)
    assert shown(first.open) == [(["a"], None), (["b"], None)]
    second = fill([one("c", 1, 35, 3), one("d", 1, 50, 4), one("e", 1, 50, 5)], limits, now_ms=9, open=first.open)
    assert shown(second.closed) == [(["a", "c"], Closed.TOO_MANY), (["d", "e"], Closed.FULL)]
    third = fill([one("f", 1, 25, 6)], limits, now_ms=9, open=second.open)
    assert shown(third.closed) == [(["b", "f"], Closed.MINIMUM)]


@pytest.mark.parametrize(
    ("parts", "closed"),
    [
        ([(0, 1), (3, 2), (0, 3)], Closed.COMPLETE),
        ([(3, 1), (3, 2), (3, 3)], Closed.COMPLETE),
        ([(0, 1), (0, 2), (0, 3)], None),
        ([(3, 1), (4, 2)], Closed.BROKEN),
        ([(0, 1), (0, 1)], Closed.BROKEN),
        ([(0, 1), (0, 2), (0, 3), (2, 4)], Closed.BROKEN),
    ],
)
def test_a_set_is_whole_when_one_of_it_tells_how_many(parts: list[tuple[int, int]], closed: Closed | None) -> None:
    filled = fill([one("x", 1, 1, of=of, index=index) for of, index in parts], BinLimits(), now_ms=9)
    assert [part.closed for part in (*filled.closed, *filled.open)] == [closed]
