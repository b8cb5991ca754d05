"""Plays the conformance cases on an engine, of which it knows only ``create``, ``write``, ``compact`` and ``read``.

It needs nothing but Python and the cases beside it, so it may be copied. Source: docs/guides/conformance.md.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

__all__ = ["CASES", "MODES", "Case", "Engine", "Failure", "Mode", "Report", "Table", "load_cases", "run"]

CASES = Path(__file__).with_name("cases")
"""The folder of the cases, which are JSON. ``mergers.json`` beside it has the UUID of each merger."""
_PLAYED = frozenset({"write", "columns", "error", "expect", "filter", "as_of", "compact"})


class Table(Protocol):
    """A table of the engine under test."""

    def write(self, columns: Sequence[str], kinds: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """One commit. ``kinds`` has a row kind for each row; values are as the cases have them."""

    def compact(self) -> None: ...

    def read(self) -> Sequence[Sequence[Any]]:
        """All rows, their values in the order of the schema, as the cases have them or as Python has them."""


class Engine(Protocol):
    """The engine under test. What it refuses, it refuses by an exception."""

    def create(self, definition: Mapping[str, Any]) -> Table:
        """A new table: ``schema`` and its ``columns`` as pairs of name and type, ``key``, ``ordering``, ``merger``,
        ``merger_id``, ``options``, ``partition_by``."""


@dataclass(frozen=True)
class Case:
    """A table and its history."""

    name: str
    table: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    create_error: bool
    needs: frozenset[str]
    """What its steps need beside the four calls, such as ``update`` or ``add_columns``. Such a case is not played."""


@dataclass(frozen=True)
class Mode:
    """How the work is done. It must not show in the rows."""

    name: str
    compact: str = "case"
    """``case``, ``never``, ``always`` (after each write) or ``random``."""
    batches: str = "case"
    """``case``, ``rows`` (each row is a commit) or ``joined`` (neighbours with the same columns are one commit)."""


MODES = (
    Mode("as written"),
    Mode("never compacted", compact="never"),
    Mode("compacted after each write", compact="always"),
    Mode("rows alone, compacted at random", compact="random", batches="rows"),
    Mode("joined, never compacted", compact="never", batches="joined"),
)


@dataclass(frozen=True)
class Failure:
    """Where an engine's rows are not those of a case."""

    case: str
    mode: str
    step: int
    problem: str


@dataclass(frozen=True)
class Report:
    """What was played."""

    played: int
    left_out: int
    failures: tuple[Failure, ...]


def load_cases(mergers: Collection[str | None] | None = None) -> list[Case]:
    """The cases of some mergers, by name; ``None`` is the default merger. Without ``mergers``, all cases."""
    ids, found = json.loads(CASES.with_name("mergers.json").read_text()), []
    for path in sorted(CASES.glob("*.json")):
        for raw in json.loads(path.read_text()):
            name = raw["table"].get("merger")
            if mergers is None or name in mergers:
                known = name or ("event-time" if raw["table"]["ordering"] else "commit-time")
                table = {"partition_by": [], **raw["table"], "merger": name, "merger_id": ids.get(known)}
                table["columns"] = _fields(table["schema"])
                steps = raw.get("steps", [])
                needs = {each for step in steps for each in step} - _PLAYED
                needs |= {"class"} if known.startswith("custom:") else set()
                wrong = raw.get("create_error", False)
                found.append(Case(f"{path.stem}/{raw['name']}", table, steps, wrong, frozenset(needs)))
    return found


def run(engine: Engine, cases: Sequence[Case], modes: Sequence[Mode] = MODES) -> Report:
    """Play each case in each mode."""
    mine = [case for case in cases if not case.needs]
    tries = [(case, mode) for case in mine for mode in (modes[:1] if case.create_error else modes)]
    failures = [failure for case, mode in tries for failure in _played(engine, case, mode)]
    return Report(len(tries), len(cases) - len(mine), tuple(failures))


def _played(engine: Engine, case: Case, mode: Mode) -> Iterator[Failure]:
    step = -1
    try:
        table = engine.create(case.table)
    except Exception as error:  # noqa: BLE001 - the engine's own
        if not case.create_error:
            yield Failure(case.name, mode.name, step, f"create raised {error!r}")
        return
    if case.create_error:
        yield Failure(case.name, mode.name, step, "create must be refused")
        return
    fields = case.table["columns"]
    names = [name for name, _ in fields]
    for step, action in enumerate(_steps(case, mode)):
        try:
            if "write" in action:
                columns = action.get("columns", names)
                problem = _written(table, columns, action["write"], action.get("error"))
            elif "compact" in action:
                table.compact()
                problem = None
            else:
                problem = _compared(table.read(), action, fields)
        except Exception as error:  # noqa: BLE001 - the engine's own
            problem = f"raised {error!r}"
        if problem is not None:
            yield Failure(case.name, mode.name, step, f"{dict(action)}: {problem}")
            return


def _steps(case: Case, mode: Mode) -> Iterator[Mapping[str, Any]]:
    rng, steps = random.Random(case.name), list[Mapping[str, Any]]()  # noqa: S311 - nothing is secret
    for step in case.steps:
        last = steps[-1] if steps else {}
        plain = "write" in step and "error" not in step
        if "filter" in step or "as_of" in step or ("compact" in step and mode.compact != "case"):
            continue  # the four calls know no filter and no version
        if plain and mode.batches == "rows":
            steps += [{**step, "write": [row]} for row in step["write"]]
        elif plain and mode.batches == "joined" and "write" in last and "error" not in last and _alike(step, last):
            steps[-1] = {**last, "write": [*last["write"], *step["write"]]}
        else:
            steps.append(step)
    for step in steps:
        yield step
        chosen = mode.compact == "always" or (mode.compact == "random" and rng.random() < 0.5)
        if chosen and "write" in step and step.get("error") != "write-or-read":
            yield {"compact": True}


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.get("columns") == other.get("columns")


def _written(table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]], error: str | None) -> str | None:
    before = sorted(map(repr, table.read())) if error == "write" else None
    try:
        table.write(columns, [row[0] for row in rows], [row[1:] for row in rows])
        if error == "write-or-read":
            table.read()
    except Exception:
        if error is None:
            raise
        return None if before is None or before == sorted(map(repr, table.read())) else "a refused write left a trace"
    return None if error is None else "must be refused"


def _compared(rows: Sequence[Sequence[Any]], step: Mapping[str, Any], fields: Sequence[tuple[str, str]]) -> str | None:
    wanted = step.get("columns", [name for name, _ in fields])
    places = [[name for name, _ in fields].index(name) for name in wanted]
    kinds = [fields[place][1] for place in places]
    found = Counter(repr([*map(_plain, (row[place] for place in places), kinds)]) for row in rows)
    right = Counter(repr([*map(_plain, row, kinds)]) for row in step["expect"])
    return None if found == right else f"missing {[*(right - found)]}, too much {[*(found - right)]}"


def _plain(value: Any, kind: str) -> Any:
    """A value in the one form in which values of a type are compared."""
    head, _, inner = kind.partition("<")
    parts = _split(inner[:-1])
    if value is None:
        return None
    if head == "ARRAY":
        return [_plain(each, parts[0]) for each in value]
    if head == "STRUCT":
        given = value.values() if isinstance(value, Mapping) else value
        return [_plain(each, part.split(":", 1)[1]) for each, part in zip(given, parts, strict=True)]
    if head == "MAP":
        pairs = value.get("map", value.items()) if isinstance(value, Mapping) else value
        return sorted(([_plain(k, parts[0]), _plain(v, parts[1])] for k, v in pairs), key=repr)
    if head.startswith("DECIMAL"):
        return Decimal(value).normalize()
    if head in ("FLOAT", "DOUBLE"):
        exact = float(value) + 0.0  # -0.0 is 0.0
        return exact if head == "DOUBLE" else struct.unpack("f", struct.pack("f", exact))[0]
    if head == "BINARY":
        return base64.b64decode(value["b64"]) if isinstance(value, Mapping) else bytes(value)
    if head == "TIMESTAMP":
        instant = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
        return instant.astimezone(dt.UTC).isoformat()
    return str(value)


def _fields(schema: str) -> list[tuple[str, str]]:
    pairs = [part.strip().split(None, 1) for part in _split(schema)]
    return [(name, re.sub(r"\s+NOT\s+NULL$", "", kind)) for name, kind in pairs]


def _split(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        parts = [*parts, ""] if letter == "," and not depth else [*parts[:-1], parts[-1] + letter]
    return [part.strip() for part in parts]
