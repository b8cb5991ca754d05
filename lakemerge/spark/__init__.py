"""Spark's side of reads and writes: the only package that imports pyspark.

DataFrame APIs only (no RDDs, no py4j), so that Spark Connect works.
"""

from lakemerge._internal.collector import spare_survivors
from lakemerge.spark.archives import forget_archives

forget_archives()
spare_survivors()
