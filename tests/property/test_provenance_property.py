"""Random histories of every built-in configuration: what ``explain`` says of each record, against the model.

The model, in plain Python, folds the same records one at a time; the steps of a key are compared with its states,
the last one with ``get``, and the verdicts with what they must mean. Between the commits the table is compacted in
all ways.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from lakemerge import FrameError, LakeTable, MergeOverflowError, RecordRefusedError
from lakemerge.provenance import Explanation, Step
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import assert_rows
from tests.model import ModelTable, Refused, Unreadable
from tests.property.effort import examples, thorough
from tests.property.merger_configurations import CONFIGURATIONS, KEYS, Commit, Configuration, histories

SERVICES = ("nothing", "nothing", "full", "minor", "logs", "rescale")
UNREADABLE = object()


def service(table: LakeTable, name: str) -> None:
    if name in ("full", "minor"):
        table.compact(minor=name == "minor")
    elif name == "logs":
        table.compact_logs()
    elif name == "rescale":
        table.rescale(buckets=2 * (table.detail().buckets or 1))


def frame_of(configuration: Configuration, commit: Commit) -> pa.Table:
    schema = configuration.schema
    arrays = [
        pa.array([row[place] for row in commit.rows], schema.field(name).type)
        for place, name in enumerate(commit.columns)
    ]
    return pa.table([*arrays, pa.array(commit.kinds)], names=[*commit.columns, "_op"])


def states_of(model: ModelTable, key: int) -> object:
    """The model's row of a key, ``None``, or that it cannot be read."""
    try:
        return model.row((key,))
    except Unreadable:
        return UNREADABLE


def model_of(configuration: Configuration) -> ModelTable:
    return ModelTable(
        configuration.schema,
        key=("k",),
        ordering=configuration.ordering,
        merger=configuration.merger,
        options=configuration.options,
        mergers=ALL_MERGERS,
    )


def assert_same(configuration: Configuration, row: Any, expected: Any, about: str) -> None:
    assert (row is None) == (expected is None), f"{about}: {row} is not {expected}"
    if row is not None:
        table = pa.Table.from_pylist([row], schema=pa.schema([f.with_nullable(True) for f in configuration.schema]))
        assert_rows(table, [tuple(expected.values())], table.schema, about)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
@thorough(examples(5))
@given(data=st.data())
def test_each_step_is_the_models(configuration: Configuration, data: st.DataObject) -> None:
    history = data.draw(histories(configuration))
    services = data.draw(st.lists(st.sampled_from(SERVICES), min_size=6, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        table = LakeTable.create(
            Path(folder) / "t",
            configuration.schema,
            key=["k"],
            ordering=configuration.ordering,
            merger=configuration.merger,
            options=configuration.options,
            buckets=1,
        )
        whole, single = model_of(configuration), model_of(configuration)
        told: dict[int, dict[int, list[object]]] = {}
        """By version and key, the states after each of the key's records."""
        for commit, then in zip(history.commits, services, strict=False):
            rows = [dict(zip(commit.columns, row, strict=True)) for row in commit.rows]
            try:
                whole.write(commit.columns, rows, commit.kinds)
            except Refused:
                with pytest.raises((FrameError, RecordRefusedError)):
                    table.upsert(frame_of(configuration, commit), kind_column="_op")
                continue
            version = table.upsert(frame_of(configuration, commit), kind_column="_op").version
            told[version] = {}
            for row, kind in zip(rows, commit.kinds, strict=True):
                single.write(commit.columns, [row], [kind])
                told[version].setdefault(row["k"], []).append(states_of(single, row["k"]))
            service(table, then)
        check_again(configuration, table, Path(folder) / "again")
        for key in KEYS:
            check_key(configuration, table, key, {version: told[version].get(key, []) for version in told})


def check_again(configuration: Configuration, table: LakeTable, path: Path) -> None:
    """The records under the table's own merger, as if and into another table, are the table."""
    try:
        rows = table.to_arrow()
    except MergeOverflowError:
        return
    expected = [tuple(row.values()) for row in rows.to_pylist()]
    assert_rows(table.what_if(since=0).to_arrow(), expected, rows.schema, "what_if of all that is known")
    assert_rows(table.what_if().to_arrow(), expected, rows.schema, "what_if")
    table.replay(path)
    again = LakeTable.open(path)
    assert_rows(again.to_arrow(), expected, rows.schema, "replay")
    assert table.replay(path).commits == 0


def check_key(configuration: Configuration, table: LakeTable, key: int, told: dict[int, list[object]]) -> None:
    found = table.explain({"k": key}, since=0)
    last = next((states[-1] for states in reversed(told.values()) if states), None)
    if last is UNREADABLE:
        assert found.row is None
        with pytest.raises(MergeOverflowError):
            table.get({"k": key})
    else:
        assert_same(configuration, found.row, last, f"key {key} in the end")
        assert_same(configuration, found.row, table.get({"k": key}), f"key {key} as get gives it")
        assert_same(configuration, table.explain({"k": key}).row, last, f"key {key} since the last compaction")
    for version, states in told.items():
        steps = [step for step in found.steps if step.version == version]
        if not states or UNREADABLE in states:
            continue
        if len(steps) == len(states):
            for step, state in zip(steps, states, strict=True):
                assert_same(configuration, step.after, state, f"key {key}, version {version}")
                check_verdict(step)
        elif steps:  # the first load, or a writer that kept deciding records alone
            assert_same(configuration, steps[-1].after, states[-1], f"key {key}, version {version}, its last")
    check_chain(found)


def check_chain(found: Explanation) -> None:
    """Each step begins where the one before ended."""
    readable = [step for step in found.steps if "does not fit" not in step.words and "read again" not in step.words]
    if len(readable) == len(found.steps):
        rows: Sequence[Any] = [found.start, *(step.after for step in found.steps)]
        assert [repr(step.before) for step in found.steps] == [repr(row) for row in rows[:-1]]
        assert repr(found.row) == repr(rows[-1])


def check_verdict(step: Step) -> None:
    """What the word must mean, by the rows before and after alone."""
    same = repr(step.before) == repr(step.after)
    assert step.words.startswith(f"{step.verdict}: ")
    if step.verdict in ("ignored", "unchanged", "expired"):
        assert same
    elif step.verdict in ("applied", "folded", "retracted"):
        assert not same
        assert step.after is not None
        assert (step.verdict == "retracted") == (step.kind in ("-U", "-D"))
    else:
        assert step.verdict == "deleted"
        assert step.after is None


def test_the_check_of_verdicts_can_fail() -> None:
    with pytest.raises(AssertionError):
        check_verdict(Step(version=1, kind="+U", verdict="ignored", words="ignored: x", before=None, after={"k": 1}))
