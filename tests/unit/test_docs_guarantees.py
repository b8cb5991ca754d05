"""Each promise of docs/guarantees.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`((?:unit|property|merge_source|soak|spark|s3|interop|conformance|golden)/[\w./]*)(?:::(\w+))?`")


def test_promises_name_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promises = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(promises) > 15
    for promise in promises:
        named = NAMED.findall(promise)
        assert named, promise
        for path, test in named:
            found = ROOT / "tests" / path
            assert found.exists(), path
            assert not test or f"def {test}(" in found.read_text(), (path, test)
