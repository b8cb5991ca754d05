"""Plans without laws: every built-in configuration, once as it declares itself and once with all laws
withheld, has the rows of the plain-Python model, written, read and compacted as tables.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable, MergeOverflowError, RecordRefusedError
from mergers import Laws, Merger, TableShape, default_registry
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import arrow_schema, assert_rows
from tests.model import ModelTable, Refused, Unreadable
from tests.property.effort import some
from tests.property.merger_configurations import CONFIGURATIONS, KEYS, Configuration

WRITES = 6


def withheld(merger: type[Merger]) -> type[Merger]:
    """The merger under another id, with no law to plan by."""

    def laws(self: Merger, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws()

    body = {"laws": laws, "id": f"00000000-0000-4000-8000-{merger.id[-12:]}", "name": f"unlawful-{merger.name}"}
    return type(f"Unlawful{merger.__name__}", (merger,), body)


MERGERS = {merger.name: merger for merger in default_registry()}
UNLAWFUL = {name: withheld(merger) for name, merger in MERGERS.items()}
PLAYED = [c for name in MERGERS for c in some([c for c in CONFIGURATIONS if c.merger == name])]
"""Some of every merger."""


@pytest.mark.parametrize("configuration", PLAYED, ids=str)
def test_the_same_rows_with_and_without_laws(configuration: Configuration, tmp_path: Path) -> None:
    rng = random.Random(str(configuration))
    schema = configuration.schema
    model = ModelTable(
        schema,
        key=("k",),
        ordering=configuration.ordering,
        merger=configuration.merger,
        options=configuration.options,
        mergers=ALL_MERGERS,
    )
    lawful, unlawful = (
        LakeTable.create(
            tmp_path / merger.name,
            schema,
            key=["k"],
            ordering=configuration.ordering,
            merger=merger.name,
            options=configuration.options,
            mergers=[merger],
            buckets=2,
        )
        for merger in (MERGERS[configuration.merger], UNLAWFUL[configuration.merger])
    )
    taken, refused, given = 0, 0, 0
    while taken < WRITES:
        columns, rows, kinds = batch(rng, configuration)
        frame = pa.table(
            {name: pa.array([row[name] for row in rows], schema.field(name).type) for name in columns}
            | {"kind": pa.array(kinds)}
        )
        try:
            model.write(columns, rows, kinds)
        except Refused:
            for table in (lawful, unlawful):
                with pytest.raises(RecordRefusedError):
                    table.upsert(frame, kind_column="kind")
            refused += 1
            assert refused < 50, "frames that are refused teach nothing"
            continue
        for table in (lawful, unlawful):
            table.upsert(frame, kind_column="kind")
        taken += 1
        given = given + len(rows) if logged(unlawful) else 0  # a first write that loads leaves no log
        assert logged(lawful) <= logged(unlawful) == given, f"write {taken}: nothing is combined without a law"
        agree(model, (lawful, unlawful), f"write {taken}")
        if taken in (3, 5):
            for table in (lawful, unlawful):
                table.compact()
            agree(model, (lawful, unlawful), f"write {taken}, compacted")
            given = logged(unlawful)
            # Only file slices with a total that does not fit may keep their logs.
            assert bool(given) == bool(logged(lawful))


def agree(model: ModelTable, tables: Sequence[LakeTable], about: str) -> None:
    try:
        expected = [tuple(row.values()) for row in model.rows()]
    except Unreadable:
        for table in tables:
            with pytest.raises(MergeOverflowError):
                table.to_arrow()
        return
    for table in tables:
        assert_rows(table.to_arrow(), expected, model.schema, f"{about}, {table!r}")


def logged(table: LakeTable) -> int:
    return sum(block.rows for commit in table.opened.view.log_commits for block in commit.blocks)


def batch(rng: random.Random, configuration: Configuration) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """Columns, rows and kinds of a frame of eight records; half of the frames lack columns."""
    names = configuration.schema.names
    columns = set(names)
    kinds: Sequence[str] = ("+U",) if rng.random() < 0.5 else configuration.kinds
    if rng.random() < 0.5:
        columns = {"k", *configuration.ordering, *(name for name in names if rng.random() < 0.6)}
        for group in configuration.options.get("sequence_groups", {}):
            parts = set(group.split(","))
            columns = columns | parts if columns & parts else columns
    if configuration.ordering and "-D" in configuration.kinds and rng.random() < 0.15:
        columns, kinds = columns - set(configuration.ordering), ("-D",)
        columns |= set(configuration.ordering) if configuration.merger == "aws-dms" else set()
    values = {name: KEYS if name == "k" else configuration.values_of(name) for name in names}
    ordered = [name for name in names if name in columns]
    rows = [{name: rng.choice(tame(values[name])) for name in ordered} for _ in range(8)]
    return ordered, rows, [rng.choice(kinds) for _ in rows]


def tame(values: Sequence[Any]) -> Sequence[Any]:
    """Without what makes a write be refused or a total overflow nearly always: those have tests of their
    own, and here they would leave little to compare."""
    return [v for v in values if not (v in ("bad.", "") or (isinstance(v, int) and abs(v) > 2**60))]


@pytest.mark.parametrize("name", sorted(MERGERS))
def test_laws_that_are_granted_are_used(name: str, tmp_path: Path) -> None:
    """Ten records of one key in a frame: kept as they are, or combined where the configuration says so
    and the merger can. (Of the table for ``debezium-postgres`` no column can hold its marker.)"""
    options: dict[str, Any] = {"op_column": "op"} if name in ("debezium-mysql", "debezium-postgres", "aws-dms") else {}
    ordering = {"debezium-mysql": ["o", "p"], "debezium-postgres": ["p"], "event-time": ["p"]}.get(name, [])
    counts = []
    for merger in (MERGERS[name], UNLAWFUL[name]):
        table = LakeTable.create(
            tmp_path / merger.name,
            arrow_schema(
                "k INT, p BIGINT, op STRING" if name == "debezium-postgres" else "k INT, o STRING, p BIGINT, op STRING"
            ),
            key=["k"],
            ordering=ordering,
            merger=merger.name,
            options=options,
            mergers=[merger],
        )
        for _ in range(2):
            table.upsert(frame_of(table.schema, 10))
        counts.append(logged(table))
    combining = {"event-time", "commit-time", "first-row", "expression"}
    combining |= {"aggregate", "debezium-mysql", "debezium-postgres", "aws-dms"}
    assert counts == [1 if name in combining else 10, 10]


def frame_of(schema: pa.Schema, count: int) -> pa.Table:
    """Records of key 1, each newer than the one before."""
    values = {"k": [1] * count, "o": [f"log.{n}" for n in range(count)], "p": range(count), "op": ["u"] * count}
    return pa.table({name: pa.array(values[name], schema.field(name).type) for name in schema.names})


def test_a_frame_of_which_nothing_is_kept(tmp_path: Path) -> None:
    """Deletes that the merger ignores: pre-combining leaves no record, and the commit no file."""
    table = LakeTable.create(tmp_path, "k INT", key=["k"], merger="first-row", options={"ignore_delete": True})
    for version in (1, 2):
        result = table.delete(pa.table({"k": pa.array([1, 1], pa.int32())}))
        assert (result.version, result.rows, result.files) == (version, 2, 1)
        assert table.to_arrow().num_rows == 0
    table.upsert(pa.table({"k": pa.array([1], pa.int32())}))
    assert table.to_arrow().to_pylist() == [{"k": 1}]
