"""``expression``: rules in SQL.

The rules themselves are in :mod:`mergers.builtin.rules`, which is loaded when a table has this merger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from mergers.builtin.commit_time import CommitTime
from mergers.builtin.event_time import EventTime
from mergers.builtin.history import Events, replay, upserts_of
from mergers.builtin.options import OptionReader
from mergers.builtin.values import frozen, thawed
from mergers.contract import Bools, Groups, Merged, Merger, RowKind, TableShape
from mergers.laws import Laws
from mergers.traits import Traits

if TYPE_CHECKING:
    from mergers.builtin.rules.checked import Rule, Rules
    from mergers.builtin.rules.lowering import Lowered

__all__ = ["Expression"]

_DEFAULTS = ("newer", "last", "first", "keep")
_OPTIONS: Mapping[str, object] = {
    "columns": {},
    "default": None,
    "first": {},
    "ignore_when": None,
    "remove_when": None,
    "checked": {},
}


@dataclass(frozen=True, slots=True)
class Expression(Merger):
    """Semantics, options and traps: docs/merge-semantics.md, section 5."""

    id = "85c31f6f-2f26-4e2e-9112-513267300a5c"
    name = "expression"

    given: Mapping[str, object] = field(default_factory=dict)
    """The options but ``checked``, with the table's names of columns."""
    checked: Mapping[str, object] = field(default_factory=dict)
    default: str = "last"
    rules: Rules | None = field(default=None, repr=False, compare=False)
    forms: Mapping[str, Lowered] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def known_options(cls) -> Mapping[str, object]:
        return _OPTIONS

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        from mergers.builtin.rules.renaming import renamed_rules

        return renamed_rules(options, names)

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        from mergers.builtin.rules.checked import rules_of
        from mergers.builtin.rules.lowering import lowered

        reader = OptionReader(cls, options, shape)
        columns, first = (_texts(reader, option) for option in ("columns", "first"))
        ignore, remove = (reader.text(option) for option in ("ignore_when", "remove_when"))
        named = reader.text("default")
        if named is not None and named not in _DEFAULTS:
            reader.problems.append(f"default must be one of {', '.join(_DEFAULTS)}, not {named!r}")
        if named == "newer" and not shape.ordering:
            reader.problems.append(
                "default 'newer' needs ordering columns: name those that say which record is newer, or use 'last'"
            )
        kept = thawed(reader.mapping("checked"))
        rules = rules_of(
            shape,
            columns=columns,
            first=first,
            ignore_when=ignore,
            remove_when=remove,
            kept=kept if isinstance(kept, Mapping) else {},
            problems=reader.problems,
        )
        reader.finish()
        given: dict[str, object] = {"columns": columns} if columns else {}
        others = {"default": named, "first": first, "ignore_when": ignore, "remove_when": remove}
        given |= {option: value for option, value in others.items() if value}
        forms = {name: lowered(rule, name, shape.schema) for name, rule in rules.columns.items()}
        known = {name: form for name, form in forms.items() if form is not None}
        default = named or ("newer" if shape.ordering else "last")
        checked = frozen(rules.kept(shape)) if rules.all else {}
        return cls(given, checked if isinstance(checked, Mapping) else {}, default, rules, known)

    def options(self) -> Mapping[str, object]:
        kept = {"checked": thawed(self.checked)} if self.checked else {}
        return {**self.given, **kept}

    def shown_options(self) -> Mapping[str, object]:
        return self.given

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        plain = self._plain(shape)
        return Laws() if plain is None else plain.laws(shape, full_frames=full_frames)

    def combine(self, groups: Groups) -> Bools | None:
        plain = self._plain(groups.shape)
        return None if plain is None else plain.combine(groups)

    def _plain(self, shape: TableShape) -> EventTime | CommitTime | None:
        """The merger that has the same meaning, where there is one."""
        if self._rules.all:
            return None
        if shape.ordering:
            return EventTime() if self.default == "newer" else None
        return CommitTime() if self.default == "last" else None

    @property
    def _rules(self) -> Rules:
        if self.rules is None:
            raise ValueError("an expression is made by from_options")
        return self.rules

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        return self._rules.closure(columns) | self._rules.decisive

    def traits(self, shape: TableShape) -> Traits:
        rules = self._rules
        return Traits(
            lone_upsert_is_row=not rules.first and rules.remove_when is None,
            only_picks=rules.only_picks,
        )

    def may_delete(self, shape: TableShape, columns: Collection[str]) -> bool:
        return self._marking(columns) is not None

    def marks(self, shape: TableShape, rows: pa.RecordBatch) -> Bools | None:
        from mergers.builtin.rules.computing import compute, truths

        rule = self._marking(rows.schema.names)
        if rule is None or any(rows.schema.field(n).type != shape.schema.field(n).type for n in rule.new):
            return None
        count = rows.num_rows
        found = compute(
            rule,
            pa.bool_(),
            count,
            old=rows.column,
            new=rows.column,
            is_set=lambda name: np.full(count, name in rows.schema.names),
            is_first=False,
        )
        return truths(found.values)

    def _marking(self, columns: Collection[str]) -> Rule | None:
        """The condition that removes, if records with these columns decide it alone."""
        rule = self._rules.remove_when
        if rule is None or rule.old or rule.asks_first or not rule.new or not rule.new <= frozenset(columns):
            return None
        return rule

    def describe_step(
        self, shape: TableShape, *, before: Mapping[str, object] | None, record: Mapping[str, object], kind: RowKind
    ) -> Mapping[str, str]:
        from mergers.builtin.rules.words import described

        if kind not in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            return {}
        return described(self._rules, shape, before, record)

    def merge_groups(self, groups: Groups) -> Merged:
        from mergers.builtin.rules.folds import fold_columns
        from mergers.builtin.rules.rounds import judge

        rules, shape = self._rules, groups.shape
        policies = {
            name: "newer" if name in shape.ordering else "keep" if name in shape.key else self.default
            for name in shape.schema.names
        }
        if rules.conditions:
            judged = judge(groups, rules, policies)
            history, setters = judged.history, judged.setters
        else:
            deletes = (groups.kinds == RowKind.DELETE) & ~groups.stored
            placed = groups.has_ordering if shape.ordering else np.zeros_like(deletes)
            history = replay(groups, Events(upserts_of(groups), deletes & placed, deletes & ~placed))
            setters = None
        columns = fold_columns(groups, history, rules, policies, self.forms)
        return Merged(history.status, history.winner, columns, setters)


def _texts(reader: OptionReader, option: str) -> dict[str, str]:
    """Columns and the texts of their rules, with the table's names of columns."""
    shape, found = reader.shape, dict[str, str]()
    names = {name.lower(): name for name in shape.schema.names}
    for given, text in reader.mapping(option).items():
        name = names.get(given.lower())
        if name is None:
            reader.is_column(given, option)
        elif not isinstance(text, str):
            reader.problems.append(f"{option} of column {given!r} must be SQL text, not {text!r}")
        elif name in shape.key or name in shape.ordering:
            what = "key" if name in shape.key else "ordering"
            why = "it stays" if what == "key" else "it becomes the highest of the records"
            reader.problems.append(
                f"{option} names the {what} column {name!r}; it has no rule, since {why}: leave it out"
            )
        elif name in found:
            reader.problems.append(f"{option} names column {name!r} twice")
        else:
            found[name] = text
    return found
