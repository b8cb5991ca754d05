"""What rules do with a record, in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from mergers.builtin.rules.checked import Rule, Rules
from mergers.builtin.rules.computing import compute, truths
from mergers.contract import Bools, TableShape

__all__ = ["described"]

_LONGEST = 60


def described(
    rules: Rules, shape: TableShape, before: Mapping[str, object] | None, record: Mapping[str, object]
) -> dict[str, str]:
    """See :meth:`mergers.Merger.describe_step`, for an upsert."""
    if before is None:
        removes = rules.remove_when is not None and _is_true(rules.remove_when, shape, None, record)
        return {"": f"remove_when is true: {rules.remove_when.text}"} if removes and rules.remove_when else {}
    for name, rule in (("ignore_when", rules.ignore_when), ("remove_when", rules.remove_when)):
        if rule is not None and _is_asked(rule, record) and _is_true(rule, shape, before, record):
            return {"": f"{name} is true: {rule.text}"}
    return {
        column: f"{column} is {rule.text}, with {_values(rule, before, record)}"
        for column, rule in rules.columns.items()
        if _is_asked(rule, record) and rule.tree != ["new", column]
    }


def _is_asked(rule: Rule, record: Mapping[str, object]) -> bool:
    return rule.always or not rule.new.isdisjoint(record)


def _is_true(rule: Rule, shape: TableShape, before: Mapping[str, object] | None, record: Mapping[str, object]) -> bool:
    def values(row: Mapping[str, object], name: str) -> pa.Array:
        return pa.array([row.get(name)], shape.schema.field(name).type)

    row = before or {}

    def is_set(name: str) -> Bools:
        return np.array([name in record])

    try:
        found = compute(
            rule,
            pa.bool_(),
            1,
            old=lambda name: values(row, name),
            new=lambda name: values(record if name in record else row, name),
            is_set=is_set,
            is_first=before is None,
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # there are texts in it for values that Python lacks
        return False
    return bool(truths(found.values)[0])


def _values(rule: Rule, before: Mapping[str, object], record: Mapping[str, object]) -> str:
    told = [f"old.{name} {_shown(before.get(name))}" for name in sorted(rule.old)]
    told += [
        f"new.{name} {_shown(record[name]) if name in record else 'unset'}" for name in sorted(rule.new | rule.asked)
    ]
    return ", ".join(told) or "nothing that it reads"


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"
