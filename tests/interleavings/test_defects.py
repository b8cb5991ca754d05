"""The scheduler finds what is wrong: seeded defects, and mendings that are taken back."""

from __future__ import annotations

import pytest

from tests.interleavings.defects import DEFECTS, MENDINGS, Defect
from tests.interleavings.explore import KINDS, Explorer, replayed
from tests.interleavings.operations import WORLDS, operations_of

QUICK = ("a transaction does not look at what others wrote", "files of the log are deleted by their names")
"""``make test`` looks for these; the others take some seconds each."""
CASES = [
    pytest.param(one, id=one.name, marks=() if one.name.startswith(QUICK) else pytest.mark.long)
    for one in (*DEFECTS, *MENDINGS)
]


def found(defect: Defect) -> str:
    """The first bad schedule under a defect, as text."""
    world = WORLDS[defect.world]
    operations = [one for one in operations_of(defect.world) if one.name in defect.operations]
    assert len(operations) == len(defect.operations)
    cases = list(KINDS[defect.kind](world, operations))  # the orders are those without the defect
    explorer = Explorer(most_bad=1)
    with defect.put():
        explorer.explore(str(defect), cases)
    assert explorer.coverage.bad, f"nothing was found among {len(cases)} schedules"
    bad = explorer.coverage.bad[0]
    print(f"{defect}\n  {bad}")  # noqa: T201
    return str(bad.case)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("defect", CASES)
def test_a_defect_is_found(defect: Defect) -> None:
    text = found(defect)
    assert replayed(text).problems == ()  # it is the defect that is bad, not the product
    with defect.put():
        assert replayed(text).problems, text
