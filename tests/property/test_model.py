"""The model against engines that decide differently: a database's sort, and a wrong model that must be found."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from tests.conformance.model_engine import ModelEngine
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import arrow_schema, multiset
from tests.model import EventTime, Merger, ModelTable, Record, State, Tombstone
from tests.property.effort import examples
from tests.property.histories import History, check_history, histories

FULL = "k INT, v INT, a DOUBLE, b BIGINT"
_NUMBERS = st.sampled_from([None, -1.5, 0.0, 1.5, float("inf"), float("nan")])
_RECORDS = st.tuples(
    st.sampled_from(["+U", "+U", "-D"]), st.integers(0, 3), st.integers(0, 9), _NUMBERS, st.sampled_from([None, 1, 2])
)


@settings(max_examples=examples(60), deadline=None, database=None)
@given(st.lists(_RECORDS, max_size=20), st.sampled_from(["event-time", "commit-time"]))
def test_full_frames_are_a_window_function(records: list[tuple[Any, ...]], merger: str) -> None:
    """With full records and ordered deletes the highest record wins, and the later of equals: a sort in DuckDB."""
    schema = arrow_schema(FULL)
    model = ModelTable(schema, key=["k"], ordering=["a", "b"], merger=merger)
    rows = [dict(zip(schema.names, record[1:], strict=True)) for record in records]
    model.write(schema.names, rows, [record[0] for record in records])
    order = "a DESC NULLS LAST, b DESC NULLS LAST, pos DESC" if merger == "event-time" else "pos DESC"
    with duckdb.connect() as db:
        db.execute("CREATE TABLE log (kind VARCHAR, k INT, v INT, a DOUBLE, b BIGINT, pos INT)")
        if records:
            db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", [(*r, i) for i, r in enumerate(records)])
        ranked = f"SELECT *, row_number() OVER (PARTITION BY k ORDER BY {order}) AS place FROM log"
        expected = db.execute(f"SELECT k, v, a, b FROM ({ranked}) WHERE place = 1 AND kind <> '-D'").fetchall()
    kinds = [f.type for f in schema]
    assert multiset([tuple(row.values()) for row in model.rows()], kinds) == multiset(expected, kinds)


class StrictlyNewer(EventTime):
    """Lets the stored row win a tie."""

    def apply(self, state: State, record: Record) -> State:
        if state is not None and self.ordering(record) == self.stored_ordering(state):
            return state
        return super().apply(state, record)


class Forgetful(EventTime):
    """Leaves no tombstone."""

    def apply(self, state: State, record: Record) -> State:
        result = super().apply(state, record)
        return None if isinstance(result, Tombstone) else result


class NullsIn(EventTime):
    """Lets a newer record's nulls leave the stored values."""

    def set_columns(self, record: Record) -> dict[str, Any]:
        return {c: v for c, v in record.values.items() if v is not None or c in self.spec.ordering}


@pytest.mark.parametrize("wrong", [StrictlyNewer, Forgetful, NullsIn])
def test_histories_find_a_wrong_merger(wrong: type[Merger]) -> None:
    """Random histories reach the rules: a merger that breaks one is found."""
    engine = ModelEngine(ALL_MERGERS | {"event-time": wrong})

    def differs(history: History) -> bool:
        try:
            check_history(history, engine)
        except AssertionError:
            return True
        return False

    quiet = settings(max_examples=1000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    try:
        find(histories(), differs, settings=quiet)
    except NoSuchExample:
        pytest.fail(f"no history tells {wrong.__name__} from event-time")
