"""Finds out whether Spark's own Parquet reader reaches the files of a table, and makes scans with it.

It reads local files. On S3 it needs Hadoop's S3A on the class path. Each read gives S3A the options of the store, so
the session is not changed. To find out whether this works, the first read of a table in an application has Spark plan a
scan of one file.

A scan of many files is made so that Spark does not ask the store for each of them.
"""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import orjson
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from lakemerge.layout.view import FileSlice
from lakemerge.spark.sessions import jvm_session
from lakemerge.storage import LocalStore, S3Store, Store
from mergers.logs import logger

__all__ = ["parquet_files", "scan_of_listed", "why_through_arrow"]


_FORMAT = "org.apache.spark.sql.execution.datasources.parquet"
"""Spark's Parquet reader of its first source API, even if ``parquet`` means the second
(``spark.sql.sources.useV1SourceList``). The second has no ``_metadata``, which tells the place of a row."""

_LOG = logger(__name__)
_FEW_FILES = 32
"""Up to so many files Spark asks the store for their sizes one after the other; for more files it runs a job."""

_answers: dict[tuple[str, str], str | None] = {}
"""Application, and place and options of the table -> why Spark's reader is not used; ``None`` if it is."""


def why_through_arrow(spark: SparkSession, store: Store, file_slices: Sequence[FileSlice]) -> str | None:
    """Why Spark's own reader is not used for the files of these file slices; ``None`` if it is."""
    if isinstance(store, LocalStore):
        return None
    if not isinstance(store, S3Store):
        return "Spark's own reader is used on local folders and on S3 alone"
    if store.s3a.unknown:
        return f"Hadoop's S3A has no counterpart of {', '.join(store.s3a.unknown)} in the storage options"
    if jvm_session(spark) is None:
        return "Spark Connect logs a read's options, and those for S3 hold credentials"
    paths = [file_slice.base.add.path for file_slice in file_slices if file_slice.base is not None]
    paths = paths or [block.file.path for file_slice in file_slices for block in file_slice.blocks]
    return _answer(spark, store, paths[0]) if paths else None


def parquet_files(
    reader: DataFrameReader, store: Store, paths: Sequence[str], sizes: Sequence[int] | None = None
) -> DataFrame:
    """A scan of files of the store.

    :param sizes: the sizes in bytes, if they are known. Then Spark does not ask for them.
    """
    if isinstance(store, S3Store):
        reader = reader.options(**store.s3a.options)
    urls = [store.spark_url(path) for path in paths]
    listed = None
    if sizes is not None and len(paths) > _FEW_FILES:
        listed = scan_of_listed(reader.format(_FORMAT), urls, sizes)
    return _scan(reader, urls) if listed is None else listed


def _answer(spark: SparkSession, store: S3Store, path: str) -> str | None:
    key = (str(spark.sparkContext.applicationId), store.spark_url("_"))
    if key not in _answers:
        _answers[key] = why_not = _tried(spark, store, path)
        if why_not is not None:
            _LOG.info("%s is read through Arrow in Python tasks: %s", store.url, why_not)
    return _answers[key]


def _tried(spark: SparkSession, store: S3Store, path: str) -> str | None:
    try:
        reader = spark.read.schema("tried BOOLEAN").options(**store.s3a.trying.options)
        _scan(reader, [store.s3a.trying.scheme + store.spark_url(path).removeprefix(store.s3a.scheme)])
    except PySparkException as error:
        message = str(error)
    except importlib.import_module("py4j.protocol").Py4JJavaError as error:
        message = str(error.java_exception.toString())
    else:
        return None
    if "S3AFileSystem not found" in message:
        return "Spark has no S3A, which comes with org.apache.hadoop:hadoop-aws on its class path"
    return f"Spark cannot read it through S3A: {message.strip().splitlines()[0]}"


def _scan(reader: DataFrameReader, urls: Sequence[str]) -> DataFrame:
    """A scan of the URLs. They are escaped, because Spark's readers take paths for patterns."""
    patterns = [re.sub(r"([\[\]{}*?\\])", r"\\\1", url) for url in urls]
    java = getattr(reader, "_jreader", None)
    if java is None:
        return reader.format(_FORMAT).load(patterns)
    # One call to the JVM. Python's reader would make one for each path.
    session = cast("Any", reader)._spark
    array = session._jvm.java.util.regex.Pattern.compile("\0").split("\0".join(patterns))
    return DataFrame(java.format(_FORMAT).load(array), session)


_BLOCK_BYTES = 32 * 1024 * 1024  # Hadoop's for file systems without blocks; Spark splits files by settings of its own


def scan_of_listed(reader: DataFrameReader, urls: Sequence[str], sizes: Sequence[int]) -> DataFrame | None:
    """The rows of files whose sizes in bytes the caller knows.

    :param reader: a reader for a format of Spark's first source API.

    ``None`` if the session does not take the list: a session of Spark Connect, which may be on another host, or one
    that is set to ignore such logs.
    """
    if not hasattr(reader, "_jreader"):
        return None
    lines = [b"v1", *(_line(url, size) for url, size in zip(urls, sizes, strict=True))]
    with tempfile.TemporaryDirectory(prefix="lakemerge-files-") as folder:
        log = Path(folder) / "_spark_metadata"
        log.mkdir()
        (log / "0").write_bytes(b"\n".join(lines))
        # Otherwise Spark would look for partitions in the files' paths.
        frame = reader.option("recursiveFileLookup", "true").load(Path(folder).as_uri())
        location = cast("Any", frame)._jdf.queryExecution().analyzed().relation().location()
        return frame if location.allFiles().size() == len(urls) else None


def _line(url: str, size: int) -> bytes:
    scheme, _, path = url.partition("://")
    return orjson.dumps(
        {
            "path": f"{scheme}://{quote(path)}",
            "size": size,
            "isDir": False,
            "modificationTime": 0,
            "blockReplication": 1,
            "blockSize": _BLOCK_BYTES,
            "action": "add",
        }
    )
