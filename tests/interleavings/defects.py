"""Defects that are put into the product for a while, to see that the scheduler finds each of them.

Ten are seeded. The others take back a mending, so that an order of events that once lost a table loses it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

import lakemerge.commits.appends
import lakemerge.commits.base
import lakemerge.commits.compaction
import lakemerge.commits.footprint
import lakemerge.delta.commit
import lakemerge.delta.log
import lakemerge.delta.log_replay
import lakemerge.handle
import lakemerge.layout.travel
import lakemerge.merge_source.state
from lakemerge.cli import service
from lakemerge.delta.transaction import Transaction
from lakemerge.write.base_file import BaseWriteSpec
from tests.interleavings.turns import TurnStore

__all__ = ["DEFECTS", "MENDINGS", "Defect"]


@dataclass(frozen=True, slots=True)
class Defect:
    name: str
    put: Callable[[], AbstractContextManager[object]]
    world: str
    kind: str
    operations: tuple[str, ...]
    """Between which it is looked for, to save time."""

    def __str__(self) -> str:
        return self.name


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of a check."""


def _in(target: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[object]]:
    return lambda: mock.patch.object(target, name, value)


@contextmanager
def _both(*puts: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    if not puts:
        yield
        return
    with puts[0](), _both(*puts[1:]):
        yield


def _merged_too_far() -> AbstractContextManager[object]:
    """A base file says that it holds one more version than it does."""
    real = BaseWriteSpec.of

    def of(*args: Any, **given: Any) -> BaseWriteSpec:
        spec = real(*args, **given)
        return replace(spec, merged_through=spec.merged_through + 1)

    return mock.patch.object(BaseWriteSpec, "of", of)


def _answer_is_no_answer() -> AbstractContextManager[object]:
    """A put without an answer is taken for one that failed, so the write's files are deleted."""
    real = lakemerge.delta.commit._unknown

    def unknown(prepared: Any, transaction: Any, path: str, doubt: Any) -> Exception:
        transaction.lose()
        return real(prepared, transaction, path, doubt)

    return mock.patch.object(lakemerge.delta.commit, "_unknown", unknown)


def _deleted_by_name() -> AbstractContextManager[object]:
    """Listed files are deleted by their names, whoever has these by now."""

    def delete_exact(store: Any, files: Sequence[Any]) -> tuple[Any, ...]:
        store.delete([file.path for file in files])
        return ()

    return mock.patch.object(TurnStore, "delete_exact", delete_exact)


def _of_any_table() -> AbstractContextManager[object]:
    """A checkpoint counts whatever commit it stands for."""
    return mock.patch.object(lakemerge.delta.log_replay, "is_linked", return_value=False)


def _retired_of_none() -> AbstractContextManager[object]:
    """A run that retired no id is not completed."""
    state = lakemerge.merge_source.state
    real = state.RETIRED

    class NoneFirst:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def empty_table(self) -> Any:
            raise ValueError("Must pass at least one table")

    return mock.patch.object(state, "RETIRED", NoneFirst())


SAME_MEANING: Final = "check_same_meaning"

DEFECTS: Final[Sequence[Defect]] = (
    Defect(
        "a compaction does not look whether another was faster",
        _in(lakemerge.commits.compaction, "_check_uncompacted", _nothing),
        "filled",
        "two operations, one switch",
        ("compaction", "minor compaction"),
    ),
    Defect(
        "a base file says that it holds one more version than it does",
        _merged_too_far,
        "filled",
        "two operations, one switch",
        ("compaction", "append"),
    ),
    Defect(
        "a write does not look at the fence of vacuum, restores or changes",
        _in(lakemerge.commits.appends, SAME_MEANING, _nothing),
        "published",
        "two operations, one switch",
        ("append", "upkeep"),
    ),
    Defect(
        "a put without an answer counts as failed",
        _answer_is_no_answer,
        "filled",
        "one operation, one fault",
        ("append",),
    ),
    Defect(
        "a batch of a stream lands twice",
        _in(lakemerge.commits.appends, "already_done", lambda *_: None),
        "filled",
        "two operations, one switch",
        ("batch of a stream", "stream that goes on"),
    ),
    Defect(
        "a transaction does not look at what others wrote",
        _in(lakemerge.commits.footprint.Footprint, "check", _nothing),
        "filled",
        "two operations, one switch",
        ("update_where", "merge"),
    ),
    Defect(
        "a commit that another made is taken for the own one",
        _in(lakemerge.delta.commit, "_is_ours", lambda *_: True),
        "filled",
        "two operations, one switch",
        ("append", "delete_where"),
    ),
    Defect(
        "a checkpoint counts whatever commit it stands for",
        _of_any_table,
        "logged",
        "two operations, one fault",
        ("append", "create anew"),
    ),
    Defect(
        "an object of the old table commits to the new one",
        lambda: _both(
            _in(lakemerge.commits.base, "check_same_table", _nothing),
            _in(lakemerge.handle, "check_same_table", _nothing),
            _in(lakemerge.delta.log, "check_same_table", _nothing),
        ),
        "filled",
        "two operations, one switch",
        ("append", "replace"),
    ),
    Defect(
        "vacuum deletes what came back after it listed",
        lambda: mock.patch("compaction.vacuum._came_back", return_value=set()),
        "logged",
        "two operations, one switch",
        ("vacuum", "restore"),
    ),
)

MENDINGS: Final[Sequence[Defect]] = (
    Defect(
        "files of the log are deleted by their names (a vacuum goes on in a table made anew)",
        _deleted_by_name,
        "logged",
        "two operations, one switch",
        ("vacuum of what is old", "vacuum", "create anew"),
    ),
    Defect(
        "any exception is a failed commit (a time limit costs the files of a commit)",
        _in(Transaction, "may_land", property(lambda _: False)),
        "filled",
        "one operation, an exception at a line",
        ("append",),
    ),
    Defect(
        "maintenance keeps the object of a table that was made anew",
        _in(service, "_there_now", lambda table: table),
        "logged",
        "two operations, one switch",
        ("maintenance that goes on", "create anew"),
    ),
    Defect(
        "a run of a merge source that retired no id is not completed when it was cut short",
        _retired_of_none,
        "unmerged",
        "one operation, one fault",
        ("merge source",),
    ),
    Defect(
        "a run that was cut short calls a vacuumed dataset damaged",
        _in(lakemerge.layout.travel, "_check_not_vacuumed", _nothing),
        "sources",
        "two operations, one fault",
        ("merge source", "upkeep of a dataset"),
    ),
)
