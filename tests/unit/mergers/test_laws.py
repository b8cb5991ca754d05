"""The law checker and the suite find what is wrong, and only that; plans use no law that is withheld."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest

from lakemerge import LakeTable, Laws, Merger, Record, RecordRefusedError, RowKind, RowMerger
from mergers import CommitTime, EventTime, Groups, Merged, Status, TableShape, kernel
from mergers.contract import Bools
from mergers.errors import MergerContractError
from mergers.restart import CLEAR, SET, combine_restarted, merge_restarted
from mergers.testing import MergerSuite, find_counterexample
from mergers.testing.laws import Law
from tests.model import ModelTable
from tests.property.effort import examples

ID = pa.field("id", pa.int64(), nullable=False)
SHAPE = TableShape(pa.schema([ID, pa.field("v", pa.int64(), nullable=False)]), ("id",), ())
FLOATS = TableShape(pa.schema([ID, pa.field("v", pa.float64(), nullable=False)]), ("id",), ())
SMALL = TableShape(pa.schema([ID, ("v", pa.int64()), ("ts", pa.int64())]), ("id",), ("ts",))
ORDERED = TableShape(pa.schema([ID, ("v", pa.int64()), ("w", pa.string()), ("ts", pa.int64())]), ("id",), ("ts",))


class UpsertsOnly(RowMerger):
    """The counting of laws is easier without deletes, which void what came before them."""

    def check_kinds(self, shape: TableShape, kinds: frozenset[RowKind]) -> None:
        if kinds & {RowKind.DELETE, RowKind.UPDATE_BEFORE}:
            raise RecordRefusedError("upserts only")


class Sum(UpsertsOnly):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b701"
    name = "sum"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return {**newer, "v": older["v"] + newer["v"]}


class Difference(UpsertsOnly):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b702"
    name = "difference"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return {**newer, "v": older["v"] - newer["v"]}


class Highest(UpsertsOnly):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b703"
    name = "highest"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return newer if newer["v"] > older["v"] else older


class Last(UpsertsOnly):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b704"
    name = "last"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return newer


@pytest.mark.parametrize(
    ("merger", "shape", "obeyed"),
    [
        (Sum(), SHAPE, {"associative", "commutative"}),
        (Sum(), FLOATS, set()),  # (0.1 + 0.2) + 0.3 is not 0.1 + (0.2 + 0.3)
        (Difference(), SHAPE, set()),
        (Highest(), SHAPE, {"associative", "commutative", "replay_safe", "selective"}),
        (Last(), SHAPE, {"associative", "selective"}),
    ],
    ids=["sum", "sum-of-floats", "difference", "highest", "last"],
)
def test_laws_that_hold_and_laws_that_do_not(merger: Merger, shape: TableShape, obeyed: set[str]) -> None:
    found = {law: find_counterexample(merger, shape, law, max_examples=60) for law in get_args(Law)}
    assert {law for law, counterexample in found.items() if counterexample is None} == obeyed


def test_the_smallest_history_is_printed() -> None:
    found = find_counterexample(Difference(), SHAPE, "commutative")
    assert found is not None
    assert (found.merger, found.law, found.before, len(found.records)) == ("difference", "commutative", (), 2)
    low, high = (step.values["v"] for step in found.records)
    assert {low, high} == {0, 1}
    assert str(found) == "\n".join(
        [
            "merger 'difference' is not commutative:",
            f"  a: {found.records[0].kind.symbol} id=0, v={low}",
            f"  b: {found.records[1].kind.symbol} id=0, v={high}",
            f"  a then b: {{'id': 0, 'v': {low - high}}}",
            f"  b then a: {{'id': 0, 'v': {high - low}}}",
        ]
    )


@pytest.mark.long
def test_partial_frames_of_event_time_are_not_associative() -> None:
    """As the semantics document says; and what the checker calls the left fold is the model's."""
    assert find_counterexample(EventTime(), ORDERED, "associative", max_examples=50) is None
    found = find_counterexample(EventTime(), ORDERED, "associative", full_frames=False, max_examples=600)
    assert found is not None
    assert len({frozenset(step.values) for step in found.records}) == 2
    model = ModelTable(ORDERED.schema, key=ORDERED.key, ordering=ORDERED.ordering)
    for step in (*found.before, *found.records):
        model.write(list(step.values), [step.values], [step.kind.symbol])
    [row] = model.rows()
    assert found.expected == f"one after the other: {row}"
    assert found.found.startswith("combined first: ")
    assert str(row) not in found.found


def test_event_time_is_not_replay_safe() -> None:
    """Not even with full frames: a record that comes again beats its equal."""
    assert EventTime().laws(ORDERED, full_frames=True) == Laws(associative=True, commutative=True, selective=True)
    found = find_counterexample(EventTime(), ORDERED, "replay_safe", max_examples=600)
    assert found is not None
    assert found.found.startswith("a then b then a again: ")


class Cancelling(Sum):
    """Lets two neighbours go that cancel each other, but for the first record of a key, which makes the row."""

    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b719"
    name = "cancelling"

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(associative=True)

    def combine(self, groups: Groups) -> Bools:
        keep = np.ones(len(groups.kinds), dtype=np.bool_)
        values = groups.column("v").to_pylist()
        for start, end in itertools.pairwise(groups.offsets.tolist()):
            at = start + 1
            while at + 1 < end:
                cancels = values[at] == -values[at + 1]
                keep[at : at + 2] &= not cancels
                at += 1 + cancels
        return keep


def test_what_is_combined_must_also_fit_a_state_that_has_the_first_of_it() -> None:
    """Over the state before, nothing tells that the two were left out; over one that has taken up the first of
    them, the second is missing."""
    found = find_counterexample(Cancelling(), SHAPE, "associative", values={"v": [1, -1, 2]}, max_examples=600)
    assert found is not None
    first, second = (step.values["v"] for step in found.records[1:])
    assert first == -second
    assert found.found.startswith("combined, and then the first 2 found in the state already: ")
    assert (
        find_counterexample(Sum(), SHAPE, "associative", values={"v": [1, -1, 2]}, max_examples=examples(600)) is None
    )


@dataclass(frozen=True)
class Weighted(Sum):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b705"
    name = "weighted"

    weight: int = 1

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return {**newer, "v": older["v"] + self.weight * newer["v"]}


class TestWeighted(MergerSuite):
    merger = Weighted(3)
    schema = SHAPE.schema
    key = ("id",)
    max_examples = 15


class TestEventTime(MergerSuite):
    """A vectorised merger, with tombstones and partial frames."""

    merger = EventTime.from_options({"delete_when": {"column": "w", "values": ["a"]}}, ORDERED)
    schema = ORDERED.schema
    key = ("id",)
    ordering = ("ts",)
    max_examples = 15


class LosesAnOption(Weighted):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b706"
    name = "loses-an-option"

    def options(self) -> Mapping[str, object]:
        return {}


class TakesAnything(Sum):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b707"
    name = "takes-anything"

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> TakesAnything:
        return cls()


class Counts(UpsertsOnly):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b708"
    name = "counts"
    calls = itertools.count()

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        return {**newer, "v": next(self.calls)}


class SaysReplaySafe(Sum):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b709"
    name = "says-replay-safe"

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws(replay_safe=True)


class HoldsAFunction(Sum):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b70a"
    name = "holds-a-function"

    def __init__(self) -> None:
        self.function = lambda: None


class SeesStorage(EventTime):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b70b"
    name = "sees-storage"

    def merge_groups(self, groups: Groups) -> Merged:
        merged = super().merge_groups(groups)
        merged.status[groups.stored[groups.offsets[:-1]]] = Status.ABSENT
        return merged


class SeesOtherKeys(EventTime):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b70c"
    name = "sees-other-keys"

    def merge_groups(self, groups: Groups) -> Merged:
        merged = super().merge_groups(groups)
        merged.status[1:] = Status.ABSENT
        return merged


class HidesANeed(EventTime):
    """``delete_when`` looks at a column that a projection then does not fetch."""

    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b70d"
    name = "hides-a-need"

    def needs(self, shape: TableShape, columns: Any) -> frozenset[str]:
        return frozenset(columns)


@pytest.mark.parametrize(
    ("merger", "shape", "test", "message"),
    [
        (LosesAnOption(3), SHAPE, "test_options_survive_the_table", "came back as"),
        (TakesAnything(), SHAPE, "test_an_unknown_option_is_refused", "does not have"),
        (Counts(), SHAPE, "test_is_deterministic", "again: "),
        (SaysReplaySafe(), SHAPE, "test_declared_laws_hold", "is not replay-safe"),
        (HoldsAFunction(), SHAPE, "test_survives_pickling", "lambda"),
        (SeesStorage(), ORDERED, "test_fold_may_be_split_anywhere", "stored after record"),
        (SeesOtherKeys(), ORDERED, "test_keys_do_not_touch_each_other", "each key alone"),
        (
            HidesANeed.from_options({"delete_when": {"column": "v", "values": [0, 1, 2]}}, SMALL),
            SMALL,
            "test_needs_is_honest",
            "v",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("test_") else "",
)
def test_the_suite_notices(merger: Merger, shape: TableShape, test: str, message: str) -> None:
    names = {"merger": merger, "schema": shape.schema, "key": shape.key, "ordering": shape.ordering, "max_examples": 30}
    suite = type("Suite", (MergerSuite,), names)()
    with pytest.raises(Exception, match=message) as caught:
        getattr(suite, test)()
    expected = AssertionError | AttributeError | KeyError | MergerContractError
    assert isinstance(caught.value, expected), repr(caught.value)


def test_what_to_install_is_said() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from mergers import LakeMergeError\n"
        "try:\n    import mergers.testing\nexcept LakeMergeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[install] mergers.testing needs hypothesis: pip install 'lakemerge[testing]'\n"


class UnlawfulEventTime(EventTime):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b70e"
    name = "unlawful-event-time"

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws()


class UnlawfulCommitTime(CommitTime):
    id = "0c0c5c3e-0d6d-4a39-93f5-1d9f5ff3b70f"
    name = "unlawful-commit-time"

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return Laws()


@pytest.mark.parametrize(
    ("granted", "withheld"), [(EventTime, UnlawfulEventTime), (CommitTime, UnlawfulCommitTime)], ids=lambda c: c.name
)
def test_plans_without_laws_give_the_same_rows(granted: type[Merger], withheld: type[Merger], tmp_path: Path) -> None:
    """Two tables with one history: the one without laws keeps every record in its logs."""
    kept = 0
    for seed in range(6):
        rng = random.Random(seed)
        options = {"delete_when": {"column": "w", "values": ["a"]}} if seed % 2 else {}
        pair = [
            LakeTable.create(
                str(tmp_path / f"{merger.name}-{seed}"), ORDERED.schema, key=["id"], ordering=["ts"],
                merger=merger.name, options=options, mergers=[merger], buckets=2,
            )
            for merger in (granted, withheld)
        ]  # fmt: skip
        given = 0
        for number in range(5):
            batch = records(rng, full=rng.random() < 0.6)
            for table in pair:
                table.upsert(batch, kind_column="op")
            given += batch.num_rows if number else 0  # the first write is merged into base files
            if rng.random() < 0.25:
                for table in pair:
                    table.compact()
                given = 0
            lawful, unlawful = pair
            assert rows(lawful) == rows(unlawful), f"seed {seed}, write {number}"
            assert logged(unlawful) == given, f"seed {seed}, write {number}"
            kept += logged(unlawful) - logged(lawful)
    assert kept > 20


def records(rng: random.Random, *, full: bool) -> pa.Table:
    """A frame of 12 records of 4 keys: a table of all columns, or without one of them."""
    columns = ["id", "v", "w", "ts"] if full else rng.choice([["id", "v", "ts"], ["id", "w", "ts"]])
    values = {
        "id": [rng.randrange(4) for _ in range(12)],
        "v": [rng.choice([None, 1, 2, 3]) for _ in range(12)],
        "w": [rng.choice([None, "a", "b", "c"]) for _ in range(12)],
        "ts": [rng.choice([None, 1, 2, 3, 4, 5]) for _ in range(12)],
    }
    arrays = {name: pa.array(values[name], ORDERED.schema.field(name).type) for name in columns}
    kinds = rng.choices(["+U", "+I", "-D", "-U"], weights=[12, 2, rng.choice([0, 1]), rng.choice([0, 1])], k=12)
    return pa.table({**arrays, "op": pa.array(kinds)})


def rows(table: LakeTable) -> list[str]:
    return sorted(map(repr, table.to_arrow().to_pylist()))


def logged(table: LakeTable) -> int:
    return sum(block.rows for file_slice in table.opened.view.file_slices for block in file_slice.blocks)


def test_a_merger_with_hooks_of_earlier_versions_is_named() -> None:
    """They are fields of what ``traits`` returns. A class that defines one would be read as saying nothing."""
    with pytest.raises(TypeError, match=r"Earlier defines only_picks, uses_ordering: return Traits"):

        class Earlier(UpsertsOnly):
            def uses_ordering(self, shape: TableShape) -> bool:
                return False

            def only_picks(self, shape: TableShape) -> bool:
                return True


def _not_cut(kind: int, instead: RowKind) -> Callable[..., Any]:
    """The merger gets sets or clears as records of one of its own kinds, after all that precedes them."""

    def merged(merger: Merger, groups: Groups, merge: Callable[[Groups], Merged]) -> Merged:
        kinds = np.where(groups.kinds == kind, instead, groups.kinds).astype(np.int8)
        return merge_restarted(merger, replace(groups, kinds=kinds, _taken={}), merge)

    return merged


def _not_combined_apart(kind: int, instead: RowKind) -> Callable[..., Any]:
    """The merger's pre-combining decides between a set or clear and the records around it."""

    def combined(groups: Groups, combine: Callable[[Groups], Bools | None] | None) -> Bools | None:
        kinds = np.where(groups.kinds == kind, instead, groups.kinds).astype(np.int8)
        return combine_restarted(replace(groups, kinds=kinds, _taken={}), combine)

    return combined


def _earlier_kept(groups: Groups, combine: Callable[[Groups], Bools | None] | None) -> Bools | None:
    """The first set or clear of a key is kept, and not the last one."""
    backwards = np.concatenate([np.arange(e - 1, s - 1, -1) for s, e in itertools.pairwise(groups.offsets.tolist())])
    if not (groups.kinds >= SET).any():
        return combine_restarted(groups, combine)
    turned = replace(groups, kinds=groups.kinds[backwards], _taken={})
    keep = combine_restarted(turned, None)
    return None if keep is None else keep[backwards]


DEFECTS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "a set does not restart the fold": ("merge_restarted", _not_cut(SET, RowKind.UPDATE_AFTER)),
    "a clear does not restart the fold": ("merge_restarted", _not_cut(CLEAR, RowKind.DELETE)),
    "a set is combined as an upsert": ("combine_restarted", _not_combined_apart(SET, RowKind.UPDATE_AFTER)),
    "a clear is combined as a delete": ("combine_restarted", _not_combined_apart(CLEAR, RowKind.DELETE)),
    "what precedes a set is kept instead": ("combine_restarted", _earlier_kept),
}


@pytest.mark.long
@pytest.mark.parametrize("name", DEFECTS)
def test_the_search_finds_kernels_that_do_not_restart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The merger combines by itself. Without a defect the search finds nothing (:class:`TestEventTime`)."""
    place, defect = DEFECTS[name]
    monkeypatch.setattr(kernel, place, defect)
    found = find_counterexample(EventTime(), SMALL, "associative", max_examples=1000, shrink=False)
    assert found is not None
    assert any(step.kind in (SET, CLEAR) for step in (*found.before, *found.records)), str(found)


@pytest.mark.long
def test_the_suite_finds_kernels_that_do_not_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite that users run on their mergers finds them, too."""

    class Suite(MergerSuite):
        merger = Sum()
        schema = SHAPE.schema
        key = ("id",)
        max_examples = 60

    Suite().test_sets_and_clears_restart_the_fold()
    monkeypatch.setattr(kernel, *DEFECTS["a set does not restart the fold"])
    with pytest.raises(AssertionError, match="after the set or clear"):
        Suite().test_sets_and_clears_restart_the_fold()
