"""Says whether what operations left behind, and what they answered, is right.

- The rows are the left fold of what was acknowledged, in some order; what ended without a known outcome is in or out,
  and what failed is out.
- Every version from that at which the operations began is readable, and shows a state between them.
- A reader that stands at the first version, and one that follows the table, see right rows.
- ``check`` finds nothing.
- Each operation can be done once more, and a compaction then leaves the rows as they are.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lakemerge import (
    CommitConflictError,
    FilterError,
    FrameError,
    InputError,
    LakeMergeError,
    LakeTable,
    NotATableError,
    OutcomeUnknownError,
    SchemaError,
    TableDamagedError,
    VersionNotFoundError,
)
from lakemerge.errors import TableReplacedError
from lakemerge.layout.references import snapshot_references
from lakemerge.merge_source import MergeSource
from lakemerge.testing.memory import Bucket
from tests.interleavings.operations import (
    CONSTRAINT,
    ONE,
    SOURCES,
    NotMaintainedError,
    Operation,
    Rows,
    State,
    StatementError,
    World,
    convert,
    frame,
    make,
    rows_of,
    url,
)
from tests.interleavings.turns import Killed, Outcome, Schedule, play, still
from tests.interrupting import AlarmError

__all__ = ["Case", "Judge", "Verdict"]

Effect = Callable[[State, str], State]

_UNKNOWN = (AlarmError, Killed, OutcomeUnknownError)
_DELETERS = ("vacuum", "upkeep", "create anew", "forget")


@dataclass(frozen=True, slots=True)
class Case:
    """Operations over tables, and the order of what they do."""

    world: World
    operations: tuple[Operation, ...]
    """The first is A in the schedule, the second B."""
    schedule: Schedule

    def __str__(self) -> str:
        names = " beside ".join(operation.name for operation in self.operations)
        return f"{self.world.name}: {names}: {self.schedule}"

    @property
    def has_faults(self) -> bool:
        return any(step.fault or step.line is not None for step in self.schedule.steps)


@dataclass(frozen=True, slots=True)
class Verdict:
    problems: tuple[str, ...]
    outcomes: Mapping[str, Outcome]


@dataclass(slots=True)
class Judge:
    """Plays cases and judges them. The same end is judged once."""

    played: int = 0
    judged: int = 0
    _known: dict[bytes, tuple[str, ...]] = field(default_factory=dict)

    def play(self, case: Case) -> Verdict:
        bucket = case.world.bucket
        tags = "ABCDEF"[: len(case.operations)]
        named = dict(zip(tags, case.operations, strict=True))
        self.played += 1
        with still(bucket):
            first = LakeTable.open(url(), settings=ONE)
            pinned = _at(LakeTable.open(url(), settings=ONE), first.version)
            deeds = {tag: _prepared(operation, tag) for tag, operation in named.items()}
            outcomes = play(bucket, deeds, case.schedule)
            # A commit that was sent before a drop, and carried out after it, stands alone.
            is_left = any(one.drops for one in case.operations) and bool(bucket.paths("s/t/_delta_log/"))
            problems = [
                f"{named[tag]}: {problem}"
                for tag, one in outcomes.items()
                for problem in _answered(one, case.has_faults or is_left)
            ]
            if problems:
                return Verdict(tuple(problems), outcomes)
            key = _digest(case, bucket, outcomes)
            if key not in self._known:
                self.judged += 1
                end = _End(case.world, named, outcomes, bucket, first, pinned, case.has_faults)
                try:
                    self._known[key] = tuple(end.problems())
                except Exception as error:  # noqa: BLE001 - whatever a look at the end raises is the problem
                    self._known[key] = (f"a look at the end raised {type(error).__name__}: {error}",)
            return Verdict(self._known[key], outcomes)


def _prepared(operation: Operation, tag: str) -> _Prepared:
    return _Prepared(operation, tag)


@dataclass(frozen=True, slots=True)
class _Prepared:
    operation: Operation
    tag: str

    def __call__(self):  # type: ignore[no-untyped-def]
        return self.operation.prepare(self.tag)


def _at(table: LakeTable, version: int) -> LakeTable:
    """A version of the table, read-only. What is known of its files is used again."""
    handle = table.opened.handle
    return LakeTable(handle, handle.log.snapshot(version=version), pinned=True, spark=None)


def _digest(case: Case, bucket: Bucket, outcomes: Mapping[str, Outcome]) -> bytes:
    found = hashlib.blake2b(repr((case.world.name, [str(one) for one in case.operations])).encode())
    for path, data in sorted(bucket.contents().items()):
        found.update(f"{path} {len(data)} ".encode() + data)
    for outcome in outcomes.values():
        told = _how(outcome), outcome.value if isinstance(outcome.value, dict) else None
        found.update(repr(told).encode())
        if hasattr(outcome.value, "to_pylist"):
            found.update(repr(outcome.value.to_pylist()).encode())
    return found.digest()


def _how(outcome: Outcome) -> str:
    if outcome.error is None:
        return "in"
    unknown = isinstance(outcome.error, _UNKNOWN) or (
        isinstance(outcome.error, StatementError) and outcome.error.code == OutcomeUnknownError.code
    )
    return "maybe" if unknown else "out"


def _answered(outcome: Outcome, has_faults: bool) -> Iterator[str]:
    """What is wrong with an answer, whatever the tables are like."""
    error = outcome.error
    if error is None:
        if outcome.raised_at is not None:
            yield f"the exception at {outcome.raised_at} was swallowed"
        return
    if isinstance(error, _UNKNOWN) or (has_faults and isinstance(error, NotMaintainedError)):
        return
    code = error.code if isinstance(error, LakeMergeError | StatementError) else None
    if code is None and not (has_faults and isinstance(error, OSError)):
        yield f"raised {type(error).__name__}: {error}"
    elif code == TableDamagedError.code and not has_faults:
        yield f"calls the table damaged: {error}"


@dataclass(frozen=True, slots=True)
class _End:
    world: World
    named: Mapping[str, Operation]
    outcomes: Mapping[str, Outcome]
    bucket: Bucket
    first: LakeTable
    """Opened before the operations."""
    pinned: LakeTable
    """Opened before them at a version."""
    has_late_calls: bool
    """Whether a call was carried out that its caller had given up."""

    def problems(self) -> Iterator[str]:
        if any(operation.settles for operation in self.named.values()) or self.world.name in SOURCES:
            yield from self._sources()
        elif any(operation.drops and not self._is_refused(tag) for tag, operation in self.named.items()):
            yield from self._dropped()
        elif any(operation.plain for operation in self.named.values()):
            yield from self._converted()
        else:
            yield from self._kept()

    def _kept(self) -> Iterator[str]:
        """There is a table all the time."""
        folds = [[state.seen() for state in fold] for fold in self._folds()]
        states = [state for fold in folds for state in fold]
        ends = [fold[-1] for fold in folds]
        table = LakeTable.open(url(), settings=ONE)
        rows = rows_of(table.to_arrow())
        fitting = [end for end in ends if end.rows == rows]
        if not fitting:
            yield f"the rows are {dict(rows)}, and may be {_shown(ends)}"
            return
        found = LakeTable.check(url()).findings
        if self.has_late_calls and fitting[0].made:
            # A checkpoint of the old table may come when nobody is left to withdraw it. Readers pass over it.
            found = tuple(one for one in found if not (one.path or "").endswith(".checkpoint.parquet"))
        if found:
            yield f"check finds {found[:3]}"
        for tag, operation in self.named.items():
            if self._moved_by_others(tag):
                continue  # it began in the middle
            if operation.sees is not None and self.outcomes[tag].error is None:
                seen = operation.sees(self.outcomes[tag].value)
                if all(state.rows != seen for state in states):
                    yield f"{operation} saw {dict(seen)}, and may see {_shown(states)}"
        constrained = CONSTRAINT in table.opened.view.config.constraints
        if constrained and 9 in rows:
            yield "a row does not meet a constraint"
        made = fitting[0].made > 0
        if not made:
            yield from self._versions(table, states)
        yield from self._readers(table, made=made)
        yield from self._again(table, fitting)

    def _folds(self) -> Iterator[list[State]]:
        """What the table may have held, one state after the other."""
        how = {tag: _how(outcome) for tag, outcome in self.outcomes.items()}
        for tag, outcome in self.outcomes.items():
            if how[tag] == "in" and self.named[tag].undone(outcome.value):
                how[tag] = "out"
            elif how[tag] == "out" and self.named[tag].first is not None:
                how[tag] = "maybe"
        for parts in itertools.product(*(self._parts(tag, told) for tag, told in how.items())):
            for order in _shuffled(parts):
                states = [self.world.state]
                for tag, effect in order:
                    state = effect(states[-1], tag)
                    if states[-1].made and state is not states[-1] and not state.made > states[-1].made:
                        break  # what began in the old table does not land in the new one
                    states.append(state)
                else:
                    yield states

    def _parts(self, tag: str, told: str) -> list[list[tuple[str, Effect]]]:
        """What may have landed of an operation: its effects in their order, in each way that is possible."""
        operation = self.named[tag]
        first, effect = operation.first, operation.effect
        whole = [(tag, effect)] if first is None or first is effect else [(tag, first), (tag, effect)]
        if told == "in":
            return [whole]
        return [whole[:count] for count in range(len(whole) + 1)] if told == "maybe" else [[]]

    def _versions(self, table: LakeTable, states: Sequence[State]) -> Iterator[str]:
        """The versions between the first and the last one, which was read."""
        for version in range(self.pinned.version + 1, table.version):
            try:
                rows = rows_of(_at(table, version).to_arrow())
            except VersionNotFoundError as error:
                if not self._deleted():
                    yield f"version {version} cannot be read: {error}"
                continue
            if all(rows != state.rows for state in states):
                yield f"version {version} has {dict(rows)}, and may have {_shown(states)}"

    def _readers(self, table: LakeTable, *, made: bool) -> Iterator[str]:
        # Files never change, so what is all there reads as before.
        store, snapshot = self.pinned.opened.handle.store, self.pinned.opened.view.snapshot
        lost = {path for path in snapshot_references(snapshot, store) if store.stat(path) is None}
        if lost and not self._deleted():
            yield f"version {self.pinned.version} lacks {sorted(lost)[:3]}"
        elif lost:
            try:
                seen = rows_of(self.pinned.to_arrow())
            except LakeMergeError as error:
                if isinstance(error, TableDamagedError):
                    yield f"a reader at version {self.pinned.version} gets {type(error).__name__}: {error}"
            else:
                if seen != self.world.state.rows:
                    yield f"a reader at version {self.pinned.version} sees {dict(seen)}"
        try:
            seen_by_follower = self.first.opened.view.snapshot
        except TableReplacedError:
            if not made:
                yield "a reader fails with TableReplacedError, and nobody replaced the table"
            return
        latest = table.opened.view.snapshot
        if (seen_by_follower.version, seen_by_follower.files, seen_by_follower.domains) != (
            latest.version,
            latest.files,
            latest.domains,
        ):
            yield f"a reader that follows the table stands at version {seen_by_follower.version}, not {latest.version}"

    def _deleted(self) -> bool:
        """Whether an operation may have deleted what earlier versions need."""
        return any(name in operation.name for operation in self.named.values() for name in (*_DELETERS, "maintenance"))

    def _moved_by_others(self, tag: str) -> bool:
        """Whether the consumer that an operation reads by may have been moved by another."""
        movers = {one for one, operation in self.named.items() if operation.name in ("follower", "consumer moves")}
        return self.named[tag].name == "follower" and bool(movers - {tag})

    def _is_gone(self, error: BaseException) -> bool:
        """Whether an error says that another operation took away what this one needs."""
        names = {one.name for one in self.named.values()}
        if isinstance(error, VersionNotFoundError):  # a replay does not go over columns that got other names
            return self._deleted() or ("replay" in names and bool(names & {"rename of a column", "drop of a column"}))
        if isinstance(error, TableReplacedError):  # a feed cannot go over a replacement
            return any(one.name == "replace" for one in self.named.values())
        if isinstance(error, CommitConflictError):  # a copy of what a restore took back
            return {"restore", "replay"} <= names
        if names & {"rename of a column", "drop of a column", "constraint"} and isinstance(
            error, FrameError | FilterError | SchemaError | InputError | StatementError
        ):
            return True  # of the columns of before, or a row that the table does not take any more
        if isinstance(error, FrameError):  # a source that lacks the new column
            return {"alter", "merge"} <= names
        # A job asks for a reset after a restore. A batch that is older than the last one is refused.
        asks = "consumer goes" in names or {"restore", "ingest"} <= names or {"restore", "replay of a window"} <= names
        return isinstance(error, InputError) and (asks or "sink that goes on" in names)

    def _again(self, table: LakeTable, fitting: Sequence[State]) -> Iterator[str]:
        """Each operation once more, and a compaction."""
        states, done = list(fitting), ""
        bare = any(state.bare for state in states)
        for tag, operation in zip("DEF", dict.fromkeys(self.named.values()), strict=False):  # ids are by the tag
            if not operation.again or (operation.name == "restore" and states[0].made):
                continue  # versions of another table are others
            again = play(self.bucket, {tag: _prepared(operation, tag)}, Schedule(()))[tag]
            if again.error is not None and self._is_gone(again.error):
                continue
            if again.error is not None:
                yield f"{operation} once more ends with {again}"
                return
            if not operation.undone(again.value):
                states = [operation.effect(state, tag).seen() for state in states]
            done = operation.name
            if operation.copies is not None:
                copy = rows_of(LakeTable.open(url("copy"), settings=ONE).to_arrow())
                if copy != operation.copies:
                    yield f"{operation} came to {dict(copy)}, and not to {dict(operation.copies)}"
        if states[0].made > fitting[0].made:
            table = LakeTable.open(url(), settings=ONE)
        table.compact()
        rows = rows_of(table.to_arrow())
        if all(state.rows != rows for state in states):
            yield f"after each operation once more the rows are {dict(rows)}, and may be {_shown(states)}"
        if done == "replay" and not states[0].made and not bare:  # it came last, and the copy is of this table
            copy = rows_of(LakeTable.open(url("copy"), settings=ONE).to_arrow())
            if copy != rows:
                yield f"the replay came to {dict(copy)}, and not to {dict(rows)}"

    def _is_refused(self, tag: str) -> bool:
        """Whether a drop was refused, since somebody wants to keep a version."""
        keeps = any(operation.name == "savepoint" for operation in self.named.values())
        return keeps and isinstance(self.outcomes[tag].error, InputError)

    def _dropped(self) -> Iterator[str]:
        """There is no table, or an interrupted drop goes on. Another table can be made in its place."""
        (tag, *_) = (tag for tag, operation in self.named.items() if operation.drops)
        others = [operation.name for operation in self.named.values() if not operation.drops]
        makers = {"create anew", "replace"} & set(others)
        done = self.outcomes[tag].error is None
        if done and "create anew" in makers and self._dropped_the_old(tag) and not _opens():
            yield "the table that was made in its place is gone"
        if done and makers and _opens():
            # It was made after the drop, or while the drop deleted what was there before.
            rows = rows_of(LakeTable.open(url(), settings=ONE).to_arrow())
            if rows not in ({}, self._anew_rows()):
                yield f"the rows of the table that was made in its place are {dict(rows)}"
        elif done and not self.has_late_calls and not makers and _opens():
            yield "the table is there after it was dropped"
        try:
            if _opens():
                table = LakeTable.open(url(), settings=ONE)
                for kept in table.savepoints():
                    table.drop_savepoint(kept.name)
            LakeTable.drop(url())
        except TableDamagedError:
            # The commit of a write that was sent before the drop, and carried out after it. The guarantees tell of it.
            for path in self.bucket.paths("s/t/_delta_log/"):
                self.bucket.remove(path)
        if left := self.bucket.paths("s/t/_delta_log/"):
            yield f"after another drop there are {left[:3]}"
        make().upsert(frame({1: "anew"}))
        rows = rows_of(LakeTable.open(url(), settings=ONE).to_arrow())
        if rows != {1: "anew"}:
            yield f"the rows of a table in its place are {dict(rows)}"
        found = LakeTable.check(url()).findings
        if found:
            yield f"check finds {found[:3]} in a table in its place"

    def _dropped_the_old(self, tag: str) -> bool:
        """Whether a drop ended the table that was there at first, and not one that was made in its place."""
        commits = [touch.paths[0] for touch in self.outcomes[tag].touches if touch.method == "put_if_absent"]
        return any(path.endswith(f"{self.pinned.version + 1:020d}.json") for path in commits)

    def _converted(self) -> Iterator[str]:
        """A table that became a plain one is a table again after a conversion, with the rows that were acknowledged.
        Each operation can be done once more."""
        states = [fold[-1] for fold in self._folds()]
        if problem := _after_conversion(states):
            yield problem
            return
        if self.has_late_calls:
            return  # what is carried out late ends what comes then
        for tag, operation in zip("DEF", dict.fromkeys(self.named.values()), strict=False):
            again = play(self.bucket, {tag: _prepared(operation, tag)}, Schedule(()))[tag]
            if again.error is not None:
                yield f"{operation} once more ends with {again}"
                return
            states = [operation.effect(state, tag) for state in states]
            if problem := _after_conversion(states):
                yield f"after {operation} once more {problem}"
                return

    def _anew_rows(self) -> Rows:
        anew = (operation for operation in self.named.values() if operation.name == "create anew")
        return next((operation.effect(self.world.state, "A").rows for operation in anew), {})

    def _sources(self) -> Iterator[str]:
        """A run completes what was left, and the output has one entity for each value that two datasets share."""
        again = None
        for full in (False, True):
            try:
                MergeSource.open(url(), settings=ONE).run(full=full)
            except LakeMergeError as error:
                again = f"a run with full={full} ends with {type(error).__name__}: {error}"
                if isinstance(error, TableDamagedError) or "full=True" not in str(error):
                    yield again
                    return
            else:
                again = None
                break
        if again is not None:
            yield again
            return
        source = MergeSource.open(url(), settings=ONE)
        groups = {tuple(entity["$ids"]) for entity in source.entities() if not entity.get("_deleted")}
        ends = [_entities_of(self.world, fold[-1]) for fold in self._folds()]
        if groups not in ends:
            yield f"the entities are {sorted(groups)}, and may be {[sorted(end) for end in ends][:4]}"
        found = source.check()
        if not found.ok:
            yield f"check of the source finds {found.findings[:3]}"
        for table in ("a", "b", "t"):
            report = LakeTable.check(url(table))
            if not report.ok:
                yield f"check of {table} finds {report.findings[:3]}"


def _shuffled(parts: Sequence[Sequence[tuple[str, Effect]]]) -> Iterator[list[tuple[str, Effect]]]:
    """All orders of what is in the parts. Each part keeps its own order."""
    left = [part for part in parts if part]
    if not left:
        yield []
    for at, part in enumerate(left):
        for rest in _shuffled([*left[:at], part[1:], *left[at + 1 :]]):
            yield [part[0], *rest]


def _after_conversion(states: Sequence[State]) -> str | None:
    """What is wrong with the table, once it is converted where it is a plain one."""
    try:
        table = LakeTable.open(url(), settings=ONE)
    except NotATableError:
        convert()
        table = LakeTable.open(url(), settings=ONE)
    rows = rows_of(table.to_arrow())
    if all(state.rows != rows for state in states):
        return f"the rows are {dict(rows)}, and may be {_shown(states)}"
    found = LakeTable.check(url()).findings
    return f"check finds {found[:3]}" if found else None


def _opens() -> bool:
    """Whether there is a table that can be opened."""
    try:
        return LakeTable.exists(url())
    except TableDamagedError:
        return False


def _entities_of(world: World, state: State) -> set[tuple[str, ...]]:
    together = {("a2",), ("b2",)} if "apart" in state.notes else {("a2", "b2")}
    groups: set[tuple[str, ...]] = {("a1", "b1"), *together}
    if world.name == "unmerged":
        groups.add(("b3",))
    return groups | {(note,) for note in state.notes - {"apart"}}


def _shown(states: Sequence[State]) -> str:
    return " or ".join(sorted({str(dict(state.rows)) for state in states})[:6])
