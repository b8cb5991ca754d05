"""Entries of Spark's catalogs that show a table as the Delta table that it is.

``CREATE TABLE ... USING delta LOCATION`` names no columns: Delta reads them from the table's own log, and commits
nothing to it. The metastore gets the columns, too, for those who read them there (Glue, Lake Formation).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import SparkSession

from lakemerge.errors import InputError
from lakemerge.handle import Handle
from lakemerge.schema.ddl import parse_path
from lakemerge.spark.names import quoted
from lakemerge.spark.sessions import jvm_session

__all__ = ["register_as_delta"]

_DELTA = "DeltaCatalog"
_LOG = "_delta_log"
_COMMENT = "LakeMerge table, as other engines see it: rows up to the last compaction or publication"


def register_as_delta(spark: SparkSession, handle: Handle, name: str) -> None:
    """See :meth:`lakemerge.LakeTable.register`."""
    parts = parse_path(name)
    entry = ".".join(map(quoted, parts))
    location = handle.store.spark_url(_LOG).removesuffix(f"/{_LOG}")
    text = "'" + location.replace("\\", "\\\\").replace("'", "\\'") + "'"
    statement = f"CREATE TABLE {entry} USING delta LOCATION {text} COMMENT '{_COMMENT}'"
    catalog = parts[0] if len(parts) == 3 else str(spark.catalog.currentCatalog())
    kind = str(spark.conf.get(f"spark.sql.catalog.{catalog}", ""))
    if not kind.endswith(_DELTA):
        raise InputError(
            f"the session's catalog {catalog!r} is none of Delta's, and would make an entry that it cannot read. Where "
            f"Delta's catalog is, run: {statement}",
            statement=statement,
        )
    if not spark.catalog.tableExists(entry):
        spark.sql(statement)
        _update(spark, parts)
        return
    told = {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {entry}").collect()}
    if told.get("Provider", "").lower() != "delta" or _plain(told.get("Location", "")) != _plain(location):
        raise InputError(
            f"there is another table {name}, at {told.get('Location') or 'a place that Spark does not tell'}: take "
            "another name, or drop that entry"
        )
    _update(spark, parts)
    spark.catalog.refreshTable(entry)


def _update(spark: SparkSession, parts: Sequence[str]) -> None:
    """Give the metastore the columns that the table has now."""
    session = jvm_session(spark)
    if session is None or len(parts) > 2:
        return  # neither a client of Spark Connect nor a catalog beside the session's has Spark's metastore
    database = parts[0] if len(parts) == 2 else str(spark.catalog.currentDatabase())
    columns = session.table(".".join(map(quoted, parts))).schema()
    session.sharedState().externalCatalog().alterTableDataSchema(database, parts[-1], columns)


def _plain(location: str) -> str:
    """A location without the slashes that Spark writes in several ways."""
    return re.sub(r"^([a-z0-9]+):/*", r"\1:/", location).rstrip("/")
