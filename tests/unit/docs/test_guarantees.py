"""Each promise of docs/guarantees.md, and each rule of docs/table-format.md, names tests that are there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

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
