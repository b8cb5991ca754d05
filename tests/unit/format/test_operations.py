"""Which operations do what. Each list is made here from the names."""

from __future__ import annotations

from lakemerge.format.operations import REPLACING, WRITING, Operation


def test_what_replaces_says_so() -> None:
    assert {operation for operation in Operation if "REPLACE TABLE" in operation} == REPLACING


def test_a_query_brings_rows() -> None:
    assert {operation for operation in Operation if operation.endswith("AS SELECT")} <= WRITING
