"""Puts LakeMerge tables into the catalogs of a Spark session."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakemerge._internal.arguments import checked
from lakemerge.connector.jar import CATALOG_CLASS
from lakemerge.errors import InputError, InstallError
from lakemerge.spark.installed import check_installed
from lakemerge.spark.jar import PATHS, SWITCH, add_jar, is_forbidden
from mergers import Merger
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PATHS", "SWITCH", "catalog"]

TESTED = "Spark 4.0.2 to 4.3"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REDACTION = "spark.sql.redaction.options.regex"
_OPTIONS = r"spark\.sql\.catalog\.[^.]+\.storage\."
_LACKING = re.compile(
    r"(java\.lang\.)?(NoSuchMethodError|NoSuchFieldError|NoClassDefFoundError|AbstractMethodError|"
    r"IncompatibleClassChangeError|ClassNotFoundException|Cannot find catalog plugin class)[^\n]*"
)
"""How Spark and Java name what is not there."""


@checked
def catalog(
    spark: SparkSession,
    name: str,
    *,
    warehouse: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None = None,
    mergers: Sequence[type[Merger]] = (),
    allowed_paths: Sequence[str] = (),
) -> None:
    """Make the tables of a warehouse known to SQL as ``NAME.NAMESPACE.TABLE``, and those elsewhere as
    ``lakemerge.`PATH```.

    ::

        lakemerge.catalog(spark, "lake", warehouse="s3://bucket/lake")
        spark.sql("CREATE NAMESPACE lake.shop")
        spark.sql("CREATE TABLE lake.shop.orders (id BIGINT, state STRING, at TIMESTAMP) TBLPROPERTIES ('key' = 'id')")

    This holds for the session, and calling it again changes nothing. Whoever may use the catalog may use its
    ``storage_options``. They are kept in the session's configuration, and are in no plan, property or error; prefer the
    credentials that the environment gives.

    :param name: of the catalog.
    :param warehouse: a folder. Its folders are namespaces, and a folder in one of these with a table is that table.
    :param mergers: merger classes in addition to the installed ones.
    :param allowed_paths: folders in which the catalog ``lakemerge`` finds tables. By default, anywhere.
    :raises lakemerge.InputError: the name or the warehouse cannot be used, or the connector is switched off.
    :raises lakemerge.InstallError: Spark has loaded the jar of another version of this package.
    :raises lakemerge.DependencyMissingError: Spark is too old.
    """
    check_installed()
    if is_forbidden():
        raise InputError(f"catalogs need LakeMerge's jar, and {SWITCH}=off in the environment forbids it")
    if not _NAME.fullmatch(name) or name in (PATHS, "spark_catalog"):
        raise InputError(f"{argument('name')} must be a name of letters, digits and _ that Spark has not, not {name!r}")
    from lakemerge.spark.sessions import is_running

    if not is_running(spark):
        raise InputError("the Spark session was stopped: start one and pass that")
    _register(spark, mergers)
    add_jar(spark)
    options = {f"storage.{key}": str(value) for key, value in (storage_options or {}).items()}
    if options:
        _hide(spark)
    _define(spark, name, {"warehouse": os.fspath(warehouse), **options})
    _define(spark, PATHS, {**({"allowedPaths": ",".join(allowed_paths)} if allowed_paths else {}), **options})
    # Spark finds the class in the jar only on the thread that added it, and keeps it for all others.
    for each in (name, PATHS):
        _load(spark, each)


def _register(spark: SparkSession, mergers: Sequence[type[Merger]]) -> None:
    from lakemerge.connector.source import CatalogSource
    from lakemerge.datasource.registration import register
    from lakemerge.datasource.source import register_in
    from lakemerge.spark.transport.portable import portable

    register(spark, mergers=mergers)
    sent = portable(tuple(mergers))

    class Registered(CatalogSource):
        mergers = sent

    register_in(spark, Registered, mergers)


def _define(spark: SparkSession, name: str, options: Mapping[str, str]) -> None:
    prefix = f"spark.sql.catalog.{name}"
    wanted = {prefix: CATALOG_CLASS, **{f"{prefix}.{key}": value for key, value in options.items()}}
    present = spark.conf.get(prefix, None)
    if present is not None and present != CATALOG_CLASS:
        raise InputError(f"the session has a catalog {name!r} of the class {present}: choose another name")
    if present is not None and spark.conf.get(f"{prefix}.warehouse", "") != options.get("warehouse", ""):
        raise InputError(
            f"the session has a catalog {name!r} whose warehouse is {spark.conf.get(f'{prefix}.warehouse', '')!r}: "
            "Spark does not move a catalog; choose another name, or a new session"
        )
    for key, value in wanted.items():
        if spark.conf.get(key, None) != value:
            spark.conf.set(key, value)


def _hide(spark: SparkSession) -> None:
    """Have Spark hide storage options in what it tells of a session: the page of a query, and the event log. By itself
    it hides those alone that are called a secret or a token, so not an account's key."""
    hidden = spark.conf.get(_REDACTION)  # Spark's own pattern where nobody has set one
    if hidden is None or _OPTIONS not in hidden:
        spark.conf.set(_REDACTION, f"{hidden}|{_OPTIONS}" if hidden else _OPTIONS)


def _load(spark: SparkSession, name: str) -> None:
    from pyspark.errors import PySparkException

    from lakemerge.spark.sessions import jvm_session

    raised: tuple[type[Exception], ...] = (PySparkException,)
    if jvm_session(spark) is not None:
        raised += (importlib.import_module("py4j.protocol").Py4JError,)
    try:
        spark.sql(f"SHOW NAMESPACES IN {name}").collect()
    except raised as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition in ("LAKEMERGE_INSTALL", "LAKEMERGE_UNSUPPORTED_SPARK"):
            raise InstallError(str(error)) from error
        lacking = _LACKING.search(str(error))
        if lacking is None:
            raise
        raise InstallError(
            f"this Spark, {spark.version}, cannot run LakeMerge's catalog, which was tested with {TESTED}: "
            f"{lacking[0]}. LakeTable and format('lakemerge') do without it"
        ) from error
