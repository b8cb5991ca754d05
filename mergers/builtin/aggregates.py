"""Which column folds by which function: the options that ``aggregate`` and ``partial-update`` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from mergers.builtin.functions import Function, function_of
from mergers.builtin.options import OptionReader
from mergers.builtin.values import frozen, thawed
from mergers.contract import Kinds, RowKind
from mergers.errors import RecordRefusedError

__all__ = [
    "Choices",
    "check_retraction_kinds",
    "check_values",
    "described",
    "functions_of",
    "irretractable",
    "read_choices",
]

Choices = Mapping[str, object]
"""Column -> the option's entry: a name, or an object of ``function`` and its options."""


def read_choices(reader: OptionReader, columns: Sequence[str], what: str) -> Choices:
    """The option ``aggregates``; ``what`` says which columns may have a function."""
    chosen: dict[str, object] = {}
    for column, choice in reader.mapping("aggregates").items():
        if reader.is_column(column, "aggregates"):
            if column in columns:
                chosen[column] = frozen(choice)
            else:
                reader.problems.append(f"aggregates names column {column!r}, but only {what} can have a function")
    return chosen


def functions_of(
    reader: OptionReader, columns: Iterable[str], choices: Choices, default: object
) -> Mapping[str, Function]:
    """The function of each column. ``default`` is for columns without a choice; ``None`` leaves them out."""
    functions = {}
    for column in columns:
        choice = choices.get(column, default)
        if choice is None:
            continue
        try:
            functions[column] = function_of(thawed(choice), reader.shape.schema.field(column).type)
        except ValueError as error:
            reader.problems.append(f"column {column!r}: {error}")
    return functions


def irretractable(functions: Mapping[str, Function], ignored: Sequence[str]) -> list[str]:
    """The columns whose functions take no retractions, so the table takes none."""
    return [name for name, function in functions.items() if not function.retractable and name not in ignored]


def check_retraction_kinds(functions: Mapping[str, Function], ignored: Sequence[str], kinds: Iterable[RowKind]) -> None:
    """Raise :class:`RecordRefusedError` if ``kinds`` retract and some function cannot."""
    symbols = sorted(kind.symbol for kind in kinds)
    stuck = [f"{column!r} ({functions[column].name})" for column in irretractable(functions, ignored)]
    if symbols and stuck:
        raise RecordRefusedError(
            f"the frame has {', '.join(symbols)}, and nothing can be taken back from {', '.join(stuck)}; leave such "
            "records out, or name the columns in ignore_retract",
            kinds=tuple(symbols),
            columns=tuple(stuck),
        )


def check_values(
    functions: Mapping[str, Function],
    ignored: Sequence[str],
    rows: pa.RecordBatch,
    kinds: Kinds | None,
    retracting: Sequence[RowKind],
) -> None:
    """Raise :class:`RecordRefusedError` for values that a function cannot add or take back."""
    retracts = np.zeros(rows.num_rows, dtype=np.bool_) if kinds is None else np.isin(kinds, list(retracting))
    upserts = np.ones(rows.num_rows, dtype=np.bool_)
    if kinds is not None:
        upserts = (kinds == RowKind.INSERT) | (kinds == RowKind.UPDATE_AFTER)
    for column, function in functions.items():
        if column not in rows.schema.names:
            continue
        values = rows.column(column)
        problem = function.check_additions(values if upserts.all() else values.filter(pa.array(upserts)))
        if problem is None and retracts.any() and column not in ignored:
            problem = function.check_retractions(values.filter(pa.array(retracts)))
        if problem is not None:
            raise RecordRefusedError(f"column {column!r}: {problem}", column=column)


def described(
    functions: Mapping[str, Function],
    ignored: Sequence[str],
    before: Mapping[str, object] | None,
    record: Mapping[str, object],
    kind: RowKind,
) -> Mapping[str, str]:
    """See :meth:`mergers.Merger.describe_step`. Functions that take the record's own value are left out."""
    if before is None:
        return {}
    adds = kind in (RowKind.INSERT, RowKind.UPDATE_AFTER)
    words = {}
    for column, function in functions.items():
        if column not in record or (adds and function.name in _TAKEN) or (not adds and column in ignored):
            continue
        stored, value = _shown(before.get(column)), _shown(record[column])
        sign = "+" if adds else "-"
        if function.name == "sum":
            words[column] = f"{column} is sum {stored} {sign} {value}"
        elif function.name == "count":
            # It counts one for each value, whatever that is.
            words[column] = f"{column} is count {stored} {sign} {int(record[column] is not None)}"
        else:
            words[column] = f"{column} is {function.name} of {stored} {'and' if adds else 'without'} {value}"
    return words


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"


_LONGEST = 60
_TAKEN = ("last_value", "last_non_null_value")
