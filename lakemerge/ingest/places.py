"""The folders and files that a job reads, in sources of any kind."""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import itemgetter

import pyarrow as pa

from lakemerge._internal.arguments import shown
from lakemerge.errors import InputError
from lakemerge.ingest.source import Source, SourceFile
from lakemerge.ingest.source_local import LocalSource
from lakemerge.ingest.source_s3 import S3Source
from lakemerge.ingest.spill import SortedSpill
from lakemerge.storage import path_of_file_url
from lakemerge.storage.options import check_no_password, checked_options
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["LISTING", "Places", "whole_path"]

_logger = logger(__name__)

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):(?P<rest>/.*)", re.IGNORECASE | re.DOTALL)

LISTING = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("modified_ns", pa.int64(), nullable=False),
    ]
)
"""Columns of :class:`SourceFile`."""


class Places:
    """The sources of a job, opened on first use. Picklable.

    :param storage_options: options for buckets, as for tables.
    """

    def __init__(self, storage_options: Mapping[str, object]) -> None:
        self._options = checked_options(storage_options)
        self._buckets: dict[str, S3Source] = {}

    def __repr__(self) -> str:
        return "Places()"

    def of(self, path: str) -> Source:
        """The source of a whole path."""
        if not path.startswith("s3://"):
            return LocalSource()
        bucket = path.removeprefix("s3://").partition("/")[0]
        if bucket not in self._buckets:
            self._buckets[bucket] = S3Source(bucket, self._options)
        return self._buckets[bucket]

    def listed(self, locations: Iterable[str], *, recursive: bool) -> Iterator[SourceFile]:
        """The files of folders, and files named by themselves. They are sorted by path, and each comes once.

        :param locations: whole paths. There may be many, and they are iterated once.
        """
        named = SortedSpill(LISTING, ["path"])
        folders: list[Iterator[SourceFile]] = []
        for location in locations:
            source = self.of(location)
            file = None if location.endswith("/") else source.stat(location)
            if file is not None:
                named.add(file)
                continue
            files = source.list(location, recursive=recursive)
            first = next(files, None)
            if first is None:
                _logger.warning("there is nothing at %s", location)
            else:
                folders.append(chain([first], files))
        named_files = (SourceFile(*row) for row in named)
        if not folders:
            return _once(named_files)
        if len(folders) == 1 and named.is_empty:
            return folders[0]
        return _once(heapq.merge(named_files, *folders, key=itemgetter(0)))


def whole_path(location: str | os.PathLike[str]) -> str:
    """A location as a whole path. A slash at its end says that it is a folder, and ``~`` at its beginning is the
    user's own folder, as in a shell.

    Raises :class:`InputError` if it is neither a local path nor an S3 URL.
    """
    given: object = os.fspath(location) if isinstance(location, os.PathLike) else location
    if not isinstance(given, str) or not given:
        raise InputError(f"a location must be a path or a URL, not {shown(location)}")
    text = os.path.expanduser(given)
    if "\0" in text:
        raise InputError(f"the location {text!r} holds a null character, which no path can have", location=text)
    end = "/" if text.endswith("/") else ""
    match = _URL.fullmatch(text)
    scheme = "" if match is None else match["scheme"].lower()
    if match is None or scheme == "file":
        path = text if match is None else path_of_file_url(text)
        whole = os.path.abspath(path)
        return whole if whole == "/" else whole + end
    if scheme not in ("s3", "s3a"):
        raise InputError(
            f"ingest reads local folders and S3 so far, not {scheme}: copy the files, or read them with Spark or Arrow "
            "and upsert the frame",
            scheme=scheme,
        )
    if not match["rest"].startswith("//"):
        check_no_password(text)
        raise InputError(f"{text!r} looks like a URL that went through pathlib: pass it as a string", location=text)
    bucket, _, key = match["rest"][2:].partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]+", bucket):
        # The error does not show the URL, because people put credentials in front of the bucket.
        raise InputError(
            "an S3 URL is s3://bucket/prefix with a plain bucket name; credentials go into "
            f"{argument('storage_options')}"
        )
    return f"s3://{bucket}/{key.rstrip('/')}{end if key else ''}"


def _once(files: Iterable[SourceFile]) -> Iterator[SourceFile]:
    last = None
    for file in files:
        if file.path != last:
            last = file.path
            yield file
