"""Makes ``format("lakemerge")`` known to any Spark session: Spark looks for ``DefaultSource`` in
top-level modules named ``pyspark_*`` when a Python data source is first needed."""

from lakemerge.datasource.source import LakeMergeDataSource

__all__ = ["DefaultSource"]


class DefaultSource(LakeMergeDataSource):
    """The data source ``lakemerge``."""
