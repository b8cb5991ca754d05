"""A scan of many files for which Spark does not ask the store.

For each path that it gets, Spark asks the store twice: whether the file exists, and for its size. That takes seconds
for 50,000 local files, and as many requests on S3. Only one kind of list with sizes is taken by its readers as it is:
the log of Structured Streaming's file sink, a folder ``_spark_metadata`` with a file of one JSON line for each file
(Spark's ``FileStreamSinkLog`` and ``SinkFileStatus``). Such a log is written for the scan, into a folder without other
files, and is deleted once Spark has read it.
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
