"""Finds the Spark session that a table works in. A program may stop its session and start another one meanwhile."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from lakemerge.spark.installed import check_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TableSession"]


class TableSession:
    """The session that a table was opened with, or another running session if that one was stopped. A session that was
    found in this way is not kept: the next call looks again. A pickle holds no session. An unpickled object looks for
    a session in its own process."""

    def __init__(self, given: SparkSession | None, *, unpickled: bool = False) -> None:
        self._given = given
        self._unpickled = unpickled
        """Whether this was unpickled, and the pickled table was opened with a session."""

    def __reduce__(self) -> tuple[object, tuple[None]]:
        return partial(TableSession, unpickled=self._given is not None or self._unpickled), (None,)

    @property
    def is_given(self) -> bool:
        """Whether the table was opened with a session, even if that was stopped."""
        return self._given is not None or self._unpickled

    def of_services(self) -> SparkSession | None:
        """The session that services run on. ``None`` if they run in this process.

        :raises lakemerge.InputError: the table was opened with a session that was stopped, and no other is active.
        """
        if self._given is not None:
            return self.of_dataframes()
        return self.if_active() if self._unpickled else None

    def of_dataframes(self) -> SparkSession:
        """A running session.

        :raises lakemerge.InputError: there is none.
        :raises lakemerge.DependencyMissingError: Spark is not installed, or too old.
        """
        check_installed()
        from lakemerge.spark.sessions import running_session

        return running_session(self._given)

    def if_active(self) -> SparkSession | None:
        """The session that :meth:`of_dataframes` would return, or ``None`` if there is none."""
        if self._given is not None:
            return self.of_dataframes()
        if "pyspark.sql" not in sys.modules:
            return None  # nobody has made a session, so Spark need not be loaded to look for one
        from lakemerge.spark.sessions import active_session

        return active_session()
