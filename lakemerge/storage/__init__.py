"""Where tables are kept. :func:`open_store` picks the store by URL; :class:`Store` is the contract."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote

from lakemerge.errors import InputError
from lakemerge.storage.azure import AzureStore
from lakemerge.storage.base import FileStat, Put, Store, check_path
from lakemerge.storage.gcs import GCSStore
from lakemerge.storage.local import LocalStore
from lakemerge.storage.options import check_no_password, checked_options
from lakemerge.storage.readonly import ReadOnlyStore
from lakemerge.storage.s3 import S3Store

__all__ = [
    "AzureStore",
    "FileStat",
    "GCSStore",
    "LocalStore",
    "Put",
    "ReadOnlyStore",
    "S3Store",
    "Store",
    "absolute_location",
    "check_path",
    "location_of",
    "open_store",
    "path_of_file_url",
    "place_of",
]

_LONGEST_NAME = 255
"""File systems allow no more in the name of a file or folder."""
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):(?P<slashes>/{1,2})", re.IGNORECASE)


def open_store(url: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> Store:
    """The store for a table's folder. No request is made; the folder need not exist.

    - a path, where ``~`` at its start is a home folder, or a ``file:`` URL (percent-encoded): :class:`LocalStore`;
      ``storage_options`` have no effect;
    - ``s3://``, ``s3a://``: :class:`S3Store`, with the options listed there;
    - ``gs://``, ``gcs://``: :class:`GCSStore`; ``az://``, ``abfs://``, ``abfss://``: :class:`AzureStore`;
    - any other URL that fsspec knows: :class:`ReadOnlyStore`, with fsspec's options for it.

    Raises :class:`InputError` if the URL is none of these, or if the store does not know an option, and
    :class:`DependencyMissingError` if the package for the scheme is not installed.
    """
    location = location_of(url)
    options = checked_options(storage_options)
    match = _SCHEME.match(location)
    scheme = match["scheme"].lower() if match else ""
    if match is None and "::" not in location:
        return LocalStore(os.path.expanduser(location))
    if scheme == "file":
        return LocalStore(path_of_file_url(location))
    if match is not None and match["slashes"] == "/" and scheme != "dbfs":
        check_no_password(location)
        raise InputError(
            f"{location!r} looks like a URL that went through pathlib, which drops a slash: pass it as a string",
            url=location,
        )
    if scheme in ("s3", "s3a"):
        return S3Store(location, options)
    if scheme in ("gs", "gcs"):
        return GCSStore(location, options)
    if scheme in ("az", "abfs", "abfss"):
        return AzureStore(location, options)
    return ReadOnlyStore(location, options)


def location_of(url: object) -> str:
    """A caller's path or URL as text. Raises :class:`InputError`."""
    try:
        location = os.fspath(url)  # type: ignore[call-overload]
    except TypeError:
        location = None
    if not isinstance(location, str):
        raise InputError(f"the location of a table must be a path or a URL, and not of the type {type(url).__name__}")
    if not location:
        raise InputError("the location of a table is empty: pass a path or a URL")
    try:
        longest = max(map(len, os.fsencode(location).split(b"/")))
    except UnicodeEncodeError:
        raise InputError("the location of a table holds half a surrogate pair, which no path can have") from None
    if longest > _LONGEST_NAME:
        raise InputError(f"a name in the location of a table has {longest} bytes, and may have {_LONGEST_NAME}")
    if "\0" in location:
        raise InputError("the location of a table holds a null character, which no path can have", url=location)
    return location


def absolute_location(url: object, folder: str | None = None) -> str:
    """A caller's path or URL in a form that means the same from any working directory: a path becomes absolute, and
    that of a ``file:`` URL is a path. Other URLs are as they are, without slashes at their end.

    :param folder: what relative paths are relative to; by default the working directory.
    """
    location = location_of(url)
    match = _SCHEME.match(location)
    if match is not None and match["scheme"].lower() == "file":
        location = path_of_file_url(location)
    elif match is not None or "::" in location:
        return location.rstrip("/") or location
    return os.path.abspath(os.path.join(folder or "", os.path.expanduser(location)))


def place_of(url: object) -> str:
    """A text that is equal for two spellings of one place: links are followed, ``s3a`` is ``s3``, ``gcs`` is ``gs``,
    and ``abfs`` is ``abfss`` with an account and ``az`` without one."""
    location = absolute_location(url)
    match = _SCHEME.match(location)
    if match is None and "::" not in location:
        return os.path.realpath(location)
    scheme, colon, rest = location.partition(":")
    slashes = len(rest) - len(rest.lstrip("/"))
    rest = rest[:slashes] + re.sub("/+", "/", rest[slashes:])
    same = {"s3a": "s3", "gcs": "gs"} | dict.fromkeys(("az", "abfs", "abfss"), "abfss" if "@" in rest else "az")
    return same.get(scheme.lower(), scheme.lower()) + colon + rest


def path_of_file_url(url: str) -> str:
    """The local path that a ``file:`` URL names. Raises :class:`InputError` if it names a host or no path."""
    rest = url[len("file:") :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            # The host may be a user with a password.
            raise InputError(
                "the URL of a file names the host that has it; that of a local file starts with 'file:///'"
            )
        rest = slash + path
    if not rest.startswith("/"):
        raise InputError(f"{url!r} has no path; a local file URL starts with 'file:///'", url=url)
    return unquote(rest)
