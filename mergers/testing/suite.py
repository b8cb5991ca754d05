"""The contract of mergers as tests: subclass :class:`MergerSuite` and name the merger."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa

from mergers.contract import Merger, TableShape
from mergers.kernel import VERSION_COLUMN, Frame, fold, overlay_rows
from mergers.restart import CLEAR, SET
from mergers.testing.laws import Law, find_counterexample
from mergers.testing.records import State, Step, frame_of, remembering, steps

__all__ = ["MergerSuite"]


class MergerSuite:
    """Tests for one configuration of a merger on one kind of table.

    ::

        class TestOrderMerger(MergerSuite):
            merger = OrderMerger()
            schema = pa.schema([("id", pa.int64()), ("state", pa.string())])
            key = ("id",)
            values = {"state": ["CREATED", "PAID"]}
    """

    merger: ClassVar[Merger]
    schema: ClassVar[pa.Schema]
    key: ClassVar[Sequence[str]]
    ordering: ClassVar[Sequence[str]] = ()
    values: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Column -> the values to draw from, if the merger does not take every value of the column's type."""
    max_examples: ClassVar[int] = 60
    """How many histories each test tries. They are the same each time."""

    @property
    def shape(self) -> TableShape:
        fields = [field.with_nullable(field.nullable and field.name not in self.key) for field in self.schema]
        return remembering(self.merger, TableShape(pa.schema(fields), tuple(self.key), tuple(self.ordering)))

    def test_options_survive_the_table(self) -> None:
        """Options survive real JSON, as which a table keeps them."""
        options = json.loads(json.dumps(dict(self.merger.options())))
        again = type(self.merger).from_options(options, self.shape)
        assert json.loads(json.dumps(dict(again.options()))) == options, f"{options} came back as {again.options()}"
        if type(self.merger).__eq__ is not object.__eq__:
            assert again == self.merger, f"{self.merger} came back as {again}"
        self._check(lambda history: self._same("as it was", self.merger, "from its options", again, history))

    def test_an_unknown_option_is_refused(self) -> None:
        options = {**self.merger.options(), "no such option": 1}
        try:
            type(self.merger).from_options(options, self.shape)
        except Exception as error:
            if "no such option" not in str(error):
                raise
        else:
            raise AssertionError("from_options took an option that the merger does not have")

    def test_survives_pickling(self) -> None:
        again: Merger = pickle.loads(pickle.dumps(self.merger))  # noqa: S301 - our own bytes
        assert again.options() == self.merger.options(), "pickling changed the options"
        self._check(lambda history: self._same("as it was", self.merger, "pickled", again, history))

    def test_is_deterministic(self) -> None:
        self._check(lambda history: self._same("once", self.merger, "again", self.merger, history))

    def test_declared_laws_hold(self) -> None:
        broken = []
        for full in (True, False):
            laws = self.merger.laws(self.shape, full_frames=full)
            for law in get_args(Law):
                if getattr(laws, law):
                    counterexample = find_counterexample(
                        self.merger,
                        self.shape,
                        law,
                        full_frames=full,
                        values=self.values,
                        max_examples=3 * self.max_examples,
                    )
                    if counterexample is not None:
                        broken.append(f"with full frames: {full}\n{counterexample}")
        assert not broken, "\n".join(broken)

    def test_fold_may_be_split_anywhere(self) -> None:
        """The result is the same if a state is stored on the way, as by a compaction."""

        def split(history: Sequence[Step]) -> None:
            whole = State.empty(self.shape).after(self.merger, self.shape, history)
            for cut in range(1, len(history)):
                stored = State.empty(self.shape).after(self.merger, self.shape, history[:cut])
                parts = stored.after(self.merger, self.shape, history[cut:])
                assert str(parts) == str(whole), _told(
                    history, f"at once: {whole}", f"stored after record {cut} as {stored}, in the end: {parts}"
                )

        self._check(split)

    def test_sets_and_clears_restart_the_fold(self) -> None:
        """What a transaction wrote is the state of its key, and later records fold onto that as onto a stored row."""

        def restarted(history: Sequence[Step]) -> None:
            at = max((i for i, step in enumerate(history) if step.kind in (SET, CLEAR)), default=None)
            if at is None:
                return
            key = {name: history[at].values[name] for name in self.key}
            own = [step for step in history if all(step.values[name] == key[name] for name in key)]
            later = [step for step in history[at + 1 :] if step in own]
            found = State.empty(self.shape).after(self.merger, self.shape, own)
            stored = self._left(history[at])
            expected = stored.after(self.merger, self.shape, later) if later else stored
            assert str(found) == str(expected), _told(own, f"after the set or clear: {expected}", f"of all: {found}")

        self._check(restarted)

    def _left(self, step: Step) -> State:
        """The state after a set or clear. It is written down here without the kernel."""
        empty = State.empty(self.shape)
        if step.kind == SET:
            return replace(empty, rows=frame_of(self.shape, [step]).rows.select(empty.rows.column_names))
        traits = self.merger.traits(self.shape)
        ordered = bool(self.ordering) and all(name in step.values for name in self.ordering)
        if not (ordered and traits.uses_ordering and traits.tombstones):
            return empty
        schema = empty.tombstones.schema
        values = {name: step.values.get(name) for name in schema.names} | {VERSION_COLUMN: 1}
        return replace(empty, tombstones=pa.Table.from_pylist([values], schema=schema))

    def test_keys_do_not_touch_each_other(self) -> None:
        def alone(history: Sequence[Step]) -> None:
            whole = State.empty(self.shape).after(self.merger, self.shape, history)
            keys = {repr([step.values[name] for name in self.key]): step for step in history}
            apart = [
                State.empty(self.shape).after(
                    self.merger, self.shape, [s for s in history if repr([s.values[n] for n in self.key]) == key]
                )
                for key in keys
            ]
            found = sorted(map(str, whole.rows.to_pylist()))
            expected = sorted(str(row) for state in apart for row in state.rows.to_pylist())
            assert found == expected, _told(history, f"each key alone: {expected}", f"together: {found}")

        self._check(alone)

    def test_needs_is_honest(self) -> None:
        """A read of some columns, which fetches only the columns in ``needs``, gives the same values."""

        def projected(history: Sequence[Step]) -> None:
            half = len(history) // 2
            stored = State.empty(self.shape).after(self.merger, self.shape, history[:half])
            frames = [frame_of(self.shape, [step]) for step in history[half:]]
            end = stored.fold(self.merger, self.shape, frames)
            for name in self.shape.schema.names:
                found = self._read(stored, frames, name)
                expected = end.rows.column(name).to_pylist()
                assert repr(found) == repr(expected), _told(
                    history, f"column {name!r} of a full read: {expected}", f"of a read of that column: {found}"
                )

        self._check(projected)

    def _read(self, stored: State, frames: Sequence[Frame], name: str) -> list[Any]:
        shape = self.shape
        wanted = {*self.merger.needs(shape, [name]), name, *shape.standing}
        needed = [column for column in shape.schema.names if column in wanted]
        cut = [
            Frame(
                frame.rows.select([column for column in needed if column in frame.rows.column_names]),
                frame.kinds,
                stored.version + 1 + i,
                frozenset(frame.rows.column_names),
            )
            for i, frame in enumerate(frames)
        ]
        base = stored.rows.select(needed)
        folded = fold(self.merger, shape, base=base, tombstones=stored.tombstones, frames=cut, columns=[name])
        return list(overlay_rows(base, folded, [name], sort=True).column(name).to_pylist())

    def _same(self, left: str, a: Merger, right: str, b: Merger, history: Sequence[Step]) -> None:
        one = State.empty(self.shape).after(a, self.shape, history)
        other = State.empty(self.shape).after(b, self.shape, history)
        assert str(one) == str(other), _told(history, f"{left}: {one}", f"{right}: {other}")

    def _check(self, test: Callable[[Sequence[Step]], None]) -> None:
        """Run a test on generated histories of up to six records."""
        one = steps(self.merger, self.shape, self.values, full_frames=False, restarts=True)
        drawn = st.lists(one, min_size=1, max_size=6)
        settings = hypothesis.settings(
            max_examples=self.max_examples,
            database=None,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.given(history=drawn)(settings(_named(test)))()


def _named(test: Callable[[Sequence[Step]], None]) -> Callable[..., None]:
    """The test with a parameter that hypothesis can name, whatever its own is called."""

    def run(history: Sequence[Step]) -> None:
        test(history)

    return run


def _told(history: Sequence[Step], expected: str, found: str) -> str:
    return "\n".join(["after the records", *(f"  {step}" for step in history), expected, found])
