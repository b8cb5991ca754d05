"""The model of the protocol: nothing is wrong in any state, and without any one of its rules something is."""

from __future__ import annotations

import pytest

from tests.interleavings.protocol import CASTS, RULES, check

NEEDED_BY = {
    "mark": "two writers and a vacuum",
    "read back": "two writers and a vacuum",
    "fence": "two writers and a vacuum",
    "kept": "two writers and a vacuum",
    "own table": "a writer, a vacuum and a re-creation",
    "uncompacted": "a writer and two compactions",
    "watermark": "a writer, a compaction and a log compaction",
    "own versions": "a writer, a compaction and a log compaction",
    "footprint": "two transactions and a vacuum",
    "digest": "a writer, a checkpoint and a re-creation",
}


@pytest.mark.parametrize("cast", CASTS)
def test_nothing_is_wrong_in_any_state(cast: str) -> None:
    found = check(CASTS[cast])
    assert found.problem is None, "\n".join([str(found.problem), *found.trace])
    assert found.states > 100


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    found = check(CASTS[NEEDED_BY[rule]], without=rule)
    assert found.problem is not None
    print(f"without {rule!r}: {found.problem}", *found.trace, sep="\n  ")  # noqa: T201
