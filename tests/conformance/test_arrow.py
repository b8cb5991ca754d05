"""Every conformance case of the supported mergers on the product without Spark, as written and in other modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemerge import LakeMergeError, LakeTable
from tests.conformance.arrow_engine import ArrowEngine
from tests.conformance.modes import MODES
from tests.conformance.runner import SUPPORTED, Case, Mode, applies, load_cases, run_case
from tests.property.effort import some

COLLECTED = {
    "aggregate.json": 29,
    "cdc.json": 8,
    "commit_time.json": 6,
    "configuration.json": 10,
    "custom.json": 4,
    "deletes_and_tombstones.json": 9,
    "event_time.json": 13,
    "first_row.json": 4,
    "frame_types.json": 4,
    "ordering.json": 9,
    "overwrite.json": 31,
    "partial_frames.json": 9,
    "partial_update.json": 14,
    "sequence_groups.json": 25,
    "traps.json": 10,
    "transactions.json": 47,
    "expression.json": 38,
}
"""Cases per file that must run; it grows with ``SUPPORTED``."""

CASES = [case for cases in load_cases(supported=SUPPORTED).values() for case in cases]
PLAYED = [case for case in CASES if not case.create_error]
REFUSED = [case for case in CASES if case.create_error]
AS_WRITTEN = [(case, MODES[0]) for case in PLAYED]
OTHERWISE = [(case, mode) for case in PLAYED for mode in MODES[1:] if applies(case, mode, base=MODES[0])]


def test_every_supported_case_is_collected() -> None:
    assert {name: len(cases) for name, cases in load_cases(supported=SUPPORTED).items()} == COLLECTED
    assert len(REFUSED) == 18
    assert len(AS_WRITTEN) + len(OTHERWISE) == 5210


@pytest.mark.parametrize(("case", "mode"), [*AS_WRITTEN, *some(OTHERWISE)], ids=str)
def test_case(case: Case, mode: Mode, tmp_path: Path) -> None:
    run_case(case, mode, ArrowEngine(tmp_path))


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_refused_table_leaves_nothing(case: Case, tmp_path: Path) -> None:
    """The same path takes a good table afterwards, and before that there is none to open."""
    path = str(tmp_path / "table")
    table = case.table
    with pytest.raises(LakeMergeError):
        LakeTable.create(
            path,
            table.ddl,
            key=list(table.key),
            ordering=list(table.ordering),
            merger=table.merger,
            options=dict(table.options),
        )
    with pytest.raises(LakeMergeError):
        LakeTable.open(path)
    LakeTable.create(path, table.ddl, key=list(table.key), merger="commit-time")
    assert LakeTable.open(path).to_arrow().num_rows == 0
