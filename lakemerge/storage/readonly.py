"""Tables behind any other fsspec URL. They can only be read."""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import pyarrow as pa

from lakemerge.errors import DependencyMissingError, InputError, LakeMergeError, StoreError
from lakemerge.storage.base import FileStat, NothingCreatedError, Put, Store, check_path
from lakemerge.storage.options import check_no_password, checked_options, without_values
from mergers.wording import argument

__all__ = ["ReadOnlyStore"]

_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
"""Where fsspec's file systems keep the time of a file; there is no common name."""


_SUPPORTED = (
    "today tables are written on local disks, on S3 (s3://), on stores that speak S3's protocol (s3:// with "
    "endpoint_url), on Google Cloud Storage (gs://) and on Azure (az://, abfss://), and read on what fsspec knows; "
    "docs/guides/stores.md lists the stores"
)
_CLOUDS = {
    "oss": ("Alibaba Cloud OSS", "ossfs"),
    "oci": ("Oracle Cloud Object Storage", "ocifs"),
}
"""Schemes of stores that can be read: the store, and the package of fsspec for it."""
_SPELLED = {
    **dict.fromkeys(("wasb", "wasbs", "adl", "onelake"), "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"),
    **dict.fromkeys(("s3n", "r2", "b2", "minio", "wasabi", "cos", "cosn", "obs", "tos"), "s3://BUCKET/PATH, with the "
        "store's endpoint_url if it is not Amazon's"),
    **dict.fromkeys(("dbfs", "file+dbfs"), "/dbfs/PATH, where it is mounted"),
}  # fmt: skip
"""Schemes that nothing here knows, and how the same place is written instead."""


class ReadOnlyStore(Store):
    """A folder that fsspec can read. Everything that writes raises :class:`StoreError`.

    ``modified_ms`` is 0 if the file system does not say the time of a file. Errors of the file system are raised as
    they are.
    """

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        check_no_password(url)
        self._url = url.rstrip("/")
        self._options = checked_options(storage_options)
        # Directory listings must be fresh: another process commits.
        self._file_system, self._root = _connect(self._url, {**self._options, "use_listings_cache": False})

    def __repr__(self) -> str:
        return f"ReadOnlyStore({self._url!r})"

    def __reduce__(self) -> tuple[type[ReadOnlyStore], tuple[str, dict[str, object]]]:
        return type(self), (self._url, self._options)

    @property
    def url(self) -> str:
        return self._url

    def spark_url(self, path: str) -> str:
        return f"{self._url}/{check_path(path)}"

    def get(self, path: str) -> bytes:
        with self._answers("read"):
            return bytes(self._file_system.cat_file(self._locate(path)))

    def stat(self, path: str) -> FileStat | None:
        try:
            with self._answers("look up"):
                info = self._file_system.info(self._locate(path))
        except FileNotFoundError:
            return None
        return FileStat(path, int(info["size"]), _modified_ms(info)) if info["type"] == "file" else None

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        top = self._locate(folder) if folder else self._root
        return self._listed(top, start_after.encode())

    def folders(self, folder: str) -> Sequence[str]:
        top = self._locate(folder) if folder else self._root
        try:
            with self._answers("list"):
                entries = self._file_system.ls(top, detail=True)
        except FileNotFoundError:
            return ()
        return sorted(entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory")

    def delete_empty_folders(self, folder: str) -> None:
        self._refuse(folder)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        known = {} if size_bytes is None else {"size": size_bytes}
        with self._answers("open"):
            return pa.PythonFile(self._file_system.open(self._locate(path), "rb", **known), mode="r")

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._refuse(path)

    def put(self, path: str, data: bytes) -> None:
        self._refuse(path)

    def delete(self, paths: Sequence[str]) -> None:
        self._refuse(*paths)

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        self._refuse(*(file.path for file in files))

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        self._refuse(file.path)

    def sync(self, paths: Sequence[str]) -> None:
        self._refuse(*paths)

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        self._refuse()

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        self._refuse(path)

    def _refuse(self, *paths: str) -> NoReturn:
        for path in paths:
            check_path(path)
        raise NothingCreatedError(
            f"{self._url!r} is readable, but this store has no put-if-absent we know of, so it cannot be written: "
            f"keep tables that change elsewhere. {_told()}",
            url=self._url,
        )

    @contextmanager
    def _answers(self, operation: str) -> Iterator[None]:
        """Errors of the file system other than those of the operating system become :class:`StoreError`. Some packages
        find only now that they do not know an option."""
        try:
            yield
        except (OSError, LakeMergeError):
            raise
        except Exception as error:  # noqa: BLE001 - each package raises errors of its own
            raise StoreError(
                f"fsspec cannot {operation} files of {self._url!r}: {type(error).__name__}: "
                f"{without_values(str(error), self._options)}. Correct the URL or {argument('storage_options')}",
                url=self._url,
            ) from None

    def _locate(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _listed(self, top: str, start_after: bytes) -> Iterator[FileStat]:
        try:
            with self._answers("list"):
                found = self._file_system.find(top, detail=True)
        except FileNotFoundError:
            return
        below_root = len(self._root) + 1
        for name, info in sorted(found.items(), key=lambda item: str(item[0]).encode()):
            path = str(name)[below_root:]
            if name != top and path.encode() > start_after:
                yield FileStat(path, int(info["size"]), _modified_ms(info))


def _connect(url: str, options: dict[str, object]) -> tuple[Any, str]:
    fsspec = importlib.import_module("fsspec.core")
    given, separator, rest = url.partition(":")
    scheme = given.lower()
    if scheme in _SPELLED:
        raise InputError(f"{url!r} is not a URL that LakeMerge knows: write {_SPELLED[scheme]}. {_told()}", url=url)
    if scheme in _CLOUDS and not _is_known(scheme):
        raise _needs(url, scheme, "")
    # The errors of other packages may hold values of options, so they are not kept as causes.
    try:
        file_system, root = fsspec.url_to_fs(f"{scheme}{separator}{rest}" if "::" not in url else url, **options)
    except ImportError as error:
        raise _needs(url, scheme, without_values(str(error), options)) from None
    except OSError as error:
        reason = without_values(str(error), options).partition("\n")[0]
        remedy = "; it needs Java, libhdfs and Hadoop's jars in CLASSPATH" if url.startswith("hdfs:") else ""
        raise StoreError(f"fsspec cannot open {url!r}: {reason}{remedy}", url=url) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"fsspec cannot open {url!r} with these options: {without_values(str(error), options)}. Correct the URL or "
            f"{argument('storage_options')}. {_told()}",
            url=url,
        ) from None
    return file_system, str(root).rstrip("/")


def _needs(url: str, scheme: str, reason: str) -> DependencyMissingError:
    store, package = _CLOUDS.get(scheme, ("", ""))
    where = f" for {store}" if store else ""
    install = f"pip install {package}" if package else ""
    what = "; ".join(filter(None, (reason, install)))
    return DependencyMissingError(f"{url!r} needs another package{where}: {what}. {_told()}", url=url)


def _is_known(scheme: str) -> bool:
    return scheme in importlib.import_module("fsspec").available_protocols()


def _told() -> str:
    return f"{_SUPPORTED[0].upper()}{_SUPPORTED[1:]}"


def _modified_ms(info: Mapping[str, object]) -> int:
    for key in _TIME_KEYS:
        time = info.get(key)
        if isinstance(time, str):
            time = datetime.datetime.fromisoformat(time)
        if isinstance(time, datetime.datetime):
            # A time without zone is UTC by fsspec's convention.
            time = (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()
        if isinstance(time, (int, float)):
            return int(time * 1000)
    return 0
