"""The SQL settings of the installed Spark, and the values that each of them can have."""

from __future__ import annotations

import re
from typing import Any, Final, cast

from pyspark.sql import SparkSession

__all__ = ["OTHER_PARTS", "settings_of", "values_of"]

OTHER_PARTS = (
    "spark.sql.streaming.", "spark.sql.pipelines.", "spark.sql.hive.", "spark.sql.thriftserver.",
    "spark.sql.thriftServer.", "spark.sql.avro.", "spark.sql.orc.", "spark.sql.csv.", "spark.sql.json.",
    "spark.sql.xml.", "spark.sql.ui.", "spark.sql.repl.", "spark.sql.cli.", "spark.sql.redaction.",
    "spark.sql.debug.", "spark.sql.maven.", "spark.sql.scripting.", "spark.sql.artifact.",
    "spark.sql.planChangeLog.", "spark.sql.pyspark.plotting.", "spark.sql.catalog.",
)  # fmt: skip
"""Settings of parts of Spark that LakeMerge's batch reads and writes do not use."""
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
_NUMBERS = ("0", "1", str(2**31 - 1))
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
