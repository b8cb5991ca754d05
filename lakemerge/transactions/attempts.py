"""Running a transaction again after a conflict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lakemerge.errors import CommitConflictError, InputError
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_vacuumed
from lakemerge.layout.view import TableView
from lakemerge.results.writes import UpsertResult
from lakemerge.write.start import repeated
from mergers.wording import argument

__all__ = ["RETRIES", "in_attempts"]

RETRIES: Final = 5
_FIRST_PAUSE_S = 0.05

_Result = TypeVar("_Result")


def in_attempts(
    handle: Handle,
    begin: TableView,
    attempt: Callable[[TableView], _Result],
    retries: int,
    txn: tuple[str, int] | None,
) -> _Result | UpsertResult:
    """The result of ``attempt`` on the newest version. It runs again from the start after a conflict, and only then: an
    outcome that is not known may be a success, which must not be repeated. After a conflict nothing was written, be it
    that others wrote the same keys, or that the table was restored or changed, or that a vacuum took what was read.

    :param txn: it is looked up before each attempt; a transaction that was committed before is not planned again.
    :raises lakemerge.CommitConflictError: it conflicted in each of ``retries + 1`` attempts.
    """
    if retries < 0:
        raise InputError(f"{argument('retries')} must be 0 or more, not {retries}")
    view = begin
    for number in range(retries + 1):
        done = repeated(handle, view, txn)
        if done is not None:
            return done
        try:
            with unless_vacuumed(handle.log, view.snapshot):
                return attempt(view)
        except CommitConflictError as error:
            if number == retries:
                raise CommitConflictError(
                    f"the transaction conflicted with other writers {number + 1} times, and nothing was written: "
                    f"{error.message}. Try again when fewer writers change the same keys.",
                    **{**error.facts, "attempts": number + 1},
                ) from error
            time.sleep(_FIRST_PAUSE_S * 2**number * random.uniform(0.5, 1))  # noqa: S311 - no secret
            view = handle.latest(view)
    raise AssertionError("the last attempt returns or raises")
