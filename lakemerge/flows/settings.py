"""The settings of a flow, checked before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lakemerge._internal.arguments import shown
from lakemerge.errors import InputError, TableDamagedError
from mergers.wording import argument

__all__ = ["DELETED", "END", "HISTORY_PROPERTY", "KIND", "START", "FlowSettings", "HistoryView", "names_of"]

START, END, DELETED = "__START_AT", "__END_AT", "__DELETED"
KIND = "_lm_kind"
"""The kind column of frames that a flow upserts."""
"""The columns for when a row of a history begins and ends, by the events' sequence, and for events that delete."""
HISTORY_PROPERTY = "lakemerge.flow.history"
"""The table property that says how a history is derived from its events, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryView:
    """How a history is derived from events. Kept with the table."""

    keys: tuple[str, ...]
    track: tuple[str, ...] | None
    """The columns whose change begins a new row; ``None``: all except those of ``untracked``."""
    untracked: tuple[str, ...]
    ignore_null_updates: bool

    def to_json(self) -> str:
        body = {
            "keys": list(self.keys),
            "track": None if self.track is None else list(self.track),
            "untracked": list(self.untracked),
            "ignoreNullUpdates": self.ignore_null_updates,
        }
        return orjson.dumps(body).decode()

    @staticmethod
    def of(text: str) -> HistoryView:
        """Raises :class:`TableDamagedError`."""
        try:
            body = orjson.loads(text)
            return HistoryView(
                keys=tuple(body["keys"]),
                track=None if body["track"] is None else tuple(body["track"]),
                untracked=tuple(body["untracked"]),
                ignore_null_updates=bool(body["ignoreNullUpdates"]),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"table property {HISTORY_PROPERTY!r} is damaged: {error!r}") from error

    def same_as(self, other: HistoryView) -> bool:
        """Whether both derive the same rows: columns may be spelled in another case, and named in another order."""
        return self._meaning() == other._meaning()

    def _meaning(self) -> tuple[object, ...]:
        track = None if self.track is None else {name.lower() for name in self.track}
        untracked = {name.lower() for name in self.untracked}
        return [name.lower() for name in self.keys], track, untracked, self.ignore_null_updates

    def tracks(self, column: str) -> bool:
        lower = column.lower()
        if self.track is not None:
            return lower in {name.lower() for name in self.track}
        return lower not in {name.lower() for name in self.untracked}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """The arguments of :func:`lakemerge.flows.auto_cdc` that are not data."""

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    deletes: Any
    """A condition: text, or for Spark a Column."""
    truncates: Any
    ignore_null_updates: bool
    only: tuple[str, ...] | None
    left_out: tuple[str, ...]
    scd_type: int
    view: HistoryView

    @staticmethod
    def checked(
        *,
        keys: object,
        sequence_by: object,
        deletes: object,
        truncates: object,
        ignore_null_updates: bool,
        column_list: object,
        except_column_list: object,
        scd_type: object,
        track: object,
        untracked: object,
    ) -> FlowSettings:
        """Raises :class:`InputError` with everything that is wrong."""
        problems: list[str] = []
        key, sequence = names_of(keys, "keys", problems), names_of(sequence_by, "sequence_by", problems)
        kind = {"1": 1, "2": 2}.get(shown(scd_type).strip("'"), 0)
        if not key:
            problems.append(f"{argument('keys')} must name the columns that identify a row")
        if not sequence:
            problems.append(f"{argument('sequence_by')} must name the column that orders the events")
        if not kind:
            problems.append(f"{argument('stored_as_scd_type')} must be 1 or 2, not {shown(scd_type)}")
        if column_list is not None and except_column_list is not None:
            problems.append(f"give {argument('column_list')} or {argument('except_column_list')}, not both")
        if kind == 1 and (track is not None or untracked is not None):
            problems.append("columns can be tracked only in a history, which is SCD type 2")
        if track is not None and untracked is not None:
            problems.append(
                f"give {argument('track_history_column_list')} or "
                f"{argument('track_history_except_column_list')}, not both"
            )
        if kind == 2 and truncates is not None:
            problems.append("a history cannot be truncated: truncates need SCD type 1")
        if (kind == 2 or truncates is not None) and len(sequence) > 1:
            problems.append("a history, and truncates, need one sequence column")
        only = None if column_list is None else names_of(column_list, "column_list", problems)
        tracked = None if track is None else names_of(track, "track_history_column_list", problems)
        left_out = names_of(except_column_list, "except_column_list", problems)
        free = names_of(untracked, "track_history_except_column_list", problems)
        if problems:
            raise InputError("the flow cannot be run: " + "; ".join(problems), problems=tuple(problems))
        return FlowSettings(
            keys=key,
            sequence_by=sequence,
            deletes=deletes,
            truncates=truncates,
            ignore_null_updates=ignore_null_updates,
            only=only,
            left_out=left_out,
            scd_type=kind,
            view=HistoryView(keys=key, track=tracked, untracked=free, ignore_null_updates=ignore_null_updates),
        )

    def columns(self, given: Sequence[str]) -> list[str]:
        """The source's columns that the target gets, as the source spells them. Raises :class:`InputError`."""
        known = {name.lower(): name for name in given}
        named = (*self.keys, *self.sequence_by, *(self.only or ()), *self.left_out)
        if unknown := [name for name in named if name.lower() not in known]:
            raise InputError(f"the source has no column(s) {', '.join(map(repr, unknown))}; it has {', '.join(given)}")
        if taken := [name for name in given if name.upper() in (START, END, DELETED)]:
            raise InputError(
                f"the source has column(s) {', '.join(taken)}, which are reserved for a history; rename them"
            )
        lower = [name.lower() for name in given]
        if twice := sorted({name for name in lower if lower.count(name) > 1}):
            raise InputError(f"the source has column(s) {', '.join(twice)} more than once")
        chosen = {name.lower() for name in (given if self.only is None else self.only)}
        chosen -= {name.lower() for name in self.left_out}
        chosen |= {name.lower() for name in self.keys}
        if self.scd_type == 1:
            chosen |= {name.lower() for name in self.sequence_by}
        return [name for name in given if name.lower() in chosen]


def names_of(given: object, what: str, problems: list[str]) -> tuple[str, ...]:
    """One or several column names. A Spark Column that only names a column is taken, too."""
    if given is None:
        return ()
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    names = [_name(one) for one in several]
    if None in names:
        problems.append(f"{argument(what)} must be a column name or a list of them, not {shown(given)}")
    return tuple(name for name in names if name is not None)


def _name(one: object) -> str | None:
    if isinstance(one, str):
        return one or None
    text = shown(one)
    return text[len("Column<'") : -len("'>")] if text.startswith("Column<'") and text.endswith("'>") else None
