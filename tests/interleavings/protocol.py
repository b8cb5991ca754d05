"""A model of what the log's protocol rests on, small enough to go through all of its states.

It knows commits (put-if-absent whose answers get lost, or which are carried out late), vacuum's fence, checkpoints,
compaction, log compaction, re-creation and the footprints of transactions, and nothing else: no bytes, no Parquet, no
keys. :func:`check` visits every state that a cast of processes can reach. Each rule can be left out, which shows what
it is for: :data:`RULES` says where the product keeps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["CASTS", "RULES", "Found", "check"]

RULES: Final[Mapping[str, str]] = {
    "mark": "files go only if no commit was sent, or each version tried is another's: lakemerge/write/discard.py",
    "read back": "an answer that is not success decides nothing: lakemerge/delta/commit.py, land",
    "fence": "what began below a vacuum's fence does not land: lakemerge/commits/base.py, check_same_meaning",
    "kept": "vacuum keeps what commits up to its fence refer to: compaction/vacuum.py, _came_back",
    "own table": "nothing lands in another table's log: lakemerge/delta/identity.py, lakemerge/commits/base.py",
    "uncompacted": "a compaction replaces what it read: lakemerge/commits/compaction.py, _check_uncompacted",
    "watermark": "a base file says what it holds: lakemerge/write/base_file.py, merged_through",
    "own versions": "a consolidated log keeps the version of each record: compaction/logs/packing.py",
    "footprint": "a transaction lands only if nobody wrote what it read: lakemerge/commits/footprint.py",
    "digest": "a checkpoint counts for its own commit alone: lakemerge/delta/log_replay.py, read_accepted",
}

Record = tuple[int, str]
"""The version of a record, and its name. Version -1 is that of its commit."""


class Log(NamedTuple):
    file: str
    records: frozenset[Record]


class Base(NamedTuple):
    file: str
    through: int
    names: frozenset[str]


class Commit(NamedTuple):
    by: str
    table: int
    puts: Log | None = None
    drops: frozenset[str] = frozenset()
    base: Base | None = None
    counter: int | None = None
    fence: int = 0


class View(NamedTuple):
    """What a version holds."""

    logs: frozenset[Log]
    base: Base | None
    counter: int
    fence: int

    @property
    def files(self) -> frozenset[str]:
        return frozenset(log.file for log in self.logs) | (frozenset() if self.base is None else {self.base.file})

    @property
    def names(self) -> list[str]:
        """The records, each as often as it counts."""
        through = -1 if self.base is None else self.base.through
        live = [name for log in self.logs for version, name in log.records if version > through]
        return sorted([*live, *(() if self.base is None else self.base.names)])


EMPTY: Final = View(frozenset(), None, 0, 0)


def after(view: View, commit: Commit, version: int) -> View:
    logs = frozenset(log for log in view.logs if log.file not in commit.drops)
    if commit.puts is not None:
        records = frozenset((version if own < 0 else own, name) for own, name in commit.puts.records)
        logs |= {Log(commit.puts.file, records)}
    return View(
        logs,
        view.base if commit.base is None else commit.base,
        view.counter if commit.counter is None else commit.counter,
        max(view.fence, commit.fence),
    )


@lru_cache(maxsize=1 << 16)
def view_of(log: tuple[Commit, ...]) -> View:
    return EMPTY if not log else after(view_of(log[:-1]), log[-1], len(log) - 1)


class Process(NamedTuple):
    name: str
    role: str
    at: str = "start"
    begin: int = 0
    table: int = 0
    read: View = EMPTY
    file: str = ""
    sent: bool = False
    commit: Commit | None = None
    version: int = 0
    losses: int = 1
    """How many answers it still loses."""
    dead: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class State:
    table: int
    log: tuple[Commit, ...]
    files: tuple[tuple[str, int], ...]
    """Data files, and the version at which their write began."""
    processes: tuple[Process, ...]
    late: frozenset[tuple[int, Commit]] = frozenset()
    """Requests that may yet be carried out."""
    checkpoint: tuple[int, Commit, View] | None = None
    late_checkpoint: tuple[int, Commit, View] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a check came to."""

    states: int
    problem: str | None
    trace: tuple[str, ...]


WRITER, TRANSACTION, VACUUM, COMPACTION = "writer", "transaction", "vacuum", "compaction"
PACKER, CHECKPOINT, RECREATION = "log compaction", "checkpoint", "re-creation"

CASTS: Final[Mapping[str, Sequence[str]]] = {
    "two writers and a vacuum": (WRITER, WRITER, VACUUM),
    "a writer and two compactions": (WRITER, COMPACTION, COMPACTION),
    "a writer, a compaction and a log compaction": (WRITER, COMPACTION, PACKER),
    "a compaction, a log compaction and a vacuum": (COMPACTION, PACKER, VACUUM),
    "two transactions and a vacuum": (TRANSACTION, TRANSACTION, VACUUM),
    "a writer, a checkpoint and a re-creation": (WRITER, CHECKPOINT, RECREATION),
    "a writer, a vacuum and a re-creation": (WRITER, VACUUM, RECREATION),
}


def beginning(cast: Sequence[str]) -> State:
    """A table with two logs, whose writers are done."""
    log = (
        Commit("create", 0),
        Commit("one", 0, puts=Log("one", frozenset({(-1, "one")}))),
        Commit("two", 0, puts=Log("two", frozenset({(-1, "two")}))),
    )
    processes = tuple(
        Process(f"{role} {number}", role, losses=int(number < 3)) for number, role in enumerate(cast, start=1)
    )
    return State(0, log, (("one", 0), ("two", 1)), processes)


def check(cast: Sequence[str], *, without: str | None = None) -> Found:
    """Visit all states; stop at the first in which something is wrong, which is one that takes the fewest steps."""
    first = beginning(cast)
    came: dict[State, tuple[State, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        problem = wrong(state, without)
        if problem is not None:
            return Found(len(came), problem, _trace(came, state))
        for step, following in steps(state, without):
            if following not in came:
                came[following] = (state, step)
                waiting.append(following)
    return Found(len(came), None, ())


def _trace(came: Mapping[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    told: list[str] = []
    while (before := came[state]) is not None:
        state, step = before
        told.append(step)
    return tuple(reversed(told))


def wrong(state: State, without: str | None) -> str | None:
    view = view_of(state.log)
    present = {file for file, _ in state.files}
    if not view.files <= present:
        return f"the table names files that are gone: {sorted(view.files - present)}"
    if any(commit.table != state.table for commit in state.log):
        return "a commit of another table landed"
    if len(set(view.names)) < len(view.names):
        return f"a record counts twice: {view.names}"
    own = [process for process in state.processes if process.table == state.table]
    landed = {commit.by for commit in state.log}
    for process in own:
        if process.at == "done" and process.role == WRITER and process.name not in view.names:
            return f"the record of {process.name}, which was acknowledged, is lost"
        if process.at == "failed" and process.name in landed:
            return f"{process.name} failed, and landed"
    if state.table == 0 and not {"one", "two"} <= set(view.names):
        return f"a record of the beginning is lost: there are {view.names}"
    added = sum(commit.counter is not None for commit in state.log)
    if view.counter != added:
        return f"{added} transactions landed, and the counter is {view.counter}"
    if _through_checkpoint(state, without) != view:
        return "a reader that begins with the checkpoint sees another table"
    return None


def _through_checkpoint(state: State, without: str | None) -> View:
    if state.checkpoint is None:
        return view_of(state.log)
    version, stands_for, view = state.checkpoint
    if version >= len(state.log) or (without != "digest" and state.log[version] != stands_for):
        return view_of(state.log)
    for at in range(version + 1, len(state.log)):
        view = after(view, state.log[at], at)
    return view


def steps(state: State, without: str | None) -> Iterator[tuple[str, State]]:
    for version, commit in state.late:
        left = replace(state, late=state.late - {(version, commit)})
        lands = version == len(state.log)
        yield (
            f"the store carries out {commit.by}'s late put of version {version}: {'done' if lands else 'refused'}",
            replace(left, log=(*state.log, commit)) if lands else left,
        )
    if state.late_checkpoint is not None:
        yield (
            "the store carries out a late checkpoint",
            replace(state, checkpoint=state.late_checkpoint, late_checkpoint=None),
        )
    for number, process in enumerate(state.processes):
        for step, changed, now in _steps_of(state, process, without):
            processes = (*state.processes[:number], changed, *state.processes[number + 1 :])
            yield f"{process.name} {step}", replace(now, processes=processes)


def _steps_of(state: State, process: Process, without: str | None) -> Iterator[tuple[str, Process, State]]:
    if process.at == "start":
        yield from _begun(state, process)
    elif process.at == "try":
        yield _tried(state, process, without)
    elif process.at == "put":
        yield from _put(state, process)
    elif process.at == "look":
        yield _looked(state, process, without)
    elif process.at == "delete":
        dead = process.dead - (frozenset() if without == "kept" else _referred(state, process))
        files = tuple(file for file in state.files if file[0] not in dead)
        yield f"deletes {sorted(dead)}", process._replace(at="done"), replace(state, files=files)
    elif process.at == "fail":
        files = state.files
        if not process.sent or without == "mark":
            files = tuple(file for file in state.files if file[0] != process.file)
        yield "fails", process._replace(at="failed"), replace(state, files=files)


def _referred(state: State, process: Process) -> frozenset[str]:
    """The files that commits name from the version that a vacuum read to its fence, if the log is still its own."""
    commits = state.log[process.begin + 1 : process.version] if state.table == process.table else ()
    named = [(commit.puts, commit.base) for commit in commits]
    return frozenset(one.file for both in named for one in both if one is not None)


def _begun(state: State, process: Process) -> Iterator[tuple[str, Process, State]]:
    """The process reads the latest version and writes its file."""
    tip, view = len(state.log) - 1, view_of(state.log)
    begun = process._replace(at="try", begin=tip, table=state.table, read=view)
    if process.role == RECREATION:
        fresh = tuple(Commit(f"new {number}", state.table + 1) for number in range(8))
        ended = process._replace(at="done", table=state.table + 1)
        yield (
            "removes the table and makes another",
            ended,
            replace(state, table=state.table + 1, log=fresh, files=(), checkpoint=None),
        )
    elif process.role == CHECKPOINT:
        made = (tip, state.log[tip], view)
        ended = begun._replace(at="done")
        yield f"writes the checkpoint of version {tip}", ended, replace(state, checkpoint=made)
        yield f"writes the checkpoint of version {tip}, late", ended, replace(state, late_checkpoint=made)
    elif process.role == VACUUM:
        dead = frozenset(file for file, begin in state.files if begin < tip and file not in view.files)
        yield f"lists {sorted(dead)}", begun._replace(dead=dead), state
    elif process.role == TRANSACTION:
        yield "reads", begun, state
    elif process.role in (COMPACTION, PACKER) and not view.logs:
        yield "has nothing to do", begun._replace(at="done"), state
    else:
        written = begun._replace(file=process.name)
        yield f"writes a file, from version {tip}", written, replace(state, files=(*state.files, (process.name, tip)))


def _tried(state: State, process: Process, without: str | None) -> tuple[str, Process, State]:
    """The process looks at the latest version, and says what its commit would be."""
    tip = view_of(state.log)
    if without != "own table" and state.table != process.table:
        return "finds another table", process._replace(at="fail"), state
    if without != "fence" and process.role != VACUUM and tip.fence > process.begin:
        return "finds a fence", process._replace(at="fail"), state
    commit = _commit_of(process, tip, state, without)
    if commit is None:
        return "finds a conflict", process._replace(at="fail"), state
    return (
        f"prepares version {len(state.log)}",
        process._replace(at="put", commit=commit, version=len(state.log)),
        state,
    )


def _commit_of(process: Process, tip: View, state: State, without: str | None) -> Commit | None:
    read, name, table = process.read, process.name, process.table
    if process.role == WRITER:
        return Commit(name, table, puts=Log(name, frozenset({(-1, name)})))
    if process.role == VACUUM:
        return Commit(name, table, fence=process.begin)
    if process.role == TRANSACTION:
        others = state.log[process.begin + 1 :]
        if without != "footprint" and any(commit.counter is not None for commit in others):
            return None
        return Commit(name, table, counter=read.counter + 1)
    if process.role == COMPACTION:
        if without != "uncompacted" and tip.base != read.base:
            return None
        through = process.begin + (without == "watermark")
        dropped = frozenset(log.file for log in read.logs)
        dead = frozenset(log.file for log in tip.logs if all(version <= through for version, _ in log.records))
        return Commit(name, table, drops=dropped | dead, base=Base(name, through, frozenset(read.names)))
    if not read.logs <= tip.logs:
        return None
    records = frozenset(record for log in read.logs for record in log.records)
    if without == "own versions":
        records = frozenset((-1, named) for _, named in records)
    return Commit(name, table, puts=Log(name, records), drops=frozenset(log.file for log in read.logs))


def _put(state: State, process: Process) -> Iterator[tuple[str, Process, State]]:
    """The request is carried out and answered, or carried out without an answer, or neither until later."""
    assert process.commit is not None
    sent = process._replace(sent=True)
    lands = process.version == len(state.log)
    done = replace(state, log=(*state.log, process.commit)) if lands else state
    ended = sent._replace(at="delete" if process.role == VACUUM else "done")
    yield f"puts version {process.version}", ended if lands else sent._replace(at="look"), done
    if process.losses:
        unsure = sent._replace(at="look", losses=process.losses - 1)
        yield f"puts version {process.version}, and gets no answer", unsure, done
        late = replace(state, late=state.late | {(process.version, process.commit)})
        yield f"puts version {process.version}, late, and gets no answer", unsure, late


def _looked(state: State, process: Process, without: str | None) -> tuple[str, Process, State]:
    """After any answer but success the version is read back."""
    if without == "read back":
        return "takes it for lost", process._replace(at="fail", sent=False), state
    if process.version >= len(state.log):
        if process.losses:
            return "finds nothing, and tries again", process._replace(at="put"), state
        return "finds nothing, and gives up", process._replace(at="fail" if without == "mark" else "unknown"), state
    if state.log[process.version] == process.commit:
        return "finds its own", process._replace(at="delete" if process.role == VACUUM else "done"), state
    return "finds another's", process._replace(at="try", sent=False), state
