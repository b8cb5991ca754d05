"""Checks of a merger before a table names it: its options come back, and its methods give what the contract says.

They run when a table is created or altered, so that a mistake in a class is told there, and not by the first read.
Source: docs/guides/user-mergers.md.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from mergers.contract import Merger, TableShape, is_builtin
from mergers.errors import LakeMergeError, MergerConfigurationError, MergerContractError
from mergers.interrupts import is_interrupt
from mergers.laws import Laws
from mergers.traits import Traits

__all__ = ["probed", "restored"]


def restored(merger: Merger, shape: TableShape) -> Merger:
    """The merger as a table gives it back: made anew from its options.

    Raises :class:`MergerConfigurationError` if something that the instance was made with is not among its options.
    """
    options = _options(merger)
    again = type(merger).from_options(options, shape)
    lost = [] if is_builtin(merger) else sorted(_lost(merger, again))
    if lost or options != _options(again):
        what = ", ".join(lost) or "its options"
        raise MergerConfigurationError(
            f"a table keeps options of {merger.name!r}, and this instance would come back from it with another "
            f"{what}: make options fields of a frozen dataclass (@dataclass(frozen=True), `{lost[0] if lost else 'x'}: "
            "int = 0`), or let the class define both options() and from_options()",
            merger=merger.name,
            problems=tuple(f"{name} is not kept" for name in lost) or ("the options are not kept",),
        )
    return again


def probed(merger: Merger, shape: TableShape) -> Merger:
    """The merger itself, once its methods were asked about the table.

    Raises :class:`MergerContractError` that names the method that fails, or gives what it may not give.
    """
    if is_builtin(merger):
        return merger
    names = shape.schema.names
    for full in (True, False):
        _ask(merger, "laws", functools.partial(merger.laws, shape, full_frames=full), Laws)
    _ask(merger, "traits", lambda: merger.traits(shape), Traits)
    nothing: list[str] = []
    for columns in (names, nothing):
        needed = _ask(merger, "needs", functools.partial(merger.needs, shape, columns), frozenset)
        if unknown := sorted(str(name) for name in needed if name not in names):
            raise _broken(merger, f"needs() names {', '.join(unknown)}, which the table does not have")
        if missing := sorted(name for name in columns if name not in needed):
            raise _broken(merger, f"needs() leaves out {', '.join(missing)}, which it was asked for")
    for name in ("delete_marks", "bulk_load_vetoes"):
        marks = _ask(merger, name, functools.partial(getattr(merger, name), shape), Mapping)
        for column, values in marks.items():
            if column not in names or not isinstance(values, pa.Array):
                raise _broken(merger, f"{name}() must give an Arrow array for columns of the table, not {marks!r}")
    return merger


def _ask(merger: Merger, method: str, call: Callable[[], Any], kind: type[Any]) -> Any:
    try:
        answer = call()
    except LakeMergeError:
        raise
    except Exception as error:
        if is_interrupt(error):
            raise
        raise _broken(merger, f"{method}() raised {error!r}") from error
    if not isinstance(answer, kind):
        raise _broken(merger, f"{method}() must return a {kind.__name__}, not {answer!r}")
    return answer


def _broken(merger: Merger, problem: str) -> MergerContractError:
    return MergerContractError(f"merger {merger.name!r}: {problem}", merger=merger.name, problems=(problem,))


def _options(merger: Merger) -> dict[str, object]:
    """The options as a table keeps them."""
    given = _ask(merger, "options", merger.options, Mapping)
    try:
        kept: dict[str, object] = json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _broken(merger, f"options() must give values of JSON: {error}") from error
    return kept


def _lost(merger: Merger, again: Merger) -> Iterable[str]:
    """Attributes, other than options, in which an instance differs from one that was made of its options."""
    own: Any = type(merger)
    options = {field.name for field in dataclasses.fields(own) if field.init} if dataclasses.is_dataclass(own) else ()
    before, after = _attributes(merger), _attributes(again)
    for name in before.keys() | after.keys():
        cached = isinstance(getattr(own, name, None), functools.cached_property)
        if not cached and name not in options and not _same(before.get(name), after.get(name)):
            yield name


def _attributes(merger: Merger) -> dict[str, object]:
    found: dict[str, object] = dict(getattr(merger, "__dict__", {}))
    for part in type(merger).__mro__:
        slots = vars(part).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(merger, name) and name not in ("__dict__", "__weakref__"):
                found[name] = getattr(merger, name)
    return found


def _same(one: object, other: object) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception as error:
        if is_interrupt(error):
            raise
        return False
