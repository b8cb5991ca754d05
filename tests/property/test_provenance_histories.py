"""Random histories with restores, expiries and vacuums among the writes: what is told stays in step with the table.

``get`` and ``to_arrow`` are held against the model elsewhere; here they are what every answer must come to, whatever of
the history is gone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from lakemerge import CommitConflictError, InputError, LakeTable, VersionNotFoundError
from tests.property.effort import examples, thorough
from tests.unit.faults import create, frame, rows_of

NOW = dt.timedelta(0)
KEYS = (1, 2, 3)
TABLES: dict[str, dict[str, Any]] = {
    "event-time": {},
    "aggregate": {
        "merger": "aggregate",
        "options": {"aggregates": {"n": "count"}, "remove_record_on_delete": True},
        "schema": "k BIGINT, o BIGINT, n BIGINT, v STRING",
    },
    "records kept": {"properties": {"lakemerge.recordRetention": "interval 1 days"}},
}
_record = st.tuples(st.sampled_from(KEYS), st.integers(1, 9), st.sampled_from(["+U", "+U", "-D"]))
_steps = st.one_of(
    st.lists(_record, min_size=1, max_size=3),
    st.sampled_from(["full", "minor", "logs", "rescale", "expire", "vacuum", "grow", "overwrite"]),
    st.integers(1, 6),
)
"""Records to write, a service to run, or how many versions to go back."""


def play(table: LakeTable, step: Any, number: int) -> None:
    if isinstance(step, list):
        names = ["k", "o", "v", "op"]
        rows: list[tuple[Any, ...]] = [(k, o, f"{number}", kind) for k, o, kind in step]
        table.upsert(frame(rows, names), kind_column="op")
    elif isinstance(step, int):
        with contextlib.suppress(VersionNotFoundError, InputError):
            table.restore(version=max(0, table.version - step))
    elif step == "overwrite":
        table.overwrite(frame([(k, 5, f"{number}") for k in KEYS[number % 4 :]]))
    elif step in ("full", "minor"):
        table.compact(minor=step == "minor")
    elif step == "logs":
        table.compact_logs()
    elif step == "rescale":
        table.rescale(buckets=2 if table.detail().buckets == 1 else 1)
    elif step == "expire":
        table.expire_tombstones(retention=NOW)
    elif step == "grow":
        with contextlib.suppress(InputError):
            table.alter(add_columns=f"x{number} INT")
    else:
        table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)


@pytest.mark.parametrize("kind", TABLES)
@thorough(examples(40))
@given(steps=st.lists(_steps, min_size=2, max_size=9), since=st.integers(0, 20))
def test_what_is_told_is_the_table(kind: str, steps: list[Any], since: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = create(Path(folder) / "t", **TABLES[kind])
        for number, step in enumerate(steps):
            play(table, step, number)
            if number == len(steps) // 2:
                with contextlib.suppress(VersionNotFoundError):
                    table.replay(Path(folder) / "half")
        check(table, Path(folder), min(since, table.version))


def check(table: LakeTable, folder: Path, since: int) -> None:
    rows = rows_of(table.to_arrow())
    for key in KEYS:
        row = table.get({"k": key})
        for begin in (None, 0, since):
            try:
                found = table.explain({"k": key}, begin)
            except VersionNotFoundError:
                assert begin  # all that there is can always be told
                continue
            assert found.row == row
            chain = [found.start, *(step.after for step in found.steps)]
            shown = [{k: v for k, v in (step.before or {}).items() if v is not None} for step in found.steps]
            # A column that is added on the way is null before.
            assert shown == [{k: v for k, v in (part or {}).items() if v is not None} for part in chain[:-1]]
            assert all(step.version > (begin or 0) for step in found.steps)
    assert rows_of(table.what_if().to_arrow()) == rows
    with contextlib.suppress(InputError):  # deletes were forgotten in between
        assert rows_of(table.what_if(since=0).to_arrow()) == rows
    table.replay(folder / "again")
    assert rows_of(LakeTable.open(folder / "again").to_arrow()) == rows
    if (folder / "half").exists():
        try:
            table.replay(folder / "half")
        except (CommitConflictError, VersionNotFoundError):
            return
        # It keeps a column that a restore takes back.
        assert rows_of(LakeTable.open(folder / "half").to_arrow(columns=table.schema.names)) == rows
