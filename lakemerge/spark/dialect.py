"""Which meaning the text of a filter has in a session.

Settings of a session change what Spark reads in a text, and what it computes. :mod:`lakemerge.read.filter` follows the
defaults of Spark 4.2, and the session's time zone. In other sessions the text is left to Spark, in whole or in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from lakemerge.errors import FilterError
from lakemerge.read.filter.filter import Filter, parse_filter
from lakemerge.read.filter.literals import parse_zone
from lakemerge.spark.sessions import jvm_session

__all__ = ["COMPUTED", "PARSED", "understood"]

PARSED: Final[Mapping[str, str]] = {
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""Settings that say what a text is: a column or a literal, of which type and value."""
COMPUTED: Final[Mapping[str, str]] = {
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.functionResolution.sessionOrder": "second",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.legacy.codingErrorAction": "false",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "false",
    "spark.sql.legacy.interval.enabled": "false",
    "spark.sql.legacy.javaCharsets": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.lpadRpadAlwaysReturnString": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.legacy.truncateForEmptyRegexSplit": "false",
}
"""Settings that change computed values. The other conditions can still prune files."""


def understood(spark: SparkSession, text: str, schema: pa.Schema) -> Filter | None:
    """The filter, if this library can evaluate it, too, with the same meaning as the session; ``None`` if only Spark
    can. The filter may leave out conditions that only Spark can evaluate."""
    changed = _changed(spark)
    if not changed.isdisjoint(PARSED):
        return None
    zone = parse_zone(str(spark.conf.get("spark.sql.session.timeZone")))
    try:
        condition = parse_filter(text, schema, zone=zone)
    except FilterError:
        return None
    if condition is None:
        return None
    ansi = str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"
    if condition.needs_ansi and not ansi:
        return None
    # Computed values follow ANSI's rules here. The other conditions can still prune files.
    return condition if ansi and changed.isdisjoint(COMPUTED) else replace(condition, computed=())


def _changed(spark: SparkSession) -> set[str]:
    """The settings of :data:`PARSED` and :data:`COMPUTED` that do not have the defaults of Spark 4.2 in the session."""
    defaults = {**PARSED, **COMPUTED}
    session = jvm_session(spark)
    if session is None:
        given = spark.conf.getAll
        return {name for name, value in defaults.items() if given.get(name, value).lower() != value.lower()}
    # Three calls into the JVM instead of one for each setting.
    names = str(session.sessionState().conf().getAllConfs().keySet().mkString("\n")).split("\n")
    given = {name: str(spark.conf.get(name)) for name in defaults.keys() & set(names)}
    return {name for name, value in given.items() if value.lower() != defaults[name].lower()}
