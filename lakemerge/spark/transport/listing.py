"""A scan of many files that Spark asks the store nothing about.

Spark asks for the size of each file that it is given the path of, once for whether it is there and once more for its
size: seconds for 50,000 local files, and as many requests on S3. The one list of files that its readers take as it is,
sizes included, is the log of Structured Streaming's file sink: a folder ``_spark_metadata`` with a file of a
JSON line each (Spark's ``FileStreamSinkLog`` and ``SinkFileStatus``). Such a log is written for the scan, beside
nothing, and is gone once Spark has read it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import orjson
from pyspark.sql import DataFrame, DataFrameReader

__all__ = ["scan_of_listed"]

_BLOCK_BYTES = 32 * 1024 * 1024  # Hadoop's for file systems without blocks; Spark splits files by settings of its own


def scan_of_listed(reader: DataFrameReader, urls: Sequence[str], sizes: Sequence[int]) -> DataFrame | None:
    """The rows of files, whose sizes in bytes the caller knows.

    :param reader: of a format of Spark's first source API.

    ``None`` where a session does not take the list: Spark Connect's, which may be on another host, or one
    that is set to ignore such logs.
    """
    if not hasattr(reader, "_jreader"):
        return None
    lines = [b"v1", *(_line(url, size) for url, size in zip(urls, sizes, strict=True))]
    with tempfile.TemporaryDirectory(prefix="lakemerge-files-") as folder:
        log = Path(folder) / "_spark_metadata"
        log.mkdir()
        (log / "0").write_bytes(b"\n".join(lines))
        # As if its files could be anywhere below, or Spark would look for partitions in their paths.
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
