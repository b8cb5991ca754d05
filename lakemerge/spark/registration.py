"""Makes user mergers known to Spark's data source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakemerge.spark.installed import check_installed
from mergers import Merger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession, *, mergers: Sequence[type[Merger]] = ()) -> None:
    """Make ``format("lakemerge")`` known to a session, with merger classes in addition to the installed ones.

    The classes are sent with the job, so they may be defined in a notebook or script. A later call replaces an earlier
    one of the session. :class:`lakemerge.LakeTable` needs no such call.

    :raises lakemerge.MergerRegistrationError: an id or a name is malformed or taken.
    """
    check_installed()
    from lakemerge.spark.source import register_source

    register_source(spark, mergers)
