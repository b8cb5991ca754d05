"""The SQL settings of the installed Spark, and the values that each of them can have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pyspark.sql import SparkSession

__all__ = ["FAILING", "OTHER_PARTS", "settings_of", "values_of"]

OTHER_PARTS = (
    "spark.databricks.", "spark.sql.streaming.", "spark.sql.pipelines.", "spark.sql.hive.", "spark.sql.thriftserver.",
    "spark.sql.thriftServer.", "spark.sql.avro.", "spark.sql.orc.", "spark.sql.csv.", "spark.sql.json.",
    "spark.sql.xml.", "spark.sql.ui.", "spark.sql.repl.", "spark.sql.cli.", "spark.sql.redaction.",
    "spark.sql.debug.", "spark.sql.maven.", "spark.sql.scripting.", "spark.sql.artifact.",
    "spark.sql.planChangeLog.", "spark.sql.pyspark.plotting.", "spark.sql.catalog.",
    "spark.sql.analyzer.singlePassResolver.",
)  # fmt: skip
"""Settings of parts of Spark that LakeMerge's batch reads and writes do not use: Delta's, and of Spark's
unfinished analyzer, which reads no files, among them."""
_MOST: Final = str(2**31 - 1)
FAILING: Final[Mapping[str, Sequence[str]]] = {
    # The analyzer stops before it has resolved a comparison of two types.
    "spark.sql.analyzer.maxIterations": ("0", "1"),
    # Beside maxBytesPerOutputBatch each job with Python fails. Another test has a limit alone.
    "spark.sql.execution.arrow.maxRecordsPerOutputBatch": ("1", _MOST),
    # Java has no buffer of that size.
    "spark.sql.execution.pandas.udf.buffer.size": ("0", "1", _MOST),
    "spark.sql.execution.python.udf.buffer.size": (_MOST,),
    # A scan has steps of no byte, or a task for each byte.
    "spark.sql.files.maxPartitionBytes": ("0", "1"),
    "spark.sql.files.minPartitionNum": (_MOST,),
    # A join of small tables is planned as a broadcast, which is then refused.
    "spark.sql.maxBroadcastTableSize": ("0", "1"),
    # The vectorised reader reads no row at a time, for ever, or has no memory for its batch.
    "spark.sql.parquet.columnarReaderBatchSize": ("0", _MOST),
    # So many MiB for a worker that plans a Python data source. Spark waits for ever for what died of it.
    "spark.sql.planner.pythonExecution.memory": ("1",),
    # A package that is not among those of the tests. All Python data sources fail without it.
    "spark.sql.pyspark.dataSource.profiler": ("memory",),
    # A shuffle has so many tasks. Only joins of tables that are large by Spark's estimate have one.
    "spark.sql.shuffle.partitions": (_MOST,),
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": (_MOST,),
    # Where the threshold is 0, too, Spark asks for the sizes of files in a job of so many tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": ("0",),
    # Every call of PySpark fails: it takes one more line of a stack than there are.
    "spark.sql.stackTracesInDataFrameContext": (_MOST,),
}
"""Values with which Spark itself fails or never ends. Tried without LakeMerge: ``maxIterations``, 0 and 1 of
``pandas.udf.buffer.size``, 0 of ``maxPartitionBytes``, 1 of ``maxBroadcastTableSize``, and the limit of output batches
beside the other. The others are taken from the errors of Spark's own code, or from its running out of memory."""
_RULES: Final = "org.apache.spark.sql.catalyst.optimizer."
_CHOSEN: Final = {
    "spark.sql.columnNameOfCorruptRecord": ["id"],
    "spark.sql.optimizer.excludedRules": [
        _RULES + rule
        for rule in (
            "PushDownPredicates", "ColumnPruning", "CollapseProject", "PushProjectionThroughUnion", "ConstantFolding",
            "ConvertToLocalRelation", "BooleanSimplification", "SimplifyCasts", "InferFiltersFromConstraints",
        )
    ],
    "spark.sql.optimizer.nestedPredicatePushdown.supportedFileSources": [""],
    "spark.sql.session.timeZone": ["America/New_York", "+05:30", "EST"],
    "spark.sql.sources.default": ["json"],
    "spark.sql.sources.useV1SourceList": ["", "avro"],
}  # fmt: skip
"""Values of settings that hold names."""
_NUMBERS = ("0", "1", _MOST)
_ONE_OF = re.compile(r"one of '([^']+)'")


def settings_of(spark: SparkSession) -> dict[str, str | None]:
    """The names and defaults of all settings that a session can change, the internal ones among them."""
    companion = getattr(cast("Any", spark)._jvm.org.apache.spark.sql.internal, "SQLConf$")
    entries = getattr(companion, "MODULE$").getConfigEntries().iterator()
    found: dict[str, str | None] = {}
    while entries.hasNext():
        entry = entries.next()
        if not getattr(companion, "MODULE$").isStaticConfigKey(entry.key()):
            found[entry.key()] = entry.defaultValueString()
    return dict(sorted(found.items()))


def values_of(spark: SparkSession, name: str, default: str | None) -> list[str]:
    """Values of a setting other than its default: of a switch and an enumeration all, of a number the least and the
    greatest. Settings that hold names or lists of names have none."""
    tried: tuple[str, ...]
    if name in _CHOSEN:
        return list(_CHOSEN[name])
    if default in ("true", "false"):
        return ["false" if default == "true" else "true"]
    scratch = spark.newSession()
    problem = _refusal(scratch, name, "no such value")
    if problem is None:
        return []  # free text
    listed = _ONE_OF.search(problem)
    if listed is not None:
        tried = tuple(word.strip(" '") for word in listed[1].split(","))
    elif "'boolean' value" in problem:
        tried = ("true", "false")
    elif "TYPE_MISMATCH" in problem:
        tried = _NUMBERS
    else:
        return []  # the name of a class, a zone or the like
    return [value for value in tried if value and value != default and _refusal(scratch, name, value) is None]


def _refusal(session: SparkSession, name: str, value: str) -> str | None:
    """What the session says against a value; ``None`` where it takes it."""
    conf: Any = session._jsparkSession.sessionState().conf()
    try:
        conf.setConfString(name, value)
    except Exception as error:  # noqa: BLE001
        return str(getattr(error, "java_exception", error))
    conf.unsetConf(name)
    return None
