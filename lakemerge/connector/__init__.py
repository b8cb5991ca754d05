"""LakeMerge in Spark's catalogs: the Python side of the jar whose sources are in ``connector/``.

The jar knows Spark, and nothing of tables. It sends requests here (:mod:`lakemerge.connector.requests`).
"""
