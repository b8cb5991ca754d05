"""Counter-examples to the laws that a merger declares (docs/merge-semantics.md, section 6)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis.errors import NoSuchExample

from mergers.contract import Merger, TableShape
from mergers.errors import InputError
from mergers.kernel import Frame, combine
from mergers.ordering import order_codes
from mergers.testing.records import Domain, State, Step, frame_of, frames, remembering, steps

__all__ = ["Counterexample", "Law", "find_counterexample"]

Law = Literal["associative", "commutative", "replay_safe", "selective"]


@dataclass(frozen=True)
class Counterexample:
    """The smallest history found that breaks a law. Its text shows all of it."""

    merger: str
    law: Law
    before: tuple[Step, ...]
    """The records that make the state, each in its own commit."""
    records: tuple[Step, ...]
    """The records to which the law is applied."""
    expected: str
    found: str

    def __str__(self) -> str:
        lines = [f"merger {self.merger!r} is not {self.law.replace('_', '-')}:"]
        names = [*("state" for _ in self.before), *"abcdefgh"[: len(self.records)]]
        for name, step in zip(names, (*self.before, *self.records), strict=True):
            lines.append(f"  {name}: {step}")
        return "\n".join([*lines, f"  {self.expected}", f"  {self.found}"])


def find_counterexample(
    merger: Merger,
    shape: TableShape,
    law: Law,
    *,
    full_frames: bool = True,
    values: Mapping[str, Any] | None = None,
    max_examples: int = 200,
    shrink: bool = True,
) -> Counterexample | None:
    """Search for records that break a law, whether or not the merger declares it.

    :param full_frames: whether upserts carry every column. Otherwise they carry any columns in addition to key and
        ordering.
    :param values: column -> the values to draw from (with null, if it may be null), if a merger does not take every
        value of the column's type.
    :param max_examples: how many histories to try. The search draws the same ones each time.
    :param shrink: whether to make a history that was found smaller. That takes most of the time.
    :returns: the smallest counter-example found. ``None`` is no proof.
    """
    if law not in _CHECKERS:
        raise InputError(f"there is no law {law!r}; the laws are {', '.join(_CHECKERS)}")
    checker = _CHECKERS[law]
    shape = remembering(merger, shape)
    search = _Search(merger, shape, values or {}, full_frames)
    seen: dict[str, Counterexample] = {}

    def breaks(history: tuple[list[Step], list[Step]]) -> bool:
        found = checker(search, *history)
        if found is None:
            return False
        seen["last"] = Counterexample(merger.name, law, tuple(history[0]), tuple(history[1]), *found)
        return True

    settings = hypothesis.settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[phase for phase in hypothesis.Phase if shrink or phase is not hypothesis.Phase.shrink],
    )
    try:
        smallest = hypothesis.find(search.histories(law), breaks, settings=settings, random=random.Random(0))  # noqa: S311
    except NoSuchExample:
        return None
    breaks(smallest)
    return seen["last"]


@dataclass(frozen=True)
class _Search:
    merger: Merger
    shape: TableShape
    domain: Domain
    full_frames: bool

    @property
    def combines(self) -> bool:
        """Whether the merger has its own pre-combining. Then this must obey the law within a frame."""
        return type(self.merger).combine is not Merger.combine

    def histories(self, law: Law) -> st.SearchStrategy[tuple[list[Step], list[Step]]]:
        """The records before, and the records to which the law is applied; all of one key. Laws say nothing about sets
        and clears, so these are among the records before, and in frames that are combined."""
        before = steps(self.merger, self.shape, self.domain, full_frames=self.full_frames, restarts=True)
        one = steps(self.merger, self.shape, self.domain, full_frames=self.full_frames)
        upsert = steps(self.merger, self.shape, self.domain, full_frames=self.full_frames, only_upserts=True)
        pair = st.lists(upsert, min_size=2, max_size=2)
        about: st.SearchStrategy[list[Step]]
        if law == "associative" and self.combines:
            about = frames(self.merger, self.shape, self.domain, full_frames=self.full_frames)
            about = about if self.full_frames else about | pair.filter(_of_several_frames)
        elif law == "associative":
            about = pair
        else:
            about = st.lists(one, min_size=2, max_size=2)
        return st.tuples(st.lists(before, max_size=2), about).map(self._of_one_key)

    def _of_one_key(self, history: tuple[list[Step], list[Step]]) -> tuple[list[Step], list[Step]]:
        before, about = history
        key = {name: about[0].values[name] for name in self.shape.key}
        return _with(before, key), _with(about, key)

    def state(self, before: list[Step]) -> State:
        return State.empty(self.shape).after(self.merger, self.shape, before)


def _with(records: list[Step], key: Mapping[str, Any]) -> list[Step]:
    return [Step(record.kind, {**record.values, **key}) for record in records]


def _of_several_frames(records: list[Step]) -> bool:
    return len({frozenset(record.values) for record in records}) > 1


_Found = tuple[str, str] | None


def _associative(search: _Search, before: list[Step], about: list[Step]) -> _Found:
    merger, shape, start = search.merger, search.shape, search.state(before)
    each = start.after(merger, shape, about)
    if search.combines and not _of_several_frames(about):
        return _combined_by_itself(search, start, about, each)
    combined = _combined(search, about)
    if combined is None:
        return None
    at_once = start.fold(merger, shape, [combined] if combined.rows.num_rows else [])
    return _differ("one after the other", each, "combined first", at_once)


def _combined_by_itself(search: _Search, start: State, about: list[Step], each: State) -> _Found:
    """Check the records that the merger keeps of a frame, also over a state that has taken up the first few of them."""
    merger, shape = search.merger, search.shape
    frame = frame_of(shape, about)
    keep = combine(merger, shape, frame, full=len(about[0].values) == len(shape.schema))
    if keep is None:
        return None
    for merged in range(len(about)):
        left = keep & (np.arange(len(about)) >= merged)
        kinds = None if frame.kinds is None else frame.kinds[left]
        rest = Frame(frame.rows.filter(pa.array(left)), kinds, frame.version)
        state = start.after(merger, shape, about[:merged])
        at_once = state.fold(merger, shape, [rest] if rest.rows.num_rows else [])
        how = "combined first" if not merged else f"combined, and then the first {merged} found in the state already"
        found = _differ("one after the other", each, how, at_once)
        if found is not None:
            return found
    return None


def _combined(search: _Search, about: list[Step]) -> Frame | None:
    """The row that upserts make without a state before them, as a record with their columns. ``None`` if they make no
    row: no plan combines such records."""
    alone = State.empty(search.shape).after(search.merger, search.shape, about)
    if alone.rows.num_rows != 1:
        return None
    carried = frozenset(name for step in about for name in step.values)
    names = [name for name in search.shape.schema.names if name in carried]
    return Frame(alone.rows.select(names), None, 0)


def _commutative(search: _Search, before: list[Step], about: list[Step]) -> _Found:
    if not _may_swap(search, about):
        return None
    start = search.state(before)
    forth = start.after(search.merger, search.shape, about)
    back = start.after(search.merger, search.shape, about[::-1])
    return _differ("a then b", forth, "b then a", back)


def _may_swap(search: _Search, about: list[Step]) -> bool:
    """Whether the ordering, if it decides, says which of two records is newer."""
    shape = search.shape
    if not shape.ordering or not search.merger.traits(shape).uses_ordering:
        return True
    if any(name not in step.values for step in about for name in shape.ordering):
        return False
    kinds = [shape.schema.field(name).type for name in shape.ordering]
    columns = [
        pa.array([step.values[name] for step in about], kind) for name, kind in zip(shape.ordering, kinds, strict=True)
    ]
    return len(set(order_codes(columns).tolist())) > 1


def _replay_safe(search: _Search, before: list[Step], about: list[Step]) -> _Found:
    start = search.state(before)
    once = start.after(search.merger, search.shape, about)
    again = once.after(search.merger, search.shape, about[:1])
    return _differ("a then b", once, "a then b then a again", again)


def _selective(search: _Search, before: list[Step], about: list[Step]) -> _Found:
    start = search.state(before)
    end = start.after(search.merger, search.shape, about)
    full = [[step.values.get(name) for name in search.shape.schema.names] for step in about]
    inputs = [repr(row) for row in full] + [repr(list(row.values())) for row in start.rows.to_pylist()]
    for row in end.rows.to_pylist():
        # A type may print a value in another form than it was drawn in, so the values that Arrow gives are compared.
        given = {repr(list(r.values())) for step in about for r in _rows_of(search, step)}
        if repr(list(row.values())) not in given | set(inputs):
            return "the row must be one of the inputs, whole", f"it is {row}"
    return None


def _rows_of(search: _Search, step: Step) -> list[dict[str, Any]]:
    frame = frame_of(search.shape, [step]).rows
    schema = search.shape.schema
    columns = [frame.column(n) if n in step.values else pa.nulls(1, schema.field(n).type) for n in schema.names]
    return list(pa.table(columns, names=schema.names).to_pylist())


def _differ(left: str, a: State, right: str, b: State) -> _Found:
    return None if str(a) == str(b) else (f"{left}: {a}", f"{right}: {b}")


_CHECKERS: Mapping[Law, Callable[[_Search, list[Step], list[Step]], _Found]] = {
    "associative": _associative,
    "commutative": _commutative,
    "replay_safe": _replay_safe,
    "selective": _selective,
}
