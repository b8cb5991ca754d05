"""Random histories on the product without Spark, against the plain-Python model.

``LAKEMERGE_EXAMPLES`` sets how many (60 in ``make test-deep``).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given

from tests.conformance.arrow_engine import ArrowEngine
from tests.conformance.runner import Filter, TableCase
from tests.property.effort import examples, thorough
from tests.property.histories import AddColumn, Compact, History, Probe, Reopen, Write, check_history, histories

_LATE = History(
    TableCase("k INT, v INT, o0 BIGINT, s STRING", ("k",), ("o0",), "event-time"),
    buckets=4,
    small_budget=True,
    steps=(
        (Write(("k", "v", "o0", "s"), ((1, 1, 5, "a"), (2, 1, 5, "a")), None, False, True), Probe(("s",), None, "sql")),
        (Write(("k", "o0"), ((1, 7),), ("-D",), True, False), Probe(("k",), Filter("o0", ">", 5), "sql")),
        (Compact("minor"), Probe(("v", "k"), None, "sql")),
        (AddColumn("x3 INT"), Probe(("x3",), None, "sql")),
        (Write(("k", "x3", "o0"), ((1, 9, 6), (2, 9, 5)), None, False, False), Probe(("x3", "s"), None, "expression")),
        (Reopen(), Probe(("k",), Filter("x3", "is null"), "expression")),
        (Compact("full"), Probe(("x3", "k"), Filter("x3", "=", 9), "sql")),
    ),
)

_MARKER_COLUMN_UNSET = History(
    TableCase("k INT, v INT, s STRING", ("k",), (), "commit-time", {"delete_when": {"column": "s", "values": ["d"]}}),
    buckets=1,
    small_budget=False,
    steps=((Write(("k", "v"), ((0, 1), (0, 2)), None, False, False), Probe(("k",), None, "sql")),),
)


@thorough(examples(60))
@given(histories())
@example(_LATE)
@example(_MARKER_COLUMN_UNSET)
def test_every_history_is_the_left_fold(history: History) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_history(history, ArrowEngine(Path(folder)))
