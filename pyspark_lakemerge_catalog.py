"""Lets Spark's catalogs reach LakeMerge's Python in any session: Spark looks for ``DefaultSource`` in
top-level modules named ``pyspark_*`` when a Python data source is first needed."""

from lakemerge.connector.source import CatalogSource

__all__ = ["DefaultSource"]


class DefaultSource(CatalogSource):
    """The data source ``lakemerge_catalog``."""
