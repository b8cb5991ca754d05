"""Makes ``format("lakemerge")`` known to Spark sessions, with user mergers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakemerge.errors import InputError
from lakemerge.spark.installed import check_installed, check_writes
from mergers import Merger
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["prepared", "register"]


def register(spark: SparkSession, *, mergers: Sequence[type[Merger]] = ()) -> None:
    """Make ``format("lakemerge")`` known to a session, with merger classes in addition to the installed ones.

    The classes are sent with the job, so they may be defined in a notebook or script. A later call replaces an earlier
    one of the session. In a classic session, reads by the format are as fast as :meth:`lakemerge.LakeTable.to_df` from
    then on: it gets LakeMerge's jar. :class:`lakemerge.LakeTable` needs no such call.

    :raises lakemerge.MergerRegistrationError: an id or a name is malformed or taken.
    """
    check_installed()
    from lakemerge.datasource.source import register_source

    register_source(spark, mergers)


def prepared(spark: SparkSession | None) -> SparkSession | None:
    """A session that a caller gave, made ready for jobs with our Python.

    :raises lakemerge.InputError: it is no session.
    :raises lakemerge.DependencyMissingError: Spark is too old.
    """
    if spark is None:
        return None
    if not any(kind.__name__ == "SparkSession" for kind in type(spark).__mro__):
        raise InputError(
            f"{argument('spark', '...')} must be a SparkSession, not {type(spark).__name__}: pass what "
            "SparkSession.builder.getOrCreate() returns"
        )
    check_writes(argument("spark", "..."))
    from lakemerge.datasource.source import prepare_session

    prepare_session(spark)
    return spark
