"""Running a transaction again after a conflict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from lakemerge.commits.footprint import RowsChangedError
from lakemerge.errors import CommitConflictError
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView

__all__ = ["RETRIES", "in_attempts"]

RETRIES: Final = 5
_FIRST_PAUSE_S = 0.05

_Result = TypeVar("_Result")


def in_attempts(handle: Handle, begin: TableView, attempt: Callable[[TableView], _Result], retries: int) -> _Result:
    """The result of ``attempt`` on the newest version. It runs again from the start after a conflict, and only then: an
    outcome that is not known may be a success, which must not be repeated.

    :raises lakemerge.CommitConflictError: it conflicted in each of ``retries + 1`` attempts.
    """
    view = begin
    for number in range(retries + 1):
        try:
            return attempt(view)
        except RowsChangedError as error:
            if number == retries:
                raise CommitConflictError(
                    f"the transaction conflicted with other writers {number + 1} times, and nothing was written: "
                    f"{error.message}. Try again when fewer writers change the same keys.",
                    **error.facts,
                ) from error
            time.sleep(_FIRST_PAUSE_S * 2**number * random.uniform(0.5, 1))  # noqa: S311 - no secret
            view = handle.latest(view)
    raise AssertionError("the last attempt returns or raises")
