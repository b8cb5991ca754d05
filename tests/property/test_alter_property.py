"""Random histories that change the merger between compactions, against the plain-Python model.

The next merger folds onto the state that the last one left. It may hold rows that the next merger would never have
made, and tombstones that it does not know.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeMergeError, LakeTable
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import arrow_schema, assert_rows
from tests.model import ModelTable, Refused
from tests.property.effort import some

Choice = tuple[str, Mapping[str, Any]]

DDL = "k INT, o BIGINT, n INT, s STRING, op STRING"
MARKER = "__debezium_unavailable_value"
VALUES: dict[str, Sequence[Any]] = {
    "k": (1, 2, 3, 4),
    "o": (None, 1, 2, 3, 4),
    "n": (None, 0, 1, 5),
    "s": (None, "a", "zero", MARKER),
    "op": (None, "u", "d", "D"),
}
UNSETS: Sequence[Mapping[str, Any]] = (
    {},
    {"unset": "absent"},
    {"unset": "default", "defaults": {"s": "zero", "n": 0}},
    {"unset": "marker", "marker": MARKER},
)
ADDING = {"aggregates": {"n": "sum", "s": "last_value", "op": "last_non_null_value"}}
COUNTING = {"aggregates": {"n": "count", "s": "listagg", "op": "first_value"}, "ignore_retract": ["s", "op"]}

ANYWHERE: Sequence[Choice] = (
    ("commit-time", {}),
    ("commit-time", {"delete_when": {"column": "op", "values": ["d"]}}),
    ("aws-dms", {"op_column": "op"}),
    ("first-row", {"ignore_delete": True}),
    *(("partial-update", {**unset, "remove_record_on_delete": True}) for unset in UNSETS),
    ("partial-update", {"ignore_delete": True}),
    ("aggregate", ADDING),
    ("aggregate", {**ADDING, "remove_record_on_delete": True}),
    ("aggregate", COUNTING),
)
FAMILIES: Mapping[str, tuple[tuple[str, ...], Sequence[Choice]]] = {
    "ordered": (
        ("o",),
        (
            *ANYWHERE,
            ("event-time", {}),
            ("event-time", {"delete_when": {"column": "s", "values": ["a", "zero"]}}),
            ("debezium-postgres", {"op_column": "op"}),
        ),
    ),
    "unordered": (
        (),
        (
            *ANYWHERE,
            ("overwrite-non-defaults", {"defaults": {"s": "zero", "n": 0}}),
            ("partial-update", {"sequence_groups": {"o": ["n", "s"]}}),
            (
                "partial-update",
                {
                    "unset": "default",
                    "defaults": {"n": 0},
                    "sequence_groups": {"o": ["n", "s"]},
                    "aggregates": {"n": "sum"},
                    "remove_record_on_sequence_group": ["o"],
                },
            ),
        ),
    ),
}


@pytest.mark.parametrize("seed", some(range(8)))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_merger_folds_onto_what_the_last_one_left(family: str, seed: int, tmp_path: Path) -> None:
    ordering, choices = FAMILIES[family]
    rng = random.Random(f"{family}/{seed}")
    schema = arrow_schema(DDL)
    merger, options = rng.choice(choices)
    table = LakeTable.create(
        tmp_path, DDL, key=["k"], ordering=ordering, merger=merger, options=options, buckets=rng.choice([1, 2])
    )
    model = ModelTable(schema, key=("k",), ordering=ordering, merger=merger, options=options, mergers=ALL_MERGERS)
    seen: dict[int, list[tuple[Any, ...]]] = {}
    for phase in range(5):
        if phase:
            table.compact()
            merger, options = rng.choice(choices)
            table.alter(merger=merger, options=options)
            model.change_merger(merger, options)
        for number in range(4):
            columns, rows, kinds = batch(rng, ordering)
            about = f"phase {phase} ({merger}, {options}), write {number}"
            arrays = {name: pa.array([row[name] for row in rows], schema.field(name).type) for name in columns}
            frame = pa.table({**arrays, "kind": pa.array(kinds)})
            try:
                model.write(columns, rows, kinds)
            except Refused:
                with pytest.raises(LakeMergeError):
                    table.upsert(frame, kind_column="kind")
            else:
                table.upsert(frame, kind_column="kind")
            seen[table.version] = [tuple(row.values()) for row in model.rows()]
            assert_rows(table.to_arrow(), seen[table.version], schema, about)
            if rng.random() < 0.2:
                table.compact()
    assert len(seen) > 8, "writes that are refused teach little"
    for version in rng.sample(sorted(seen), 6):
        then = LakeTable.open(tmp_path, version=version)
        assert_rows(then.to_arrow(), seen[version], schema, f"version {version}")


def batch(rng: random.Random, ordering: Sequence[str]) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """Columns, rows and kinds of one frame. Some frames lack columns, and most hold only upserts."""
    columns = list(VALUES)
    if rng.random() < 0.4:
        columns = [name for name in columns if name in ("k", "o", *ordering) or rng.random() < 0.5]
    kinds = ["+U"] if rng.random() < 0.6 else ["+U", "+I", "-D", "-U"]
    if rng.random() < 0.1:
        columns, kinds = [name for name in columns if name not in ordering], ["-D"]
    count = rng.randint(1, 6)
    rows = [{name: rng.choice(VALUES[name]) for name in columns} for _ in range(count)]
    return columns, rows, [rng.choice(kinds) for _ in range(count)]
