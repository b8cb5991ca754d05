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
from lakemerge.ingest.source_cloud import CloudSource, root_of
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

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_CONTAINER = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]+(@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:[0-9]+)?)?")
_S3_URL = "an S3 URL is s3://bucket/prefix with a plain bucket name"
_GCS_URL = "a URL of Google Cloud Storage is gs://bucket/prefix with a plain bucket name"
_AZURE_URL = (
    "a URL of Azure is az://container/prefix or abfss://container@account.dfs.core.windows.net/prefix with plain names"
)
_SCHEMES = {
    "s3": ("s3", _PLAIN, _S3_URL),
    "s3a": ("s3", _PLAIN, _S3_URL),
    "gs": ("gs", _PLAIN, _GCS_URL),
    "gcs": ("gs", _PLAIN, _GCS_URL),
    "az": ("az", _CONTAINER, _AZURE_URL),
    "abfs": ("abfss", _CONTAINER, _AZURE_URL),
    "abfss": ("abfss", _CONTAINER, _AZURE_URL),
}
"""Scheme of a URL -> that of the whole path, the form of a bucket or container, and how such URLs are written."""
_BUCKETS = tuple({f"{whole}://" for whole, _, _ in _SCHEMES.values()})

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
        self._buckets: dict[str, Source] = {}

    def __repr__(self) -> str:
        return "Places()"

    def of(self, path: str) -> Source:
        """The source of a whole path."""
        if not path.startswith(_BUCKETS):
            return LocalSource()
        root = root_of(path)
        if root not in self._buckets:
            is_s3 = root.startswith("s3://")
            self._buckets[root] = (
                S3Source(root.removeprefix("s3://"), self._options) if is_s3 else CloudSource(root, self._options)
            )
        return self._buckets[root]

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

    Raises :class:`InputError` if it is neither a local path nor a URL of S3, Google Cloud Storage or Azure.
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
    if scheme not in _SCHEMES:
        raise InputError(
            f"ingest reads local folders, S3, Google Cloud Storage and Azure so far, not {scheme}: copy the files, or "
            "read them with Spark or Arrow and upsert the frame",
            scheme=scheme,
        )
    if not match["rest"].startswith("//"):
        check_no_password(text)
        raise InputError(f"{text!r} looks like a URL that went through pathlib: pass it as a string", location=text)
    bucket, _, key = match["rest"][2:].partition("/")
    whole_scheme, form, written = _SCHEMES[scheme]
    if not form.fullmatch(bucket):
        # The error does not show the URL, because people put credentials in front of the bucket.
        raise InputError(f"{written}; credentials go into {argument('storage_options')}")
    return f"{whole_scheme}://{bucket}/{key.rstrip('/')}{end if key else ''}"


def _once(files: Iterable[SourceFile]) -> Iterator[SourceFile]:
    last = None
    for file in files:
        if file.path != last:
            last = file.path
            yield file
