"""Says in a word and in a sentence what a record did to the row of its key.

The rows before and after come from the merger, record by record. Nothing is merged here.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from lakemerge.python_values import Spelled, arrow_values, decimal_text
from mergers import Merger, TableShape
from mergers.builtin.functions.equal import equality_codes
from mergers.ordering import order_codes
from mergers.restart import RecordKind

__all__ = ["Change", "Verdict", "judged", "shown_value"]

Verdict = Literal["applied", "ignored", "unchanged", "deleted", "retracted", "folded", "expired"]

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A record, and the state of its key before and after it, in values of :func:`python_rows`."""

    merger: Merger
    shape: TableShape
    kind: RecordKind
    values: _Row
    """The columns that the record carries."""
    before: _Row | None
    after: _Row | None
    tombstone_before: _Row | None
    tombstone_after: _Row | None
    ordered_by: str
    """What set the ordering of the state before: ``version 4``, or a file."""

    @property
    def is_upsert(self) -> bool:
        return self.kind in (RecordKind.INSERT, RecordKind.UPDATE_AFTER)

    @property
    def ordering(self) -> tuple[str, ...]:
        return self.shape.ordering if self.merger.traits(self.shape).uses_ordering else ()

    @property
    def has_ordering(self) -> bool:
        return bool(self.ordering) and all(name in self.values for name in self.ordering)

    @property
    def functions(self) -> Mapping[str, str]:
        """Column -> what the merger says that it computes from the record's value and the stored one."""
        return {name: words for name, words in self.described.items() if name}

    @property
    def described(self) -> Mapping[str, str]:
        kind = self.kind.row_kind
        if kind is None:
            return {}
        return self.merger.describe_step(self.shape, before=self.before, record=self.values, kind=kind)


def judged(change: Change) -> tuple[Verdict, str]:
    """The verdict and the sentence, which begins with it."""
    verdict, words = _judged(change)
    remark = change.described.get("") if change.before is not None else None
    return verdict, f"{verdict}: {words}" + (f"; {remark}" if remark else "")


def _judged(change: Change) -> tuple[Verdict, str]:
    if change.kind in (RecordKind.SET, RecordKind.CLEAR):
        return _of_transaction(change)
    if change.before is None and change.after is None:
        return _without_row(change)
    if change.before is None:
        return _new_row(change)
    if change.after is None:
        return "deleted", _deleted(change)
    changed = [name for name in change.shape.values if _differ(change, name)]
    return _changed_row(change, changed) if changed else _same_row(change)


def _of_transaction(change: Change) -> tuple[Verdict, str]:
    """What a transaction says does not depend on what was there, nor on the merger."""
    if change.kind is RecordKind.CLEAR:
        if change.before is None:
            return "unchanged", "a transaction deleted the row, and there was none"
        return "deleted", f"by a transaction; {_deleted(change).removeprefix('the row is gone, and ')}"
    if change.before is None:
        return "applied", "a transaction made the row"
    changed = [name for name in change.shape.values if _differ(change, name)]
    if not changed:
        return "unchanged", "a transaction left the row as it was"
    return "applied", f"a transaction set {_names(changed)}"


def _without_row(change: Change) -> tuple[Verdict, str]:
    was, now = change.tombstone_before, change.tombstone_after
    if now is not None and now != was:
        what = "the delete is remembered, so older records are ignored"
        return "deleted", f"there was no row; {what}"
    if was is not None and now is not None:
        return "ignored", _older(change, was) or f"the key was deleted in {change.ordered_by}"
    if was is not None:
        return "deleted", "there was no row, and the earlier delete is no longer remembered"
    if change.kind is RecordKind.DELETE:
        return "unchanged", "there was no row to delete"
    if change.kind is RecordKind.UPDATE_BEFORE:
        return "ignored", "there was no row from which to take something back"
    return "ignored", f"{change.merger.name} makes no row of it"


def _new_row(change: Change) -> tuple[Verdict, str]:
    if not change.is_upsert:
        return "retracted", f"there was no row; it begins with what is taken back ({_listed(change, change.values)})"
    how = "a new row" if change.tombstone_before is None else "a new row, after a delete"
    unset = [name for name in change.shape.values if name not in change.values]
    kept = f"; {_names(unset)} null, unset" if unset else ""
    return "applied", f"{how}{kept}"


def _deleted(change: Change) -> str:
    why = "" if not change.is_upsert else "the record's values mark it as a delete; "
    if change.tombstone_after is not None:
        names = (*change.shape.ordering, *change.shape.remembers)
        said = _listed(change, {name: change.tombstone_after[name] for name in names})
        return f"{why}the row is gone, and {said or 'its place'} is remembered"
    return f"{why}the row is gone, and the delete is not remembered"


def _changed_row(change: Change, changed: list[str]) -> tuple[Verdict, str]:
    functions = change.functions
    plain = [name for name in changed if name not in change.shape.ordering]
    if not change.is_upsert:
        said = [functions.get(name) or f"{name} is {shown_value((change.after or {})[name])} now" for name in plain]
        return "retracted", "; ".join(said) or "only the ordering changed"
    made = [name for name in plain if name in functions or not _is_own(change, name)]
    taken = [name for name in plain if name not in made]
    said = [functions.get(name) or _made(change, name) for name in made]
    said += [f"set {_names(taken)}"] if taken else []
    said += [] if plain else ["newer, with the values that the row had"]
    unset = [n for n in change.shape.values if n not in change.values and n not in changed]
    said += [f"{_names(unset)} kept, unset"] if unset else []
    return ("folded" if made else "applied"), "; ".join(said)


def _same_row(change: Change) -> tuple[Verdict, str]:
    row, functions = change.before or {}, change.functions
    older = _older(change, row)
    brought = [name for name in change.shape.values if change.values.get(name) is not None]
    unlike = [name for name in brought if name not in change.shape.ordering and not _is_own(change, name)]
    if change.kind is RecordKind.UPDATE_BEFORE and not functions:
        return "ignored", f"{change.merger.name} takes nothing back here"
    if older is not None and not functions:
        return "ignored", older
    if change.is_upsert and not set(unlike) - functions.keys():
        said = "; ".join(functions[name] for name in functions if name in change.values)
        return "unchanged", said or "the row had these values already"
    if change.kind is RecordKind.DELETE:
        return "ignored", older or f"{change.merger.name} does not accept deletes here"
    if not change.is_upsert:
        return "unchanged", "; ".join(functions.values()) or "there was nothing to take back"
    return "ignored", older or f"{change.merger.name} keeps the row as it was"


def _older(change: Change, state: _Row) -> str | None:
    """Why the record loses against a state by ordering, if it is below."""
    if not change.has_ordering:
        return None
    names = change.ordering
    kinds = [change.shape.schema.field(name).type for name in names]
    pairs = [
        arrow_values([change.values[name], state.get(name)], kind) for name, kind in zip(names, kinds, strict=True)
    ]
    own, stored = order_codes(pairs).tolist()
    if own >= stored:
        return None
    said = ", ".join(f"{name} {shown_value(change.values[name])}" for name in names)
    against = ", ".join(shown_value(state.get(name)) for name in names)
    return f"{said} is older than {against} of {change.ordered_by}"


def _made(change: Change, name: str) -> str:
    before, after = (change.before or {}).get(name), (change.after or {}).get(name)
    if name not in change.values:
        return f"{name} is {shown_value(after)} instead of {shown_value(before)}"
    return f"{name} is {shown_value(after)}, of {shown_value(before)} and {shown_value(change.values[name])}"


def _differ(change: Change, name: str) -> bool:
    return not _equal(change, name, change.before, change.after)


def _is_own(change: Change, name: str) -> bool:
    """Whether the row after the record has the record's value."""
    return name in change.values and _equal(change, name, change.values, change.after)


def _equal(change: Change, name: str, left: _Row | None, right: _Row | None) -> bool:
    """Null equals null, and NaN equals NaN."""
    one, other = (left or {}).get(name), (right or {}).get(name)
    if one is None or other is None:
        return one is other
    if one == other:
        return True
    try:
        codes = equality_codes(arrow_values([one, other], change.shape.schema.field(name).type)).tolist()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False  # there are texts in it for what Python lacks, and they differ
    return bool(codes[0] == codes[1])


def _listed(change: Change, values: _Row) -> str:
    told = [name for name in values if name not in change.shape.key]
    return ", ".join(f"{name} {shown_value(values[name])}" for name in told)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def shown_value(value: object) -> str:
    """A value as people write it."""
    if value is None:
        return "null"
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
    if isinstance(value, decimal.Decimal):
        return decimal_text(value)
    text = value if isinstance(value, str) else str(value)
    if isinstance(value, Spelled):
        return text
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"
    return repr(short) if isinstance(value, str) else short


_LONGEST = 60
