"""Tables on Azure's Blob Storage and Data Lake Storage, over adlfs and the SDK below it.

adlfs finds the credentials and holds the connection; the requests are those of the SDK's blob clients. Put-if-absent is
one ``Put Blob`` with ``If-None-Match: *`` (Blob service REST API, "Specifying conditional headers"). A blob is deleted
and replaced exactly by the ETag that was listed.

An account with a hierarchical namespace has folders, which are blobs with the metadata ``hdi_isfolder``. They are no
files, come in listings before what is in them, and stay when it goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import io
import os
import re
import uuid
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from lakemerge.errors import InputError, StoreError
from lakemerge.storage.base import FileStat
from lakemerge.storage.cloud_client import CloudClient, Told, errors_of_network, reason
from lakemerge.storage.cloud_options import adlfs_options
from lakemerge.storage.object_client import Parts
from lakemerge.storage.object_store import BUCKET, ObjectStore, clean_prefix
from mergers.wording import argument

__all__ = ["AzureClient", "AzureStore"]

_PLACE = re.compile(r"(?P<container>[^/@]*)(@(?P<account>[^/@]*))?(/(?P<prefix>.*))?")
_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9.-]+(:\d+)?")
_SECRET_PARTS = re.compile(r"(?:AccountKey|SharedAccessSignature|sig|Password)=([^;&]+)", re.IGNORECASE)
_PAGE = 5_000
_CHECK_ACCOUNT = f"Check account and credentials in {argument('storage_options')}"


class AzureClient(CloudClient):
    """:param place: container and account as URLs name them."""

    condition = "If-None-Match: *"
    own_hosts = (".core.windows.net", ".core.usgovcloudapi.net", ".core.chinacloudapi.cn")
    package, extra = "adlfs", "azure"
    remedies: ClassVar[Mapping[str | int, str]] = {
        401: _CHECK_ACCOUNT,
        403: f"{_CHECK_ACCOUNT}, and let this account list, read, write and delete there (docs/guides/stores.md lists "
        "the rights)",
        "ContainerNotFound": "Check the container's name, or create the container first",
        "ServerBusy": "The store is asked too often: wait, and try again",
    }

    def __init__(self, bucket: str, options: Mapping[str, Any], place: str) -> None:
        self._place = place
        super().__init__(bucket, options)

    def url(self, key: str) -> str:
        return f"{self._place}/{key}"

    def host_of_writes(self) -> str:
        return urlsplit(str(self._connect().service_client.url)).hostname or ""

    def look(self, key: str) -> FileStat:
        found = self._ask("look up", key, self._on(key, "get_blob_properties"))
        if _is_folder(found.metadata):
            raise FileNotFoundError(self.url(key))
        return _stat(key, found)

    def read(self, key: str, start: int | None = None, end: int | None = None, *, etag: str | None = None) -> bytes:
        part = {} if start is None else {"offset": start, "length": None if end is None else end - start}

        async def bytes_of(connection: Any) -> bytes | None:
            stream = await self._on(key, "download_blob", **part, **_version(etag or ""), max_concurrency=1)(connection)
            return None if _is_folder(stream.properties.metadata) else bytes(await stream.readall())

        data = self._ask("read", key, bytes_of)
        if data is None:
            raise FileNotFoundError(self.url(key))
        return data

    def write(self, key: str, data: bytes) -> None:
        self._ask("write", key, self._upload(key, data, {"overwrite": True}))

    def listed(self, prefix: str, start_after: str) -> Iterator[FileStat]:
        """The blobs as they come, as long as these are in order for sure: all names are ASCII, and there is no folder.
        From then on the rest is sorted here, so the account may be of any kind."""
        rest: list[FileStat] | None = None
        after = start_after.encode()
        for blob in self._entries(prefix, delimiter=None):
            is_folder = _is_folder(blob.metadata)
            if rest is None and (is_folder or not blob.name.isascii()):
                rest = []
            if is_folder or blob.name.encode() <= after:
                continue
            if rest is None:
                yield _stat(blob.name, blob)
            else:
                rest.append(_stat(blob.name, blob))
        yield from sorted(rest or (), key=lambda file: file.path.encode())

    def prefixes(self, prefix: str) -> Iterator[str]:
        for entry in self._entries(prefix, delimiter="/"):
            if hasattr(entry, "prefix"):
                yield entry.prefix

    def begin(self, key: str) -> Parts:
        return _Blocks(self, key)

    def send_block(self, key: str, block: str, data: bytes) -> None:
        self._ask("write a part of", key, self._on(key, "stage_block", block, data))

    def finish_blocks(self, key: str, blocks: Sequence[str]) -> None:
        kind = importlib.import_module("azure.storage.blob").BlobBlock
        listed = [kind(block_id=block) for block in blocks]
        self._ask("finish", key, self._on(key, "commit_block_list", listed))

    def delete_folders(self, prefix: str) -> None:
        top = prefix.rstrip("/")
        found = [entry.name for entry in self._entries(prefix, delimiter=None) if _is_folder(entry.metadata)]
        found += [top] if top and self._is_folder_there(top) else []
        for name in sorted(found, key=len, reverse=True):
            self._deleted(name, "")

    def _deleted(self, key: str, etag: str) -> bool:
        """A folder with files is no file, and so is passed over."""
        try:
            return super()._deleted(key, etag)
        except StoreError as error:
            if error.facts.get("store_code") != "DirectoryIsNotEmpty":
                raise
            return True

    def _is_folder_there(self, name: str) -> bool:
        try:
            found = self._ask("look up", name, self._on(name, "get_blob_properties"))
        except FileNotFoundError:
            return False
        return _is_folder(found.metadata)

    def _entries(self, prefix: str, *, delimiter: str | None) -> Iterator[Any]:
        """Blobs and, with a delimiter, prefixes. Each page is a request, which may be made again."""
        place: str | None = None
        while True:
            entries, place = self._ask("list", prefix, self._page(prefix, delimiter, place))
            yield from entries
            if not place:
                return

    def _page(
        self, prefix: str, delimiter: str | None, place: str | None
    ) -> Callable[[Any], Awaitable[tuple[list[Any], str | None]]]:
        async def page(connection: Any) -> tuple[list[Any], str | None]:
            container = connection.service_client.get_container_client(self.bucket)
            given = {
                "name_starts_with": prefix or None,
                "include": ["metadata"],
                "results_per_page": _PAGE,
                **self._once_only,
            }
            listed = (
                container.list_blobs(**given)
                if delimiter is None
                else container.walk_blobs(delimiter=delimiter, **given)
            )
            pages = listed.by_page(place)
            async for found in pages:
                return [entry async for entry in found], pages.continuation_token
            return [], None

        return page

    def _new(self) -> Any:
        file_system = importlib.import_module("adlfs").AzureBlobFileSystem
        connection = file_system(**self._options, use_listings_cache=False, skip_instance_cache=True)
        _finalize(connection)
        transport = connection.service_client._pipeline._transport

        bytes_of = transport._get_request_data

        def streamed(request: Any) -> Any:
            data = bytes_of(request)
            return io.BytesIO(data) if isinstance(data, bytes) else data  # aiohttp warns of large bytes

        async def opened() -> None:
            await transport.open()
            transport.session._retry_connection = False  # aiohttp repeats a PUT whose connection ends; no setting

        transport._get_request_data = streamed

        importlib.import_module("fsspec.asyn").sync(connection.loop, opened)
        return connection

    def _session(self, connection: Any) -> Any:
        return connection.service_client._pipeline._transport.session

    @functools.cached_property
    def _once_only(self) -> dict[str, Any]:
        """Options of each call. With them the SDK sends its request once."""
        names = ("connection_timeout", "read_timeout")
        return {"retry_total": 0, **{name: self._options[name] for name in names if name in self._options}}

    def _errors(self) -> tuple[type[Exception], ...]:
        # The SDK raises ValueError for an answer without the headers that it needs.
        return (importlib.import_module("azure.core.exceptions").AzureError, ValueError, *errors_of_network())

    def _told(self, error: Exception) -> Told:
        exceptions = importlib.import_module("azure.core.exceptions")
        if not isinstance(error, exceptions.HttpResponseError) or isinstance(error, exceptions.IncompleteReadError):
            return Told(None, None, _first_line(reason(error)))
        status = error.status_code
        if status is None:
            # The credentials could not be had, or not be used to sign the request.
            sent = not isinstance(error, exceptions.ClientAuthenticationError)
            return Told(None, None, _first_line(reason(error)), was_sent=sent)
        given = getattr(error, "error_code", None)
        code = None if given is None else str(getattr(given, "value", given))
        return Told(
            status,
            code,
            _first_line(error.message),
            is_missing=status == 404 and code not in _NO_CONTAINER,
            is_other=code in _OTHER_VERSION or (status == 412 and code is None),
        )

    def _secrets(self) -> Sequence[str]:
        texts = [str(self._options[name]) for name in ("connection_string", "sas_token") if name in self._options]
        found = [part for text in texts for part in _SECRET_PARTS.findall(text)]
        return [*found, *map(unquote, found), *(text.lstrip("?") for text in texts)]

    def _create(self, key: str, data: bytes) -> Callable[[Any], Awaitable[object]]:
        return self._upload(key, data, {"overwrite": False})

    def _replace(self, key: str, data: bytes, etag: str) -> Callable[[Any], Awaitable[object]]:
        return self._upload(key, data, {"overwrite": True, **_version(etag)})

    def _delete(self, key: str, etag: str) -> Callable[[Any], Awaitable[object]]:
        return self._on(key, "delete_blob", **_version(etag))

    def _upload(self, key: str, data: bytes, condition: Mapping[str, Any]) -> Callable[[Any], Awaitable[Any]]:
        return self._on(key, "upload_blob", data, length=len(data), max_concurrency=1, **condition)

    def _on(self, key: str, operation: str, *given: Any, **named: Any) -> Callable[[Any], Awaitable[Any]]:
        """An operation of the SDK's client for one blob."""

        async def done(connection: Any) -> Any:
            blob = connection.service_client.get_blob_client(self.bucket, key)
            return await getattr(blob, operation)(*given, **named, **self._once_only)

        return done


class _Blocks:
    """An upload in parts. Azure discards those that nobody commits after a week."""

    def __init__(self, client: AzureClient, key: str) -> None:
        self._client, self._key = client, key
        self._name = uuid.uuid4().hex
        """Another writer's blocks of the same name are other blocks."""
        self._blocks: list[str] = []

    def send(self, part: bytes) -> None:
        block = f"{self._name}-{len(self._blocks):08}"
        self._client.send_block(self._key, block, part)
        self._blocks.append(block)

    def finish(self, last: bytes) -> None:
        self.send(last)
        self._client.finish_blocks(self._key, self._blocks)

    def abort(self) -> None:
        """Nothing: there is no request for it."""


class AzureStore(ObjectStore[AzureClient]):
    """A prefix of a container: ``az://container/prefix``, with the account in the options, or
    ``abfss://container@account.dfs.core.windows.net/prefix``. Each of the schemes ``az``, ``abfs`` and ``abfss`` takes
    both forms.

    ``storage_options``: adlfs's ``account_name``, ``account_key``, ``connection_string``, ``sas_token``,
    ``credential``, ``client_id``, ``client_secret``, ``tenant_id``, ``anon``, ``account_host``, ``location_mode``,
    ``connection_timeout``, ``read_timeout``, or the names of the variables ``AZURE_STORAGE_ACCOUNT_NAME`` and so on.
    Missing ones are taken from these variables of the process that makes the store. Without any credentials each
    process looks for Azure's default ones, workload and managed identity among them.
    """

    wrong_token = "0x0"  # noqa: S105 - no secret

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        container, account, prefix = _parse_url(url)
        self._options = adlfs_options(storage_options or {}, os.environ, account)
        place = f"az://{container}" if account is None else f"abfss://{container}@{account}"
        super().__init__(AzureClient(container, self._options, place), clean_prefix(prefix))

    def __reduce__(self) -> tuple[type[AzureStore], tuple[str, dict[str, Any]]]:
        return type(self), (self.url, self._options)


_NO_CONTAINER = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "FilesystemNotFound"})
_OTHER_VERSION = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "PathAlreadyExists"})


def _parse_url(url: str) -> tuple[str, str | None, str]:
    """Container, host of the account if the URL names it, and prefix."""
    match = _PLACE.fullmatch(url.partition("://")[2])
    account = match["account"] if match else None
    if (
        not match
        or not BUCKET.fullmatch(match["container"])
        or (account is not None and not _ACCOUNT.fullmatch(account))
    ):
        # The error does not show the URL, because people put credentials into it.
        raise InputError(
            "a URL of Azure is az://container/prefix or abfss://container@account.dfs.core.windows.net/prefix; "
            f"credentials go into {argument('storage_options')}"
        )
    return match["container"], account, match["prefix"] or ""


def _version(etag: str) -> dict[str, Any]:
    if not etag:
        return {}
    condition = importlib.import_module("azure.core").MatchConditions.IfNotModified
    return {"etag": f'"{etag}"', "match_condition": condition}


def _stat(key: str, blob: Any) -> FileStat:
    return FileStat(key, int(blob.size), int(blob.last_modified.timestamp() * 1000), str(blob.etag).strip('"'))


def _is_folder(metadata: Mapping[str, str] | None) -> bool:
    """Whether a blob is a folder of a hierarchical namespace, or of Hadoop's older way to make one."""
    found = {name.lower(): value for name, value in (metadata or {}).items()}
    return found.get("hdi_isfolder", "").lower() == "true"


def _first_line(text: object) -> str:
    """The SDK's errors go on with ids and times of the request."""
    lines = str(text).strip().splitlines()
    return lines[0] if lines else "no text"


def _finalize(connection: Any) -> None:
    """Close the connection when nobody refers to it any more. adlfs' own finalizer refers to it, so it would stay for
    ever; and it would wait for a thread that is missing in a forked child."""
    for finalizer in [*getattr(weakref.finalize, "_registry", ())]:
        known = finalizer.peek()
        if known is not None and known[0] is connection:
            finalizer.detach()
    weakref.finalize(connection, _closed, os.getpid(), connection.loop, connection.service_client)


def _closed(process: int, loop: Any, client: Any) -> None:
    if process != os.getpid() or not loop.is_running():
        return
    closing = asyncio.run_coroutine_threadsafe(client.close(), loop)
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # the loop is another thread's: at the end of the process it would stop in the middle
        with contextlib.suppress(Exception):
            closing.result(1)
