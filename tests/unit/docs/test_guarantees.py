"""Each promise of docs/guarantees.md, and each rule of docs/table-format.md, names tests that are there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAMED = re.compile(
    r"`((?:unit|clusters|property|merge_source|soak|spark|s3|stores|interop|conformance|golden|interleavings)/[\w./]*)(?:::(\w+))?`"
)


def test_promises_name_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promises = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(promises) > 15
    for promise in promises:
        assert_tests_are_there(promise)


def test_each_promise_names_one_schedule_or_test_that_holds_it() -> None:
    """A folder or a file is not enough: its tests may be about something else."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    held = [line.rsplit(" | ", 1)[1] for line in text.splitlines() if line.startswith("| ") and "tests |" not in line]
    assert len(held) > 100
    for names in held:
        found = NAMED.findall(names)
        assert found, names
        assert all(test for _, test in found), names
        assert_tests_are_there(names)


def test_each_schedule_of_a_promise_is_named() -> None:
    """What is played for a promise stands beside it."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    played = (ROOT / "tests" / "interleavings" / "test_schedules.py").read_text()
    tests = re.findall(r"^@held_by\((?:.|\n)*?\)\ndef (test_\w+)\(", played, flags=re.MULTILINE)
    assert len(tests) > 20
    assert [test for test in tests if f"`interleavings/test_schedules.py::{test}`" not in text] == []


def test_a_wrong_name_is_found() -> None:
    named = "`unit/docs/test_guarantees.py::test_a_wrong_name_is_found`"
    assert_tests_are_there(named)
    for wrong in ("`unit/docs/test_guarantees.py::test_a_wrong_name`", "`unit/docs/test_guarantee.py`", "no test"):
        with pytest.raises(AssertionError):
            assert_tests_are_there(wrong)


def test_the_threat_model_names_tests_that_are_there() -> None:
    """What nothing holds says so."""
    text = (ROOT / "docs" / "threat-model.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "tests |" not in line]
    claims = [row for row in rows if row.count("|") == 4]
    assert len(claims) > 15
    for claim in claims:
        if "*no test*" not in claim:
            assert_tests_are_there(claim)


def test_rules_name_tests_that_are_there() -> None:
    """A rule that no test holds says so."""
    text = (ROOT / "docs" / "table-format.md").read_text()
    numbers = re.findall(r"^\*\*(\d+)\.(\d+)\*\* ", text, flags=re.MULTILINE)
    per_section = Counter(section for section, _ in numbers)
    expected = [(section, str(n)) for section, rules in per_section.items() for n in range(1, rules + 1)]
    assert numbers == expected, "the rules of a section are counted from 1 on"
    for rule in re.split(r"\n(?=\*\*\d+\.\d+\*\* )", text)[1:]:
        own = rule.split("\n#")[0]
        if "(no test)" not in own:
            assert_tests_are_there(own)


def assert_tests_are_there(claim: str) -> None:
    named = NAMED.findall(claim)
    assert named, claim
    for path, test in named:
        found = ROOT / "tests" / path
        assert found.exists(), path
        assert not test or f"def {test}(" in found.read_text(), (path, test)
